"""A director in a deterministic run: its assignments do not depend on the order of arrival of messages."""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from jsrl.directors.plr import PLR
from jsrl.directors.pools import DeltaUniform
from jsrl.envs.base import Episode
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command, GameLease
from jsrl.services.snapshots.players import PlayerStore
from jsrl.types import make_version
from jsrl.workers.attached.selfplay import DirectedLineup, PlayedSeats
from jsrl.workers.director.in_order import Merge, OrderSettings, TicketsInOrder
from jsrl.workers.director.state_file import StateFile
from jsrl.workers.director.worker import DirectorWorker
from tests.workers.test_director import SPEC, MessageQueue, group_of

GROUPS, SLOTS, ROWS = 3, 2, 4
TEAM = dataclasses.replace(SPEC, seats=tuple(dataclasses.replace(seat, side="all") for seat in SPEC.seats))


def test_next_message_is_chosen_once_no_earlier_one_can_arrive() -> None:
    merge = Merge(OrderSettings(groups=2, learners=1, rows=4, begun=0, updates=1))
    merge.add(1, 0, "b0")
    assert merge.next() is None  # group 0 may still send a message of step 0
    merge.add(0, 2, "a2")
    assert [merge.take(place) for place in iter(merge.next, None)] == [
        "b0"
    ]  # group 1 may still send a message of step 1
    merge.add(1, 4, "b4")
    assert [merge.take(place) for place in iter(merge.next, None)] == ["a2"]
    merge.add(0, 4, "a4")
    assert [merge.take(place) for place in iter(merge.next, None)] == ["a4", "b4"]
    merge.add(0, 5, "a5")
    assert merge.next() is None and not merge.is_past(4)  # the learner's scores of the rows up to step 4 come before it
    merge.add(2, 4, "scores")
    merge.add(1, 6, "b6")
    assert [merge.take(place) for place in iter(merge.next, None)] == ["scores", "a5"]


class RandomOrderRun:
    """Actors of one group each, a learner and a director, in random order."""

    def __init__(self, folder: Path, director, seed: int) -> None:
        self.random, self.folder, self.store = np.random.default_rng(seed), folder, PlayerStore(folder / "players")
        self.store.freeze("initial", 0, [np.zeros(1)])
        self.wire, self.updates, self.scored = MessageQueue(), 0, isinstance(director, PLR)
        order = OrderSettings(groups=GROUPS, learners=int(self.scored), rows=ROWS, begun=0, updates=1)
        states = StateFile(folder / "director", None, pytest.fail)
        self.worker = DirectorWorker(
            "director", director, functools.partial(TicketsInOrder, seed=7, policies=("main",), session=0, order=order),
            {"main": self.store}, states, self.wire, Meter("director"), poll_s=0.0,
        )  # fmt: skip
        self.worker.setup()
        self.actors = [
            DirectedLineup([PlayedSeats(0, (0, 1))], reporter=MessageQueue(), in_order=True) for _ in range(GROUPS)
        ]
        self.steps, self.over = [0] * GROUPS, [list(range(SLOTS))] * GROUPS
        for group, assignments in enumerate(self.actors):
            assignments.join(group_of(group, TEAM if self.scored else SPEC, SLOTS), 0)
        self.mail: list[tuple[str, str, dict]] = []

    def play(self, group: int) -> None:
        """Make a step of a group; a fixed rule ends its episodes."""
        assignments = self.actors[group]
        if assignments.ready(group_of(group)) and self.steps[group] < (self.updates + 1) * ROWS:
            assignments.opened(group, self.over[group])
            step = self.steps[group] = self.steps[group] + 1
            drawn = [zlib.crc32(bytes([group, slot, step])) for slot in range(SLOTS)]
            self.over[group] = [slot for slot in range(SLOTS) if drawn[slot] % 5 < 2]
            returns = {slot: (1.0, -1.0) if drawn[slot] % 7 < 4 else (-1.0, 1.0) for slot in self.over[group]}
            ended = [Episode(slot, 0.0, 3, True, {}, returns[slot]) for slot in self.over[group]]
            assignments.ended(group, ended, step, is_last=step % ROWS == 0)
        assignments.send()
        said, assignments._reporter.said = assignments._reporter.said, []
        self.mail += [(f"actor-{group}", event, facts) for event, facts in said]

    def learn(self) -> None:
        """Make an update once all groups have delivered their trajectories, and sometimes write a snapshot."""
        if any(
            not a.may_commit(group_of(g)) or s < (self.updates + 1) * ROWS
            for g, (a, s) in enumerate(zip(self.actors, self.steps, strict=True))
        ):
            return
        self.updates += 1
        if self.scored:
            self.mail.append(("learner", "scores", {"scores": [(self.updates, *[0.5] * 4)], "batches": self.updates}))
        if self.updates % 5 == 0:
            self.mail.append(("learner", "saving", {"version": make_version(0, self.updates)}))

    def carry(self) -> None:
        """Deliver about half of the messages; those of one sender in order."""
        for _ in range(len(self.mail) // 2 + 1 if self.mail else 0):
            sender = self.mail[int(self.random.integers(len(self.mail)))][0]
            number = next(i for i, (name, _, _) in enumerate(self.mail) if name == sender)
            name, event, facts = self.mail.pop(number)
            self.worker.command(Command(event, facts | {"worker": name, "incarnation": 0}))

    def turn(self) -> None:
        who = int(self.random.integers(GROUPS + 3))
        if who < GROUPS:
            self.play(who)
        elif who == GROUPS:
            self.learn()
        elif who == GROUPS + 1:
            self.carry()
        else:
            self.worker.step()
            self.deliver()

    def deliver(self) -> None:
        said, self.wire.said = self.wire.said, []
        for _, facts in said:
            body = facts["facts"]
            if facts.get("policy"):
                version = make_version(0, self.updates)
                self.store.freeze(body["name"], version, [np.full(1, self.updates)])
                self.worker.command(Command("done", {"ticket": body["ticket"], "version": version}))
                continue
            leases = [msgspec.convert(one, GameLease) for one in body["leases"]]
            group = int(facts["worker"].removeprefix("actor-"))
            self.actors[group].take(leases, body["session"], body["sent"], [tuple(slot) for slot in body["slots"]])

    def run(self, updates: int) -> dict[str, dict]:
        """Return the states written beside snapshots."""
        last = self.folder / "director" / f"state-{make_version(0, updates)}.json"
        for _ in range(100_000):
            self.turn()
            if last.exists():
                return {path.name: json.loads(path.read_text()) for path in sorted(last.parent.glob("state-*"))}
        raise AssertionError(f"it stands still: {self.steps} steps, {self.updates} updates")


@pytest.mark.slow
@pytest.mark.parametrize(
    "director", [DeltaUniform(freeze_env_steps=30, latest_share=0.3), PLR(num_levels=9, capacity=4)]
)
def test_worker_speed_does_not_change_the_order(tmp_path: Path, director, monkeypatch) -> None:
    monkeypatch.setattr("jsrl.workers.attached.selfplay.URGE_S", 0.0)  # unanswered messages are repeated continually
    fleets = [RandomOrderRun(tmp_path / str(seed), director, seed) for seed in range(3)]
    first, *others = [fleet.run(20) for fleet in fleets]
    assert len(first) == 4 and all(other == first for other in others)
    last = first[f"state-{make_version(0, 20)}.json"]
    assert (
        last["state"]["finished"] > 60
        and len(last["leases"]) == GROUPS * SLOTS
        and last["orders"] == []
        and not last["stops"]
    )
    assert [fleet.store.names() for fleet in fleets[1:]] == [fleets[0].store.names()] * 2


def test_last_snapshot_keeps_its_state_when_one_group_is_ahead(tmp_path: Path) -> None:
    """Actors play until they are stopped, so that messages of the next trajectory are pending at the end of a run."""
    fleet = RandomOrderRun(tmp_path, DeltaUniform(freeze_env_steps=30, latest_share=0.3), 0)
    while fleet.updates < 5:
        fleet.turn()
    (saving,) = [mail for mail in fleet.mail if mail[1] == "saving"]
    fleet.mail.remove(saving)
    last = GROUPS - 1  # at equal steps it comes after the others, so that its messages wait for them
    while fleet.steps[last] <= 5 * ROWS or not fleet.over[last]:
        fleet.play(last)
        fleet.carry()
        fleet.worker.step()
        fleet.deliver()
    fleet.mail.append(saving)
    while fleet.mail:
        fleet.carry()
    fleet.worker.close()
    assert (tmp_path / "director" / f"state-{make_version(0, 5)}.json").exists()
