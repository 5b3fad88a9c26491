"""The state of a run, from its folder alone: any host that sees the folder can read it.

The controller writes its identity to RUN/running, which it keeps locked, and RUN/status.json every two seconds.
A process id of another host means nothing here, so if the lock is not visible, only the age of the status counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Required, TypedDict

import msgspec

from jsrl.errors import ConfigError
from jsrl.plain_files import read_plain
from jsrl.services.runs.files import json_ready, read_json, read_object, write_atomic, write_json
from jsrl.services.runs.process import ProcessIdentity
from jsrl.transport.ledger.reconcile import LegLedger
from jsrl.transport.shared.locks import is_held

RUNNING = "running"  # the file that a run's own process keeps locked; it has the identity of the process
STATUS, RESULT, STOP = "status.json", "result.json", "stop.json"
WAITS = "waits.txt"  # what a run waits for before it begins
REVOKED = "revoked.json"  # names of hosts that may not be in the run
UNREADABLE = "its result cannot be read"  # in place of why a run ended
SILENT_S = 15.0  # silence after which a run of another host may have lost its host

StateName = Literal["starting", "running", "ending", "silent", "killed", "ended"]


@dataclass(frozen=True)
class WorkerSummary:
    """A worker's state in its controller.

    stage: `ready`, or the stage of its start. host: empty for the controller's. pid: process id there; 0: not known.
    """

    name: str
    kind: str
    stage: str
    stage_s: float = 0.0
    restarts: int = 0
    host: str = ""
    pid: int = 0


@dataclass(frozen=True)
class ControllerStatus:
    """A controller's latest status of its run.

    Attributes:
      process: the controller. begun_s: start of this process's run, in seconds since 1970.
      reason: why the run ends; empty: it goes on. env_steps_per_s: over the last half minute.
      moment: everything that a display shows (jsrl.services.metrics.display_state.DisplayState).
    """

    process: ProcessIdentity
    begun_s: float
    reason: str = ""
    env_steps_per_s: float | None = None
    workers: tuple[WorkerSummary, ...] = ()
    moment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
      name: `starting` before the first status; `silent`: on another host, and without status for SILENT_S; `killed`: its
        process ended without a result. process: that runs it, or ran it until it was killed. status: the last status.
      age_s: of the status, or of the start if there is none; by this host's clock, which may differ from the writer's.
      result: of result.json; empty: there is none. waits_for: what a starting run waits for; empty: not known.
    """

    name: StateName
    process: ProcessIdentity | None = None
    status: ControllerStatus | None = None
    age_s: float | None = None
    result: dict[str, Any] = field(default_factory=dict)
    waits_for: str = ""

    @property
    def is_running(self) -> bool:
        """Return whether a process runs it now, as far as this host can see."""
        return self.name in ("starting", "running", "ending")

    @property
    def is_over(self) -> bool:
        """Return whether no process can run it any more, not even a silent one."""
        return self.name in ("ended", "killed")


class _Score(TypedDict, total=False):
    return_mean: float
    return_ci95: float
    win_rate: float
    win_rate_low: float
    win_rate_high: float
    episodes: float
    env_steps: float


class _PolicyResult(TypedDict, total=False):
    env_steps: float
    updates: float
    evaluation: _Score
    final: _Score


class _Result(_PolicyResult, total=False):
    ended: Required[str]
    error: str
    unsaved: str
    wall_s: float
    ledger: LegLedger
    legs: dict[str, LegLedger]
    others: dict[str, _PolicyResult]


def write_identity(path: Path) -> None:
    """Write this process's identity to a file that it holds locked; the file is kept, so that the lock stays."""
    path.write_bytes(msgspec.json.encode(ProcessIdentity.own()) + b"\n")


def read_identity(folder: Path) -> ProcessIdentity | None:
    """Return the identity of the process that runs what is in this folder, or was killed; None: none has it open."""
    return _read(folder / RUNNING, ProcessIdentity)


def note_alive(folder: Path, waits_for: str = "") -> None:
    """Let others see that the process of a run is alive before its first status, and what it waits for: its hosts."""
    with contextlib.suppress(OSError):
        os.utime(folder / RUNNING)
        if waits_for:
            write_atomic(folder / WAITS, waits_for.encode(), durable=False)
        else:
            (folder / WAITS).unlink(missing_ok=True)


def write_status(folder: Path, status: ControllerStatus) -> None:
    content = msgspec.json.encode(
        status, enc_hook=json_ready
    )  # the summaries of thousands of workers, every two seconds
    write_atomic(folder / STATUS, content + b"\n", durable=False)


def read_state(folder: Path) -> RunState:
    result, process, status = read_result(folder), read_identity(folder), _read(folder / STATUS, ControllerStatus)
    if status is not None and process is not None and status.process != process:
        status = None  # of an earlier start
    age_s = _age_s(folder / (RUNNING if status is None else STATUS))
    locked, near = _locked(folder / RUNNING), process is not None and process.is_near
    elsewhere = not (locked or near or result) and (folder / RUNNING).exists()
    name: StateName = "ended" if result else "killed"
    if locked or elsewhere:
        name = "starting" if status is None else "ending" if result or status.reason else "running"
    if elsewhere and age_s is not None and age_s > SILENT_S:
        name = "silent"
    waits_for = _text(folder / WAITS) if name == "starting" else ""
    return RunState(name, process or (status.process if status else None), status, age_s, result, waits_for)


def ask_to_stop(folder: Path, process: ProcessIdentity) -> bool:
    """Ask the process of a run to end it regularly; return whether this is the first request."""
    if is_asked_to_stop(folder, process):
        return False
    write_json(folder / STOP, asdict(process))
    return True


def is_asked_to_stop(folder: Path, process: ProcessIdentity) -> bool:
    """Return whether this process was asked to end its run; requests to other processes do not count."""
    path = folder / STOP
    return path.exists() and _read(path, ProcessIdentity) == process


def revoke_host(folder: Path, name: str) -> None:
    """Ask the controller of a run to remove a host and its keys, and to let none of this name join."""
    write_json(folder / REVOKED, sorted(revoked_hosts(folder) | {name}))


def revoked_hosts(folder: Path) -> set[str]:
    path = folder / REVOKED
    try:
        return set(msgspec.convert(read_json(path), list[str])) if path.exists() else set()
    except (OSError, ValueError):
        return set()


def read_result(folder: Path) -> dict[str, Any]:
    """Return the result.json of the run in a folder; empty: there is none. A damaged one has ended as UNREADABLE, with why."""
    path = folder / RESULT
    if not path.exists():
        return {}
    try:
        return read_object(path, _Result)
    except ConfigError as error:
        return {"ended": UNREADABLE, "error": str(error)}


def held_by(folder: Path) -> str:
    """Return which process runs the run in this folder now (`4711 on HOST`, or `?`); empty: none."""
    state = read_state(folder)
    return str(state.process or "?") if state.is_running else ""


def is_whole(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return (folder / "experiment.json").is_file()


NO_SNAPSHOT = "it cannot be continued: the learner had written no snapshot; --snapshots.period-s sets how often it does"


def has_snapshot(folder: Path) -> bool:
    """Return whether the run in a folder can be resumed."""
    return (folder / "snapshots" / "state" / "tags" / "latest.json").exists()


def read_best(folder: Path, policy: str = "") -> dict[str, Any]:
    """Return the score of the snapshot `best` of a policy, with its env steps and its name to `load`; empty: there is none.

    policy: folder of one after the first.
    """
    try:
        meta = read_json(folder / "snapshots" / policy / "params" / "tags" / "best.json")["meta"]
        facts = {name: value for name, value in meta.items() if isinstance(value, int | float)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # none, or damaged
        return {}
    return facts | {"load": f"{folder}@{policy}/best" if policy else f"{folder}@best"}


def _locked(path: Path) -> bool:
    try:
        return is_held(path)
    except OSError:  # there is none, or it belongs to another user
        return False


def _age_s(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        return read_plain(path).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _read(path: Path, kind: type[Any]) -> Any:
    """Return the value of a JSON file; None: there is none, or it is damaged."""
    try:
        return msgspec.convert(read_json(path), kind)
    except (OSError, ValueError):
        return None
