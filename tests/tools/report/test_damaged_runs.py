"""Damaged run files: one run never hides the others, and no reader fails with a raw error or waits for ever."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cli import status
from jsrl.control.result import is_finished
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment import Experiment
from jsrl.graph.graph_file import experiment_of, stored_graph, write_graph
from jsrl.graph.placements import make_graph
from jsrl.references.reference import to_json
from jsrl.services.metrics.display_state import DisplayState
from jsrl.services.runs.files import write_json
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.runs import RunFolder, load_runs, read_metrics
from jsrl.services.runs.state import ControllerStatus, read_result, write_status
from jsrl.tools.report import text
from jsrl.tools.report.comparison_page import comparison_page
from jsrl.tools.report.page import UNREADABLE
from jsrl.tools.report.report import body
from jsrl.tools.report.run_report import make_report
from jsrl.tools.report.watch import Server
from tests.services.runs.test_broken_files import fifo, promptly

EXPERIMENT = Experiment(PPOConfig(), EnvConfig("CartPole-v1"), placement="inline", num_actors=2)
SCORE = {"return_mean": 20.0, "return_ci95": 1.0, "episodes": 10, "env_steps": 640}
COUNTS = {
    "produced": 5,
    "consumed": 5,
    "in_flight": 0,
    "unknown": 0,
    "uncounted": 0,
    "dropped": {"old": 0},
    "faults": [],
}
RESULT = {
    "ended": "total_env_steps",
    "env_steps": 640,
    "updates": 5,
    "wall_s": 9.5,
    "evaluation": SCORE,
    "final": SCORE,
    "ledger": COUNTS,
    "legs": {"replay": COUNTS},
    "others": {"b": {"env_steps": 640, "updates": 5, "evaluation": SCORE, "final": {}}},
}
WHOLE = [b"", b"{", b"[]", b"null", b"7", b'"x"', bytes(range(128, 256)), b"[" * 100_000, b"{}"]
FILES = ["experiment.json", "environment.json", "result.json", "status.json", "graph.json", "metrics.jsonl"]


def make_run(runs: Path, name: str) -> Path:
    folder = RunFolder.create(runs, "ppo", name, config=to_json(EXPERIMENT))
    write_graph(folder, make_graph(EXPERIMENT))
    write_json(folder.path / "result.json", RESULT)
    lines = [{"env_steps": 128 * n, "updates": n, "wall_s": n + 0.5, "evaluator/return_mean": 20.0} for n in range(5)]
    folder.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    state = DisplayState("ppo/one", 1.0, 640, 5, evaluations=[(640, 20.0)], metrics={"learner/loss": 1.0})
    write_status(folder.path, ControllerStatus(ProcessIdentity.own(), 0.0, moment=vars(state)))
    return folder.path


@pytest.fixture(name="damaged")
def damaged_fixture(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs", "good")
    return make_run(tmp_path / "runs", "damaged")


def readers(run: Path) -> dict[str, Callable[[], Any]]:
    folder = RunFolder(run)
    return {
        "status": lambda: status.text(folder),
        "json": lambda: status.to_json(status.facts_of(run)),
        "report": lambda: (text.document(make_report(folder)), body(make_report(folder))),
        "comparison": lambda: comparison_page(load_runs([run, run.with_name("good")])),
        "graph": lambda: stored_graph(folder),
        "experiment": lambda: experiment_of(folder),
        "finished": lambda: is_finished(run),
    }


def assert_survived(run: Path, what: str) -> None:
    """The lists show the other run; the readers of this one succeed, or raise an error with a sentence."""
    assert "ppo/good" in status.table(status.below(run.parents[1])), what
    with Server(run.parents[1]) as server:
        assert "ppo/good" in server.index(), what
    for name, read in readers(run).items():
        try:
            read()
        except JsrlError as error:
            assert str(run) in str(error) or "settings of learner" in str(error), (what, name)
        except Exception as error:
            raise AssertionError(f"{what}: {name} fails with {error!r}") from error


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_hides_no_other_run(damaged: Path, file: str) -> None:
    for content in WHOLE:
        (damaged / file).write_bytes(content)
        assert_survived(damaged, f"{file} is {content[:10]!r}")


def wrong_types(tree: Any, at: tuple = (), depth: int = 0) -> list[tuple[tuple, Any]]:
    """Return (path of a value, another value) pairs."""
    found: list[tuple[tuple, Any]] = []
    for key, value in list(
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    ):
        other: tuple[Any, ...] = ("x", None, [1], {"a": 1}, 7)
        found += [((*at, key), bad) for bad in other if type(bad) is not type(value)]
        found += wrong_types(value, (*at, key), depth + 1) if depth < 3 else []
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("file", FILES[:-1])
def test_a_wrong_type_in_a_file_hides_no_other_run(damaged: Path, file: str) -> None:
    content = (damaged / file).read_bytes()
    cases = wrong_types(json.loads(content))
    for place, bad in cases[:: max(1, len(cases) // 40)]:
        changed = at = json.loads(content)
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = bad
        (damaged / file).write_text(json.dumps(changed))
        assert_survived(damaged, f"{file}: {place} is {bad!r}")


def test_a_damaged_result_is_named_with_its_field(damaged: Path) -> None:
    for changes, words in (
        ({"env_steps": "many"}, "Expected `float`, got `str` - at `$.env_steps`"),
        ({"final": {"return_mean": "3.0"}}, "$.final.return_mean"),
        ({"ledger": COUNTS | {"consumed": None}}, "$.ledger.consumed"),
    ):
        write_json(damaged / "result.json", RESULT | changes)
        result = read_result(damaged)
        assert result["ended"] == "its result cannot be read" and words in result["error"], result
        assert str(damaged / "result.json") in result["error"] and result["error"] in status.text(RunFolder(damaged))
    assert not is_finished(damaged)
    write_json(damaged / "result.json", RESULT)
    assert read_result(damaged) == RESULT and is_finished(damaged)


def test_a_list_shows_which_run_is_damaged(damaged: Path) -> None:
    (damaged / "experiment.json").write_text('{"fields": {"total_env_steps": "x"}}')
    rows = status.table(status.below(damaged.parents[1])).splitlines()
    assert any("ppo/damaged" in row and "cannot be read" in row for row in rows)
    with Server(damaged.parents[1]) as server:
        index = server.index()
    assert UNREADABLE in index and "$.total_env_steps" in index


@pytest.mark.parametrize("file", [*FILES, "logs/controller.log"])
def test_a_fifo_in_place_of_a_file_is_never_waited_for(damaged: Path, file: str) -> None:
    (damaged / file).parent.mkdir(exist_ok=True)
    fifo(damaged / file)
    assert promptly(lambda: assert_survived(damaged, file)) is None


def test_a_link_to_an_endless_device_is_refused(damaged: Path) -> None:
    for file in ("metrics.jsonl", "graph.json"):
        (damaged / file).unlink()
        os.symlink("/dev/zero", damaged / file)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_metrics(damaged / "metrics.jsonl")
    assert promptly(lambda: assert_survived(damaged, "/dev/zero")) is None
