"""One update on the devices of several processes (jax.distributed), each with its own share of the batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jsrl.workers.attached.ranks import held_port
from tests.fake_devices import STRICT, fake_devices
from tests.marks import nightly

SCRIPT = Path(__file__).parent / "process_cases.py"


@pytest.mark.slow
@pytest.mark.parametrize("updates", [4, nightly(50)])
def test_two_processes_with_two_devices_each(updates: int) -> None:
    held, place = held_port("tcp://127.0.0.1:0")
    environment = fake_devices(2) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    commands = [[sys.executable, *STRICT, str(SCRIPT), str(updates), number, place] for number in "01"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [subprocess.Popen(command, env=environment, **output) for command in commands]
    try:
        for process in processes:
            told, _ = process.communicate(timeout=180)
            assert process.returncode == 0 and "passed" in told, told[-4000:]
    finally:
        held.close()
        for process in processes:
            process.kill()
