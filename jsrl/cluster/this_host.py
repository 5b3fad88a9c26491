"""This host's resources and versions, and those of hosts in a file."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import socket
from importlib import metadata
from pathlib import Path

import msgspec

import jsrl
from jsrl.cluster.facts import EXAMPLE, HostFacts, check_names
from jsrl.errors import ConfigError
from jsrl.graph.machine import accelerators
from jsrl.linux import SHM, boot_id
from jsrl.plain_files import read_plain
from jsrl.services.runs.limits import free_memory_bytes, machine_memory_bytes, usable_cores, usable_memory_bytes

_MOST_BYTES = 1 << 20  # largest file of hosts
LEAST_MEMORY_MB, LEAST_FOLDER_MB = 64, 16  # that a host agent and one worker need


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
