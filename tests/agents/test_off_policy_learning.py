"""The off-policy algorithms on the probe environments, whose values are known, and check_agent."""

import jax
import numpy as np
import pytest

from jsrl.agents import normalization as norm
from jsrl.agents.check import check_agent
from jsrl.agents.ddpg import DDPGConfig, ddpg
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.sac import SACConfig, sac
from jsrl.agents.td3 import TD3Config, td3
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import critic_network
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec
from tests.agents.compiled import compiled
from tests.agents.replayed import REAL, make_env, play
from tests.marks import nightly

pytestmark = pytest.mark.slow  # compiling takes minutes in total

GAMMA = 0.7
SMALL = NetworkConfig(hidden=(32,), activation="relu")
FAST = {"learning_rate": 3e-3, "gamma": GAMMA, "tau": 0.05, "network": SMALL}
MAKERS = {
    "sac": lambda spec, **o: sac(SACConfig(**FAST, **o), spec),
    "td3": lambda spec, **o: td3(TD3Config(**FAST, **o), spec),
    "ddpg": lambda spec, **o: ddpg(DDPGConfig(**FAST, **o), spec),
}


@pytest.fixture(params=["sac", "td3", nightly("ddpg")])  # DDPG is TD3 with one critic
def name(request):
    return request.param


def make(name, env, **options):
    if name == "sac":
        options = {"temperature": 1e-3, "learn_temperature": False, **options}
    return MAKERS[name](env.spec, **options)


def values(name, state, spec, observation):
    """Mean critic values of observations [K, ...] at action 0."""
    count = jax.tree.leaves(state.learner_params[0])[0].shape[0]
    critics = critic_network(SMALL, spec, num_critics=count)
    observation = norm.normalize(state.params.moments, np.asarray(observation, np.float32))
    if isinstance(spec.action, Discrete):
        return compiled(critics.apply)(state.learner_params[0], observation).mean((0, 2))
    action = np.zeros((len(observation), 1), np.float32)
    return compiled(critics.apply)(state.learner_params[0], observation, action).mean(0)


VALUES = {
    "predictable_reward": (1, [[-1.0], [1.0]], [-1.0, 1.0]),
    "delayed_reward": (1, [[0.0], [1.0]], [GAMMA, 1.0]),
    "truncation": (3, [[0.0]], [1 / (1 - GAMMA)]),
}
DAILY = {("sac", "predictable_reward"), ("sac", "delayed_reward"), ("td3", "predictable_reward"), ("td3", "truncation")}


@pytest.mark.parametrize(
    ("name", "probe"),
    [(n, probe) if (n, probe) in DAILY else nightly(n, probe) for n in MAKERS for probe in VALUES],
    indirect=["name"],
)
def test_values_match_the_probe(name, probe):
    window, observation, expected = VALUES[probe]
    env = make_env(probe, action=REAL)
    normalized = {"normalize_observations": probe == "predictable_reward"}
    played = play(make(name, env, **normalized), env, num_updates=400, window=window, weights=window == 3)
    np.testing.assert_allclose(values(name, played.state, env.spec, observation), expected, rtol=0.06, atol=0.04)


@pytest.mark.parametrize("transform", [nightly("clip"), "squash"])
def test_policies_find_the_observed_action(name, transform):
    env = make_env("continuous", action=Continuous((-2.0,), (2.0,), transform), num_envs=16)
    played = play(make(name, env), env, num_updates=500)
    assert played.score > 0.9, played.metrics


@pytest.mark.parametrize(("target", "falls"), [(-0.5, True), nightly(2.0, False)])
def test_temperature_falls_above_the_target_entropy_and_rises_below(target, falls):
    """Entropy over a range of 2 is at most log 2, which lies between the two targets."""
    env = make_env("constant_reward", action=REAL)
    options = {"learn_temperature": True, "temperature": 0.1, "target_entropy": target}
    played = play(make("sac", env, **options), env, num_updates=300)
    assert -0.5 < played.metrics["entropy"] < 2.0
    assert (played.metrics["temperature"] < 0.05) if falls else (played.metrics["temperature"] > 0.2), played.metrics


@pytest.mark.parametrize("probe", [nightly("action_by_observation"), "masked"])
def test_discrete_sac_finds_the_rewarded_action(probe):
    env = make_env(probe)
    options = {"learn_temperature": True, "temperature": 0.1, "target_entropy": 0.05, "policy_delay": 2}
    played = play(make("sac", env, **options), env, num_updates=2000)
    assert played.score > 0.9, played.metrics


def test_few_legal_actions_do_not_raise_the_temperature():
    """2 of 16 actions are legal: the policy cannot reach an entropy of 0.5 log 16, but it can reach 0.5 log 2."""
    observation = {"x": ArraySpec((3,), "float32"), "action_mask": ArraySpec((16,), "uint8")}
    spec = EnvSpec(observation, Discrete(16))
    t = random_trajectory(spec, np.random.default_rng(0), num_rows=1, num_envs=32, extras=(), core=())
    t.observation["action_mask"][:] = np.arange(16) < 2
    t = t._replace(action=t.action % 2, discount=np.zeros_like(t.discount))  # the value is the reward
    agent = MAKERS["sac"](spec)
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    for step in range(1000):
        state, output = update(state, t, jax.random.key(step))
    assert abs(output.metrics["entropy"] - 0.5 * np.log(2)) < 0.02, output.metrics
    assert output.metrics["temperature"] < 3.0, output.metrics


def test_agents_pass_check_agent(name):
    action = Continuous((-2.0, 0.0), (2.0, 1.0), {"sac": "squash", "td3": "clip", "ddpg": "rescale"}[name])
    spec = EnvSpec({"x": ArraySpec((3,), "float32"), "n": ArraySpec((2,), "int32")}, action)
    report = check_agent(MAKERS[name](spec, normalize_observations=True), spec)
    assert "update_ignores_masked_rows" in report.checks


@pytest.mark.nightly
def test_agents_with_shared_policy_or_images_pass_check_agent():
    observation = {"x": ArraySpec((2, 3), "float32"), "image": ArraySpec((2, 36, 36, 1), "uint8")}
    spec = EnvSpec(observation, REAL, num_agents=2)
    check_agent(MAKERS["sac"](spec), spec, num_rows=2, num_envs=4)


def test_discrete_sac_passes_check_agent():
    spec = EnvSpec({"x": ArraySpec((3,), "float32"), "action_mask": ArraySpec((4,), "uint8")}, Discrete(4))
    check_agent(MAKERS["sac"](spec, normalize_observations=True, policy_delay=2), spec)
