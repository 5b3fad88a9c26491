"""What this host offers, found without loading jax: accelerators, threads, and programs that were compiled before."""

from __future__ import annotations

import functools
import os
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jsrl.errors import counted
from jsrl.experiment import Experiment
from jsrl.experiment.automatic import Machine
from jsrl.linux import thread_names
from jsrl.services.runs.limits import usable_cores

THREADS = (
    "PJRT_NPROC"  # variable: threads of XLA on CPU. It splits sums among them, so that bits depend on their number
)
GPU_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"
MOST = 0.9  # of a GPU's memory, for all workers that use it
MIN_COMPILE_S = 0.2
ZLIB = 0x78  # first byte of data that zlib compressed
CHECKED = ".checked"  # its time of change: programs that are older have been checked
WRITTEN_S = 10.0  # younger programs may still be written


def accelerators() -> list[str]:
    """Return the indices of the accelerators that processes of this host may use, without loading jax."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms == "cpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [index for index in visible.split(",") if index.strip() not in ("", "-1")]
    devices = [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    return [str(index) for index in range(len(devices))]  # CUDA counts from 0 what a container shows, such as nvidia3


def xla_threads() -> int | None:
    """Return the number of threads that XLA computes with on CPU in this process; None: jax has not started here."""
    return sum(name.startswith("tf_XLAEigen") for name in thread_names()) or None


def threads_obstacle(e: Experiment) -> str | None:
    """Return why a serial run cannot compute with its number of threads in this process; None: it does."""
    wanted, here = e.learner.threads, None if e.where.processes or accelerators() else xla_threads()
    if wanted is None or here is None or here == wanted:
        return None
    return (
        f"it computes with {counted(wanted, 'thread')} (--learner.threads), but jax has already started in this process with "
        f"{here}; start it in a new process"
    )


def within_gpu_memory(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's variables, with its share of the GPU memory that all workers here may use.

    XLA's own variable limits it, such as in a job that has a part of a GPU (Slurm's shards).
    """
    granted, share = os.environ.get(GPU_MEMORY), variables.get(GPU_MEMORY)
    if not granted:
        return dict(variables)
    return {**variables, GPU_MEMORY: granted if share is None else f"{float(share) / MOST * float(granted):.3f}"}


def this_machine() -> Machine:
    """Return the facts that the choice of a placement depends on."""
    given = os.environ.get(THREADS, "")
    return Machine(usable_cores(), len(accelerators()), xla_threads() or (int(given) if given.isdigit() else None))


# -- compiled programs, so that the second start of an experiment takes half as long ------------------------------------


def cache_variables() -> dict[str, str]:
    """Return the environment variables that enable jax's compilation cache; none if the user has set it already.

    JAX_COMPILATION_CACHE_DIR is its folder; an empty value disables it. The default is a folder of the user's
    cache; if that cannot be made, nothing is cached.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    folder = cache_folder()
    if folder is None:
        return {}
    remove_broken(folder)
    seconds = str(MIN_COMPILE_S)
    return {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": seconds}


def cache_folder() -> Path | None:
    """Return the folder of the user's cache for compiled programs, created if missing; None: it cannot be made."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "jsrl" / "compilation"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


@functools.cache
def remove_broken(folder: Path) -> None:
    """Remove compiled programs that are incomplete, because a process was killed or a disk was full when it wrote them.

    jax cannot read such a file and does not replace it, so every start would compile that program again. Programs that jax
    compressed with zstandard are not checked.
    """
    now_s, mark = time.time(), folder / CHECKED
    with suppress(OSError):
        since_s = mark.stat().st_mtime if mark.exists() else 0.0
        for path in folder.glob("*-cache"):
            if since_s <= path.stat().st_mtime < now_s - WRITTEN_S and _is_broken(path):
                path.unlink()
        mark.touch()
        os.utime(mark, (now_s - WRITTEN_S, now_s - WRITTEN_S))


def _is_broken(path: Path) -> bool:
    content = path.read_bytes()
    if content and content[0] != ZLIB:
        return False
    try:
        zlib.decompress(content)
    except zlib.error:
        return True
    return False


def keep_compiled_here() -> None:
    """Enable the cache in this process, whose jax has already read its environment; the user's configuration stays."""
    import jax

    variables = cache_variables()
    if variables and getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        jax.config.update("jax_compilation_cache_dir", variables["JAX_COMPILATION_CACHE_DIR"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_S)
