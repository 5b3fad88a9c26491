"""A run that starts with another run's params: targets follow them, and exploration restarts in actors too."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import Agent, AgentState
from jsrl.agents.ddpg import DDPGConfig, ddpg
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.normalization import Moments
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.qmix import QMIXConfig, qmix
from jsrl.agents.r2d2 import R2D2Config, r2d2
from jsrl.agents.td3 import TD3Config, td3
from jsrl.control.resume import params_source
from jsrl.control.run import made_folder, run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import AgentReference, Experiment
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.control_bodies import Command
from jsrl.services.runs.runs import RunFolder
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec
from jsrl.workers.base import NullReporter
from jsrl.workers.jobs import Job, JobPlace, StartPoint
from jsrl.workers.learner.build import restore_state
from jsrl.workers.relay.worker import ParameterServer
from tests.marks import marked, slow

FLAT = NetworkConfig(hidden=(8,), activation="relu")
CHOICE = EnvSpec(ArraySpec((3,), "float32"), Discrete(4))
REAL = EnvSpec(ArraySpec((3,), "float32"), Continuous((-1.0,), (1.0,), "rescale"))
TEAM = EnvSpec(ArraySpec((2, 3), "float32"), Discrete(4), num_agents=2)
RECURRENT = NetworkConfig(hidden=(8,), core="gru", core_size=4)
AGENTS = {
    "dqn": lambda: dqn(DQNConfig(network=FLAT, total_updates=1_000), CHOICE),
    "ladder": lambda: dqn(DQNConfig(network=FLAT, exploration="ladder", epsilon=0.0), CHOICE),
    "r2d2": lambda: r2d2(R2D2Config(network=RECURRENT, epsilon=0.0), CHOICE),
    "td3": lambda: td3(TD3Config(network=FLAT, exploration_noise=0.0), REAL),
    "ddpg": lambda: ddpg(DDPGConfig(network=FLAT, exploration_noise=0.0), REAL),
    "qmix": lambda: qmix(QMIXConfig(network=FLAT, total_updates=1_000), TEAM),
}
TARGETS = {
    "dqn": lambda learned: learned.target,
    "ladder": lambda learned: learned.target,
    "r2d2": lambda learned: learned.target,
    "td3": lambda learned: learned.target_policy,
    "ddpg": lambda learned: learned.target_policy,
    "qmix": lambda learned: learned.target.network,
}


def initialised_from(agent: Agent, folder, updates: int) -> tuple[AgentState, AgentState]:
    """Return (the state whose params were saved after the given updates, the state of a run that starts with them)."""
    init = jax.jit(agent.init)
    other = init(jax.random.key(1))
    weights = other.params.weights._replace(updates=jnp.int32(updates))
    other = other._replace(params=other.params._replace(weights=weights))
    store = SnapshotStore(folder)
    store.save(1, {"params": jax.device_get(other.params)}, meta={}, tags=("best",), wait=True)
    store.close()
    start_point = StartPoint(restore=f"{folder}@best", params_only=True)
    return other, restore_state(start_point, agent, lambda: init(jax.random.key(2)))


def explored(agent: Agent, state: AgentState, rows: int = 2000) -> float:
    """Return the share of rows whose action is not the greedy one."""
    request = (np.tile(np.float32([0.3, -0.2, 0.5]), (rows, 1)), np.ones(rows, bool), agent.initial_core(rows))
    act = jax.jit(agent.act, static_argnames="greedy")
    sampled, greedy = (act(state.params, jax.random.key(3), *request, greedy=g)[0].action for g in (False, True))
    return float(np.mean(np.asarray(sampled) != np.asarray(greedy)))


@pytest.mark.parametrize("name", marked(TARGETS, slow={"r2d2", "td3", "qmix"}, nightly={"ladder", "ddpg"}))
def test_target_networks_are_loaded(name, tmp_path):
    other, begun = initialised_from(AGENTS[name](), tmp_path, updates=5000)
    target = TARGETS[name](begun.learner_params)
    jax.tree.map(np.testing.assert_array_equal, target, other.params.weights.network)
    jax.tree.map(np.testing.assert_array_equal, begun.params.weights.network, other.params.weights.network)


def test_params_of_another_network_are_refused_with_the_first_leaf_that_differs(tmp_path):
    wider, agent = (ppo(PPOConfig(network=NetworkConfig(hidden=(size,))), CHOICE) for size in (16, 8))
    store = SnapshotStore(tmp_path)
    params = jax.device_get(jax.jit(wider.init)(jax.random.key(1)).params)
    store.save(1, {"params": params}, meta={}, tags=("best",), wait=True)
    store.close()
    start_point = StartPoint(restore=f"{tmp_path}@best", params_only=True)
    expected = r"do not fit: weights/\S+ was float32\[16.*\] and is float32\[8.*\] now \(\d more differ\)\. --init-from"
    with pytest.raises(ConfigError, match=expected):
        restore_state(start_point, agent, lambda: jax.jit(agent.init)(jax.random.key(2)))


def test_moments_of_observations_are_loaded_too(tmp_path):
    agent = ppo(PPOConfig(network=FLAT, normalize_observations=True), CHOICE)
    other = jax.jit(agent.init)(jax.random.key(1))
    moments = Moments(jnp.float32(7.0), jnp.float32([1.0, 2.0, 3.0]), jnp.float32([4.0, 5.0, 6.0]))
    other = other._replace(params=other.params._replace(moments=moments))
    store = SnapshotStore(tmp_path)
    store.save(1, {"params": jax.device_get(other.params)}, meta={}, tags=("best",), wait=True)
    store.close()
    start_point = StartPoint(restore=f"{tmp_path}@best", params_only=True)
    begun = restore_state(start_point, agent, lambda: jax.jit(agent.init)(jax.random.key(2)))
    jax.tree.map(np.testing.assert_array_equal, begun.params, other.params)


@pytest.mark.slow
def test_remaining_state_is_fresh(tmp_path):
    agent = AGENTS["td3"]()
    _, begun = initialised_from(agent, tmp_path, updates=5000)
    fresh = jax.jit(agent.init)(jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, begun.learner_params.critics, fresh.learner_params.critics)
    jax.tree.map(np.testing.assert_array_equal, begun.opt_state, fresh.opt_state)
    assert int(begun.updates) == 0


def test_linear_exploration_restarts_in_actors_and_learner(tmp_path):
    agent = AGENTS["dqn"]()
    _, begun = initialised_from(agent, tmp_path, updates=5000)  # exploration of the other run ended after 100
    assert int(begun.params.weights.updates) == int(begun.updates) == 0
    assert explored(agent, begun) == pytest.approx(0.75, abs=0.05)  # all random, over four actions


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ladder", "r2d2", "td3", "ddpg"])
def test_loaded_policies_act_from_the_start(name, tmp_path):
    """Random first actions are only for a policy that has not learned anything."""
    agent = AGENTS[name]()
    assert explored(agent, initialised_from(agent, tmp_path / "trained", updates=5000)[1]) == 0.0
    assert explored(agent, initialised_from(agent, tmp_path / "untrained", updates=0)[1]) > 0.5


@pytest.mark.parametrize("tag", ["latest", "final"])
def test_latest_is_the_state_even_where_params_have_that_tag(tmp_path: Path, tag: str) -> None:
    """The parameter server of an earlier start of the run may have tagged older params."""
    folder = RunFolder.create(tmp_path, "ppo", "one").snapshots
    params, state = SnapshotStore(folder / "params"), SnapshotStore(folder / "state")
    params.save(10, {"params": np.zeros(1)}, tags=(tag, "best"), wait=True)
    assert params_source(f"ppo/one@{tag}", tmp_path) == f"{params.folder}@{tag}"
    state.save(20, {"state": {"params": np.ones(1)}}, tags=(tag, "best"), wait=True)
    assert params_source(f"ppo/one@{tag}", tmp_path) == f"{state.folder}@{tag}"
    assert params_source("ppo/one@best", tmp_path) == f"{params.folder}@best"


@pytest.mark.parametrize(
    ("source", "sentence"),
    [("experiment/one@best", "which --overwrite deletes"), ("absent@best", "there is no run absent")],
)
def test_a_run_is_not_deleted_before_its_params_are_found_elsewhere(tmp_path: Path, source: str, sentence: str) -> None:
    folder = RunFolder.create(tmp_path, "experiment", "one")
    SnapshotStore(folder.snapshots / "params").save(10, {"params": np.zeros(1)}, tags=("best",), wait=True)
    with pytest.raises(ConfigError, match=sentence):
        run(Experiment(PPOConfig()), runs_dir=tmp_path, name="one", overwrite=True, init_from=source)
    assert SnapshotStore(folder.snapshots / "params").versions() == [10]


@pytest.mark.parametrize("saved", [{"params": np.zeros(1)}, slow({"state": {"params": {"weights": np.zeros(1)}}})])
def test_params_of_another_network_are_refused_before_the_start(tmp_path: Path, saved: dict) -> None:
    store = SnapshotStore(RunFolder.create(tmp_path, "experiment", "one").snapshots / next(iter(saved)))
    store.save(10, saved, tags=("best",), wait=True)
    with pytest.raises(
        ConfigError, match=r"do not fit: .* was .* and is .* now .*more differ.* needs the same network"
    ):
        run(Experiment(PPOConfig()), runs_dir=tmp_path, init_from="experiment/one@best", placement="serial")
    assert [path.name for path in (tmp_path / "experiment").iterdir()] == ["one"]


def test_the_newest_run_of_an_experiment_is_not_the_new_one_that_begins_with_its_params(tmp_path: Path) -> None:
    store = SnapshotStore(RunFolder.create(tmp_path, "experiment", "one").snapshots / "params")
    store.save(10, {"params": np.zeros(1)}, tags=("best",), wait=True)
    _, starts = made_folder(Experiment(PPOConfig()), tmp_path, None, False, "experiment@best")
    assert starts[""].restore == f"{store.folder}@best"


def test_a_run_is_not_deleted_before_the_new_ones_environment_was_made(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "experiment", "one")
    folder.metrics_path.write_text("{}\n")
    with pytest.raises(ConfigError, match="CartPoole"):
        run(Experiment(PPOConfig(), EnvConfig("CartPoole-v1")), runs_dir=tmp_path, name="one", overwrite=True)
    assert folder.metrics_path.read_text() == "{}\n"


def test_parameter_server_leaves_the_tags_to_the_learner(tmp_path: Path) -> None:
    place = JobPlace(str(tmp_path), "")
    job = Job("parameter-server", "parameter-server", 0, Experiment(AgentReference("m:f")), None, (), place)  # type: ignore[arg-type]
    server: Any = ParameterServer(job, NullReporter())
    store = SnapshotStore(job.snapshots / "params")
    server._latest, server._structure = (7, [np.zeros(1)]), jax.tree.structure(0)
    server.command(Command("snapshot", {}))
    assert store.versions() == [7] and not store.tags()
