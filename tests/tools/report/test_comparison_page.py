"""Several runs on one page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cli.report import main
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig
from jsrl.graph.graph_file import write_graph
from jsrl.graph.placements import make_graph
from jsrl.references.reference import to_json
from jsrl.services.runs.files import write_json
from jsrl.services.runs.runs import Run, RunFolder, load_runs
from jsrl.tools.report.comparison import band, compare_runs, grouped, interquartile_mean, interval_of
from jsrl.tools.report.comparison_page import comparison_page


def make_run(runs_dir: Path, experiment: str, seed: int, slope: float, init_from: str | None = None, **options) -> Run:
    config = to_json(Experiment(agent=None, name=experiment, seed=seed, **options))
    folder = RunFolder.create(runs_dir, experiment, f"seed{seed}-{slope}", config=config, init_from=init_from)
    entries = [
        {"env_steps": 100 * i, "updates": i, "wall_s": float(i), "evaluator/return_mean": slope * i, "learner/odd": 1.0}
        for i in range(6 + seed)
    ]
    folder.metrics_path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return Run(folder)


def test_runs_are_grouped_by_learning_settings(tmp_path: Path):
    runs = [make_run(tmp_path, "ppo", seed, 1.0, num_actors=1 + seed % 2, num_envs=16) for seed in range(3)]
    runs += [make_run(tmp_path, "ppo", 0, 2.0, num_envs=32), make_run(tmp_path, "sac", 0, 1.0, num_envs=16)]
    names = {name: [run.name for run in own] for name, own in grouped(runs).items()}
    assert list(names) == ["ppo, num-envs 16", "ppo, num-envs 32", "sac"]
    assert len(names["ppo, num-envs 16"]) == 3


def test_settings_that_differ_between_environments_are_in_no_name(tmp_path: Path):
    tasks = [("A-v0", 8), ("B-v0", 16), ("B-v0", 16)]
    runs = [
        make_run(tmp_path, "ppo", seed, 1.0, env=EnvConfig(env_id), num_envs=envs)
        for seed, (env_id, envs) in enumerate(tasks)
    ]
    assert {name: len(own) for name, own in grouped(runs).items()} == {"ppo, A-v0": 1, "ppo, B-v0": 2}


def test_runs_that_are_evaluated_in_other_environments_are_not_seeds_of_one_experiment(tmp_path: Path):
    evaluators = [EvaluatorConfig(), EvaluatorConfig(env={"kwargs": {"size": 9}})]
    runs = [make_run(tmp_path, "ppo", seed, 1.0, evaluator=evaluator) for seed, evaluator in enumerate(evaluators)]
    assert list(grouped(runs)) == ["ppo, evaluator.env {}", 'ppo, evaluator.env {"kwargs": {"size": 9}}']


def test_runs_that_begin_with_params_of_others_are_not_seeds_of_those_that_do_not(tmp_path: Path):
    runs = [make_run(tmp_path, "ppo", seed, 1.0, init_from=source) for seed, source in enumerate([None, "a", "b"])]
    assert {name: len(own) for name, own in grouped(runs).items()} == {"ppo": 1, "ppo, init-from": 2}


def test_runs_whose_policies_learn_in_other_ways_are_not_seeds_of_one_experiment(tmp_path: Path):
    def policies(**options) -> dict[str, PolicyConfig]:
        return {"first": PolicyConfig(PPOConfig(), "a"), "second": PolicyConfig(PPOConfig(), "b", **options)}

    faster = policies() | {"second": PolicyConfig(PPOConfig(learning_rate=1e-2), "b")}
    own_seed, served = policies(seed=7), policies(placement="served")
    made = [
        make_run(tmp_path, "duel", n, 1.0, policies=p) for n, p in enumerate((policies(), own_seed, served, faster))
    ]
    names = {name: len(own) for name, own in grouped(made).items()}
    rate = "duel, policies.second.agent.learning-rate"
    assert names == {f"{rate} {PPOConfig().learning_rate}": 3, f"{rate} 0.01": 1}
    assert ">policies.second.agent.learning-rate<" in comparison_page(made)


def test_runs_with_own_workers_are_groups_of_their_own(tmp_path: Path):
    plain, first, second, faster = (make_run(tmp_path, "ppo", seed, 1.0) for seed in range(4))
    for run, noise in ((plain, None), (first, 0.1), (second, 0.1), (faster, 0.2)):
        graph = make_graph(Experiment(agent=None, placement="inline"))
        if noise is not None:
            graph = graph.insert("jsrl.experiment.graphs.relabel:RELABEL", settings={"noise": noise})
        write_graph(run.folder, graph)
    names = {name: len(own) for name, own in grouped([plain, first, second, faster]).items()}
    kind = "ppo, jsrl.experiment.graphs.relabel:RELABEL"
    assert names == {"ppo": 1, f'{kind} {{"noise": 0.1}}': 2, f'{kind} {{"noise": 0.2}}': 1}


@pytest.mark.parametrize(("seeds", "middle"), [(3, False), (5, True)])
def test_band_covers_the_steps_that_all_seeds_reached(seeds: int, middle: bool):
    curves = [(np.array([0.0, 100.0 + seed]), np.array([0.0, 10.0 * seed])) for seed in range(seeds)]
    found = band(curves)
    assert found is not None and found.x[-1] == 100.0
    ends = np.array([np.interp(100.0, *curve) for curve in curves])
    assert found.middle[-1] == pytest.approx(interquartile_mean(ends) if middle else ends.mean())
    assert (found.low[-1], found.high[-1]) == pytest.approx(interval_of(ends, middle=middle))
    np.testing.assert_allclose(
        band(curves, mean=True).middle, np.mean([np.interp(found.x, *c) for c in curves], axis=0)
    )
    assert band(curves[:1]) is None


def test_page_has_scores_colours_and_differences(tmp_path: Path, capsys):
    for seed in range(3):
        make_run(tmp_path, "ppo", seed, 1.0 + seed, num_envs=16)
        make_run(tmp_path, "evil", seed, 10.0, num_envs=32)
    assert main([f"{tmp_path}/ppo/*", f"{tmp_path}/evil/*", "--runs-dir", str(tmp_path)]) == 0
    text = (tmp_path / "comparison.html").read_text()
    said = capsys.readouterr().out
    assert "evil" in said and f"report: {tmp_path / 'comparison.html'}" in said
    assert set(re.findall(r'polyline class="(line\d)"', text)) == {"line0", "line1"}
    assert text.count('polyline class="line0 faint"') == 6 and text.count('polygon class="band line0"') == 1
    assert re.search(r"<th>num-envs</th><td>16</td><td>32</td>", text)
    assert re.search(r"<th>seed</th><td>0, 1, 2</td><td>0, 1, 2</td>", text)
    assert "<script" not in text and ">Odd<" in text
    assert "<td>500 to 700</td>" in text and "Runs end after different numbers of env steps" in text


def test_page_names_each_package_and_fact_of_the_machine_that_differs(tmp_path: Path):
    runs = [make_run(tmp_path, "ppo", seed, 1.0) for seed in range(2)]
    runs[0].environment.update(commit="abc", packages={"jax": "0.10.2"}, hardware={"cores": 2})
    runs[1].environment.update(commit="abc", packages={"jax": "0.10.2", "ale-py": "0.12.1"}, hardware={"cores": 4})
    text = comparison_page(runs)
    assert "<th>packages.ale-py</th><td>-, 0.12.1</td>" in text and "<th>hardware.cores</th><td>2, 4</td>" in text
    assert "packages.jax" not in text and "<th>commit</th>" not in text


def test_runs_with_opponents_are_compared_by_their_win_rates(tmp_path: Path, capsys):
    for seed, rate in enumerate((0.25, 0.75)):
        run = make_run(tmp_path, "duel", seed, 0.0)
        end = {"evaluator/final_win_rate": rate, "evaluator/final_return_mean": 0.0, "env_steps": 900}
        written = run.folder.metrics_path.read_text().splitlines()
        entries = [json.loads(line) | {"evaluator/win_rate": 0.1 * i} for i, line in enumerate(written)]
        run.folder.metrics_path.write_text("".join(json.dumps(entry) + "\n" for entry in [*entries, end]))
        write_json(
            run.folder.path / "result.json", {"ended": "by hand", "final": {"win_rate": rate, "return_mean": 0.0}}
        )
    assert main([f"{tmp_path}/duel/*", "--runs-dir", str(tmp_path)]) == 0
    assert "evaluator/final_win_rate, end value" in capsys.readouterr().out
    text = (tmp_path / "comparison.html").read_text()
    assert "<td>0.5 [-2.68, 3.68]</td>" in text and "Win rate against named opponents" in text
    ends = [line.split()[-1] for line in compare_runs(load_runs(f"{tmp_path}/duel/*")).splitlines()[-2:]]
    assert ends == ["0.25", "0.75"]


def test_run_without_a_score_is_named_and_left_out_of_the_table(tmp_path: Path, capsys):
    for seed in range(3):
        make_run(tmp_path, "ppo", seed, 1.0)
    RunFolder.create(tmp_path, "ppo", "begun", config=to_json(Experiment(agent=None, name="ppo")))
    assert main([f"{tmp_path}/ppo/*", "--runs-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^ppo +3 ", said, re.MULTILINE) and "without a score: ppo/begun\n" in said
    text = (tmp_path / "comparison.html").read_text()
    assert "Without a score: ppo/begun." in text
    assert re.search(r'<th>ppo/seed2-1.0</th><td class="text">killed[^<]*</td><td>700</td>.*?<td>7</td></tr>', text)
    assert re.search(r'<th>ppo/begun</th><td class="text">killed[^<]*</td>(<td>-</td>){5}</tr>', text)


@pytest.mark.parametrize(("words", "option"), [([], "--to"), (["--marl-eval", "none/x.json"], "--marl-eval")])
def test_a_page_in_a_missing_folder_is_refused(words: list[str], option: str, tmp_path: Path, monkeypatch, capsys):
    runs = [str(make_run(tmp_path, "ppo", seed, 1.0).folder.path) for seed in range(2)]
    monkeypatch.chdir(tmp_path)  # there is no folder `runs`, where the page goes by default
    assert main([*runs, *words]) == 2
    assert re.search(rf"there is no folder .*; make it, or give another file with {option}\.$", capsys.readouterr().err)


def test_runs_without_a_score_have_a_page(tmp_path: Path):
    runs = [make_run(tmp_path, "ppo", seed, 1.0) for seed in range(2)]
    for run in runs:
        run.folder.metrics_path.unlink()
    text = comparison_page(load_runs([run.folder.path for run in runs]))
    assert "Scores" not in text and "killed (it left no result)" in text
