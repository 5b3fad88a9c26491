"""The decisions of a host's agent, without sockets or processes, with a clock moved by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jsrl.cluster import messages as wire
from jsrl.cluster.agent import (
    Action,
    Arrived,
    Ask,
    BeginMembership,
    CannotJoin,
    Connected,
    DiskFull,
    End,
    Ended,
    Execute,
    ExtendLease,
    FilesSent,
    HostAgent,
    KillAll,
    Message,
    Notify,
    NotStarted,
    Ready,
    Received,
    Repeat,
    Send,
    SendBeat,
    SendFiles,
    SignalWorker,
    StartWorker,
    ToldToEnd,
    UseOwnKey,
)
from jsrl.services.runs.control_bodies import Command

LEASE_S = 15.0
LEFT = "this host has left the run: its agent was told to end"


class World:
    """An agent that is a member, and all its actions so far."""

    def __init__(self, membership: int = 1, max_starts: int = 3) -> None:
        self.agent, self.now_s = HostAgent("a", "10.0.0.5:7000", max_starts, 0.0, 120.0, 30.0), 0.0
        self.done, self.num_orders = list[Action](), 0
        if membership:
            self.tell(Connected(True))
            self.hear(wire.Welcome(membership, LEASE_S))

    def tell(self, message: Message) -> list[Action]:
        actions = self.agent.handle(message, self.now_s)
        self.done += actions
        return actions

    def hear(self, message: wire.AnyControllerMessage) -> list[Action]:
        return self.tell(Received(message))

    def order(self, order: wire.Order) -> list[Action]:
        self.num_orders += 1
        return self.hear(msgspec.structs.replace(order, number=self.num_orders))  # type: ignore[arg-type]

    def begin(self, worker: str = "actor-0", incarnation: int = 0, **changes: Any) -> list[Action]:
        return self.order(wire.Begin(self.agent.membership, "actor", worker, incarnation, b"{}", {}, **changes))

    def tick(self, now_s: float) -> list[Action]:
        self.now_s = now_s
        actions = self.agent.tick(now_s)
        self.done += actions
        return actions

    def answer(self) -> None:
        """Let the controller answer a beat of now."""
        self.hear(wire.BeatReceived(self.agent.membership, self.now_s))

    def of(self, kind: type) -> list[Any]:
        return [action for action in self.done if isinstance(action, kind)]

    @property
    def started(self) -> list[tuple[str, int]]:
        return [(action.begin.worker, action.begin.incarnation) for action in self.of(StartWorker)]

    @property
    def exits(self) -> list[str]:
        return [action.message.text for action in self.of(Send) if isinstance(action.message, wire.Exited)]

    @property
    def saves(self) -> list[tuple[str, int]]:
        """Return the workers that were asked for a snapshot."""
        frame = msgspec.msgpack.encode(Command("snapshot"))
        commands = [action.message for action in self.of(Execute) if isinstance(action.message, wire.WorkerCommand)]
        return [(command.worker, command.incarnation) for command in commands if command.frame == frame]


@pytest.fixture
def world() -> World:
    return World()


# -- joining


def test_agent_shows_the_join_key_and_then_joins_with_its_own() -> None:
    world = World(membership=0)
    assert world.tick(0.0) == [Ask(False, 0)] and not world.tick(0.1)
    assert world.hear(wire.Admitted(0)) == [UseOwnKey()] and not world.hear(wire.Admitted(0))
    assert world.tick(0.6) == [Ask(True, 0)]
    begin, lease, told = [action for action in world.hear(wire.Welcome(4, LEASE_S)) if not isinstance(action, KillAll)]
    assert (begin, lease) == (BeginMembership([]), ExtendLease(0.6 + LEASE_S))
    assert told == Notify("joined the run at 10.0.0.5:7000 as a") and world.agent.membership == 4
    assert not world.hear(wire.Welcome(4, LEASE_S)) and not world.hear(wire.Welcome(3, LEASE_S))  # late
    assert isinstance(world.tick(1.2)[0], SendBeat)


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (Received(wire.Refused(0, "no")), 1, "the controller at 10.0.0.5:7000 refused this host: no"),
        (Received(wire.Refused(1, "no")), wire.REPLACED, "the controller at 10.0.0.5:7000 refused this host: no"),
        (Received(wire.Farewell(1, "the run has ended")), 0, "the run has ended"),
        (CannotJoin("its key has moved"), 1, "its key has moved"),
    ],
)
def test_agent_ends_with_a_sentence(world: World, message: Message, status: int, text: str) -> None:
    (end,) = world.tell(message)
    assert isinstance(end, End) and end.status == status and end.why.startswith(text)
    assert not world.tell(message) and not world.tick(1e3)


def test_agent_that_finds_no_controller_ends_after_its_patience() -> None:
    world = World(membership=0)
    world.tick(119.0)
    assert world.tick(121.0) == [End(1, "no answer from 10.0.0.5:7000 within 120 s; is the run there?")]


def test_messages_of_earlier_memberships_are_dropped(world: World) -> None:
    world.hear(wire.Welcome(2, LEASE_S))
    for late in (wire.Stored(1, "x", 1), wire.Farewell(1, ""), wire.BeatReceived(1, 1.0)):
        assert not world.hear(late)
    assert world.hear(wire.Stored(2, "x", 1)) == [Execute(wire.Stored(2, "x", 1))]


# -- the lease


@pytest.mark.parametrize(
    ("last_reply_s", "returns_s", "saves_s", "ends_s"),
    [
        (9.5, None, [12.0], 16.0),  # the controller's process was killed
        (9.5, 13.0, [12.0, 21.0], 25.0),  # the connection was made again, and then nobody answers
        (3.0, None, [14.5], 18.5),  # ZeroMQ closed it, because the link is down
    ],
)
def test_closed_connection_ends_the_lease_sooner_unless_it_is_made_again(
    world: World, last_reply_s: float, returns_s: float | None, saves_s: list[float], ends_s: float
) -> None:
    world.begin("learner", keeps=["snapshots/state"])
    world.now_s = last_reply_s
    world.answer()
    saved_s = list[float]()
    for now_s in (half / 2 for half in range(20, 80)):
        world.now_s = now_s
        if now_s in (10.5, returns_s):
            world.tell(Connected(now_s == returns_s))
        world.tick(now_s)
        saved_s += [now_s] * (len(world.saves) - len(saved_s))
        if not world.agent.membership:
            break
    assert now_s == ends_s and saved_s == saves_s  # a learner has 4 s to write a snapshot
    assert world.of(KillAll) and world.agent.was_lost


def test_agent_that_was_stopped_for_long_still_tries_to_join_again(world: World) -> None:
    """It has not looked for the controller in that time."""
    for name in ("actor-0", "actor-1", "actor-2"):
        world.begin(name)
    actions = world.tick(600.0)
    line = "no message from the controller for 600 s: 3 workers ended; joining again"
    assert actions == [KillAll(), Notify(line), Ask(False, 1)]
    assert not world.hear(wire.Welcome(1, LEASE_S))  # late, of the membership that has ended
    world.tick(719.0)
    assert not world.of(End)
    world.tick(721.0)
    assert world.of(End)


def test_answers_extend_the_lease_from_the_beat_that_they_answer(world: World) -> None:
    world.now_s = 10.0
    assert world.hear(wire.BeatReceived(1, 8.0)) == [ExtendLease(23.0)]
    assert world.hear(wire.BeatReceived(1, 7.0)) == [ExtendLease(23.0)]  # late
    assert world.hear(wire.BeatReceived(1, 99.0)) == [ExtendLease(25.0)]  # no beat of this agent
    world.tick(25.0)
    assert world.agent.membership
    world.tick(25.1)
    assert not world.agent.membership


def test_a_new_connection_repeats_what_may_be_lost_with_the_previous_one(world: World) -> None:
    world.begin()
    world.tell(Ended("actor-0", 0, 1, "exit 1", "tail"))
    assert world.exits == ["exit 1"]
    exited = wire.Exited(1, "actor-0", 0, 1, "exit 1", "tail")
    assert not world.tell(Connected(False))
    assert world.tell(Connected(True)) == [Repeat(), Send(exited)]
    assert world.tell(Connected(True)) == [Repeat(), Send(exited)]  # lost and made again between two looks
    world.hear(wire.Welcome(2, LEASE_S))
    assert world.tell(Connected(True)) == [Repeat()]


# -- orders and workers


def test_agent_executes_orders_once_and_in_order(world: World) -> None:
    commands = [wire.WorkerCommand(1, "actor-0", 0, b"%d" % number, number=number) for number in range(5)]
    for number in (1, 3, 1, 2, 3, 3, 2, 4):  # 2 is lost at first, and all that is not confirmed is sent again
        world.hear(commands[number])
    assert [action.message.frame for action in world.of(Execute)] == [b"1", b"2", b"3", b"4"]
    (beat,) = world.tick(1.0)
    assert isinstance(beat, SendBeat) and beat.executed == 4
    world.hear(wire.Welcome(2, LEASE_S))
    assert world.hear(wire.WorkerCommand(2, "actor-0", 0, b"first", number=1))


def test_worker_waits_for_its_modules_which_stay_in_later_memberships(world: World) -> None:
    digest = "0" * 64
    world.begin(code=digest)
    assert not world.tick(1.0)[1:] and not world.started
    world.tell(Arrived(digest))
    assert world.started == [("actor-0", 0)]
    world.hear(wire.Welcome(2, LEASE_S))
    world.num_orders = 0
    world.begin(code=digest)
    assert world.started == [("actor-0", 0)] * 2


def test_each_incarnation_is_started_once_and_ends_the_earlier_one(world: World) -> None:
    for incarnation in (0, 0, 2, 1, 2):
        world.begin(incarnation=incarnation)
    assert world.started == [("actor-0", 0), ("actor-0", 2)]
    assert world.of(SignalWorker) == [SignalWorker("actor-0", 0, "kill")]


def test_as_many_forked_workers_start_at_once_as_the_cores_can_take(world: World) -> None:
    for number in range(9):
        world.begin(f"actor-{number}", forks=True)
    world.begin("inference-0")  # actors may wait for it
    assert [name for name, _ in world.started] == ["actor-0", "actor-1", "actor-2", "inference-0"]
    for worker in ("actor-1", "inference-0"):
        world.tell(Ready(worker, 0))
    world.tick(1.0)
    assert [name for name, _ in world.started[4:]] == ["actor-3"]
    world.answer()
    world.tick(10.0)  # those that are not ready wait for something else
    assert [name for name, _ in world.started[5:]] == ["actor-4", "actor-5", "actor-6"]
    world.order(wire.Signal(1, "actor-8", 0, "kill"))
    assert world.exits == ["ended before its start"]
    world.answer()
    world.tick(20.0)
    assert [name for name, _ in world.started[8:]] == ["actor-7"]


def test_signals_reach_workers_that_run(world: World) -> None:
    world.begin()
    assert world.order(wire.Signal(1, "actor-0", 0, "pause")) == [SignalWorker("actor-0", 0, "pause")]
    assert not world.order(wire.Signal(1, "actor-0", 1, "kill"))
    world.tell(Ended("actor-0", 0, 0, "exit 0", ""))
    assert not world.order(wire.Signal(1, "actor-0", 0, "kill"))


def test_end_of_a_worker_is_reported_once_the_run_folder_has_its_files(world: World) -> None:
    world.begin("learner", keeps=["snapshots/state"])
    ended = Ended("learner", 0, -9, "killed", "tail", "logs/learner.log")
    assert world.tell(ended) == [SendFiles("learner", 0, ("snapshots/state",), ("logs/learner.log",))]
    assert not world.tell(ended)  # it is reported once
    world.tell(FilesSent("learner", 0, ("logs/learner.log",)))
    assert not world.exits
    world.tell(FilesSent("learner", 0, ("snapshots/state",)))
    assert world.exits == ["killed"]


def test_end_of_a_worker_waits_for_its_log_for_a_short_time_only(world: World) -> None:
    world.begin()
    world.tell(Ended("actor-0", 0, 1, "exit 1", "tail", "logs/actor-0.log"))
    world.tick(1.9)
    assert not world.exits
    world.tick(2.0)
    assert world.exits == ["exit 1"]


def test_worker_that_cannot_be_started_has_ended_and_a_host_without_disk_space_leaves(world: World) -> None:
    world.begin()
    world.tell(NotStarted("actor-0", 0, "no memory"))
    assert world.exits == ["could not be started on a: no memory"] and not world.of(End)
    leaving = Send(wire.Leaving(1, "this host cannot keep the run's files (No space left on device)"))
    killed, said, end = world.tell(DiskFull("No space left on device"))
    assert (killed, said) == (KillAll(), leaving)
    assert end == End(1, "this host has left the run: this host cannot keep the run's files (No space left on device)")


# -- the end


def test_agent_told_to_end_lets_its_workers_move_and_a_second_signal_ends_them(world: World) -> None:
    world.begin()
    world.tick(0.2)
    assert not world.tell(ToldToEnd(hangs_up=False, may_repeat=True))
    (beat,) = world.tick(0.3)  # at once
    assert isinstance(beat, SendBeat) and beat.leaves == "its agent was told to end"
    world.tell(ToldToEnd(hangs_up=False, may_repeat=True))
    world.tick(14.0)
    world.answer()
    world.tick(25.0)
    assert not world.of(End)
    world.tell(ToldToEnd(hangs_up=False, may_repeat=False))
    assert world.tick(25.1)[-3:] == [KillAll(), Send(wire.Leaving(1, "its agent was told to end")), End(0, LEFT)]


def test_workers_may_take_the_drain_time_to_leave(world: World) -> None:
    world.tell(ToldToEnd(hangs_up=False, may_repeat=False))
    for now_s in (10.0, 20.0, 29.9):
        world.tick(now_s)
        world.answer()
    assert not world.of(End)
    world.tick(30.0)
    assert world.of(End) == [End(0, LEFT)]


@pytest.mark.parametrize("keeps", [[], ["snapshots/state"]])
def test_agent_whose_starter_is_gone_ends_at_once_or_after_the_snapshot_of_a_learner(
    world: World, keeps: list[str]
) -> None:
    world.begin("w", keeps=keeps)
    world.tell(ToldToEnd(hangs_up=True, may_repeat=False))
    assert world.agent.was_lost and world.saves == ([("w", 0)] if keeps else [])
    world.tick(0.1)
    assert bool(world.of(End)) is not bool(keeps)
    world.tick(4.0)
    assert world.of(End)


def test_agent_without_a_membership_leaves_at_once() -> None:
    world = World(membership=0)
    world.tell(ToldToEnd(hangs_up=False, may_repeat=False))
    world.tick(0.1)
    assert world.of(End) == [End(0, LEFT)]
