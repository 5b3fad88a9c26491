"""Snapshots that a host agent could not send, because the controller was lost: kept on this host when the agent ends."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from jsrl.services.snapshots.format import MANIFEST, remove_incomplete
from jsrl.types import version_updates

STATES = "state"  # last part of the folder of a learner's snapshots
NOTE = "resume.txt"  # has the lines for the user: engines may show only the last line of an agent, or none


def keep_snapshots(root: Path, folders: Collection[str], run: str, host: str) -> list[str]:
    """Move the snapshots of learners to a place that remains; return lines for the user, with the commands to continue.

    Args:
      root: the agent's folder for the run's files. folders: of the snapshots, below it. run: the run folder, on the
        controller's host. host: the name of this one.
    """
    updates = {folder: found for folder in folders if (found := _clean(root / folder)) is not None}
    if not updates:
        return []
    text = "; ".join(f"{folder}: version {number:,}" for folder, number in updates.items())
    try:
        place = _place(f"{Path(run).name}-{secrets.token_hex(4)}")
        for folder in updates:
            (place / folder).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(root / folder, place / folder)
        lines = [
            f"the controller was lost before the newest snapshot of this host ({text}) reached the run folder. It is kept in "
            f"{place}. Unless the run has gone on elsewhere since, copy it to the host of the run, and resume there with the "
            "same options for hosts:",
            f"  scp -r {host}:{shlex.quote(f'{place}/snapshots')} {shlex.quote(run)}",
            f"  jsrl run --resume {shlex.quote(run)}",
        ]
        (place / NOTE).write_text("\n".join(lines) + "\n")
    except OSError as error:
        return [f"the newest snapshot of this host ({text}) is lost: it could not be kept ({error})"]
    return lines


def _clean(folder: Path) -> int | None:
    """Remove the incomplete snapshots in a folder; return the updates of the newest; None: there is none."""
    remove_incomplete(folder)
    for unfinished in folder.glob(".*-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    versions = [int(path.parent.name) for path in folder.glob(f"[0-9]*/{MANIFEST}")]
    return version_updates(max(versions)) if versions else None


def _place(name: str) -> Path:
    """Return a folder of the user that remains after a restart of the host; else one for temporary files."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "jsrl" / "unsent"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        (base / name).mkdir(mode=0o700)
    except OSError:
        return Path(tempfile.mkdtemp(prefix=f"jsrl-unsent-{name}-"))
    return base / name
