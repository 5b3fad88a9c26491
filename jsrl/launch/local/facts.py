"""The resources of this host, and its address for others."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import psutil

from jsrl.launch.hosts.facts import HostFacts
from jsrl.launch.machine import accelerators, usable_cores

SHM, BOOT = Path("/dev/shm"), Path("/proc/sys/kernel/random/boot_id")


def own_facts(name: str, address: str) -> HostFacts:
    """Return this host's resources for workers: its cores and memory, or its container's share of them."""
    shm_mb = shutil.disk_usage(SHM).total >> 20 if SHM.is_dir() else 0
    return HostFacts(name, usable_cores(), usable_memory_bytes() >> 20, address, len(accelerators()), shm_mb)


def usable_memory_bytes() -> int:
    """Return the memory of this host, or of its container."""
    total = psutil.virtual_memory().total
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # none, or `max`
        return total


def boot_id() -> str:
    """Return an id of this host since its last boot."""
    try:
        return BOOT.read_text().strip()
    except OSError:  # not Linux
        return socket.gethostname()


def address_towards(host: str, port: int) -> str:
    """Return this host's source IP address for packets to another one; nothing is sent.

    Raises:
      OSError: there is no route to that host.
    """
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
