import itertools
import json
import os
import re
import subprocess
import sys

import numpy as np
import psutil
import pytest

from jsrl.control.result import Result
from jsrl.control.resume import claimed, params_source
from jsrl.errors import ConfigError, MissingExtra
from jsrl.intervals import t_factor
from jsrl.services.metrics.metrics import MetricsHub
from jsrl.services.runs import runs
from jsrl.services.runs.runs import Run, RunFolder, load_runs, split_tag
from jsrl.tools.report.comparison import (
    compare_runs,
    difference,
    interquartile_mean,
    interval_of,
    scores_table,
    summarise,
)
from jsrl.tools.report.comparison_page import comparison_page


def make_run(runs_dir, experiment, name, returns, config=None):
    folder = RunFolder.create(runs_dir, experiment, name, config=config or {"seed": 0})
    hub = MetricsHub(folder.metrics_path)
    for index, value in enumerate(returns):
        hub.write({"learner/loss": 1.0 / (index + 1)}, 100 * index + 50, index)
        hub.write({"evaluator/return_mean": value}, 100 * index, index)
    hub.close()
    return folder


def test_a_path_that_is_not_utf8_is_refused(tmp_path):
    folder = RunFolder(tmp_path / "gr\udcf6\udcdfe")  # as Python names a folder of a Latin-1 system
    folder.path.mkdir()
    with pytest.raises(ConfigError, match=r"gr\\udcf6\\udcdfe' is not valid UTF-8; .*--runs-dir"), claimed(folder):
        pass
    assert not os.listdir(folder.path)


def test_create_writes_config_and_origin(tmp_path):
    config = {"algorithm": {"gamma": 0.99, "sizes": (64, 64)}, "limit": float("inf"), "seed": np.int64(3)}
    folder = RunFolder.create(tmp_path / "runs", "ppo_cartpole", "first", config=config, seed=3)
    assert folder.path == tmp_path / "runs" / "ppo_cartpole" / "first"
    assert folder.name == "ppo_cartpole/first"
    assert folder.config == {"algorithm": {"gamma": 0.99, "sizes": [64, 64]}, "limit": "inf", "seed": 3}
    facts = folder.environment
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["hardware"]["cores"] == len(os.sched_getaffinity(0))
    started = psutil.Process().cmdline()  # pytest itself, or the worker that it started
    assert all(word in facts["command"] for word in started[-1].split())
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=os.path.dirname(__file__), capture_output=True, text=True, check=False
    )
    assert facts["commit"] == (head.stdout.strip() or None)
    for sub in (folder.logs, folder.tensorboard, folder.snapshots, folder.names):
        assert sub.is_dir()


def test_default_names_carry_the_seed_and_never_collide(tmp_path):
    folders = [RunFolder.create(tmp_path, "x", seed=7) for _ in range(4)]
    assert len({folder.path for folder in folders}) == 4
    assert all("-seed7" in folder.path.name for folder in folders)


def test_taken_name_lists_the_choices(tmp_path):
    RunFolder.create(tmp_path, "x", "a")
    with pytest.raises(ConfigError, match=r"x/a exists\. .*--resume x/a.*--overwrite.*--run-name"):
        RunFolder.create(tmp_path, "x", "a")
    (tmp_path / "x" / "a" / "metrics.jsonl").write_text("{}\n")
    assert not RunFolder.create(tmp_path, "x", "a", overwrite=True).metrics_path.exists()
    (tmp_path / "x" / "precious").mkdir()
    with pytest.raises(ConfigError, match="is not a run"):
        RunFolder.create(tmp_path, "x", "precious", overwrite=True)
    assert (tmp_path / "x" / "precious").exists()


def test_a_run_is_overwritten_only_once_the_new_one_begins(tmp_path):
    old = RunFolder.create(tmp_path, "x", "a")
    old.metrics_path.write_text("{}\n")
    RunFolder.create(tmp_path, "x", "a", overwrite=True).undo()
    assert old.metrics_path.read_text() == "{}\n" and os.listdir(tmp_path / "x") == ["a"]
    RunFolder.create(tmp_path, "x", "a", overwrite=True)  # its command is killed before it begins
    RunFolder.create(tmp_path, "x", "a", overwrite=True).undo()
    assert old.metrics_path.read_text() == "{}\n"
    new = RunFolder.create(tmp_path, "x", "a", overwrite=True)
    assert list(tmp_path.glob("*/*/experiment.json")) == [new.path / "experiment.json"]  # the list has no other
    new.delete_replaced()
    assert not old.metrics_path.exists() and os.listdir(tmp_path / "x") == ["a"]


def test_ctrl_c_while_a_run_folder_is_made_leaves_its_name_free(tmp_path, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    old = RunFolder.create(tmp_path, "x", "a")
    old.metrics_path.write_text("{}\n")
    monkeypatch.setattr(runs, "environment_facts", interrupted)
    for name in ("a", "b"):
        with pytest.raises(KeyboardInterrupt):
            RunFolder.create(tmp_path, "x", name, overwrite=True)
    assert os.listdir(tmp_path / "x") == ["a"] and old.metrics_path.read_text() == "{}\n"


def test_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/x/a cannot be written \(Not a directory\).*--runs-dir"):
        RunFolder.create(tmp_path / "file", "x", "a")
    with pytest.raises(ConfigError, match=r"/proc/x/a cannot be written .*--runs-dir"):
        RunFolder.create("/proc", "x", "a")


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b", "x" * 200])
def test_invalid_folder_names_are_refused(tmp_path, name):
    if name:
        with pytest.raises(ConfigError, match=r"cannot name a run: .* at most 128"):
            RunFolder.create(tmp_path, "x", name)
    with pytest.raises(ConfigError, match=r"cannot name a run: .* at most 128"):
        RunFolder.create(tmp_path, name, "a")


def test_open_by_path_name_and_experiment(tmp_path):
    first = RunFolder.create(tmp_path, "ppo_pong", "first")
    second = RunFolder.create(tmp_path, "ppo_pong", "second")
    os.utime(first.path / "experiment.json", (1, 1))
    assert RunFolder.open(first.path) == first
    assert RunFolder.open("ppo_pong/first", tmp_path) == first
    assert RunFolder.open("first", tmp_path) == first
    assert RunFolder.open("ppo_pong", tmp_path) == second
    (run,) = load_runs("first", tmp_path)
    assert RunFolder.open(run) == RunFolder.open(run.folder) == first  # so `load_policy` takes both
    assert [same.name for same in load_runs([run])] == [run.name]


def test_an_at_sign_in_the_path_of_a_run_is_not_a_tag(tmp_path):
    folder = RunFolder.create(tmp_path / "me@host", "ppo", "x").path
    with pytest.raises(ConfigError, match=r"ppo/x has no snapshot tagged 'best'; it has: none\. `jsrl status` lists"):
        params_source(f"{folder}@best", tmp_path)
    assert split_tag(folder) == (str(folder), "")
    assert split_tag("ppo/x@left/frozen-3") == ("ppo/x", "left/frozen-3")


def test_open_unknown_run_suggests_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="it holds no runs"):
        RunFolder.open("first", tmp_path)
    RunFolder.create(tmp_path, "ppo_pong", "first")
    RunFolder.create(tmp_path, "impala_pong", "zzz")
    with pytest.raises(ConfigError, match=r"no run frist .*nearest: ppo_pong/first\."):
        RunFolder.open("frist", tmp_path)
    with pytest.raises(ConfigError, match=r"nearest: ppo_pong/first"):
        RunFolder.open("ppo_pong/fisrt", tmp_path)


def test_an_unknown_run_is_answered_with_the_last_names_and_the_number_of_others(tmp_path):
    for number in range(7):
        make_run(tmp_path, "x", f"r{number}", [1.0])
    with pytest.raises(ConfigError, match="it holds x/r2, x/r3, x/r4, x/r5, x/r6 and 2 more"):
        RunFolder.open("nothing", tmp_path)


def test_load_runs_and_columns(tmp_path):
    make_run(tmp_path, "ppo", "s0", [1.0, np.nan, 3.0])
    make_run(tmp_path, "ppo", "s1", [2.0, 4.0])
    make_run(tmp_path, "other", "s0", [0.0])
    runs = load_runs("ppo/*", runs_dir=str(tmp_path))
    assert [run.name for run in runs] == ["ppo/s0", "ppo/s1"]
    assert runs[0].config == {"seed": 0}
    column = runs[0].metrics["evaluator/return_mean"]
    np.testing.assert_array_equal(column, [np.nan, 1, np.nan, np.nan, np.nan, 3])
    env_steps, values = runs[0].curve("evaluator/return_mean")
    np.testing.assert_array_equal(env_steps, [0, 200])
    np.testing.assert_array_equal(values, [1, 3])
    np.testing.assert_array_equal(runs[0].curve("learner/loss")[0], [50, 150, 250])
    assert [run.name for run in load_runs(["s1", tmp_path / "other" / "s0"], str(tmp_path))] == ["ppo/s1", "other/s0"]
    assert len(load_runs(str(tmp_path / "*" / "s0"))) == 2
    assert [run.name for run in load_runs("s1*", str(tmp_path))] == ["ppo/s1"] and len(
        load_runs("*", str(tmp_path))
    ) == 3
    with pytest.raises(ConfigError, match="no run matches"):
        load_runs("nothing*", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no metric return; nearest: .*evaluator/return_mean"):
        runs[0].curve("return")
    with pytest.raises(ConfigError, match=r"no metric xyz; it has env_steps, .*learner/loss"):
        runs[0].curve("xyz")


def scored_run(runs_dir):
    """Return the folder of a run of two policies that was resumed from 100 env steps after it had come to 200."""
    policies = {"fields": {"policies": {"left": {}, "right": {}}}}
    folder = RunFolder.create(runs_dir, "two", "a", config=policies)
    hub = MetricsHub(folder.metrics_path)
    for env_steps, mean in ((0, 1.0), (100, 2.0), (200, 9.0), (150, 3.0)):
        score = {"return_mean": mean, "return_std": 2 * mean, "return_ci95": 0.5, "episodes": 20}
        own = {f"evaluator/{name}": value for name, value in score.items()}
        theirs = {"right/env_steps": env_steps, "right/updates": 1, "right/evaluator/return_mean": -mean}
        hub.write({"learner/loss": mean}, env_steps, 1)
        hub.write(own | theirs, env_steps, 1)
    hub.close()
    return folder


def test_scores_are_those_of_the_last_continuation_as_arrays(tmp_path):
    folder = scored_run(tmp_path)
    scores = Run(folder).scores
    expected = {"env_steps": [0, 100, 150], "return_mean": [1, 2, 3], "return_std": [2, 4, 6], "episodes": [20] * 3}
    assert {name: getattr(scores, name).tolist() for name in expected} == expected
    assert np.isnan(scores.win_rate).all() and scores.win_rate.shape == (3,)
    assert scores.others["right"].return_mean.tolist() == [-1, -2, -3] and list(scores.others) == ["right"]
    assert [end.tolist() for end in scores.interval] == [[1, 2, 3], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5]]
    result = Result(folder.path, "total_env_steps", 150, 1, 1.0)
    assert result.scores.return_mean.tolist() == [1, 2, 3]
    assert Run(make_run(tmp_path, "x", "unscored", [])).scores.env_steps.shape == (0,)


def test_scores_against_opponents_are_win_rates(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "a")
    rates = {"win_rate": 0.5, "win_rate_low": 0.4, "win_rate_high": 0.7, "return_mean": 0.0, "return_ci95": 0.1}
    line = {"env_steps": 10, "updates": 1} | {f"evaluator/{name}": value for name, value in rates.items()}
    folder.metrics_path.write_text(json.dumps(line) + "\n")
    assert [end.tolist() for end in Run(folder).scores.interval] == [[0.5], [0.4], [0.7]]


def test_plot_draws_the_scores_of_each_policy(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    result = Result(scored_run(tmp_path).path, "total_env_steps", 150, 1, 1.0)
    axes = result.plot()
    drawn = {line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()}
    assert drawn == {"left": [1, 2, 3], "right": [-1, -2, -3]}
    assert (axes.get_xlabel(), axes.get_ylabel(), len(axes.collections)) == ("env steps", "mean return", 2)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["left", "right"]
    (run,) = load_runs(make_run(tmp_path, "x", "one", [1.0, 2.0]))
    assert run.plot().get_legend() is None
    assert run.plot(axes) is axes and axes.get_lines()[-1].get_label() == "x/one"
    pyplot.close("all")


def test_plot_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r"^plot\(\) needs the package matplotlib .*\[notebook\]'$"):
        Result(scored_run(tmp_path).path, "total_env_steps", 150, 1, 1.0).plot()


def test_columns_with_infinities_partial_lines_and_new_names(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "a")
    folder.metrics_path.write_text('{"env_steps": 1, "a": "inf"}\n{"env_steps": 2, "b": null, "c": "text"}\n{"env_st')
    (run,) = load_runs(folder.path)
    np.testing.assert_array_equal(run.metrics["a"], [np.inf, np.nan])
    assert set(run.metrics) == {"env_steps", "a"}
    (empty,) = load_runs(RunFolder.create(tmp_path, "x", "b").path)
    assert empty.metrics == {}
    assert "0 lines" in repr(empty)


READ = """
import json, sys, tracemalloc
from pathlib import Path
from jsrl.services.runs.runs import read_metrics
tracemalloc.start()
columns = read_metrics(Path(sys.argv[1]))
_, most = tracemalloc.get_traced_memory()
print(json.dumps([len(columns), columns["env_steps"][-1], sum(column.nbytes for column in columns.values()), most]))
"""


@pytest.mark.slow
def test_reading_the_metrics_of_a_long_run_needs_memory_for_the_columns_only(tmp_path):
    line = {f"worker/metric_{number}": number + 0.5 for number in range(40)}
    path, count = tmp_path / "metrics.jsonl", 3_000
    with path.open("w") as file:
        for index in range(count):
            file.write(json.dumps(line | {"env_steps": index}) + "\n")
    ended = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    columns, last, size, most = json.loads(ended.stdout)
    assert columns == 41 and last == count - 1
    assert most < 3 * size


def test_curve_excludes_steps_rolled_back_by_a_resume(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "a")
    lines = [(0, 1), (100, 2), (200, 3), (300, 4), (150, 5), (250, 6)]
    text = "".join(json.dumps({"env_steps": s, "updates": 0, "wall_s": 0, "r": v}) + "\n" for s, v in lines)
    folder.metrics_path.write_text(text)
    (run,) = load_runs(folder.path)
    env_steps, values = run.curve("r")
    np.testing.assert_array_equal(env_steps, [0, 100, 150, 250])
    np.testing.assert_array_equal(values, [1, 2, 5, 6])


def test_a_broken_run_is_named(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "a")
    (folder.path / "experiment.json").write_text("{")
    with pytest.raises(ConfigError, match=r"a/experiment\.json cannot be read"):
        _ = load_runs(folder.path)[0].config


def test_interquartile_mean_against_whole_quarters_and_by_hand():
    assert interquartile_mean(np.array([0.0, 1, 2, 100])) == pytest.approx(1.5)
    assert interquartile_mean(np.array([7.0])) == 7
    assert interquartile_mean(np.array([1.0, 5.0])) == 3
    # five values: the middle half spans 1.25..3.75 fifths: 0.75 of the 2nd, all of the 3rd, 0.75 of the 4th
    assert interquartile_mean(np.array([9.0, 0, 4, 2, 3])) == pytest.approx((0.75 * 2 + 3 + 0.75 * 4) / 2.5)
    values = np.random.default_rng(0).normal(size=(3, 8))
    np.testing.assert_allclose(interquartile_mean(values), np.sort(values)[:, 2:6].mean(axis=-1))


@pytest.mark.parametrize("middle", [False, True])
@pytest.mark.parametrize("seeds", [2, 3, 4, 5, 10])
def test_intervals_over_few_seeds_have_their_coverage(seeds, middle):
    """A percentile bootstrap of two seeds covers half: its ends are the lowest and the highest."""
    low, high = interval_of(np.random.default_rng(3).normal(size=(4000, seeds)), middle=middle)
    assert 0.915 <= np.mean((low <= 0) & (high >= 0)) <= 0.97


@pytest.mark.parametrize("degrees", [1, 2, 5, 9, 2.5, 9.5, 10, 10.5, 29, 1000])
def test_the_factor_of_an_interval_is_students(degrees: float):
    from scipy import stats  # takes half a second, which every test process would pay at collection

    assert t_factor(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=2e-4)


def test_the_interval_of_a_mean_is_students():
    from scipy import stats  # takes half a second, which every test process would pay at collection

    values = np.array([1.0, 2.0, 9.0])
    found = stats.t.interval(0.95, 2, loc=4.0, scale=stats.sem(values))
    assert interval_of(values, middle=False) == pytest.approx(found)
    assert np.isnan(interval_of(np.array([5.0]), middle=False)).all()


def test_summary_over_seeds(tmp_path):
    for seed, value in enumerate((400.0, 480.0, 500.0)):
        make_run(tmp_path, "ppo", f"s{seed}", [10.0, value])
    make_run(tmp_path, "impala", "s0", [1.0, 20.0])
    runs = load_runs("*/*", str(tmp_path))
    table, _ = scores_table(runs, "evaluator/return_mean")
    found = {row[0]: row[1:] for row in table.rows}
    assert found["ppo"][:3] == ("3", "100", "460 [329, 591]")  # 460 ± 4.303 * 52.9 / sqrt(3)
    assert found["ppo"][-2:] == ("400", "500") and found["impala"][2] == "20"
    text = summarise(runs)
    assert "ppo" in text
    assert "460 [329, 591]" in text
    assert "One seed has no interval, and equal values have none" in text
    for seed in range(2):
        make_run(tmp_path, "equal", f"s{seed}", [1.0, 500.0])
    assert "[" not in summarise(load_runs("equal/*", str(tmp_path))).split("equal", 1)[1].splitlines()[0]
    make_run(tmp_path, "bad", "s0", [np.nan])
    with pytest.raises(ConfigError, match="bad/s0 has no"):
        summarise(load_runs("bad/*", str(tmp_path)))


def test_summary_says_if_runs_have_the_same_seed(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_run(tmp_path, "ppo", name, [10.0, 20.0], {"$type": "Experiment", "fields": {"seed": seed}})
    text, page = summarise(load_runs("ppo/*", str(tmp_path))), comparison_page(load_runs("ppo/*", str(tmp_path)))
    for shown in (text, page):
        assert "ppo: 2 runs with seed 0; each counts as a seed, so the intervals may be too narrow" in shown
    assert "with seed" not in summarise(load_runs("ppo/[bc]", str(tmp_path)))


def test_summary_says_if_its_runs_end_after_different_env_steps(tmp_path):
    for seed, more in enumerate((0, 0, 3)):
        make_run(tmp_path, "ppo", f"s{seed}", [10.0] * (2 + more))
    text = summarise(load_runs("ppo/*", str(tmp_path)))
    assert re.search(r"^ppo +3 +100 to 400 ", text, re.MULTILINE) and "\nRuns end after different numbers" in text
    text = summarise(load_runs("ppo/s[01]", str(tmp_path)))
    assert re.search(r"^ppo +2 +100 ", text, re.MULTILINE) and "different numbers" not in text


def test_difference_of_two_settings_has_an_interval_and_an_exact_test():
    a, b = np.array([429.8, 500, 500, 500, 500]), np.array([185.2, 204.8, 270, 459.6, 459.8])
    found = difference(a, b)
    assert found.mean == pytest.approx(a.mean() - b.mean()) and 0 < found.interval[0] < found.mean < found.interval[1]
    pooled, every = np.concatenate([a, b]), list(itertools.combinations(range(10), 5))
    others = [2 * pooled[list(chosen)].mean() - 2 * pooled.mean() for chosen in every]
    assert found.p == pytest.approx(np.mean(np.abs(others) >= found.mean - 1e-9))
    assert found.wins == pytest.approx(23 / 25)
    assert difference(np.array([1.0, 2.0]), np.array([1.0, 2.0])).wins == 0.5  # equal scores count half
    assert difference(np.arange(30.0), np.arange(30.0) + 1) == difference(np.arange(30.0), np.arange(30.0) + 1)
    with pytest.raises(ConfigError, match="1 and 5 scores"):
        difference(a[:1], b)


def test_interval_of_a_difference_covers_95_percent():
    a, b = np.random.default_rng(0).normal([[1.0], [0.0]], 1.0, (2, 200))
    error = np.sqrt(a.var() / 200 + b.var() / 200)
    low, high = difference(a, b).interval
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.05)


def test_summary_of_two_experiments_says_whether_they_differ(tmp_path):
    for seed in range(3):
        make_run(tmp_path, "ppo", f"s{seed}", [10.0, 400.0 + seed])
        make_run(tmp_path, "impala", f"s{seed}", [1.0, 20.0 - seed])
    text = summarise(load_runs("*/*", str(tmp_path))).splitlines()[-1]
    assert text.startswith("Difference of the means (impala less ppo): -382 [") and "p = 0.100; " in text
    assert text.endswith(": 0%.")
    make_run(tmp_path, "dqn", "s0", [1.0, 20.0])
    assert "permutation" not in summarise(load_runs("*/*", str(tmp_path)))
    assert "permutation" not in summarise(load_runs(["ppo/s0", "ppo/s1", "dqn/s0"], str(tmp_path)))


def test_compare_lists_differences(tmp_path):
    net = {"$type": "N", "fields": {"hidden": {"$tuple": [64]}, "act": "tanh"}}
    make_run(tmp_path, "ppo", "a", [10.0, 200.0, 300.0], {"$type": "E", "fields": {"lr": 3e-4, "net": net}})
    other = {"$type": "N", "fields": {"hidden": {"$tuple": [64]}}}
    make_run(
        tmp_path, "ppo", "b", [10.0, 20.0, 25.0], {"$type": "E", "fields": {"lr": 1e-3, "net": other, "clip": 0.2}}
    )
    for name, final in (("a", 290.0), ("b", 27.0)):
        (tmp_path / "ppo" / name / "result.json").write_text(
            json.dumps({"ended": "total_env_steps", "final": {"return_mean": final}})
        )
    text = compare_runs(load_runs(["a", "b"], str(tmp_path)))
    assert "net.hidden" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["lr", "0.0003", "0.001"] in rows
    assert ["net.act", "tanh", "-"] in rows
    assert ["clip", "-", "0.2"] in rows
    assert [(row[0], row[-1]) for row in rows if row[:1] in (["ppo/a"], ["ppo/b"])] == [
        ("ppo/a", "300"),
        ("ppo/b", "25"),
    ]
    same = compare_runs(load_runs(["a"], str(tmp_path)) * 2)
    assert "All runs have the same settings" in same


def test_no_jax_is_imported():
    program = "import sys, jsrl.tools.report.comparison, jsrl.services.runs.runs; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_a_run_that_is_running_is_not_overwritten(tmp_path):
    folder = RunFolder.create(tmp_path, "x", "a")
    with claimed(folder), pytest.raises(ConfigError, match=rf"x/a is running \(process {os.getpid()} on .*\); stop it"):
        RunFolder.create(tmp_path, "x", "a", overwrite=True)
    assert RunFolder.create(tmp_path, "x", "a", overwrite=True).path == folder.path
