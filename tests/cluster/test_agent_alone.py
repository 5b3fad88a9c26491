"""What a host's agent does for its decisions: files, keys, modules, starts; without a controller."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.cluster import agent_process as local_agent
from jsrl.cluster import messages as wire
from jsrl.cluster.agent import (
    Arrived,
    Ask,
    BeginMembership,
    CannotJoin,
    DiskFull,
    Execute,
    NotStarted,
    Received,
    StartWorker,
)
from jsrl.cluster.archive import archive, code_file
from jsrl.cluster.join_key import JoinKey
from jsrl.cluster.messages import BeatReceived, Begin, FilePart, Keys, Part
from jsrl.transport.door.keys import load_client_keys
from jsrl.transport.shared.locks import make_folder


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[local_agent.AgentProcess]:
    """Yield an agent whose controller does not listen; its notices are in `told`."""
    key = JoinKey(tmp_path / "join.key")
    key.publish("127.0.0.1:9")
    keys, told = load_client_keys(key.path), list[str]()
    folders = [make_folder(tmp_path / name) for name in ("agent", "memory")]
    agent = local_agent.AgentProcess(key.path, "127.0.0.1:9", keys, "a", *folders, told.append)  # type: ignore[misc]
    agent.told, agent.join_key = told, key  # type: ignore[attr-defined]
    yield agent
    agent._connection.close()
    agent._context.destroy(linger=0)
    key.close()


def test_modules_sent_in_part_before_a_host_joined_again_are_forgotten(
    alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sent_in_part.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    digest, content = archive({"sent_in_part"})
    half = len(content) // 2
    parts = [Part(code_file(digest), 0, content[:half], False), Part(code_file(digest), half, content[half:], True)]
    assert alone._do(Execute(Keys(1, b"c", b"s"))) == []
    assert alone._do(Execute(FilePart(1, parts[0]))) == []
    alone._do(BeginMembership([]))
    assert not list((tmp_path / "agent" / "keys").iterdir())  # they are revoked
    assert [alone._do(Execute(FilePart(2, part))) for part in parts] == [[], [Arrived(digest)]]
    assert (tmp_path / "agent" / "code" / digest / "sent_in_part.py").read_text() == "VALUE = 1"
    assert alone._do(Execute(FilePart(2, Part(code_file("0" * 64), 0, b"another archive", True)))) == []
    assert "the run's modules cannot be unpacked" in alone.told[0]


def test_agent_reads_heartbeat_replies_while_starting_many_workers(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start takes a second here, and a lease lasts 15 s: 100 starts in one turn would end a healthy host's workers."""
    clock, told = [0.0], list[Any]()
    begins = [Begin(1, "actor", f"actor-{number}", 0, b"", {}, number=number + 1) for number in range(100)]
    come: deque[object] = deque([*begins, BeatReceived(1, 7.0)])
    monkeypatch.setattr(local_agent, "now_s", lambda: clock[0])
    monkeypatch.setattr(local_agent, "incoming", lambda frames, *_: frames)
    monkeypatch.setattr(wire, "decode", lambda body, _: body)
    transport = SimpleNamespace(poll=lambda _: bool(come), recv_multipart=lambda: [come.popleft()])

    def tell(message: Received) -> None:
        told.append(message.message)
        clock[0] += isinstance(message.message, Begin)

    monkeypatch.setattr(alone, "_socket", transport)
    monkeypatch.setattr(alone, "_tell", tell)
    alone._receive()
    assert told == [BeatReceived(1, 7.0), begins[0]]
    for _ in range(99):
        alone._receive()
    assert told[1:] == begins and not alone._pending


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.ENOMEM, False)])
def test_disk_without_space_for_a_worker_is_no_fault_of_the_worker(
    alone: Any, number: int, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Begin) -> None:
        raise OSError(number, os.strerror(number))

    reports = list[Any]()
    monkeypatch.setattr(alone._children, "begin", fail)
    monkeypatch.setattr(alone, "_tell", reports.append)
    alone._do_all([StartWorker(Begin(1, "actor", "actor-0", 0, b"{}", {}))])
    (report,) = reports
    assert isinstance(report, DiskFull if is_full else NotStarted) and os.strerror(number) in report.why


def test_agent_without_a_network_waits_for_it(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(host: str, port: int) -> str:
        raise OSError(101, "Network is unreachable")

    sent = list[object]()
    monkeypatch.setattr(local_agent, "address_towards", unreachable)
    monkeypatch.setattr(alone, "_send", sent.append)
    monkeypatch.setattr(alone._connection, "made", True)
    assert alone._do(Ask(True, 0)) == [] and not sent
    assert alone._do(Ask(False, 0)) == [] and len(sent) == 1


def test_agent_sees_that_the_run_of_its_key_has_begun_again(alone: Any) -> None:
    """It would wait for the old address as long as its patience allows."""
    assert alone._do(Ask(False, 0)) == []
    alone.join_key.close()
    second = JoinKey(alone.join_key.path)
    for begin in (lambda: None, lambda: second.publish("10.0.0.6:7000")):
        begin()
        (report,) = alone._do(Ask(False, 0))
        assert report == CannotJoin("the run at 127.0.0.1:9 has ended or has begun again elsewhere; join again")
    second.close()
