"""Chaos runs: the score card, the command, and a short run with real faults."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import strangers
from jsrl.cli.chaos import checked
from jsrl.errors import ConfigError
from jsrl.linux import memory_folder
from jsrl.tools.chaos.chaos import ChaosRun, ChaosSettings, InjectedFault, ScoreCard, run_command
from jsrl.tools.chaos.outside import HungProcess
from jsrl.workers.kinds import find_kind, own_kinds
from tests.marks import nightly
from tests.system.launched import DRIVE, FOREVER
from tests.workers.director_audit import Games, read_games

STRANGER = [sys.executable, str(Path(__file__).parents[3] / "benchmarks" / "strangers.py"), "--per-s", "400"]

LEDGER = {"produced": 10, "consumed": 7, "dropped": {"rolled_back": 2}, "in_flight": 1}


def over_drive(words: list[str], runs_dir: Path, run_name: str, **options) -> list[str]:
    """Return the command of a chaos run of an experiment that drive.py defines."""
    begun = [sys.executable, "-P", "-m", "jsrl", "run"]
    command = run_command(words, runs_dir, run_name, **options)
    assert command[: len(begun)] == begun
    return [sys.executable, str(DRIVE), *command[len(begun) :]]


def test_report_card_passes_only_if_recovered_balanced_and_cleaned_up() -> None:
    faults = [InjectedFault("actor-0", "kill", float(i)) for i in range(1, 21)]
    good = ScoreCard(faults, 10.0, 8.0, {"ledger": LEDGER, "evaluation": {"return_mean": 475.0}, "env_steps": 2000})
    assert good.passed
    for words in (
        "kill actor            20         20   11.0   20.0",
        "(80%)",
        "475.0 after 2,000 env steps",
        "balanced",
    ):
        assert words in good.text()
    for bad in (
        ScoreCard([*faults, InjectedFault("learner", "pause")], 10.0, 8.0, good.result),
        ScoreCard(faults, 10.0, 8.0, {"ledger": LEDGER | {"consumed": 6}}),
        ScoreCard(faults, 10.0, 8.0, good.result, left=["process 7"]),
        ScoreCard(faults, 10.0, 8.0, good.result, ended="exit status 1"),
        ScoreCard([], 10.0, 8.0, good.result),
        ScoreCard(faults, 10.0, 8.0, {}),
        ScoreCard(faults, 10.0, 8.0, good.result, scores=([100.0, 480.0], [400.0])),
        ScoreCard(faults, 10.0, 8.0, good.result, scores=([-100.0], [-120.0])),
    ):
        assert not bad.passed and "FAILED" in bad.text()
    scored = ScoreCard(faults, 10.0, 8.0, good.result, scores=([480.0], [10.0, 470.0]))
    assert scored.passed and "480.0 (1) before, 470.0 (2)" in scored.text()


def test_report_card_names_learners_that_had_to_be_replaced_too() -> None:
    faults = [InjectedFault("learner", "kill", 1.0, ("learner-b",))]
    card = ScoreCard(faults, 10.0, 8.0, {"ledger": LEDGER})
    assert not card.passed and "learner-b had to be replaced too" in card.text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["ppo_cartpole", "--placement=serial"], "a serial run is one process"),
        (["bc", "--recording", "somewhere"], "has no actors"),
        (["bc"], "has no actors"),
    ],
)
def test_runs_without_actor_processes_are_refused(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        checked(words)


def test_workers_that_a_run_can_do_without_are_hit_only_if_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = object.__new__(ChaosRun)
    monkeypatch.setattr(run, "_kind", find_kind, raising=False)
    run._settings = ChaosSettings()
    assert [kind.name for kind in own_kinds() if not run._is_hit(kind.name)] == ["video-recorder"]
    run._settings = ChaosSettings(kinds=("video-recorder",))
    assert [kind.name for kind in own_kinds() if run._is_hit(kind.name)] == ["video-recorder"]


def test_restarts_are_enabled_unless_the_user_disables_them(tmp_path: Path) -> None:
    words = run_command(["ppo_cartpole", "--restart", "2"], tmp_path, "x")
    assert words[:6] == [sys.executable, "-P", "-m", "jsrl", "run", "ppo_cartpole"]
    assert words.count("--restart") == 1 and words[words.index("--restart") + 1] == "2"
    assert words[words.index("--deadlines.silence-s") + 1] == "3"
    kept = run_command(["ppo_cartpole", "--restart=2", "--total_env_steps=5"], tmp_path, "x")
    assert "--restart" not in kept and "--total-env-steps" not in kept
    for wrong in ([], ["--seed", "1"]):
        with pytest.raises(ConfigError):
            run_command(wrong, tmp_path, "x")


@pytest.mark.slow
def test_short_chaos_run(tmp_path: Path) -> None:
    command = over_drive(["counting", "--deadlines.silence-s", "1.5"], tmp_path, "storm")
    settings = ChaosSettings(
        storm_s=5.0, calm_s=0.5, every_s=0.5, kinds=("actor", "inference"), pauses=0.2, storm_seed=3
    )
    card = ChaosRun(command, tmp_path, "storm", settings).run()
    assert card.passed, card.text()
    assert {fault.worker for fault in card.faults} <= {"actor-0", "inference-0"} and card.calm_per_s > 0


class DirectedRun(ChaosRun):
    """A run with a director. games: before the storm."""

    def _storm(self) -> None:
        self.games = read_games(self._folder()) or Games()
        super()._storm()


@pytest.mark.nightly
def test_chaos_run_with_a_director_and_two_learners(tmp_path: Path) -> None:
    """Each worker is killed once; the other learner survives, and games, payoffs and frozen players stay consistent."""
    command = over_drive(["dueling", "--deadlines.silence-s", "5"], tmp_path, "storm")
    kinds = ("actor", "director", "learner")
    settings = ChaosSettings(storm_s=60.0, calm_s=1.0, every_s=0.5, kinds=kinds, pauses=0.0, storm_seed=1, faults=4)
    run = DirectedRun(command, tmp_path, "storm", settings)
    card = run.run()
    assert card.passed, card.text()
    assert sorted(fault.worker for fault in card.faults) == ["actor-0", "director", "learner", "learner-hunter"]
    assert set(card.result["legs"]) == {"samples-hunter.learner-hunter"}
    end = read_games(next(tmp_path.glob("*/storm")))
    assert end is not None and end.faults == () and end.finished > run.games.finished
    assert end.discarded > run.games.discarded  # those of the actor, and of the director that was killed


class FloodedRun(ChaosRun):
    """A run whose sockets get unauthorised messages for three seconds, and no fault. sent: socket -> messages."""

    def _storm(self) -> None:
        before, (folder,) = self._seen.workers(), memory_folder().glob(f"{self._popen.pid}-*")
        command = [*STRANGER, str(folder), "--jobs", str(self._folder() / "jobs")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
            assert stranger.stdout is not None
            select.select([stranger.stdout], [], [], 60.0)
            self.card.storm_per_s = self._rate_of_rest(3.0)
            stranger.terminate()
            self.sent = json.loads(stranger.communicate(timeout=10.0)[0].splitlines()[-1])["sent"]
        now = self._seen.workers()
        assert before and all(now.get(name) == worker for name, worker in before.items())


@pytest.mark.nightly
@pytest.mark.parametrize("transport", [nightly("shared-memory"), "zeromq"])
def test_strangers_at_every_socket_stop_no_worker(tmp_path: Path, transport: str) -> None:
    """Restarts are off: any worker stopped by a message would end the run."""
    options = ["counting", *FOREVER, "--restart", "0", "--deadlines.silence-s", "20", "--transport", transport]
    run = FloodedRun(over_drive(options, tmp_path, "flood"), tmp_path, "flood", ChaosSettings(calm_s=0.5))
    card = run.run()
    assert card.accounted and card.left == [] and not card.ended, card.text()
    expected = {"control", "samples.learner", "inference.inference-0"}
    assert expected <= {name for name, number in run.sent.items() if number > 20}, run.sent
    assert card.storm_per_s > 0.2 * card.calm_per_s, card.text()


def test_sender_of_unauthorised_messages_ends_at_once_before_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its imports take long on a busy machine."""
    handlers, before = [], signal.getsignal(signal.SIGTERM)

    class Loading(SimpleNamespace):
        def __init__(self, *_: object) -> None:
            super().__init__(sent={}, answers={}, run=lambda stop: handlers.append(signal.getsignal(signal.SIGTERM)))
            handlers.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr(strangers, "Stranger", Loading)
    monkeypatch.setattr(sys, "argv", ["strangers.py", "folder"])
    try:
        assert strangers.main() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert handlers[0] is before and handlers[1] is not before


@pytest.mark.nightly
def test_chaos_without_restarts_fails(tmp_path: Path) -> None:
    command = over_drive(["counting", "--restart", "0"], tmp_path, "storm")
    settings = ChaosSettings(storm_s=20.0, calm_s=0.1, every_s=0.1, kinds=("actor",), pauses=0.0)
    card = ChaosRun(command, tmp_path, "storm", settings).run()
    assert not card.passed and card.ended == "exit status 1" and card.accounted and card.left == []


@pytest.mark.nightly
@pytest.mark.parametrize("way", [*(nightly(w) for w in ("kill", "pause")), "hang"])
def test_chaos_with_forked_actors(tmp_path: Path, way: str) -> None:
    options = [
        "counting",
        "--num-actors",
        "3",
        "--num-groups",
        "3",
        "--num-envs",
        "6",
        "--deadlines.silence-s",
        "5",
        "--deadlines.stuck-s",
        "3",
        "--actor.step-deadline-s",  # of an actor that hangs inside its environment
        "3",
    ]
    command = over_drive(options, tmp_path, "storm", hangs=True)
    shares = {"kill": (0.0, 0.0), "pause": (1.0, 0.0), "hang": (0.0, 1.0)}[way]
    settings = ChaosSettings(
        storm_s=4.0, calm_s=0.5, every_s=0.5, kinds=("actor",), pauses=shares[0], hangs=shares[1], storm_seed=3
    )
    card = ChaosRun(command, tmp_path, "storm", settings).run()
    assert card.passed, card.text()
    assert {fault.how for fault in card.faults} == {way}


def stopped_threads(pid: int) -> set[int]:
    """Return the threads of a process that a debugger holds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(task.name) for task in tasks if (task / "stat").read_text().rpartition(")")[2].split()[0] == "t"}


def test_hung_process_has_one_stopped_thread() -> None:
    """Seen from outside: output of the other thread could need a lock that the stopped one holds."""
    code = "import threading\nwait = threading.Event().wait\nthreading.Thread(target=wait).start()\nprint(flush=True)\nwait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        try:
            assert popen.stdout.readline() == "\n"
            assert len(list(Path(f"/proc/{popen.pid}/task").iterdir())) == 2
            try:
                hung = HungProcess(popen.pid)
            except OSError as error:
                pytest.skip(f"no thread of another process may be stopped here: {error}")
            while stopped_threads(popen.pid) != {popen.pid}:
                time.sleep(0.01)
            hung.release()
            while stopped_threads(popen.pid):
                time.sleep(0.01)
            hung = HungProcess(popen.pid)
            os.kill(popen.pid, signal.SIGKILL)
            while not hung.has_died():
                time.sleep(0.01)
        finally:
            popen.kill()
    assert popen.returncode is not None
