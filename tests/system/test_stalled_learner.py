"""A stopped learner: its actors fill the space they were given, and no process grows beyond the bounds of `--plan`."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from benchmarks.endurance.holdings import Holdings, folder_usage, holdings
from jsrl.transport.ledger.page import LEDGER, read_page
from tests.marks import nightly
from tests.system.launched import FOREVER, Launched, assert_balanced

pytestmark = pytest.mark.slow
LONGEST_S, SLACK_MB = 30.0, 32.0  # the interpreter's heap, glibc's arenas, the kernel's socket buffers
ROW_BYTES = 65536
BATCH_COPIES_MB = (
    6 * 16 * 16 * ROW_BYTES / 1e6
)  # that updates of the learner, and the allocator below them, hold at a time
OPTIONS = (
    *("--env.id", "worlds:Wide", "--num-envs", "16", "--rollout-length", "16", "--placement", "served"),
    *("--max-policy-lag", "none", "--agent.learning-rate", "0", "--deadlines.silence-s", "120"),
)


def stated(launch, *options: str) -> tuple[dict[str, float], float]:
    """Return the bounds of `--plan`: worker kind -> MB of each process, and MB of shared memory."""
    told = launch(*options, "--plan")
    told.end(60.0)
    rows = re.findall(r"^  ([a-z-]+) +1  cpu +(\d+)$", told.text, re.MULTILINE)
    (shared,) = re.findall(r"shared memory: ([\d.]+) MiB", told.text)
    return {kind: float(megabytes) * 2**20 / 1e6 for kind, megabytes in rows}, float(shared) * 2**20 / 1e6


def held(run: Launched) -> dict[str, Holdings]:
    found = {name: holdings(process.pid) for name, process in run.workers().items()}
    return {name: each for name, each in found.items() if each is not None}


def column(run: Launched, name: str) -> float:
    """Return the newest value of a metric."""
    return next((float(line[name]) for line in reversed(run.lines()) if name in line), 0.0)


def shared_mb(run: Launched) -> float:
    return sum(folder_usage(folder)[1] for folder in run.memory_folders())


def consumed(run: Launched) -> int:
    life = read_page(run.folder / LEDGER)
    return 0 if life is None else life.ledger.consumed


@pytest.mark.nightly
@pytest.mark.parametrize("transport", [nightly("shared-memory"), "zeromq"])
def test_memory_stays_within_its_bounds_while_the_learner_is_stopped(launch, transport: str, tmp_path: Path) -> None:
    options = (*OPTIONS, "--transport", transport)
    memory_mb, memory_shared_mb = stated(launch, *options)
    run = launch(*FOREVER, *options)
    run.await_updates(12)
    # the time after which untaken rows would exceed the slack, at the speed measured before
    bytes_per_s = column(run, "actor/env_steps_per_s") * ROW_BYTES
    stall_s = min(max(3.0, 3e6 * SLACK_MB / bytes_per_s), LONGEST_S)
    assert bytes_per_s * stall_s >= 2e6 * SLACK_MB, "too slow for any growth to show"
    learner = run.workers()["learner"]
    learner.suspend()
    before = held(run)
    seen: dict[str, list[Holdings]] = {name: [] for name in before}
    shared = []
    until = time.monotonic() + stall_s
    while time.monotonic() < until:
        for name, each in held(run).items():
            seen[name].append(each)
        shared.append(shared_mb(run))
        time.sleep(0.1)
    stood = consumed(run)
    run.until(lambda: column(run, "actor/wait_block_share") > 0.9, "the actor to wait for room")
    assert consumed(run) == stood
    learner.resume()
    run.until(lambda: consumed(run) > stood + 20, "training to go on")
    assert max(shared) <= memory_shared_mb + 1.0
    for name, samples in seen.items():
        kind = name.rstrip("-0123456789")
        largest = max(each.rss_mb for each in samples)
        print(f"{transport} {name}: {largest:.0f} MB resident, {memory_mb[kind]:.0f} stated")  # noqa: T201
        working_mb = BATCH_COPIES_MB if kind == "learner" else 0.0
        assert largest <= memory_mb[kind] + memory_shared_mb + SLACK_MB + working_mb, name
        assert largest <= before[name].rss_mb + SLACK_MB, name
        assert samples[-1].segments == before[name].segments, name
        # a process opens a file for a moment now and then: count the fewest of the last second
        assert min(each.descriptors for each in samples[-10:]) <= before[name].descriptors, name
    run.popen.terminate()
    run.expect(130, 30.0)
    assert_balanced(run.result())
    ledger = run.result()["ledger"]
    assert set(ledger["dropped"]) <= {"closed"}
