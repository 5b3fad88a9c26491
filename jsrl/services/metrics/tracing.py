"""Traces: the activities of every thread of every worker, as a file for https://ui.perfetto.dev or chrome://tracing.

Each thread keeps its newest spans in a ring of fixed size (9 bytes a span: a thread is always in one activity, so
a span ends where the next begins). A worker writes its rings when it closes; the controller merges them onto one time axis,
CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

import json
import logging
import os
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from jsrl.plain_files import read_plain
from jsrl.services.metrics.phases import REST, TRACES, Phases

FILE = "trace.json"
_MAX_MARKS = 20_000
_logger = logging.getLogger("jsrl.tracing")


class TracedPhases(Phases):
    """Phases that record when each activity began."""

    tracing = True

    def __init__(self, name: str, max_spans: int, rest: str = REST) -> None:
        """Keep the newest `max_spans` spans of the thread called `name`."""
        super().__init__(rest)
        self.name, self._max_spans = name, max_spans
        self._codes: dict[str, int] = {"setup": 0}
        self._starts_ns = array("q", [self._since_ns])
        self._kinds = bytearray(1)
        self._entered = 1
        self._marks: deque[tuple[str, int, float]] = deque(maxlen=_MAX_MARKS)

    def enter(self, activity: str) -> None:
        if activity == self._activity:
            return
        super().enter(activity)
        code = self._codes.setdefault(activity, len(self._codes))
        if self._entered < self._max_spans:
            self._starts_ns.append(self._since_ns)
            self._kinds.append(code)
        else:
            place = self._entered % self._max_spans
            self._starts_ns[place], self._kinds[place] = self._since_ns, code
        self._entered += 1

    def mark(self, name: str, value: float) -> None:
        self._marks.append((name, self._clock_ns(), float(value)))

    def facts(self) -> dict[str, Any]:
        first = self._entered % self._max_spans if self._entered > self._max_spans else 0
        starts = [*self._starts_ns[first:], *self._starts_ns[:first]]
        kinds = [*self._kinds[first:], *self._kinds[:first]]
        forgotten = max(0, self._entered - self._max_spans)
        return {
            "name": self.name,
            "activities": list(self._codes),
            "starts_ns": starts,
            "kinds": kinds,
            "end_ns": self._clock_ns(),
            "forgotten": forgotten,
            "marks": [list(mark) for mark in self._marks],
        }


class Tracer:
    """The traced threads of one worker.

    Args:
      folder: the run's. worker: its name. incarnation: of the worker. max_spans: of each thread.
    """

    def __init__(self, folder: str | os.PathLike[str], worker: str, incarnation: int, max_spans: int) -> None:
        self._path = Path(folder) / TRACES / f"{worker}.{incarnation}.json"
        self._worker, self._max_spans = worker, max_spans
        self._threads: list[TracedPhases] = []

    def thread(self, name: str, rest: str = REST) -> TracedPhases:
        self._threads.append(TracedPhases(name, self._max_spans, rest))
        return self._threads[-1]

    def save(self) -> None:
        """Write the trace; a failed write only costs a line in the log."""
        facts = {"worker": self._worker, "pid": os.getpid(), "threads": [thread.facts() for thread in self._threads]}
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(json.dumps(facts))
        except OSError as error:
            _logger.warning("the trace of %s could not be written to %s (%s).", self._worker, self._path, error)


def merge_traces(folder: Path, phase_of: Mapping[str, str]) -> Path | None:
    """Merge the traces of a run's workers; return the path, or None if there are none.

    `phase_of`: the phase of each activity. An unfinished file of a killed worker is skipped. The parts are removed.
    """
    parts = sorted((folder / TRACES).glob("*.json"))
    workers = [facts for facts in map(_read, parts) if facts is not None]
    if not workers:
        return None
    begin_ns = min(start for worker in workers for thread in worker["threads"] for start in thread["starts_ns"])
    path = folder / FILE
    with path.open("w") as file:
        _write(file, workers, begin_ns, phase_of)
    for part in parts:
        part.unlink(missing_ok=True)
    (folder / TRACES).rmdir()
    return path


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(read_plain(path))
    except ValueError:
        return None


def _write(file: TextIO, workers: list[dict[str, Any]], begin_ns: int, phase_of: Mapping[str, str]) -> None:
    forgotten = sum(thread["forgotten"] for worker in workers for thread in worker["threads"])
    file.write('{"displayTimeUnit": "ms", "otherData": ' + json.dumps({"forgotten_spans": forgotten}))
    file.write(', "traceEvents": [')
    separator = "\n"
    for number, worker in enumerate(workers):
        for event in _events(worker, number, begin_ns, phase_of):
            file.write(separator + json.dumps(event))
            separator = ",\n"
    file.write("\n]}\n")


def _events(
    worker: dict[str, Any], number: int, begin_ns: int, phase_of: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield a worker's events. Times are in microseconds; workers of one process (serial) have separate tracks."""
    pid = number + 1
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"{worker['worker']}"}}
    yield {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": f"pid {worker['pid']}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": number}}
    for tid, thread in enumerate(worker["threads"], 1):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread["name"]}}
        starts, names = thread["starts_ns"], thread["activities"]
        for start, end, kind in zip(starts, [*starts[1:], thread["end_ns"]], thread["kinds"], strict=True):
            name = names[kind]
            phase = phase_of.get(name, "other")
            at_us, lasts_us = (start - begin_ns) / 1e3, (end - start) / 1e3
            yield {"ph": "X", "name": name, "cat": phase, "ts": at_us, "dur": lasts_us, "pid": pid, "tid": tid}
        for name, when, value in thread["marks"]:
            yield {"ph": "C", "name": name, "ts": (when - begin_ns) / 1e3, "pid": pid, "args": {name: value}}
