"""A run whose actors live on hosts that joined it: network namespaces without a common folder, of which one is lost."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, SupervisionConfig
from jsrl.launch.hosts.launcher import JoinedHosts
from jsrl.launch.local.facts import own_facts
from jsrl.launch.local.launcher import Local
from jsrl.launch.run import run
from jsrl.networks.model import NetworkConfig
from jsrl.runs.runs import read_metrics
from jsrl.transport.ledger.hops import read_hop
from tests.launch.hosts.agents import Agent, await_that, lives, namespaces
from tests.system.launched import assert_balanced

PROJECT = """
import gymnasium
import far_away_names

def make():
    return gymnasium.make(far_away_names.GAME)
"""


HIDDEN = ("/tmp", "/dev/shm")  # of the hosts of this test, each of which has its own


@pytest.fixture
def hosts() -> Iterator[tuple[str, list[str]]]:
    if any(Path(sys.prefix).is_relative_to(folder) for folder in HIDDEN):
        pytest.skip(f"the interpreter lies in {sys.prefix}, which these hosts cannot see; use an environment elsewhere")
    with namespaces(2) as (address, names):
        if not names:
            pytest.skip("network namespaces are not allowed here (they need root)")
        yield address, names


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's modules that lie where only this host sees them."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "far_away_env.py").write_text(PROJECT)
    (folder / "far_away_names.py").write_text("GAME = 'CartPole-v1'")
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("far_away_env", None)
    sys.modules.pop("far_away_names", None)


class Killer(threading.Thread):
    """Kills the agent of a host once trajectories flow.

    Attributes:
      gone: whether its workers ended with it. moved: who was started again on the other host.
    """

    def __init__(self, launcher: JoinedHosts, agent: Agent, name: str, folder: Path) -> None:
        super().__init__(daemon=True)
        self._launcher, self._agent, self._name, self._folder = launcher, agent, name, folder
        self.gone, self.moved = False, set[str]()

    def run(self) -> None:
        await_that(lambda: (ledger := read_hop(self._folder)) is not None and ledger.consumed >= 4, 300.0)
        workers = self._agent.workers()
        assert workers
        self._agent.popen.kill()
        await_that(lambda: not any(lives(worker) for worker in workers))
        self.gone = True
        (host,) = [host for host in self._launcher.members.hosts if host.name != self._name]
        await_that(lambda: sum(life[1] > 0 for life in list(host.lives)) == 2, 60.0)
        self.moved = {worker for worker, incarnation in list(host.lives) if incarnation > 0}


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_a_run_outlives_one_of_its_hosts(hosts, tmp_path: Path) -> None:
    address, networks = hosts
    experiment = Experiment(
        agent=PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1),
        env=EnvConfig("far_away_env:make"),
        num_envs=8,
        placement="served",
        num_actors=4,
        rollout_length=16,
        total_env_steps=100 * 128,
        restart=1,
        supervision=SupervisionConfig(backoff_s=0.1),
        evaluator=EvaluatorConfig(enabled=True, episodes=1, final_episodes=1, num_envs=1),
    )
    told: list[str] = []
    launcher = JoinedHosts(
        Local(), own_facts("here", address), 0, 2, tmp_path / "join", told.append, lease_s=5.0, lost_s=8.0
    )
    agents = [
        Agent(launcher.address, token, network, tmp_path / f"{network}.txt", network)
        for token, network in zip(launcher.token_files, networks, strict=True)
    ]
    folder = tmp_path / "experiment" / "far"
    killer = Killer(launcher, agents[0], networks[0], folder)
    killer.start()
    try:
        result = run(experiment, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only")
        killer.join(60.0)
        assert result.ended == "total_env_steps" and result.env_steps >= 100 * 128
        assert killer.gone and len(killer.moved) == 2
        assert agents[1].ends()[0] == 0 and "the run has ended" in agents[1].log.read_text()
        assert not agents[0].workers() and not agents[1].workers()
    finally:
        launcher.close()
        for agent in agents:
            agent.close()
    assert_balanced(json.loads((folder / "result.json").read_text()), killed_over_zeromq=True)
    assert read_metrics(folder / "metrics.jsonl")["restarts/actor"][-1] == 2
    assert any(f"host {networks[0]} is gone: it was not heard of for 8 s" in line for line in told)
    assert not (tmp_path / "join").exists() and not (folder / "names").exists()
