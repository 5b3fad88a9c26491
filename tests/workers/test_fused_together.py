"""Several fused runs in one program: each is as its seed alone, also after a resume; one that fails ends no other."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jsrl import EvaluatorConfig, Experiment, run
from jsrl.control.result import Result
from jsrl.control.together import run_together
from jsrl.errors import ConfigError, NonFiniteUpdate
from jsrl.experiment import LearnerConfig
from jsrl.graph.plan import make_plan
from jsrl.services.runs.state import read_state
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.workers.base import NullReporter
from jsrl.workers.fused.together import Together, varied_numbers
from jsrl.workers.jobs import StartPoint
from tests.fake_devices import fake_devices
from tests.marks import slow
from tests.workers.test_fused import AGENTS, BAD, PPO, experiment, worker


def together(
    experiments: list[Experiment], folder: Path, starts: list[StartPoint] | None = None, **changes: Any
) -> Any:
    """Return the fused workers of some experiments, set up in one program."""
    jobs = []
    for number, e in enumerate(experiments):
        own = folder / str(number)
        own.mkdir(0o700, parents=True, exist_ok=True)
        job = make_plan(e, str(own), own).job("fused")
        jobs.append(job if starts is None else dataclasses.replace(job, start_point=starts[number]))
    group = Together(jobs)
    for name, value in changes.items():
        setattr(group, name, value)
    workers = [group.build(job, NullReporter()) for job in jobs]
    for one in workers:
        one.setup()
    return workers


def in_turn(workers: list[Any], turns: int = 10**6) -> None:
    while turns and not all(one.finished for one in workers):
        turns -= 1
        for one in workers:
            one.step()


def of_seeds(e: Experiment, *seeds: int) -> list[Experiment]:
    return [dataclasses.replace(e, seed=seed) for seed in seeds]


def assert_equal(one: Any, other: Any, **tolerance: float) -> None:
    one, other = (jax.tree.leaves((state.agent, state.envs)) for state in (one, other))
    assert len(one) == len(other)
    for x, y in zip(one, other, strict=True):
        if tolerance and jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), **tolerance)
        else:
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("name", [slow("recurrent ppo"), slow("dqn"), slow("sac"), "ppo"])
def test_each_member_has_the_bits_of_its_seed_alone(name: str, tmp_path: Path) -> None:
    e = experiment(AGENTS.get(name, PPO), updates=50 if name in AGENTS and name != "ppo" else 8)
    if name == "two devices":
        e = dataclasses.replace(e, num_groups=2, learner=LearnerConfig(num_devices=2))
    experiments = of_seeds(e, 3, 0, 7)
    members = together(experiments, tmp_path)
    in_turn(members)
    for number in (0, 2):
        alone = worker(experiments[number], tmp_path / f"alone-{number}")
        in_turn([alone])
        assert members[number].counts == alone.counts
        assert_equal(members[number]._state, alone._state)


@pytest.mark.slow
def test_members_end_and_resume_each_for_itself(tmp_path: Path) -> None:
    experiments = of_seeds(experiment(updates=6), 3, 0)
    whole = together(experiments, tmp_path / "whole")
    in_turn(whole)
    half = together(experiments, tmp_path)
    in_turn(half, 1)
    half[0]._updater.pace.size = 2
    half[0].step()  # the second one has not taken its part of this call: it does when it ends
    starts = []
    for number, one in enumerate(half):
        updates = one.close()["updates"]
        store = SnapshotStore(tmp_path / str(number) / "snapshots" / "state")
        starts.append(StartPoint(generation=1, updates=updates, restore=f"{store.folder}@latest"))
    assert starts[0].updates == starts[1].updates == 3
    rest = together(experiments, tmp_path, starts)
    in_turn(rest)
    for one, other in zip(whole, rest, strict=True):
        assert_equal(one._state, other._state)


@pytest.mark.slow
def test_a_member_that_is_not_finite_does_not_end_the_others(tmp_path: Path) -> None:
    bad, good = experiment(BAD, updates=9), experiment(dataclasses.replace(BAD, learning_rate=1e-3), updates=9)
    members = together([bad, good], tmp_path)
    members[0]._updater.pace.size = 5
    in_turn(members, 1)
    assert [one.counts["updates"] for one in members] == [1, 5]
    with pytest.raises(NonFiniteUpdate, match="update 2 made"):
        members[0].step()
    members[0].drop_pending()
    in_turn(members[1:])
    assert members[1].counts["updates"] == 9


@pytest.mark.slow
def test_vectorised_members_are_as_alone_up_to_rounding(tmp_path: Path) -> None:
    experiments = of_seeds(experiment(updates=2), 3, 0)
    members = together(experiments, tmp_path, vectorised=True)
    in_turn(members)
    for number, e in enumerate(experiments):
        alone = worker(e, tmp_path / f"alone-{number}")
        in_turn([alone])
        assert_equal(members[number]._state, alone._state, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_numbers_of_the_agent_are_arrays(tmp_path: Path) -> None:
    agents = [PPO, dataclasses.replace(PPO, learning_rate=3e-3, gamma=0.9)]
    assert sorted(varied_numbers(agents)) == ["gamma", "learning_rate"]
    experiments = [experiment(agent, updates=3) for agent in agents]
    members = together(experiments, tmp_path)
    in_turn(members)
    alone = worker(experiments[1], tmp_path / "alone")
    in_turn([alone])
    assert_equal(members[1]._state, alone._state, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="may differ in their seeds and in these numbers of the agent: learning_rate"):
        varied_numbers([PPO, dataclasses.replace(PPO, num_epochs=1)])


@pytest.mark.slow
def test_runs_together_are_runs_like_others(tmp_path: Path) -> None:
    """The one that stops at its goal does not end the other, and is resumed alone: it continues every bit."""
    e = experiment(placement="fused-serial", updates=40)
    e = dataclasses.replace(e, evaluator=EvaluatorConfig(episodes=4, num_envs=4, final_episodes=4))
    given = [e, dataclasses.replace(e, seed=1, stop_at_return=-1e9)]
    common = {"runs_dir": tmp_path, "display": "quiet"}
    before = signal.getsignal(signal.SIGINT)
    whole, goal = run_together([{"given": own, "name": str(own.seed), **common} for own in given])
    assert signal.getsignal(signal.SIGINT) is before
    assert isinstance(whole, Result) and isinstance(goal, Result)
    assert (whole.ended, goal.ended) == ("total_env_steps", "stop_at_return") and goal.updates < whole.updates == 40
    for one in (whole, goal):
        assert one.final["episodes"] == 4 and read_state(one.folder).name == "ended"
        assert (one.folder / "report.html").exists() and "learner/loss" in one.metrics
    rest = run(resume=str(goal.folder), stop_at_return=None, display="quiet")
    for own, result in zip(given, (whole, rest), strict=True):
        alone = run(dataclasses.replace(own, stop_at_return=None), name=f"{own.seed}-alone", **common)
        for x, y in zip(jax.tree.leaves(alone.params), jax.tree.leaves(result.params), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.nightly
def test_members_on_two_devices_have_the_bits_of_their_seeds_alone(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {os.getcwd()!r})
from pathlib import Path
from tests.workers.test_fused_together import *
if __name__ == "__main__":
    test_each_member_has_the_bits_of_its_seed_alone("two devices", Path({str(tmp_path)!r}))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], env=fake_devices(2), capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
