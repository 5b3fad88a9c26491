"""Checks that all hosts of a run have equal sources of jsrl, and equal minor versions of Python and jax."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import jsrl

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
