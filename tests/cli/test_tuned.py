"""Tuned settings: which command lines take them, and what they give."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

import jsrl
from jsrl.cli.command_line import parse
from jsrl.cli.experiments import load
from jsrl.cli.option_help import asked_of
from jsrl.cli.tune import TuneCommand
from jsrl.cli.tuned import applied, listing, rows, with_settings
from jsrl.types import Continuous


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row.algorithm}-{row.env}")
def test_every_row_is_an_experiment_of_a_known_environment(row) -> None:
    experiment = applied(row, load(row.algorithm))
    assert experiment.env.id == row.env and experiment.name == row.algorithm
    assert row.env.startswith(("ALE/", "gymnax:")) or row.env in gymnasium.registry
    before = load(row.algorithm)
    assert (experiment.agent, experiment.total_env_steps) != (before.agent, before.total_env_steps)


def settings(words: str, name: str = "ppo"):
    args = words.split()
    default, line = with_settings(name, args, load(name))
    return parse(args, default).experiment, line


def test_an_algorithm_named_with_an_environment_takes_its_row_and_says_so() -> None:
    e, line = settings("--env.id Pendulum-v1")
    assert (e.agent.gamma, e.num_envs, e.rollout_length, e.total_env_steps) == (0.9, 4, 1024, 100_000)
    assert line == (
        "settings: those of rl-baselines3-zoo 22e3ff24 for ppo on Pendulum-v1 (score there -172 ± 104); --settings none: the "
        f"defaults of jsrl\n  {next(row.options for row in rows() if row.env == 'Pendulum-v1')}"
    )
    assert e == jsrl.tuned("ppo", "Pendulum-v1")
    assert e.env.action_transform == "clip"  # the zoo's; ours is to rescale
    assert isinstance(jsrl.make_env(e.env, 1, 0).spec.action, Continuous)


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "pqn"])
def test_naming_an_algorithms_own_environment_changes_nothing(name: str) -> None:
    assert settings("", name) == settings(f"--env.id {load(name).env.id}", name) != (load(name), "")
    asked = asked_of([name], TuneCommand())[1]
    assert asked.experiment == settings("", name)[0]
    assert asked_of([name, "--settings", "none"], TuneCommand())[1].experiment == load(name)


def test_a_row_may_have_a_source_and_common_options_of_its_own() -> None:
    e, line = settings("--env.id gymnax:CartPole-v1")
    assert line.startswith("settings: those of jsrl for ppo on gymnax:CartPole-v1 (score there 500 ± 0)")
    assert e.agent.value_coef == load("ppo").agent.value_coef != jsrl.tuned("ppo", "CartPole-v1").agent.value_coef


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--env.id Pendulum-v1 --settings none", "ppo"),
        ("--env.id=Pendulum-v1 --settings=none", "ppo"),
        ("", "impala"),
        ("--env.id Taxi-v3", "ppo"),
        ("--env.id CartPole-v1", "ppo_cartpole"),
        ("--env.id Pendulum-v1", "impala"),
    ],
)
def test_other_command_lines_take_the_experiments_own_settings(words: str, name: str) -> None:
    assert settings(words, name)[1] == ""


def test_what_the_user_gives_wins_and_schedules_follow_the_users_total() -> None:
    e, line = settings("--env.id CartPole-v1 --agent.gamma 0.5 --total-env-steps 51_200")
    assert line and e.agent.gamma == 0.5 and e.agent.schedule == "linear" and e.total_updates == 200


def test_an_experiment_of_the_user_with_an_algorithms_name_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "configs").mkdir()
    text = "from jsrl import Experiment, PPOConfig\n\ndef config():\n    return Experiment(PPOConfig(gamma=0.3))\n"
    (tmp_path / "configs" / "ppo.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    e, line = settings("--env.id Pendulum-v1")
    assert line == "" and e.agent.gamma == 0.3


def test_the_list_has_commands_that_give_the_same() -> None:
    lines = listing().splitlines()
    words = lines[lines.index("ppo Pendulum-v1: -172 ± 104 (rl-baselines3-zoo 22e3ff24)") + 1].split()
    assert words[:3] == ["jsrl", "run", "ppo"]
    assert settings(" ".join(words[3:])) == (jsrl.tuned("ppo", "Pendulum-v1"), "")
