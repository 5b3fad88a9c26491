"""A file that lists hosts, and the versions on this one."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path

import msgspec

import jsrl
from jsrl.cluster.facts import HostFacts
from jsrl.errors import ConfigError
from jsrl.plain_files import read_plain

_MOST_BYTES = 1 << 20  # largest file of hosts
EXAMPLE = '[{"name": "gpu-1", "address": "10.0.0.5", "cores": 32, "memory_mb": 128000, "gpus": 4}, ...]'


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
