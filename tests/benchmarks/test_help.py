"""Every benchmark and experiment script prints its help as documented, with no path set by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "world" / "all_helps.py"


@pytest.mark.slow
def test_every_command_of_benchmarks_and_experiments_prints_its_help() -> None:
    ended = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr[-2000:]
