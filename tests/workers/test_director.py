"""The director's worker and the assignments of actors, joined without processes: none is lost or counted twice."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from jsrl.directors.fixed import Fixed, LatestSelfPlay, Match
from jsrl.directors.messages import Assignment, Copy, Freeze, Player, Reset, Stop
from jsrl.directors.pools import DeltaUniform
from jsrl.envs.base import Episode
from jsrl.errors import ConfigError, SnapshotError
from jsrl.experiment import Experiment, PolicyConfig
from jsrl.graph.directing import check_director
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command, CommandDone, ForwardedCommand, GameLease, Games, Played, Stopped
from jsrl.services.runs.standings import read_standings
from jsrl.services.snapshots.players import PlayerStore
from jsrl.transport.base import LATEST_VERSION, NOT_PLAYED
from jsrl.types import ArraySpec, Discrete, GameSpec, Seat, make_version
from jsrl.workers.attached.directed import DirectorGate
from jsrl.workers.attached.selfplay import DirectedLineup, PlayedSeats
from jsrl.workers.base import NullReporter
from jsrl.workers.director.leases import Leases, leases_of, result_of
from jsrl.workers.director.state_file import StateFile
from jsrl.workers.director.tickets import AGAIN_S, ExecutedTickets, FromActor, Frozen, SavedState, Tickets
from jsrl.workers.director.worker import DirectorWorker, Standings
from jsrl.workers.jobs import sides_of
from jsrl.workers.learner.seams import LearnerState, Skip
from tests.marks import nightly, slow
from tests.tiny_agent import TinyConfig

SPEC = GameSpec(tuple(Seat(name, ArraySpec((1,), "float32"), Discrete(2)) for name in ("left", "right")), "duel")
SLOTS = 3
VERSIONS = {Player("main"): LATEST_VERSION, Player("main", "initial"): 0}


class MessageQueue(NullReporter):
    """The messages of a worker, by kind of event."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict]] = []

    def event(self, name: str, text: str = "", **facts) -> None:
        self.said.append((name, json.loads(json.dumps(facts))))


def group_of(number: int, spec: GameSpec = SPEC, num_envs: int = 0) -> Any:
    """Return what self-play sees of a group of environments."""
    return SimpleNamespace(number=number, env=SimpleNamespace(spec=spec, num_envs=num_envs))


class Fleet:
    """Actors, a learner and a director whose messages are delivered by hand, and lost where one of them dies."""

    def __init__(self, director, actors: int = 3) -> None:
        self.plan, self.saved, self.versions, self.now = director, None, dict(VERSIONS), 0.0
        self.updates, self.lives, self.played = 0, 0, []
        self.actors = {f"actor-{i}": self._actor(0) for i in range(actors)}
        self.start_director()

    def save(self) -> None:
        self.saved = SavedState(**json.loads(json.dumps(self.tickets.saved)))

    def start_director(self) -> None:
        self.tickets = Tickets(self.plan, 7, ("main",), self.versions, session=self.lives, saved=self.saved)
        self.lives += 1

    def _actor(self, incarnation: int):
        wire = MessageQueue()
        assignments = DirectedLineup([PlayedSeats(0, (0, 1))], incarnation=incarnation, reporter=wire, in_order=False)
        assignments.join(group_of(0, SPEC, SLOTS), 0)
        self.over = getattr(self, "over", {}) | {id(assignments): list(range(SLOTS))}
        return assignments, wire, incarnation

    def kill_actor(self, name: str) -> None:
        self.actors[name] = self._actor(self.actors[name][2] + 1)

    def turn(self, rng: np.random.Generator) -> None:
        """Let each process do one step, and deliver all messages."""
        self.now += 1.0
        for name, (assignments, wire, incarnation) in self.actors.items():
            self._play(name, assignments, rng)
            assignments.send()
            for _, facts in wire.said:
                self.tickets.handle(FromActor(name, incarnation, msgspec.convert(facts, Games)), self.now)
            wire.said.clear()
        self.deliver(self.tickets.tick(self.now))
        if rng.random() < 0.2:
            self.save()

    def deliver(self, actions: list) -> None:
        for action in actions:
            if action.policy:
                self._learn(action.command, action.facts)
            else:
                assignments, _, _ = self.actors[action.worker]
                assignments.command(Command("games", json.loads(json.dumps(action.facts))))

    def _learn(self, command: str, facts: dict) -> None:
        self.updates += 1
        version = make_version(0, self.updates)
        if command == "freeze":
            self.versions[Player("main", facts["name"])] = version
        self.tickets.handle(CommandDone(facts["ticket"], version), self.now)

    def _play(self, name: str, assignments: DirectedLineup, rng: np.random.Generator) -> None:
        if not assignments.ready(group_of(0)):
            return
        assignments.opened(0, self.over[id(assignments)])
        over = self.over[id(assignments)] = np.flatnonzero(rng.random(SLOTS) < 0.3).tolist()
        for slot in over:
            lease = assignments._slots[0].leases[slot]
            assert lease is not None
            self.played.append((lease.session, lease.id))
            wins = rng.random() < 0.5
            returns = (1.0, -1.0) if wins else (-1.0, 1.0)
            length = 10 if returns[0] > 0 else 100
            assignments.ended(0, [Episode(slot, 0.0, length, True, {}, returns)])

    @property
    def state(self) -> dict:
        return self.tickets.state


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    """Let actors send their messages at once."""
    monkeypatch.setattr("jsrl.workers.attached.selfplay.TELL_S", 0.0)
    monkeypatch.setattr("jsrl.workers.attached.selfplay.URGE_S", 0.0)


@pytest.mark.parametrize("seed", [0, slow(1), nightly(2), nightly(3)])
def test_every_assignment_ends_once_under_kills(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fleet = Fleet(DeltaUniform(freeze_env_steps=2000))
    for turn in range(200):
        fleet.turn(rng)
        event = rng.random()
        if event < 0.05:
            fleet.kill_actor(f"actor-{rng.integers(3)}")
        elif event < 0.08:
            if rng.random() < 0.5:
                fleet.save()  # otherwise it continues from its last state
            fleet.start_director()
        state = fleet.state
        assert state["assigned"] == state["finished"] + state["discarded"] + len(state["open"]), turn
    assert len(set(fleet.played)) == len(fleet.played), "an assignment was played twice"
    state = fleet.state
    assert state["finished"] > 250 and state["discarded"] > 10 and state["pools"]["main"]["num_frozen"] > 3
    assert all(
        assignments.ready(group_of(0)) or len(assignments._needs) <= SLOTS
        for assignments, _, _ in fleet.actors.values()
    )
    for _ in range(3):
        fleet.turn(rng)
    assert all(assignments.ready(group_of(0)) for assignments, _, _ in fleet.actors.values()), "an actor waits forever"


@pytest.mark.slow
def test_win_rates_are_fair_while_actors_die() -> None:
    """The opponent wins in 10 steps and loses in 100; half of all assigned games are won, under any deaths."""
    rng = np.random.default_rng(1)
    wins: list[float] = []

    class Counting(Fixed):
        def report(self, state, reports):
            wins.extend(outcome.result[0] for outcome in reports if not outcome.discarded)
            return super().report(state, reports)

    fleet = Fleet(Counting((Match(("main", "main@initial")),)))
    for turn in range(300):
        fleet.turn(rng)
        if turn % 7 == 0:
            fleet.kill_actor(f"actor-{turn % 3}")
    assert len(wins) > 250 and abs(np.mean(wins) - 0.5) < 0.08
    assert fleet.state["discarded"] > 20


def test_assignments_follow_sides_and_only_learning_seats_train() -> None:
    assignments = DirectedLineup([PlayedSeats(1, (0, 1))], reporter=NullReporter(), in_order=False)
    (cast,) = assignments.join(group_of(4, SPEC, 2), 0)
    assert not assignments.ready(group_of(4))
    leases = [
        GameLease(0, 0, [(1, 5), (1, LATEST_VERSION)], [False, True]),
        GameLease(1, 0, [(1, -1), (2, 9)], [True, True]),
    ]
    assignments.take(leases, 0, 2)
    assert assignments.ready(group_of(4))
    assignments.opened(4, [0, 1])
    assert cast.version.tolist() == [[5, LATEST_VERSION], [LATEST_VERSION, NOT_PLAYED]]
    acts = np.array([[1, 1], [1, 2]], np.uint8)
    assert cast.kinds(acts).tolist() == [[0, 1], [1, 0]]
    assert cast.versions(np.array([[1, 0], [0, 1]], np.uint8)).tolist() == [[5, NOT_PLAYED], [NOT_PLAYED, NOT_PLAYED]]


def test_assignments_for_a_replaced_actor_do_not_reach_its_successor() -> None:
    """The successor would count them as received, and get as many as its predecessor ever had in advance."""
    rng = np.random.default_rng(0)
    fleet = Fleet(LatestSelfPlay(policies=("main",)), actors=1)
    for _ in range(100):
        fleet.turn(rng)
    asked = Games([], 2 * SLOTS, 0, fleet.actors["actor-0"][0]._received, fleet.lives - 1)
    fleet.tickets.handle(FromActor("actor-0", 0, asked), fleet.now)
    fleet.kill_actor("actor-0")  # before the director answers: it may wait for a learner
    fleet.deliver(fleet.tickets.tick(fleet.now))
    for _ in range(5):
        fleet.turn(rng)
        assert fleet.actors["actor-0"][0]._received == fleet.tickets._leases._holders["actor-0"].sent


def test_an_assignment_to_an_unknown_policy_is_refused() -> None:
    late = Assignment(50, (Player("main"), Player("mian", "a")), (True, False), (0, 1), seed=0)
    with pytest.raises(
        ConfigError, match="assigns mian@a in game 50, but the run has no policy 'mian'; it has: main, rival"
    ):
        list(leases_of([late], 0, {"main": 0, "rival": 1}, lambda player: 1))


def test_actor_takes_each_assignment_once_and_tells_each_director_how_many_arrived() -> None:
    """A message may come twice, after a later one, or from an earlier director; what was lost before it comes again."""
    wire = MessageQueue()
    assignments = DirectedLineup([PlayedSeats(0, (0, 1))], reporter=wire, in_order=False)
    assignments.join(group_of(0, SPEC, 4), 0)
    leases = [
        [GameLease(number, session, [(0, -1), (0, -1)], [True, True]) for number in range(9)] for session in (4, 5)
    ]
    for session, ids, sent, received in (
        (4, [0], 1, 1), (4, [0], 1, 1), (4, [2], 3, 1), (4, [1, 2], 3, 3), (4, [1, 2, 3], 4, 4),
        (5, [0], 1, 1), (4, [4], 5, 1),
    ):  # fmt: skip
        assignments.take([leases[session - 4][number] for number in ids], session, sent)
        assignments._sent_s = assignments._named_s = -9.0  # as if the last message was long ago
        assignments.send()
        said = wire.said[-1][1]
        assert said["received"] == received and len(said["holds"]) == received
    assert said["session"] == 5


def test_assignments_that_do_not_arrive_are_given_again() -> None:
    tickets = Tickets(LatestSelfPlay(("main",), num_sides=2), 7, ("main",), VERSIONS, session=1)
    (given,) = asked(tickets, Games([], 2, 0, 0, 1))
    assert asked(tickets, Games([], 2, 0, 0, 1), AGAIN_S - 0.1) == []
    assert asked(tickets, Games([], 2, 0, 0, 1), AGAIN_S) == [given]
    (more,) = asked(tickets, Games([], 4, 1, 1, 1), 2 * AGAIN_S)
    assert [lease["id"] for lease in more.facts["leases"]] == [1, 2, 3] and more.facts["sent"] == 4


def test_a_game_whose_outcome_is_lost_is_discarded() -> None:
    """It is received, and neither kept nor reported; those that are on their way are not meant."""
    tickets = Tickets(LatestSelfPlay(("main",), num_sides=2), 7, ("main",), VERSIONS, session=1)
    asked(tickets, Games([], 3, 0, 0, 1))
    asked(tickets, Games([Played(1, 1, 5, [1.0, 0.0])], 0, 0, 2, 1, holds=[]))
    assert (tickets.state["finished"], tickets.state["discarded"], list(tickets.state["open"])) == (1, 1, ["2"])
    asked(tickets, Games([Played(0, 1, 5, [1.0, 0.0])], 0, 0, 3, 1, holds=[2]))
    assert (tickets.state["finished"], tickets.state["discarded"], tickets.state["late"]) == (1, 1, 0)


def test_waiting_recurrent_seats_keep_acting() -> None:
    assignments = DirectedLineup([PlayedSeats(0, (0, 1), True)], reporter=NullReporter(), in_order=False)
    (cast,) = assignments.join(group_of(0, SPEC, 1), 0)
    assignments.take([GameLease(0, 0, [(0, 5), (0, LATEST_VERSION)], [False, True])], 0, 1)
    assignments.opened(0, [0])
    assert cast.versions(np.zeros((1, 2), np.uint8)).tolist() == [[5, LATEST_VERSION]]


def test_dead_seats_get_a_value_and_waiting_ones_nothing() -> None:
    """With `values` acting, the value function learns from the values that come with the rows of dead seats (acts 2)."""
    assignments = DirectedLineup([PlayedSeats(0, (0, 1))], reporter=NullReporter(), in_order=False)
    (players,) = assignments.join(group_of(0, SPEC, 2), 0)
    asked = players.versions(np.array([[0, 1], [2, 0]], np.uint8))
    assert asked.tolist() == [[NOT_PLAYED, LATEST_VERSION], [LATEST_VERSION, NOT_PLAYED]]


class ScriptedOrders:
    """A director that gives these orders with its first report."""

    policies = ("main",)

    def __init__(self, *orders) -> None:
        self.orders, self.inner = list(orders), LatestSelfPlay(("main",), num_sides=2)
        self.init, self.propose = self.inner.init, self.inner.propose

    def report(self, state, reports):
        orders, self.orders = self.orders, []
        return self.inner.report(state, reports)[0], orders


def ordering(*orders, session: int = 1) -> tuple[Tickets, list]:
    """Return tickets whose director has just given these orders, and the first actions that follow."""
    tickets = Tickets(ScriptedOrders(*orders), 7, ("main",), VERSIONS, session=session)
    (given,) = asked(tickets, Games([], 1, 0, 0, session))
    (lease,) = given.facts["leases"]
    return tickets, asked(tickets, Games([Played(lease["id"], session, 5, [1.0, 0.0])], 1, 0, 1, session))


def asked(tickets: Tickets, body: Games, now: float = 0.0) -> list:
    """Return the actions after a message of an actor."""
    return [*tickets.handle(FromActor("actor-0", 0, body), now), *tickets.tick(now)]


def confirm(tickets: Tickets, command: ForwardedCommand, version: int = 5, error: str = "") -> list:
    done = CommandDone(command.facts["ticket"], version, error)
    return [*tickets.handle(done, 0.0), *tickets.tick(0.0)]


def test_no_proposals_before_confirmed_orders_and_lost_orders_are_given_again() -> None:
    tickets, (freeze,) = ordering(Freeze("main", "a"), Reset("main", "a"), Stop("done"))
    assert (freeze.policy, freeze.command, freeze.facts["name"]) == ("main", "freeze", "a")
    assert tickets.tick(AGAIN_S - 0.1) == [] and tickets.tick(AGAIN_S) == [freeze] and tickets.tick(AGAIN_S + 0.1) == []
    (reset,) = confirm(tickets, freeze, version=5)
    assert (reset.command, reset.facts["version"]) == ("reset", 5) and reset.facts["ticket"] > freeze.facts["ticket"]
    assert confirm(tickets, freeze) == [], "a confirmation that comes twice confirms nothing"
    stop, proposal = confirm(tickets, reset)
    assert stop == Stopped("done") and proposal.command == "games" and not tickets.waits_for_learner


def test_copy_is_handed_over_before_it_is_taken() -> None:
    """A director that restarts in between begins with the hand-over again."""
    tickets, (hand_over,) = ordering(Copy("main", "main", {"rate": 0.5}))
    assert (hand_over.command, hand_over.facts["to"]) == ("hand_over", "main")
    (copy,) = confirm(tickets, hand_over, version=77)
    assert copy.command == "copy" and tickets.tick(AGAIN_S) == [copy]
    assert copy.facts | {"ticket": 0} == {"ticket": 0, "version": 77, "hyperparameters": {"rate": 0.5}}
    saved = SavedState(**json.loads(json.dumps(tickets.saved)))
    later = Tickets(ScriptedOrders(), 7, ("main",), VERSIONS, session=2, saved=saved)
    (again,) = later.tick(0.0)
    assert again.command == "hand_over" and confirm(later, copy) == [], "an earlier incarnation gave that command"
    (copy,) = confirm(later, again, version=78)
    confirm(later, copy)
    assert copy.facts["version"] == 78 and not later.waits_for_learner


def test_command_refused_by_a_learner_ends_the_director() -> None:
    tickets, (freeze,) = ordering(Freeze("main", "a"))
    with pytest.raises(SnapshotError, match="the disk is full"):
        confirm(tickets, freeze, error="the disk is full")


@pytest.mark.parametrize("order", [Freeze("mian", "a"), Reset("mian"), Copy("main", "mian"), Copy("mian", "main")])
def test_a_command_to_an_unknown_policy_is_refused(order) -> None:
    """No learner would confirm it, and the run would wait for ever."""
    with pytest.raises(
        ConfigError, match=r"gives the command .*'mian'.*, but the run has no policy 'mian'; it has: main"
    ):
        ordering(order)


def test_a_player_that_was_never_frozen_is_refused() -> None:
    with pytest.raises(SnapshotError, match=r"no player is called main@b\. There are: main@latest, main@initial"):
        ordering(Reset("main", "b"))


def test_no_game_is_proposed_before_the_first_params_are_there() -> None:
    latest = {Player("main"): LATEST_VERSION}
    tickets = Tickets(LatestSelfPlay(("main",), num_sides=2), 7, ("main",), latest, session=1)
    assert asked(tickets, Games([], 2, 0, 0, 1)) == [] and tickets.lacking == [Player("main", "initial")]
    tickets.handle(Frozen({Player("main", "initial"): 0}), 0.0)
    (given,) = tickets.tick(0.0)
    assert len(given.facts["leases"]) == 2 and tickets.tick(0.0) == []


def test_director_that_restarts_goes_on_from_its_file(tmp_path: Path) -> None:
    """It proposes once the first params are frozen; a game that nobody plays any more is discarded."""
    store, sent = PlayerStore(tmp_path / "players"), MessageQueue()

    def begin(session: int) -> DirectorWorker:
        worker = DirectorWorker(
            "director", LatestSelfPlay(("main",), num_sides=2),
            functools.partial(Tickets, seed=7, policies=("main",), session=session), {"main": store},
            StateFile(tmp_path / "director", None, pytest.fail), sent, Meter("director"), poll_s=0.0,
        )  # fmt: skip
        worker.setup()
        return worker

    def ask(worker: DirectorWorker) -> list[tuple[str, dict]]:
        facts = msgspec.to_builtins(Games([], 1, 0, 0, 0)) | {"worker": "actor-0", "incarnation": 0}
        worker.command(Command("games", facts))
        worker.step()
        return sent.said

    worker = begin(0)
    assert ask(worker) == []
    store.freeze("initial", 0, [np.zeros(1)])
    ((_, facts),) = ask(worker)
    assert (facts["worker"], facts["facts"]["sent"], facts["facts"]["leases"][0]["id"]) == ("actor-0", 1, 0)
    worker.close()
    assert ask(begin(1))[-1][1]["facts"]["leases"][0]["id"] == 1
    later = begin(2)
    assert (later.tickets.state["assigned"], later.tickets.state["discarded"]) == (1, 1)


def test_messages_of_a_replaced_actor_change_nothing() -> None:
    tickets = Tickets(LatestSelfPlay(("main",), num_sides=2), 7, ("main",), VERSIONS, session=1)
    (given,) = asked(tickets, Games([], 1, 0, 0, 1))
    ended = Games([Played(given.facts["leases"][0]["id"], 1, 5, [1.0, 0.0])], 1, 0, 1, 1)
    tickets.handle(FromActor("actor-0", 1, Games([], 0, 0, 0, 1)), 0.0)  # its next incarnation
    assert asked(tickets, ended) == []
    assert (tickets.state["finished"], tickets.state["discarded"]) == (0, 1)


def test_learner_executes_a_ticket_once() -> None:
    """Also if it comes again, late, or after a restart from a snapshot that has its effect."""
    executed = ExecutedTickets()
    assert executed.handle(1) == [1]
    assert executed.handle(CommandDone(1, 5)) == [CommandDone(1, 5)] == executed.handle(1)
    assert executed.handle(2) == [2] and executed.handle(CommandDone(2, 6)) == [CommandDone(2, 6)]
    assert executed.handle(1) == []
    assert ExecutedTickets(executed.done).handle(2) == [CommandDone(2, 6)]


def test_reset_is_executed_once_though_its_learner_restarts_before_it_is_confirmed() -> None:
    """The snapshot holds the reset, and the director gives it again."""
    heard, players, nothing = MessageQueue(), SimpleNamespace(load=lambda version: [version]), cast("Any", None)

    def begin(meta: dict) -> DirectorGate:
        found = DirectorGate(
            nothing, cast("Any", players), lambda values, updates: (values, updates), nothing, None, heard,
            freezes=False, on_policy=True, meta=meta,
        )  # fmt: skip
        found.begin(LearnerState(9, 9, 9, None))
        return found

    reset, saved = {"version": 5, "ticket": 3}, list[dict]()
    first = begin({})
    first.command(
        "reset", reset, LearnerState(7, 7, 7, None), lambda: saved.append(json.loads(json.dumps(first.meta())))
    )
    later = begin(saved[-1])
    batch = cast("Any", SimpleNamespace(trajectory=SimpleNamespace(version=np.full((1, 2, 1), 99))))
    assert later.before(LearnerState(9, 9, 9, "old"), batch) == Skip(([5], 7))
    later.command("reset", reset, LearnerState(12, 12, 12, None), pytest.fail)
    assert (
        later.before(LearnerState(12, 12, 12, "new"), batch) == "new"
        and heard.said == [("done", {"ticket": 3, "version": 7, "error": ""})] * 2
    )


def test_slots_keep_their_assignments_after_a_resume() -> None:
    """Also at other actors."""
    leases = Leases(3)
    leases.outcomes("actor-0", 0, [])
    given = [GameLease(5, 3, [(0, -1)], [True]), GameLease(6, 3, [(0, -1)], [True])]
    leases.give("actor-0", given, 0.0, [(0, 2), (0, 1)])
    later = Leases(9)
    assert [entry[:2] for entry in leases.saved()] == [[0, 1], [0, 2]]
    assert later.restore(json.loads(json.dumps(leases.saved()))) == {5, 6}
    found = [later.returning(0, slot) for slot in (1, 2)]
    assert [(lease.id, lease.session) for lease in found if lease is not None] == [(6, 9), (5, 9)]
    assert later.returning(0, 1) is None


def test_assignments_that_are_on_their_way_are_not_given_again() -> None:
    leases = Leases(3)
    leases.outcomes("actor-0", 0, [])
    assert leases.short("actor-0", Games([], 5, 1, 0, session=3)) == 4
    leases.give("actor-0", [GameLease(number, 3, [(0, -1)], [True]) for number in range(4)], 0.0)
    assert leases.short("actor-0", Games([], 5, 1, 0, session=3)) == 0
    assert leases.short("actor-0", Games([], 5, 2, 4, session=3)) == 3
    assert (
        leases.short("actor-0", Games([], 5, 4, 9, session=2)) == 1
    )  # of an earlier director: what it gave is discarded


def test_games_that_an_earlier_director_assigned_do_not_count() -> None:
    """A director that is restarted from an older state gives the numbers of lost assignments again."""
    leases = Leases(3)
    leases.outcomes("actor-0", 0, [])
    leases.give("actor-0", [GameLease(5, 3, [(0, -1)], [True])], 0.0)
    assert leases.outcomes("actor-0", 0, [Played(5, 2, 9, [1.0])]) == []
    assert [outcome.returns for outcome in leases.outcomes("actor-0", 0, [Played(5, 3, 7, [2.0])])] == [(2.0,)]


@pytest.mark.parametrize(
    ("returns", "result"),
    [((1.0, -1.0), (1.0, 0.0)), ((2.0, 2.0), (0.5, 0.5)), ((0.0, 3.0, 3.0), (0.0, 0.5, 0.5)), ((4.0,), None)],
)
def test_the_side_with_the_highest_return_wins(returns, result) -> None:
    assert result_of(returns) == result


class ChangesSides(Fixed):
    """A director that lets the policies change their sides from the ninth game on."""

    def propose(self, state, count):
        state, found = super().propose(state, count)
        return state, [dataclasses.replace(one, sides=one.sides[::-1]) if one.id >= 8 else one for one in found]


def test_every_assignment_is_checked_when_it_is_proposed() -> None:
    director = ChangesSides((Match(("left", "right")),))
    run = Experiment(policies={name: PolicyConfig(TinyConfig(), seats=name) for name in ("left", "right")})
    sides = sides_of(SPEC, {"left": {"left": 0}, "right": {"right": 1}})
    check_director(dataclasses.replace(run, director=director), sides, dict.fromkeys(("left", "right")))
    versions = {Player(name, version): 0 for name in ("left", "right") for version in ("latest", "initial")}
    tickets = Tickets(director, 7, ("left", "right"), versions, session=0, check=sides.check)
    assert len(asked(tickets, Games([], 8, 0, 0, 0))[0].facts["leases"]) == 8
    with pytest.raises(ConfigError, match=r"lets 'left' play side 1 \(right\), whose seats it does not all have"):
        asked(tickets, Games([], 9, 0, 8, 0))


def test_ratings_and_payoffs_of_the_best_players_are_metrics(tmp_path: Path) -> None:
    """Each pair once, whoever is ahead; pairs that did not play are left out, and so are players beyond the best."""
    players = [Player("main", "latest"), *(Player("main", f"frozen-{i}") for i in range(1, 11))]
    games = np.zeros((11, 11))
    games[0, 1:], games[1:, 0] = 10.0, 10.0
    points = games * np.linspace(1.0, 0.0, 11)[:, None]  # frozen-1 wins 9 of 10 games
    points[0, 1:] = 10.0 - points[1:, 0]
    standings = Standings(tmp_path / "director")
    metrics = standings.look(SimpleNamespace(results=lambda state: (players, points, games)), {})
    assert metrics["payoff/main@latest/main@frozen-1"] == pytest.approx(0.1)
    assert metrics["payoff/main@latest/main@frozen-3"] == pytest.approx(0.3)
    assert sum(name.startswith("elo/") for name in metrics) == 7 and "elo/main@frozen-7" not in metrics
    assert sum(name.startswith("payoff/") for name in metrics) == 6
    table = read_standings(tmp_path)
    assert table is not None and table.players[0] == "main@frozen-1" and table.elo[0] == metrics["elo_best"]
    assert metrics["elo/main@frozen-1"] == metrics["elo_best"] > metrics["elo/main@latest"] == metrics["elo_latest"]
