"""Origin of a run: command, commit, package versions, hardware. Imports nothing heavy."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jsrl.extras import DISTRIBUTION
from jsrl.linux import nvidia_devices, processor
from jsrl.services.runs.limits import allowed_cores

PACKAGES = (
    DISTRIBUTION, "jax", "jaxlib", "flax", "optax", "chex", "numpy", "gymnasium", "orbax-checkpoint", "pyzmq", "ale-py",
    "mujoco", "envpool",
)  # fmt: skip


def environment_facts(source: Path | None = None) -> dict[str, Any]:
    """Return the facts needed to repeat a run on this machine: JSON-like.

    Args:
      source: a folder of the git repository for the commit (default: the folder of jsrl).
    """
    return {
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "working_directory": os.getcwd(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **commit_facts(source or Path(__file__).parent),
        "python": platform.python_version(),
        "packages": dict(package_versions()),
        "hardware": hardware_facts(),
    }


def record_command(words: Sequence[str]) -> None:
    """Let `environment_facts` name `python -m jsrl WORDS`, which repeats what this process was started for otherwise."""
    sys.orig_argv[1:] = ["-m", "jsrl", *words]


@functools.cache
def package_versions() -> Mapping[str, str]:
    """Return the versions of the packages that affect results, if installed; those of this process's first call."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return MappingProxyType(versions)


@functools.cache
def commit_facts(folder: Path) -> Mapping[str, Any]:
    """Return the commit of the repository around `folder` and whether files differ from it; None without git.

    Later calls return the same: what a process has imported stays as it is, although its files change.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
    return MappingProxyType({"commit": commit, "uncommitted_changes": None if changed is None else bool(changed)})


def hardware_facts() -> dict[str, Any]:
    """Return host, processor, cores usable, memory, and the names of NVIDIA devices if the driver reports them."""
    import psutil

    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": processor() or platform.processor() or platform.machine(),
        "cores": allowed_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "accelerators": nvidia_devices(),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        ran = subprocess.run(
            ["git", "-C", os.fspath(folder), *arguments], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
