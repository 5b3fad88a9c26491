"""The start and the end of a worker's process."""

import gc
import subprocess
import sys

import pytest

from jsrl.workers.process import no_collections
from tests.launch.hosts.agents import await_that

PARENT = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
WORKER = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from jsrl.runs.control import ControlClient
from jsrl.workers.process import die_with_parent, run

parent, folder = os.getppid(), Path(sys.argv[1])
die_with_parent(parent)
control = ControlClient(f"ipc://{folder}/nowhere", "learner", 0, parent_pid=parent)
control.stop.set()

def close():
    (folder / "closing").touch()
    while os.getppid() == parent or sys.argv[2] != "alone":
        time.sleep(0.01)
    (folder / "saved").touch()

def build(reporter):
    control.outlives_s, control.holds_run = 20.0, lambda: sys.argv[2] == "alone"
    meter = SimpleNamespace(begin=lambda: None, close=lambda: None)
    return SimpleNamespace(meter=meter, setup=lambda: None, close=close, report=lambda: ({}, {}))

sys.exit(run(build, control))
"""


def test_garbage_collection_is_off_while_a_worker_is_built_and_objects_are_frozen() -> None:
    try:
        with no_collections():
            assert not gc.isenabled()
            made = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() > len(made)
    finally:
        gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["alone", "with another controller"])
def test_learner_saves_after_its_controller_was_killed_unless_another_continues_the_run(who: str, tmp_path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "-c", WORKER, str(tmp_path), who], stdout=subprocess.PIPE)
    await_that((tmp_path / "closing").exists)
    parent.kill()
    assert parent.stdout is not None
    parent.stdout.read()  # until the worker has ended, too
    parent.wait()
    parent.stdout.close()
    assert (tmp_path / "saved").exists() == (who == "alone")
