"""Agreement between the ranks of a learner: all make an update or none does, and none waits for one that has left."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.errors import StreamTimeout
from jsrl.experiment.settings import DeadlineConfig
from jsrl.runs.names import FileNames
from jsrl.transport.stream import End, Peer, Stream
from jsrl.workers.learner import ranks
from jsrl.workers.learner.ranks import Follower, Leader, RankStart, TurnLimit, held_port

BEGIN = RankStart(0, 0, "", epoch=3, updates=40, trained=80, saved_epoch=2)


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
        assert found[0].join(2) == RankStart(1, 2, joined[0][0] if joined else leader._begins.coordinator, 3, 40, 80, 2)

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


def test_leaving_learner_starts_no_update(group, joined) -> None:
    leader, follower = group
    assert not leader.halt()
    assert not follower.agree(True, 0.2) and not follower.agree(True, 0.2) and not joined
    with InThread(leader.leave):
        assert not follower.agree(True, 1.0)
    assert joined == ["parted", "parted"]


def test_rank_that_left_during_the_run_is_reported(group, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "LEAVE_S", 0.3)
    leader, follower = group
    with InThread(lambda: [follower.halt()]), pytest.raises(StreamTimeout, match="rank-1 left during the run"):
        await_error(leader)


def test_silent_rank_is_reported(group) -> None:
    leader, follower = group
    assert not follower.agree(False, 0.0)
    with pytest.raises(StreamTimeout, match="rank-1 has sent nothing for"):
        await_error(leader)


def test_rank_that_still_compiles_is_not_silent(group) -> None:
    leader, follower = group
    leader._received_s["rank-1"] -= 10.0
    assert not leader.agree(True, 0.0)
    with InThread(lambda: follower_agrees(follower)):
        assert leader.agree(True, 10.0)


def await_error(leader: Leader) -> None:
    until_s = time.monotonic() + 30.0
    while time.monotonic() < until_s:
        assert not leader.agree(True, 0.05)


def test_rank_waits_for_the_learner_of_its_incarnation(joined, tmp_path: Path) -> None:
    old = make_job(tmp_path, "learner", "rank-1", incarnation=0)
    old.announce("ranks.learner", f"ipc://{tmp_path}/old")
    found = []
    with InThread(lambda: found.append(Follower(make_job(tmp_path, "rank-1", "learner")))):
        leader = Leader(make_job(tmp_path, "learner", "rank-1"), BEGIN)
    assert leader._stream.address == f"ipc://{tmp_path}/ranks.learner"
    leader._take(b"stranger", ranks.RankMessage("rank-1", 1, 0, "joins"))
    close(leader, *found)


def test_a_learner_does_not_wait_forever_for_its_ranks(joined, tmp_path: Path) -> None:
    leader = Leader(make_job(tmp_path, "learner", "rank-1", "rank-2", ready_s=0.1), BEGIN)
    with pytest.raises(StreamTimeout, match=r"rank-1, rank-2 did not join this learner within 0.1 s"):
        leader.gather(1)
    close(leader)


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
