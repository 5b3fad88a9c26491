"""Where a run's next life begins, and what may be different in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from jsrl.errors import ConfigError, SnapshotError
from jsrl.experiment import Experiment
from jsrl.launch.options import differences
from jsrl.services.runs import RunFolder
from jsrl.services.snapshots import SnapshotStore
from jsrl.transport.ledger_page import LEDGER, read_page
from jsrl.transport.segment import try_lock
from jsrl.workers.jobs import Origin

MAY_CHANGE = (
    "total-env-steps", "max-minutes", "stop-at-return", "placement", "num-actors", "num-inference-servers", "road",
    "restart", "trace", "actor.", "inference.", "evaluator.", "snapshots.", "deadlines.", "learner.num-devices",
    "learner.threads", "learner.prefetch", "learner.memory-share", "learner.check-finite",
)  # fmt: skip


def allowed_changes(old: Experiment, new: Experiment) -> list[str]:
    """Return, for people, what a resume changes.

    Raises:
      ConfigError: something that would make it another experiment; names the option.
    """
    lines = []
    for name, (before, after) in differences(old, new).items():
        if not name.startswith(MAY_CHANGE):
            raise ConfigError(
                f"--{name} cannot change on resume ({before} -> {after}); limits and placement may. To begin anew from "
                "this run's params use --init-from RUN@TAG."
            )
        lines.append(f"changed: --{name} {before} -> {after}")
    return lines


@contextlib.contextmanager
def claimed(folder: RunFolder) -> Iterator[None]:
    """Hold a run folder for this process, so that no second one continues it meanwhile.

    Raises:
      ConfigError: another process holds it.
    """
    path = folder.path / "running"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(fd):
            pid = os.read(fd, 32).decode(errors="replace").strip()
            raise ConfigError(f"{folder.name} is running (process {pid}); stop it first, or begin another run.")
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(fd)


def open_resumed(resume: str, runs_dir: str | os.PathLike[str]) -> tuple[RunFolder, Origin]:
    """Return a run's folder and where its next life begins: after its latest snapshot, in a new epoch.

    Raises:
      ConfigError: there is no such run, or it has no snapshot.
    """
    folder = RunFolder.open(resume, runs_dir)
    store = SnapshotStore(folder.snapshots / "state")
    try:
        latest = store.meta("latest")
    except SnapshotError as error:
        raise ConfigError(f"{folder.name} cannot be resumed: {error}") from error
    life = read_page(folder.path / LEDGER)
    epoch = max(int(latest["epoch"]), life.epoch if life else 0) + 1
    return folder, Origin(epoch, int(latest["updates"]), f"{store.folder}@latest")


def params_source(init_from: str, runs_dir: str | os.PathLike[str]) -> str:
    """Return `store folder@selector` for RUN@TAG: `latest` and `final` are whole states, other tags are params.

    Raises:
      ConfigError: there is no such run or tag.
    """
    name, _, tag = init_from.partition("@")
    folder = RunFolder.open(name, runs_dir)
    tag = tag or "latest"
    for store_name in ("params", "state"):
        store = SnapshotStore(folder.snapshots / store_name)
        if tag in store.tags():
            return f"{store.folder}@{tag}"
    tags = {*SnapshotStore(folder.snapshots / "params").tags(), *SnapshotStore(folder.snapshots / "state").tags()}
    raise ConfigError(f"{folder.name} has no snapshot tagged {tag!r}; it has: {', '.join(sorted(tags)) or 'none'}.")
