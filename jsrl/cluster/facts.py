"""The resources and versions of hosts: of this one, of those in a file, and whether two agree."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

import jsrl
from jsrl.errors import ConfigError
from jsrl.graph.machine import accelerators
from jsrl.linux import SHM, boot_id
from jsrl.plain_files import read_plain
from jsrl.services.runs.limits import free_memory_bytes, machine_memory_bytes, usable_cores, usable_memory_bytes

_MOST_BYTES = 1 << 20  # largest file of hosts
LEAST_MEMORY_MB, LEAST_FOLDER_MB = 64, 16  # that a host agent and one worker need
EXAMPLE = '[{"name": "gpu-1", "address": "10.0.0.5", "cores": 32, "memory_mb": 128000, "gpus": 4}, ...]'


class HostFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The resources of a host.

    Attributes:
      name: unique among the hosts of a run. address: IP address for the other hosts.
      cores: CPU cores for workers. memory_mb, shm_mb: memory, and size of /dev/shm (0: unknown).
      gpus: accelerators. shares_folder: it sees the run folder under the same path as the first host.
      machine: hosts with the same name share its cores and memory; empty: its own. machine_mb: that memory (0: unknown).
    """

    name: str
    cores: int
    memory_mb: int
    address: str = ""
    gpus: int = 0
    shm_mb: int = 0
    shares_folder: bool = False
    machine: str = ""
    machine_mb: int = 0

    def __post_init__(self) -> None:
        least = {"cores": 1, "memory_mb": 1, "gpus": 0, "shm_mb": 0}
        wrong = [f"{name} is {getattr(self, name)}" for name, low in least.items() if getattr(self, name) < low]
        if not self.name or wrong:
            raise ConfigError(
                f"host {self.name!r}: {', '.join(wrong) or 'it has no name'}; expected at least one core and one MB of "
                "memory, and no negative number."
            )

    @property
    def entry(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


def own_facts(name: str, address: str) -> HostFacts:
    """Return this host's resources for workers: cores and memory that its job or container may use."""
    shm_mb = shutil.disk_usage(SHM).total >> 20 if SHM.is_dir() else 0
    memory_mb, machine_mb = usable_memory_bytes() >> 20, machine_memory_bytes() >> 20
    facts = HostFacts(name, usable_cores(), memory_mb, address, len(accelerators()), shm_mb)
    return msgspec.structs.replace(facts, machine=boot_id() or socket.gethostname(), machine_mb=machine_mb)


def lacks(folder: Path, memory_mb: int) -> str:
    """Return what this host has too little of to run workers, as text; empty: nothing.

    Args:
      folder: for a run's files. memory_mb: that workers may use here.
    """
    memory_mb = min(memory_mb, free_memory_bytes() >> 20)
    if memory_mb < LEAST_MEMORY_MB:
        return f"{memory_mb} MB of free memory, and needs at least {LEAST_MEMORY_MB}"
    for path in filter(Path.is_dir, (folder, SHM)):
        free_mb = shutil.disk_usage(path).free >> 20
        if free_mb < LEAST_FOLDER_MB:
            return f"{free_mb} MB free in {path}, and needs at least {LEAST_FOLDER_MB}"
    return ""


def address_towards(host: str, port: int) -> str:
    """Return this host's source IP address for packets to another one; nothing is sent.

    IPv4 comes first if the name has addresses of both kinds, as in ZeroMQ.

    Raises:
      OSError: there is no route to that host.
    """
    failed = OSError(f"{host} has no address")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    for family, kind, protocol, _, target in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError as error:
            failed = error
    raise failed


def read_hosts(path: str | os.PathLike[str]) -> tuple[HostFacts, ...]:
    """Return the hosts in a file; the first is the one on which `jsrl run` is started."""
    try:
        hosts = msgspec.convert(json.loads(read_plain(Path(path), _MOST_BYTES)), tuple[HostFacts, ...])
    except OSError as error:
        raise ConfigError(f"the hosts cannot be read from {path} ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no list of hosts: {error}; expected {EXAMPLE}") from error
    check_names(hosts, str(path))
    return hosts


def check_names(hosts: tuple[HostFacts, ...], where: str) -> None:
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not hosts:
        what = (
            f"two hosts called {twice[0]!r}; give each a name of its own" if twice else f"no host; expected {EXAMPLE}"
        )
        raise ConfigError(f"{where} has {what}.")


def versions() -> dict[str, str]:
    """Return the versions of jsrl, Python and jax here, without loading jax."""
    return {"jsrl": jsrl.__version__, "python": platform.python_version(), "jax": metadata.version("jax")}


@functools.cache
def code_digest(package: Path = Path(jsrl.__file__).parent) -> str:
    """Return the SHA-256 of jsrl's sources, equal for a checkout and a wheel of the same commit."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def difference(host: str, own: Mapping[str, str], own_code: str, theirs: Mapping[str, str], code: str) -> str:
    """Return why a host's versions are incompatible with the controller's own, as text; empty: they are compatible."""
    for name, expected in own.items():
        found = str(theirs.get(name, "none"))[:40]
        if _minor(expected) != _minor(found):
            return (
                f"{host} has {name} {found} and the controller has {expected}; install the same minor version on both."
            )
    if code != own_code:
        return (
            f"{host} has jsrl {theirs.get('jsrl')} as the controller does, but with other sources; install the same commit "
            "on both."
        )
    return ""


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
