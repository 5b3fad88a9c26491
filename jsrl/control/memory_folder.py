"""The folder of a run's shared memory and sockets."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from jsrl.errors import ConfigError, counted
from jsrl.graph.machine import accelerators
from jsrl.graph.plan import JAX_PROCESS_MB, Plan, memory_mb
from jsrl.linux import memory_folder
from jsrl.services.runs.limits import runs_at_once, usable_memory_bytes
from jsrl.transport.ledger.legs import close_legs
from jsrl.transport.shared.locks import living_folder, make_folder, remove_unless_living
from jsrl.workers.kinds import find_kind


@contextlib.contextmanager
def own_memory_folder(run: Path | None = None) -> Iterator[Path]:
    """Yield a new folder for this run's shared memory and sockets, and remove it afterwards.

    Streams of a killed earlier process of the run are counted before their memory is removed.

    The lock of its file `alive` shows to others that this process is alive, even in another PID namespace.
    """
    if run is not None:
        close_legs(run)
    with living_folder(memory_root() / f"{os.getpid()}-{secrets.token_hex(4)}") as folder:
        yield folder


def memory_root() -> Path:
    """Return the folder of this user's shared memory, after removing what dead controllers left there."""
    root = make_folder(memory_folder())
    for folder in root.iterdir():
        with contextlib.suppress(OSError):
            remove_unless_living(folder)
    return root


def check_memory(plan: Plan) -> None:
    """Refuse a run on this host that needs more memory than its job may use; other hosts are checked with the layout."""
    if plan.hosts.of:
        return
    has_gpus = bool(accelerators())  # which then hold replay and params
    sizes = Counter[str]()
    for job in plan.jobs:
        kind = find_kind(job.kind)
        on_gpu = has_gpus and kind.resources.device == "learns"
        sizes[kind.name] += JAX_PROCESS_MB if on_gpu else memory_mb(plan, job)
    runs = runs_at_once()
    needed_mb, max_mb = sizes.total(), (usable_memory_bytes() >> 20) // runs
    if needed_mb > max_mb:
        e, counts = plan.experiment, Counter(find_kind(job.kind).name for job in plan.jobs)
        each = ", ".join(f"{counted(counts[name], name)} {size:,}" for name, size in sizes.most_common(3) if size)
        kept = "" if e.buffer is None else f"a smaller --replay.capacity (now {e.buffer.capacity:,}), or "
        shared, fewer = (f", one of {runs} runs at once", "fewer runs at once, ") if runs > 1 else ("", "")
        raise ConfigError(
            f"this run needs about {needed_mb:,} MB of memory ({each}), but may use {max_mb:,} MB here{shared}. Use {fewer}"
            f"{kept}fewer environments or actors (--num-envs, --num-actors)."
        )


def check_shared_memory(plan: Plan) -> None:
    """Refuse a run whose streams do not fit into shared memory, before anything starts."""
    if not plan.experiment.where.processes:
        return
    free = shutil.disk_usage(plan.memory_folder.parent).free
    needed = plan.shared_memory_bytes
    if needed > free:
        raise ConfigError(
            f"this run needs {needed / 2**20:.0f} MiB of shared memory, but {plan.memory_folder.parent} has "
            f"{free / 2**20:.0f} MiB free. Use --transport zeromq, fewer environments or a shorter rollout, or enlarge it "
            "(in a container: --shm-size)."
        )
