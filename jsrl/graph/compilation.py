"""Compiled programs are cached between runs, so that the second start of an experiment takes half as long."""

from __future__ import annotations

import functools
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path

MIN_COMPILE_S = 0.2
ZLIB = 0x78  # first byte of data that zlib compressed
CHECKED = ".checked"  # its time of change: programs that are older have been checked
WRITTEN_S = 10.0  # younger programs may still be written


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
