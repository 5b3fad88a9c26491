"""The user's modules of a run as one archive, sent once to each host and named by its digest.

It contains the modules that the job names as `module:name`: the package of such a module, or for a single file the
Python files of its folder. jsrl itself and installed packages are not sent: hosts have them (see versions).
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsrl.errors import ConfigError
from jsrl.references.importing import is_own

MOST_BYTES, MOST_FILES = 64 << 20, 4_000
CODE = "code"  # folder of archives, and of their files
_NAMED = re.compile(r"([A-Za-z_]\w*)(\.\w+)*:[A-Za-z_][\w.]*")
_SKIPPED = {"__pycache__", "runs", "node_modules"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file, so that equal contents have one digest


def code_file(digest: str) -> str:
    """Return the name of an archive, below the run folder and that of an agent."""
    return f"{CODE}/{digest}.zip"


def modules_named(tree: Any) -> set[str]:
    """Return the top-level modules named in the values of a job, as JSON."""
    if isinstance(tree, str):
        found = _NAMED.fullmatch(tree)
        return {found[1]} if found else set()
    if isinstance(tree, dict):
        return {name for key, value in tree.items() for name in modules_named(value) | modules_named(key)}
    if isinstance(tree, list):
        return {name for value in tree for name in modules_named(value)}
    return set()


def archive(modules: set[str]) -> tuple[str, bytes]:
    """Return (SHA-256, archive) of the user's files for these top-level modules; ("", b"") if there are none."""
    files: dict[str, Path] = {}
    for module in sorted(modules - {"jsrl"}):
        files |= dict(_files_of(module))
    if not files:
        return "", b""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if len(files) > MOST_FILES or sum(sizes.values()) > MOST_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ConfigError(
            f"the modules {', '.join(sorted(modules))} and the files beside them are {len(files)} files of "
            f"{sum(sizes.values()) >> 20} MiB (the largest is {largest}), too much to send to other hosts, expected at most "
            f"{MOST_FILES} and {MOST_BYTES >> 20} MiB; keep them in a package of their own."
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = (0o755 if files[name].stat().st_mode & 0o100 else 0o644) << 16
            file.writestr(info, files[name].read_bytes(), zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    return hashlib.sha256(content).hexdigest(), content


def _files_of(module: str) -> Iterator[tuple[str, Path]]:
    """Yield (name in the archive, path) of the files of a user's top-level module."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return
    if spec is None or not is_own(spec.origin or ""):
        return
    if not spec.submodule_search_locations:
        folder = Path(str(spec.origin)).parent
        yield from ((path.name, path) for path in folder.glob("*.py") if path.is_file())
        return
    for place in spec.submodule_search_locations:
        root = Path(place)
        for inside, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
            paths = [Path(inside, name) for name in names if not name.startswith(".")]
            yield from ((str(path.relative_to(root.parent)), path) for path in paths if path.is_file())


def unpack(digest: str, content: bytes, folder: Path) -> None:
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"an archive of {len(content)} bytes has another digest than {digest[:12]}...")
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        entries = file.infolist()
        if len(entries) > MOST_FILES or sum(entry.file_size for entry in entries) > MOST_BYTES:
            raise ValueError(f"an archive of {len(entries)} files, which is too large")
        for entry in entries:
            path = Path(entry.filename)
            if path.is_absolute() or ".." in path.parts or entry.is_dir():
                raise ValueError(f"the archive's {entry.filename[:80]!r} does not belong in a folder of modules")
        draft = folder.with_name(f"{folder.name}.draft")
        draft.mkdir(parents=True, exist_ok=True)
        file.extractall(draft)
        for entry in entries:
            if entry.external_attr >> 16 & 0o100:  # a program that the user's modules start
                (draft / entry.filename).chmod(0o755)
        draft.rename(folder)
