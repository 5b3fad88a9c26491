"""A shell of the machines under virtual time: processes are entries of a table, and actions are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsrl.control.ending import Ending, Files, Level, LookAtFiles, Task
from jsrl.control.supervision import (
    Ended,
    Kill,
    Killed,
    Move,
    NotStarted,
    Observe,
    Observed,
    Rules,
    Show,
    Start,
    Started,
    Supervision,
)
from jsrl.experiment import DeadlineConfig, SupervisionConfig
from jsrl.services.runs.control_bodies import Bye, Crash, Heartbeat, Stage
from jsrl.services.runs.values import Exit

DEADLINES = DeadlineConfig()
BACKOFF = SupervisionConfig(backoff_s=0.5, max_backoff_s=3.0)
KILLED = Exit(-9, "killed")
TURN_S = 0.05


def rules(*workers: str, **changes: Any) -> dict[str, Rules]:
    """Return rules of workers such as `actor-0`, which may be restarted twice."""
    defaults: dict[str, Any] = {"restarts": 2} | changes
    return {
        name: Rules(name.partition("-")[0], ranks=defaults.get("ranks", (name,)), **without(defaults))
        for name in workers
    }


def without(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name != "ranks"}


class Shell:
    """Workers that are ready at 0 s and speak once a second, until a test says otherwise.

    Attributes:
      now: seconds. done: (time, action) without those that are answered here. exits: worker -> how its process ended.
      silent: workers that say nothing. unheard: those whose hosts say nothing.
      unstartable: workers, with the error of their start.
    """

    def __init__(self, rules: Mapping[str, Rules], hosts: Mapping[str, str] | None = None, **changes: Any) -> None:
        self.supervision = Supervision(rules, DEADLINES, BACKOFF, tells_absent=changes.pop("tells_absent", True))
        self.machine: Any = self.supervision
        self.now, self.hosts = 0.0, dict(hosts or {})
        self.done: list[tuple[float, Any]] = []
        self.exits: dict[str, Exit] = {}
        self.silent: set[str] = set()
        self.unheard: set[str] = set()
        self.unstartable: dict[str, str] = {}
        self.stuck: set[str] = set()  # their files travel, or they hang in the kernel: a kill does not end them
        self.files: Any = lambda worker: (False, None)
        for worker in rules:
            self.tell(Started(worker, 0, 0, self.hosts.get(worker, "")))
            self.tell(Stage(worker, 0, "ready", 7))
        self.done.clear()

    def incarnation(self, worker: str) -> int:
        return self.supervision.lives[worker].incarnation

    def tell(self, message: Any) -> None:
        self.execute(self.machine.handle(message, self.now))

    def crash(self, worker: str, error: str = "StreamClosed", status: int = 70) -> None:
        self.tell(Crash(worker, self.incarnation(worker), error, "broken", ""))
        self.exits[worker] = Exit(status, f"exit status {status}")

    def leave(self, worker: str) -> None:
        self.tell(Bye(worker, self.incarnation(worker)))
        self.exits[worker] = Exit(0, "exit status 0")

    def move(self, worker: str) -> None:
        self.tell(Move(worker, "its host leaves"))

    def execute(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Kill):
                self.done.append((self.now, action))
                if action.worker not in self.stuck:
                    self.exits.setdefault(action.worker, KILLED)
                self.observe_one(action.worker)
                self.tell(Killed(action.worker, action.incarnation))
            elif isinstance(action, Observe):
                self.observe()
            elif isinstance(action, Start):
                self.start(action)
            elif isinstance(action, LookAtFiles):
                self.tell(Files(action.worker, action.incarnation, *self.files(action.worker)))
            else:
                self.done.append((self.now, action))

    def start(self, action: Start) -> None:
        if error := self.unstartable.pop(action.worker, ""):
            self.tell(NotStarted(action.worker, action.incarnation, error))
            return
        self.done.append((self.now, action))
        self.exits.pop(action.worker, None)
        self.silent.discard(action.worker)
        host = self.hosts.get(action.worker, "")
        self.tell(Started(action.worker, action.incarnation, action.restarts, host))

    def observe_one(self, worker: str) -> None:
        if worker in self.exits:
            self.tell(Ended(worker, self.incarnation(worker), self.exits[worker]))

    def observe(self) -> None:
        for worker in self.supervision.lives:
            self.observe_one(worker)
        self.tell(Observed(frozenset(self.unheard), frozenset(self.unheard)))

    def run(self, until_s: float) -> list[Any]:
        """Turn until a time; return the actions that were executed, without displays."""
        before = len(self.done)
        while self.now < until_s:
            self.now = round(self.now + TURN_S, 3)
            for worker, life in self.supervision.lives.items():
                if worker not in {*self.exits, *self.silent, *self.unheard} and self.now % 1.0 < TURN_S:
                    self.tell(Heartbeat(worker, life.incarnation, 1))
            self.observe()
            self.execute(self.machine.tick(self.now))
            if isinstance(self.machine, Ending) and (self.machine.is_over or self.supervision.failed):
                break
        return [action for _, action in self.done[before:] if not isinstance(action, Show)]

    def end(self, levels: list[Level], tasks: Mapping[str, Task] | None = None, **changes: Any) -> Ending:
        """Let the run end."""
        defaults: dict[str, Any] = {"interrupted": False, "drains": False} | changes
        self.machine = Ending(self.supervision, levels, tasks or {}, **defaults)
        return self.machine

    @property
    def shown(self) -> list[str]:
        return [action.text for _, action in self.done if isinstance(action, Show) and not action.stage_of]
