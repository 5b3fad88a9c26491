"""Signals that end a run, and deadlines in the launching process."""

from __future__ import annotations

import _imp
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import import_modules
from jsrl.errors import EnvironmentFault
from jsrl.graph import schemas
from jsrl.graph.schemas import find_spec
from jsrl.interrupts import deadline, interrupts, remembered

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def as_in_a_shell() -> Iterator[None]:
    """Set signals as a shell does, also where the tests run under nohup or in the background."""
    before = [signal.getsignal(number) for number in SIGNALS]
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def test_first_interrupt_requests_second_raises_third_is_ignored():
    asked = []
    before = [signal.getsignal(number) for number in SIGNALS]
    with interrupts(lambda: asked.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [1]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)
    assert asked == [1]
    assert before == [signal.getsignal(number) for number in SIGNALS]


def test_slurm_may_repeat_its_sigterm(monkeypatch: pytest.MonkeyPatch):
    """At the end of GraceTime it comes again, while the snapshot is being written."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    asked = []
    with interrupts(lambda: asked.append(1)):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.0)
    assert asked == [1]


class Dropping:
    """A destructor in which a signal arrives: Python prints the KeyboardInterrupt and continues."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("early", [True, False])
def test_interrupt_dropped_by_python_before_the_start_still_ends_the_run(early):
    asked = []
    with remembered():
        if early:
            Dropping()
        with interrupts(lambda: asked.append(1)):
            assert asked == [1] * early
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def ended() -> None:
    """Act like the first Ctrl-C of a serial run that has not begun."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("handled", [remembered, lambda: interrupts(ended)], ids=["before a run", "in a run"])
def test_interrupt_waits_until_a_native_module_is_loaded(handled, monkeypatch):
    loaded = []

    def load(module: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.0)
        loaded.append(module)

    monkeypatch.setattr(_imp, "exec_dynamic", load)
    with pytest.raises(KeyboardInterrupt), handled():
        ExtensionFileLoader("native", "native.so").exec_module("native")
        time.sleep(10.0)
    assert loaded == ["native"]


def test_inner_remembered_adds_the_other_signals():
    with remembered(ends=()):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt), remembered():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1.0)
        asked = []
        with interrupts(lambda: asked.append(1)):
            assert asked == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_inner_remembered_may_end_in_a_run():
    """As when the first of several runs in one program ends."""
    asked = []
    with remembered(), contextlib.ExitStack() as inner:
        inner.enter_context(remembered())
        with interrupts(lambda: asked.append(1)):
            inner.close()
            os.kill(os.getpid(), signal.SIGINT)
            assert asked == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_frees_resources_where_ctrl_c_is_ignored():
    """As in a background job of a script: `jsrl run ... & wait`, in the script of a Slurm job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with remembered(ends=()), pytest.raises(KeyboardInterrupt), remembered():
        os.kill(os.getpid(), signal.SIGINT)  # stays ignored
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_IGN, signal.SIG_DFL, signal.SIG_DFL]


def test_shutdown_is_not_interrupted():
    with interrupts(lambda: pytest.fail("asked")) as signals:
        signals.ignore()
        for number in SIGNALS:
            os.kill(os.getpid(), number)


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts(lambda: pytest.fail("asked")):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_do_not_change_signal_handlers():
    seen = []

    def call() -> None:
        with interrupts(lambda: None), deadline(0.01, TimeoutError()):
            seen.append(signal.getsignal(signal.SIGTERM))
            time.sleep(0.05)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.fixture
def no_alarm():
    """Disable pytest-timeout's own alarm."""
    remaining_s, _ = signal.setitimer(signal.ITIMER_REAL, 0.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, remaining_s)


def test_deadline_raises_inside_the_hanging_call(no_alarm):
    before = signal.getsignal(signal.SIGALRM)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="too late"), deadline(0.1, TimeoutError("too late")):
        time.sleep(10.0)
    assert time.monotonic() - start < 5.0
    with deadline(float("inf"), TimeoutError("too late")):
        pass
    with deadline(60.0, TimeoutError("too late")):
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0 and signal.getsignal(signal.SIGALRM) is before


def test_an_environment_that_hangs_in_its_first_reset_is_told_by_the_time_limit_alone(no_alarm):
    env = EnvConfig("pettingzoo:tests.envs.seat_games:Raises", {"fault": "hangs"})
    import_modules(env)
    experiment: Any = SimpleNamespace(env=env, actor=SimpleNamespace(step_deadline_s=0.3))
    with pytest.raises(
        EnvironmentFault, match=r"^environment '.*:Raises' was not made .*raise --actor\.step-deadline-s\.$"
    ):
        find_spec(experiment)


def test_a_slow_environment_is_named_while_jsrl_waits_for_it(monkeypatch):
    shown, written = threading.Event(), []
    stream = SimpleNamespace(write=written.append, flush=shown.set)
    monkeypatch.setattr(schemas, "SILENT_S", 0.0)
    monkeypatch.setattr(schemas, "make_spec", lambda env: shown.wait(60.0))
    monkeypatch.setattr(schemas.sys, "stderr", stream)
    experiment: Any = SimpleNamespace(env=EnvConfig("slow"), actor=SimpleNamespace(step_deadline_s=90.0))
    assert find_spec(experiment)
    assert written == ["waiting for environment 'slow' to be made, since 0 s; the limit is 90 s\n"]


def test_ctrl_c_while_hooks_are_awaited_keeps_the_result(monkeypatch):
    from types import SimpleNamespace

    from jsrl.control import run

    def finish():
        raise KeyboardInterrupt

    plan = SimpleNamespace(experiment=SimpleNamespace(where=SimpleNamespace(processes=False)))
    record = SimpleNamespace(begin=lambda: None, finish=finish)
    monkeypatch.setattr(run, "part_of_run", lambda name: lambda *_: SimpleNamespace(run=lambda: "result"))
    assert run.train(plan, record, None) == "result"
