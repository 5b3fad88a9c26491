"""What this host offers: its accelerators, found without loading jax."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
