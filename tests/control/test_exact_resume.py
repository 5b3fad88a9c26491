"""A deterministic run that is stopped after any update and resumed in a new process ends like one that was never stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jsrl.control import resume
from jsrl.control.resume import continue_exactly
from jsrl.control.run import run
from jsrl.envs.base import EnvStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
from jsrl.errors import ConfigError, EnvironmentFault, SnapshotError
from jsrl.experiment import Experiment, LearnerConfig
from jsrl.graph import machine
from jsrl.graph.plan import make_plan
from jsrl.services.runs.control_bodies import REPLAYING
from jsrl.services.runs.runs import RunFolder
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import ArraySpec, named_leaves
from jsrl.workers.attached.journal import Journal, JournalHeader, JournalWriter, digest
from jsrl.workers.attached.journaled import JournaledEnv, exact_obstacle, journaled
from jsrl.workers.jobs import StartPoint
from tests.control import resume_process
from tests.control.resume_process import EXPERIMENTS, UPDATES
from tests.marks import nightly
from tests.tiny_agent import STILL

slow = pytest.mark.slow
HEADER = JournalHeader("CartPole-v1", 1, 3, 4, ArraySpec((), "int32"), first=5, generation=2)


def live(folder: Path, experiment: str, name: str, *arguments: str, expect: str | None = None) -> str:
    """Run one session in a separate process; return its output."""
    command = [sys.executable, resume_process.__file__, experiment, str(folder), name, *arguments]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    text = ended.stdout + ended.stderr
    assert ended.returncode == 0, text
    if expect is not None:
        assert expect in text, text
    return text


def final_of(folder: Path, name: str) -> tuple[dict[str, np.ndarray], dict, list[bytes]]:
    """Return (leaves of the final state, its meta, every group's journal)."""
    run = folder / "exact" / name
    loaded = SnapshotStore(run / "snapshots" / "state").load("final")
    journals = [path.read_bytes() for path in sorted((run / "journal").iterdir())]
    assert journals and all(len(journal) > 200 for journal in journals)
    return dict(named_leaves(loaded.tree["state"])), loaded.meta, journals


def assert_equal_ends(folder: Path, whole: str, parts: str) -> None:
    """Parameters, optimizer, normalisers, replay, counters, and all actions and outputs of the environments."""
    (one, one_meta, one_played), (two, two_meta, two_played) = final_of(folder, whole), final_of(folder, parts)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name].tobytes() != two[name].tobytes()] == []
    assert one_played == two_played
    assert one_meta["updates"] == two_meta["updates"] == UPDATES
    assert one_meta["env_steps"] == two_meta["env_steps"]
    assert one_meta["ledger"]["trained"] == two_meta["ledger"]["trained"]
    assert two_meta["generation"] > one_meta["generation"] == 0


@pytest.fixture(name="whole", scope="module")
def whole_fixture(tmp_path_factory):
    """Return experiment -> folder in which it ran without a stop, as WHOLE-experiment."""
    folder, made, path = tmp_path_factory.mktemp("runs"), set(), list(sys.path)
    sys.path.insert(0, str(Path(resume_process.__file__).parent))  # as in the other processes, for its environment

    def run_whole(experiment: str) -> Path:
        if experiment not in made:
            made.add(experiment)
            # here in one process instead of several: a deterministic run is the same in every placement
            alone = dataclasses.replace(EXPERIMENTS[experiment], placement="serial")
            result = run(alone, runs_dir=folder, name=f"whole-{experiment}", display="quiet")
            assert (result.ended, result.updates) == ("total_env_steps", UPDATES)
        return folder

    yield run_whole
    sys.path[:] = path


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("experiment", "stops"),
    [
        ("ppo", (13,)),
        nightly("ppo", (1, 29)),
        nightly("sac", (13,)),
        nightly("dqn", (18,)),
    ],
)
def test_serial_run_stopped_after_k_updates_ends_the_same(whole, experiment: str, stops: tuple[int, ...]) -> None:
    folder, name = whole(experiment), f"parts-{experiment}-{len(stops)}"
    for number, stop in enumerate(stops):
        again = ("--resume",) if number else ()
        text = live(folder, experiment, name, "--stop", str(stop), *again, expect=f"ENDED interrupted {stop}")
        assert ("continuing exactly" in text) == bool(number), text
    live(folder, experiment, name, "--resume", expect=f"ENDED total_env_steps {UPDATES}")
    assert_equal_ends(folder, f"whole-{experiment}", name)


@slow
@pytest.mark.parametrize(
    "placements",
    [("inline", "served"), nightly(("inline", "served", "serial"))],
    ids=len,
)
def test_stopped_processes_end_the_same_in_another_placement(whole, placements: tuple[str, ...]) -> None:
    """Two inline actors are stopped at any point; served ones resume, and in the nightly case one process alone."""
    folder, name, made = whole("inline"), f"parts-{len(placements)}", [0]
    for placement in placements[:-1]:
        again = ("--resume",) if made[-1] else ()
        stop = made[-1] + 3  # the previous session may have made more updates than planned
        text = live(folder, "inline", name, "--stop", str(stop), "--placement", placement, *again)
        assert "ENDED interrupted" in text and ("continuing exactly" in text) == bool(again), text
        made.append(int(text.rpartition("ENDED interrupted ")[2].split()[0]))
        assert made[-2] + 3 <= made[-1] < UPDATES
    text = live(folder, "inline", name, "--placement", placements[-1], "--resume", expect="ENDED total_env_steps")
    assert "continuing exactly" in text
    assert_equal_ends(folder, "whole-inline", name)


@pytest.mark.nightly
def test_full_disk_keeps_training_and_the_last_snapshot_resumes_exactly(whole) -> None:
    folder = whole("ppo")
    text = live(folder, "ppo", "full", "--full-after", "12", expect=f"ENDED total_env_steps {UPDATES}")
    assert "No space left on device" in text and "Earlier snapshots stay" in text
    lines = [json.loads(line) for line in (folder / "exact" / "full" / "metrics.jsonl").read_text().splitlines()]
    assert max(line.get("snapshots/failed", 0.0) for line in lines) >= 1.0
    saved = SnapshotStore(folder / "exact" / "full" / "snapshots" / "state").load("latest").meta["updates"]
    assert 0 < saved <= 12
    live(folder, "ppo", "full", "--resume", expect="continuing exactly")
    assert_equal_ends(folder, "whole-ppo", "full")


# -- the journal itself -----------------------------------------------------------------------------------------------


class Silent:
    """A reporter that stores warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, stage: str) -> None: ...

    def event(self, name: str, text: str = "", **facts) -> None:
        self.warnings.append(text)

    def entering(self, activity: str, steps: float | None = None) -> None: ...

    def left(self) -> None: ...


def play(env: JournaledEnv, rows: int, seed: int) -> EnvStep:
    rng, latest = np.random.default_rng(seed), None
    for _ in range(rows):
        latest = env.step(rng.integers(0, 2, 3).astype(np.int32))
    assert latest is not None
    return latest


def journaled_env(
    path: Path, play_again: int | None, reporter=None, *, seed: int = 7, max_bytes: float = 1e6, env=None
):
    env = env or make(EnvConfig("CartPole-v1"), 3, seed, group=1)
    return JournaledEnv(env, path, HEADER, play=play_again, max_bytes=max_bytes, reporter=reporter or Silent())


def test_environments_are_restored_and_continue_identically(tmp_path: Path) -> None:
    path = tmp_path / "journal" / "group-1"
    first = journaled_env(path, None)
    first.reset()
    at_boundary = play(first, 200, seed=0)
    seen = (digest(at_boundary), [leaf.copy() for leaf in (at_boundary.observation, at_boundary.is_first)])
    after = digest(play(first, 6, seed=1))  # into the following trajectory, which is not kept
    first.close()
    assert Journal(path).num_records == 51 and path.stat().st_mode & 0o777 == 0o600
    second = journaled_env(path, 50)
    latest = second.reset()
    assert digest(latest) == seen[0]
    np.testing.assert_array_equal(latest.observation, seen[1][0])
    assert Journal(path).num_records == 50
    assert digest(play(second, 6, seed=1)) == after
    second.close()
    assert Journal(path).num_records == 51


def test_a_replay_reports_how_far_it_is(tmp_path: Path, monkeypatch) -> None:
    """The controller gives a replay as much time as it needs, as long as it goes on."""
    stages: list[str] = []
    monkeypatch.setattr(Silent, "stage", lambda reporter, stage: stages.append(stage))
    monkeypatch.setattr("jsrl.workers.attached.journaled.STAGE_S", 0.0)
    path = tmp_path / "journal" / "group-1"
    for play_again in (None, 3):
        env = journaled_env(path, play_again)
        env.reset()
        play(env, 4 * 3, seed=0)
        env.close()
    assert stages == [f"{REPLAYING} trajectory {number} of 3 of group 1" for number in range(3)]


class UnseededEnv(resume_process.CartPoleEnv):
    """An environment that ignores its seed."""

    def reset(self, *, seed=None, options=None):
        _, found = super().reset(seed=seed, options=options)
        self.state = np.asarray(self.state) + time.perf_counter_ns() % 1000 * 1e-7
        return np.asarray(self.state, np.float32), found


def test_environment_that_ignores_seeds_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "journal" / "group-1"
    for play_again in (None, 5):
        env = journaled_env(path, play_again, env=make(EnvConfig(UnseededEnv), 3, 7))
        if play_again is None:
            env.reset()
            play(env, 20, seed=0)
        else:
            with pytest.raises(EnvironmentFault, match=r"(?s)CartPole-v1.*trajectory 5.*snapshots.exact false"):
                env.reset()
        env.close()


def test_full_disk_or_long_journal_ends_only_the_journal(tmp_path: Path, monkeypatch) -> None:
    reporter, path = Silent(), tmp_path / "journal" / "group-1"
    env = journaled_env(path, None, reporter, max_bytes=400.0)
    env.reset()
    play(env, 40, seed=0)
    assert len(reporter.warnings) == 1 and "journal_mb" in reporter.warnings[0] and not path.exists()
    env.close()
    env = journaled_env(path, None, reporter)
    env.reset()
    play(env, 8, seed=0)
    write = os.write
    monkeypatch.setattr("jsrl.workers.attached.journal.os.write", lambda fd, content: write(fd, content[:10]))
    play(env, 8, seed=0)
    env.close()
    assert len(reporter.warnings) == 2 and "disk is full" in reporter.warnings[1] and not path.exists()


def test_restarted_environments_end_the_journal(tmp_path: Path) -> None:
    reporter, path = Silent(), tmp_path / "journal" / "group-1"
    env = journaled_env(path, None, reporter)
    env.reset()
    play(env, 8, seed=0)
    env.reset()
    assert not path.exists() and "restarted" in reporter.warnings[0]
    env.close()


def test_replaced_actor_reports_that_its_journals_are_dropped(tmp_path: Path) -> None:
    """Once; not at its first start, nor where no journal was kept."""
    plan = make_plan(Experiment(STILL, num_envs=2, deterministic=True, num_actors=1), str(tmp_path), tmp_path)
    first = plan.job("actor-0")
    reporter, path = Silent(), tmp_path / "journal" / "group-1"

    def environments(incarnation: int, **changes):
        job = dataclasses.replace(first, incarnation=incarnation, **changes)
        env = journaled(job, 1, make(EnvConfig("CartPole-v1"), 1, 7), reporter)
        env.reset()
        env.close()

    environments(0)
    assert path.exists() and reporter.warnings == []
    environments(1)
    (warning,) = reporter.warnings
    assert warning.startswith("actor-0 was replaced") and "new episodes" in warning and not path.exists()
    environments(2)
    path.write_text("of an earlier run")
    lagging = dataclasses.replace(first.experiment, deterministic=False)
    environments(1, experiment=lagging)
    assert len(reporter.warnings) == 1 and not path.exists()


@pytest.mark.parametrize("at", [0, 3, 9, 14, 60, 100, -1, -5, -30])
def test_an_altered_journal_is_refused_by_name(tmp_path: Path, at: int) -> None:
    path = tmp_path / "group-1"
    writer = JournalWriter(path, HEADER, on_warning=pytest.fail)
    for number in range(3):
        writer.append(np.full((4, 3), number, np.int32), seen=number)
    writer.close()
    content = bytearray(path.read_bytes())
    assert [record.seen for record in Journal(path).records(3)] == [0, 1, 2]
    content[at] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match="group-1"):
        for _ in Journal(path).records(3):
            pass


@pytest.mark.parametrize(
    "content",
    [b"", b"JSRLACT1", b"JSRLACT1\xff\xff\xff\xff\0\0\0\0{}", b"garbage" * 9, b"JSRLACT1\2\0\0\0C\xbf\xa6\xa3{}"],
)
def test_invalid_journal_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "group-0"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match="group-0"):
        Journal(path)


# -- whether a run can be continued exactly ---------------------------------------------------------------------------


def test_inexact_resumes_give_the_reason() -> None:
    ppo, sac = EXPERIMENTS["ppo"], EXPERIMENTS["sac"]
    assert exact_obstacle(ppo) is None and exact_obstacle(sac) is None
    assert "recurrent" in str(exact_obstacle(ppo, has_core=True))
    assert "deterministic" in str(exact_obstacle(dataclasses.replace(ppo, placement="inline")))
    assert "batch-envs" in str(exact_obstacle(dataclasses.replace(ppo, batch_envs=4, max_policy_lag=1)))
    for changes, words in (({"save": False}, "--replay.save"), ({"kind": "host"}, "--replay.kind device")):
        replay = dataclasses.replace(sac.replay, **changes)
        assert words in str(exact_obstacle(dataclasses.replace(sac, replay=replay)))


def test_deterministic_runs_refuse_an_inexact_resume_and_others_warn(tmp_path: Path, monkeypatch) -> None:
    folder = RunFolder.create(tmp_path, "exact", "one")
    serial = dataclasses.replace(EXPERIMENTS["ppo"], num_groups=1)
    start_point, line = continue_exactly(serial, folder, StartPoint(1, 3, "x@latest"))
    assert start_point.journal_generation is None and "new episodes" in line and "group-0 is missing" in line
    with pytest.raises(ConfigError, match=r"snapshots\.exact false"):
        continue_exactly(dataclasses.replace(serial, deterministic=True), folder, start_point)
    header = dataclasses.replace(HEADER, group=0, first=1, generation=4)
    writer = JournalWriter(folder.path / "journal" / "group-0", header, on_warning=pytest.fail)
    for _ in range(2):
        writer.append(np.zeros((4, 3), np.int32), seen=0)
    writer.close()
    exact, line = continue_exactly(serial, folder, start_point)
    assert exact.journal_generation == 4 and line.endswith("replay 256 env steps")
    threads = dataclasses.replace(serial, learner=LearnerConfig(threads=3))
    monkeypatch.setattr(machine, "xla_threads", lambda: 3)
    assert continue_exactly(threads, folder, start_point)[0] == exact
    monkeypatch.setattr(machine, "xla_threads", lambda: 2)
    told = "computes with 3 threads .--learner.threads., but jax has already started in this process with 2"
    assert re.search(told, continue_exactly(threads, folder, start_point)[1])
    with pytest.raises(ConfigError, match=told):
        continue_exactly(dataclasses.replace(threads, deterministic=True), folder, start_point)
    monkeypatch.setattr(resume, "LONG_REPLAY", 256)
    assert continue_exactly(serial, folder, start_point)[1].endswith(
        "--snapshots.exact false begins new episodes instead"
    )
    start_point, line = continue_exactly(serial, folder, StartPoint(5, 4, "x@latest"))
    assert start_point.journal_generation is None and "2 trajectories, 3 are needed" in line
    off = dataclasses.replace(serial, snapshots=dataclasses.replace(serial.snapshots, exact=False))
    assert continue_exactly(off, folder, start_point) == (start_point, "")
    assert continue_exactly(serial, folder, start_point, groups=()) == (start_point, "")  # a worker's own environments
    assert json.dumps(dataclasses.asdict(start_point))  # it round-trips
