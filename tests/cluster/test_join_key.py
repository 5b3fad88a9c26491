"""The key file with which hosts join a run, and the keys that it admits."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsrl.cluster.join_key import ENDED, JoinKey, has_moved, read_key
from jsrl.cluster.members import JOIN
from jsrl.errors import ConfigError
from jsrl.transport.door.keys import load_client_keys


def test_replaced_join_key_admits_no_one_and_hosts_that_are_in_stay(tmp_path: Path):
    key = JoinKey(tmp_path / "join.key")
    key.publish("10.0.0.1:7000")
    for name in ("a" * 40, "b" * 40):
        assert key.admits(name.encode()) == ""
        key.admit(name)
        assert key.admits(name.encode()) == name
    before = load_client_keys(key.path)
    key.replace()
    key.expel("a" * 40)
    after = load_client_keys(key.path)
    assert key.admits(before.public) == "" and key.admits(after.public) == JOIN and after.server == before.server
    assert [key.admits(name.encode()) for name in ("a" * 40, "b" * 40)] == ["", "b" * 40]
    assert not has_moved(key.path, before)


def test_join_key_is_a_private_file_that_ends_with_the_run(tmp_path: Path):
    key = JoinKey(tmp_path / "new" / "join.key")
    key.publish("10.0.0.5:7000")
    assert key.path.stat().st_mode & 0o777 == 0o600
    address, keys = read_key(key.path, 0.0)
    assert address == "10.0.0.5:7000" and key.admits(keys.public) == JOIN and not has_moved(key.path, keys)
    key.close()
    assert not key.path.parent.exists() and has_moved(key.path, keys)
    with pytest.raises(ConfigError, match=r"there was no key file .*join.key within 0 s; `jsrl run --listen` prints"):
        read_key(key.path, 0.0)
    key.path.parent.mkdir()
    key.path.with_name(key.path.name + ENDED).touch()
    with pytest.raises(ConfigError, match="has ended; there is nothing to join"):
        read_key(key.path, 20.0)


def test_join_key_of_a_killed_run_is_replaced_and_that_of_a_living_run_is_not(tmp_path: Path):
    living, other = JoinKey(tmp_path / "join.key"), JoinKey(tmp_path / "join.key")
    (tmp_path / "join.key").write_text("of a killed run")
    living.publish("10.0.0.5:7000")
    _, keys = read_key(living.path, 0.0)
    with pytest.raises(ConfigError, match=r"belongs to another run, which goes on; give this one its own --join-key"):
        other.publish("10.0.0.6:7000")
    other.close()
    assert read_key(living.path, 0.0)[1] == keys
    living.close()
    other.publish("10.0.0.6:7000")
    assert has_moved(living.path, keys)
    other.close()
