"""The bits of trained params: what changes a hash, and the comparison of two commits."""

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


@pytest.mark.nightly
def test_a_case_is_compared_with_a_commit_and_with_a_file(tmp_path, capsys):
    file = tmp_path / "golden.json"
    assert golden.main(["HEAD", "HEAD", "--cases", "ppo_masked", "--steps", "3000", "--json", str(file)]) == 0
    kept = json.loads(file.read_text())
    kept["hashes"]["ppo_masked seed 0"]["before"] = "of other params"
    file.write_text(json.dumps(kept))
    assert golden.main([str(file), "HEAD", "--cases", "ppo_masked"]) == 1
    assert "DIFFERS" in capsys.readouterr().out
