"""Supervision: which workers live, who caused a death, and when a worker's next incarnation starts.

    LIVES --- ended, silent or late -------------> DYING --- killed, cause known ---> REPLACED --- Started ---> LIVES
      |                                             |                                    |
      '------------- moves and has left ------------|------------------------------------'
                                                    '--- no restarts left ---> GONE, or the run fails

The shell executes the actions in their order, and answers `Start`, `Kill` and `Observe` with messages. Times are of `now`: one
steady clock without the pauses of the controller's process.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from jsrl.errors import counted
from jsrl.rate_limit import RateLimit
from jsrl.services.runs.control_bodies import REPLAYING, AnyMessage, Bye, Crash, Stage
from jsrl.services.runs.values import Exit

if TYPE_CHECKING:
    from jsrl.experiment.settings import DeadlineConfig, SupervisionConfig

NOT_BEGUN = "starting the interpreter"  # the first stage
GRACE_S = 0.1  # for the last messages of a process that has ended
LEFT = "left without being asked to (a SIGTERM from elsewhere?)"


# -- known from the start -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """What the supervision knows about a worker from the start.

    Attributes:
      kind: of its metrics, for counts. restarts: that it may have within `window_s`.
      ranks: names of all ranks of its learner, the learner first; of another worker, its own.
      saves: its shutdown may take as long as writing a snapshot. keeps_files: its files travel from its host.
      must_finish: the run fails if its shutdown fails. loss_ends_run: the run fails when its restarts are exhausted.
      may_restart: whether it may be replaced, from (exit status, name of its last error or None).
      groups: of environments whose rows it makes. learns: it is told of which groups nobody makes rows now.
    """

    kind: str
    restarts: int
    ranks: tuple[str, ...]
    saves: bool = False
    keeps_files: bool = False
    must_finish: bool = False
    loss_ends_run: bool = True
    may_restart: Callable[[int | None, str | None], bool] = lambda status, error: True
    groups: tuple[int, ...] = ()
    learns: bool = False


# -- messages: what happened, besides the workers' own (jsrl.services.runs.control_bodies) ------------------------------------


@dataclass(frozen=True)
class AboutWorker:
    """A message or an action about one incarnation of a worker."""

    worker: str
    incarnation: int


@dataclass(frozen=True)
class Started(AboutWorker):
    """It was started, on `host` (empty: this one), after so many `restarts`."""

    restarts: int = 0
    host: str = ""


@dataclass(frozen=True)
class NotStarted(AboutWorker):
    """It could not be started."""

    error: str


@dataclass(frozen=True)
class Ended(AboutWorker):
    """Its process has ended."""

    exit: Exit


class Killed(AboutWorker):
    """A `Kill` was executed; `Ended` came before, unless the process is still there."""


@dataclass(frozen=True)
class Observed:
    """The shell looked at all processes, and told of those that have ended.

    Attributes:
      away: workers whose hosts cannot be reached. unheard: those whose hosts send nothing, which is known sooner.
    """

    away: frozenset[str] = frozenset()
    unheard: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Move:
    """A worker should restart on another host."""

    worker: str
    why: str


Message: TypeAlias = AnyMessage | Started | NotStarted | Ended | Killed | Observed | Move


# -- actions: what is to be done -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start(AboutWorker):
    """Start it: Started or NotStarted answers."""

    restarts: int


class Look(AboutWorker):
    """Look at all workers for a report, at this one first, which is killed next."""


class Kill(AboutWorker):
    """End its process: Killed answers."""


class Observe:
    """Look at all processes now: Observed answers."""


@dataclass(frozen=True)
class Send(AboutWorker):
    """Send it a command."""

    command: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Show:
    """Show the user a line, or the stage of a worker."""

    text: str
    level: str = "info"
    stage_of: str = ""


class NoteEnd(AboutWorker):
    """Record that it ended unexpectedly: the ledger may not find its last trajectories."""


@dataclass(frozen=True)
class Died(AboutWorker):
    """Report its death: it is `replaced`, the run goes on without it (`lost`), or `fails`; `text`: about its restarts."""

    what: str
    outcome: Literal["replaced", "lost", "fails"]
    text: str


@dataclass(frozen=True)
class Fail:
    """End the run with this error."""

    text: str


Action: TypeAlias = Start | Look | Kill | Observe | Send | Show | NoteEnd | Died | Fail


# -- state -----------------------------------------------------------------------------------------------------------


class Phase(Enum):
    """Of an incarnation. REPLACED: its next one is planned or being started. GONE: it will have none."""

    LIVES = "lives"
    DYING = "dying"
    REPLACED = "replaced"
    GONE = "gone"


@dataclass
class Life:
    """One incarnation of a worker.

    Attributes:
      restarts: before it. stage: of its start, since `stage_s`; `ready` ends it. started_s: from when its start is timed.
      beat_s: time of its last message. exit: how its process ended. left: it said goodbye. killed: a `Kill` was executed.
      is_away: its host cannot be reached. unheard_s: when its host was last found to send nothing.
      crash: its last error.
      moves: why it was asked to leave at `moves_s`, to restart on another host; empty: it was not.
    """

    worker: str = ""
    incarnation: int = 0
    restarts: int = 0
    host: str = ""
    started_s: float = 0.0
    stage_s: float = 0.0
    beat_s: float = 0.0
    phase: Phase = Phase.LIVES
    stage: str = NOT_BEGUN
    exit: Exit | None = None
    left: bool = False
    killed: bool = False
    is_away: bool = False
    unheard_s: float = -math.inf
    crash: Crash | None = None
    moves: str = ""
    moves_s: float = 0.0

    @property
    def ready(self) -> bool:
        return self.stage == "ready"

    @property
    def is_reachable(self) -> bool:
        """Return whether commands reach it."""
        return self.ready and self.phase is Phase.LIVES

    @property
    def silent_from_s(self) -> float:
        """Return from when its silence counts: while nothing comes from its host, it may be well."""
        return max(self.beat_s, self.unheard_s)

    @property
    def is_absent(self) -> bool:
        """Return whether it worked before and does not now: its replacement is not ready, or its host is away."""
        is_replaced = self.phase in (Phase.REPLACED, Phase.GONE)
        return is_replaced or (self.incarnation > 0 and not self.ready) or self.is_away

    @property
    def has_vanished(self) -> bool:
        """Return whether its process ended without a goodbye, and nothing was done about it yet."""
        return self.exit is not None and not self.left and self.phase in (Phase.LIVES, Phase.DYING)

    @property
    def ending(self) -> str:
        return "still running" if self.exit is None else self.exit.text


@dataclass
class Death:
    """A death before its cause is known, at `decide_s`. `running`: the run went on when it was noticed."""

    what: str
    running: bool
    decide_s: float = math.inf


@dataclass(frozen=True)
class Restart:
    """A planned start, at `due_s`, after so many `restarts`."""

    due_s: float
    incarnation: int
    restarts: int


class Budgets:
    """The restarts that workers may still have.

    Attributes:
      counts: kind -> restarts of its workers so far.
    """

    def __init__(self, rules: Mapping[str, Rules], config: SupervisionConfig) -> None:
        self._rules, self._config = rules, config
        self._used = {worker: RateLimit(rule.restarts, config.window_s) for worker, rule in rules.items()}
        self.counts: Counter[str] = Counter()

    def used(self, worker: str, now: float) -> int:
        """Return the restarts of a worker within the window that ends now."""
        return self._used[worker].used(now)

    def allows(self, worker: str) -> bool:
        """Return whether a worker may be restarted at all."""
        return self._rules[worker].restarts > 0

    def take(self, worker: str, now: float, *, is_free: bool = False) -> float | None:
        """Use one restart: return the seconds to wait before it, or None when the budget is exhausted.

        `is_free`: it is not charged to the budget, if the worker may be restarted at all.
        """
        used = self.used(worker, now)
        if not (self.allows(worker) and (is_free or self._used[worker].spend(now))):
            return None
        self.counts[self._rules[worker].kind] += 1
        return min(self._config.backoff_s * 2.0 ** min(used, 60), self._config.max_backoff_s)

    def text(self, worker: str, now: float) -> str:
        return f"restart {self.used(worker, now)} of {self._rules[worker].restarts} within {self._config.window_s:g} s"

    def used_up(self, worker: str, now: float) -> str:
        """Return that a worker has used its restarts, as text; empty: it has not, or may have none."""
        if not self.allows(worker) or self.used(worker, now) < self._rules[worker].restarts:
            return ""
        return (
            f"{worker} has used its {counted(self._rules[worker].restarts, 'restart')} within {self._config.window_s:g} s. "
            "Restarts do not repair it: see the reason above, or allow more with --restart."
        )


class Supervision:
    """Supervises the workers of a run.

    Args:
      rules: of each worker. deadlines, config: of the experiment. tells_absent: learners hear which groups nobody steps; in
        deterministic runs they wait for them.

    Attributes:
      rules, deadlines: as given. budgets: of restarts. lives: worker -> its newest incarnation.
      failed: the run fails, and nothing is decided any more.
    """

    def __init__(
        self, rules: Mapping[str, Rules], deadlines: DeadlineConfig, config: SupervisionConfig, *, tells_absent: bool
    ) -> None:
        self.rules, self.deadlines, self._tells_absent = rules, deadlines, tells_absent
        self.budgets = Budgets(rules, config)
        self.lives: dict[str, Life] = {}
        self.failed = False
        self._grace_s: dict[str, float] = {}  # worker whose process has ended -> when its last messages are here
        self._dying: dict[str, Death] = {}
        self._restarts: dict[str, Restart] = {}
        self._starting: dict[str, Restart] = {}
        self._told: dict[str, tuple[int, list[int]]] = {}  # learner -> its incarnation, groups it knows as absent
        self._watched: Collection[str] | None = None  # None: all, as the run goes on
        self._tasks: Collection[str] = ()

    @property
    def is_deciding(self) -> bool:
        """Return whether the cause of a death is not known yet."""
        return bool(self._dying)

    # -- messages -----------------------------------------------------------------------------------------------------

    def handle(self, message: Message, now: float) -> list[Action]:
        if isinstance(message, Observed):
            return self._observed(message, now)
        if isinstance(message, Started):
            return self._started(message, now)
        if isinstance(message, NotStarted):
            return self._not_started(message, now)
        life = self.lives.get(message.worker)
        if life is not None and isinstance(message, Move):
            return self._move(life, message.why, now)
        if life is None or isinstance(message, Move) or message.incarnation != life.incarnation:
            return []
        if isinstance(message, Ended):
            life.exit = life.exit or message.exit
        elif isinstance(message, Killed):
            return self._killed(life, now)
        else:
            self._heard(life, message, now)
        return []

    def _heard(self, life: Life, message: AnyMessage, now: float) -> None:
        life.beat_s = now  # any message shows that it is alive
        if isinstance(message, Stage):
            life.stage, life.stage_s = message.stage, now
            if message.stage.startswith(REPLAYING):
                life.started_s = now  # a replay takes as long as the run did
        elif isinstance(message, Crash):
            life.crash = message
        elif isinstance(message, Bye):
            life.left = True

    def _started(self, message: Started, now: float) -> list[Action]:
        if not self._is_answer(message) and message.worker in self.lives:
            return []
        self.lives[message.worker] = Life(
            message.worker, message.incarnation, message.restarts, message.host, now, now, now
        )
        return self._start_due(now)

    def _is_answer(self, message: Started | NotStarted) -> bool:
        """Return whether a message answers to a start, which is then over."""
        planned = self._starting.get(message.worker)
        if planned is None or planned.incarnation != message.incarnation:
            return False
        del self._starting[message.worker]
        return True

    def _not_started(self, message: NotStarted, now: float) -> list[Action]:
        if not self._is_answer(message):
            return []
        what = f"could not be restarted: {message.error}"
        again = self._replace(self.lives[message.worker], now)
        if again is None:
            self.failed = True
            return [Fail(f"{message.worker} {what}")]
        text, actions = again
        return [Show(f"{message.worker} {what}; {text}", "warning"), *actions]

    def _move(self, life: Life, why: str, now: float) -> list[Action]:
        """Ask a worker to leave, so that it restarts on another host; a worker that is just starting is ended.

        All ranks of a learner leave together: those of different incarnations do not meet.
        """
        ranks = [self.lives[name] for name in self.rules[life.worker].ranks]
        if self._watched is not None or any(rank.moves or rank.phase is not Phase.LIVES for rank in ranks):
            return []
        actions: list[Action] = []
        for rank in ranks:
            rank.moves, rank.moves_s = (why if rank is life else f"{life.worker} moves"), now
            who = (rank.worker, rank.incarnation)
            ask = Send(*who, "stop") if rank.is_reachable else Kill(*who)
            actions += [Show("moving to another host", stage_of=rank.worker), ask]
        return actions

    # -- deaths -------------------------------------------------------------------------------------------------------

    def _observed(self, message: Observed, now: float) -> list[Action]:
        """Judge all workers. This is not done in `tick`, so that a dead worker is never called silent."""
        actions: list[Action] = []
        for life in self.lives.values():
            life.is_away = life.worker in message.away
            if life.worker in message.unheard:
                life.unheard_s = now
            if self._is_watched(life) and life.worker not in self._grace_s:
                actions += self._judge(life, now)
        return actions + self._tell_absent()

    def _is_watched(self, life: Life) -> bool:
        is_watched = self._watched is None or life.worker in self._watched
        return is_watched and life.phase is Phase.LIVES and not self.failed

    def _judge(self, life: Life, now: float) -> list[Action]:
        """Check that a worker is alive, becomes ready in time, and sends messages."""
        if life.moves:
            if life.exit is not None or now - life.moves_s >= self.leave_s(life.worker):
                self._grace_s[life.worker] = now + GRACE_S
            return []
        if life.exit is not None:
            if life.left:
                return self._dies(life, LEFT)
            self._grace_s[life.worker] = now + GRACE_S
            return []
        if not life.ready and now - life.started_s > self.deadlines.ready_s:
            limit = f"{self.deadlines.ready_s:g} s (deadlines.ready_s)"
            return self._dies(life, f"was not ready within {limit}; it is still {life.stage!r}")
        if life.ready and now - life.silent_from_s > self._silence_s(life):  # before that: ready_s
            return self._dies(life, silent_text(life, now))
        return []

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for worker in [worker for worker, until_s in self._grace_s.items() if until_s <= now]:
            del self._grace_s[worker]
            actions += self._end_grace(self.lives[worker], now)
        for worker in [worker for worker, death in self._dying.items() if death.decide_s <= now]:
            if worker in self._dying and not self.failed:  # else it was replaced with another rank
                actions += self._decide(self.lives[worker], now)
        return actions + self._start_due(now)

    def _end_grace(self, life: Life, now: float) -> list[Action]:
        if not self._is_watched(life):
            return []  # the run has just ended, and the end handles those that are gone
        if life.moves:
            return self._moved(life, now)
        return self._dies(life, LEFT if life.left else f"ended unexpectedly: {life.ending}")

    def _moved(self, life: Life, now: float) -> list[Action]:
        """Plan the next incarnation of a moving worker that has left, or is late. It costs none of its restarts."""
        late = life.exit is None and not life.left
        what = crash_text(life.worker, life.crash) if life.crash else "it did not leave in order" if late else ""
        text = f"{life.worker} moves, because {life.moves}" + (f" ({what})" if what else "")
        life.phase = Phase.REPLACED
        self._restarts[life.worker] = Restart(now, life.incarnation + 1, life.restarts)
        note = [] if life.left else [NoteEnd(life.worker, life.incarnation)]
        return [*note, Kill(life.worker, life.incarnation), Show(text, "warning" if what else "info")]

    def _dies(self, life: Life, what: str, *, is_found: bool = False, running: bool | None = None) -> list[Action]:
        """Begin a death. `is_found`: as the cause of another one, for which all workers were looked at."""
        life.phase = Phase.DYING
        self._grace_s.pop(life.worker, None)
        self._dying[life.worker] = Death(what, self._watched is None if running is None else running)
        look = [] if is_found else [Look(life.worker, life.incarnation)]
        return [*look, Kill(life.worker, life.incarnation)]

    def _killed(self, life: Life, now: float) -> list[Action]:
        life.killed = True
        death = self._dying.get(life.worker)
        if death is None or death.decide_s < math.inf:
            return []
        if not self._may_be_symptom(life):
            return self._decide(life, now)
        death.decide_s = now + GRACE_S  # for last messages of the others
        return [Observe()]

    def _may_be_symptom(self, life: Life) -> bool:
        """Return whether another worker's end may explain a worker's error."""
        crash = life.crash
        return crash is not None and (crash.error == "StreamClosed" or len(self.rules[life.worker].ranks) > 1)

    def _decide(self, life: Life, now: float) -> list[Action]:
        """Decide what follows from a death: first from that of its cause, if another worker was."""
        death = self._dying[life.worker]
        found = self._cause(life, now) if self._may_be_symptom(life) else None
        if found is None:
            del self._dying[life.worker]
            return self._follow(life, death, now)
        cause, what = found
        death.decide_s = now + GRACE_S
        is_new = cause.phase is Phase.LIVES
        return self._dies(cause, what, is_found=True, running=death.running) if is_new else []

    def _cause(self, life: Life, now: float) -> tuple[Life, str] | None:
        """Return who died first, and how; None: the worker itself.

        A worker whose stream broke is a symptom. All ranks' updates fail if one ended without a message, or has long been
        silent.
        """
        for rank in (self.lives[name] for name in self.rules[life.worker].ranks if name != life.worker):
            if rank.has_vanished and rank.crash is None:
                return rank, f"ended unexpectedly: {rank.ending}"
            if rank.exit is None and rank.phase is Phase.LIVES and now - rank.silent_from_s > self._silence_s(rank) / 2:
                return rank, silent_text(rank, now)
        if life.crash is not None and life.crash.error == "StreamClosed":
            for other in self.lives.values():
                is_symptom = other.crash is not None and other.crash.error == "StreamClosed"
                if other is not life and other.has_vanished and not is_symptom:
                    return other, f"ended unexpectedly: {other.ending}"
        return None

    def _follow(self, life: Life, death: Death, now: float) -> list[Action]:
        """Replace a worker while its budget allows it and the run continues; go on without it, or end the run, otherwise.

        Nobody who dies after the training is replaced: the params' source has left, or leaves. If a worker in its last task
        may be restarted at all, the run ends without the result of this task.
        """
        rules, exit = self.rules[life.worker], life.exit
        note = NoteEnd(life.worker, life.incarnation)
        may_restart = rules.may_restart(exit.status if exit else None, life.crash.error if life.crash else None)
        if death.running and may_restart:
            planned = self._replace(life, now, is_free=self._is_lost_with_host(life, now))
            if planned is not None:
                text, actions = planned
                return [note, Died(life.worker, life.incarnation, death.what, "replaced", text), *actions]
        life.phase = Phase.GONE
        may_miss = not death.running and life.worker in self._tasks and self.budgets.allows(life.worker)
        self.failed = rules.loss_ends_run and not may_miss
        spent = self.budgets.used_up(rules.ranks[0], now)
        return [note, Died(life.worker, life.incarnation, death.what, "fails" if self.failed else "lost", spent)]

    def _is_lost_with_host(self, life: Life, now: float) -> bool:
        """Return whether the loss of a host ended a worker: its own, or that of a rank, without which all ranks' updates fail.

        They fail before the host counts as lost, and also if it returns.
        """
        if life.exit is not None and life.exit.with_host:
            return True
        ranks = [self.lives[name] for name in self.rules[life.worker].ranks]
        return len(ranks) > 1 and any(now - rank.unheard_s < self._silence_s(rank) for rank in ranks)

    def _replace(self, life: Life, now: float, *, is_free: bool = False) -> tuple[str, list[Action]] | None:
        """Plan a worker's next incarnation: return a text about it, and the actions; None: it may not have one.

        All ranks of a learner are replaced together, with equal incarnations; that counts as one restart of the learner,
        or as none if `is_free`.
        """
        ranks = [self.lives[name] for name in self.rules[life.worker].ranks]
        first = ranks[0].worker
        pause_s = self.budgets.take(first, now, is_free=is_free)
        if pause_s is None:
            return None
        text = "started again" if is_free else self.budgets.text(first, now)
        with_all = f", with all {len(ranks)} ranks of {first}" if len(ranks) > 1 else ""
        incarnation, actions = max(rank.incarnation for rank in ranks) + 1, list[Action]()
        for rank in ranks:
            actions += [] if rank.killed else [Kill(rank.worker, rank.incarnation)]
            actions.append(Show("restarting", stage_of=rank.worker))
            rank.phase = Phase.REPLACED
            self._dying.pop(rank.worker, None)
            self._grace_s.pop(rank.worker, None)
            self._restarts[rank.worker] = Restart(now + pause_s, incarnation, rank.restarts + 1)
        return f"{text}, in {pause_s:.2g} s{with_all}", actions

    # -- starts -------------------------------------------------------------------------------------------------------

    def _start_due(self, now: float) -> list[Action]:
        """Start each worker whose pause is over. Ranks start one by one: if one cannot, all start once more."""
        if self.failed or (self._watched is not None and not self._watched):
            return []
        actions: list[Action] = []
        for worker, restart in list(self._restarts.items()):
            waits = restart.due_s > now or any(rank in self._starting for rank in self.rules[worker].ranks)
            is_late = now - restart.due_s >= self.deadlines.snapshot_s
            if waits or not self.lives[worker].killed or (self._acts_elsewhere(worker) and not is_late):
                continue
            self._starting[worker] = self._restarts.pop(worker)
            actions.append(Start(worker, restart.incarnation, restart.restarts))
        return actions

    def _acts_elsewhere(self, worker: str) -> bool:
        """Return whether the last incarnation still acts on another host, or files of a rank are on their way from there.

        The run folder may lack its newest snapshot until then, and its host may have deleted the one that the run folder has.
        """
        away = [self.lives[rank] for rank in self.rules[worker].ranks if self.lives[rank].host]
        away = [life for life in away if life.phase is Phase.REPLACED and life.exit is None]
        return any(life.worker == worker or self._sends_state(life) for life in away)

    def _sends_state(self, life: Life) -> bool:
        return self.rules[life.worker].saves and self.rules[life.worker].keeps_files

    def _tell_absent(self) -> list[Action]:
        """Tell learners which groups nobody steps now, so that the others make their rows."""
        if not self._tells_absent or self._watched is not None or self.failed:
            return []
        absent = sorted(
            {group for life in self.lives.values() if life.is_absent for group in self.rules[life.worker].groups}
        )
        actions: list[Action] = []
        for life in self.lives.values():
            if self.rules[life.worker].learns and life.is_reachable:
                told = (life.incarnation, absent)
                if self._told.get(life.worker, (life.incarnation, [])) != told:
                    actions.append(Send(life.worker, life.incarnation, "absent", {"groups": absent}))
                self._told[life.worker] = told
        return actions

    # -- the end of the run (jsrl.control.ending) ---------------------------------------------------------------------

    def watch(self, workers: Collection[str], tasks: Collection[str]) -> None:
        """Judge and restart only these workers from now on, as the run ends; `tasks`: workers with a last task."""
        self._watched, self._tasks = workers, tasks

    def forget(self, workers: Collection[str]) -> None:
        """Plan no more starts of these workers: their part of the run is over."""
        for worker in workers:
            self._restarts.pop(worker, None)

    def end(self, worker: str) -> list[Action]:
        """End a worker that has nothing to save yet."""
        life = self.lives[worker]
        life.phase = Phase.GONE
        return [Kill(worker, life.incarnation)]

    def shutdown_failed(self, worker: str, what: str) -> list[Action]:
        """Decide what follows from a shutdown that failed."""
        return self._dies(self.lives[worker], what)

    def leave_s(self, worker: str, *, hurries: bool = False) -> float:
        """Return how long a worker may take to leave; `hurries`: the user waits for the end."""
        if self.rules[worker].saves:
            return self.deadlines.snapshot_s
        return self.deadlines.leave_s / 10 if hurries else self.deadlines.leave_s

    def _silence_s(self, life: Life) -> float:
        """Return the seconds without a message after which a worker counts as hung."""
        deadlines, has_ranks = self.deadlines, len(self.rules[life.worker].ranks) > 1
        return min(deadlines.silence_s, deadlines.rank_s) if has_ranks else deadlines.silence_s


class Standstill:
    """Notices that nothing moves, and then only a standstill twice as long: a slow run is not broken."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s, self._moved_s = limit_s, now

    def tick(self, now: float, *, moved: bool) -> float | None:
        """Return for how long nothing has moved, if that is to be reported."""
        if moved:
            self._moved_s = now
        elif now - self._moved_s > self._limit_s:
            self._limit_s *= 2
            return now - self._moved_s
        return None


def silent_text(life: Life, now: float) -> str:
    return f"sent no message for {now - life.silent_from_s:.0f} s (stopped, or stuck in a call that holds the GIL)"


def crash_text(worker: str, crash: Crash) -> str:
    """Return a worker's error as text without the worker's name, which texts about environments begin with."""
    return f"{crash.error}: {crash.text.removeprefix(f'{worker}: ')}"
