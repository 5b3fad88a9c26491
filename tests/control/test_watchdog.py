"""Reports of the watchdog: which workers are asked or signalled, in bounded time, number and size."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jsrl.control import watchdog as watchdog_module
from jsrl.control.processes.processes import LocalHandle, catches, crash_lines
from jsrl.control.resume import allowed_changes
from jsrl.control.rules import restarts
from jsrl.control.supervised import SupervisedWorker
from jsrl.control.supervision import Life
from jsrl.control.watchdog import KEPT, Watchdog
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import AgentReference, Experiment, PolicyConfig, SupervisionConfig, VideoConfig
from jsrl.graph.launcher import STOPPED
from jsrl.references.reference import from_json, to_json
from jsrl.services.runs.control_bodies import Crash, Report, Stacks
from jsrl.services.runs.process import all_stacks
from jsrl.services.runs.values import Exit
from jsrl.workers.jobs import Job, JobPlace
from jsrl.workers.kinds import find_kind, value_of
from tests.patience import stretched

SLEEPER = """
import sys, threading, time
from pathlib import Path
from jsrl.workers.process import leave_traces
if sys.argv[2] == "catches":
    leave_traces(Path(sys.argv[1]))
threading.Thread(target=time.sleep, args=(60,), name="spare", daemon=True).start()
print("up", flush=True)
def nap():
    time.sleep(60)
nap()
"""


def record_in(folder: Path) -> SimpleNamespace:
    """Return the part of a record that reports use."""
    (folder / "logs").mkdir(exist_ok=True)
    run, hub = SimpleNamespace(path=folder, name="tiny/first"), SimpleNamespace(latest={"learner/queue_depth": 3.0})
    display = SimpleNamespace(told=[], message=lambda text, level="info": display.told.append((text, level)))
    experiment = SimpleNamespace(deadlines=SimpleNamespace(still_s=10.0))
    told = {
        "elapsed_s": 12.5,
        "run": SimpleNamespace(updates=7, env_steps=896),
        "read_ledgers": lambda: ["ledger: balanced"],
    }
    return SimpleNamespace(folder=run, hub=hub, display=display, experiment=experiment, **told)


def job(name: str, kind: str = "actor", **env) -> Job:
    experiment = Experiment(AgentReference("m:f"), EnvConfig(**env), restart=2)
    return Job(kind, name, 0, experiment, None, (), JobPlace("", ""))  # type: ignore[arg-type]


@pytest.fixture
def sleeper(tmp_path: Path):
    """Start a process that reacts only to SIGUSR1, and only if it `catches` it."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(how: str, name: str = "actor-0") -> SupervisedWorker:
        (tmp_path / "logs").mkdir(exist_ok=True)
        log = tmp_path / "logs" / f"{name}.log"
        log.write_text("first line\nlast line\n")
        command = [sys.executable, "-c", SLEEPER, str(tmp_path / "logs" / f"{name}.stacks"), how]
        path = os.pathsep.join(p for p in sys.path if p)
        popen = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}, start_new_session=True
        )
        begun.append(popen)
        assert popen.stdout is not None and popen.stdout.readline() == b"up\n"
        return SupervisedWorker(job(name), LocalHandle(popen, log, name), Life(name, stage="ready"))

    yield start
    for popen in begun:
        popen.kill()
        popen.communicate()


@pytest.mark.slow
def test_silent_worker_dumps_stacks_unless_that_would_kill_it(tmp_path: Path, sleeper) -> None:
    tough, tender = sleeper("catches"), sleeper("dies of it", "actor-1")
    assert catches(tough.handle.pid, signal.SIGUSR1) and not catches(tender.handle.pid, signal.SIGUSR1)
    asked: list[str] = []
    processes = {p.name: p for p in (tough, tender)}
    watchdog = Watchdog(record_in(tmp_path), processes, lambda p: asked.append(p.name), time.sleep)
    begun_s = time.monotonic()
    seen = watchdog.look(tender)
    assert time.monotonic() - begun_s < stretched(2.0)  # one second on an idle machine
    assert asked == ["actor-1", "actor-0"] and seen.index("== actor-1") < seen.index("== actor-0")
    stacks = seen[seen.index("== actor-0") :]
    assert "in nap" in stacks and stacks.count("hread 0x") == 2 and "last line" in stacks
    assert "answered neither on the control connection nor to SIGUSR1" in seen and tender.alive
    watchdog.look(tender)
    assert asked == ["actor-1", "actor-0", "actor-1"]  # the other was asked a moment ago
    watchdog.close()
    assert not list((tmp_path / "logs").glob("*.stacks"))


@pytest.mark.slow
def test_stopped_process_is_not_signalled_or_waited_for(tmp_path: Path, sleeper, monkeypatch) -> None:
    process = sleeper("catches")
    process.handle.pause()
    while process.handle.usage().state != STOPPED:
        time.sleep(0.01)
    asked, waits = list[str](), list[float]()
    monkeypatch.setattr(LocalHandle, "stacks", lambda handle, timeout_s: waits.append(timeout_s) or "")
    watchdog = Watchdog(record_in(tmp_path), {"actor-0": process}, lambda p: asked.append(p.name), waits.append)
    seen = watchdog.look(process)
    assert not asked and not waits
    assert ", stopped" in seen and "until it is continued (SIGCONT)" in seen
    process.handle.resume()
    while process.handle.usage().state == STOPPED:
        time.sleep(0.01)
    os.kill(process.handle.pid, signal.SIGTERM)
    assert process.handle.wait(5.0) and process.handle.usage() is None
    assert "killed by signal 15 (SIGTERM)" in watchdog.look() and "the process has ended" in watchdog.look()


@pytest.mark.slow
def test_worker_report_is_shown(tmp_path: Path, sleeper) -> None:
    process = sleeper("catches")
    metrics = {"actor/wait_block_share": 0.25, "actor/return_mean": 3.0}
    process.receive(Report("actor-0", 0, metrics, {"trajectories": 17}), time.monotonic())

    def answer(_: float) -> None:
        process.receive(Stacks("actor-0", 0, "thread MainThread:\n  in its_own_words"), time.monotonic())

    seen = Watchdog(record_in(tmp_path), {"actor-0": process}, lambda _: None, answer).look()
    assert "actor/wait_block_share 0.25; trajectories 17" in seen and "return_mean" not in seen
    assert "in its_own_words" in seen and "in nap" not in seen


def test_a_fault_before_the_first_worker_has_a_report_too(tmp_path: Path) -> None:
    watchdog = Watchdog(record_in(tmp_path), {}, lambda _: None, lambda _: None)
    assert watchdog.look() == ""
    assert watchdog.write("controller", "a fault", "").endswith("0001-controller.txt")


@pytest.mark.slow
def test_with_many_workers_the_first_of_each_kind_are_inspected(tmp_path: Path) -> None:
    handle = SimpleNamespace(
        alive=False, exit=Exit(-9, "killed"), where="", log="", tail=lambda _: "", usage=lambda: None
    )
    lives = {
        f"actor-{n}": SupervisedWorker(dataclasses.replace(job(f"actor-{n}"), index=n), handle) for n in range(999)
    }
    lives["learner"] = SupervisedWorker(job("learner", "learner"), handle)
    seen = Watchdog(record_in(tmp_path), lives, lambda _: None, lambda _: None).look(lives["actor-700"])
    assert seen.startswith("== actor-700:") and "== learner:" in seen and "== actor-0:" in seen
    assert "== actor-99:" not in seen and "(950 other workers were not looked at.)" in seen


def test_when_many_die_at_once_only_the_first_report_has_all_workers(tmp_path: Path) -> None:
    tails: list[int] = []
    handle = SimpleNamespace(
        alive=False, exit=Exit(-9, "killed"), where="", log="", tail=lambda n: str(tails.append(n)), usage=lambda: None
    )
    workers = {f"actor-{n}": SupervisedWorker(job(f"actor-{n}"), handle) for n in range(20)}
    watchdog = Watchdog(record_in(tmp_path), workers, lambda _: None, lambda _: None)
    seen = [watchdog.look(worker) for worker in workers.values()]
    assert all(f"== actor-{n}:" in seen[0] for n in range(20))
    assert seen[7].startswith("== actor-7:") and "earlier report" in seen[7] and len(tails) == 20 + 19
    assert "== actor-3:" in watchdog.look()  # asked for by the user: all workers


def test_looks_at_many_workers_take_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of other hosts may answer slowly, and a thousand ledgers are read slowly: many deaths must not wait for that."""
    clock, tails, read = [100.0], list[float](), list[float]()
    monkeypatch.setattr(watchdog_module, "time", SimpleNamespace(monotonic=lambda: clock[0], strftime=time.strftime))

    def takes(seconds: float, calls: list[float]) -> list[str]:
        calls.append(clock[0])
        clock[0] += seconds
        return []

    handle = SimpleNamespace(alive=False, exit=Exit(-9, "killed"), where="", log="", usage=lambda: None)
    handle.tail = lambda lines: "".join(takes(0.1, tails))
    workers = {f"actor-{n}": SupervisedWorker(job(f"actor-{n}"), handle) for n in range(20)}
    record = record_in(tmp_path)
    record.read_ledgers = lambda: takes(1.0, read)
    watchdog = Watchdog(record, workers, lambda _: None, lambda _: None)
    for worker in workers.values():  # each dies 1 s after the last one
        clock[0] += 1.0
        watchdog.write(worker.name, "died", watchdog.look(worker))
    assert clock[0] < 130.0 and len(read) == 3 and len(tails) < 60


def test_reports_are_numbered_and_the_newest_are_kept(tmp_path: Path) -> None:
    for _ in range(2):  # a resumed run continues the numbers
        watchdog = Watchdog(record_in(tmp_path), {}, lambda _: None, lambda _: None)
        told = [watchdog.write("request", f"noticed {number}", "seen") for number in range(KEPT // 2 + 3)]
    names = sorted(path.name for path in (tmp_path / "watchdog").iterdir())
    assert len(names) == KEPT and names[-1] == f"{KEPT + 6:04d}-request.txt" and names[-1] in told[-1]
    text = (tmp_path / "watchdog" / names[-1]).read_text()
    for part in (
        f"noticed {KEPT // 2 + 2}",
        "updates 7, env steps 896",
        "learner/queue_depth 3",
        "in test_reports_are",
    ):
        assert part in text


def test_unwritable_report_is_not_a_second_fault(tmp_path: Path) -> None:
    (tmp_path / "watchdog").write_text("a file where the folder should be")
    watchdog = Watchdog(record_in(tmp_path), {}, lambda _: None, lambda _: None)
    assert watchdog.write("request", "", "").startswith("no watchdog report: ")


def test_stacks_are_of_every_thread_and_of_bounded_size() -> None:
    def deep(levels: int) -> str:
        return deep(levels - 1) if levels else all_stacks()

    text = deep(300)
    assert text.startswith("thread MainThread:") and "in all_stacks" in text
    assert text.count("in deep") <= 60


# -- ends of environments ---------------------------------------------------------------------------------------------


def test_stop_policy_reacts_only_to_environment_faults() -> None:
    own = Crash("actor-0", 0, "EnvironmentFault", "", "")
    other = Crash("actor-0", 0, "StreamClosed", "", "")
    cases = [
        (70, own, True),
        (1, other, False),
        (3, None, True),
        (-11, None, True),
        (-9, None, False),
        (0, None, False),
    ]
    for status, crash, ends in cases:
        error = crash.error if crash else None
        actor, evaluator = find_kind("actor"), find_kind("evaluator")
        assert value_of(actor.lifecycle.may_restart, job("actor-0", on_fault="stop"), status, error) is not ends
        assert value_of(actor.lifecycle.may_restart, job("actor-0"), status, error)
        assert value_of(evaluator.lifecycle.may_restart, job("evaluator", "evaluator", on_fault="stop"), status, error)


def test_restart_actor_has_its_own_restart_budget() -> None:
    def limit(kind: str = "actor", own: int | None = None, restart: int = 0) -> int:
        e = Experiment(
            AgentReference("m:f"),
            EnvConfig(on_fault="restart-actor", fault_limit=4),
            restart=restart,
            supervision=SupervisionConfig(restarts={} if own is None else {"actor": own}),
        )
        return restarts(e, find_kind(kind))

    assert (limit(), limit("learner"), limit(own=1), limit(restart=6)) == (4, 0, 1, 6)


def test_policies_may_change_on_resume_and_environments_may_not() -> None:
    old = Experiment(AgentReference("m:f"))
    new = Experiment(AgentReference("m:f"), EnvConfig(on_fault="restart-env", fault_limit=3))
    assert allowed_changes(old, new) == [
        "changed: --env.on-fault auto -> restart-env",
        "changed: --env.fault-limit 10 -> 3",
    ]
    with pytest.raises(ConfigError, match=r"--env\.id cannot change"):
        allowed_changes(old, Experiment(AgentReference("m:f"), EnvConfig("Acrobot-v1")))


def test_goals_and_placement_of_policies_may_change_on_resume_and_their_seats_may_not() -> None:
    one, two = (PolicyConfig(AgentReference("m:f"), seats=seat) for seat in ("a", "b"))
    old = Experiment(policies={"one": one, "two": two})
    new = dataclasses.replace(two, placement="inline", stop_at_return=0.9, against=("initial",))
    lines = allowed_changes(old, dataclasses.replace(old, policies={"one": one, "two": new}, compress=True))
    names = [f"--policies.two.{name}" for name in ("against", "placement", "stop-at-return")]
    assert [line.split()[1] for line in lines] == ["--compress", *names]
    with pytest.raises(ConfigError, match=r"--policies\.two\.seats cannot change on resume \(b -> c\)"):
        allowed_changes(
            old, dataclasses.replace(old, policies={"one": one, "two": dataclasses.replace(two, seats="c")})
        )


def test_arrays_partials_and_nan_in_options_are_unchanged_on_resume() -> None:
    values = {"map": np.arange(4), "speed": math.nan, "scale": functools.partial(round, ndigits=2)}
    e = Experiment(AgentReference("m:f", values), EnvConfig(kwargs=values))
    assert allowed_changes(from_json(to_json(e)), e) == []
    changed = dataclasses.replace(e, env=EnvConfig(kwargs=values | {"map": np.arange(5)}))
    assert [line.split()[1] for line in allowed_changes(e, changed)] == ["--env.kwargs"]


def test_recorder_may_change_on_resume_and_the_recording_that_is_learned_from_may_not() -> None:
    old = Experiment(AgentReference("m:f"), recording="a")
    new = dataclasses.replace(old, record_limit_mb=5, video=VideoConfig(fps=7))
    assert [line.split()[1] for line in allowed_changes(old, new)] == ["--record-limit-mb", "--video.fps"]
    with pytest.raises(ConfigError, match=r"--recording cannot change on resume \(a -> b\)"):
        allowed_changes(old, dataclasses.replace(old, recording="b"))


def test_crash_log_shows_the_crashed_thread() -> None:
    log = ["Fatal Python error: Aborted", "", "an hour of printing", "Fatal Python error: Segmentation fault", ""]
    log += ["Thread 0x01 (most recent call first):", "  File a", "", "Current thread 0x02 (most recent call first):"]
    log += ["  File b", "  File c", "", "Extension modules: numpy"]
    assert crash_lines(log) == [log[3], *log[8:11]]
    assert crash_lines(log[:3]) == [] and crash_lines([]) == []


def test_stall_is_reported_once_and_again_only_if_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    facts = {
        "exit": Exit(0, ""),
        "usage": lambda: None,
        "tail": lambda lines: "",
        "where": "",
        "log": "",
        "alive": False,
    }
    gone = SimpleNamespace(**facts)
    workers = {name: SupervisedWorker(job(name), gone, Life(name, stage="ready")) for name in ("actor-0", "actor-1")}  # type: ignore[arg-type]
    record = record_in(tmp_path)
    watchdog = Watchdog(record, workers, lambda _: None, lambda _: None)

    def told(seconds: float, **counters: int) -> int:
        """Return how often something was reported by then; `counters`: the first report of actor-0."""
        clock[0] += seconds
        workers["actor-0"].receive(Report("actor-0", 0, {}, counters), clock[0])
        watchdog.report_standstill()
        return len(record.display.told)

    assert [told(0.0, env_steps=8), told(9.0), told(9.0, env_steps=16), told(9.0)] == [0, 0, 0, 0]
    assert [told(2.0), told(2.0), told(5.0), told(3.0)] == [1, 1, 1, 2]  # after 11 and 21 s of the same stall
    text, level = record.display.told[0]
    assert "nothing was stepped, answered or trained for 11 s" in text and "0001-standstill.txt" in text
    assert level == "warning" and "== actor-1" in (tmp_path / "watchdog" / "0001-standstill.txt").read_text()
    workers["actor-1"].life.stage = "compiling"  # a worker that is not ready yet does not count as stalled
    assert told(1000.0) == 2
