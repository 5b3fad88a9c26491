"""The resources of this host, and its address for others."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import msgspec

from jsrl.cluster.facts import HostFacts
from jsrl.graph.machine import accelerators
from jsrl.linux import SHM, boot_id
from jsrl.services.runs.limits import free_memory_bytes, machine_memory_bytes, usable_cores, usable_memory_bytes

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
