"""PQN: its returns and loss against slow oracles and rlax, the probe environments, and check_agent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.check import check_agent
from jsrl.agents.devices import masked_mean
from jsrl.agents.pqn import PQNConfig, loss, pqn, prepare
from jsrl.agents.random_rows import random_trajectory
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import value_network
from jsrl.types import ArraySpec, Discrete, EnvSpec
from tests.agents.compiled import compiled
from tests.marks import nightly, slow

GAMMA, LAMBDA = 0.9, 0.6
NETWORK = NetworkConfig(hidden=(8,), activation="relu", layer_norm=True)
RECURRENT = NetworkConfig(hidden=(8,), layer_norm=True, core="gru", core_size=8)
SPEC = EnvSpec({"x": ArraySpec((3,), "float32"), "action_mask": ArraySpec((4,), "uint8")}, Discrete(4), "choice")
CONFIG = PQNConfig(network=NETWORK, gamma=GAMMA, td_lambda=LAMBDA, total_updates=10, num_minibatches=4)


def draw(num_rows=12, num_envs=16):
    """Return rows with terminations and truncations, action masks and value-only rows."""
    rng = np.random.default_rng(0)
    t = random_trajectory(SPEC, rng, num_rows=num_rows, num_envs=num_envs, extras=(), core=())
    is_first = rng.random(t.is_first.shape) < 0.2
    discount = np.where(np.roll(is_first, -2, 0) & (rng.random(is_first.shape) < 0.5), 0.0, 1.0).astype(np.float32)
    mask = (rng.random(t.observation["action_mask"].shape) < 0.6).astype(np.uint8)
    mask[..., 0] = 1
    acts = rng.choice(2, is_first.shape, p=(0.9, 0.1)).astype(np.uint8) + 1
    return t._replace(
        observation={**t.observation, "action_mask": mask}, is_first=is_first, discount=discount, acts=acts
    )


def slow_return(t, value, row, column):
    """Return the mixture of n-step returns: (1 - lambda) lambda^(n-1) of each n, the rest of the longest."""
    total, scale, returns = 0.0, 1.0, []
    while True:
        total += scale * t.reward[row, column]
        scale *= GAMMA * t.discount[row, column]
        row += 1
        returns.append(total + scale * value[row, column])
        if scale == 0 or row == len(t.reward) - 1 or t.is_first[row + 1, column]:
            weights = (1 - LAMBDA) * LAMBDA ** np.arange(len(returns))
            weights[-1] = LAMBDA ** (len(returns) - 1)
            return weights @ returns


def test_the_targets_are_lambda_returns_of_the_largest_values_and_the_loss_is_a_mean():
    network, t = value_network(NETWORK, SPEC), draw()
    state = compiled(pqn(CONFIG, SPEC).init)(jax.random.key(0))
    batch = compiled(lambda t: prepare(CONFIG, network, state.params, t, None))(t)
    values = compiled(network.apply)(state.params.weights.network, t.observation, t.is_first, ())[0][..., 0]
    best = np.where(t.observation["action_mask"] > 0, values, -np.inf).max(-1)
    best = np.where(t.acts == 1, best, values[..., 0])
    trained = ~t.is_first[1:]
    expected = [[slow_return(t, best, row, column) for column in range(16)] for row in range(12)]
    target, mask = batch.target.reshape(12, 16), batch.mask.reshape(12, 16)
    np.testing.assert_array_equal(mask, trained)
    np.testing.assert_allclose(target[trained], np.array(expected)[trained], rtol=1e-4, atol=1e-5)
    assert (t.discount[:-1][trained] == 0).any() and (t.is_first[2:] & (t.discount[:-2] == 1)).any()

    total, _ = compiled(lambda w: loss(network, w, batch, lambda x: masked_mean(x, batch.mask, None)))(
        state.params.weights.network
    )
    taken = np.take_along_axis(values[:-1], t.action[:-1, :, None], -1)[..., 0]
    np.testing.assert_allclose(total, 0.5 * np.square(taken - target)[trained].mean(), rtol=1e-4)


@pytest.mark.slow
def test_the_targets_equal_rlax():
    rlax = pytest.importorskip("rlax")
    network, t = value_network(NETWORK, SPEC), draw()
    t = t._replace(is_first=np.zeros_like(t.is_first), acts=np.ones_like(t.acts))
    state = compiled(pqn(CONFIG, SPEC).init)(jax.random.key(0))
    target = compiled(lambda t: prepare(CONFIG, network, state.params, t, None))(t).target.reshape(12, 16)
    values = compiled(network.apply)(state.params.weights.network, t.observation, t.is_first, ())[0][..., 0]
    best = np.where(t.observation["action_mask"] > 0, values, -np.inf).max(-1)
    of_column = jax.vmap(lambda r, d, v: rlax.lambda_returns(r, d, v, LAMBDA), 1, 1)
    expected = compiled(of_column)(t.reward[:-1], GAMMA * t.discount[:-1], best[1:])
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)


def test_acting_explores_by_the_updates_of_its_params():
    agent = pqn(PQNConfig(network=NETWORK, epsilon=0.1, exploration_fraction=0.5, total_updates=20), SPEC)
    params = jax.jit(agent.init)(jax.random.key(0)).params
    observation = {"x": np.ones((300, 3), np.float32), "action_mask": np.ones((300, 4), np.uint8)}
    act = jax.jit(agent.act)
    for updates, epsilon in ((0, 1.0), (5, 0.55), (15, 0.1)):
        now = params._replace(weights=params.weights._replace(updates=jnp.asarray(updates)))
        output, _ = act(now, jax.random.key(1), observation, np.zeros(300, bool), ())
        chances = np.unique(np.exp(np.asarray(output.log_prob)).round(5))
        np.testing.assert_allclose(chances, np.unique([epsilon / 4, 1 - 0.75 * epsilon]), rtol=1e-4)
    adopted = agent.adopt(jax.jit(agent.init)(jax.random.key(1)), now)
    assert adopted.params.weights.updates == 0 and adopted.params.weights.network is now.weights.network
    with pytest.raises(ConfigError, match="total_updates"):
        pqn(PQNConfig(), SPEC)


def test_minibatches_that_do_not_divide_a_batch_are_refused():
    PQNConfig().check_batch(3, 32)
    with pytest.raises(ConfigError, match="does not divide the 80 rows of a batch; use 20 or 40"):
        PQNConfig().check_batch(8, 10)
    with pytest.raises(ConfigError, match="the 10 environments of a batch; use 10"):
        PQNConfig(network=RECURRENT).check_batch(8, 10)


FAST = {"learning_rate": 0.01, "schedule": "constant", "num_epochs": 4, "num_minibatches": 4, "total_updates": 100}


def make(spec, *, network=NETWORK, **options):
    return pqn(PQNConfig(**{**FAST, "gamma": 0.7, "network": network, **options}), spec)


def values_of(played, spec, observation):
    """Return the largest values of observations [K, 1]."""
    network = value_network(NETWORK, spec)
    seen = np.asarray(observation, np.float32)[None]
    first = np.ones(seen.shape[:2], bool)
    return compiled(network.apply)(played.state.params.weights.network, seen, first, ())[0][0, ..., 0].max(-1)


@pytest.mark.slow
def test_values_match_the_probes(probe, play):
    env = probe("delayed_reward")
    played = play(make(env.spec), env, num_updates=40)
    np.testing.assert_allclose(values_of(played, env.spec, [[0.0], [1.0]]), [0.7, 1.0], atol=0.06)
    env = probe("constant_reward", True)  # truncated after one row; the last observation looks the same
    played = play(make(env.spec, gamma=0.5), env, num_updates=60)
    np.testing.assert_allclose(values_of(played, env.spec, [[0.0]]), [2.0], atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "reached"),
    [
        nightly("masked_reward", {}, 0.8),
        nightly("agents_reward", {}, 0.8),  # two seats in turns
        ("remembered_reward", {"network": RECURRENT, "gamma": 0.9, "td_lambda": 0.9}, 0.7),
        nightly("matching_reward", {"normalize_observations": True}, 0.8),
    ],
)
def test_it_finds_the_rewarded_action(probe, play, name, options, reached):
    env = probe(name)
    played = play(make(env.spec, **options), env, num_updates=80)
    assert played.score > reached, played.metrics[-1]


SHARED = EnvSpec(ArraySpec((2, 3), "float32"), Discrete(4), num_agents=2)


@pytest.mark.parametrize(
    ("spec", "network"),
    [slow(SPEC, RECURRENT), nightly(SPEC, NETWORK), nightly(SHARED, NETWORK), nightly(SHARED, RECURRENT)],
    ids=["masked-gru", "masked", "shared", "shared-gru"],
)
def test_it_passes_check_agent(spec, network):
    agent = make(spec, network=network, normalize_observations=True)
    assert "update_bootstraps" in check_agent(agent, spec).checks
