"""The end of a run: workers stop along the data flow, and last tasks are done before the workers that they need stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jsrl.control.supervision import (
    GRACE_S,
    AboutWorker,
    Action,
    Life,
    Message,
    Observed,
    Phase,
    Send,
    Show,
    Supervision,
)
from jsrl.services.runs.control_bodies import FINAL, Event, Report
from jsrl.types import version_updates

QUIET_S = 3.0  # of waiting for the end of a worker, before a line says so
RESCUE_S = 4.0  # for the learners' snapshots after another worker's death


# -- known from the start -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """Workers that stop together. `publishes`: one of them publishes params."""

    workers: frozenset[str]
    publishes: bool


@dataclass(frozen=True)
class Task:
    """A worker's last task.

    Attributes:
      name: for users. facts: of its command. limit_s, limit: its deadline, and the name of this option. hint: advice if it
        was not finished in time.
    """

    name: str
    facts: Mapping[str, Any]
    limit_s: float
    limit: str
    hint: str = ""

    def unfinished(self, worker: str, *, interrupted: bool) -> str:
        """Return that it was not finished, and why."""
        waited = f"within {self.limit_s:g} s (deadlines.{self.limit}){self.hint}"
        return f"{worker}: its {self.name} was not finished {'because it was interrupted' if interrupted else waited}"


# -- messages and actions besides those of the supervision ------------------------------------------------------------


class Interrupted:
    """The user asked for the end, which has begun already."""


@dataclass(frozen=True)
class Files(AboutWorker):
    """Its files that have come from its host: more than at the last look (`grew`), and the version of the newest snapshot."""

    grew: bool
    newest: int | None


@dataclass(frozen=True)
class BeginTask(AboutWorker):
    """Tell it to start its last task."""

    facts: Mapping[str, Any]


class LookAtFiles(AboutWorker):
    """Look at the files that it keeps in the run folder: Files answers."""


@dataclass(frozen=True)
class ShowLate(AboutWorker):
    """Show that it did not leave in order, with a report of all workers if it `hangs`."""

    what: str
    hangs: bool


EndMessage: TypeAlias = Message | Interrupted | Files
EndAction: TypeAlias = Action | BeginTask | LookAtFiles | ShowLate


class Ending:
    """Ends a run in order. It takes all messages from then on, and passes them on to the supervision.

    Args:
      levels: of the workers, in stop order. tasks: of workers with a last task.
      interrupted: the user ends the run: there are no last tasks, and nothing is waited for that is just starting.
      drains: learners make their last updates as they stop, so the tasks start after that.

    Attributes:
      is_over: all is done. is_stopping: workers are stopping, and nothing is left to do for the run meanwhile.
    """

    def __init__(
        self,
        supervision: Supervision,
        levels: Sequence[Level],
        tasks: Mapping[str, Task],
        *,
        interrupted: bool,
        drains: bool,
    ) -> None:
        self._supervision, self._levels = supervision, levels
        self._tasks = {} if interrupted else dict(tasks)
        self._hurries = self._interrupted = interrupted
        self._drains = drains
        self._finished: set[str] = set()
        self._files: dict[str, Files] = {}  # of workers on other hosts, at the last look
        self._now = 0.0
        self._course = self._order()
        self.is_over = self.is_stopping = False
        supervision.watch((), self._tasks)

    def handle(self, message: EndMessage, now: float) -> list[EndAction]:
        if isinstance(message, Interrupted):
            self._interrupted = True
            return []
        life = None if isinstance(message, Observed) else self._supervision.lives.get(message.worker)
        if life is not None and getattr(message, "incarnation", None) == life.incarnation:
            if isinstance(message, Files):
                self._files[life.worker] = message
                return []
            if isinstance(message, Event | Report) and ends_task(message):
                self._finished.add(life.worker)
        return [] if isinstance(message, Files) else [*self._supervision.handle(message, now)]

    def tick(self, now: float) -> list[EndAction]:
        self._now = now
        actions: list[EndAction] = [*self._supervision.tick(now)]
        while not (self.is_over or self._supervision.failed or self._supervision.is_deciding):
            more = next(self._course, None)
            self.is_over = more is None
            if not more:
                break
            actions += more
        return actions

    # -- the order: each of these yields actions, or nothing while it waits -------------------------------------------

    def _order(self) -> Iterator[list[EndAction]]:
        if self._interrupted:
            yield self._end_unready(self._supervision.lives)
        left = list(self._tasks)
        for level in self._levels:
            if level.publishes:  # whoever still connects to params needs the learners
                yield from self._await_reachable(left) if self._drains else self._begin_tasks(left)
            for worker in [worker for worker in self._tasks if worker in level.workers]:
                yield from self._await_task(worker)
            yield from self._stop(level.workers)
            if level.publishes:
                yield from self._begin_tasks(left)

    def _await_reachable(self, workers: Collection[str]) -> Iterator[list[EndAction]]:
        """Wait until workers with a last task receive commands: they may just be starting again."""
        for worker in workers:
            yield [Show(f"{self._tasks[worker].name} is about to begin", stage_of=worker)]
            yield from self._wait(worker, lambda life: life.is_reachable)

    def _begin_tasks(self, left: list[str]) -> Iterator[list[EndAction]]:
        """Begin the last tasks of workers, each once it receives commands."""
        while left:
            worker = left.pop(0)
            yield from self._await_reachable([worker])
            life = self._supervision.lives[worker]
            if life.is_reachable:
                yield [BeginTask(worker, life.incarnation, self._tasks[worker].facts)]

    def _await_task(self, worker: str) -> Iterator[list[EndAction]]:
        task = self._tasks[worker]
        yield [Show(task.name, stage_of=worker)]
        yield from self._wait(worker, lambda life: False)
        is_replaced = self._supervision.lives[worker].phase in (Phase.REPLACED, Phase.GONE)
        if not (worker in self._finished or is_replaced):
            yield [Show(task.unfinished(worker, interrupted=self._interrupted), "warning")]

    def _wait(self, worker: str, is_reached: Callable[[Life], bool]) -> Iterator[list[EndAction]]:
        """Wait until a worker has reached a state, or its task is over.

        Meanwhile it is watched. A restart that was planned before the end still takes place; a later death is final.
        """
        begun_s, limit_s = self._now, self._tasks[worker].limit_s
        self._supervision.watch((worker,), self._tasks)
        while not (self._interrupted or worker in self._finished or self._now - begun_s > limit_s):
            life = self._supervision.lives[worker]
            if is_reached(life) or life.phase is Phase.GONE:
                break
            yield []
        self._supervision.watch((), self._tasks)

    def _stop(self, workers: Collection[str]) -> Iterator[list[EndAction]]:
        """Stop workers, all at once; those that save something may take as long as a snapshot."""
        self.is_stopping = True
        self._supervision.forget(workers)
        yield self._end_unready(workers)
        leaving = [life for life in self._supervision.lives.values() if life.worker in workers]
        leaving = [life for life in leaving if life.phase is Phase.LIVES]
        yield [Send(life.worker, life.incarnation, "stop") for life in leaving]
        begun_s = self._now
        for life in leaving:
            yield from self._await_end(life, begun_s)
        until_s = self._now + GRACE_S  # for the last messages
        while self._now < until_s and not all(life.left for life in leaving):
            yield []
        yield [action for life in leaving for action in self._judge_end(life)]
        self.is_stopping = False

    def _end_unready(self, workers: Collection[str]) -> list[EndAction]:
        """End those of these workers that have nothing to save yet and would react only after compiling or connecting.

        Ranks cannot save without each other: all of a learner end if one is not ready.
        """
        actions: list[EndAction] = []
        lives, rules = self._supervision.lives, self._supervision.rules
        starting = {
            life.worker for life in lives.values() if life.phase is Phase.LIVES and not (life.ready or life.left)
        }
        for life in lives.values():
            late = starting.intersection(rules[life.worker].ranks)
            if life.worker in workers and life.phase is Phase.LIVES and late and not life.left:
                first = life.worker if life.worker in late else min(late)
                whose = "its start" if first == life.worker else f"the start of {first}"
                text = f"{life.worker} was stopped during {whose} ({lives[first].stage}), because the run ends"
                actions += [*self._supervision.end(life.worker), Show(text)]
        return actions

    def _await_end(self, life: Life, begun_s: float) -> Iterator[list[EndAction]]:
        """Wait until a worker that was asked to leave has ended; once it has left, as long as more of its files arrive."""
        limit_s = self._leave_s(life)
        told_s = min(limit_s, QUIET_S)
        while life.exit is None and not (self._sends_files(life) and life.left):
            waited_s = self._now - begun_s
            if waited_s >= limit_s:
                return
            if waited_s >= told_s:
                told_s = limit_s
                yield [Show(f"waiting for {life.worker} to finish and leave, for at most {limit_s:g} s")]
            yield []
        if self._sends_files(life) and life.left:
            yield from self._await_files(life)

    def _await_files(self, life: Life) -> Iterator[list[EndAction]]:
        is_known = False
        while life.exit is None or (life.exit.with_host and not is_known):
            self._files.pop(life.worker, None)
            yield [LookAtFiles(life.worker, life.incarnation)]
            while life.worker not in self._files:
                yield []
            if is_known and not self._files[life.worker].grew:
                return
            is_known, looked_s = True, self._now
            while life.exit is None and self._now - looked_s < self._supervision.deadlines.snapshot_s:
                yield []

    def _sends_files(self, life: Life) -> bool:
        """Return whether a worker's files come from another host, which reports its end once they have all arrived."""
        return bool(life.host) and self._supervision.rules[life.worker].keeps_files

    def _leave_s(self, life: Life) -> float:
        return self._supervision.leave_s(life.worker, hurries=self._hurries)

    def _judge_end(self, life: Life) -> list[EndAction]:
        """Report a worker that did not leave cleanly, and why; the run fails if the worker is essential."""
        if not life.left:
            late = f"did not leave in order within {self._leave_s(life):g} s"
            what = late if life.exit is None else f"ended: {life.ending}"
        elif self._sends_files(life) and (life.exit is None or life.exit.with_host):
            what = self._files_missing(life)
        else:
            return []
        if self._supervision.rules[life.worker].must_finish and not self._hurries:
            failed = self._supervision.shutdown_failed(life.worker, what)
            return [*failed]  # without its last snapshot the run is incomplete
        return [ShowLate(life.worker, life.incarnation, what, life.exit is None and not self._interrupted)]

    def _files_missing(self, life: Life) -> str:
        """Return that files of a worker which has left did not arrive, and the newest snapshot of a learner that did."""
        why = f"no part of them came for {self._supervision.deadlines.snapshot_s:g} s (deadlines.snapshot_s)"
        why = life.exit.text if life.exit else why
        what = f"left, but its last files did not all arrive from host {life.host}: {why}"
        if not self._supervision.rules[life.worker].must_finish:
            return what
        newest = self._files[life.worker].newest
        if newest is None:
            return f"{what}. No snapshot is in the run folder"
        return f"{what}. The newest snapshot in the run folder is version {version_updates(newest)}"


class Rescue:
    """Lets working learners write their snapshots after the run has failed, so that it can be continued from here."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._saving: list[Life] = []
        self._until_s: float | None = None
        self.is_over = False

    def handle(self, message: Message, now: float) -> list[EndAction]:
        return [*self._supervision.handle(message, now)]

    def tick(self, now: float) -> list[EndAction]:
        if self._until_s is not None:
            self.is_over = now >= self._until_s or all(life.exit for life in self._saving)
            return []
        self._until_s = now + RESCUE_S
        lives, rules = self._supervision.lives.values(), self._supervision.rules
        saving = [life for life in lives if rules[life.worker].must_finish and life.is_reachable and not life.exit]
        self._saving = saving
        return [Send(life.worker, life.incarnation, "stop") for life in saving]


def ends_task(message: Event | Report) -> bool:
    """Return whether a message tells of the end of a last task; a later report repeats it, should its event be lost."""
    return message.name.endswith(" finally") if isinstance(message, Event) else FINAL in message.facts
