"""A resume with other options: what may change, what is refused before the start, and what is said to be lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jsrl.agents.dqn import DQNConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.agents.sac import SACConfig
from jsrl.control.resume import allowed_changes, environment_obstacle
from jsrl.control.run import check_resume
from jsrl.control.start_points import check_snapshots, what_is_lost
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, PolicyConfig, ReplayConfig
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.graph.plan import Plan, make_plan
from jsrl.graph.schemas import trace_agent
from jsrl.networks.model import NetworkConfig
from jsrl.references.reference import to_json
from jsrl.services.runs.runs import RunFolder
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.workers.jobs import StartPoint
from jsrl.workers.kinds import Kind, Lifecycle
from tests.marks import slow

PPO = Experiment(PPOConfig(), EnvConfig("CartPole-v1"), placement="serial")
REPLAY = ReplayConfig(min_size=64, capacity=1000, batch_size=32, updates_per_env_step=0.03125)
SAC = Experiment(SACConfig(), EnvConfig("Pendulum-v1"), replay=REPLAY, max_policy_lag=None, placement="serial")


def with_part(experiment: Experiment, name: str, **changes: Any) -> Experiment:
    return dataclasses.replace(experiment, **{name: dataclasses.replace(getattr(experiment, name), **changes)})


@pytest.mark.parametrize(
    ("old", "new", "option"),
    [
        (PPO, with_part(PPO, "agent", learning_rate=1e-5), "--agent.learning-rate"),
        (PPO, with_part(PPO, "agent", entropy_coef=0.5), "--agent.entropy-coef"),
        (SAC, with_part(SAC, "agent", critic_learning_rate=1e-5), "--agent.critic-learning-rate"),
        (PPO, with_part(PPO, "env", kwargs={"sutton_barto_reward": True}), "--env.kwargs"),
        (PPO, with_part(PPO, "env", max_episode_steps=50), "--env.max-episode-steps"),
        (SAC, with_part(SAC, "replay", capacity=2000), "--replay.capacity"),
        (SAC, with_part(SAC, "replay", min_size=128), "--replay.min-size"),
    ],
)
def test_coefficients_environments_and_replays_may_change(old: Experiment, new: Experiment, option: str) -> None:
    (line,) = allowed_changes(old, new)
    assert line.startswith(f"changed: {option} ")


def test_the_coefficients_of_each_policy_may_change() -> None:
    old = Experiment(None, policies={"a": PolicyConfig(PPOConfig()), "b": PolicyConfig(PPOConfig())})
    policies = old.policies | {"b": PolicyConfig(PPOConfig(learning_rate=1e-5))}
    (line,) = allowed_changes(old, dataclasses.replace(old, policies=policies))
    assert line.startswith("changed: --policies.b.agent.learning-rate ")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (PPO, with_part(PPO, "agent", network=NetworkConfig(hidden=(9,))), "--agent.network.hidden cannot"),
        (PPO, with_part(PPO, "agent", num_epochs=9), "--agent.num-epochs cannot"),
        (PPO, with_part(PPO, "env", id="Acrobot-v1"), "--env.id cannot"),
        (PPO, dataclasses.replace(PPO, num_envs=32), "its optimizer and what else its learner has learned"),
        (SAC, with_part(SAC, "replay", updates_per_env_step=0.125), "because the run counts its updates per env step"),
        (
            with_part(SAC, "replay", save=True),
            with_part(SAC, "replay", save=True, capacity=2000),
            "--replay.capacity cannot",
        ),
    ],
)
def test_what_the_state_or_the_counts_depend_on_may_not_change(old: Experiment, new: Experiment, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        allowed_changes(old, new)


def test_a_changed_environment_is_not_continued_exactly(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "ppo", "one", config=to_json(PPO))
    assert environment_obstacle(folder, PPO) is None
    assert environment_obstacle(folder, with_part(PPO, "env", fault_limit=3)) is None
    changed = with_part(PPO, "env", max_episode_steps=50)
    assert environment_obstacle(folder, changed) == "its environment changed (--env.max-episode-steps)"


def test_a_resume_says_what_is_lost(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "sac", "one", config=to_json(SAC))
    folder.metrics_path.write_text('{"env_steps": 5120}\n{"env_steps": 5632, "updates": 7}\n')
    (policy,) = make_plan(SAC, str(folder.path), tmp_path).policies.values()
    assert what_is_lost(folder, policy, StartPoint(1, 100, "x@latest", env_steps=3552)) == [
        "goes back from 5,632 to 3,552 env steps, to its newest snapshot",
        "its replay begins empty, because snapshots leave it out (--replay.save keeps it)",
    ]
    kept = dataclasses.replace(policy, experiment=with_part(SAC, "replay", save=True))
    assert what_is_lost(folder, kept, StartPoint(1, 100, "x@latest", env_steps=5632)) == []
    host = dataclasses.replace(policy, experiment=with_part(SAC, "replay", kind="host", save=True))
    (line,) = what_is_lost(folder, host, StartPoint(1, 100, "x@latest", env_steps=5632))
    assert line == f"its replay begins empty, because its rows are missing: {folder.path / 'replay/*/rows'}"
    (folder.path / "replay" / "0" / "rows").mkdir(parents=True)
    assert what_is_lost(folder, host, StartPoint(1, 100, "x@latest", env_steps=5632)) == []


def refuse_or_tell(job: Any) -> list[str] | None:
    if job.name == "wrong":
        raise ConfigError(f"{job.name} cannot continue.")
    return [f"{job.name} begins anew"] if job.name == "new" else None


def test_a_kind_checks_the_resume_of_its_workers() -> None:
    kind = Kind("own", "own", "a:b", lifecycle=Lifecycle(check_resume=f"{__name__}:refuse_or_tell"))
    plain = Kind("plain", "plain", "a:b")
    kinds = {"new": kind, "kept": kind, "other": plain, "wrong": kind}
    found = check_resume(SimpleNamespace(kinds=kinds, jobs=[SimpleNamespace(name=name) for name in kinds]))  # type: ignore[arg-type]
    assert next(found) == "new begins anew"
    with pytest.raises(ConfigError, match="wrong cannot continue"):
        next(found)


DQN = dataclasses.replace(SAC, agent=DQNConfig(), env=EnvConfig("CartPole-v1"))


@pytest.mark.parametrize("experiment", [PPO, slow(SAC), slow(DQN)], ids=["ppo", "sac", "dqn"])
def test_a_state_that_does_not_fit_is_refused_before_the_start(tmp_path: Path, experiment: Experiment) -> None:
    plan = make_plan(experiment, str(tmp_path), tmp_path)
    state, _ = trace_agent(build_agent(resolved_agent(experiment), plan.schemas.env), plan.schemas.env)
    store = SnapshotStore(tmp_path / "state")
    store.save(7, {"state": jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)}, wait=True)
    start = StartPoint(1, 7, f"{store.folder}@latest")

    def begun(changed: Experiment) -> Plan:
        made = make_plan(changed, str(tmp_path), tmp_path)
        return made.begun_at(dict.fromkeys(made.policies, start))

    check_snapshots(begun(experiment))
    with pytest.raises(
        ConfigError, match=r"does not fit: state/params/.* was .* and is .* now .*\. The environment's spaces"
    ):
        check_snapshots(begun(with_part(experiment, "agent", network=NetworkConfig(hidden=(9,)))))
    assert store.close()
