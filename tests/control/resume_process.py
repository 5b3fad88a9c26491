"""One session of a run in a separate process: `python resume_process.py EXPERIMENT RUNS NAME [--stop K] [--resume]`.

It is stopped by a SIGTERM to itself as soon as K updates are made; if the learner is another process, as soon as a
snapshot of at least K exists.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from gymnasium.envs.classic_control import CartPoleEnv

from jsrl.agents.dqn import DQNConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.agents.sac import SACConfig
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, ReplayConfig, SnapshotConfig
from jsrl.networks.model import NetworkConfig
from jsrl.services.snapshots import store as snapshots
from jsrl.workers.learner.worker import Learner

UPDATES = 30
SMALL = NetworkConfig(hidden=(16, 16))
PPO = Experiment(
    name="exact",
    agent=PPOConfig(learning_rate=3e-3, schedule="linear", num_epochs=2, normalize_observations=True, network=SMALL),
    num_envs=8,
    num_groups=2,
    rollout_length=16,
    total_env_steps=UPDATES * 8 * 16,
    placement="serial",
    evaluator=EvaluatorConfig(enabled=False),
    snapshots=SnapshotConfig(period_s=0.05),
)
OF_OPTAX = dataclasses.replace(PPO.agent, optimizer="optax:lamb", schedule="optax:cosine_decay_schedule")
SLOW = dataclasses.replace(
    PPO,
    agent=OF_OPTAX,
    env=EnvConfig("resume_process:SlowCartPole", max_episode_steps=200),
    deterministic=True,
    num_actors=2,
)
REPLAY = ReplayConfig(
    capacity=512, batch_size=16, min_size=64, save=True
)  # smaller than the run: its ring wraps around
EXPERIMENTS = {
    "ppo": PPO,
    "inline": dataclasses.replace(SLOW, placement="inline"),
    "served": dataclasses.replace(SLOW, placement="served"),
    "sac": dataclasses.replace(
        PPO,
        agent=SACConfig(learning_rate=1e-3, network=SMALL),
        env=EnvConfig("Pendulum-v1"),
        num_groups=None,
        max_policy_lag=None,
        replay=REPLAY,
    ),
    "dqn": dataclasses.replace(
        PPO,
        agent=DQNConfig(learning_rate=1e-3, network=SMALL),
        max_policy_lag=None,
        replay=dataclasses.replace(REPLAY, window=3, prioritised=True),
    ),
}


def fill_disk_after(updates: int) -> None:
    """Make every snapshot after the given number of updates fail as on a full disk."""
    save = snapshots.orbax_save

    def failing(folder: Path, tree: dict) -> None:
        if int(tree["state"]["updates"]) > updates:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        save(folder, tree)

    snapshots.orbax_save = failing  # type: ignore[assignment]


class SlowCartPole(CartPoleEnv):
    """Slow enough that a run of 30 updates can be stopped between two of them."""

    def step(self, action):
        time.sleep(0.001)
        return super().step(action)


def stop_when_saved(folder: Path, updates: int) -> None:
    """Send this process SIGTERM as soon as a snapshot of at least the given number of updates exists."""

    def watch() -> None:
        path, saved = folder / "snapshots" / "state" / "tags" / "latest.json", -1
        while saved < updates:
            time.sleep(0.005)
            if path.exists():
                saved = json.loads(path.read_text())["meta"]["updates"]
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def stop_at(updates: int) -> None:
    """Send this process SIGTERM as soon as the given number of updates is made."""
    step = Learner.step

    def stopping(self: Learner) -> int:
        made = step(self)
        if made and self.updates // made == updates:
            os.kill(os.getpid(), signal.SIGTERM)
        return made

    Learner.step = stopping  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("runs")
    parser.add_argument("name")
    parser.add_argument("--stop", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--placement")
    parser.add_argument("--full-after", type=int)
    given = parser.parse_args()
    experiment = EXPERIMENTS[given.experiment]
    if given.placement:
        experiment = dataclasses.replace(experiment, placement=given.placement)
    if given.full_after is not None:
        fill_disk_after(given.full_after)
    if given.stop is not None and experiment.placement == "serial":
        stop_at(given.stop)
    elif given.stop is not None:
        stop_when_saved(Path(given.runs) / "exact" / given.name, given.stop)
    which = {"resume": f"exact/{given.name}"} if given.resume else {"name": given.name}
    result = run(experiment, runs_dir=given.runs, display="plain", **which)
    print("ENDED", result.ended, result.updates, flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
