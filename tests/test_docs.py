"""Everything that README and docs mention exists: links, files, commands with their options, Python examples."""

import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jsrl
from benchmarks import tables
from jsrl.agents.check import check_agent
from jsrl.agents.dqn import DQNConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.cli import command_line
from jsrl.cli.command_line import check_needs, take_name
from jsrl.cli.experiments import load
from jsrl.cli.main import COMMANDS, DEV
from jsrl.cli.main import main as jsrl_command
from jsrl.cli.tuned import with_settings
from jsrl.control.run import run
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, ReplayConfig
from jsrl.experiment.options import RunOptions
from jsrl.extend import check_graph, make_graph
from jsrl.fields import Option, options_of
from jsrl.graph.plan import make_plan
from jsrl.networks.model import NetworkConfig
from jsrl.tools.tuning.search import SearchOptions
from jsrl.types import ArraySpec, Discrete, EnvSpec
from jsrl.workers.kinds import catalogue

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    page for folder in ("docs", "benchmarks/notes") for page in (ROOT / folder).rglob("*.md")
)
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FOLDERS = ("jsrl", "experiments", "benchmarks", "docs", "notebooks", "tests")


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def spans(page: Path) -> list[str]:
    return SPAN.findall(BLOCK.sub("", page.read_text()))


def commands(page: Path) -> list[list[str]]:
    """Every command line of python or jsrl in the page's bash blocks and code spans, split into arguments.

    `jsrl run NAME` is returned as the equivalent script: `experiments/run.py NAME`.
    """
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()] + spans(page)
    found = []
    for line in lines:
        for part in re.split(r"&&|;", line):
            words = shlex.split(part.partition(" > ")[0], comments=True)
            if words and re.fullmatch(r"(\.venv/bin/)?python3?", words[0]) and len(words) > 1:
                found.append(words[1:])
            if words and re.fullmatch(r"(\.venv/bin/)?jsrl", words[0]) and len(words) > 1:
                found.append(["experiments/run.py", *words[2:]] if words[1] == "run" else ["jsrl", *words[1:]])
    return found


def test_commands_are_found() -> None:
    """Check the parser above; otherwise the tests below prove nothing."""
    assert ["experiments/run.py", "ppo_cartpole"] in commands(ROOT / "README.md")
    assert sum(len(commands(page)) for page in PAGES) > 25


def test_links_resolve() -> None:
    for name in PAGE_NAMES:
        page = ROOT / name
        for target in LINK.findall(BLOCK.sub("", page.read_text())):
            if target.startswith(("http://", "https://")):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), f"{name} links to {target}, which does not exist"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{name} links to {target}; there are {sorted(anchors)}"


def test_files_exist() -> None:
    for name in PAGE_NAMES:
        for span in spans(ROOT / name):
            if span.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and " " not in span:
                assert list(ROOT.glob(span.rstrip("/"))), f"{name} mentions {span}, which does not exist"


def test_documented_commands_parse() -> None:
    """One test: the pages share most of their commands and options, which a process reads once."""
    assert not [wrong for name in PAGE_NAMES for wrong in wrong_commands(name)]


def wrong_commands(name: str) -> Iterator[str]:
    for words in commands(ROOT / name):
        if words[:2] == ["-m", "pdb"]:
            words = words[2:]
        if words[0] == "-m":
            if importlib.util.find_spec(words[1]) is None:
                yield f"{name}: there is no module {words[1]}"
            continue
        if words[0].startswith("-"):
            continue
        if words[0] == "jsrl":
            if words[1] not in COMMANDS or (words[1] == "dev" and not set(words[2:3]) <= set(DEV)):
                yield f"{name}: there is no {' '.join(words[:3])}"
            continue
        if not (ROOT / words[0]).is_file():
            yield f"{name}: there is no {words[0]}"
        elif words[0].startswith("benchmarks/"):
            source, given = (ROOT / words[0]).read_text(), words[: words.index("--")] if "--" in words else words
            unknown = [
                word for word in given if word.startswith("--") and f'"{word.replace("--no-", "--")}"' not in source
            ]
            if unknown:
                yield f"{name}: {words[0]} has no {', '.join(unknown)}"
        elif words[0] == "experiments/run.py":
            wrong = error_of_run(tuple(word for word in words[1:] if word not in ("--help", "--help-all")))
            if wrong:
                yield f"{name}: {' '.join(words)}: {wrong}"


loaded = functools.cache(load)


@functools.cache
def error_of_run(given: tuple[str, ...]) -> str:
    """Parse a command of run.py like run.py does; return its error."""
    words = list(given)
    if words == ["NAME"]:
        return ""
    if words[:1] == ["my_project"]:  # created by `jsrl new my_project`
        words[0] = "ppo"
    experiment = None if "--resume" in words else take_name(words)
    try:
        check_needs(command_line.parse(words, loaded(experiment or "ppo")))
    except ConfigError as error:
        return str(error)
    return ""


@functools.cache
def known_options() -> dict[str, Option]:
    """Options of the experiments, of run.py itself, and of a search."""
    known = options_of(RunOptions()) | options_of(SearchOptions())
    for experiment in (
        "ppo",
        "impala",
        "pqn",
        "ppg",
        "sac",
        "td3",
        "dqn",
        "r2d2",
        "mappo",
        "qmix",
        "chase",
        "ppo_connect_four",
        "pbt_cartpole",
        "plr_maze",
        "league_tic_tac_toe",
    ):
        known |= options_of(load(experiment))
    return known


def test_mentioned_options_of_other_commands_exist() -> None:
    """Commands that start runs accept the options of `jsrl run` too."""
    for page in PAGES:
        for words in commands(page):
            command = words[1] if words[0] == "jsrl" else ""
            if command == "dev":
                command = " ".join(words[1:3])
            if command in ("", "run"):
                continue
            given = words[: words.index("--")] if "--" in words else words
            for word in given:
                taken = not word.startswith("--") or word in help_of(command)
                of_env = command == "evaluate" and word.startswith("--env.")
                if not taken and (of_env or command in ("dev chaos", "search", "tune")):
                    command_line.find_option(command_line.positive(word[2:], known_options()), known_options())
                else:
                    assert taken, f"{page.name}: jsrl {command} has no {word}"


@functools.cache
def help_of(command: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        jsrl_command([*command.split(), "--help"])
    return printed.getvalue()


def test_options_exist() -> None:
    """Code spans that start with `--` are options of some experiment, of run.py itself, or of a search."""
    known = known_options()
    elsewhere = {"help", "help-all", "shm-size"}
    for name in PAGE_NAMES:
        for span in spans(ROOT / name):
            if re.match(r"jsrl (?!run )|python (benchmarks/|experiments/bench)", span):
                continue  # the test above, and scripts with their own options
            for option in re.findall(r"(?:^|\s)--([a-z][a-z0-9.-]*)", span):
                if option in elsewhere or any(full.startswith(f"{option}.") for full in known):
                    continue
                try:
                    command_line.find_option(command_line.positive(option, known), known)
                except ConfigError as error:
                    if "here it is called" not in str(error):
                        pytest.fail(f"{name} mentions --{option}: {error}")


def test_names_of_modules_and_metrics_exist() -> None:
    rooms = {metric.partition("/")[0] for metric in catalogue().by_name}
    for name in PAGE_NAMES:
        for span in spans(ROOT / name):
            if re.fullmatch(r"jsrl(\.\w+)+(\(.*\))?", span):
                dotted = span.partition("(")[0]
                module, _, attribute = dotted.rpartition(".")
                if importlib.util.find_spec(module) is not None and hasattr(importlib.import_module(module), attribute):
                    continue
                assert importlib.util.find_spec(dotted) is not None, f"{name}: there is no {dotted}"
            if re.fullmatch(r"[a-z_]+/[a-z0-9_]+", span) and span.partition("/")[0] in rooms:
                assert span in catalogue().by_name, f"{name}: there is no metric {span}"


def test_python_examples_import_existing_names() -> None:
    for name in PAGE_NAMES:
        for block in blocks(ROOT / name, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and f"`{node.module}.py`" not in (ROOT / name).read_text():
                    module = importlib.import_module(node.module)
                    for alias in node.names:
                        assert hasattr(module, alias.name), f"{name}: {node.module} has no {alias.name}"


ALGORITHMS = sorted(path.stem for path in (ROOT / "docs" / "algorithms").glob("*.md") if path.stem != "index")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_python_on_an_algorithms_page_equals_the_command_beside_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "algorithms" / f"{name}.md"
    command = re.search(r"^The same as `(jsrl run .+)` in Python:$", page.read_text(), re.MULTILINE).group(1).split()
    ran: list[Experiment] = []
    monkeypatch.setattr(jsrl, "run", ran.append)
    exec(blocks(page, "python")[0], {"__name__": "__main__"})
    (ours,), theirs = ran, by_command(command[2], command[3:])
    assert ours == dataclasses.replace(theirs, name=ours.name)


def by_command(name: str, words: list[str]) -> Experiment:
    """Return the experiment of `jsrl run NAME ...`."""
    return command_line.parse(words, with_settings(name, words, load(name))[0]).experiment


def test_algorithm_pages_name_every_config() -> None:
    names = [one for one in jsrl.__all__ if hasattr(getattr(jsrl, one), "factory")]
    overview = (ROOT / "docs" / "algorithms" / "index.md").read_text()
    pages = "".join((ROOT / "docs" / "algorithms" / f"{name}.md").read_text() for name in ALGORITHMS)
    assert len(names) == 16 and [one for one in names if f"`{one}`" not in overview or f"{one}" not in pages] == []


@pytest.mark.nightly
def test_the_examples_environment_trains(tmp_path: Path) -> None:
    """The environment and the command of the first page, shortened."""
    block = blocks(ROOT / "docs" / "index.md", "python")[0]
    (tmp_path / "corridor.py").write_text(block)
    (words,) = [words for words in commands(ROOT / "docs" / "index.md") if "corridor:Corridor" in words]
    words = [str(ROOT / words[0]), *words[1:], "--placement", "serial", "--evaluator.final-episodes", "20"]
    ended = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    returned = float(re.search(r"fresh seeds: return (-?[\d.]+)", ended.stdout).group(1))
    assert returned > 0.0  # arrived, in about the required number of steps; a random walk mostly times out at -10


def test_the_tutorials_environment_has_the_two_faults_and_the_mended_one_can_be_docked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "tutorial.md"
    source, _, autopilot, _ = blocks(page, "python")
    (mend,) = blocks(page, "diff")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "docking.py").write_text(source)
    assert "no episode ended within 600 steps" in str(jsrl.check_env(jsrl.EnvConfig("docking:Docking")))
    monkeypatch.delitem(sys.modules, "docking")
    (tmp_path / "docking.py").write_text(changed_by(mend, source) + "\n")  # a new size, so that Python reads it again
    exec(compile(autopilot, "autopilot.py", "exec"), {})
    monkeypatch.delitem(sys.modules, "docking")
    assert re.search(r"^autopilot: return 67\.7 ± 6\.3$", page.read_text(), re.MULTILINE)
    assert capsys.readouterr().out == "autopilot: return 67.7 ± 6.3\n"


@pytest.mark.nightly
def test_the_examples_game_of_two_policies_trains(tmp_path: Path) -> None:
    """The file and the commands of docs/policies.md, shortened; a user's copy in another folder."""
    block = blocks(ROOT / "docs" / "policies.md", "python")[0]
    assert block == (ROOT / "jsrl" / "experiment" / "configs" / "chase.py").read_text()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "hunt.py").write_text(block)
    runs = [words[2:] for words in commands(ROOT / "docs" / "policies.md") if words[1:2] == ["chase"]]
    assert [words[words.index("--placement") + 1] for words in runs] == ["serial", "served"]
    short = ["--total-env-steps", "2048", "--evaluator.final-episodes", "10", "--run-name"]
    given = [["run", "hunt", *words, *short, f"run-{number}"] for number, words in enumerate(runs)]
    more = ["evaluate", "chase/run-1@runner/best", "--episodes", "10"], ["record", "chase/run-0", "--to", "rows"]
    for words in [*given, *more]:
        ended = subprocess.run(
            [sys.executable, "-m", "jsrl", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        said = {
            "run": "policy runner: 2,048 env steps",
            "evaluate": "chase/run-1@runner/best: return",
            "record": "to rows: 1 file",
        }
        assert said[words[0]] in ended.stdout


@pytest.mark.slow
def test_the_experiments_of_populations_can_start() -> None:
    given = [block for block in blocks(ROOT / "docs" / "populations.md", "python") if "def config()" in block]
    for block in given:
        module: dict[str, Any] = {"__name__": "experiment_of_docs"}
        exec(compile(block, "populations.md", "exec"), module)
        make_plan(dataclasses.replace(module["config"](), placement="serial"), "(not run)", Path("/dev/shm/jsrl"))
    assert len(given) == 3
    assert (ROOT / "jsrl" / "experiment" / "configs" / "league_tic_tac_toe.py").read_text() in given


def test_the_documented_psro_has_all_its_options() -> None:
    page = ROOT / "docs" / "populations.md"
    names: dict[str, Any] = {}
    exec(next(block for block in blocks(page, "python") if "jsrl.PSRO(" in block), names)
    documented = re.findall(
        r"^\| `(\w+)` \|", page.read_text().partition("## PSRO")[2].partition("## PBT")[0], re.MULTILINE
    )
    options = {field.name for field in dataclasses.fields(names["director"])} - {"greedy"}  # for programs of one's own
    assert options <= {*documented}, options
    assert names["experiment"].director.max_population == 10


TEMPLATE = ROOT / "jsrl" / "cli" / "project" / "algorithm.py"
ALGORITHM = ROOT / "docs" / "algorithm.md"


def test_docs_algorithm_equals_the_project_template() -> None:
    assert blocks(ALGORITHM, "python")[0] == TEMPLATE.read_text()


def changed_by(diff: str, source: str) -> str:
    """Return a source with the hunks of a diff applied; blank lines separate hunks, and each must match exactly once."""
    for hunk in diff.strip("\n").split("\n\n"):
        lines = hunk.splitlines()
        old = "\n".join(line[1:] for line in lines if line[0] in " -") + "\n"
        new = "\n".join(line[1:] for line in lines if line[0] in " +") + "\n"
        assert source.count(old) == 1, f"matches {source.count(old)} times:\n{hunk}"
        source = source.replace(old, new)
    return source


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "spec"),
    [
        (0, EnvSpec(ArraySpec((3,), "float32"), Discrete(2))),
        (1, EnvSpec({"observation": ArraySpec((3,), "float32"), "action_mask": ArraySpec((4,), "uint8")}, Discrete(4))),
        (2, EnvSpec(ArraySpec((2, 3), "float32"), Discrete(4), num_agents=2)),
    ],
    ids=["recurrent", "masks", "seats"],
)
def test_documented_algorithm_changes_pass_check_agent(place: int, spec: EnvSpec) -> None:
    source = changed_by(blocks(ALGORITHM, "diff")[place], TEMPLATE.read_text())
    module: dict[str, Any] = {"__name__": "algorithm"}
    exec(compile(source, "algorithm.py", "exec"), module)
    agent = module["make_agent"](module["AgentConfig"](), spec)
    report = check_agent(agent, spec, num_rows=4, num_envs=4)
    skipped = {line.partition(":")[0] for line in report.skipped}
    assert ("act_resets_core" in skipped, "act_obeys_mask" in skipped) == (place != 0, place != 1)


@pytest.mark.slow
def test_the_documented_loss_runs_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = [block for block in blocks(ALGORITHM, "python") if "class CalmPPOConfig" in block]
    (tmp_path / "calm_ppo.py").write_text(source)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "calm.py").write_text(
        '"""Calm."""\nfrom calm_ppo import CalmPPOConfig\nfrom jsrl import EnvConfig, Experiment\n\n\ndef config():\n'
        '    return Experiment(name="calm", env=EnvConfig("CartPole-v1"), agent=CalmPPOConfig(), num_envs=4)\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = "--agent.calm-coef 1e-2 --placement serial --rollout-length 16 --total-env-steps 128 --display quiet"
    jsrl_command(["run", "calm", "--agent.network.hidden", "8", "--no-evaluator.enabled", *options.split()])
    (folder,) = (tmp_path / "runs" / "calm").iterdir()
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert any("learner/squared_logits" in str(line) for line in metrics)
    sys.modules.pop("calm_ppo", None)


@pytest.mark.slow
def test_the_documented_loop_and_evaluation_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop, scores = (block for block in blocks(ALGORITHM, "python") if "make_env(" in block)
    names: dict[str, Any] = {}
    exec(loop.replace("range(20)", "range(1)"), names)
    agent = PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1)
    options = {"num_envs": 4, "rollout_length": 8, "total_env_steps": 32, "placement": "serial"}
    e = Experiment(agent, evaluator=EvaluatorConfig(enabled=False), **options)
    names["policy"] = run(e, runs_dir=tmp_path, display="quiet").policy("latest")
    capsys.readouterr()
    exec(scores, names)
    assert float(capsys.readouterr().out) >= 8.0


@pytest.mark.slow
def test_documented_workers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All code that docs/dataflow.md puts into my_workers.py, together in one graph."""
    (tmp_path / "my_workers.py").write_text("\n".join(blocks(ROOT / "docs" / "dataflow.md", "python")[:4]))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_workers", raising=False)
    mine = importlib.import_module("my_workers")
    agent = PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1)
    evaluator = EvaluatorConfig(episodes=1, final_episodes=1, num_envs=1)
    options = {"num_envs": 4, "num_groups": 2, "rollout_length": 8, "total_env_steps": 6 * 32, "placement": "serial"}
    experiment = Experiment(agent, evaluator=evaluator, **options)
    result = run(
        experiment,
        graph=lambda graph: mine.with_entropy(mine.augmented(mine.watched(mine.counted(graph)))),
        runs_dir=tmp_path,
        display="quiet",
    )
    assert result.metrics["count/counted"][-1] == 12
    assert result.metrics["watch/params_updates"][-1] == 6
    sys.modules.pop("my_workers")  # not by monkeypatch, which would restore it


@pytest.mark.slow
def test_the_documented_graph_with_replay_for_one_of_two_policies_is_valid() -> None:
    given = [block for block in blocks(ROOT / "docs" / "dataflow.md", "python") if "with_policy(" in block]
    names: dict[str, Any] = {}
    exec("\n".join(given), names)
    replay = ReplayConfig(kind="host", num_replays=2, capacity=2_000, batch_size=16, min_size=200)
    options = {"num_envs": 8, "num_actors": 4, "num_groups": 8, "rollout_length": 8, "placement": "inline"}
    e = Experiment(DQNConfig(), replay=replay, max_policy_lag=None, **options)
    plan = make_plan(e, "run", Path("memory"), names["one_with_replay"])
    found = {name: part.experiment.has_replay_workers for name, part in plan.policies.items()}
    assert found == {"policy": True, "b": False}


def test_the_documented_graph_with_two_relays_is_valid() -> None:
    (code,) = (block for block in blocks(ROOT / "docs" / "dataflow.md", "python") if "def two_relays" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    e = Experiment(PPOConfig(), placement="inline", num_actors=2, transport="zeromq")
    graph = names["two_relays"](make_graph(e))
    check_graph(graph)
    assert "parameter-server-2 -> actor-1" in str(graph)
    with pytest.raises(ConfigError, match="the params are in relayed and relayed-2; name the stream"):
        _ = graph.params


@pytest.mark.slow
def test_documented_python_examples_run(tmp_path: Path) -> None:
    pages = ("operations.md", "environments.md")
    source = "\n".join(block for page in pages for block in blocks(ROOT / "docs" / page, "python"))
    (tmp_path / "example.py").write_text(source)
    ended = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "env steps/s" in ended.stdout


LIBRARIES = {"SB3": "sb3", "PufferLib": "pufferlib", "SBX": "sbx", "Sample Factory": "sample-factory", "RLlib": "rllib"}


def rows_of_results() -> dict[str, tuple[str, list[list[dict[str, Any]]]]]:
    """Return the rows of README's table of results: name -> (text, the raw numbers of each file or pattern of files)."""
    section = (ROOT / "README.md").read_text().partition("## Results")[2].partition("## Where to read on")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    raw = ROOT / "benchmarks" / "results"
    return {
        name: (text, [[json.loads(path.read_text()) for path in sorted(raw.glob(file))] for file in SPAN.findall(cell)])
        for name, text, cell in rows
    }


def test_scores_in_readme_are_those_of_the_raw_files() -> None:
    seen = 0
    for name, (text, files) in rows_of_results().items():
        runs = [run["outcome"] for group in files for run in group if "outcome" in run]
        scores = re.findall(r"([\d,.]+) ± ([\d.]+)", text)
        for (score, half), outcome in zip(scores, runs if scores else [], strict=True):
            final, rounding = outcome["final"], 0.501 * 10 ** -len(score.partition(".")[2])
            assert float(score.replace(",", "")) == pytest.approx(final["return_mean"], abs=rounding), name
            assert float(half) == pytest.approx(final["return_ci95"], abs=rounding), name
            assert f"{outcome['env_steps'] / 1e6:.2f}M" in text, name
            seen += 1
        if name == "`jsrl run ppo_cartpole`":
            seconds = [[f"{run['outcome']['process_s']:.1f}" for run in group] for group in files]
            assert re.findall(r"([\d.]+) to ([\d.]+) s", text) == [(min(group), max(group)) for group in seconds]
            assert [outcome["final"]["return_mean"] >= 490 for outcome in runs] == [True] * 10
    assert seen == 7


def test_speeds_in_readme_are_those_of_the_raw_files() -> None:
    def median(runs: list[dict[str, Any]], what: str = "env_steps_per_s") -> float:
        return statistics.median(run[what] for run in runs if run[what] >= 0)  # nan: not measured

    seen = 0
    for name, (text, files) in rows_of_results().items():
        arms = re.findall(r"(\w+), lag (\d): ([\d,]+), ([\d.]+)x the fastest of ([^;|]+)", text)
        for place, (placement, lag, speed, ratio, libraries) in enumerate(arms):
            (raw,) = files[min(place, len(files) - 1)]
            ours, others = raw["end_to_end"][placement], raw["peers"]
            fastest = max(median(arm["runs"]) for peer in others.values() for arm in peer["arms"])
            assert (lag, speed) == (f"{median(ours, 'lag_p50'):.0f}", f"{median(ours):,.0f}"), name
            assert ratio == f"{median(ours) / fastest:.2f}", name
            assert {LIBRARIES[library] for library in libraries.split(", ")} == set(others), name
            seen += 1
    assert seen == 5


def test_tables_of_scores_and_speed_are_made_of_the_raw_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main(["--check"]) == 0, capsys.readouterr().out
    page = (ROOT / "docs" / "scores.md").read_text()
    (row,) = [line for line in page.splitlines() if "`ppo_halfcheetah-seed*.json`" in line]
    assert row.startswith("| HalfCheetah-v5 | PPO | 2,781 ± 3,027 | 1,699; 4,101; 2,544 | 1.0M | 5,819 after 1M")
    assert "| 2,781 ± 3,027 |" in tables.with_tables(page.replace("2,781", "5,819"))


def test_named_raw_files_exist() -> None:
    raw = ROOT / "benchmarks" / "results"
    for page in (name for name in PAGE_NAMES if re.match(r"README|docs/(scores|speed|algorithms)|benchmarks/", name)):
        for span in spans(ROOT / page):
            if found := re.fullmatch(r"(?:benchmarks/results/)?([\w*-]+\.json)", span):
                pattern = re.sub("[A-Z]{4,}", "*", found[1])
                assert pattern == "result.json" or list(raw.glob(pattern)), f"{page} names {span}, which does not exist"


def test_learning_curves_match_the_committed_results(tmp_path: Path) -> None:
    script = [sys.executable, "benchmarks/curves.py", "--to", str(tmp_path)]
    subprocess.run(script, cwd=ROOT, capture_output=True, check=True)
    drawn = sorted(tmp_path.iterdir())
    assert drawn
    for picture in drawn:
        assert (ROOT / "docs" / "pictures" / picture.name).read_text() == picture.read_text(), picture.name
