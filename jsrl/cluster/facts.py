"""The resources of hosts, and whether the versions of two agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from jsrl.errors import ConfigError

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


def check_names(hosts: tuple[HostFacts, ...], where: str) -> None:
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not hosts:
        what = (
            f"two hosts called {twice[0]!r}; give each a name of its own" if twice else f"no host; expected {EXAMPLE}"
        )
        raise ConfigError(f"{where} has {what}.")


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
