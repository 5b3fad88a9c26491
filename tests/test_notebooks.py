"""The notebooks run from top to bottom, and interrupting a cell stops every process."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import nightly

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NAMES = (
    "01_write_an_algorithm",
    "02_same_algorithm_distributed",
    "04_build_a_dataflow",
    "03_analyse_runs",
    "05_two_policies",
    "06_hide_and_seek",
    "07_off_policy_in_the_background",
    "08_environment_in_jax",
)
SHORT = (
    ("NUM_UPDATES = 128, 60", "NUM_UPDATES = 128, 10"),
    ("245_760", "24_576"),
    ("5, 24_576", "2, 6_144"),
    ("65_536", "8_192"),
    ("400, 100_000", "50, 6_400"),
    ("400_000", "8_192"),
)  # enough to see it run
MAX_OUTPUT_CHARACTERS = 60_000
FAST = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}


def read(name: str):
    nbformat = pytest.importorskip("nbformat")  # not at collection, where every test process would pay for it
    return nbformat.read(FOLDER / f"{name}.ipynb", 4)


def code(notebook) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def process(what: str, name: str, folder: Path, *changed: str, optimised: bool = False) -> str:
    """Run tests/notebook_process.py in `folder`; return its output. optimised: programs are compiled for speed."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "notebook_process.py"), what]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(
        [*command, str(FOLDER / f"{name}.ipynb"), *changed],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "COLUMNS": "120"} | (FAST if optimised else {}),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_small_and_valid(name: str) -> None:
    notebook = read(name)
    pytest.importorskip("nbformat").validate(notebook)
    assert sum(len(str(cell.get("outputs", ""))) for cell in notebook.cells) < MAX_OUTPUT_CHARACTERS
    assert "/tmp/" not in str(notebook) and "/home/" not in str(notebook)


def test_the_second_notebook_finds_the_algorithm_that_the_first_one_writes() -> None:
    (cell,) = (one for one in code(read(NAMES[0])) if one.startswith("%%writefile small_ppo.py\n"))
    text = (FOLDER / "small_ppo.py").read_text()
    assert cell.partition("\n")[2].strip() == text.strip()
    body = text[text.index("def small_ppo") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "at_least"),
    [(SHORT[0], 0.0), nightly((), 300.0)],
    ids=["runs", "learns"],
)
def test_an_algorithm_in_a_plain_loop(tmp_path: Path, changed: tuple[str, ...], at_least: float) -> None:
    printed = process("execute", NAMES[0], tmp_path, *changed, optimised=not changed)
    assert float(re.search(r"greedy episodes: ([\d.]+)", printed).group(1)) >= at_least, printed


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changed", "at_least"),
    [(SHORT[1], 0.0), nightly((), 300.0)],
    ids=["runs", "learns"],
)
def test_the_same_algorithm_distributed(tmp_path: Path, changed: tuple[str, ...], at_least: float) -> None:
    shutil.copy(FOLDER / "small_ppo.py", tmp_path)
    printed = process("execute", NAMES[1], tmp_path, *changed, optimised=not changed)
    assert float(re.search(r"fresh seeds: ([\d.]+)", printed).group(1)) >= at_least, printed
    (run,) = (tmp_path / "runs" / "small_ppo_cartpole").iterdir()
    assert {log.stem for log in (run / "logs").glob("*.log")} >= {"actor-0", "inference-0", "learner", "evaluator"}


@pytest.mark.nightly
def test_interrupting_a_cell_stops_every_process(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "small_ppo.py", tmp_path)
    seen = json.loads(process("interrupt", NAMES[1], tmp_path).splitlines()[-1])
    assert seen["workers"] == 4
    assert seen["left"] == []
    assert seen["ended"] == "interrupted" and seen["kernel"] == "ok"
    assert seen["ending_s"] < 20.0


@pytest.mark.nightly
def test_custom_dataflow_notebook_runs(tmp_path: Path) -> None:
    printed = process("execute", NAMES[2], tmp_path)
    assert "no worker answers the stream inference" in printed and "norm of the params" in printed
    legs = re.findall(r"ledger.*: produced (\d+) .*: balanced", printed)
    assert len(legs) == 2 and min(map(int, legs)) > 0, printed
    kinds = [cell for cell in code(read(NAMES[2])) if cell.startswith("%%writefile")]
    assert len(kinds) == 1 and len(kinds[0].splitlines()) <= 80


@pytest.mark.nightly
@pytest.mark.parametrize("changed", [SHORT[2], nightly(())], ids=["runs", "whole"])
def test_analysis_notebook_runs(tmp_path: Path, changed: tuple[str, ...]) -> None:
    printed = process("execute", NAMES[3], tmp_path, *changed, optimised=not changed)
    assert re.search(r"95% interval -?[\d.]+ to -?[\d.]+\npermutation test: p = [\d.]+\n", printed), printed


@pytest.mark.nightly
def test_two_policies_play_a_game_that_a_notebook_defines(tmp_path: Path) -> None:
    printed = process("execute", NAMES[4], tmp_path, *SHORT[3])
    assert "policy runner: 8,192 env steps" in printed and "turns, deaths and masks" in printed
    assert re.search(r"\{'chaser': -?[\d.]+, 'runner': -?[\d.]+\} in \d+ steps", printed), printed


@pytest.mark.slow
@pytest.mark.parametrize("changed", [SHORT[4], nightly(())], ids=["runs", "learns"])
def test_a_run_in_the_background_is_watched_stopped_changed_and_started_again(
    tmp_path: Path, changed: tuple[str, ...]
) -> None:
    printed = process("execute", NAMES[6], tmp_path, *changed, optimised=not changed)
    assert re.search(
        r"BackgroundRun\(small_dqn/\S+: running, .*\n.*interrupted: [\d,]+ env steps\n", printed, re.DOTALL
    )
    assert float(re.search(r"reached \w+ after .* fresh seeds: ([\d.]+)", printed).group(1)) > (
        0.0 if changed else 150.0
    )
    first, second = sorted((tmp_path / "runs" / "small_dqn").iterdir())
    assert {path.name for path in (first / "source").glob("*.py")} == {p.name for p in (second / "source").glob("*.py")}


@pytest.mark.nightly
@pytest.mark.parametrize("changed", [SHORT[5], ()], ids=["runs", "learns"])
def test_an_environment_in_jax_is_checked_and_trained_fused_and_in_actors(
    tmp_path: Path, changed: tuple[str, ...]
) -> None:
    (own,) = (cell for cell in code(read(NAMES[7])) if "class Park" in cell)
    assert len(own[own.index("class Park") :].splitlines()) <= 30
    printed = process("execute", NAMES[7], tmp_path, *changed, optimised=not changed)
    found = re.findall(r"(\w+): return (-?[\d.]+) after ([\d,]+) env steps", printed)
    assert [name for name, *_ in found] == ["fused", "inline"] and found[0][2] == found[1][2], printed
    assert changed or all(float(score) > 70.0 for _, score, _ in found), printed


@pytest.mark.nightly
def test_trained_pair_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    printed = process("execute", NAMES[5], tmp_path, "100_000", "5_184", optimised=True)
    assert "5,184 env steps" in printed
    found = re.findall(r"(\w+) seeker: sees the hider in (\d+)% of the steps, median distance ([\d.]+) m", printed)
    assert [name for name, *_ in found] == ["learned", "random", "turning"] and int(found[2][1]) > 90, printed
