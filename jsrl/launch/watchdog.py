"""The watchdog's reports: what every worker was doing when one of them died or hung, when a run failed, or when asked.

A worker is asked over the control road, where a thread of its own answers while it works. Who does not answer is stuck in C
code that holds the GIL: SIGUSR1 makes it write its stacks without the GIL (jsrl.workers.process). A stopped process can do
neither. All of it takes less than a second, so that nobody waits long to be replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from jsrl.launch.local.processes import Process
from jsrl.launch.session import Session
from jsrl.runs.stacks import MAX_STACKS_CHARS, all_stacks
from jsrl.workers.process import stacks_path

FOLDER = "watchdog"  # of a run
KEPT = 50  # reports; the oldest go
ANSWER_S, SIGNAL_S, LOOK_S = 0.4, 0.4, 0.02
FRESH_S = 2.0  # for so long a worker that is not the subject is not asked again
LOG_LINES, MOST_CHARS = 20, 500
# Whoever does anything counts it in one of them.
COUNTERS = ("env_steps", "trajectories", "episodes", "rows", "updates")
# Of what a worker reports, what tells where rows, params and trajectories pile up.
TELLING = re.compile(
    r"depth|lag|version|params|in_flight|produced|consumed|dropped|per_s$|wait|update|env_steps|trajector|size|fault|failed"
)


class Watchdog:
    """Looks at the workers of a run, and writes reports.

    Args:
      session: the run's. processes: name -> worker, as the controller knows them; read at each look.
      ask: asks a worker for its stacks over the control road. listen: hears what workers say, for up to so many seconds.
    """

    def __init__(
        self,
        session: Session,
        processes: Mapping[str, Process],
        ask: Callable[[Process], None],
        listen: Callable[[float], None],
    ) -> None:
        self._session, self._processes, self._ask, self._listen = session, processes, ask, listen
        self._run = session.folder.path
        self._asked_s: dict[str, float] = {}
        self._counted: dict[str, list[object]] = {}
        self._moved_s, self._patience = time.monotonic(), 1

    def look(self, subject: Process | None = None) -> str:
        """Return what every worker is doing, `subject` first; takes less than a second."""
        now_s = time.monotonic()
        workers = sorted(self._processes.values(), key=lambda process: process is not subject)
        asked = [process for process in workers if can_answer(process) and self._is_due(process, subject, now_s)]
        for process in asked:
            self._asked_s[process.name] = now_s
            self._ask(process)
        while silent := [process for process in asked if process.stacks_s < now_s and process.exit_status is None]:
            if time.monotonic() - now_s > ANSWER_S:
                self._signal(silent)
                break
            self._listen(LOOK_S)
        return "\n".join(section(process) for process in workers)

    def _is_due(self, process: Process, subject: Process | None, now_s: float) -> bool:
        """Return whether a worker is asked now: many that hang at once must not add up their silences."""
        return process is subject or now_s - self._asked_s.get(process.name, -FRESH_S) >= FRESH_S

    def _signal(self, silent: list[Process]) -> None:
        """Have workers that do not answer write their stacks from a signal handler, which needs no GIL."""
        begun: list[tuple[Process, Path, int]] = []
        for process in silent:
            path, pid = stacks_path(self._run, process.name), process.popen.pid
            with contextlib.suppress(OSError):  # it has just ended, or could not open its file
                if pid is not None and catches(pid, signal.SIGUSR1):
                    begun.append((process, path, path.stat().st_size))
                    os.kill(pid, signal.SIGUSR1)
        until_s, written = time.monotonic() + SIGNAL_S, -1
        while time.monotonic() < until_s:
            time.sleep(LOOK_S)
            sizes = [size_of(path) - before for _, path, before in begun]
            if sum(sizes) == written and all(sizes):
                break  # everybody has written, and nobody is still writing
            written = sum(sizes)
        for process, path, before in begun:
            if text := read_from(path, before):
                process.stacks, process.stacks_s = text, time.monotonic()

    def write(self, name: str, noticed: str, seen: str) -> str:
        """Write a report; return a text that says where it lies.

        Args:
          name: for the file: the worker it is about, or `request`. noticed: why it is written. seen: from `look`.
        """
        folder = self._run / FOLDER
        try:
            folder.mkdir(exist_ok=True)
            older = sorted(folder.glob("[0-9]*-*.txt"))
            number = int(older[-1].name.partition("-")[0]) + 1 if older else 1
            path = folder / f"{number:04d}-{name}.txt"
            path.write_text("\n".join([self._head(noticed), seen, self._controller()]))
            for old in older[: max(0, len(older) + 1 - KEPT)]:
                old.unlink(missing_ok=True)
        except OSError as error:
            return f"no watchdog report: {error}"
        return f"watchdog report: {path}"

    def tell_standstill(self, limit_s: float) -> None:
        """Say so where every worker is ready and no counter has moved for so long: they may be waiting for each other.

        After the first time only for one that lasts twice as long: a slow run is no broken one.
        """
        now_s, workers = time.monotonic(), self._processes.values()
        counted = {process.name: [process.known.get(name) for name in COUNTERS] for process in workers}
        if counted != self._counted or not all(process.ready or process.replaced for process in workers):
            self._counted, self._moved_s = counted, now_s
        elif now_s - self._moved_s > self._patience * limit_s:
            noticed = f"nothing was stepped, answered or trained for {now_s - self._moved_s:.0f} s"
            self._patience *= 2
            told = self.write("standstill", noticed, self.look())
            self._session.display.message(f"{noticed}; training goes on if it can ({told})", "warning")

    def _head(self, noticed: str) -> str:
        """Return what was noticed, and where the run stands."""
        session = self._session
        clock = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [
            f"{clock}, {session.elapsed_s:.1f} s after the start of {session.folder.name}",
            f"noticed: {noticed}",
            "",
            f"updates {session.updates:,}, env steps {session.env_steps:,}",
        ]
        lines += session.read_ledgers()
        return "\n".join([*lines, *known_lines(session.hub.latest), ""])

    def _controller(self) -> str:
        return f"== controller, pid {os.getpid()}\n{indented(all_stacks())}"

    def close(self) -> None:
        """Remove what workers wrote their stacks to; reports hold them."""
        for path in (self._run / "logs").glob("*.stacks"):
            path.unlink(missing_ok=True)


# -- what can be seen of a process ------------------------------------------------------------------------------------


def can_answer(process: Process) -> bool:
    """Return whether a worker may tell what it is doing: it runs, has come to work, and nobody stopped it."""
    begun = process.stage != "starting the interpreter"
    return begun and not process.left and process.exit_status is None and state(process)[0] != "stopped"


def state(process: Process) -> tuple[str, str]:
    """Return (state such as running, sleeping, stopped or zombie; what it uses) of a worker's process."""
    pid = process.popen.pid
    if pid is None:
        return "not forked yet", ""
    if process.exit_status is not None:
        return process.exit_text(), ""
    try:
        seen = psutil.Process(pid)
        with seen.oneshot():
            times, resident_mb = seen.cpu_times(), seen.memory_info().rss / 1e6
            uses = f"{times.user + times.system:.1f} s of CPU time, {resident_mb:,.0f} MB, {seen.num_threads()} threads"
            return str(seen.status()), uses
    except psutil.Error as error:
        return type(error).__name__, ""


def catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal, which would end it otherwise (Linux)."""
    try:
        found = re.search(r"^SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def size_of(path: Path) -> int:
    """Return a file's size in bytes; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_from(path: Path, start: int) -> str:
    """Return what was added to a file after its first `start` bytes; its beginning, where that is long."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(MAX_STACKS_CHARS).decode(errors="replace")
    except OSError:
        return ""


# -- a worker as text -------------------------------------------------------------------------------------------------


def section(process: Process) -> str:
    """Return the part of a report that is about one worker."""
    now_s, job = time.monotonic(), process.job
    found, uses = state(process)
    lines = [
        f"== {process.name}: {job.kind} {job.index}, incarnation {job.incarnation}, pid {process.popen.pid}, {found}",
        f"  {process.stage!r} since {now_s - process.stage_s:.1f} s, heard of {now_s - process.beat_s:.1f} s ago"
        + (f", {uses}" if uses else ""),
    ]
    if process.activity:
        lines.append(f"  at its last heartbeat inside of: {process.activity}")
    lines += [f"  {line}" for line in known_lines(process.known)]
    if process.stacks:
        lines.append(f"  stacks, {now_s - process.stacks_s:.1f} s ago:\n{indented(process.stacks)}")
    else:
        lines.append(f"  no stacks: {why_silent(process, found)}")
    tail = [line[:MOST_CHARS] for line in process.last_lines(LOG_LINES).splitlines()]
    lines.append(f"  log ({process.log}) ends with:\n{indented(chr(10).join(tail) or '(nothing)')}")
    return "\n".join(lines) + "\n"


def why_silent(process: Process, found: str) -> str:
    """Return why nothing is known of what a worker's threads do."""
    if process.exit_status is not None:
        return "the process has ended"
    if found == "stopped":
        return "a stopped process answers nothing until it is continued (SIGCONT)"
    if process.stage == "starting the interpreter":
        return "it has not come to work yet"
    return "it is leaving" if process.left else "it answered neither on the control road nor to SIGUSR1"


def known_lines(known: Mapping[str, object]) -> list[str]:
    """Return the telling ones of metrics and counters, a few in a line."""
    words = [
        f"{name} {value:g}"
        for name, value in sorted(known.items())
        if isinstance(value, int | float) and TELLING.search(name)
    ]
    return ["; ".join(words[i : i + 4]) for i in range(0, len(words), 4)]


def indented(text: str) -> str:
    """Return text with every line set in."""
    return "".join(f"    {line}\n" for line in text.splitlines()).rstrip("\n")
