"""The director's worker: connects the decisions of its Tickets to actors, learners and the run folder. Imports no jax."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jsrl.directors.messages import LATEST, Player
from jsrl.directors.ratings import rate
from jsrl.errors import SnapshotError
from jsrl.experiment.policies import wants_scores
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command, CommandDone, ForwardedCommand, Games, Saving, Scores, Stopped
from jsrl.services.runs.standings import LEARNS, StandingsTable
from jsrl.services.snapshots.players import PLAYERS_FOLDER, PlayerStore
from jsrl.transport.base import LATEST_VERSION
from jsrl.workers.base import Reporter
from jsrl.workers.director.in_order import OrderSettings, TicketsInOrder
from jsrl.workers.director.state_file import FOLDER, StateFile
from jsrl.workers.director.tickets import Action, Closing, FromActor, Frozen, Message, Tickets, Write
from jsrl.workers.jobs import STARTS_PER_GENERATION, Job
from jsrl.workers.kinds import make_meter

WAIT_S = 0.002  # between checks for messages
MOST = 100  # rated players besides the latest ones: the newest
CHARTED = 8  # players with metrics of their own: those that learn, and the best
PERIOD_S = 5.0  # between two ratings, which take a while for many players


class Standings:
    """The newest ratings of a director's players. folder: for the table."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._due_s, self._metrics = folder, 0.0, dict[str, float]()

    def look(self, director: Any, state: dict[str, Any]) -> dict[str, float]:
        """Return the metrics of the players, at most a few seconds old; new ones also by player and by pair."""
        if time.monotonic() < self._due_s:
            return self._metrics
        table = self.write(director, state)
        self._due_s = time.monotonic() + PERIOD_S
        return self._metrics | (by_player(table) if table is not None else {})

    def write(self, director: Any, state: dict[str, Any]) -> StandingsTable | None:
        if not hasattr(director, "results"):
            return None
        players, points, games = director.results(state)
        if not players:
            return None
        shown = [i for i, player in enumerate(players) if player.version == LATEST or i >= len(players) - MOST]
        players, points, games = [players[i] for i in shown], points[np.ix_(shown, shown)], games[np.ix_(shown, shown)]
        elo, low, _ = rate(points, games)
        self._metrics = {"players": float(len(players)), "elo_best": float(np.max(elo))}
        if latest := [i for i, player in enumerate(players) if player.version == LATEST]:
            best = max(latest, key=lambda i: elo[i])
            self._metrics |= {"elo_latest": float(elo[best]), "elo_latest_ci95": float(elo[best] - low[best])}
            if (games[best] > 0).any():
                rates = points[best][games[best] > 0] / games[best][games[best] > 0]
                self._metrics |= {"win_rate_mean": float(rates.mean()), "win_rate_least": float(rates.min())}
        table = StandingsTable(tuple(map(str, players)), elo, elo - low, points, games).ranked()
        with contextlib.suppress(OSError):  # a full disk: the run continues without a table
            table.write(self._folder)
        return table


def by_player(table: StandingsTable) -> dict[str, float]:
    """Return `elo/PLAYER`, and `payoff/A/B`: the share of points that A won against B, once for each pair that played."""
    shown = table.best(CHARTED)
    found = {f"elo/{player}": float(elo) for player, elo in zip(shown.players, shown.elo, strict=True)}
    in_order = sorted(
        range(len(shown.players)), key=lambda i: (not shown.players[i].endswith(LEARNS), shown.players[i])
    )
    for home, away in itertools.combinations(in_order, 2):
        if (share := shown.share(home, away)) is not None:
            found[f"payoff/{shown.players[home]}/{shown.players[away]}"] = share
    return found


class DirectorWorker:
    """A worker that connects a director, which is pure, to a run: Tickets get its messages, and it executes their actions.

    Args:
      make: (director, versions of the players, saved state) -> Tickets.
      players: policy -> its frozen players. states: of the director, written with snapshots. poll_s: how long a step may wait.
    """

    def __init__(
        self,
        name: str,
        director: Any,
        make: Callable[..., Tickets],
        players: Mapping[str, PlayerStore],
        states: StateFile,
        reporter: Reporter,
        meter: Meter,
        poll_s: float = 0.1,
    ) -> None:
        self.name, self._director, self._make = name, director, make
        self._players, self._states = dict(players), states
        self._reporter, self.meter, self._meter = reporter, meter, meter
        self._phases, self._poll_s = meter.phases, poll_s
        self._inbox: deque[Command] = deque()
        self._standings, self._counted = Standings(states.folder), 0  # games that were reported

    def setup(self) -> None:
        """Restore the state of an earlier incarnation; its games that no actor plays any more are discarded."""
        self._reporter.stage("reading the director's state")
        versions = {Player(policy): LATEST_VERSION for policy in self._players}
        for policy, store in self._players.items():
            versions |= {Player(policy, name): version for name, version in store.names().items()}
        self.tickets = self._make(self._director, versions=versions, saved=self._states.read())

    def step(self) -> int:
        """Receive messages, execute commands, answer actors; return how much was done."""
        self._phases.enter("direct")
        for player in self.tickets.lacking:
            with contextlib.suppress(SnapshotError):
                version = self._players[player.policy].version(player.version)
                self._execute(self.tickets.handle(Frozen({player: version}), time.monotonic()))
        done = self._turn()
        while self._poll_s == 0.0 and self._inbox:  # the answers of learners in this process
            done += self._turn()
        self._states.write_periodically(lambda: self.tickets.saved)
        if not done and self._poll_s:
            self._phases.enter("wait_learner" if self.tickets.waits_for_learner else "wait")
            time.sleep(WAIT_S)
        self._phases.rest()
        return done

    def _turn(self) -> int:
        return self._receive() + self._execute(self.tickets.tick(time.monotonic()))

    def command(self, command: Command) -> None:
        """Process what the controller passes on: `games` of actors, `done` and `scores` of learners, the first's `saving`."""
        self._inbox.append(command)
        if command.name == "saving":
            self._receive()

    def _receive(self) -> int:
        """Process all waiting messages; return their number."""
        count = len(self._inbox)
        for _ in range(count):
            message = message_of(self._inbox.popleft())
            if message is not None:
                self._execute(self.tickets.handle(message, time.monotonic()))
        return count

    def _execute(self, actions: Sequence[Action]) -> int:
        """Execute actions; return how many gave assignments to an actor."""
        for action in actions:
            if isinstance(action, Write):
                self._states.write(action.version, action.values)
            elif isinstance(action, Stopped):
                self._reporter.event("stop", why=action.why)
            else:
                receiver = {"worker": action.worker} if action.worker else {"policy": action.policy}
                self._reporter.event("command", **receiver, command=action.command, facts=action.facts)
        return sum(isinstance(action, ForwardedCommand) and bool(action.worker) for action in actions)

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        state = self.tickets.state
        self._meter.rate("games", self.tickets.finished - self._counted)
        self._counted = self.tickets.finished
        for name in ("assigned", "finished", "discarded", "late"):
            self._meter.last(name, state[name])
        self._meter.last("open", len(state["open"]))
        figures = getattr(self._director, "figures", None)
        for name, value in (figures(state) if figures is not None else {}).items():
            self._meter.last(name, value)
        for name, value in self._standings.look(self._director, state).items():
            self._meter.last(name, value)
        return self._meter.flush(), {"games": state["finished"]}

    def close(self) -> dict[str, Any]:
        """Write the state a last time; open assignments stay open, and are discarded in a resumed run."""
        self._receive()
        self._execute(self.tickets.handle(Closing(), time.monotonic()))
        self._states.write_periodically(lambda: self.tickets.saved, now=True)
        self._standings.write(self._director, self.tickets.state)
        return {"games": self.tickets.state["finished"]}


def message_of(command: Command) -> Message | None:
    """Return what the controller passed on as a message for Tickets; None: it is not for a director."""
    facts = dict(command.facts)
    worker, incarnation = facts.pop("worker", ""), facts.pop("incarnation", 0)
    if command.name == "games":
        return FromActor(worker, incarnation, msgspec.convert(facts, Games))
    kind = {"done": CommandDone, "scores": Scores, "saving": Saving}.get(command.name)
    return None if kind is None else msgspec.convert(facts, kind)


def build_director(job: Job, reporter: Reporter) -> DirectorWorker:
    e, start = job.experiment, job.start_point
    first = job.run.policies[0]
    players = {
        policy: PlayerStore(Path(job.folder, PLAYERS_FOLDER, "" if policy == first else policy))
        for policy in job.run.policies
    }
    resumes = start.restore is not None and not start.params_only and not job.incarnation
    warn = functools.partial(reporter.event, "warning", once="director")
    states = StateFile(Path(job.folder, FOLDER), start.updates if resumes else None, warn)
    assert job.run.sides is not None
    make = functools.partial(
        functools.partial(TicketsInOrder, order=_order(job)) if e.is_deterministic else Tickets,
        seed=e.seed,
        policies=job.run.policies,
        session=job.incarnation + STARTS_PER_GENERATION * start.generation,
        exact=resumes and start.journal_generation is not None,
        check=job.run.sides.check,
    )
    return DirectorWorker(job.name, e.director, make, players, states, reporter, make_meter(job), job.poll_s)


def _order(job: Job) -> OrderSettings:
    e = job.experiment
    return OrderSettings(
        groups=e.groups,
        learners=len(job.run.policies) if wants_scores(e.director) else 0,
        rows=e.rollout_length,
        begun=job.start_point.updates // e.updates_per_batch,
        updates=e.updates_per_batch,
    )
