"""Rows of other agents, NaN included, change no bit of an update; masks have the shape of the losses."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import off_policy as off
from jsrl.agents import rows as rows_file
from jsrl.agents.actor_critic import fold_agents, for_agents
from jsrl.agents.base import ActOutput, Agent
from jsrl.agents.bc import BCConfig, bc
from jsrl.agents.ddpg import DDPGConfig, ddpg
from jsrl.agents.devices import masked_mean
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.r2d2 import R2D2Config, r2d2
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.rows import row_masks
from jsrl.agents.sac import SACConfig, sac
from jsrl.agents.td3 import TD3Config, td3
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, map_tree
from tests.marks import marked

T, B, N, A = 6, 4, 3, 4
NETWORK = NetworkConfig(hidden=(8,))
OBSERVATION = {"x": ArraySpec((N, 2), "float32"), "action_mask": ArraySpec((N, A), "uint8")}
CHOICE = EnvSpec(OBSERVATION, Discrete(A), "choice", num_agents=N)
REAL = EnvSpec(ArraySpec((N, 2), "float32"), Continuous((-1.0, -1.0), (1.0, 1.0), "rescale"), "real", num_agents=N)
NORMAL = {"network": NETWORK, "normalize_observations": True}
AGENTS = {
    "ppo": lambda: (ppo(PPOConfig(**NORMAL, normalize_values=True, num_minibatches=2), CHOICE), CHOICE),
    "ppo vtrace": lambda: (ppo(PPOConfig(**NORMAL, returns="vtrace", value_clip=0.2), REAL), REAL),
    "ppo acting": lambda: (ppo(PPOConfig(**NORMAL, values="acting", value_clip=0.2), CHOICE), CHOICE),
    "impala": lambda: (impala(IMPALAConfig(**NORMAL), CHOICE), CHOICE),
    "dqn": lambda: (dqn(DQNConfig(**NORMAL, total_updates=10), CHOICE), CHOICE),
    "c51": lambda: (dqn(DQNConfig(**NORMAL, total_updates=10, num_atoms=5), CHOICE), CHOICE),
    "sac": lambda: (sac(SACConfig(**NORMAL), REAL), REAL),
    "discrete sac": lambda: (sac(SACConfig(**NORMAL), CHOICE), CHOICE),
    "td3": lambda: (td3(TD3Config(**NORMAL, policy_delay=1), REAL), REAL),
    "ddpg": lambda: (ddpg(DDPGConfig(**NORMAL), REAL), REAL),
    "bc": lambda: (bc(BCConfig(**NORMAL), REAL), REAL),
}


def rows_of_all_kinds(agent, spec, seed: int, num_rows: int = T, weighted: bool = False):
    """Return rows of acting, waiting and value-only seats; seat 2 of every environment is a frozen player that waits."""
    rng = np.random.default_rng(seed)
    core = jax.tree.map(np.asarray, agent.initial_core(B))
    extras = {"value": ArraySpec((N,), "float32")}
    sizes = {"num_rows": num_rows, "num_envs": B, "extras": extras, "core": core, "weighted": weighted}
    t = random_trajectory(spec, rng, **sizes)
    acts = rng.choice(3, size=t.acts.shape, p=(0.4, 0.4, 0.2)).astype(np.uint8)
    acts[..., 2] = 0
    return t._replace(acts=acts, extras=map_tree(lambda x: rng.normal(size=x.shape).astype(x.dtype), t.extras))


def spoil(tree, where):
    """Return the tree with NaN where the condition [T+1, B, N] holds (integers: 0, which forbids all actions of a mask)."""

    def one(leaf):
        bad = np.nan if np.issubdtype(leaf.dtype, np.floating) else 0
        return np.where(where.reshape(where.shape + (1,) * (leaf.ndim - 3)), np.asarray(bad, leaf.dtype), leaf)

    return map_tree(one, tree)


def spoilt(t):
    """Return rows with NaN in everything outside the policy's acting and value-only rows."""
    waits, unused = t.acts == 0, t.acts != 1
    absent = np.broadcast_to(waits.all(axis=0), waits.shape)
    assert absent.any() and (waits & ~absent).any() and (t.acts == 2).any()
    return t._replace(
        observation=spoil(t.observation, waits),
        action=spoil(t.action, waits),
        log_prob=spoil(t.log_prob, unused),
        extras=spoil(t.extras, waits),
        reward=spoil(t.reward, absent),  # the reward of other waiting rows belongs to the row before
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(AGENTS, nightly={"ppo vtrace", "ppo acting", "c51", "discrete sac", "ddpg"}))
def test_nan_in_rows_of_other_agents_changes_no_bit(name):
    agent, spec = AGENTS[name]()
    t = rows_of_all_kinds(agent, spec, 0)
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    ends = [update(state, rows, jax.random.key(1)) for rows in (t, spoilt(t))]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ends[1]))
    moved = [
        np.asarray(x != y).any() for x, y in zip(*map(jax.tree.leaves, (state.params, ends[0][0].params)), strict=True)
    ]
    assert all(moved)


def test_value_only_rows_train_the_critic_and_not_the_policy():
    agent, spec = AGENTS["ppo"]()
    t = rows_of_all_kinds(agent, spec, 1)
    masks = jax.jit(row_masks)(t)
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    first, _ = update(state, t, jax.random.key(1))
    dead = (t.acts == 2) & np.concatenate([np.asarray(masks.value) > 0, np.zeros((1, B, N), bool)])
    assert dead.any() and not (np.asarray(masks.policy) * dead[:-1]).any()
    other_action, _ = update(state, t._replace(action=np.where(dead, 0, t.action)), jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, first, other_action)
    seen = {**t.observation, "x": np.where(dead[..., None], t.observation["x"] + 1, t.observation["x"])}
    other_view, _ = update(state, t._replace(observation=seen), jax.random.key(1))
    assert (first.params.moments["x"].mean != other_view.params.moments["x"].mean).any()
    only = t._replace(acts=np.where(t.acts == 1, 2, t.acts))
    idle, output = update(state, only, jax.random.key(1))
    pairs = zip(*map(jax.tree.leaves, (state.params.weights, idle.params.weights)), strict=True)
    assert all((np.asarray(x) == np.asarray(y)).all() for x, y in pairs)
    assert float(output.metrics["entropy"]) == 0 and float(output.metrics["loss_value"]) > 0
    pairs = zip(*map(jax.tree.leaves, (state.learner_params, idle.learner_params)), strict=True)
    assert any((np.asarray(x) != np.asarray(y)).any() for x, y in pairs)


@pytest.mark.parametrize(("cut_late", "margin"), [(False, 2), (True, 1)])
def test_a_wait_that_the_batch_cuts_off_counts_in_the_margin(cut_late, margin):
    """Row 2 waits beyond row T = 4, so other columns leave out their row 3 as well; a time limit at row 3 is not that."""
    acts = np.array([[1, 1], [1, 1], [1, 1], [0, 1], [0, 1]], np.uint8)
    is_first = np.zeros((5, 2), bool)
    is_first[4, 0] = cut_late
    known = np.array([[True, True], [True, True], [False, True], [False, True]])
    found = jax.jit(rows_file.row_kinds, static_argnums=3)(np.ones((4, 2), np.float32), acts, is_first, 1)
    np.testing.assert_array_equal(found.trained, known)

    def margin_of(discount, acts, is_first):
        return rows_file.row_margin(SimpleNamespace(discount=discount, acts=acts, is_first=is_first))

    assert jax.jit(margin_of)(np.ones((5, 2), np.float32), acts, is_first) == margin


@pytest.mark.slow
def test_recurrent_agent_reads_waiting_rows_but_not_columns_of_others():
    """A seat's core holds what it observed while waiting; observations of a frozen player must not matter."""
    network = NetworkConfig(hidden=(8,), core="gru", core_size=4)
    agent = r2d2(R2D2Config(network=network, burn_in=1, n_step=2), CHOICE)
    t = rows_of_all_kinds(agent, CHOICE, 2)
    absent = np.broadcast_to((t.acts == 0).all(axis=0), t.acts.shape)
    bad = t._replace(observation=spoil(t.observation, absent), reward=spoil(t.reward, absent))
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    ends = [update(state, rows, jax.random.key(1)) for rows in (t, bad)]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ends[1]))


def test_agents_of_an_environment_share_its_first_rows_and_its_weight():
    """Of 3 environments with 2 agents: what belongs to an environment reaches its own agents, in acting and in learning."""

    def act(params, key, observation, is_first, core, *, greedy=False):
        return ActOutput(observation, core), jnp.where(is_first, 0.0, core)

    alone = Agent(lambda key: None, jnp.zeros, act, None)  # type: ignore[arg-type]
    own = np.arange(1.0, 7.0, dtype=np.float32).reshape(3, 2)
    output, core = for_agents(alone, 2).act((), jax.random.key(0), own, np.array([False, True, False]), own)
    np.testing.assert_array_equal(output.action, own)
    np.testing.assert_array_equal(core, [[1.0, 2.0], [0.0, 0.0], [5.0, 6.0]])

    spec = EnvSpec(ArraySpec((2, 1), "float32"), Discrete(2), num_agents=2, state=ArraySpec((2,), "float32"))
    t = random_trajectory(spec, np.random.default_rng(0), num_rows=4, num_envs=3, extras=(), core=own, weighted=True)
    folded = fold_agents(t, 2)
    for agent in range(2):
        mine = jax.tree.map(
            lambda x, n=agent: np.asarray(x).reshape(*x.shape[:1], 3, 2, *x.shape[2:])[:, :, n], folded.state
        )
        np.testing.assert_array_equal(mine, t.state)
        np.testing.assert_array_equal(folded.is_first.reshape(5, 3, 2)[..., agent], t.is_first)
        np.testing.assert_array_equal(folded.sampling.reshape(3, 2)[:, agent], t.sampling)
        np.testing.assert_array_equal(folded.core.reshape(3, 2)[:, agent], own[:, agent])
        np.testing.assert_array_equal(folded.reward.reshape(5, 3, 2)[..., agent], t.reward[..., agent])


def test_priorities_are_means_over_trained_seats():
    error, mask = jnp.asarray([1.0, -3.0, 9.0, 5.0, 7.0, 7.0]), jnp.asarray([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(off.priorities(error, mask, 3), [2.0, 0.0])


def test_means_refuse_a_mask_of_another_shape():
    """A [T, B, N] loss over the count of a [T, B] mask would be N times too large."""
    with pytest.raises(ValueError, match=r"a mean of values \[6, 4, 3\] got a mask \[6, 4\]"):
        masked_mean(jnp.ones((T, B, N)), jnp.ones((T, B)), None)
