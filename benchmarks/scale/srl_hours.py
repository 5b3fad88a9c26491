"""Hours of the main game of hide-and-seek at SRL's scale, in jsrl's capacity model, beside the published hours.

    python benchmarks/scale/srl_hours.py [--out FILE]
    python benchmarks/scale/srl_hours.py --measure FILE     # times acting on this machine, about 20 CPU-seconds

Extrapolation: nothing of it was run. The functions are those of `jsrl dev simulate`. A unit is one A100 that trains, with 480
actors of one world that infer themselves, or 120 actors in rings of 20 worlds and 8 policy workers on 2 GPUs. Simulated is
an eighth of the first, and half of the second: one GPU with its four policy workers.

Measured, each in a file of benchmarks/results: a step of a world (hide_and_seek.json), acting of the paper's network on one
core (hide_and_seek_times.json), everything else that actors do for a step and their messages over TCP with keys (the
workload `small` in capacity.json; 1.65 CPU seconds per GB).
Assumed: a pass over a decision takes a trainer 67 us, the most that SRL's figures allow (477,000 frames/s of 32 trainers); a
call of a policy worker takes 2 ms and 122 us a decision (benchmarks/scale/srl_shape.py); trainers have no part in common;
each actor has a core as fast as the measured one; a frame of the publications is a decision of a world.
Published: 31.7e9 frames and 34 hours until ramp defence with Rapid (arXiv 1909.07528); SRL about 3 times as fast with
inference on CPUs, up to 5 times with GPUs (arXiv 2306.16688), which is 11.3 and 6.8 hours.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.scale.srl_shape import CALL_S, INFER_S, TRAIN_S
from jsrl.cluster.facts import HostFacts
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, LearnerConfig, VideoConfig
from jsrl.experiment.configs.hide_and_seek_srl import config
from jsrl.services.runs.provenance import environment_facts
from jsrl.tools.simulation.calibration import Measured, fitted
from jsrl.tools.simulation.outcome import simulate
from jsrl.tools.simulation.system import Sizes, System, lay_out_on
from jsrl.tools.simulation.times import Cost, EnvTimes, ServiceTimes, fit
from jsrl.tools.simulation.timing import time_acting

RESULTS = Path(__file__).parents[1] / "results"
WORLDS, ACTING, STREAMS = (RESULTS / f"{name}.json" for name in ("hide_and_seek", "hide_and_seek_times", "capacity"))
BYTE_S = 1.65e-9 / 2  # CPU seconds of one end of a stream over TCP with keys
FRAMES = 31.7e9
ROWS = 160  # of a window; a trainer's batch has 480 of them: 76,800 decisions; SRL: 500
WITHOUT_RING, IN_RINGS = 8, 2  # parts of a unit, one of which is simulated
WORKERS = 4  # that share a GPU
RAPID_HOURS = 34.0
PUBLISHED = {"Rapid": RAPID_HOURS, "SRL, CPU inference": RAPID_HOURS / 3, "SRL, GPU inference": RAPID_HOURS / 5}


def unit(*, ring: int, passes: int) -> Experiment:
    """Return a part of the run of one trainer.

    ring: 1: of 480 actors that infer; else of 120 actors with so many worlds each. passes: over a batch.
    """
    actors = (480 if ring == 1 else 120) // parts(ring)
    return dataclasses.replace(
        config(),
        env=EnvConfig("hide_and_seek:randomwalls"),
        num_envs=actors * ring,
        num_actors=actors,
        num_groups=actors * ring,
        batch_envs=480 // parts(ring),
        rollout_length=ROWS,
        placement="inline" if ring == 1 else "apart",
        num_inference_servers=1 if ring == 1 else WORKERS,
        max_policy_lag=None,
        learner=LearnerConfig(reuse=passes),
        evaluator=EvaluatorConfig(enabled=False),
        video=VideoConfig(enabled=False),
    )


def parts(ring: int) -> int:
    """Return how many times the simulated part makes a unit."""
    return WITHOUT_RING if ring == 1 else IN_RINGS


def hosts(ring: int) -> list[HostFacts]:
    """Return the hosts of a part: that of the trainer, that of the policy workers, and cores for the actors."""
    trainer, policy = HostFacts("trainer", 16, 256_000, gpus=1), HostFacts("policy", 16, 256_000, gpus=1)
    return [trainer, *([] if ring == 1 else [policy]), HostFacts("actors", 480 // parts(ring), 1_000_000)]


def system_of(ring: int, passes: int) -> System:
    """Return the model's view of a part; its policy workers share the GPU of their host, as no run places them."""
    _, system = lay_out_on(unit(ring=ring, passes=passes), hosts(ring))
    policy = [index for index, host in enumerate(system.hosts) if host.name == "policy"]
    return dataclasses.replace(system, servers=tuple(policy * len(system.servers)))


def measure() -> dict[str, Any]:
    """Time acting for some numbers of worlds; return it with the commit and the load."""
    found = {"acting": time_acting(unit(ring=1, passes=1), [1, 4, 20], 2.0), "load": os.getloadavg()[0]}
    facts = environment_facts()
    return found | {name: facts[name] for name in ("started", "commit", "packages", "hardware") if name in facts}


def measured(sent: Sizes) -> ServiceTimes:
    """Return the measured times; sent: bytes of messages, for which the streams' times are raised."""
    streams = json.loads(STREAMS.read_text())
    small = [msgspec.convert(run, Measured) for run in streams["calibration"]["small"]]
    times = fitted(small, msgspec.convert(streams["env"]["small"], EnvTimes))
    actor = msgspec.structs.replace(
        times.actor,
        act=fit(json.loads(ACTING.read_text())["acting"]),
        far_rows=_more(times.actor.far_rows, BYTE_S * sent.trajectory / ROWS),
        far_asks=_more(times.actor.far_asks, BYTE_S * (sent.request + sent.reply)),
    )
    learner = msgspec.structs.replace(times.learner, far_take=_more(times.learner.far_take, BYTE_S * sent.trajectory))
    step_us = statistics.median(json.loads(WORLDS.read_text())["found"]["main 2v2"]["microseconds"]["game"])
    env = EnvTimes(step=Cost(0.0, 1e-6 * step_us))
    return msgspec.structs.replace(times, env=env, actor=actor, learner=learner, measured=[])


def _more(cost: Cost, call_s: float) -> Cost:
    return Cost(cost.call_s + call_s, cost.row_s)


def assumed(measured: ServiceTimes, train_s: float) -> ServiceTimes:
    """Return the measured times with those of GPUs that nobody measured here; train_s: of a decision in a pass of the part."""
    learner = msgspec.structs.replace(measured.learner, update=Cost(0.0, train_s), threads=0.0)
    server = msgspec.structs.replace(measured.server, act=Cost(), act_idle=Cost(CALL_S, INFER_S))
    return msgspec.structs.replace(measured, learner=learner, server=server)


def row(name: str, trainers: int, ring: int, passes: int, train_s: float = TRAIN_S) -> dict[str, Any]:
    """Return what so many trainers do."""
    system = system_of(ring, passes)
    outcome = simulate(system, assumed(measured(system.bytes), parts(ring) * train_s), seconds=5.0)
    rate = trainers * parts(ring) * outcome.env_steps_per_s
    found = {
        "what": name,
        "trainers": trainers,
        "actors": trainers * parts(ring) * len(system.actors),
        "passes": passes,
        "decisions_per_s": round(rate),
        "hours": round(FRAMES / rate / 3600, 1),
        "bottleneck": " ".join(outcome.bottleneck).strip(),
        "actors_in_environments": round(outcome.shares.get("env", 0.0), 3),
    }
    print(json.dumps(found), flush=True)
    return found


def main() -> int:
    """Print published hours and every row, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.measure is not None:
        given.measure.write_text(json.dumps(measure(), indent=1) + "\n")
        return 0
    for name, hours in PUBLISHED.items():
        print(f"published: {name}: {hours:.1f} hours, {FRAMES / hours / 3600:,.0f} frames/s")
    found = []
    for trainers, passes in ((32, 1), (32, 4)):
        found.append(row("480 actors infer", trainers, 1, passes))
        found.append(row("120 actors, ring 20, policy workers", trainers, 20, passes))
    found.append(row("480 actors infer, trainers that take no time", 32, 1, 1, 1e-7))
    if given.out is not None:
        given.out.write_text(json.dumps({"published_hours": PUBLISHED, "model": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
