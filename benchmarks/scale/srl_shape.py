"""SRL's published scale in jsrl's capacity model, and the needs of as many actors with jsrl: extrapolation, not measurement.

    python benchmarks/scale/srl_shape.py [--out FILE]

Published (arXiv 2306.16688, the comparison of architectures, and the authors' configurations): 32 trainers; with 480 actors
each that infer on their own core 477,000 FPS, with 120 actors each, rings of 20 and 8 policy workers of a quarter GPU 453,000,
with inference on the trainer's own device 169,000. The model's inputs are the per-actor figures that follow:

* a core with inference on GPUs makes 453,000 / 3,840 = 118 env steps/s, so an env step takes 8.5 ms;
* a core that infers itself makes 477,000 / 15,360 = 31 env steps/s, so inference takes the other 23.7 ms of its 32.2 ms;
* a trainer keeps up with 477,000 / 32 = 14,900 rows/s: at most 67 us a row (taken as 67);
* a device that trains and infers makes 169,000 / 32 = 5,281 rows/s, 189 us a row, so inference takes the other 122 us.

The three rates at 32 trainers are therefore reproduced by construction. The model adds the bottleneck of each, and the effect
of other numbers of actors, rings and trainers. Trainers are independent units in the model; the published efficiency from 8
to 32 GPUs is 0.86 to 0.98.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from jsrl.cluster.facts import HostFacts
from jsrl.tools.simulation.outcome import Outcome, lag_quantile, simulate
from jsrl.tools.simulation.system import ActorPart, Sizes, System
from jsrl.tools.simulation.times import ActorTimes, Cost, EnvTimes, LearnerTimes, ServerTimes, ServiceTimes

TRAINERS = 32
ENV_S, ACT_S, TRAIN_S, INFER_S = 0.0085, 0.0237, 67e-6, 122e-6
ROW_BYTES, PARAMS_BYTES = 1_100.0, 6.4e6  # hide-and-seek with four agents; its network
ROWS, CALL_S = 160, 0.002  # of a sample; the part of a GPU call that does not grow with its rows
GBIT = 1000.0

SRL = ServiceTimes(
    env=EnvTimes(step=Cost(0.0, ENV_S)),
    actor=ActorTimes(act=Cost(0.0, ACT_S)),
    server=ServerTimes(act_idle=Cost(CALL_S, INFER_S)),
    learner=LearnerTimes(update=Cost(0.0, TRAIN_S), threads=0.0),
    far_hop_s=3e-4,
)


def unit(actors: int, ring: int, servers: int, gpus: int, *, nic_gbit: float = 0.0, beside: bool = False) -> System:
    """Return one trainer and its actors, one core each.

    Args:
      actors, ring: how many, and environments of each. servers: policy workers; 0: actors infer. gpus: shared by these.
      nic_gbit: of the trainer's share of its host's network; 0: enough. beside: they infer on the trainer's own device.
    """
    nic = nic_gbit * GBIT
    hosts = (
        HostFacts("trainer", 16, 64_000, gpus=1, in_mbit=nic, out_mbit=nic),
        HostFacts("actors", actors, 1_000_000),
        HostFacts("policy", 64, 64_000, gpus=max(gpus, 1)),
    )
    groups = [tuple(range(ring * n, ring * (n + 1))) for n in range(actors)]
    parts = tuple(ActorPart(1, own, number % servers if servers else None) for number, own in enumerate(groups))
    total = actors * ring
    return System(
        hosts=hosts,
        actors=parts,
        servers=(0 if beside else 2,) * servers,
        learner=0,
        group_size=1,
        rows=ROWS,
        batch_groups=max(1, total // 4),
        max_lag=None,
        blocks=2,
        bytes=Sizes(ROW_BYTES, 100.0, ROW_BYTES * ROWS, PARAMS_BYTES),
        far_rows=True,
        far_asks=bool(servers),
        far_params=True,
        fan_out=4,
    )


def row(
    name: str,
    system: System,
    times: ServiceTimes,
    published: float | None = None,
    trainers: int = TRAINERS,
    seconds: float = 20.0,
) -> dict[str, Any]:
    """Return the figures of one unit, and of as many units as there are trainers."""
    outcome: Outcome = simulate(system, times, seconds=seconds, warm_s=seconds)
    found = {
        "what": name,
        "actors": trainers * len(system.actors),
        "env_steps_per_s": round(trainers * outcome.env_steps_per_s),
        "published": published,
        "bottleneck": " ".join(outcome.bottleneck).strip(),
        "lag_p95": lag_quantile(outcome.lags, 0.95),
        "trainer_busy": round(outcome.used["updates", ""], 3),
        "gbit_into_trainer": round(outcome.env_steps_per_s * ROW_BYTES * 8 / 1e9, 2),
    }
    print(json.dumps(found), flush=True)
    return found


def main() -> int:
    """Print every row, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cpu, gpu, seed = unit(480, 1, 0, 0), unit(120, 20, 8, 2), unit(120, 20, 1, 1, beside=True)
    found = [
        row("actors infer (IMPALA's way)", cpu, SRL, 477_000),
        row("policy workers (SRL's way)", gpu, SRL, 453_000),
        row("the trainer's device infers (SEED's way)", seed, SRL, 169_000),
        row("actors infer, 8 trainers", cpu, SRL, None, 8),
        row("half as many actors that infer", unit(240, 1, 0, 0), SRL),
        row("twice as many actors that infer", unit(960, 1, 0, 0), SRL),
        row("policy workers without a ring", unit(120, 1, 8, 2), SRL),
    ]
    found += ours()
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def ours() -> list[dict[str, Any]]:
    """Return the needs of 15,360 actors with jsrl's own times.

    Main game, 2 against 2: 966 us of a core a step (benchmarks/results/hide_and_seek.json); acting of an MLP with four agents
    about 118 us a step on a core (8,500 steps/s); 1.65 CPU seconds a GB over TCP with keys, both ends.
    """
    byte_s = 1.65e-9 / 2
    actor = ActorTimes(act=Cost(0.0, 118e-6), own=Cost(0.0, 50e-6), far_rows=Cost(0.0, ROW_BYTES * byte_s))
    learner = LearnerTimes(update=Cost(0.0, TRAIN_S), threads=0.0, far_take=Cost(0.0, ROW_BYTES * byte_s))
    times = ServiceTimes(env=EnvTimes(step=Cost(0.0, 966e-6)), actor=actor, learner=learner, far_hop_s=3e-4)
    share = 8  # a unit is an eighth of a trainer, to simulate it within a minute
    eighth = unit(480 // share, 1, 0, 0, nic_gbit=100.0 / 8 / share)
    as_srl = LearnerTimes(update=Cost(0.0, share * TRAIN_S), threads=0.0, far_take=learner.far_take)
    quick = LearnerTimes(update=Cost(0.0, share * 2e-6), threads=0.0, far_take=learner.far_take)
    few = unit(18, 1, 0, 0, nic_gbit=100.0 / 8)
    return [
        row("jsrl's actors, trainers as fast as SRL's", eighth, _with(times, as_srl), None, share * TRAINERS, 4.0),
        row(
            "jsrl's actors, devices that train 500,000 rows/s", eighth, _with(times, quick), None, share * TRAINERS, 4.0
        ),
        row("as many of jsrl's actors as SRL's trainers take", few, times, None, TRAINERS, 4.0),
    ]


def _with(times: ServiceTimes, learner: LearnerTimes) -> ServiceTimes:
    return ServiceTimes(env=times.env, actor=times.actor, learner=learner, far_hop_s=times.far_hop_s)


if __name__ == "__main__":
    sys.exit(main())
