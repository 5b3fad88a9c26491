"""PPG: its phases, the loss of the auxiliary phase against a slow oracle, the probe environments, and check_agent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import actor_critic as ac
from jsrl.agents.check import check_agent
from jsrl.agents.devices import masked_mean
from jsrl.agents.distributions import distribution
from jsrl.agents.ppg import Batch, PPGConfig, Weights, auxiliary_loss, ppg, read
from jsrl.agents.ppo import Components, PPOConfig, ppo, prepare
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.rows import RowMasks
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig, actor_critic
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec
from tests.agents.compiled import compiled

T, B = 4, 8
NETWORK = NetworkConfig(hidden=(8,))
SPEC = EnvSpec({"x": ArraySpec((3,), "float32"), "action_mask": ArraySpec((4,), "uint8")}, Discrete(4), "choice")
COMMON = {"network": NETWORK, "num_minibatches": 2, "learning_rate": 0.01, "num_epochs": 1, "entropy_coef": 0.01}
CONFIG = PPGConfig(**COMMON, phase_rows=2 * T * B + 5, aux_epochs=2, aux_minibatches=2, clone_coef=0.7)


def draw(seed, spec=SPEC):
    rng = np.random.default_rng(seed)
    t = random_trajectory(spec, rng, num_rows=T, num_envs=B, extras=(), core=())
    return t._replace(is_first=rng.random(t.is_first.shape) < 0.2)


def large_head(policy):
    """Return the policy's weights with a head that is not nearly 0."""
    return {**policy, "head": jax.tree.map(lambda x: 100.0 * x, policy["head"])}


def test_the_auxiliary_loss_equals_a_loop_over_rows():
    rng, network = np.random.default_rng(0), actor_critic(NETWORK, SPEC)
    parts = Components(CONFIG, network, distribution(SPEC.action), None, 0.2)
    first, second = (network.init(jax.random.key(seed)) for seed in (0, 1))
    head = {"kernel": rng.normal(size=8).astype(np.float32), "bias": np.float32(0.3)}
    weights, old = (Weights(large_head(policy), value, head) for policy, value in (first, second))
    seen = jax.tree.map(lambda x: x[:1], draw(0).observation)  # [1, B]
    masks = RowMasks(*(rng.random((2, 1, B)) < 0.6).astype(np.float32))
    before = compiled(lambda w: read(parts, w, (), seen))(old)[0]
    batch = Batch(seen, rng.normal(size=(1, B)).astype(np.float32), masks, before)
    mean = RowMasks(*(lambda x, m=mask: masked_mean(x, m, None) for mask in masks))
    total, metrics = compiled(lambda w: auxiliary_loss(parts, w, (), batch, mean))(weights)

    logits, auxiliary, value = compiled(lambda w: read(parts, w, (), seen))(weights)
    clone = errors = of_head = 0.0
    for column in range(B):
        legal = seen["action_mask"][0, column] > 0
        p, q = (np.exp(x[0, column][legal]) / np.exp(x[0, column][legal]).sum() for x in (before, logits))
        clone += masks.policy[0, column] * (p * np.log(p / q)).sum() / masks.policy.sum()
        share = 0.5 * masks.value[0, column] / masks.value.sum()
        of_head += share * (auxiliary[0, column] - batch.target[0, column]) ** 2
        errors += share * (value[0, column] - batch.target[0, column]) ** 2
    np.testing.assert_allclose(total, of_head + 0.7 * clone + errors, rtol=1e-4)
    np.testing.assert_allclose([metrics["loss_auxiliary"], metrics["kl_clone"]], [of_head, clone], rtol=1e-4)


@pytest.mark.slow
def test_policy_phases_are_ppo_and_the_auxiliary_phase_comes_after_the_last_batch():
    agent, plain = ppg(CONFIG, SPEC), ppo(PPOConfig(**COMMON), SPEC)
    parts = Components(CONFIG, actor_critic(NETWORK, SPEC), distribution(SPEC.action), None, 0.2)
    update, other = jax.jit(agent.update), jax.jit(plain.update)
    state, ours = jax.jit(agent.init)(jax.random.key(0)), jax.jit(plain.init)(jax.random.key(0))
    targets = jax.jit(
        lambda state, t: prepare(parts, ac.Weights(state.params.weights, state.learner_params), state, t, None)
    )
    for number in range(4):
        t, key = draw(number), jax.random.key(number)
        batch, _ = targets(state._replace(extra=state.extra.agent), t)
        ours = ours._replace(params=state.params, learner_params=state.learner_params, opt_state=state.opt_state)
        ours, _ = other(ours, t, key)
        before, (state, output) = state, update(state, t, key)
        place = slice(number % 2 * T * B, (number % 2 + 1) * T * B)
        rows, mask = state.extra.rows, np.asarray(batch.masks.value).reshape(-1)
        np.testing.assert_allclose(rows.target[place], mask * np.asarray(batch.target).reshape(-1), rtol=1e-5)
        np.testing.assert_array_equal(
            rows.observation["x"][place], mask[:, None] * t.observation["x"][:-1].reshape(-1, 3)
        )
        equal = jax.tree.map(np.array_equal, state.params.weights, ours.params.weights)
        if number % 2 == 0:  # within a phase
            assert all(jax.tree.leaves(equal))
            assert state.extra.head is not None and output.metrics["kl_clone"] == before.extra.reported["kl_clone"]
        else:
            assert not equal["torso"]["MLP_0"]["Dense_0"]["kernel"]
            assert np.abs(state.extra.head["kernel"]).max() > 0 and output.metrics["kl_clone"] > 0
            assert output.metrics["loss_auxiliary"] != before.extra.reported["loss_auxiliary"]
    assert state.updates == 4


def test_what_it_cannot_do_is_refused():
    for network in (NetworkConfig(core="gru"), NetworkConfig(shared=True)):
        with pytest.raises(ConfigError, match="feed-forward networks, separate"):
            PPGConfig(network=network)
    with pytest.raises(ConfigError, match="aux_minibatches=16 does not divide the 40 rows of a batch; use 10 or 20"):
        PPGConfig(minibatch_size=8).check_batch(4, 10)
    agent = ppg(PPGConfig(**COMMON, phase_rows=T * B - 1), SPEC)
    with pytest.raises(ConfigError, match="phase_rows=31 is less than the 32 rows of a batch"):
        jax.eval_shape(agent.update, jax.eval_shape(agent.init, jax.random.key(0)), draw(0), jax.random.key(0))


FAST = {"learning_rate": 0.01, "gamma": 0.7, "num_epochs": 4, "num_minibatches": 4, "entropy_coef": 0.001}
FAST |= {"phase_rows": 4 * 512, "aux_epochs": 2, "aux_minibatches": 2, "network": NetworkConfig(hidden=(32,))}


@pytest.mark.nightly
def test_it_finds_the_rewarded_action(probe, play):
    env = probe("matching_reward")
    played = play(ppg(PPGConfig(**FAST), env.spec), env, num_updates=40)
    assert played.score > 0.9, played.metrics[-1]


@pytest.mark.slow
def test_both_heads_learn_the_values(probe, play):
    env = probe("delayed_reward")
    config = PPGConfig(**FAST)
    network = actor_critic(config.network, env.spec)
    state = play(ppg(config, env.spec), env, num_updates=40).state
    weights = Weights(state.params.weights, state.learner_params, state.extra.head)
    parts = Components(config, network, distribution(env.spec.action), None, 0.2)
    _, auxiliary, value = compiled(lambda w: read(parts, w, (), jnp.array([[[0.0], [1.0]]])))(weights)
    np.testing.assert_allclose(value[0], [0.7, 1.0], atol=0.06)
    np.testing.assert_allclose(auxiliary[0], [0.7, 1.0], atol=0.1)


SHARED = EnvSpec(ArraySpec((2, 3), "float32"), Discrete(4), num_agents=2)
REAL = EnvSpec(ArraySpec((3,), "float32"), Continuous((-1.0,), (1.0,), "squash"))


@pytest.mark.nightly
@pytest.mark.parametrize("spec", [SPEC, SHARED, REAL], ids=["masked", "shared", "real"])
def test_it_passes_check_agent(spec):
    options = {"normalize_observations": True, "normalize_values": True, "aux_minibatches": 4, "aux_epochs": 2}
    agent = ppg(PPGConfig(**COMMON, **options, phase_rows=128 * (spec.num_agents or 1)), spec)
    assert "update_bootstraps" in check_agent(agent, spec).checks
