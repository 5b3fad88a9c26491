"""The published comparison of the model with the real system: predictions follow from the committed measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scale.layouts import LAYOUTS
from benchmarks.scale.validate import Data, compare, others_of, predict

DATA = Path(__file__).parents[3] / "benchmarks" / "results" / "capacity-epyc.json"


@pytest.mark.slow
def test_published_predictions_follow_from_their_measurements() -> None:
    data = Data(DATA)
    row = next(row for row in data.content["comparison"]["rows"] if row["layout"] == "small-served-8")
    (layout,) = [layout for layout in LAYOUTS if layout.name == row["layout"]]
    others = others_of(data.content["layouts"][layout.name])
    assert predict(data, layout, others, row["core_speed"]).env_steps_per_s == pytest.approx(row["predicted"], abs=0.06)


@pytest.mark.nightly
def test_published_comparison_equals_its_measurements() -> None:
    published = json.loads(DATA.read_text())["comparison"]
    assert compare(Data(DATA)) == published
