"""How fast hide-and-seek trains by placement, by ring, and with its actors on 1 to 3 hosts, and where the CPU time goes.

    python benchmarks/hide_and_seek_placements.py                       # lists the arms
    python benchmarks/hide_and_seek_placements.py ARM ... --out FILE    # measures arms, adds them to FILE
    python benchmarks/hide_and_seek_placements.py --table FILE          # prints what is in FILE

The main game, 2 against 2 with boxes and ramps: a decision is an env step of one world, four agent-steps. Two actors have 40
worlds; on hosts six actors have 36. A batch has 40 decisions of each world, is trained on in one pass, and its params are at
most 2 updates old. `paper`: the network of `hide_and_seek_srl`, 1.6 million weights; `small`: an MLP of 128 x 128. Ring r: an
actor's worlds are in r groups, and while the server acts for one, the actor steps another. Hosts are network namespaces on
the cores of this machine (root is needed), which hold only actors; streams go over TCP with keys. Every block is a run of
its own; CPU times are of all its processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scale.layouts import Layout, far_hosts
from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.experiment.configs.hide_and_seek_srl import NETWORK
from jsrl.experiment.placements import PlacementName
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.provenance import environment_facts
from jsrl.tools.tuning.trial import Limits

AGENTS, ROWS = 4, 40
LIMITS = Limits(seconds=12.0, updates=4, warm_s=3.0, start_s=120.0, longest_s=40.0)
NETWORKS = {"paper": NETWORK, "small": NetworkConfig(hidden=(128, 128))}
KINDS = ("actor", "inference", "learner", "parameter_server")  # of workers, as metrics name them
SHARES = (
    *("actor/env", "actor/act", "actor/wait_inference", "actor/wait_block", "actor/wait_params", "actor/transport"),
    *("inference/act", "inference/wait", "learner/update", "learner/wait_batch"),
)


@dataclass(frozen=True)
class Arm:
    """One way to run it. ring: groups of each actor. hosts: that hold the actors; 0: this host holds all workers."""

    network: str
    placement: PlacementName
    ring: int = 1
    hosts: int = 0

    @property
    def actors(self) -> int:
        """Return the number of actors."""
        return 6 if self.hosts else 2

    @property
    def name(self) -> str:
        """Return its name on the command line."""
        ring = f"-ring-{self.ring}" if self.placement != "inline" else ""
        return f"{self.network}-{self.placement}{ring}" + (f"-hosts-{self.hosts}" if self.hosts else "")


def arms() -> dict[str, Arm]:
    """Return every arm by its name."""
    made = []
    for network in NETWORKS:
        made += [Arm(network, "inline"), *(Arm(network, "served", ring) for ring in (1, 4, 20))]
        made.append(Arm(network, "apart", 4))
    for placement in ("inline", "served"):
        made += [Arm("small", placement, 2 if placement == "served" else 1, hosts) for hosts in (1, 2, 3)]
    return {arm.name: arm for arm in made}


def experiment_of(arm: Arm) -> Experiment:
    """Return the experiment of an arm."""
    network = NETWORKS[arm.network]
    agent = PPOConfig(
        num_epochs=1,
        num_minibatches=4,
        chunk_length=None if network.core == "none" else 10,
        normalize_observations=True,
        network=network,
    )
    return Experiment(
        name="hide_and_seek_placements",
        agent=agent,
        env=EnvConfig("hide_and_seek:randomwalls"),
        num_envs=36 if arm.hosts else 40,
        num_actors=arm.actors,
        num_groups=arm.actors * arm.ring,
        rollout_length=ROWS,
        placement=arm.placement,
        max_policy_lag=2,
        total_env_steps=10**12,
        evaluator=EvaluatorConfig(enabled=False),
    )


def measure(arm: Arm) -> dict[str, Any]:
    """Run an arm once, and return decisions per second, CPU microseconds per decision, and shares of time."""
    layout = Layout(arm.name, "", arm.placement, arm.actors, far=arm.hosts)
    with (
        tempfile.TemporaryDirectory(prefix="jsrl-placements-") as folder,
        far_hosts(layout, Path(folder), LIMITS) as (launcher, meter),
    ):
        run(experiment_of(arm), runs_dir=folder, name="one", launcher=launcher, display="log-only", hooks=[meter])
    found = meter.found(layout)
    means, rate = found["means"], found["env_steps_per_s"]
    cores = {kind: means.get(f"system/{kind}_cpu_share", 0.0) for kind in KINDS} | {"control": found["control_cores"]}
    return {
        "decisions_per_s": round(rate, 1),
        "seconds": found["seconds"],
        "cpu_us_per_decision": {kind: round(1e6 * used / rate, 1) for kind, used in cores.items()},
        "others_cores": found["others_cores"],
        "policy_lag_mean": means.get("learner/policy_lag_mean", 0.0),
        "shares": {name: means[f"{name}_share"] for name in SHARES if f"{name}_share" in means},
    }


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return the medians as a table in Markdown."""
    kinds = (*KINDS, "control")
    head = ["arm", "decisions/s", "agent-steps/s", "CPU us a decision", *kinds, "actor: env, infer, wait", "lag"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, blocks in found.items():
        rate = statistics.median(block["decisions_per_s"] for block in blocks)
        cpu = {kind: statistics.median(block["cpu_us_per_decision"][kind] for block in blocks) for kind in kinds}

        def share(of: str, blocks: list[dict[str, Any]] = blocks) -> float:
            return statistics.median(block["shares"].get(of, 0.0) for block in blocks)

        waits = sum(share(f"actor/wait_{what}") for what in ("inference", "block", "params"))
        cells = [name, f"{rate:,.0f}", f"{AGENTS * rate:,.0f}", f"{sum(cpu.values()):,.0f}"]
        cells += [f"{cpu[kind]:,.0f}" for kind in kinds]
        cells.append(f"{share('actor/env'):.0%}, {share('actor/act'):.0%}, {waits:.0%}")
        cells.append(f"{statistics.median(block['policy_lag_mean'] for block in blocks):.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure arms, or print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", nargs="*", metavar="ARM")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    known = arms()
    if unknown := [name for name in args.arms if name not in known]:
        parser.error(f"there is no arm {unknown[0]}; there are: {', '.join(known)}")
    if args.table:
        print(table(json.loads(args.table.read_text())["arms"]))
    elif not args.arms:
        print("\n".join(known))
    kept = json.loads(args.out.read_text()) if args.out and args.out.exists() else {"arms": {}}
    facts = environment_facts()
    for name in args.arms:
        block = measure(known[name])
        print(json.dumps({"arm": name} | block), flush=True)
        kept["arms"].setdefault(name, []).append(block)
        kept |= {name: facts[name] for name in ("started", "commit", "packages", "hardware") if name in facts}
        if args.out:
            args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
