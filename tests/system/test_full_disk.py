"""A full disk during a whole run: training continues, each writer warns once, and continues once there is space."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsrl.transport.ledger.legs import read_leg
from jsrl.transport.ledger.reconcile import leg_ledger
from tests.system.launched import FOREVER

pytestmark = pytest.mark.slow
WRITERS = ("--trace",)
FILMS = ("--video.enabled", "--video.niceness", "0", "--video.period-env-steps", "200")
ENV_STEPS = 2 * 8  # of one trajectory of `tiny`
OFTEN = ("--snapshots.period-s", "0.5", "--evaluator.period-env-steps", "2000", "--evaluator.final-episodes", "5")


class Disk:
    """A small separate file system; `full` fills it, and keeps it full while files are removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        over, filler = threading.Event(), self.folder / "filler"

        def fill() -> None:
            with filler.open("ab", buffering=0) as file:
                while not over.wait(0.002):
                    with contextlib.suppress(OSError):
                        while file.write(bytes(1 << 16)):
                            pass

        thread = threading.Thread(target=fill)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not allowed here: {mounted.stderr.strip()}")
    yield Disk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def warnings_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: ")]


def assert_once_each(text: str) -> None:
    """Check that no writer warned twice."""
    warnings = warnings_in(text)
    for writer in (
        "metrics.jsonl",
        "events.out.tfevents",
        "learner: snapshot",
        "evaluator: snapshot",
        "video was lost",
    ):
        assert len([line for line in warnings if writer in line]) <= 1, (writer, warnings)


@pytest.mark.nightly
def test_run_with_a_full_disk_trains_to_its_end(launch, disk, tmp_path) -> None:
    pytest.importorskip("tensorboardX")
    steps = ("--total-env-steps", "30720", "--stop-at-return", "501")
    run = launch(*steps, *WRITERS, *FILMS, *OFTEN, experiment="ppo_cartpole", runs_dir=disk.folder, output_dir=tmp_path)
    run.await_updates()
    with disk.full():
        text = run.expect(1, 120.0)
    assert "reached total_env_steps after 30,720" in text
    assert_once_each(text)
    for writer in ("metrics.jsonl", "events.out.tfevents", "learner: snapshot"):
        assert writer in "\n".join(warnings_in(text))


def test_metrics_and_snapshots_continue_once_there_is_space(launch, disk, tmp_path) -> None:
    pytest.importorskip("tensorboardX")
    run = launch(
        *FOREVER,
        "--stop-at-return",
        "501",
        *WRITERS,
        *OFTEN,
        experiment="ppo_cartpole",
        runs_dir=disk.folder,
        output_dir=tmp_path,
    )
    run.await_updates()
    with disk.full():
        for writer in ("metrics.jsonl", "events.out.tfevents", "learner: snapshot"):
            run.until(lambda w=writer: w in "\n".join(warnings_in(run.text)), f"a warning of {writer}")
    events = next((run.folder / "tensorboard").glob("events*"))
    updates, size_bytes = run.lines()[-1]["updates"], os.path.getsize(events)
    run.await_updates(updates + 20)
    run.until(lambda: os.path.getsize(events) > size_bytes, "further events")
    run.popen.terminate()
    text = run.expect(130, 60.0)
    assert_once_each(text)
    assert run.result()["updates"] > updates
    assert (run.folder / "snapshots" / "state" / "tags" / "final.json").exists()


@pytest.mark.nightly
def test_run_with_output_on_the_full_disk_trains_to_its_end(launch, disk) -> None:
    run = launch("--total-env-steps", "6000", runs_dir=disk.folder)
    run.await_updates()
    with disk.full():
        run.expect(1, 120.0)


@pytest.mark.nightly
def test_learner_replaced_while_the_disk_is_full_counts_on(launch, disk, tmp_path) -> None:
    """Its trajectories are in the ledger: no sum of the dead learner's counts alone."""
    run = launch(*FOREVER, "--restart", "2", runs_dir=disk.folder, output_dir=tmp_path)
    run.await_updates(5)
    with disk.full():
        learner = run.await_worker("learner")
        learner.kill()
        run.await_another("learner", learner.pid)
        run.until(lambda: (leg := read_leg(run.folder)) and leg.dropped.get("rolled_back"), "the next one's counts")
        consumed = read_leg(run.folder).consumed
        run.until(lambda: read_leg(run.folder).consumed > consumed + 10, "its updates")
    run.popen.terminate()
    run.expect(130, 60.0)
    result, ledger = run.result(), leg_ledger(run.result()["ledger"])
    assert ledger.holds and ledger.uncounted and ledger.consumed * ENV_STEPS == result["env_steps"]
