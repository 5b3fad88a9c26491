"""User kinds of workers in processes: supervised, fenced, counted in both legs, with all neighbours killed."""

from __future__ import annotations

import time

import pytest

from tests.marks import nightly
from tests.system.launched import assert_balanced
from tests.system.test_supervision import await_snapshot, await_training, counting

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("transport", ["shared-memory", nightly("zeromq")])
def test_augmenters_and_watchers_survive_kills_of_themselves_and_neighbours(launch, transport: str) -> None:
    """The update fails where rows or cores of two incarnations are mixed."""
    run = counting(
        launch,
        "--graph",
        "my_workers:passed_on_and_watched",
        "--restart",
        "5",
        "--transport",
        transport,
        "--evaluator.enabled",
    )
    await_snapshot(run)
    for worker in ("augment", "actor-0", "learner", "watch", "augment"):
        process = run.await_worker(worker)
        process.kill()
        await_training(run, time.monotonic(), worker, process.pid)
    run.popen.terminate()
    run.expect(130, 40.0)
    result = run.result()
    assert_balanced(result, unknown_allowed=transport == "zeromq")
    assert result["legs"]["samples.augment"]["produced"] > 0
    assert {"augment/wait_rows_share", "watch/wait_share"} <= {name for line in run.lines() for name in line}


@pytest.mark.nightly
@pytest.mark.parametrize("transport", ["shared-memory", nightly("zeromq")])
def test_broadcast_survives_kills_of_its_writer_and_readers(launch, transport: str) -> None:
    run = counting(launch, "--graph", "my_workers:counted", "--restart", "5", "--transport", transport)
    await_snapshot(run)
    for worker in ("count", "learner", "actor-0", "count"):
        process = run.await_worker(worker)
        process.kill()
        await_training(run, time.monotonic(), worker, process.pid)
    run.popen.terminate()
    run.expect(130, 40.0)
    result = run.result()
    assert_balanced(result, unknown_allowed=transport == "zeromq")
    assert result["legs"]["samples.count"]["consumed"] > 0
