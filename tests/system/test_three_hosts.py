"""Three hosts without common files: they solve CartPole as fast as one host, and a deterministic run makes the same bits.

`python -m pytest -s -m nightly FILE` shows the times. A shorter form of each runs daily in test_joined_hosts.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cluster.facts import HostFacts
from jsrl.cluster.launcher import JoinedHosts
from jsrl.control.processes.launcher import Local
from jsrl.control.result import Result
from jsrl.control.run import run
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.networks.model import NetworkConfig
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.reconcile import leg_ledger
from jsrl.types import named_leaves
from tests.cluster.agents import HIDDEN, await_that
from tests.system.joined import agents_on, close_all

SEEDS = 3


def run_on_three(experiment: Experiment, hosts: tuple[str, list[str]], folder: Path, name: str) -> Result:
    """Run an experiment on this host and two others that do not see its files; nothing may be left of it there."""
    address, networks = hosts
    own = HostFacts("here", 2, 8_000, address)
    launcher = JoinedHosts(Local(), own, 0, len(networks), folder / f"join-{name}.key", lambda line: None)
    agents = agents_on(launcher, networks, folder)
    try:
        await_that(lambda: len(launcher.members.hosts) == len(networks))
        seen = [Path(f"/proc/{agent.popen.pid}/root{folder}").exists() for agent in agents.values()]
        result = run(experiment, runs_dir=folder, name=name, launcher=launcher, display="log-only")
        assert not any(seen), f"{folder} is not below {' or '.join(HIDDEN)}"
        assert set(launcher._laid.values()) == {"here", *networks}
        assert [agent.ends(10.0)[0] for agent in agents.values()] == [0, 0]
        assert not any(agent.workers() for agent in agents.values())
    finally:
        close_all(launcher, agents)
    assert leg_ledger(result.ledger).balanced
    return result


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_three_hosts_solve_cartpole_almost_as_fast_as_one(hosts: tuple[str, list[str]], tmp_path: Path) -> None:
    base = Experiment(
        name="cartpole",
        agent=PPOConfig(learning_rate=3e-3, gamma=0.98, gae_lambda=0.9, num_epochs=8, num_minibatches=4),
        num_envs=18,
        num_actors=3,
        num_inference_servers=3,
        placement="served",
        rollout_length=64,
        total_env_steps=300_000,
        stop_at_return=475.0,
        evaluator=EvaluatorConfig(episodes=20, num_envs=20, period_env_steps=5_000),
    )
    took_s: dict[str, list[float]] = {"one host": [], "three hosts": []}
    for seed in range(SEEDS):
        experiment = dataclasses.replace(base, seed=seed)
        results = {
            "one host": run(experiment, runs_dir=tmp_path, name=f"one-{seed}", display="log-only"),
            "three hosts": run_on_three(experiment, hosts, tmp_path, f"three-{seed}"),
        }
        for where, result in results.items():
            assert result.ended == "stop_at_return" and result.evaluation["return_mean"] >= 475.0
            took_s[where].append(result.wall_s)
    sys.stdout.write(f"{took_s}\n")
    assert sum(took_s["three hosts"]) <= 1.5 * sum(took_s["one host"])


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_fifty_updates_on_three_hosts_equal_those_of_one_process_bit_for_bit(
    hosts: tuple[str, list[str]], tmp_path: Path
) -> None:
    experiment = Experiment(
        agent=PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1),
        num_envs=6,
        num_groups=3,
        num_actors=3,
        num_inference_servers=3,
        placement="served",
        rollout_length=16,
        total_env_steps=50 * 6 * 16,
        deterministic=True,
        evaluator=EvaluatorConfig(enabled=False),
    )
    alone = run(experiment, runs_dir=tmp_path, name="alone", placement="serial", display="log-only")
    far = run_on_three(experiment, hosts, tmp_path, "far")
    assert alone.updates == far.updates == 50
    one, other = (
        dict(named_leaves(SnapshotStore(result.folder / "snapshots" / "state").load("final").tree["state"]))
        for result in (alone, far)
    )
    assert one.keys() == other.keys() and not [name for name in one if one[name].tobytes() != other[name].tobytes()]
