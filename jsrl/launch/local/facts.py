"""The resources of this host, and its address for others."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import psutil

from jsrl.launch.hosts.facts import HostFacts
from jsrl.launch.machine import accelerators, usable_cores

SHM, BOOT = Path("/dev/shm"), Path("/proc/sys/kernel/random/boot_id")
CONTAINER = Path("/sys/fs/cgroup")
LEAST_MEMORY_MB, LEAST_FOLDER_MB = 64, 16  # that a host agent and one worker need


def own_facts(name: str, address: str) -> HostFacts:
    """Return this host's resources for workers: its cores and memory, or its container's share of them."""
    shm_mb = shutil.disk_usage(SHM).total >> 20 if SHM.is_dir() else 0
    return HostFacts(name, usable_cores(), usable_memory_bytes() >> 20, address, len(accelerators()), shm_mb)


def usable_memory_bytes() -> int:
    """Return the memory of this host, or of its container."""
    total = psutil.virtual_memory().total
    try:
        return min(total, int((CONTAINER / "memory.max").read_text()))
    except (OSError, ValueError):  # none, or `max`
        return total


def free_memory_bytes() -> int:
    """Return the memory of this host, or of its container, that no program uses; caches of files count as free."""
    free = psutil.virtual_memory().available
    try:
        limit, used = (int((CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(counts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return free


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


def boot_id() -> str:
    """Return an id of this host since its last boot."""
    try:
        return BOOT.read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()


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
