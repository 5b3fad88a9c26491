"""What only the Linux kernel tells or does: /proc, control groups, prctl, /dev/shm. Elsewhere the answer is "not known".

No other module uses them, so serial runs, evaluation and reports do not need Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

SHM = Path("/dev/shm")
GROUPS, OWN_GROUPS, COUNTERS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")
_MEMORY = (  # of versions 2 and 1: limit, use, and of that caches of files
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_SET_DEATH_SIGNAL, _SET_NAME = 1, 15


# -- this machine


def memory_folder() -> Path:
    """Return this user's folder whose files are shared memory: in /dev/shm, or without it among temporary files."""
    return (SHM if os.access(SHM, os.W_OK) else Path(tempfile.gettempdir())) / f"jsrl-{os.getuid()}"


def boot_id() -> str:
    """Return an id of this machine since its last boot; empty: not known."""
    return " ".join(_words(Path("/proc/sys/kernel/random/boot_id")))


def processor() -> str:
    """Return the processor's name; empty: not known."""
    lines = _lines(Path("/proc/cpuinfo"))
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def available_bytes() -> int:
    """Return the memory that new processes could use now, caches of files included; 0: not known."""
    found = (int(line.split()[1]) << 10 for line in _lines(Path("/proc/meminfo")) if line.startswith("MemAvailable:"))
    return next(found, 0)


def nvidia_devices() -> list[str]:
    """Return the names of the GPUs that NVIDIA's driver reports."""
    lines = (line for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")) for line in _lines(path))
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]


# -- control groups: the limit of a job is in its own or in one above it; a container shows only its own, as the root


def core_quotas() -> Iterator[int]:
    """Yield the cores that each of this process's control groups allows."""
    for group in _groups("cpu"):
        words = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(words) == 2 and words[0].isdigit():  # not `max` or -1
            yield round(int(words[0]) / int(words[1]))


def memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the memory that each of the control groups allows, and uses without caches of files, in bytes."""
    for group in _groups("memory"):
        for limit, used, caches in _MEMORY:
            if (words := _words(group / limit)) and words[0].isdigit():  # not `max`
                current = _words(group / used)
                cached = _counts(group / "memory.stat").get(caches, 0)
                yield int(words[0]), int(current[0]) - cached if current else 0


def killed_for_memory() -> int:
    """Return how many processes of this process's control group the kernel has killed because memory ran out."""
    own = [group / name for group in _groups("memory")[:1] for name in ("memory.events", "memory.oom_control")]
    found = (_counts(path).get("oom_kill") for path in (*own, COUNTERS))  # the root has no counts of its own
    return next((count for count in found if count is not None), 0)


def _groups(controller: str) -> list[Path]:
    """Return the folders of this process's control group and of those above it, of both versions, its own first."""
    found = list[Path]()
    for line in _lines(OWN_GROUPS):
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root, own = GROUPS / controllers, Path(name.lstrip("/"))
        found += [root / above for above in (own, *own.parents)]
    return [folder for folder in found if folder.is_dir()]


# -- processes


def stat(pid: int | str) -> list[str]:
    """Return the fields of a process after its name: state, parent, ... (proc(5), from field 3); empty: not known."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """Return when a process of this host started, in clock ticks after the boot; None: there is none, or not known."""
    fields = stat(pid)
    return int(fields[19]) if fields else None


def parent_of(pid: int) -> int:
    """Return the process id of a process's parent; 0: the process has ended, or not known."""
    fields = stat(pid)
    return int(fields[1]) if fields else 0


def pid_namespace() -> str:
    """Return the namespace of this process's process ids; a container has its own. Empty: not known."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal that would otherwise end it."""
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)", "\n".join(_lines(Path(f"/proc/{pid}/status"))), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


# -- this process


def thread_names() -> list[str]:
    """Return the names of this process's threads, those of libraries too; empty: not known."""
    return [name for path in Path("/proc/self/task").glob("*/comm") for name in _lines(path)]  # none: it has ended


def return_freed_memory() -> None:
    """Give the memory that this process has freed back to the system (glibc). Compiling leaves hundreds of MB."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def descriptor_path(descriptor: int) -> str:
    """Return a path that leads to what an open descriptor is of.

    A name below it fits a socket address (107 bytes), however deep the folder is.
    """
    return f"/proc/self/fd/{descriptor}"


def signal_at_parents_end(number: int) -> None:
    """Let the kernel send this process a signal when its parent ends; 0: none any more."""
    _prctl(_SET_DEATH_SIGNAL, int(number))


def show_name(name: str) -> None:
    """Show a name for this process in `ps` and `top`: its first 15 letters."""
    _prctl(_SET_NAME, name.encode()[:15])


def show_word(word: str, name: str) -> None:
    """Show `name` instead of a word of the command line in `ps`, cut to the word's length."""
    fields = stat("self")
    start, end = (int(fields[45]), int(fields[46])) if fields else (0, 0)  # of the command line; 0: hidden
    found = ctypes.string_at(start, end - start).find(f"\0{word}\0".encode()) if start else -1
    if found >= 0:
        ctypes.memmove(start + found + 1, name.encode()[: len(word)].ljust(len(word), b"\0"), len(word))


def lower_session_priority(niceness: int) -> None:
    """Lower the priority of this process's session, if the kernel schedules by session (autogroup)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))


def _prctl(option: int, value: bytes | int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


def _counts(path: Path) -> dict[str, int]:
    """Return the lines `NAME COUNT` of a file of the kernel."""
    return {name: int(count) for name, count in (line.split() for line in _lines(path))}


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # there is no such file, or not Linux
        return []


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its parent dies (Linux); exit at once if it already has."""
    signal_at_parents_end(number)  # elsewhere the control thread watches the parent's pid
    if os.getppid() != parent_pid:
        os._exit(0)


class Forks:
    """Lets what an environment forks, inside a `with` block, end with the main thread of its process (Linux).

    A fork also keeps the locks of its process, by which others know that a run goes on.
    """

    def __init__(self) -> None:
        self._active, self._parent = False, 0
        os.register_at_fork(before=self._before, after_in_child=self._after)

    def _before(self) -> None:
        # The signal of a parent's death comes when the thread that forked ends, so only the main thread's children ask for it.
        ends = self._active and threading.current_thread() is threading.main_thread()
        self._parent = os.getpid() if ends else 0

    def _after(self) -> None:
        if self._parent:
            die_with_parent(self._parent)

    def __enter__(self) -> None:
        self._active = True

    def __exit__(self, *_: object) -> None:
        self._active = False


FORKS = Forks()
