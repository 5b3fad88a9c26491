"""State-dependent noise (gSDE): the numbers of Stable-Baselines3 2.9.2, and how acting carries the noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.check import check_agent
from jsrl.agents.distributions import NoiseCore, diagonal_gaussian, squashed_gaussian, state_noise
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.sac import SACConfig, sac
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig, StateNoiseHead
from jsrl.types import ArraySpec, Continuous, EnvSpec
from tests.agents.compiled import compiled

FEATURES = np.array([[0.5, -0.2, 0.9], [-0.7, 0.1, 0.3]], np.float32)
LOG_STD = np.array([[-1.0, 0.2], [0.1, -0.5], [-0.3, 0.0]], np.float32)
MEAN = np.array([2.5, -1.1], np.float32)
DRAW = [[[0.4, -1.2], [1.5, 0.3], [-0.6, 0.8]], [[-0.1, 0.9], [0.7, -2.0], [1.1, 0.2]]]
NOISE = [[-0.6580172777175903, -0.04923355579376221], [0.347583532333374, -0.8307898640632629]]
STD = [[0.7261049151420593, 1.0943821668624878], [0.3576623797416687, 0.908115565776825]]
SPEC = EnvSpec(ArraySpec((3,), "float32"), Continuous((-2.0, 0.0), (2.0, 1.0), "rescale"))
NETWORK = NetworkConfig(hidden=(8,), noise_period=3)
MAKERS = {"ppo": (ppo, PPOConfig), "sac": (sac, SACConfig)}


@pytest.mark.parametrize("squashed", [False, True])
def test_noise_and_log_prob_are_those_of_stable_baselines3(squashed):
    """PPO's distribution, and SAC's: squashed, with the mean clipped to +-2."""
    head = StateNoiseHead(2, learn_features=squashed, max_mean=2.0 if squashed else np.inf)
    weights = {"mean": {"kernel": np.zeros((3, 2), np.float32), "bias": MEAN}, "log_std": LOG_STD}
    outputs = head.apply({"params": weights}, FEATURES)
    np.testing.assert_allclose(np.exp(outputs[1]), STD, rtol=1e-5)
    core = NoiseCore(jnp.asarray(DRAW, jnp.float32), jnp.ones(2, jnp.int32))
    noise, _ = state_noise({"head": weights}, jnp.asarray(FEATURES), core, jax.random.key(0), jnp.zeros(2, bool), 4)
    np.testing.assert_allclose(noise, NOISE, rtol=1e-5)
    chosen = squashed_gaussian() if squashed else diagonal_gaussian()
    action = chosen.mode(outputs) + noise
    log_prob = [0.5136857032775879, 4.239925384521484] if squashed else [-2.019643545150757, -1.604020595550537]
    played = [[0.8721476793289185, -0.8174999952316284], [0.9818868637084961, -0.9587972164154053]]
    np.testing.assert_allclose(
        jnp.tanh(action) if squashed else action - MEAN, played if squashed else NOISE, rtol=1e-5
    )
    np.testing.assert_allclose(chosen.log_prob(outputs, action), log_prob, rtol=1e-4)
    if not squashed:
        np.testing.assert_allclose(chosen.entropy(outputs), [2.608006238937378, 1.7133275270462036], rtol=1e-5)


@pytest.mark.parametrize("learned", [False, True])
def test_whether_noise_trains_the_features(learned):
    """As in Stable-Baselines3: not those of PPO, those of SAC."""
    head = StateNoiseHead(2, learn_features=learned)
    weights = {"mean": {"kernel": np.zeros((3, 2), np.float32), "bias": MEAN}, "log_std": LOG_STD}
    gradient = jax.grad(lambda x: jnp.sum(head.apply({"params": weights}, x)[1]))(jnp.asarray(FEATURES))
    assert bool((gradient != 0).any()) == learned


@pytest.mark.parametrize("name", MAKERS)
def test_noise_lasts_for_its_period_or_until_the_episode_ends(name):
    make, config = MAKERS[name]
    options = {"random_start": False} if name == "sac" else {}
    agent = make(config(network=NETWORK, **options), SPEC)
    params, core, act = agent.init(jax.random.key(0)).params, agent.initial_core(2), compiled(agent.act)
    observation, played = np.ones((2, 3), np.float32), []
    for t in range(8):
        output, core = act(params, jax.random.key(t), observation, np.array([t == 0, t in (0, 4)]), core)
        played.append(output.action[:, 0])
    new = np.diff(np.array(played), axis=0) != 0  # between two rows with the same observation
    np.testing.assert_array_equal(new[:, 0], [False, False, True, False, False, True, False])
    np.testing.assert_array_equal(new[:, 1], [False, False, True, True, False, False, True])
    assert not agent.store_core
    greedy = jax.jit(lambda key: agent.act(params, key, observation, np.zeros(2, bool), core, greedy=True)[0].action)
    np.testing.assert_array_equal(greedy(jax.random.key(0)), greedy(jax.random.key(1)))


@pytest.mark.slow  # compiling
@pytest.mark.parametrize("name", MAKERS)
def test_agents_with_state_noise_pass_the_checks(name):
    make, config = MAKERS[name]
    checks = check_agent(make(config(network=NETWORK), SPEC), SPEC).checks
    assert {"act_resets_core", "act_log_prob"} <= set(checks)


def test_state_noise_is_for_feed_forward_networks():
    with pytest.raises(ConfigError, match=r"noise_period=4 is for feed-forward networks.*gru"):
        NetworkConfig(core="gru", noise_period=4)
