"""Searches: ranges, trials (fake runs), pruning, an interruption and its continuation, and the command."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from jsrl.cli import command_line
from jsrl.cli import search as command
from jsrl.cli.experiments import load
from jsrl.cli.main import main
from jsrl.cli.option_help import help_of
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, TrialsFailed
from jsrl.fields import options_of
from jsrl.services.runs.files import file_lock
from jsrl.services.runs.limits import RUNS_AT_ONCE
from jsrl.tools.report.charts import Axis
from jsrl.tools.tuning.child import start_runs
from jsrl.tools.tuning.page import page, trials_table
from jsrl.tools.tuning.ranges import parse_range, parse_space
from jsrl.tools.tuning.search import ASKING, Search, SearchOptions, Setup, finished, held

pytestmark = pytest.mark.skipif(find_spec("optuna") is None, reason="without optuna")


def together(*runs: list[str]) -> list[str]:
    """Return the command of a process that makes these runs at the same time."""
    return runs[0] if len(runs) == 1 else ["sh", "-c", " & ".join(map(shlex.join, runs)) + "; wait"]


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr("jsrl.tools.tuning.search.POLL_S", 0.01)
    monkeypatch.setattr("jsrl.tools.tuning.search.child_command", together)


# A fake run: its score rises over ten evaluations to 10 - (x - 3)^2, plus its seed.
RUN = """
import json, pathlib, sys, time
x, mode, seed, folder, hang = float(sys.argv[1]), sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]), sys.argv[5]
if mode == "broken":
    sys.exit("ConfigError: no such mode")
folder.mkdir(parents=True)
score = 10 - (x - 3) ** 2 + seed
with (folder / "metrics.jsonl").open("a") as file:
    for part in range(11):
        file.write(json.dumps({"env_steps": part * 100, "evaluator/return_mean": score * part / 10}) + "\\n")
        file.flush()
        if hang == "yes" and (part == 4 and x > 9 or part == 10):
            time.sleep(3600)
(folder / "result.json").write_text(json.dumps({"ended": "total_env_steps", "final": {"return_mean": score}}))
"""
RANGES = [parse_range("x", "lin:-10:10"), parse_range("mode", "plain,other")]


def setup_of(folder: Path, ranges=RANGES, hang: str = "no") -> Setup:
    def words(values, seed, name, runs):
        mode = values.get("mode", "plain")
        return [sys.executable, "-S", "-c", RUN, values["x"], mode, str(seed), str(runs / "tried" / name), hang]

    folder.mkdir(exist_ok=True)
    return Setup(folder, "tried", ranges, 1000, 0, words)


@pytest.mark.slow
def test_planted_optimum_is_found_and_shown(tmp_path):
    told: list[str] = []
    search = Search(setup_of(tmp_path / "s"), SearchOptions(trials=16, prune=False), told.append)
    search.run()  # one trial at a time, so that the seed decides everything
    best = search.study.best_trial
    assert abs(best.params["x"] - 3) < 1.5 and best.value > 7.5
    assert len(finished(search.study)) == 16
    table = trials_table(search.study, RANGES)
    assert table.head == ("trial", "score", "", "x", "mode", "seconds") and table.rows[0][0] == str(best.number)
    assert table.text(10).endswith("(and 6 more)")
    drawn = page("tried: s", search.study, RANGES, "jsrl run <tried>")
    assert drawn.count("<svg") == 3 and "jsrl run &lt;tried&gt;" in drawn and ">other</text>" in drawn
    assert any("trial 0: x " in line for line in told)


def test_a_trial_behind_the_median_is_ended_early(tmp_path):
    """Runs with x above 9 hang half-way, after scores far below all others: only pruning ends them in time."""
    shown: list[str] = []
    search = Search(setup_of(tmp_path / "s", RANGES[:1]), SearchOptions(trials=5), lambda line: None, shown.append)
    for x in (1.0, 2.0, 3.0, 4.0, 5.0):
        search.study.enqueue_trial({"x": x})
    search.study.enqueue_trial({"x": 9.5})
    search.run()
    search._setup, search._options = setup_of(tmp_path / "s", RANGES[:1], hang="yes"), SearchOptions(trials=6)
    search.run()
    assert [trial.state.name for trial in search.study.trials] == ["COMPLETE"] * 5 + ["PRUNED"]
    assert "trial 5: -12.9 at 40% of its env steps" in shown


def test_the_mean_over_seeds_counts(tmp_path):
    search = Search(setup_of(tmp_path / "s"), SearchOptions(trials=1, seeds_per_trial=3), lambda line: None)
    search.study.enqueue_trial({"x": 3.0, "mode": "plain"})
    search.run()
    (trial,) = search.study.trials
    assert trial.value == 11.0 and trial.user_attrs["scores"] == [10.0, 11.0, 12.0]
    assert trials_table(search.study, RANGES).rows[0][1] == "11 ± 0.58"


def test_trials_at_the_same_time_share_a_process(tmp_path):
    """One of three fails; the others start their second runs together, and the next trials follow them."""
    setup = dataclasses.replace(
        setup_of(tmp_path / "s", [RANGES[0], parse_range("mode", "plain,broken")]), together=True
    )
    search = Search(setup, SearchOptions(trials=4, parallel=3, seeds_per_trial=2, prune=False), lambda line: None)
    for x, mode in ((3.0, "plain"), (1.0, "broken"), (2.0, "plain"), (3.0, "plain")):
        search.study.enqueue_trial({"x": x, "mode": mode})
    started: list[list[str]] = []
    real = search._start
    search._start = lambda runs: real([*runs, *(started.append([name for _, name, _ in runs]) or [])])  # type: ignore
    search.run()
    assert [trial.value for trial in search.study.trials] == [10.5, None, 9.5, 10.5]
    first = ["trial-0-seed0", "trial-1-seed0", "trial-2-seed0"]
    assert started == [first, ["trial-0-seed1", "trial-2-seed1", "trial-3-seed0"], ["trial-3-seed1"]]


def test_only_numbers_that_the_agent_explores_are_arrays_of_a_program():
    env = EnvConfig("examples.jax_cartpole:CartPole", backend="jax")
    e = dataclasses.replace(load("ppo"), env=env)
    number, choice = parse_range("agent.learning-rate", "log:1e-4:1e-2"), parse_range("agent.max-grad-norm", "0.5,none")
    assert command.in_one_program(e, [number], 4)[0] and not command.in_one_program(e, [number], 1)[0]
    assert not command.in_one_program(load("ppo"), [number], 4)[0]
    for other in (choice, parse_range("rollout-length", "int:8:16")):
        found, line = command.in_one_program(e, [number, other], 4)
        assert (
            not found and f"--vary {other.option} cannot be an array of numbers; these can: agent.learning-rate" in line
        )


def test_interrupted_search_continues(tmp_path):
    folder = tmp_path / "s"
    Search(setup_of(folder), SearchOptions(trials=3, parallel=2), lambda line: None).run()

    def interrupt(line):
        if line.startswith("trial 4"):
            os.kill(os.getpid(), signal.SIGINT)

    cut = Search(setup_of(folder, hang="yes"), SearchOptions(trials=6, parallel=2), interrupt)
    cut.study.enqueue_trial({"x": 2.5, "mode": "plain"})
    cut.run()
    assert cut.interrupted and len(finished(cut.study)) == 3
    done = {trial.number: trial.value for trial in finished(cut.study)}
    again = Search(setup_of(folder), SearchOptions(trials=6, parallel=2), lambda line: None)
    again.run()
    after = {trial.number: trial.value for trial in finished(again.study)}
    assert len(after) == 6 and done.items() <= after.items()
    assert [t.params["x"] for t in finished(again.study)].count(2.5) == 1  # the interrupted trials were restarted
    Search(setup_of(folder), SearchOptions(trials=6), lambda line: None).run()  # nothing is left to do
    assert len(finished(again.study)) == 6


def test_processes_share_the_trials_of_a_search(tmp_path):
    folder = tmp_path / "s"
    first = Search(setup_of(folder), SearchOptions(trials=3, part=1), lambda line: None)
    asked = first.study.ask({r.option: r.distribution for r in RANGES})
    asked.set_user_attr("part", 2)  # it runs in another process
    first.run()
    assert len(finished(first.study)) == 2
    with held(folder, shared=True):
        with pytest.raises(ConfigError, match="is running already"):
            Search(setup_of(folder), SearchOptions(trials=3), lambda line: None).run()
        second = Search(setup_of(folder), SearchOptions(trials=3, part=2), lambda line: None)
        second.run()  # after its process was killed
    done = finished(second.study)
    assert len(done) == 3 and [trial.params for trial in done].count(asked.params) == 1


def test_only_one_process_at_a_time_begins_a_trial(tmp_path):
    """Else two that ask at the same moment both begin the last missing one."""
    folder = tmp_path / "s"
    first, second = (Search(setup_of(folder), SearchOptions(trials=1, part=part), lambda line: None) for part in (1, 2))
    found: list[object] = []
    with file_lock(folder / ASKING):
        other = threading.Thread(target=lambda: found.append(second._ask()))
        other.start()
        other.join(0.1)
        assert other.is_alive()
        first.study.ask({r.option: r.distribution for r in RANGES})
    other.join(30.0)
    assert found == [None] and first._ask() is None


def test_search_ends_if_all_trials_fail(tmp_path):
    ranges = [RANGES[0], parse_range("mode", "broken,broken too")]
    setup = setup_of(tmp_path / "s", ranges)
    broken = Setup(
        setup.folder, "tried", ranges, 1000, 0, lambda *a: [*setup.words(*a)[:5], "broken", *["0", "x", "no"]]
    )
    with pytest.raises(TrialsFailed, match="all 3 trials have failed, the last one with: ConfigError: no such mode"):
        Search(broken, SearchOptions(trials=9), lambda line: None).run()


def test_failed_run_gives_the_error_of_its_result_and_not_the_end_of_its_output(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"ended": "failed", "error": "WorkerDied: learner: no\n\ntrace"}))
    found = {}
    for status in (1, 2):
        output = tmp_path / f"output-{status}"
        command = ["sh", "-c", f"echo '(to continue: jsrl run --resume x)'; exit {status}"]
        (child,) = start_runs(command, [tmp_path], output)
        child._process.wait(10)
        found[status] = child.why
        assert child.outcome() == (None, child.why)
    assert found == {1: "WorkerDied: learner: no", 2: "(to continue: jsrl run --resume x)"}  # 2: the result is older
    scored = {
        "ended": "total_env_steps",
        "final": {"return_mean": 3.0},
        "unsaved": "learner: the final snapshot failed",
    }
    (tmp_path / "result.json").write_text(json.dumps(scored))
    assert child.outcome() == (None, child.why)  # refused
    (child,) = start_runs(["sh", "-c", "exit 1"], [tmp_path], None)
    child._process.wait(10)
    assert child.outcome() == (3.0, "")


def test_a_run_knows_how_many_run_at_once(tmp_path):
    (child,) = start_runs(["sh", "-c", f"echo ${RUNS_AT_ONCE}"], [tmp_path], tmp_path / "output", 3)
    child._process.wait(10)
    assert child.last_line == "3"


@pytest.mark.parametrize(
    ("text", "value", "shown"),
    [
        ("log:1e-5:1e-2", 0.000123456789, "0.000123457"),
        ("lin:-1:1", 0.5, "0.5"),
        ("int:1:10", 3, "3"),
        ("log-int:16:1024", 64, "64"),
        ("0.5,1,10", "0.5", "0.5"),
        ("64,64|128,128", "64,64", "64,64"),
    ],
)
def test_ranges(text, value, shown):
    r = parse_range("agent.x", text)
    assert r.text(value) == shown
    assert r.distribution._contains(r.distribution.to_internal_repr(value))
    assert parse_range("agent.x", command.range_text(r)) == r


@pytest.mark.parametrize(
    "text", ["1", "log:1", "log:0:1", "lin:2:1", "int:1.5:2", "lin:a:b", "a,a", "", "lin:0:inf", "log:-1:1", "a,,b"]
)
def test_invalid_ranges_are_refused(text):
    with pytest.raises(ConfigError, match=r"^--vary agent.x is "):
        parse_range("agent.x", text)


def test_space_from_a_file(tmp_path):
    (tmp_path / "space.json").write_text('{"agent.gamma": "lin:0.9:1", "agent.x": "1,2"}')
    found = parse_space({"agent.x": "3,4"}, str(tmp_path / "space.json"))
    assert [(r.option, r.choices) for r in found] == [("agent.gamma", ()), ("agent.x", ("3", "4"))]
    with pytest.raises(ConfigError, match="there is nothing to search"):
        parse_space({}, None)


def test_axes_have_round_numbers_or_names():
    assert [text for _, text in Axis(log=True).ticks(-5.0, -2.1, 6)] == ["1e-05", "0.0001", "0.001"]
    assert [text for _, text in Axis(log=True).ticks(1.0, 2.0, 6)] == ["10", "20", "50", "100"]
    assert Axis(names=("a", "b")).ticks(0.0, 1.0, 6) == [(0.0, "a"), (1.0, "b")]


def test_every_option_of_a_search_is_explained_and_in_its_help():
    options = options_of(command.SearchCommand())
    assert not [option.name for option in options.values() if not option.text]
    text = help_of("usage", None, command.SearchCommand())
    assert not [name for name in options if f"--{name} " not in text]


VARY = "--vary agent.learning-rate=log:1e-5:1e-2"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nothing", "there is no experiment 'nothing'"),
        ("ppo_cartpole", "there is nothing to search"),
        ("ppo_cartpole --vary agent.learning-rate", "expected OPTION=RANGE"),
        ("ppo_cartpole --vary agent.lerning-rate=log:1e-5:1e-2", "did you mean --agent.learning-rate"),
        ("ppo_cartpole --vary agent.num-epochs=lin:1:10", "expected a whole number"),
        ("ppo_cartpole --vary agent.gamma=lin:0.5:2", "--agent.gamma is"),
        ("ppo_cartpole --vary agent.returns=gae,mc", "expected one of gae, vtrace"),
        ("ppo_cartpole --vary seed=int:0:3", "--seeds-per-trial"),
        ("ppo_cartpole --vary max-minutes=1,2", "compared at the same length"),
        (f"ppo_cartpole {VARY} --agent.learning-rate 1e-3", "is given and varied"),
        (f"ppo_cartpole {VARY} --trials 0", "trials is 0; it must be at least 1"),
        (f"ppo {VARY} --evaluator.enabled false", "leave evaluator.enabled on"),
        (f"ppo_cartpole {VARY} --search-name a/b", "use letters, digits"),
        (f"ppo_cartpole {VARY} --num-envs 0", "--num-envs is 0"),
        ("ppo_cartpole --space absent.json", "--space absent.json cannot be read"),
        ("--resume nowhere", "there is no search"),
        (f"ppo_cartpole {VARY} --display quiet", "there is no option --display"),
        (f"ppo_cartpole {VARY} --part 1", "--part is for a search that exists"),
        (f"ppo_cartpole {VARY} --slurm.extra qos=high", "it needs --launcher slurm"),
        (f"ppo_cartpole {VARY} --launcher slurm --slurm.actor-cpus 2", "has no effect on a search"),
    ],
)
def test_invalid_search_is_refused_in_one_sentence_and_leaves_no_files(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["search", *words.split()]) == 2
    told = capsys.readouterr().err
    assert sentence in told and told.count("\n") == 1 and "Traceback" not in told
    assert not os.listdir(tmp_path)


def test_search_is_submitted_as_an_array_of_jobs_that_share_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text('#!/bin/sh\necho "$*" > words\necho "7;main"\n')
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    words = ["ppo_cartpole", *VARY.split(), "--search-name", "x", "--launcher", "slurm", "--parallel", "3"]
    assert main(["search", *words, "--slurm.extra", "qos=high"]) == 0
    assert "Submitted array job 7 of 3 jobs" in capsys.readouterr().out
    script = Path("jsrl-search-ppo_cartpole-x.sh").read_text()
    assert Path("words").read_text().endswith("--array=1-3 jsrl-search-ppo_cartpole-x.sh\n")
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    folder = tmp_path / "searches" / "ppo_cartpole" / "x"
    assert f'search --resume {folder} --parallel 1 --part "$SLURM_ARRAY_TASK_ID" & child' in script
    assert "#SBATCH --qos=high" in script
    part = command.resumed(["--resume", str(folder), "--parallel", "1", "--part", "2"])
    assert (part.options.part, part.options.launcher, part.options.trials) == (2, "local", 20)
    with held(folder, shared=True):
        assert main(["search", "--resume", str(folder), "--launcher", "slurm"]) == 2
    assert "is running already" in capsys.readouterr().err
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 'invalid qos' >&2; exit 1\n")
    assert main(["search", *words, "--search-name", "y"]) == 2
    assert "was refused: invalid qos" in capsys.readouterr().err and not folder.with_name("y").exists()


def test_a_keyword_of_the_environment_is_varied_beside_another_one():
    plain = load("ppo")

    def ranges(*words, default=plain):
        asked = command_line.parse(
            command.vary_args([*words, "--vary", "env.kwargs.gravity=-9,-5"]), default, SearchOptions()
        )
        return [r.option for r in command.checked_space(asked, default)]

    heavy = dataclasses.replace(plain, env=EnvConfig("LunarLander-v3", {"gravity": -3}))
    assert ranges("--env.id", "Mine-v0", "--env.kwargs.wind", "1", default=heavy) == ["env.kwargs.gravity"]
    assert ranges("--env.kwargs.continuous", "true") == ["env.kwargs.gravity"]
    with pytest.raises(ConfigError, match=r"--env\.kwargs\.gravity is given and varied"):
        ranges("--env.kwargs.gravity", "-7")


OWN = '''"""A planted optimum"""

from dataclasses import dataclass

from planted import TinyConfig

from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment


def config():
    return Experiment(
        name="own",
        agent=TinyConfig(best=0.25),
        env=EnvConfig("probe:continuous"),
        num_envs=2,
        rollout_length=4,
        total_env_steps=64,
        placement="serial",
        evaluator=EvaluatorConfig(episodes=2, num_envs=2, final_episodes=2),
    )
'''


@pytest.mark.nightly
def test_command_searches_with_real_runs_and_continues(tmp_path, monkeypatch, capsys):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "own.py").write_text(OWN)
    tiny = (Path(__file__).parents[2] / "tiny_agent.py").read_text()
    (tmp_path / "planted.py").write_text(tiny.replace("tests.tiny_agent:tiny", "planted:tiny"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[3]}:{tmp_path}")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = "search own --vary agent.offset=0.25,5 --num-envs 4 --search-name one --parallel 2"
    try:
        assert main([*words.split(), "--trials", "2"]) == 0
        (tmp_path / "searches" / "own" / "one" / "search.html").unlink()
        assert main(["search", "--resume", "searches/own/one", "--trials", "3"]) == 0
    finally:
        for name in ("configs.own", "planted"):
            sys.modules.pop(name, None)
    told = capsys.readouterr().out
    assert "jsrl run own --num-envs 4 --agent.offset" in told
    folder = tmp_path / "searches" / "own" / "one"
    results = [json.loads(path.read_text()) for path in folder.glob("runs/own/trial-*-seed0/result.json")]
    assert len(results) == 3 and {r["ended"] for r in results} == {"total_env_steps"}
    assert "<svg" in (folder / "search.html").read_text()
