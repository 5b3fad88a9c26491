"""A launcher from outside jsrl: workers on separate hosts, reached over TCP with keys, sharing only the run folder."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, SupervisionConfig
from jsrl.graph.launcher import Hosts
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.names import FileNames
from jsrl.services.runs.runs import read_metrics
from jsrl.transport.ledger.legs import read_leg
from tests.system.launched import assert_balanced

WORLD = Path(__file__).parent / "world"
LIMIT_S = 300.0


class Killer(threading.Thread):
    """Kills an actor and the inference server of a run through their handles, and inspects the run's resources meanwhile.

    Attributes:
      killed: exit states of their handles afterwards. addresses: where streams were bound. memory: files in the run's
        folder of shared memory.
    """

    def __init__(self, launcher, folder: Path) -> None:
        super().__init__(daemon=True)
        self._launcher, self._folder = launcher, folder
        self.killed: list[str] = []
        self.addresses: dict[str, str] = {}
        self.memory: set[str] = set()

    def run(self) -> None:
        """Kill each once trajectories flow, the server as soon as the actor is replaced."""
        self._await(lambda: (ledger := read_leg(self._folder)) is not None and ledger.consumed >= 4)
        self._look()
        self._kill("actor-0")
        self._await(lambda: len(self._launcher.handles["actor-0"]) == 2)
        self._kill("inference-0")
        self._await(lambda: len(self._launcher.handles["inference-0"]) == 2)
        self._look()

    def _kill(self, worker: str) -> None:
        handle = self._launcher.handles[worker][0]
        assert handle.alive and handle.usage().resident_bytes > 1e6
        handle.kill()
        self.killed.append(handle.exit.text)

    def _look(self) -> None:
        self.addresses |= {name: found.address for name, found in FileNames(self._folder / "names").names().items()}
        for folder in Path(f"/dev/shm/jsrl-{os.getuid()}").glob(f"{os.getpid()}-*"):
            self.memory |= {path.name for path in folder.iterdir()}

    def _await(self, reached: Callable[[], bool]) -> None:
        until = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.nightly
def test_run_on_other_hosts_survives_killed_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WORLD))
    from agents import Agents

    experiment = Experiment(
        agent=PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1),
        env=EnvConfig("CartPole-v1"),
        num_envs=8,
        placement="served",
        num_actors=2,
        rollout_length=16,
        total_env_steps=60 * 128,
        restart=1,
        supervision=SupervisionConfig(backoff_s=0.1),
        evaluator=EvaluatorConfig(enabled=True, episodes=1, final_episodes=1, num_envs=1),
    )
    launcher, folder = Agents(), tmp_path / "experiment" / "apart"
    killer = Killer(launcher, folder)
    killer.start()
    result = run(experiment, runs_dir=tmp_path, name="apart", launcher=launcher, display="log-only")
    killer.join(LIMIT_S)
    assert result.folder == folder and result.ended == "total_env_steps" and result.env_steps >= 60 * 128
    assert killer.killed == ["killed by signal 9 (SIGKILL)"] * 2
    lives = {name: len(handles) for name, handles in launcher.handles.items()}
    assert lives == {"learner": 1, "inference-0": 2, "actor-0": 2, "actor-1": 1, "evaluator": 1}
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)
    metrics = read_metrics(folder / "metrics.jsonl")
    assert (metrics["restarts/actor"][-1], metrics["restarts/inference"][-1]) == (1, 1)
    bound = {
        name: address for name, address in killer.addresses.items() if "://" in address
    }  # others report a generation
    hosts = {name.rpartition(".")[2]: address.rpartition(":")[0] for name, address in bound.items()}
    assert hosts == {"learner": "tcp://127.0.0.2", "inference-0": "tcp://127.0.0.3"}
    assert killer.memory <= {"alive"} and (folder / "keys" / "client.key").exists()
    assert not (folder / "names").exists()


def test_unreachable_launcher_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"would run on 10\.0\.0\.7, but Hosts\.own is empty"):
        Hosts(of={"actor-0": "10.0.0.7"})
