"""The arithmetic of levers on known numbers, the emulated ring against its formula, and a lever from the command line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import tuning
from benchmarks.srl import ring
from benchmarks.srl.blocks import Arm, Block, Record, alternate, paired_ratio

ROOT = Path(__file__).parents[2]


def record_of(**arms: list[float]) -> Record:
    """A record whose arms had these figures, round by round."""
    blocks = [Block(arm, n, {"speed": v}, 1.0, 0.0) for arm, values in arms.items() for n, v in enumerate(values)]
    return Record("some", "speed", {}, blocks)


def test_arms_alternate_in_both_orders():
    order: list[str] = []
    arms = [Arm(name, lambda n=name: order.append(n) or {"speed": 1.0}) for name in "abc"]
    record = Record("some", "speed", {})
    alternate(record, arms, 3, show=False)
    assert "".join(order) == "abccbaabc"
    assert [(b.arm, b.round) for b in record.blocks][3:6] == [("c", 1), ("b", 1), ("a", 1)]


def test_ratios_are_of_pairs():
    """A machine that halves its speed from round to round does not affect the ratio of two arms."""
    found = paired_ratio(record_of(a=[400, 200, 100], b=[200, 100, 50]), "a", "b")
    assert (found["median"], found["low"], found["high"], found["pairs"]) == (2.0, 2.0, 2.0, 3)
    wide = paired_ratio(record_of(a=[1.0, 2.0, 3.0, 4.0, 5.0], b=[1.0] * 5), "a", "b")
    assert wide["median"] == 3.0
    assert wide["low"] < 3.0 < wide["high"]
    missing = paired_ratio(record_of(a=[1.0, 2.0], b=[1.0]), "a", "b")
    assert missing["pairs"] == 1
    assert math.isnan(paired_ratio(record_of(a=[1.0]), "a", "z")["median"])


def test_the_formula_has_the_published_plateaus():
    for ratio, published in ring.PUBLISHED.items():
        assert ring.plateau(ratio, 16) == pytest.approx(published)
        assert ring.plateau(ratio, 1) == 1
    assert [ring.plateau(2.7, n) for n in (2, 3, 4)] == [2, 3, 3.7]


@pytest.mark.nightly
@pytest.mark.parametrize("ratio", [2.7, 0.5])
def test_the_emulated_ring_reaches_its_plateau(tmp_path, ratio):
    """Sleeps take no CPU, so the plateau is visible on a busy machine too; the median of three measurements."""
    step_s = 0.02
    with ring.EmulatedAccelerator(tmp_path, ratio * step_s) as accelerator:
        speeds = [[ring.measure_ring(accelerator, n, step_s, 0.8)["env_steps_per_s"] for n in (1, 8)] for _ in range(3)]
    reached = sorted(many / one for one, many in speeds)[1]
    assert reached == pytest.approx(ring.plateau(ratio, 8), rel=0.08), speeds


def test_regret_and_agreement():
    final = record_of(
        **{"default": [50, 50, 50], "grid a": [100, 90, 110], "grid b": [80, 99, 80], "tuned": [96, 96, 97]}
    )
    final.main = "speed"
    record = Record("tuning", "speed", {})
    lines = tuning.conclude(record, final, ["tuned", "grid b"], ["grid a", "grid b"], "default")
    assert record.summary["best_of_grid"] == "grid a"
    assert record.summary["regret"] == [0.04, 0.2]
    assert record.summary["agreement"] == round(80 / 96, 4)
    assert record.summary["over_default"][0]["median"] == pytest.approx(1.92)
    assert "regret 4.0%" in lines[1]


def nightly(*words):
    return pytest.param(list(words), marks=pytest.mark.nightly)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["ring", "--largest", "2", "--t-env-ms", "2", "--seconds", "0.1"],
        nightly("batching", "--largest", "2", "--seconds", "0.2", "--rounds", "1"),
        nightly("slots", "--widest", "2", "--seconds", "0.3", "--rounds", "2"),
        nightly("transports", "--experiment", "ppo_cartpole", "--seconds", "0.5", "--rounds", "1"),
    ],
)
def test_a_lever_as_a_command(tmp_path, words):
    output = tmp_path / "lever.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "levers.py"), *words, "--output", str(output)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    kept = json.loads(output.read_text())
    assert kept["lever"] == words[0]
    assert kept["summary"]
    assert len({block["arm"] for block in kept["blocks"]}) >= 2
    assert all(
        value > 0 for block in kept["blocks"] for name, value in block["figures"].items() if name == kept["main"]
    )
