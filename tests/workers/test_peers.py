"""Whom a worker finds behind several names."""

import pytest

from jsrl.errors import StreamClosed
from jsrl.runs.names import FileNames
from jsrl.workers import peers
from jsrl.workers.peers import FailoverPeer, first_present

SERVERS = ["inference-1", "inference-0"]


def test_another_stands_in_until_ones_own_is_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(peers, "LOOK_S", 0.0)
    names = FileNames(tmp_path)
    assert first_present(names, SERVERS) is None
    names.register("inference-0", "shm:a")
    other = first_present(names, SERVERS)
    assert other is not None and other.name == "inference-0"
    peer = FailoverPeer(names, SERVERS, other)
    peer.check()
    assert peer.is_away
    own = names.register("inference-1", "shm:b")
    with pytest.raises(StreamClosed, match="inference-1 is back; inference-0 stood in for it"):
        peer.check()
    assert first_present(names, SERVERS) == own
    peer.known = own
    peer.check()
    assert not peer.is_away
