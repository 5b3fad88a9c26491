"""The start and the end of a worker's process."""

import gc
import os
import signal
import subprocess
import sys
import time
from queue import Queue
from threading import Event
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from jsrl.control.processes.processes import Leader
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.services.runs.control_bodies import Bye, Crash
from jsrl.services.runs.names import FileNames
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import Kind, build_worker
from jsrl.workers.process import no_collections, run
from tests.cluster.agents import await_that

PARENT = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
WORKER = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from jsrl.services.runs.control import ControlClient
from jsrl.workers.process import run
from jsrl.linux import die_with_parent

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


def worker(**parts: Any) -> Any:
    """Return a worker whose given parts are as a beginner may write them; its metrics are a scripted dict."""
    meter = SimpleNamespace(begin=lambda: None, close=lambda: None)
    usual = {"name": "mine", "meter": meter, "setup": lambda: None, "step": lambda: 1, "report": lambda: ({}, {})}
    return SimpleNamespace(**usual | {"command": print, "close": dict} | parts)


def last_message(made: Any) -> Any:
    """Return the last message of a worker's process: it is stopped in its first step."""
    sent, stop = list[Any](), Event()

    def send(message: Any, **facts: Any) -> None:
        sent.append(message(worker="mine", incarnation=0, **facts))

    control = SimpleNamespace(send=send, stop=stop, commands=Queue(), stage=print, left=print, close=print, memory=None)
    control.progress, control.slowness, control.stuck_s, control.outlives_s, control.entering = 0, 1.0, None, 0.0, print
    step = made.step
    made.step = lambda: (stop.set(), step())[1]
    run(lambda reporter: made, control)  # type: ignore[arg-type]
    return sent[-1]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"step": lambda: None}, "step of mine returned None; return the amount of work done, 0 for none"),
        ({"report": lambda: {"mine/a": 1.0, "mine/b": 2.0}}, "return two dicts, metrics and facts"),
        ({"report": lambda: ({"mine/a": "fast"}, {})}, "the metric mine/a of mine is 'fast'; metrics are numbers"),
    ],
)
def test_invalid_values_of_a_workers_methods_are_named(parts: dict[str, Any], words: str) -> None:
    crash = last_message(worker(**parts))
    assert isinstance(crash, Crash) and crash.error == "ConfigError" and words in crash.text


def test_the_log_has_the_traceback_and_the_controller_that_of_the_users_code(capfd) -> None:
    def raises(cause: Exception | None) -> int:
        raise EnvironmentFault("the reward is NaN") from cause

    for cause, trace in ((None, ""), (ZeroDivisionError("mine"), "ZeroDivisionError: mine\n")):
        assert last_message(worker(step=lambda cause=cause: raises(cause))).trace == trace
        log = capfd.readouterr().err
        assert "Traceback" in log and "in raises" in log and "the reward is NaN" in log


def test_close_may_return_nothing() -> None:
    bye = last_message(worker(close=lambda: None))
    assert isinstance(bye, Bye) and bye.facts == {}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (SimpleNamespace(name="mine", setup=print), "MADE built mine without meter, step, report, command, close"),
        (None, "without name, meter, setup"),
        (worker(name="counter"), "built mine with the name 'counter'; set name to job.name"),
    ],
)
def test_worker_without_a_part_is_refused(made: Any, words: str, monkeypatch) -> None:
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "MADE", lambda job, reporter: made, raising=False)
    monkeypatch.setattr(here, "MINE", Kind("mine", "mines", f"{__name__}:MADE"), raising=False)
    job: Any = SimpleNamespace(kind=f"{__name__}:MINE", name="mine")
    with pytest.raises(ConfigError, match=words):
        build_worker(job, None)


def test_serial_worker_does_not_wait_for_a_stream_that_no_setup_bound(tmp_path) -> None:
    job: Any = SimpleNamespace(in_process=True, names=FileNames(tmp_path), name="actor-0")
    with pytest.raises(ConfigError, match=r"actor-0 cannot connect to samples.count .* did not bind the stream"):
        Job.find(job, "samples.count")


FORKING = """
import os, time
from jsrl.linux import FORKS

def fork():
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    print(pid, flush=True)

with FORKS:
    fork()
fork()  # of the user's own program, after the run
"""


def test_what_an_environment_forks_ends_with_its_process() -> None:
    ended = subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE)
    assert ended.stdout is not None
    during, after = (int(ended.stdout.readline()) for _ in range(2))
    try:
        assert ended.wait(30) == 0
        until_s = time.monotonic() + 10.0
        while psutil.pid_exists(during) and psutil.Process(during).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert psutil.pid_exists(after)
    finally:
        os.kill(after, signal.SIGKILL)
        ended.stdout.close()


def test_what_a_worker_has_started_ends_with_it() -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    worker = Leader([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert worker.stdout is not None
    child = psutil.Process(int(worker.stdout.readline()))
    assert worker.wait(30.0) == 0 and worker.poll() == 0
    child.wait(10.0)
    worker.stdout.close()
    with Leader(["sleep", "60"], start_new_session=True) as sleeper:
        with pytest.raises(subprocess.TimeoutExpired):
            sleeper.wait(0.0)
        sleeper.kill()
