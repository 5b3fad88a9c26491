"""Every graph of jsrl/experiment/graphs runs, survives a kill of each kind of its workers, and resumes from its graph.json."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from jsrl.graph.graph_file import FILE, graph_of
from tests.system.launched import assert_balanced
from tests.system.test_supervision import await_snapshot, await_training, counting

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[2] / "jsrl" / "experiment" / "graphs"
GRAPHS = {path.stem: re.search(r"--graph (\S+:\w+)`", path.read_text()) for path in FOLDER.glob("[a-z]*.py")}
WORDS = {
    "impala": ("--placement", "served"),
    "broadcast": ("--max-policy-lag", "none"),
    "seed": ("--placement", "inline"),
    "decoupled": ("--placement", "inline"),
}
FURTHER = {"broadcast", "impala", "two_policies"}  # test_user_kinds and test_two_policies kill workers of such graphs


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.nightly if n in FURTHER else ()) for n in sorted(GRAPHS)]
)
def test_graph_survives_kills_and_resumes(launch, name: str) -> None:
    """The update fails where rows or cores of two incarnations are mixed."""
    command = GRAPHS[name]
    assert command is not None, f"the docstring of {name}.py has no command with --graph"
    words = ("--num-actors", "2", "--run-name", "one", "--graph", command[1], *WORDS.get(name, ()))
    run = counting(launch, *words)
    await_snapshot(run)
    graph = graph_of(run.folder)
    assert graph is not None
    for worker in {w.kind: w.name for w in graph.workers}.values():  # the last one of each kind
        process = run.workers()[worker]
        process.kill()
        await_training(run, time.monotonic(), worker, process.pid)
    run.popen.terminate()
    run.expect(130, 40.0)
    result = run.result()
    assert_balanced(result)
    again = launch("--resume", "one", "--total-env-steps", str(result["env_steps"] + 1_000), experiment="")
    assert f"it continues with its changed graph ({FILE})" in again.expect(0, 60.0)
    assert again.result()["env_steps"] > result["env_steps"] and graph_of(again.folder) == graph
    assert_balanced(again.result())
