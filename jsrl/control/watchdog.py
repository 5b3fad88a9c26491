"""The watchdog's reports: the state of every worker when one of them died or hung, when a run failed, or on request.

A worker is asked over the control connection, where a separate thread answers while it works. A worker that does not answer is
stuck in C code that holds the GIL: its handle gets its stacks without the GIL (jsrl.workers.process). A stopped process can do
neither. A report takes less than a second, so that replacements start soon; two more if a host is cut off just then.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from jsrl.control.run_record import RunRecord
from jsrl.control.supervised import SupervisedWorker
from jsrl.control.supervision import NOT_BEGUN, Phase, Standstill
from jsrl.graph.launcher import STOPPED
from jsrl.services.runs.process import all_stacks

FOLDER = "watchdog"  # of a run
KEPT = 50  # reports; the oldest are deleted
MAX_LOOKED_AT = 50  # workers, the first of each kind: with thousands a report would take minutes
ANSWER_S, INSIST_S, LOOK_S = 0.4, 0.4, 0.02
FRESH_S = 2.0  # for this time other workers are not asked again,
MAX_LOOKING = 0.1  # and for longer if looking at them takes more than this share of the time: many die at once
TAIL_LINES, MAX_CHARS = 20, 500
# The progress counters.
COUNTERS = ("env_steps", "trajectories", "episodes", "rows", "updates")
# Reported values that show where rows, params and trajectories pile up.
TELLING = re.compile(
    r"depth|lag|version|params|in_flight|produced|consumed|dropped|per_s$|wait|update|env_steps|trajector|size|fault|failed"
)


class Watchdog:
    """Collects the state of a run's workers, and writes reports.

    Args:
      record: the run's. workers: name -> worker, as the controller knows them; read at each report.
      ask: asks a worker for its stacks over the control connection. listen: receives workers' messages, for at most that many
        seconds. clock: returns seconds, as in the workers' lives.
    """

    def __init__(
        self,
        record: RunRecord,
        workers: Mapping[str, SupervisedWorker],
        ask: Callable[[SupervisedWorker], None],
        listen: Callable[[float], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._record, self._workers, self._ask, self._listen = record, workers, ask, listen
        self._run, self._clock = record.folder.path, clock or time.monotonic
        self._asked_s: dict[str, float] = {}
        self._looked_s = 0.0  # at all workers
        self._look_at_s = self._read_at_s = 0.0  # when the next look at all workers is due, and at the ledgers
        self._ledgers: list[str] = []  # as text
        self._counted: dict[str, list[object]] = {}
        self._standstill = Standstill(record.experiment.deadlines.still_s, self._clock())

    def look(self, subject: SupervisedWorker | None = None) -> str:
        """Return the state of every worker, `subject` first.

        If many workers die at once, not every look includes all workers: replacements must not wait.
        """
        now_s = self._clock()
        if subject is not None and now_s < self._look_at_s:
            earlier = f"(An earlier report, of {now_s - self._looked_s:.1f} s ago, has the other workers.)\n"
            return "\n".join([*self._sections([subject], subject, now_s), earlier])
        everybody = sorted(self._workers.values(), key=lambda worker: (worker is not subject, worker.job.index))
        workers, rest = everybody[:MAX_LOOKED_AT], len(everybody) - MAX_LOOKED_AT
        others = [f"({rest} other workers were not looked at.)\n"] if rest > 0 else []
        found = "\n".join([*self._sections(workers, subject, now_s), *others])
        self._looked_s = self._clock()
        self._look_at_s = due_after(now_s, self._clock())
        return found

    def _sections(self, workers: list[SupervisedWorker], subject: SupervisedWorker | None, now_s: float) -> list[str]:
        """Ask workers for their stacks, and return the part of a report about each."""
        asked = [worker for worker in workers if can_answer(worker) and self._is_due(worker, subject, now_s)]
        for worker in asked:
            self._asked_s[worker.name] = now_s
            self._ask(worker)
        while silent := [worker for worker in asked if worker.stacks_s < now_s and worker.alive]:
            if self._clock() - now_s > ANSWER_S:
                self._signal_for_stacks(silent)
                break
            self._listen(LOOK_S)
        # at once: an agent of another host is asked for each log
        with ThreadPoolExecutor(max(1, len(workers))) as pool:
            tails = list(pool.map(lambda worker: worker.handle.tail(TAIL_LINES), workers))
        return [section(worker, tail, self._clock()) for worker, tail in zip(workers, tails, strict=True)]

    def _is_due(self, worker: SupervisedWorker, subject: SupervisedWorker | None, now_s: float) -> bool:
        """Return whether a worker is asked now: the waits for many hanging workers must not add up."""
        return worker is subject or now_s - self._asked_s.get(worker.name, -FRESH_S) >= FRESH_S

    def _signal_for_stacks(self, silent: list[SupervisedWorker]) -> None:
        with ThreadPoolExecutor(len(silent)) as pool:
            for worker, text in zip(
                silent, pool.map(lambda worker: worker.handle.stacks(INSIST_S), silent), strict=True
            ):
                if text:
                    worker.stacks, worker.stacks_s = text, self._clock()

    def write(self, name: str, noticed: str, seen: str) -> str:
        """Write a report; return a text with its path.

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

    def report_standstill(self) -> None:
        """Report it when every worker is ready and no counter has moved for long: they may be waiting for each other."""
        workers = self._workers.values()
        counted = {worker.name: [worker.known.get(name) for name in COUNTERS] for worker in workers}
        over = (Phase.REPLACED, Phase.GONE)
        moved = counted != self._counted or not all(w.life.ready or w.life.phase in over for w in workers)
        self._counted = counted
        if still_s := self._standstill.tick(self._clock(), moved=moved):
            noticed = f"nothing was stepped, answered or trained for {still_s:.0f} s"
            report = self.write("standstill", noticed, self.look())
            self._record.display.message(f"{noticed}; the run continues ({report})", "warning")

    def _head(self, noticed: str) -> str:
        record = self._record
        clock = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [
            f"{clock}, {record.elapsed_s:.1f} s after the start of {record.folder.name}",
            f"noticed: {noticed}",
            "",
            f"updates {record.run.updates:,}, env steps {record.run.env_steps:,}",
        ]
        if (now_s := self._clock()) >= self._read_at_s:  # thousands of pages: not for each of many deaths
            self._ledgers = record.read_ledgers()
            self._read_at_s = due_after(now_s, self._clock())
        lines += self._ledgers
        return "\n".join([*lines, *known_lines(record.hub.latest), ""])

    def _controller(self) -> str:
        return f"== controller, pid {os.getpid()}\n{indented(all_stacks())}"

    def close(self) -> None:
        """Remove the workers' stack files; reports contain them."""
        for path in (self._run / "logs").glob("*.stacks"):
            path.unlink(missing_ok=True)


def due_after(began_s: float, now_s: float) -> float:
    """Return when to do again what began then and has just ended, so that it takes only a small share of the time."""
    return now_s + max(FRESH_S, (now_s - began_s) / MAX_LOOKING)


# -- the state of a worker --------------------------------------------------------------------------------------------


def can_answer(worker: SupervisedWorker) -> bool:
    """Return whether a worker can answer: it runs, has become ready, and is not stopped."""
    return worker.life.stage != NOT_BEGUN and not worker.life.left and worker.alive and state(worker)[0] != STOPPED


def state(worker: SupervisedWorker) -> tuple[str, str]:
    """Return (state such as running, sleeping, stopped or how it ended; what it uses) of a worker."""
    used = worker.handle.usage()
    if used is None:
        ended = worker.handle.exit
        return "still running" if ended is None else ended.text, ""
    return used.state, f"{used.cpu_s:.1f} s of CPU time, {used.resident_bytes / 1e6:,.0f} MB, {used.threads} threads"


# -- a worker as text -------------------------------------------------------------------------------------------------


def section(worker: SupervisedWorker, log_tail: str, now_s: float) -> str:
    job, life = worker.job, worker.life
    found, uses = state(worker)
    lines = [
        f"== {worker.name}: {job.kind} {job.index}, incarnation {job.incarnation}, {worker.handle.where}, {found}",
        f"  {life.stage!r} since {now_s - life.stage_s:.1f} s, last message {now_s - life.beat_s:.1f} s ago"
        + (f", {uses}" if uses else ""),
    ]
    if worker.activity:
        lines.append(f"  at its last heartbeat inside of: {worker.activity}")
    lines += [f"  {line}" for line in known_lines(worker.known)]
    if worker.stacks:
        lines.append(f"  stacks, {now_s - worker.stacks_s:.1f} s ago:\n{indented(worker.stacks)}")
    else:
        lines.append(f"  no stacks: {why_silent(worker, found)}")
    tail = [line[:MAX_CHARS] for line in log_tail.splitlines()]
    lines.append(f"  log ({worker.handle.log}) ends with:\n{indented(chr(10).join(tail) or '(nothing)')}")
    return "\n".join(lines) + "\n"


def why_silent(worker: SupervisedWorker, found: str) -> str:
    """Return why the stacks of a worker's threads are unknown."""
    if not worker.alive:
        return "the process has ended"
    if found == STOPPED:
        return "a stopped process answers nothing until it is continued (SIGCONT)"
    if worker.life.stage == NOT_BEGUN:
        return "it has not come to work yet"
    return "it is leaving" if worker.life.left else "it answered neither on the control connection nor to SIGUSR1"


def known_lines(known: Mapping[str, object]) -> list[str]:
    words = [
        f"{name} {value:g}"
        for name, value in sorted(known.items())
        if isinstance(value, int | float) and TELLING.search(name)
    ]
    return ["; ".join(words[i : i + 4]) for i in range(0, len(words), 4)]


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines()).rstrip("\n")
