"""The director's worker: proposes games to actors, counts outcomes, and lets learners freeze, reset and copy params."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jsrl.directors.base import Report, State, open_assignments
from jsrl.directors.messages import (
    INITIAL,
    LATEST,
    Assignment,
    Copy,
    Freeze,
    Outcome,
    Player,
    Reset,
    Score,
    Stop,
    from_json,
    to_json,
)
from jsrl.directors.messages import Command as Order
from jsrl.directors.ratings import rate
from jsrl.errors import SnapshotError
from jsrl.metrics.metrics import Meter
from jsrl.runs.control_bodies import Command, CommandDone, Games, Lease, Scores
from jsrl.runs.standings import LEARNS, StandingsTable
from jsrl.snapshots.players import PlayerStore
from jsrl.transport.base import LATEST_VERSION
from jsrl.workers.base import Reporter
from jsrl.workers.director.leases import LEFT_OPEN, Leases, leases_of, unknown_policy
from jsrl.workers.director.state_file import StateFile

AGAIN_S = 2.0  # time after which an unconfirmed command is sent again
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
    """A worker that connects a director, which is pure, to a run.

    Learners confirm the director's commands before it proposes again.

    Args:
      director: decides. seed: of its draws. players: policy -> its frozen players; in the order of their numbers.
      states: of the director, written with snapshots.
      exact: environments and assignments continue exactly from that state.
      session: incarnation of this worker; higher than any before. poll_s: how long a step may wait.
      check: raises ConfigError if an assignment cannot be played.
    """

    def __init__(
        self,
        name: str,
        director: Any,
        seed: int,
        players: Mapping[str, PlayerStore],
        states: StateFile,
        reporter: Reporter,
        meter: Meter,
        *,
        session: int,
        exact: bool = False,
        poll_s: float = 0.1,
        check: Callable[[Assignment], None] = lambda one: None,
    ) -> None:
        self.name, self._director, self._seed, self._players = name, director, seed, dict(players)
        self._numbers = {policy: number for number, policy in enumerate(players)}
        self._states, self._reporter, self.meter, self._meter = states, reporter, meter, meter
        self._phases, self._poll_s, self._exact, self._check = meter.phases, poll_s, exact, check
        self._leases = Leases(session)
        self._inbox: deque[Command] = deque()
        self._asking: dict[str, Games] = {}  # each actor's newest unanswered message
        self._orders: deque[Order] = deque()  # the first one is being executed
        self._ticket, self._given_s = session << 20, 0.0  # of the first one: its number, and when it was given last
        self._handed: int | None = None  # version of the state that the first order's source has handed over
        self._versions: dict[Player, int] = {}
        self._standings = Standings(states.folder)
        self._stopped_before = False

    def setup(self) -> None:
        """Restore the state of an earlier incarnation; its games that no actor plays any more are discarded."""
        self._reporter.stage("reading the director's state")
        found = self._states.read()
        if found is None:
            self._state: State = self._director.init(self._seed)
            return
        self._state, self._stopped_before = found.state, found.stops
        self._orders.extend(from_json(order) for order in found.orders)  # type: ignore[misc]
        going_on = self._leases.restore(found.leases) if self._exact else set()
        discarded = [
            Outcome(game, discarded=LEFT_OPEN) for game in open_assignments(self._state) if game not in going_on
        ]
        self._report(discarded)

    def step(self) -> int:
        """Receive messages, execute commands, answer actors; return how much was done."""
        self._phases.enter("direct")
        done = self._receive()
        self._carry_out()
        while self._poll_s == 0.0 and self._orders and self._inbox:  # the answers of learners in this process
            done += self._receive()
        while not self._orders and self._can_propose() and (given := self._propose()):
            done += given
            if self._poll_s == 0.0:
                self._receive()
        self._states.write_periodically(self._kept)
        if not done and self._poll_s:
            self._phases.enter("wait_learner" if self._orders else "wait")
            time.sleep(WAIT_S)
        self._phases.rest()
        return done

    def command(self, command: Command) -> None:
        """Process what the controller passes on: `games` of actors, `done` and `scores` of learners, the first's `saving`."""
        self._inbox.append(command)
        if command.name == "saving":
            self._receive()
            self._carry_out()

    def _receive(self) -> int:
        """Process all waiting messages; return their number. Outcomes are reported together, which copies the state once."""
        count, saving, reports = len(self._inbox), None, list[Report]()
        for _ in range(count):
            command = self._inbox.popleft()
            facts = dict(command.facts)
            worker, incarnation = facts.pop("worker", ""), facts.pop("incarnation", 0)
            if command.name == "games":
                reports += self._receive_from_actor(worker, incarnation, msgspec.convert(facts, Games))
            elif command.name == "done":
                self._confirmed(msgspec.convert(facts, CommandDone))
            elif command.name == "scores":
                reports += [Score(*score) for score in msgspec.convert(facts, Scores).scores]
            elif command.name == "saving":
                saving = int(facts["version"])
        self._report(reports)
        self._meter.rate("games", sum(isinstance(report, Outcome) and not report.discarded for report in reports))
        if saving is not None:
            self._states.write(saving, self._kept())
        return count

    def _receive_from_actor(self, worker: str, incarnation: int, body: Games) -> list[Outcome]:
        outcomes = self._leases.outcomes(worker, incarnation, body.played)
        if self._leases.is_of(worker, incarnation):
            self._asking[worker] = body
        return outcomes

    def _report(self, reports: Sequence[Report]) -> None:
        if reports:
            self._state, orders = self._director.report(self._state, reports)
            self._orders.extend(orders)

    # -- the director's commands --------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Send the first command to its learner, and again if it is not confirmed for a while."""
        while self._orders and isinstance(order := self._orders[0], Stop):
            self._orders.popleft()
            self._stop(order)
        if not self._orders or (self._given_s and time.monotonic() - self._given_s < AGAIN_S):
            return
        order = self._orders[0]
        assert not isinstance(order, Stop)
        named = (order.policy, order.source) if isinstance(order, Copy) else (order.policy,)
        for policy in named:
            if policy not in self._players:
                raise unknown_policy(f"gives the command {order}", policy, self._players)
        if not self._given_s:
            self._ticket += 1
        self._given_s = time.monotonic()
        if isinstance(order, Freeze):
            self._command_learner(order.policy, "freeze", name=order.name)
        elif isinstance(order, Reset):
            source = Player(order.policy, order.source)
            self._command_learner(order.policy, "reset", version=self._version_of(source))
        elif isinstance(order, Copy) and self._handed is None:
            self._command_learner(order.source, "hand_over", to=order.policy)
        elif isinstance(order, Copy):
            facts = {"version": self._handed, "hyperparameters": order.hyperparameters}
            self._command_learner(order.policy, "copy", **facts)

    def _stop(self, order: Stop) -> None:
        """End the run, unless it already ended at this place and was resumed."""
        if self._stopped_before:
            self._stopped_before = False
        else:
            self._reporter.event("stop", why=order.reason or "the director ended the run")

    def _command_learner(self, policy: str, command: str, **facts: Any) -> None:
        self._reporter.event("command", policy=policy, command=command, facts=facts | {"ticket": self._ticket})

    def _confirmed(self, done: CommandDone) -> None:
        if done.ticket != self._ticket or not self._orders:
            return  # a confirmation of a repeated command
        order = self._orders[0]
        self._given_s = 0.0
        if done.error:
            raise SnapshotError(f"the director's command {order} failed: {done.error}")
        if isinstance(order, Copy) and self._handed is None:
            self._handed = done.version  # which the copy can be made of now
        else:
            self._orders.popleft()
            self._handed = None
        if isinstance(order, Freeze):
            self._versions[Player(order.policy, order.name)] = done.version
        self._carry_out()

    # -- assignments --------------------------------------------------------------------------------------------------

    def _can_propose(self) -> bool:
        """Return whether every policy has its first params, which games may use."""
        return all(self._has_initial(policy) for policy in self._players)

    def _has_initial(self, policy: str) -> bool:
        player = Player(policy, INITIAL)
        if player not in self._versions:
            try:
                self._versions[player] = self._players[policy].version(INITIAL)
            except SnapshotError:
                return False
        return True

    def _version_of(self, player: Player) -> int:
        if player.version == LATEST:
            return LATEST_VERSION
        if player not in self._versions:
            self._versions[player] = self._players[player.policy].version(player.version)
        return self._versions[player]

    def _propose(self) -> int:
        asking, self._asking = self._asking, {}
        lacks = {worker: self._leases.short(worker, body) for worker, body in asking.items()}
        found = iter(self._proposed([None] * sum(lacks.values())))
        for worker, count in lacks.items():
            if own := list(itertools.islice(found, count)):
                self._send_to_actor(worker, own, self._leases.give(worker, own))
        return sum(lacks.values())

    def _proposed(self, saved: Sequence[Lease | None]) -> list[Lease]:
        """Return assignments, with a new one for each None."""
        found: list[Assignment] = []
        if new := sum(lease is None for lease in saved):
            self._state, found = self._director.propose(self._state, new)
        for one in found:
            self._check(one)
        leases = leases_of(found, self._leases.session, self._numbers, self._version_of)
        return [next(leases) if lease is None else lease for lease in saved]

    def _send_to_actor(
        self, worker: str, leases: Sequence[Lease], sent: int, slots: Sequence[tuple[int, int]] = ()
    ) -> None:
        bodies = [msgspec.to_builtins(lease) for lease in leases]
        body = {"leases": bodies, "session": self._leases.session, "sent": sent, "slots": list(slots)}
        body["incarnation"] = self._leases.incarnation_of(worker)
        self._reporter.event("command", worker=worker, command="games", facts=body)

    # -- reports and end ----------------------------------------------------------------------------------------------

    def _kept(self) -> dict[str, Any]:
        orders = [to_json(order) for order in self._orders]
        return {"state": self._state, "leases": self._leases.saved(), "orders": orders}

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        for name in ("assigned", "finished", "discarded", "late"):
            self._meter.last(name, self._state[name])
        self._meter.last("open", len(self._state["open"]))
        figures = getattr(self._director, "figures", None)
        for name, value in (figures(self._state) if figures is not None else {}).items():
            self._meter.last(name, value)
        for name, value in self._standings.look(self._director, self._state).items():
            self._meter.last(name, value)
        return self._meter.flush(), {"games": self._state["finished"]}

    def close(self) -> dict[str, Any]:
        """Write the state a last time; open assignments stay open, and are discarded in a resumed run."""
        self._receive()
        self._states.write_periodically(self._kept, now=True)
        self._standings.write(self._director, self._state)
        return {"games": self._state["finished"]}
