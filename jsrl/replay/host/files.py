"""A replay worker's files: its counters as JSON, and its rows as plain .npy files if they are saved."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import SnapshotError
from jsrl.plain_files import open_plain, read_npy_header, read_plain
from jsrl.replay.host.limiter import Limiter
from jsrl.replay.host.replay import HostReplay
from jsrl.replay.host.rows import Lane
from jsrl.types import named_leaves

COUNTERS, ROWS = "counters.json", "rows"


def save_replay(folder: Path, replay: HostReplay, limiter: Limiter, *, rows: bool) -> None:
    """Write the limiter's counts, and the rows with their priorities if `rows`; completely or not at all.

    The caller is the inserting thread, so no row changes meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counters: dict[str, Any] = {"limiter": limiter.state, "drawn": replay.drawn}
    if rows:
        draft, kept = folder / f"{ROWS}.draft", folder / ROWS
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        with replay.lock:
            counters |= {"replay": replay.counters, "lanes": [dataclasses.asdict(lane) for lane in replay.lanes]}
            for name, array in _arrays(replay).items():
                np.save(draft / f"{name}.npy", array, allow_pickle=False)
        (draft / COUNTERS).write_text(json.dumps(counters))
        shutil.rmtree(folder / f"{ROWS}.old", ignore_errors=True)
        if kept.exists():
            os.replace(kept, folder / f"{ROWS}.old")
        os.replace(draft, kept)
        shutil.rmtree(folder / f"{ROWS}.old", ignore_errors=True)
    new = folder / f".{COUNTERS}"
    new.write_text(json.dumps(counters))
    os.replace(new, folder / COUNTERS)


def load_replay(folder: Path, replay: HostReplay, limiter: Limiter) -> None:
    """Restore what `save_replay` wrote, as far as it exists: rows and their counts, or only the counts.

    Without rows the limiter waits for `min_size` env steps again, with its earlier surplus.

    Raises:
      SnapshotError: they are broken, or another experiment's.
    """
    rows = folder / ROWS
    source = rows / COUNTERS if (rows / COUNTERS).exists() else folder / COUNTERS
    if not source.exists():
        return
    try:
        counters = json.loads(read_plain(source))
        limiter.restore(counters["limiter"])
        if not (rows / COUNTERS).exists():
            limiter.refill()
            return
        with replay.lock:
            for name, array in _arrays(replay).items():
                _read_array(rows / f"{name}.npy", array)
            replay.take_up(_lanes(counters["lanes"], len(replay.lanes)), counters["replay"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotError(
            f"the rows of replay in {folder} cannot be read ({type(error).__name__}: {error}). Delete that folder to "
            "begin with an empty replay."
        ) from error


def _read_array(path: Path, array: np.ndarray) -> None:
    with open_plain(path) as file:
        shape, dtype = read_npy_header(file, os.fstat(file.fileno()).st_size)
    if shape != array.shape or dtype != array.dtype:
        raise SnapshotError(
            f"{path} has {dtype}{list(shape)}, expected {array.dtype}{list(array.shape)}: capacity, window or spaces of the "
            "replay changed. Delete that folder to begin with an empty replay."
        )
    array[...] = np.load(path, mmap_mode="r", allow_pickle=False)


def _lanes(stored: Any, number: int) -> list[dict[str, int]]:
    names = {field.name for field in dataclasses.fields(Lane)} - {"last"}
    if len(stored) != number:
        raise ValueError(f"{len(stored)} lanes, expected {number}")
    for lane in stored:
        if set(lane) != names | {"last"} or not all(type(lane[name]) is int and lane[name] >= 0 for name in names):
            raise ValueError(f"a lane that cannot be: {str(lane)[:80]}")
    return stored


def _arrays(replay: HostReplay) -> dict[str, np.ndarray]:
    named = {f"rows.{name.replace('/', '.')}": leaf for name, leaf in named_leaves(replay.rows.rows)}
    return named | {"fresh": replay.rows.fresh, "after_gap": replay.rows.after_gap} | replay.index_arrays
