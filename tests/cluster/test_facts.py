"""A host without enough memory or disk space for one worker."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import zmq

from jsrl.cluster import agent_process as agent
from jsrl.cluster import children, this_host
from jsrl.errors import ConfigError
from jsrl.transport.shared import locks


def test_host_that_has_enough_lacks_nothing(tmp_path: Path):
    assert this_host.lacks(tmp_path, 1_000) == ""


def test_host_with_little_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert this_host.lacks(tmp_path, 10) == "10 MB of free memory, and needs at least 64"
    monkeypatch.setattr(this_host, "free_memory_bytes", lambda: 15 << 20)
    assert this_host.lacks(tmp_path, 512) == "15 MB of free memory, and needs at least 64"


def test_host_with_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = {tmp_path: 3 << 20, this_host.SHM: 1 << 30}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    assert this_host.lacks(tmp_path, 1_000) == f"3 MB free in {tmp_path}, and needs at least 16"
    free |= {tmp_path: 1 << 30, this_host.SHM: 0}
    assert this_host.lacks(tmp_path, 1_000) == "0 MB free in /dev/shm, and needs at least 16"


@pytest.mark.parametrize(("module", "name"), [(tempfile, "gettempdir"), (locks, "lock_file")])
def test_host_without_space_for_temporary_files_is_refused(
    module: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, name, fail)
    with pytest.raises(ConfigError, match=r"no space for the run's files.*No space left.*TMPDIR"), agent.agent_folder():
        pass


@pytest.mark.parametrize(
    ("found", "is_ipv6"), [(["::1"], True), (["::1", "127.0.0.1"], False), (["::1", "255.255.255.255"], True)]
)
def test_controller_is_reached_over_ipv6_if_its_name_has_no_other_usable_address(
    found: list[str], is_ipv6: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = [(socket.AF_INET6 if ":" in address else socket.AF_INET, address) for address in found]
    entries = [(family, socket.SOCK_DGRAM, 0, "", (address, 7000)) for family, address in families]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    assert this_host.address_towards("main", 7000) == ("::1" if is_ipv6 else "127.0.0.1")
    assert agent.uses_ipv6("main:7000") is is_ipv6


@pytest.mark.parametrize("address", ["fd00::5:7000", "fd00::5", "10.0.0.5", ":7000", "main:70000"])
def test_address_of_a_controller_without_a_port_or_brackets_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"expected HOST:PORT.*\[fd00::5\]:7000"):
        agent.check_address(address)


def test_host_whose_folder_for_temporary_files_is_too_long_for_a_socket_is_told_what_to_set(tmp_path: Path) -> None:
    with zmq.Context() as context, pytest.raises(ConfigError, match=r"at most 107 are possible.*export TMPDIR=/tmp"):
        children.ChildrenControl(context, tmp_path / ("x" * 107))
