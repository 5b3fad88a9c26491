"""DQN, R2D2 and behaviour cloning on the probe environments, whose values are known, and check_agent."""

import jax
import numpy as np
import pytest

from jsrl.agents.bc import BCConfig, bc
from jsrl.agents.check import check_agent
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.r2d2 import R2D2Config, r2d2
from jsrl.agents.random_rows import random_trajectory
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import value_network
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, MultiDiscrete, to_environment
from tests.agents.compiled import compiled
from tests.agents.replayed import make_env, play
from tests.marks import nightly

pytestmark = pytest.mark.slow  # compiling takes minutes in total

GAMMA = 0.7
SMALL = NetworkConfig(hidden=(32,), activation="relu")
RECURRENT = NetworkConfig(hidden=(32,), activation="relu", core="gru", core_size=32)
FAST = {"learning_rate": 3e-3, "gamma": GAMMA, "target_period": 10, "network": SMALL, "total_updates": 500}
C51 = {"num_atoms": 31, "value_min": -2.0, "value_max": 4.0}


def values(config, state, spec, observation):
    """Values [K, A] of observations [K, ...]."""
    network = value_network(SMALL, spec, dueling=config.dueling, num_atoms=config.num_atoms)
    observation = np.asarray(observation, np.float32)
    first = np.zeros(len(observation), bool)
    outputs, _ = compiled(network.apply)(state.params.weights.network, observation, first, ())
    if config.num_atoms == 1:
        return np.asarray(outputs)[..., 0]
    return np.asarray(jax.nn.softmax(outputs) @ np.linspace(config.value_min, config.value_max, config.num_atoms))


@pytest.mark.parametrize(
    "case",
    [
        ("predictable_reward", 1, {}, [[-1.0], [1.0]], [-1.0, 1.0]),
        ("delayed_reward", 1, {"double": False, "dueling": False, "loss": "mse"}, [[0.0], [1.0]], [GAMMA, 1.0]),
        ("delayed_reward", 2, C51, [[0.0], [1.0]], [GAMMA, 1.0]),
        ("truncation", 3, {"learning_rate": 0.02}, [[0.0]], [1 / (1 - GAMMA)]),
    ],
    ids=lambda case: f"{case[0]}-{case[1]}-{len(case[2])}",
)
def test_values_match_the_probe(case):
    probe, window, options, observation, expected = case
    env, config = make_env(probe), DQNConfig(**{**FAST, **options})
    played = play(dqn(config, env.spec), env, num_updates=400, window=window, weights=window == 3)
    got = values(config, played.state, env.spec, observation)
    np.testing.assert_allclose(got, np.tile(np.array(expected)[:, None], 2), rtol=0.08, atol=0.06)
    assert (played.priorities >= 0).all()


LADDER = {"exploration": "ladder", "epsilon": 0.4}


@pytest.mark.parametrize(
    ("probe", "options"),
    [
        nightly("masked", {}, id="one-masked"),
        pytest.param("action_by_observation", C51, id="c51"),
        pytest.param("action_by_observation", {"num_atoms": 21, "quantiles": True}, id="quantiles"),
        pytest.param("action_by_observation", LADDER, id="ladder"),
        nightly("action_by_observation", {}, id="one"),
        nightly("masked", C51, id="c51-masked"),
        nightly("masked", LADDER, id="ladder-masked"),
    ],
)
def test_dqn_finds_the_rewarded_action(probe, options):
    env = make_env(probe, num_envs=16)
    agent = dqn(DQNConfig(**{**FAST, "epsilon": 0.01, **options, "total_updates": 1_000}), env.spec)
    played = play(agent, env, num_updates=400)
    assert played.score > (0.7 if "exploration" in options else 0.9), played.metrics
    observation = env.reset().observation
    request = (observation, np.ones(16, bool), agent.initial_core(16))
    act = jax.jit(agent.act, static_argnames="greedy")
    reply, _ = act(played.state.params, jax.random.key(0), *request, greedy=True)
    assert env.reward(np.asarray(reply.action)).mean() == 1.0


def test_r2d2_remembers():
    env = make_env("memory", num_envs=16, delay=3)
    options = {"learning_rate": 3e-3, "gamma": 0.9, "target_period": 50, "network": RECURRENT, "epsilon": 0.2}
    agent = r2d2(R2D2Config(**options, burn_in=2, n_step=5), env.spec)
    played = play(agent, env, num_updates=800, window=12, warm_up=20)
    assert played.score > 0.75, played.metrics


@pytest.mark.nightly
def test_dqn_cannot_remember():
    env = make_env("memory", num_envs=16, delay=3)
    blind = play(dqn(DQNConfig(**{**FAST, "gamma": 0.9}), env.spec), env, num_updates=300)
    assert abs(blind.score) < 0.5


@pytest.mark.nightly
def test_r2d2_bootstraps_truncations():
    env = make_env("truncation")
    options = {"learning_rate": 0.01, "gamma": GAMMA, "target_period": 10, "network": RECURRENT}
    agent = r2d2(R2D2Config(**options, burn_in=1, n_step=2), env.spec)
    played = play(agent, env, num_updates=400, window=6, weights=True)
    network = value_network(RECURRENT, env.spec, dueling=True)
    observation, first = np.zeros((5, 1, 1), np.float32), np.arange(5)[:, None] == 0
    outputs, _ = compiled(network.apply)(
        played.state.params.weights.network, observation, first, network.initial_core(1)
    )
    from jsrl.agents.action_values import unscale

    np.testing.assert_allclose(unscale(outputs[1:, 0, :, 0]), 1 / (1 - GAMMA), rtol=0.1)


# -- behaviour cloning ------------------------------------------------------------------------------------------------


def imitate(action, expert, *, num_updates=250, num_rows=6, core="none", **options):
    """Train on random rows with actions of `expert`; return (agent, state, last metrics, draw)."""
    spec = EnvSpec(ArraySpec((2,), "float32"), action, "expert's")
    network = NetworkConfig(hidden=(32,), core=core, core_size=16)
    agent = bc(BCConfig(learning_rate=1e-2, network=network, normalize_observations=True, **options), spec)
    update, state, rng = jax.jit(agent.update), jax.jit(agent.init)(jax.random.key(0)), np.random.default_rng(0)

    def draw():
        t = random_trajectory(spec, rng, num_rows=num_rows, num_envs=32, extras=(), core=agent.initial_core(32))
        wrong = t.action
        right = expert(t.observation, t.is_first).astype(wrong.dtype)
        acts = (rng.random(t.acts.shape) < 0.7).astype(np.uint8)  # where it is 0 another seat plays anything
        keep = acts.reshape(acts.shape + (1,) * (right.ndim - 2))
        return t._replace(action=np.where(keep, right, wrong), acts=acts)

    for step in range(num_updates):
        state, output = update(state, draw(), jax.random.key(step))
    return agent, state, output.metrics, draw


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "continuous", "squashed"])
def test_bc_imitates_the_recorded_policy(kind):
    actions = {
        "discrete": Discrete(2),
        "multi_discrete": MultiDiscrete((2, 2)),
        "continuous": Continuous((-2.0,), (2.0,)),
        "squashed": Continuous((-2.0,), (2.0,), "squash"),
    }
    experts = {
        "discrete": lambda o, f: o[..., 0] > 0,
        "multi_discrete": lambda o, f: o > 0,
        "continuous": lambda o, f: 0.5 * o[..., :1],
        "squashed": lambda o, f: 0.5 * o[..., :1],
    }
    options = {"loss": "mse"} if kind == "continuous" else {}
    agent, state, _, draw = imitate(actions[kind], experts[kind], **options)
    observation = draw().observation[0]
    act = jax.jit(agent.act, static_argnames="greedy")
    reply, _ = act(state.params, jax.random.key(0), observation, np.ones(32, bool), (), greedy=True)
    wanted = experts[kind](observation, None)
    if kind in ("discrete", "multi_discrete"):
        assert (np.asarray(reply.action) == wanted).mean() > 0.9
    else:
        played = (to_environment(actions[kind], np.asarray(a)) for a in (reply.action, wanted))
        np.testing.assert_allclose(*played, atol=0.25)


@pytest.mark.nightly
def test_recurrent_bc_remembers_the_first_row():
    """The expert plays the sign that was visible in row 0 of the episode."""

    def expert(observation, is_first):
        sign, kept = np.zeros(is_first.shape), np.zeros(is_first.shape[1])
        for t in range(len(is_first)):
            kept = np.where(is_first[t] | (t == 0), observation[t, :, 0] > 0, kept)
            sign[t] = kept
        return sign

    _, _, metrics, _ = imitate(Discrete(2), expert, core="gru", num_updates=400)
    assert metrics["loss_policy"] < 0.25  # chance level: 0.69


@pytest.mark.parametrize("options", [{"entropy_coef": float("inf")}, {"schedule": "linear", "total_updates": 0}])
def test_bc_refuses_invalid_values(options):
    with pytest.raises(ConfigError, match=list(options)[-1]):
        BCConfig(**options)


def test_bc_refuses_distances_between_discrete_actions():
    with pytest.raises(ConfigError, match="log_prob"):
        bc(BCConfig(loss="mse"), EnvSpec(ArraySpec((2,), "float32"), Discrete(2)))


# -- check_agent ------------------------------------------------------------------------------------------------------


MASKED = EnvSpec({"x": ArraySpec((3,), "float32"), "action_mask": ArraySpec((4,), "uint8")}, Discrete(4))
SHARED = EnvSpec(ArraySpec((2, 3), "float32"), Discrete(4), num_agents=2)
IMAGE = EnvSpec(ArraySpec((36, 36, 2), "uint8"), Discrete(3))
AGENTS = {
    "dqn": lambda spec: dqn(DQNConfig(**FAST, normalize_observations=True), spec),
    "c51": lambda spec: dqn(DQNConfig(**FAST, **C51), spec),
    "r2d2": lambda spec: r2d2(R2D2Config(network=RECURRENT, burn_in=2, normalize_observations=True), spec),
    "bc": lambda spec: bc(BCConfig(network=RECURRENT, normalize_observations=True), spec),
}


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("dqn", MASKED),
        nightly("dqn", SHARED),
        nightly("c51", IMAGE),
        ("r2d2", MASKED),
        nightly("r2d2", SHARED),
        nightly("bc", MASKED),
        nightly("bc", SHARED),
    ],
    ids=["dqn-masked", "dqn-shared", "c51-image", "r2d2-masked", "r2d2-shared", "bc-masked", "bc-shared"],
)
def test_agents_pass_check_agent(name, spec):
    report = check_agent(AGENTS[name](spec), spec, num_rows=6, num_envs=8)
    assert "update_ignores_masked_rows" in report.checks
