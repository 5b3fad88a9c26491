"""The measurement of accelerators: refusals, and a part that takes too long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import measure as gpu


def test_a_part_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    part = gpu.Part("sleep", ("-c", "import time; time.sleep(600)"))
    assert gpu.measure(part, 1.0, tmp_path) == "stopped after 1 s: the time limit was reached"
    assert gpu.measure(gpu.Part("bad", ("-c", "raise SystemExit(3)")), 60.0, tmp_path).startswith(
        "failed with status 3"
    )


@pytest.mark.slow
def test_every_part_is_a_command_and_whole_runs_get_the_options(tmp_path: Path) -> None:
    size = gpu.Size(tmp_path, "no_such_experiment", 8.0, [256], ["--num-envs", "24"], rehearse=False)
    for part in (part for parts in gpu.SETS.values() for part in parts(size)):
        assert part.words[:2] == ("-m", "jsrl") or Path(part.words[0]).is_file()
        if Path(part.words[0]).name == "levers.py":
            assert part.words[-3:] == ("--", "--num-envs", "24")
            words = [sys.executable, *part.words]
            ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
            assert "no_such_experiment" in ended.stderr and "unrecognized" not in ended.stderr
