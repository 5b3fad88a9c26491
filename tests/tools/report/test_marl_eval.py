"""Runs in marl-eval's format."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jsrl.cli.report import main
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.references.reference import to_json
from jsrl.services.runs.runs import Run, RunFolder
from jsrl.tools.report.marl_eval import marl_eval


def make_run(
    runs_dir, experiment, seed, evaluations, *, env="particle:simple_spread_v3", won=False, final=True, **options
):
    config = to_json(Experiment(name=experiment, seed=seed, env=EnvConfig(env), **options))
    folder = RunFolder.create(runs_dir, experiment, f"{seed}-{len(list(runs_dir.glob('*/*')))}", config=config)
    lines = []
    for i in range(evaluations):
        scored = {"evaluator/return_mean": 10.0 * seed + i, "evaluator/length_mean": 25.0}
        scored |= {"evaluator/win_rate": i / 10} if won else {}
        lines += [{"env_steps": 100 * i + 50, "actor/return_mean": 1.0}, {"env_steps": 100 * (i + 1), **scored}]
        if won:
            lines.append(
                {
                    "env_steps": 100 * (i + 1),
                    "prey/env_steps": 1,
                    "prey/updates": 1,
                    "prey/evaluator/return_mean": -1.0 * i,
                }
            )
    folder.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = {"return_mean": 99.0, "length_mean": 24.0, "return_ci95": 1.0} | ({"win_rate": 0.9} if won else {})
    others = {"prey": {"final": {"return_mean": -9.0}}} if won else {}
    result = {"ended": "total_env_steps", "final": facts if final else {}, "others": others}
    (folder.path / "result.json").write_text(json.dumps(result))
    return Run(folder)


def test_environment_task_algorithm_seed_and_step(tmp_path):
    runs = [make_run(tmp_path, "mappo", seed, 5) for seed in (1, 2)]
    runs += [
        make_run(tmp_path, "mappo", 1, 3, env="particle:simple_tag_v3"),
        make_run(tmp_path, "ppo", 0, 4, env="ALE/Pong-v5"),
    ]
    tree = marl_eval(runs)
    assert {name: list(own) for name, own in tree.items()} == {
        "particle": ["simple_spread_v3", "simple_tag_v3"],
        "atari": ["Pong-v5"],
    }
    spread = tree["particle"]["simple_spread_v3"]["mappo"]
    assert list(spread) == ["seed_1", "seed_2"]
    # as many evaluations as the run with the fewest has: the first, one in the middle, the last
    assert [step["step_count"] for name, step in spread["seed_2"].items() if name != "absolute_metrics"] == [
        100,
        300,
        500,
    ]
    assert spread["seed_2"]["step_3"] == {"step_count": 500, "return": [24.0], "episode_length": [25.0]}
    assert spread["seed_2"]["absolute_metrics"] == {"return": [99.0], "episode_length": [24.0]}
    assert len(tree["atari"]["Pong-v5"]["ppo"]["seed_0"]) == 4 + 1


def test_differing_settings_become_algorithms_and_equal_seeds_become_runs(tmp_path):
    runs = [make_run(tmp_path, "mappo", 1, 2, num_envs=n) for n in (16, 16, 32)]
    (tasks,) = marl_eval(runs).values()
    found = tasks["simple_spread_v3"]
    assert list(found) == ["mappo num-envs 16", "mappo num-envs 32"]
    assert len(found["mappo num-envs 16"]) == 2


def test_an_algorithm_has_one_name_in_all_tasks(tmp_path):
    """What differs within a task tells algorithms apart; what only the tasks differ in does not."""
    settings = [("ALE/Pong-v5", 16, 8), ("ALE/Pong-v5", 32, 8), ("ALE/Breakout-v5", 16, 4)]
    runs = [make_run(tmp_path, "ppo", 1, 2, env=env, num_envs=n, rollout_length=rows) for env, n, rows in settings]
    assert {task: list(own) for task, own in marl_eval(runs)["atari"].items()} == {
        "Pong-v5": ["ppo num-envs 16", "ppo num-envs 32"],
        "Breakout-v5": ["ppo num-envs 16"],
    }


def test_win_rates_and_extra_policies_are_separate_metrics(tmp_path, capsys):
    make_run(tmp_path, "tag", 3, 2, won=True)
    out = tmp_path / "out.json"
    assert main(["tag", "--runs-dir", str(tmp_path), "--marl-eval", str(out)]) == 0
    assert "1 run of 1 task in marl-eval's format" in capsys.readouterr().out
    run = json.loads(out.read_text())["particle"]["simple_spread_v3"]["tag"]["seed_3"]
    assert run["step_2"]["win_rate"] == [0.1] and run["absolute_metrics"]["win_rate"] == [0.9]
    assert run["absolute_metrics"]["prey_return"] == [-9.0] and set(run["step_1"]) - {"step_count"} == set(
        run["absolute_metrics"]
    )


def test_evaluations_after_the_snapshot_of_a_resume_are_left_out(tmp_path):
    run = make_run(tmp_path, "mappo", 1, 4)
    again = [
        {"env_steps": steps, "evaluator/return_mean": 1.0} for steps in (290, 390)
    ]  # it continued at 200 env steps
    with run.folder.metrics_path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in again)
    (task,) = marl_eval([Run(run.folder)])["particle"].values()
    steps = [step["step_count"] for name, step in task["mappo"]["seed_1"].items() if name != "absolute_metrics"]
    assert steps == [100, 200, 290, 390]


def test_runs_without_scores_are_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="has no evaluations"):
        marl_eval([make_run(tmp_path, "mappo", 1, 0)])
    unfinished = make_run(tmp_path, "mappo", 2, 2, final=False)
    assert main([unfinished.name, "--runs-dir", str(tmp_path), "--marl-eval", str(tmp_path / "x.json")]) == 2
    assert "has no final evaluation of episode_length" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()
    assert np.isfinite(unfinished.metrics["evaluator/return_mean"]).sum() == 2
