"""Stand-ins for workers: they start, become ready, send heartbeats, act, obey commands, do a last task, and end.

Commands are executed only where a run's outcome depends on them; `Checks` records what every worker did.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from jsrl.services.runs.control import LEASE_GRACE_S, encoded
from jsrl.services.runs.control_bodies import FINAL, Bye, Command, Crash, Event, Heartbeat, Message, Report, Stage
from tests.simulated.world import Host, Process

if TYPE_CHECKING:
    from tests.simulated.checks import Checks

HEARTBEAT_S, ACT_S, REPORT_S = 1.5, 1.0, 2.0
LEAVE_S, SAVE_S, TASK_S = 0.4, 2.0, 3.0  # at most
NOTICED_S = 3.0  # after which a worker whose peer has gone says so, unless it is told to stop meanwhile
LOST_EVENT = 0.3  # probability that an event is lost, which later reports repeat
SCORE = {"return_mean": 1.0, "episodes": 1}


class Worker(Process):
    """A worker's process.

    Args:
      send: passes an encoded message to whoever started it. lease_until: end of the lease of its host, by the host's clock
        (infinite on the controller's host).

    Attributes:
      error: its last message said this. ended_s: virtual time of its end. babbles: it says what it may not.
      saved: number of its last snapshot. was_frozen: it was stopped at least once. peer: the worker whose end it noticed.
    """

    def __init__(
        self,
        host: Host,
        name: str,
        incarnation: int,
        parent: Process,
        send: Callable[[bytes], None],
        checks: Checks,
        lease_until: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__(host, f"{name}.{incarnation}", parent)
        self.worker, self.incarnation = name, incarnation
        self.ready = self.leaves = False
        self.facts: dict[str, Any] = {}
        self.error, self.ended_s, self.saved = "", math.inf, 0
        self.babbles = self.was_frozen = False
        self.peer: Worker | None = None
        self._send, self._checks, self._lease_until = send, checks, lease_until
        checks.started(self)
        self.after(self.world.between(0.05, 0.3), self._build)

    def say(self, kind: type[Message], **fields: Any) -> None:
        self._send(encoded(kind(worker=self.worker, incarnation=self.incarnation, **fields)))

    def _build(self) -> None:
        self.say(Stage, stage="building", pid=self.pid)
        self.every(HEARTBEAT_S, self._beat)
        if not self._checks.hangs(self):
            self.after(self.world.between(0.1, 2.0), self._begin)

    def _begin(self) -> None:
        self.ready = True
        self.say(Stage, stage="ready", pid=self.pid)
        self.every(ACT_S, self._act)
        self.every(REPORT_S, self._report)

    def _beat(self) -> None:
        if self._has_lease():
            self.say(Heartbeat, progress=self.pid)

    def _has_lease(self) -> bool:
        """End this process after its lease: its agent is stopped, else it had ended it."""
        if self.host.now > self._lease_until() + LEASE_GRACE_S:
            self.die(73)
        return self.alive

    def _act(self) -> None:
        if self._has_lease() and not self.leaves:
            self._checks.acted(self)
            if self.babbles:
                self.say(Report, metrics={"no_worker": 1.0})

    def _report(self) -> None:
        if self._has_lease() and self.facts:
            self.say(Report, metrics={}, facts=self.facts)

    # -- what it is told

    def obey(self, frame: bytes) -> None:
        """Execute a command of the controller, which counts on that being done once."""
        command = msgspec.msgpack.decode(frame, type=Command)
        self._checks.obeyed(self, command)
        if command.name == "stop":
            self.leave()
        elif command.name == "final":
            self.after(self.world.between(0.2, TASK_S), self._finish_task)

    def _finish_task(self) -> None:
        self.facts[FINAL] = SCORE
        if not self.world.happens(LOST_EVENT):
            self.say(Event, name=FINAL, facts=SCORE)

    def finish_training(self) -> None:
        """Make the last update."""
        self.facts |= {"updates": 9, "env_steps": 9, "finished": True}
        if not self.world.happens(LOST_EVENT):
            self.say(Event, name="finished", facts={"updates": 9, "env_steps": 9})

    def leave(self) -> None:
        """End in order, as after a SIGTERM."""
        if not self.leaves:
            self.leaves = True
            most_s = SAVE_S if self.worker.startswith("learner") else LEAVE_S
            self.after(self.world.between(0.05, most_s), self._close)

    def _close(self) -> None:
        self._report()
        if self.alive:
            self.saved = self._checks.next_snapshot(self.worker)
            self.say(Bye, facts=self.facts)
            self.die(0)

    def crash(self, error: str) -> None:
        self.error = error
        self.say(Crash, error=error, text="it failed", trace="")
        self.die(1)

    def lose_peer(self, peer: Worker) -> None:
        """Notice that another worker has gone: a rank at once, in its update."""
        self.peer = peer
        is_rank = peer.worker.startswith("learner")
        error, after_s = ("RuntimeError", self.world.between(0.0, 0.1)) if is_rank else ("StreamClosed", NOTICED_S)
        self.after(after_s, lambda: None if self.leaves else self.crash(error))

    def freeze(self) -> None:
        self.was_frozen = True
        super().freeze()

    def ended(self) -> None:
        self.ended_s = self.world.now
