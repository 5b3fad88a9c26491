"""Report what is missing, slow or unusual on this machine, each with a command that fixes it: `jsrl doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jsrl
from jsrl.cli.main import Parser
from jsrl.errors import counted
from jsrl.extras import EXTRAS, install_command, pip_command
from jsrl.graph.machine import cache_folder
from jsrl.linux import SHM
from jsrl.services.runs.provenance import hardware_facts
from jsrl.transport.shared.locks import is_living

LEAST_FILES, LEAST_SHM_MB, LEAST_MEMORY_GB = 1024, 256, 4
JAX_S = 60.0  # until jax has found its devices
SYMBOLS = {"good": "ok  ", "note": "note", "bad": "BAD "}


class Finding(NamedTuple):
    """The result of one check: its state, and what to do if it is not good."""

    state: Literal["good", "note", "bad"]
    text: str
    cure: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; return 1 if something must be fixed before a run can work."""
    Parser(prog="jsrl doctor", description=__doc__).parse_args(arguments)
    findings = [finding for check in CHECKS for finding in check()]
    for finding in findings:
        print(f"{SYMBOLS[finding.state]} {finding.text}" + (f"\n       -> {finding.cure}" if finding.cure else ""))
    bad = sum(finding.state == "bad" for finding in findings)
    print(f"\n{counted(bad, 'thing')} to fix before a run can work." if bad else "\njsrl can run here.")
    return 1 if bad else 0


def versions() -> Iterator[Finding]:
    """Python, jsrl, and a possible other project called jsrl."""
    python = platform.python_version()
    yield Finding("good", f"Python {python}, jsrl {jsrl.__version__} in {Path(jsrl.__file__).parent}")
    for found in importlib.metadata.distributions(name="jsrl"):
        record = found.read_text("RECORD") or ""
        if any(line.startswith("jsrl/") for line in record.splitlines()):
            text = f"another project's jsrl {found.version} is installed, whose files lie among ours"
            yield Finding("bad", text, f"{pip_command()} uninstall jsrl, then {install_command('')}")


def packages() -> Iterator[Finding]:
    """The extras: which of their packages are installed."""
    for extra, (modules, what) in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            yield Finding("note", f"no {what} ({', '.join(missing)} not installed)", install_command(extra))
        else:
            yield Finding("good", what)


def accelerators() -> Iterator[Finding]:
    """GPUs, and whether jax can use them."""
    gpus = hardware_facts()["accelerators"]
    installed = [found.metadata for found in importlib.metadata.distributions()]
    # A package that is half removed has no name.
    names = [metadata["Name"].lower() for metadata in installed if "Name" in metadata]
    if gpus and not any("cuda" in name and "plugin" in name for name in names):
        cure = f"{pip_command()} install 'jax[cuda12]'"
        yield Finding(
            "note",
            f"{counted(len(gpus), 'GPU')} ({gpus[0]}), but jax has no CUDA plugin: learners run on the CPU",
            cure,
        )
    elif gpus:
        yield _used_by_jax(gpus)
    else:
        yield Finding("good", "no NVIDIA GPU: everything runs on the CPU")


def _used_by_jax(gpus: list[str]) -> Finding:
    """Return whether jax computes on the GPUs; it is asked in a separate process, because it reserves their memory."""
    text = f"{counted(len(gpus), 'GPU')}: {', '.join(gpus)}"
    words = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    variables = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        asked = subprocess.run(words, capture_output=True, text=True, check=False, timeout=JAX_S, env=variables)
    except subprocess.TimeoutExpired:
        cure = "nvidia-smi shows whether the driver answers"
        return Finding("note", f"{text}, but jax did not find its devices within {JAX_S:g} s", cure)
    if asked.stdout.strip() == "gpu":
        return Finding("good", text)
    why = (asked.stderr.strip().splitlines() or [f"its backend is {asked.stdout.strip()}"])[-1]
    cure = (
        "look at JAX_PLATFORMS and CUDA_VISIBLE_DEVICES; the plugin (jax[cuda12] or jax[cuda13]) must suit the driver"
    )
    return Finding("note", f"{text}, but jax does not use them: {why}", cure)


def shared_memory() -> Iterator[Finding]:
    """Shared memory, which carries the streams of one host."""
    if not os.access(SHM, os.W_OK):
        yield Finding("bad", f"{SHM} cannot be written", f"give every run --transport zeromq, or mount {SHM}")
        return
    free_mb = shutil.disk_usage(SHM).free >> 20
    cure = "give the container more (docker run --shm-size 1g), or every run --transport zeromq"
    state: Literal["good", "note"] = "good" if free_mb >= LEAST_SHM_MB else "note"
    yield Finding(state, f"{SHM} has {free_mb:,} MiB free", "" if state == "good" else cure)
    owner = SHM / f"jsrl-{os.getuid()}"
    left = [folder for folder in owner.iterdir() if _is_left(folder)] if owner.is_dir() else []
    if left:
        text = f"{owner} holds memory of {counted(len(left), 'killed run')}; the next run removes it, or you do"
        yield Finding("note", text, f"rm -r {' '.join(map(str, left))}")


def _is_left(folder: Path) -> bool:
    """Return whether the next run removes a folder, as that of a killed run."""
    try:
        return not is_living(folder)
    except OSError:  # not a folder, or another user's: it stays
        return False


def limits() -> Iterator[Finding]:
    """Open files, cores, memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cure = f"ulimit -n {min(65_536, hard) if hard > 0 else 65_536}"
    state: Literal["good", "note"] = "good" if soft >= LEAST_FILES else "note"
    yield Finding(state, f"{soft:,} open files for a process", "" if state == "good" else cure)
    facts = hardware_facts()
    cores, memory_gb = facts["cores"], facts["memory_gb"]
    name = f"{counted(cores, 'core')}, {memory_gb:g} GB of memory ({facts['processor']})"
    if cores < 2:
        yield Finding("note", name, "processes share one core; --placement serial wastes least of it")
    elif memory_gb < LEAST_MEMORY_GB:
        yield Finding("note", name, "`jsrl run NAME --plan` says how much a run takes")
    else:
        yield Finding("good", name)


def folders() -> Iterator[Finding]:
    """Folders of runs and of compiled programs."""
    if not os.access(Path.cwd(), os.W_OK):
        yield Finding("note", f"{Path.cwd()} cannot be written", "give every run --runs-dir DIR")
    folder = cache_folder()
    if folder is None:
        yield Finding(
            "note",
            "programs that jax compiled are not kept: every start compiles again",
            "export XDG_CACHE_HOME=DIR, a folder that you can write",
        )
    else:
        yield Finding("good", f"compiled programs are kept in {folder}")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    versions,
    packages,
    accelerators,
    shared_memory,
    limits,
    folders,
)
