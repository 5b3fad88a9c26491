"""What a process may use of its machine, by its control groups and Slurm: read from files as the kernel shows them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jsrl import linux
from jsrl.control.processes.processes import LocalHandle
from jsrl.services.runs import limits

MB = 1 << 20
TOTAL = psutil.virtual_memory().total


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all control groups; `OWN` beside it is to say which are this process's."""
    monkeypatch.setattr(linux, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(linux, "OWN_GROUPS", tmp_path / "OWN")
    monkeypatch.setattr(linux, "COUNTERS", tmp_path / "vmstat")
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    return tmp_path / "groups"


def set_group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_the_least_limit_of_the_own_group_and_those_above_counts(groups: Path) -> None:
    (groups.parent / "OWN").write_text("0::/job_7/step_0\n")
    set_group(groups, cpu__max="max 100000")
    set_group(groups / "job_7", memory__max=512 * MB, memory__current=400 * MB, cpu__max="100000 100000")
    set_group(groups / "job_7", memory__stat=f"anon 1\ninactive_file {50 * MB}")
    set_group(groups / "job_7" / "step_0", memory__max="max", memory__events="low 0\noom 3\noom_kill 2")
    assert limits.usable_memory_bytes() == 512 * MB
    assert limits.free_memory_bytes() == 162 * MB
    assert limits.usable_cores() == 1 and limits.owns_machine() == (os.cpu_count() == 1)
    assert linux.killed_for_memory() == 2


def test_groups_of_version_1_are_read_as_well(groups: Path) -> None:
    (groups.parent / "OWN").write_text("4:memory:/slurm/job_7\n2:cpu,cpuacct:/slurm/job_7\n0::/\n")
    job = groups / "memory" / "slurm" / "job_7"
    set_group(job, memory__limit_in_bytes=300 * MB, memory__usage_in_bytes=200 * MB)
    set_group(job, memory__stat=f"total_inactive_file {MB}", memory__oom_control="under_oom 0\noom_kill 1")
    set_group(groups / "memory", memory__limit_in_bytes=9223372036854771712)
    set_group(groups / "cpu,cpuacct" / "slurm" / "job_7", cpu__cfs_quota_us=100000, cpu__cfs_period_us=100000)
    set_group(groups / "cpu,cpuacct", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert limits.usable_memory_bytes() == 300 * MB and limits.free_memory_bytes() == 101 * MB
    assert limits.usable_cores() == 1 and linux.killed_for_memory() == 1


def test_without_groups_the_machine_is_the_limit(groups: Path) -> None:
    assert limits.usable_memory_bytes() == TOTAL and limits.usable_cores() == len(os.sched_getaffinity(0))
    assert 0 < limits.free_memory_bytes() <= TOTAL and linux.killed_for_memory() == 0
    (groups.parent / "vmstat").write_text("nr_free_pages 7\noom_kill 5\n")
    assert linux.killed_for_memory() == 5


@pytest.mark.parametrize(
    ("variables", "expected_mb"),
    [
        ({"SLURM_MEM_PER_NODE": "300"}, 300),
        ({"SLURM_MEM_PER_NODE": "0"}, TOTAL // MB),  # all of the node
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_ON_NODE": "4"}, 400),
        ({"SLURM_MEM_PER_NODE": "300", "SLURM_STEP_TASKS_PER_NODE": "1,2(x2)", "SLURM_NODEID": "2"}, 150),
        ({"SLURM_MEM_PER_NODE": "300", "SLURMD_NODENAME": ""}, TOTAL // MB),  # a shell of salloc elsewhere
    ],
)
def test_memory_of_a_slurm_job(
    variables: dict[str, str], expected_mb: int, groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"SLURMD_NODENAME": "n1"} | variables).items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert limits.usable_memory_bytes() // MB == expected_mb


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of this machine that may use 100 MB; this process is not in it."""
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup", "" if version_2 else "memory", f"jsrl-test-{uuid.uuid4().hex[:8]}")
    try:
        group.mkdir()
        (group / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(100 * MB))
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    yield group
    group.rmdir()


GREEDY = """
import os, subprocess, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from jsrl.control.processes.processes import LocalHandle
for code in ("import time; time.sleep(60)", "bytearray(300 << 20)"):
    handle = LocalHandle(subprocess.Popen([sys.executable, "-c", code]), Path("logs", "log"), "actor-0")
    handle.popen.kill() if "sleep" in code else None
    handle.wait(30.0)
    print(handle.exit.text)
"""


def test_a_kill_for_lack_of_memory_is_named(small_group: Path) -> None:
    """Of two processes in a job of 100 MB, one is killed by a user and one uses too much."""
    ended = subprocess.run(
        [sys.executable, "-c", GREEDY, str(small_group)], capture_output=True, text=True, timeout=60, check=True
    )
    by_user, by_kernel = ended.stdout.splitlines()
    assert by_user == "killed by signal 9 (SIGKILL)"
    assert by_kernel.startswith("killed by signal 9 (SIGKILL): the kernel killed it because the 100 MB of memory")


def test_an_earlier_kill_is_not_blamed_for_a_later_end(groups: Path) -> None:
    (groups.parent / "vmstat").write_text("oom_kill 5\n")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as popen:
        handle = LocalHandle(popen, groups, "actor-0")
        popen.kill()
        popen.wait()
        ended = handle.exit
        (groups.parent / "vmstat").write_text("oom_kill 6\n")
        assert ended is not None and handle.exit == ended and ended.text == "killed by signal 9 (SIGKILL)"


FREED = """
import psutil
from jsrl import linux
used = psutil.Process().memory_info
before = used().rss
blocks = [bytearray(64 << 10) for _ in range(1000)]  # too small for a mapping each
blocks[:-1] = []  # the last one keeps the heap from shrinking
held = used().rss - before
linux.return_freed_memory()
print(held >> 20, used().rss - before >> 20)
"""


def test_freed_memory_is_returned_below_what_is_held() -> None:
    """In a process of its own: what other tests have freed would be used first."""
    ended = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=60, check=True)
    held_mb, left_mb = map(int, ended.stdout.split())
    assert held_mb > 32 and left_mb < 16
