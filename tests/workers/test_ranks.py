"""Agreement between the ranks of a learner: all make an update or none does, and none waits for one that has left."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jsrl.envs.config import EnvConfig
from jsrl.errors import StreamTimeout
from jsrl.experiment import Experiment, LearnerConfig
from jsrl.experiment.settings import DeadlineConfig
from jsrl.graph.plan import make_plan
from jsrl.services.runs.names import FileNames
from jsrl.transport.stream import End, Peer, Stream
from jsrl.workers.attached import ranks
from jsrl.workers.attached.agreement import (
    LEAVE_S,
    Do,
    FollowerAgreement,
    FromRank,
    Last,
    LeaderAgreement,
    RankStart,
    Send,
    Turn,
)
from jsrl.workers.attached.ranks import Follower, Leader, SynchronizedSource, TurnLimit, held_port
from jsrl.workers.base import NullReporter
from jsrl.workers.jobs import StartPoint
from tests.tiny_agent import STILL

SOURCE = ("example", "begin", "env_steps", "pending", "stand_in", "close", "counts", "ledger")
BEGIN = RankStart(0, 0, "", generation=3, updates=40, trained=80, saved_generation=2)


def make_job(folder: Path, name: str, *peers: str, incarnation: int = 1, **limits: float) -> Any:
    """The fields of a job that ranks need."""
    names = FileNames(folder / "names")
    end = End(Stream("ranks", "ranks"), address=f"ipc://{folder}/ranks.learner", peers=tuple(map(Peer, peers)))
    return SimpleNamespace(
        name=name,
        incarnation=incarnation,
        keys=None,
        experiment=SimpleNamespace(deadlines=DeadlineConfig(**{"rank_s": 0.2, "ready_s": 30.0, **limits})),
        end=lambda port: end,
        names=names,
        announce=lambda where, address: names.register(where, address, incarnation),
        find=lambda where: names.lookup(where, 30.0),
    )


@pytest.fixture
def joined(monkeypatch) -> list[tuple[str, int, int, int]]:
    """Fake calls of jax.distributed; a departure is recorded as a number."""
    calls: list[Any] = []
    monkeypatch.setattr(ranks, "join_processes", lambda *call: calls.append(call))
    monkeypatch.setattr(ranks, "leave_processes", lambda: calls.append("parted"))
    return calls


@pytest.fixture
def group(joined, tmp_path: Path) -> Iterator[tuple[Leader, Follower]]:
    leader = Leader(make_job(tmp_path, "learner", "rank-1"), BEGIN)
    found: list[Follower] = []

    def follow() -> None:
        found.append(Follower(make_job(tmp_path, "rank-1", "learner")))
        begins = found[0].join(2)
        assert begins == RankStart(1, 2, begins.coordinator, 3, 40, 80, 2)

    with InThread(follow):
        leader.gather(2)
    assert sorted(call[1:] for call in joined) == [(0, 2, 2), (1, 2, 2)] and joined[0][0] == joined[1][0]
    joined.clear()
    yield leader, found[0]
    close(leader, *found)


def close(*ends: Leader | Follower) -> None:
    for end in ends:
        end.close()


class InThread(threading.Thread):
    """Runs a function in another thread meanwhile; its error is raised at the end."""

    def __init__(self, task: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._task, self._error = task, None
        self.start()

    def run(self) -> None:
        try:
            self._task()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.join(30.0)
        if self._error is not None:
            raise self._error


def test_update_starts_when_all_ranks_have_a_batch(group) -> None:
    leader, follower = group
    for _ in range(3):
        assert not follower.agree(False, 0.0) and not leader.agree(True, 0.05)  # one has none
        assert not follower.agree(True, 0.0) and not leader.agree(False, 0.05)  # the other has none
        with InThread(lambda: follower_agrees(follower)):
            assert leader.agree(True, 10.0)


def follower_agrees(follower: Follower) -> None:
    assert follower.agree(True, 10.0)


def test_rank_finishes_a_promised_update_before_it_leaves(group, joined) -> None:
    leader, follower = group
    assert not follower.agree(True, 0.0)
    assert leader.agree(True, 10.0)  # and this rank is in its update
    with InThread(lambda: [leader.agree(True, 1.0)]):
        assert follower.halt()
        assert not follower.halt()
    assert not joined  # the learner writes its snapshot first
    with InThread(follower.leave):
        leader.leave()
    assert joined == ["parted", "parted"]


class Talk:
    """Agreements of rank 0 and another rank, whose messages are delivered at once, and those of the last `carry` are kept."""

    def __init__(self, joins: bool = True) -> None:
        self.now, self.carried, self.done = 0.0, [], {"learner": [], "rank-1": []}  # type: float, list, dict
        limits = DeadlineConfig(rank_s=10.0, ready_s=60.0, stuck_s=90.0, snapshot_s=120.0)
        self.leader = LeaderAgreement(["rank-1"], 1, BEGIN, limits, 0.0)
        self.rank = FollowerAgreement("rank-1", 1, "learner", limits, 0.0)
        if joins:
            self.tick("rank-1")
            self.tick("learner")
            assert self.done == {"learner": [Do.GO], "rank-1": [Do.GO]} and self.rank.begins == BEGIN_1
            self.done["learner"].clear(), self.done["rank-1"].clear()

    def ask(self, who: str, request: Turn | Last) -> list[Do]:
        """Make a request, and return what follows until now."""
        self.done[who].clear()
        self._carry(who, (self.leader if who == "learner" else self.rank).handle(request, self.now))
        return self.tick(who)

    def tick(self, who: str, later_s: float = 0.0) -> list[Do]:
        self.now += later_s
        if not {Do.GO, Do.PASS} & set(self.done[who]):
            self._carry(who, (self.leader if who == "learner" else self.rank).tick(self.now))
        return self.done[who]

    def _carry(self, who: str, actions: list) -> None:
        self.done[who] += [action for action in actions if isinstance(action, Do)]
        for message in (action.message for action in actions if isinstance(action, Send)):
            self.carried.append(message)
            if who == "learner":
                self._carry("rank-1", self.rank.handle(message, self.now))
            else:
                self._carry("learner", self.leader.handle(FromRank(b"1", message), self.now))


BEGIN_1 = RankStart(1, 0, "", 3, 40, 80, 2)
HAS, HAS_NONE = Turn(True, 0.1), Turn(False, 0.1)


def test_no_update_starts_unless_all_have_a_batch() -> None:
    talk = Talk()
    for _ in range(3):
        assert talk.ask("rank-1", HAS_NONE) == [] == talk.ask("learner", HAS)
        assert talk.tick("rank-1", 0.1) == [Do.PASS] == talk.tick("learner")
        assert talk.ask("rank-1", HAS) == [] == talk.ask("learner", HAS_NONE)
        assert talk.tick("learner", 0.1) == [Do.PASS]
        assert talk.ask("learner", HAS) == [Do.GO] == talk.done["rank-1"]


def test_messages_that_come_twice_late_or_from_another_incarnation_change_nothing() -> None:
    talk = Talk()
    talk.ask("rank-1", HAS)
    (has,) = talk.carried[-2:-1]
    assert has.what == "has" and talk.ask("learner", HAS) == [Do.GO]
    go = talk.carried[-1]
    assert go.what == "go" and talk.rank.handle(go, 0.0) == []
    talk.ask("rank-1", HAS_NONE)
    for late in (has, *talk.carried[:1], msgspec.structs.replace(has, number=1, incarnation=0)):
        assert talk.leader.handle(FromRank(b"1", late), 0.0) == []
    assert talk.leader.dropped == 3 and talk.ask("learner", HAS) == []


def test_leaving_learner_starts_no_update() -> None:
    talk = Talk()
    talk.ask("rank-1", HAS)
    assert talk.ask("learner", Last.HALT) == [Do.PASS]
    assert talk.tick("rank-1", 0.1) == [Do.PASS]
    assert talk.ask("rank-1", Last.HALT) == [Do.PASS]
    assert talk.ask("rank-1", Last.LEAVE) == [] == talk.tick("rank-1", 60.0), "the learner writes its snapshot"
    assert talk.ask("learner", Last.LEAVE) == [Do.DEPART, Do.PASS]
    assert talk.tick("rank-1") == [Do.DEPART, Do.PASS]


def test_ranks_wait_for_each_other_only_so_long() -> None:
    talk = Talk()
    assert talk.ask("rank-1", Last.LEAVE) == [] and talk.tick("rank-1", 120.0) == [Do.PASS]
    talk = Talk()
    talk.rank.handle = lambda message, now: []  # type: ignore[method-assign]  # it is dead
    assert talk.ask("learner", Last.LEAVE) == [] and talk.tick("learner", LEAVE_S) == [Do.PASS]
    talk = Talk(joins=False)
    assert talk.tick("learner", 59.0) == []
    with pytest.raises(StreamTimeout, match=r"rank-1 did not join this learner within 60 s"):
        talk.tick("learner", 1.0)
    rank = Talk(joins=False).rank
    assert rank.tick(59.0) != [] and rank.tick(60.0)[-1] is Do.PASS


def test_message_that_may_be_lost_is_repeated() -> None:
    rank = Talk().rank
    rank.handle(Turn(True, 5.0), 0.0)
    sent = [len(rank.tick(now)) for now in (0.0, 0.4, 0.5, 0.9, 1.0)]
    assert sent == [1, 0, 1, 0, 1] and rank.wait_s(4.8) == pytest.approx(0.2) and rank.wait_s(0.0) == 0.5


def test_rank_that_left_during_the_run_is_reported() -> None:
    talk = Talk()
    assert talk.ask("rank-1", Last.HALT) == [] and talk.tick("rank-1") == [Do.PASS]
    assert talk.ask("learner", HAS) == []
    talk.tick("learner", 0.1)
    talk.ask("learner", HAS)
    with pytest.raises(StreamTimeout, match="rank-1 left during the run"):
        talk.tick("learner", LEAVE_S)


def test_silent_rank_is_reported() -> None:
    talk = Talk()
    talk.ask("learner", HAS)
    assert talk.tick("learner", 50.0) == [Do.PASS], "it may still compile its update"
    talk.ask("rank-1", HAS_NONE)
    talk.ask("learner", HAS)
    assert talk.tick("learner", 20.0) == [Do.PASS]
    talk.ask("learner", HAS)
    with pytest.raises(StreamTimeout, match="rank-1 has sent nothing for 21 s"):
        talk.tick("learner", 1.0)


def test_silent_learner_is_reported() -> None:
    rank = Talk().rank
    rank.handle(HAS, 89.0)
    assert rank.tick(89.1)[-1] is Do.PASS
    rank.handle(HAS, 91.0)
    with pytest.raises(StreamTimeout, match="learner has sent nothing for 91 s"):
        rank.tick(91.2)


def test_rank_waits_for_the_learner_of_its_incarnation(joined, tmp_path: Path) -> None:
    old = make_job(tmp_path, "learner", "rank-1", incarnation=0)
    old.announce("ranks.learner", f"ipc://{tmp_path}/old")
    found = []
    with InThread(lambda: found.append(Follower(make_job(tmp_path, "rank-1", "learner")))):
        leader = Leader(make_job(tmp_path, "learner", "rank-1"), BEGIN)
    close(leader, *found)


def test_batch_of_a_rank_is_lent_once_all_have_one() -> None:
    """Until then it waits, and no other one is taken from the source; it also is the last one that was promised."""
    batches, answers = iter("abc"), iter((False, True, False))
    source: Any = SimpleNamespace(next=lambda timeout_s: next(batches), **dict.fromkeys(SOURCE))
    group: Any = SimpleNamespace(agree=lambda has_batch, timeout_s: next(answers), halt=lambda: True)
    shared = SynchronizedSource(source, group)
    assert [shared.next(0.0) for _ in range(3)] == [None, "a", None] and shared.last() == "b"


def test_rank_of_a_resumed_run_counts_the_updates_of_its_learner(tmp_path: Path, monkeypatch) -> None:
    """Schedules follow this number; here batches were twice as large before the resume."""
    e = Experiment(STILL, EnvConfig("CartPole-v1"), num_envs=16, num_actors=2, rollout_length=8, placement="served",
                   total_env_steps=10_240, learner=LearnerConfig(num_ranks=2))  # fmt: skip
    plan = make_plan(e, str(tmp_path), tmp_path)
    began = RankStart(1, 2, "", generation=3, updates=20, trained=40, saved_generation=2, env_steps=5_120)
    monkeypatch.setattr(ranks, "Follower", lambda job: SimpleNamespace(join=lambda devices: began))
    job, _, lifecycle = ranks.part_of(plan.job("rank-1"), NullReporter())
    learner = dataclasses.replace(plan.job("learner"), start_point=StartPoint(3, 20, env_steps=5_120))
    assert job.total_updates == learner.total_updates == 60 and not lifecycle.leads


def test_a_turn_may_take_ten_times_the_median_update() -> None:
    limit = TurnLimit(DeadlineConfig(rank_s=10.0, stuck_s=300.0))
    assert limit.seconds == 300.0
    limits = []
    for seconds in (2.0, 0.1, 40.0, 0.3, 0.1):
        limit.note(seconds)
        limits.append(limit.seconds)
    assert limits == [20.0, 20.0, 300.0, 300.0, 10.0]
    for _ in range(20):
        limit.note(3.0)
    assert limit.seconds == 30.0


def test_held_port_is_open_only_to_those_that_share_it() -> None:
    assert [held_port_of(address) for address in ("ipc:///tmp/here", "tcp://127.0.0.1:4711")] == ["127.0.0.1"] * 2


def held_port_of(address: str) -> str:
    """Return the host of a held port, after a check of who can listen there."""
    held, place = held_port(address)
    host, _, port = place.rpartition(":")
    with held, socket.socket() as stranger, socket.socket() as service:
        with pytest.raises(OSError, match="in use"):
            stranger.bind((host, int(port)))
        service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        service.bind((host, int(port)))
        service.listen()
        socket.create_connection((host, int(port)), 5.0).close()
        service.settimeout(5.0)
        service.accept()[0].close()
    return host
