"""The director's worker and the assignments of actors, joined without processes: none is lost or counted twice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from jsrl.directors.fixed import Fixed, LatestSelfPlay, Match
from jsrl.directors.messages import Assignment, Copy, Freeze, Player, Reset, Stop
from jsrl.directors.pools import DeltaUniform
from jsrl.envs.base import Episode
from jsrl.errors import ConfigError, SnapshotError
from jsrl.experiment import Experiment, PolicyConfig
from jsrl.launch.directing import check_director
from jsrl.metrics.metrics import Meter
from jsrl.runs.control_bodies import Command, Games, Lease, Played
from jsrl.runs.standings import read_standings
from jsrl.snapshots.players import PlayerStore
from jsrl.transport.base import LATEST_VERSION, NOT_PLAYED
from jsrl.types import ArraySpec, Discrete, GameSpec, Seat, make_version
from jsrl.workers.actor.assignments import Assignments
from jsrl.workers.actor.worker import Actor, ActorSettings
from jsrl.workers.base import NullReporter
from jsrl.workers.director import worker as module
from jsrl.workers.director.leases import Leases, leases_of, result_of
from jsrl.workers.director.state_file import StateFile
from jsrl.workers.director.worker import DirectorWorker, Standings
from jsrl.workers.jobs import sides_of
from tests.marks import nightly, slow
from tests.tiny_agent import TinyConfig

SPEC = GameSpec(tuple(Seat(name, ArraySpec((1,), "float32"), Discrete(2)) for name in ("left", "right")), "duel")
SLOTS = 3


class MessageQueue(NullReporter):
    """The messages of a worker, by kind of event."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict]] = []

    def event(self, name: str, text: str = "", **facts) -> None:
        self.said.append((name, json.loads(json.dumps(facts))))


class Fleet:
    """Actors, a learner and a director whose messages are delivered by hand, and lost where one of them dies."""

    def __init__(self, folder: Path, director, actors: int = 3) -> None:
        self.folder, self.plan = folder, director
        self.store = PlayerStore(folder / "players")
        self.store.freeze("initial", 0, [np.zeros(1)])
        self.updates, self.lives, self.played, self.stops = 0, 0, [], []
        self.actors = {f"actor-{i}": self._actor(0) for i in range(actors)}
        self.start_director()

    def start_director(self) -> None:
        self.wire = MessageQueue()
        states = StateFile(self.folder / "director", None, pytest.fail)
        self.worker = DirectorWorker(
            "director", self.plan, 7, {"main": self.store}, states, self.wire, Meter("director"), session=self.lives,
            poll_s=0.0,
        )  # fmt: skip
        self.lives += 1
        self.worker.setup()

    def _actor(self, incarnation: int):
        wire = MessageQueue()
        assignments = Assignments([(0, (0, 1))], [False], reporter=wire, in_order=False)
        assignments.join(0, SPEC, SLOTS)
        self.over = getattr(self, "over", {}) | {id(assignments): list(range(SLOTS))}
        return assignments, wire, incarnation

    def kill_actor(self, name: str) -> None:
        self.actors[name] = self._actor(self.actors[name][2] + 1)

    def turn(self, rng: np.random.Generator) -> None:
        """Let each process do one step, and deliver all messages."""
        for name, (assignments, wire, incarnation) in self.actors.items():
            self._play(name, assignments, rng)
            assignments.send()
            for event, facts in wire.said:
                self.worker.command(Command(event, facts | {"worker": name, "incarnation": incarnation}))
            wire.said.clear()
        self.worker.step()
        self.deliver()

    def deliver(self) -> None:
        said, self.wire.said = self.wire.said, []
        for event, facts in said:
            if event == "stop":
                self.stops.append(facts["why"])
            elif facts.get("policy"):
                self._learn(facts["command"], facts["facts"])
            else:
                assignments, _, incarnation = self.actors[facts["worker"]]
                actor: Any = SimpleNamespace(_assignments=assignments, _settings=ActorSettings(1, incarnation))
                Actor.command(actor, Command("games", facts["facts"]))

    def _learn(self, command: str, facts: dict) -> None:
        self.updates += 1
        if command == "freeze":
            self.store.freeze(facts["name"], make_version(0, self.updates), [np.full(1, self.updates)])
        done = {"ticket": facts["ticket"], "version": make_version(0, self.updates)}
        self.worker.command(Command("done", done | {"worker": "learner", "incarnation": 0}))

    def _play(self, name: str, assignments: Assignments, rng: np.random.Generator) -> None:
        if not assignments.is_ready(0):
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
        return self.worker._state


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    """Make everything due at once."""
    monkeypatch.setattr("jsrl.workers.actor.assignments.TELL_S", 0.0)
    monkeypatch.setattr("jsrl.workers.actor.assignments.URGE_S", 0.0)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    monkeypatch.setattr("jsrl.workers.director.state_file.PERIOD_S", 0.01)


@pytest.mark.parametrize("seed", [0, slow(1), nightly(2), nightly(3)])
def test_every_assignment_ends_once_under_kills(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fleet = Fleet(tmp_path, DeltaUniform(freeze_env_steps=2000))
    for turn in range(200):
        fleet.turn(rng)
        event = rng.random()
        if event < 0.05:
            fleet.kill_actor(f"actor-{rng.integers(3)}")
        elif event < 0.08:
            if rng.random() < 0.5:
                fleet.worker.close()  # otherwise it continues from its last state
            fleet.start_director()
        state = fleet.state
        assert state["assigned"] == state["finished"] + state["discarded"] + len(state["open"]), turn
    assert len(set(fleet.played)) == len(fleet.played), "an assignment was played twice"
    state = fleet.state
    assert state["finished"] > 250 and state["discarded"] > 10 and state["pools"]["main"]["num_frozen"] > 3
    assert all(
        assignments.is_ready(0) or len(assignments._needs) <= SLOTS for assignments, _, _ in fleet.actors.values()
    )
    for _ in range(3):
        fleet.turn(rng)
    assert all(assignments.is_ready(0) for assignments, _, _ in fleet.actors.values()), "an actor waits forever"


@pytest.mark.slow
def test_win_rates_are_fair_while_actors_die(tmp_path: Path) -> None:
    """The opponent wins in 10 steps and loses in 100; half of all assigned games are won, under any deaths."""
    rng = np.random.default_rng(1)
    fleet = Fleet(tmp_path, Fixed((Match(("main", "main@initial")),)))
    wins: list[float] = []
    report = fleet.worker._director.report

    class Counting:
        policies = ("main",)
        init, propose = fleet.plan.init, fleet.plan.propose

        def report(self, state, reports):
            wins.extend(outcome.result[0] for outcome in reports if not outcome.discarded)
            return report(state, reports)

    fleet.worker._director = Counting()
    for turn in range(300):
        fleet.turn(rng)
        if turn % 7 == 0:
            fleet.kill_actor(f"actor-{turn % 3}")
    assert len(wins) > 250 and abs(np.mean(wins) - 0.5) < 0.08
    assert fleet.state["discarded"] > 20


def test_assignments_follow_sides_and_only_learning_seats_train() -> None:
    assignments = Assignments([(1, (0, 1))], [False], reporter=NullReporter(), in_order=False)
    (cast,) = assignments.join(4, SPEC, 2)
    assert not assignments.is_ready(4)
    leases = [Lease(0, 0, [(1, 5), (1, LATEST_VERSION)], [False, True]), Lease(1, 0, [(1, -1), (2, 9)], [True, True])]
    assignments.take(leases, 0, 2)
    assert assignments.is_ready(4)
    assignments.opened(4, [0, 1])
    assert cast.version.tolist() == [[5, LATEST_VERSION], [LATEST_VERSION, NOT_PLAYED]]
    acts = np.array([[1, 1], [1, 2]], np.uint8)
    assert cast.trained(acts).tolist() == [[0, 1], [1, 0]]
    assert cast.asked(np.array([[1, 0], [0, 1]], np.uint8)).tolist() == [[5, NOT_PLAYED], [NOT_PLAYED, NOT_PLAYED]]


def test_assignments_for_a_replaced_actor_do_not_reach_its_successor(tmp_path: Path) -> None:
    """The successor would count them as received, and get as many as its predecessor ever had in advance."""
    rng = np.random.default_rng(0)
    fleet = Fleet(tmp_path, LatestSelfPlay(policies=("main",)), actors=1)
    for _ in range(100):
        fleet.turn(rng)
    asked = Games([], 2 * SLOTS, 0, fleet.actors["actor-0"][0]._received, fleet.lives - 1)
    fleet.worker.command(Command("games", msgspec.to_builtins(asked) | {"worker": "actor-0", "incarnation": 0}))
    fleet.kill_actor("actor-0")  # before the director answers: it may wait for a learner
    fleet.worker.step()
    fleet.deliver()
    for _ in range(5):
        fleet.turn(rng)
        assert fleet.actors["actor-0"][0]._received == fleet.worker._leases._holders["actor-0"].sent


def test_greedy_assignments_are_refused_because_actors_sample() -> None:
    players, learns = (Player("main", "a"), Player("main", "b")), (False, False)
    plain, greedy = (Assignment(3, players, learns, (0, 1), seed=0, greedy=value) for value in (False, True))
    assert [lease.id for lease in leases_of([plain], 0, {"main": 0}, lambda player: 1)] == [3]
    with pytest.raises(ConfigError, match="assignment 3 as a greedy game"):
        list(leases_of([greedy], 0, {"main": 0}, lambda player: 1))


def test_an_assignment_to_an_unknown_policy_is_refused() -> None:
    late = Assignment(50, (Player("main"), Player("mian", "a")), (True, False), (0, 1), seed=0)
    with pytest.raises(
        ConfigError, match="assigns mian@a in game 50, but the run has no policy 'mian'; it has: main, rival"
    ):
        list(leases_of([late], 0, {"main": 0, "rival": 1}, lambda player: 1))


@pytest.mark.parametrize("order", [Freeze("mian", "a"), Reset("mian"), Copy("main", "mian"), Copy("mian", "main")])
def test_a_command_to_an_unknown_policy_is_refused(order, tmp_path: Path) -> None:
    """No learner would confirm it, and the run would wait for ever."""
    fleet, rng = Fleet(tmp_path, ScriptedOrders(order)), np.random.default_rng(0)
    with pytest.raises(
        ConfigError, match=r"gives the command .*'mian'.*, but the run has no policy 'mian'; it has: main"
    ):
        for _ in range(50):
            fleet.turn(rng)


def test_actor_tells_a_new_director_how_many_of_its_assignments_have_arrived() -> None:
    wire = MessageQueue()
    assignments = Assignments([(0, (0, 1))], [False], reporter=wire, in_order=False)
    assignments.join(0, SPEC, 4)
    for session, sent in ((4, 5), (4, 6), (5, 2)):
        assignments.take([Lease(0, session, [(0, -1), (0, -1)], [True, True])], session, sent)
        assignments._sent_s = 0.0  # as if the last message was long ago
        assignments.send()
        assert (wire.said[-1][1]["session"], wire.said[-1][1]["received"]) == (session, sent)


def test_waiting_recurrent_seats_keep_acting() -> None:
    assignments = Assignments([(0, (0, 1))], [True], reporter=NullReporter(), in_order=False)
    (cast,) = assignments.join(0, SPEC, 1)
    assignments.take([Lease(0, 0, [(0, 5), (0, LATEST_VERSION)], [False, True])], 0, 1)
    assignments.opened(0, [0])
    assert cast.asked(np.zeros((1, 2), np.uint8)).tolist() == [[5, LATEST_VERSION]]


def test_dead_seats_get_a_value_and_waiting_ones_nothing() -> None:
    """With `values` acting, the value function learns from the values that come with the rows of dead seats (acts 2)."""
    assignments = Assignments([(0, (0, 1))], [False], reporter=NullReporter(), in_order=False)
    (players,) = assignments.join(0, SPEC, 2)
    asked = players.asked(np.array([[0, 1], [2, 0]], np.uint8))
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


def test_no_proposals_before_confirmed_orders_and_lost_orders_are_resent(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fleet = Fleet(tmp_path, ScriptedOrders(Freeze("main", "a"), Reset("main", "a"), Stop("done")))
    saved, fleet._learn = fleet._learn, lambda command, facts: asked.append((command, facts))
    asked: list = []
    while not asked:
        fleet.turn(rng)
    assigned = fleet.state["assigned"]
    for _ in range(5):
        fleet.turn(rng)
    assert fleet.state["assigned"] == assigned and {command for command, _ in asked} == {"freeze"} and len(asked) > 3
    saved(*asked[0])
    fleet._learn = saved
    for _ in range(5):
        fleet.turn(rng)
    assert fleet.stops == ["done"] and fleet.state["assigned"] > assigned


def test_copy_is_handed_over_before_it_is_taken_and_both_are_resent(tmp_path: Path) -> None:
    """The parent's learner dies with the order, then the child's, then the director: each order is sent again."""
    rng = np.random.default_rng(0)
    fleet = Fleet(tmp_path, ScriptedOrders(Copy("main", "main", {"rate": 0.5})))
    asked: list[tuple[str, dict]] = []
    fleet._learn = lambda command, facts: asked.append((command, facts))
    while len(asked) < 3:
        fleet.turn(rng)
    assert {command for command, _ in asked} == {"hand_over"} and asked[0][1]["to"] == "main"
    assigned, (_, first) = fleet.state["assigned"], asked[0]
    fleet.worker.command(Command("done", {"ticket": first["ticket"], "version": 77}))
    asked.clear()
    while len(asked) < 3:
        fleet.turn(rng)
    assert {command for command, _ in asked} == {"copy"} and fleet.state["assigned"] == assigned
    assert asked[0][1] | {"ticket": 0} == {"ticket": 0, "version": 77, "hyperparameters": {"rate": 0.5}}
    late = asked[0][1]["ticket"]
    fleet.worker.close()
    fleet.start_director()
    asked.clear()
    fleet.turn(rng)
    fleet.worker.command(
        Command("done", {"ticket": late, "version": 1})
    )  # from before the restart: it confirms nothing
    fleet.turn(rng)
    assert {command for command, _ in asked} == {"hand_over"}, "the next incarnation starts with the hand-over"
    fleet._learn = lambda command, facts: fleet.worker.command(
        Command("done", {"ticket": facts["ticket"], "version": 1})
    )
    for _ in range(5):
        fleet.turn(rng)
    assert not fleet.worker._orders and fleet.state["assigned"] > assigned


def test_unconfirmed_order_is_resent_after_a_restart(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fleet = Fleet(tmp_path, ScriptedOrders(Freeze("main", "a"), Freeze("main", "b")))
    saved, fleet._learn = fleet._learn, lambda command, facts: None
    while not fleet.worker._orders:
        fleet.turn(rng)
    fleet.worker.close()
    fleet._learn = saved
    fleet.start_director()
    for _ in range(6):
        fleet.turn(rng)
    assert {"a", "b"} <= fleet.store.names().keys() and not fleet.worker._orders


def test_command_refused_by_a_learner_ends_the_director(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fleet = Fleet(tmp_path, ScriptedOrders(Freeze("main", "a")))
    fleet._learn = lambda command, facts: fleet.worker.command(
        Command("done", {"ticket": facts["ticket"], "error": "the disk is full"})
    )
    with pytest.raises(SnapshotError, match="the disk is full"):
        for _ in range(50):
            fleet.turn(rng)


def test_slots_keep_their_assignments_after_a_resume() -> None:
    """Also at other actors."""
    leases = Leases(3)
    leases.outcomes("actor-0", 0, [])
    given = [Lease(5, 3, [(0, -1)], [True]), Lease(6, 3, [(0, -1)], [True])]
    leases.give("actor-0", given, [(0, 2), (0, 1)])
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
    leases.give("actor-0", [Lease(number, 3, [(0, -1)], [True]) for number in range(4)])
    assert leases.short("actor-0", Games([], 5, 1, 0, session=3)) == 0
    assert leases.short("actor-0", Games([], 5, 2, 4, session=3)) == 3
    assert (
        leases.short("actor-0", Games([], 5, 4, 9, session=2)) == 1
    )  # of an earlier director: what it gave is discarded


def test_games_that_an_earlier_director_assigned_do_not_count() -> None:
    """A director that is restarted from an older state gives the numbers of lost assignments again."""
    leases = Leases(3)
    leases.outcomes("actor-0", 0, [])
    leases.give("actor-0", [Lease(5, 3, [(0, -1)], [True])])
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


def test_every_assignment_is_checked_when_it_is_proposed(tmp_path: Path) -> None:
    director = ChangesSides((Match(("left", "right")),))
    run = Experiment(policies={name: PolicyConfig(TinyConfig(), seats=name) for name in ("left", "right")})
    sides = sides_of(SPEC, {"left": {"left": 0}, "right": {"right": 1}})
    check_director(dataclasses.replace(run, director=director), sides, dict.fromkeys(("left", "right")))
    stores = {name: PlayerStore(tmp_path / name) for name in ("left", "right")}
    for store in stores.values():
        store.freeze("initial", 0, [np.zeros(1)])
    states = StateFile(tmp_path / "director", None, pytest.fail)
    worker = DirectorWorker(
        "director", director, 7, stores, states, MessageQueue(), Meter("director"), session=0, check=sides.check
    )
    worker.setup()
    assert len(worker._proposed([None] * 8)) == 8
    with pytest.raises(ConfigError, match=r"lets 'left' play side 1 \(right\), whose seats it does not all have"):
        worker._proposed([None])


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
