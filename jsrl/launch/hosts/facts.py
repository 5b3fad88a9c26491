"""The resources of a host, a file that lists hosts, and whether their versions agree."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

import jsrl
from jsrl.errors import ConfigError
from jsrl.plain_files import read_plain

_MOST_BYTES = 1 << 20  # largest file of hosts
EXAMPLE = '[{"name": "gpu-1", "address": "10.0.0.5", "cores": 32, "memory_mb": 128000, "gpus": 4}, ...]'


class HostFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The resources of a host.

    Attributes:
      name: unique among the hosts of a run. address: IP address for the other hosts.
      cores: CPU cores for workers. memory_mb, shm_mb: memory, and size of /dev/shm (0: unknown).
      gpus: accelerators. shares_folder: it sees the run folder under the same path as the first host.
      machine: hosts with the same name share its cores and memory; empty: its own. machine_mb: that memory (0: unknown).
      out_mbit, in_mbit: bandwidth of its network, out and in, in Mbit/s (0: unknown). busy_cores: that other programs would
        keep busy without the run; they share all cores evenly with its workers. core_speed: of its cores, over those of the
        calibrated machine. These are only for `jsrl dev simulate`.
    """

    name: str
    cores: int
    memory_mb: int
    address: str = ""
    gpus: int = 0
    shm_mb: int = 0
    shares_folder: bool = False
    out_mbit: float = 0.0
    in_mbit: float = 0.0
    machine: str = ""
    machine_mb: int = 0
    busy_cores: float = 0.0
    core_speed: float = 1.0

    def __post_init__(self) -> None:
        least = {"cores": 1, "memory_mb": 1, "gpus": 0, "shm_mb": 0, "out_mbit": 0, "in_mbit": 0, "busy_cores": 0}
        wrong = [f"{name} is {getattr(self, name)}" for name, low in least.items() if getattr(self, name) < low]
        wrong += [f"core_speed is {self.core_speed}"] if not 0.01 <= self.core_speed <= 100.0 else []
        if not self.name or wrong:
            raise ConfigError(
                f"host {self.name!r}: {', '.join(wrong) or 'it has no name'}; expected at least one core and one MB of "
                "memory, no negative number, and a core_speed of 0.01 to 100."
            )

    @property
    def entry(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


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


PACKAGE = Path(jsrl.__file__).parent


def versions() -> dict[str, str]:
    """Return the versions of jsrl, Python and jax here, without loading jax."""
    return {"jsrl": jsrl.__version__, "python": platform.python_version(), "jax": metadata.version("jax")}


@functools.cache
def code_digest(package: Path = PACKAGE) -> str:
    """Return the SHA-256 of jsrl's sources, equal for a checkout and a wheel of the same commit."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def difference(host: str, theirs: Mapping[str, str], code: str) -> str:
    """Return why a host's versions are incompatible with those here, as text; empty: they are compatible."""
    for name, own in versions().items():
        found = str(theirs.get(name, "none"))[:40]
        if _minor(own) != _minor(found):
            return f"{host} has {name} {found} and the controller has {own}; install the same minor version on both."
    if code != code_digest():
        return (
            f"{host} has jsrl {theirs.get('jsrl')} as the controller does, but with other sources; install the same commit "
            "on both."
        )
    return ""


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
