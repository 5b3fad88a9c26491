"""What tests of joined hosts share: an endless experiment, a hook that ends it, and agents in network namespaces."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from jsrl.agents.ppo import PPOConfig
from jsrl.cluster.launcher import JoinedHosts
from jsrl.control.hooks import STOP, LiveRun
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.networks.model import NetworkConfig
from tests.cluster.agents import Agent


def endless(hidden: tuple[int, ...] = (8,), max_minutes: float = 5.0, **options: Any) -> Experiment:
    """Return an experiment, with served actors, that a hook must end; `options` are more of its fields."""
    usual: dict[str, Any] = {"evaluator": EvaluatorConfig(enabled=False), "placement": "served"}
    return Experiment(
        agent=PPOConfig(network=NetworkConfig(hidden=hidden), num_epochs=1, num_minibatches=1),
        num_envs=8,
        num_actors=4,
        rollout_length=16,
        total_env_steps=10**9,
        max_minutes=max_minutes,
        **usual | options,
    )


class Events(threading.Thread):
    """A hook that makes things happen to a run in a thread (`make`), and ends the run once the thread has ended.

    Attributes:
      done: everything has happened; False if the thread failed.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done = False

    def make(self) -> None:
        """Make things happen, and wait for their effects."""
        raise NotImplementedError

    def run(self) -> None:
        """Run the thread."""
        self.make()
        self.done = True

    def on_metrics(self, run: LiveRun, row: dict[str, Any]) -> str | None:
        """End the run; see jsrl.control.hooks."""
        return None if self.is_alive() else STOP


def agents_on(launcher: JoinedHosts, networks: list[str], folder: Path, patience_s: float = 20.0) -> dict[str, Agent]:
    """Start an agent in each network; their logs go to a folder."""
    return {
        network: Agent(launcher.join_key, network, folder / f"{network}.txt", network, patience_s)
        for network in networks
    }


def close_all(launcher: JoinedHosts, agents: dict[str, Agent]) -> None:
    """Close a launcher, then its agents."""
    launcher.close()
    for agent in agents.values():
        agent.close()
