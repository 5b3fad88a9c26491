"""The bits of trained params: what changes a hash, and the output of the comparison."""

import json

import numpy as np
import pytest

from benchmarks import golden


def test_hash_covers_values_shapes_and_types_but_not_names():
    tree = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(2, np.float32)}
    same = {"y": tree["a"], "x": tree["b"]}
    assert golden.digest(tree) == golden.digest(same)
    for changed in (np.nextafter(tree["a"], 9), tree["a"].reshape(2, 3), tree["a"].astype(np.float64)):
        assert golden.digest(tree | {"a": changed}) != golden.digest(tree)


def test_differences_name_case_and_seed():
    before = {"ppo": {"0": "x", "1": "y"}}
    assert golden.differences(before, before) == []
    assert golden.differences(before, {"ppo": {"0": "x", "1": "z"}, "td3": {"0": "q"}}) == ["ppo seed 1", "td3 seed 0"]


@pytest.mark.nightly
def test_recorded_case_is_compared(tmp_path, capsys):
    file = tmp_path / "golden.json"
    words = ["--only", "ppo_masked"]
    assert golden.main(["record", "--out", str(file), "--steps", "3000", "--seeds", "0", *words]) == 0
    assert golden.main(["compare", str(file), *words]) == 0
    kept = json.loads(file.read_text())
    kept["hashes"]["ppo_masked"]["0"] = "of other params"
    file.write_text(json.dumps(kept))
    assert golden.main(["compare", str(file)]) == 1
    assert "DIFFERS: ppo_masked seed 0" in capsys.readouterr().out
