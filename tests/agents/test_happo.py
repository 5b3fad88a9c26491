"""HAPPO: the weight of each seat's advantage, separate policies, and a game that needs both."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import actor_critic as ac
from jsrl.agents import happo as happo_file
from jsrl.agents import normalization as norm
from jsrl.agents import ppo
from jsrl.agents.check import check_agent
from jsrl.agents.distributions import distribution
from jsrl.agents.happo import HAPPOConfig, happo
from jsrl.agents.mappo import CENTRAL
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.returns import Rows, gae
from jsrl.agents.rows import RowMasks, row_masks
from jsrl.agents.seats import team_rows
from jsrl.envs.config import EnvConfig
from jsrl.envs.games.rows import GameRows
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig, actor_critic
from jsrl.types import ArraySpec, Discrete, EnvSpec, GameSpec, Seat, make_trajectory_spec, zeros

N = 3
SMALL = NetworkConfig(hidden=(8,))
PLAIN = EnvSpec(ArraySpec((N, 4), "float32"), Discrete(5), "game", num_agents=N)
STATE = {"map": ArraySpec((2, 2), "float32"), "time": ArraySpec((), "int32")}
MASKED = {"see": ArraySpec((N, 2), "float32"), "action_mask": ArraySpec((N, 5), "bool")}
SPECS = {
    "plain": PLAIN,
    "with-state": dataclasses.replace(PLAIN, state=STATE),
    "masked": dataclasses.replace(PLAIN, observation=MASKED),
}


def config(**changes) -> HAPPOConfig:
    return HAPPOConfig(**{"network": SMALL, "critic_network": SMALL, "num_epochs": 2} | changes)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changes", "spec"),
    [
        ({}, "plain"),
        ({"normalize_observations": True, "target_kl": 0.01}, "with-state"),
        ({"network": NetworkConfig(hidden=(8,), core="gru", core_size=4)}, "masked"),
    ],
)
def test_passes_check_agent(changes, spec: str) -> None:
    check_agent(happo(config(**changes), SPECS[spec]), SPECS[spec], num_rows=4, num_envs=4)


def rows_of(spec: EnvSpec, num_rows: int = 4, num_envs: int = 6, seed: int = 0):
    rng = np.random.default_rng(seed)
    t = random_trajectory(spec, rng, num_rows=num_rows, num_envs=num_envs, extras=(), core=())
    acts = rng.choice(3, size=t.acts.shape, p=(0.2, 0.6, 0.2)).astype(np.uint8)
    return t._replace(acts=acts, log_prob=rng.uniform(-2.0, -1.0, t.log_prob.shape).astype(np.float32))


def test_each_seat_uses_the_advantage_weighted_by_earlier_seats() -> None:
    """Against a loop: seat by seat, gradient steps on the weighted advantage, then the ratio of the actions taken."""
    made, one = config(learning_rate=0.05, num_epochs=3), ac.one_agent(PLAIN)
    network = actor_critic(SMALL, one)
    optimizer = ac.make_optimizer("adam", eps=1e-5, max_grad_norm=10.0)
    parts = ppo.Components(made, network, distribution(one.action), optimizer, made.clip_ratio)
    policies = jax.jit(jax.vmap(lambda k: network.init(k)[0]))(jax.random.split(jax.random.key(0), N))
    states = jax.jit(jax.vmap(optimizer.init))(policies)
    t, rng = rows_of(PLAIN), np.random.default_rng(1)
    mask, advantage = np.ones((4, 6), np.float32), rng.normal(size=(4, 6)).astype(np.float32)
    seats = jax.jit(lambda t, mask: happo_file.seats_of((), t, t, mask))(t, mask)
    seats = seats._replace(observation=t.observation)
    nothing = np.zeros((4, 6), np.float32)
    team = ppo.Batch((), t.is_first[:-1], (), (), RowMasks(mask, mask), advantage, nothing, nothing, ())
    turns = jnp.asarray([2, 0, 1]), jax.random.split(jax.random.key(5), N)
    options = {"learning_rate": jnp.asarray(0.05), "axis_name": None}
    found, _, _ = jax.jit(lambda *given: happo_file.update_policies(parts, *given, **options))(
        policies, states, seats, team, turns
    )

    @jax.jit
    def learn(policy, state, batch, key):
        steps = {"key": key, "of": happo_file.policy_only, **options}
        return ppo.optimize(parts, policy, state, ppo.flat(batch), **steps)[0]

    weight = np.ones((4, 6))
    for seat, key in zip((2, 0, 1), turns[1], strict=True):
        policy, state = jax.tree.map(lambda x, i=seat: x[i], (policies, states))
        acting = (t.acts[:-1, :, seat] == 1).astype(np.float32)
        batch = team._replace(
            observation=t.observation[:-1, :, seat],
            action=t.action[:-1, :, seat],
            log_prob=t.log_prob[:-1, :, seat],
            masks=RowMasks(acting, mask),
            advantage=(weight * advantage).astype(np.float32),
        )
        policy = learn(policy, state, batch, key)
        jax.tree.map(lambda x, y, i=seat: np.testing.assert_allclose(x[i], y, rtol=1e-4, atol=1e-5), found, policy)
        logits, _, _ = jax.jit(network.policy)(policy, batch.observation, batch.is_first, ())
        chances = np.asarray(jax.nn.softmax(logits), np.float64)
        taken = np.take_along_axis(chances, batch.action[..., None], -1)[..., 0]
        weight *= np.where(acting > 0, taken / np.exp(batch.log_prob), 1.0)
    assert np.abs(weight - 1).max() > 0.5  # the steps of the seats were large enough to matter


@pytest.mark.slow
def test_seats_share_the_team_advantage_and_train_only_on_rows_where_they_act() -> None:
    agent, t = happo(config(normalize_observations=True), SPECS["masked"]), rows_of(SPECS["masked"])
    waits, unused = t.acts == 0, t.acts != 1
    bad = t._replace(
        observation={
            "see": np.where(waits[..., None], np.nan, t.observation["see"]).astype(np.float32),
            "action_mask": np.where(waits[..., None], False, t.observation["action_mask"]),
        },
        action=np.where(unused, 0, t.action),
        log_prob=np.where(unused, np.nan, t.log_prob).astype(np.float32),
    )
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    ends = [update(state, rows, jax.random.key(1)) for rows in (t, bad)]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    idle, _ = update(state, t._replace(acts=np.where(np.arange(N) == 1, 2, t.acts).astype(np.uint8)), jax.random.key(1))
    moved = [
        any((np.asarray(x[i]) != np.asarray(y[i])).any() for x, y in pairs)
        for i in range(N)
        for pairs in [list(zip(*map(jax.tree.leaves, (state.params.weights, idle.params.weights)), strict=True))]
    ]
    assert moved == [True, False, True]


def test_a_group_whose_seats_are_dead_bootstraps_while_others_of_its_side_play_to_the_time_limit() -> None:
    """Against a loop: its rows train the value function, and the last one gives the rest of the mates' rewards."""
    names = ("red_0", "red_1", "mate")
    seats = tuple(Seat(name, ArraySpec((1,), "float32"), Discrete(2), side="red") for name in names)
    game, seen = GameSpec(seats, death="team"), {"all": np.zeros((1, 3, 1))}
    rows, never = GameRows(game, EnvConfig(max_episode_steps=6), 1, None), np.zeros((1, 3), bool)
    steps = [rows.opened(seen)]
    for count in range(1, 8):
        died = np.array([[count == 3, count == 2, False]])
        steps.append(rows.step(seen, np.full((1, 3), count, np.float32), died, never))
    is_first = np.stack([step.is_first for step in steps])
    acts = np.stack([step.acts[:, :2] for step in steps])
    reward, discount = (np.stack([getattr(step, name)[:, :2] for step in steps]) for name in ("reward", "discount"))
    value = np.random.default_rng(0).normal(size=(8, 1)).astype(np.float32)

    def learned(t):
        team = team_rows(t, 2)
        played = jax.tree.map(lambda x: x[:-1], (team.reward, team.discount))
        return row_masks(team), gae(Rows(value, *played, team.acts, team.is_first), gamma=0.9, lambda_=1.0).target

    spec = EnvSpec(ArraySpec((2, 1), "float32"), Discrete(2), num_agents=2)
    t = zeros(make_trajectory_spec(spec, (), (), num_rows=7, num_envs=1))
    masks, target = jax.jit(learned)(
        t._replace(is_first=is_first, acts=acts, reward=np.roll(reward, -1, 0), discount=np.roll(discount, -1, 0))
    )
    wanted = [value[6, 0]]  # of the last observation, which the truncation leaves to bootstrap from
    for earned in (6.0, 5.0, 4.0, 3.0, 2.0, 1.0):
        wanted.insert(0, earned + 0.9 * wanted[0])
    assert masks.policy[:, 0].tolist() == [1.0] * 3 + [0.0] * 4
    assert masks.value[:, 0].tolist() == [1.0] * 6 + [0.0]
    np.testing.assert_allclose(target[:6, 0], wanted[:6], rtol=1e-4)


def test_losses_weigh_entropy_and_values_by_their_coefficients(monkeypatch) -> None:
    terms = {"loss_policy": 2.0, "entropy": 3.0}
    monkeypatch.setattr(happo_file, "outputs_of", lambda *given: None)
    monkeypatch.setattr(ppo, "policy_terms", lambda *given: dict(terms))
    monkeypatch.setattr(ppo, "value_term", lambda *given: 5.0)
    critic = SimpleNamespace(value=lambda *given: None)
    parts = ppo.Components(config(entropy_coef=0.1, value_coef=0.3), critic, None, None, 0.2)
    batch = ppo.Batch(*[None] * len(ppo.Batch._fields))
    assert happo_file.policy_only(parts, (), batch, RowMasks(1.0, 1.0))[0] == pytest.approx(2.0 - 0.1 * 3.0)
    assert happo_file.value_only(parts, (), batch, RowMasks(1.0, 1.0))[0] == pytest.approx(0.3 * 5.0)


def test_moments_cover_the_rows_on_which_seats_take_part() -> None:
    t, rng = rows_of(PLAIN), np.random.default_rng(2)
    mask = (rng.random((4, 6)) < 0.7).astype(np.float32)
    seen = {"observation": t.observation, CENTRAL: rng.normal(size=(5, 6, 7)).astype(np.float32)}
    team = ppo.Batch(*[None] * len(ppo.Batch._fields))._replace(masks=RowMasks(mask, mask))
    moments = norm.init_moments({"observation": ArraySpec((4,), "float32"), CENTRAL: ArraySpec((7,), "float32")})
    found = happo_file.merged(moments, t, seen, team, None)
    own = (mask[..., None] > 0) & (t.acts[:-1] > 0)
    assert 0 < own.sum() < N * mask.sum()
    for name, rows in (("observation", t.observation[:-1][own]), (CENTRAL, seen[CENTRAL][:-1][mask > 0])):
        assert found[name].count == len(rows)
        np.testing.assert_allclose(found[name].mean, rows.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_one_allowed_action_gives_no_policy_gradient() -> None:
    agent, t = happo(config(entropy_coef=0.1), SPECS["masked"]), rows_of(SPECS["masked"])
    allowed = np.arange(5) == t.action[..., None]
    t = t._replace(observation={**t.observation, "action_mask": allowed}, log_prob=np.zeros_like(t.log_prob))
    state = jax.jit(agent.init)(jax.random.key(0))
    new, output = jax.jit(agent.update)(state, t, jax.random.key(1))
    assert float(output.metrics["entropy"]) == pytest.approx(0.0, abs=1e-5)
    jax.tree.map(np.testing.assert_array_equal, new.params.weights, state.params.weights)


@pytest.mark.nightly
def test_seats_find_jointly_rewarded_actions() -> None:
    """All seats have the same observation and reward: 1 when each plays its own number."""
    spec = EnvSpec(ArraySpec((N, 1), "float32"), Discrete(N), "choose", num_agents=N)
    agent = happo(config(learning_rate=0.02, entropy_coef=0.01, num_epochs=4), spec)
    state, update, act = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update), jax.jit(agent.act)
    rows = random_trajectory(spec, np.random.default_rng(0), num_rows=1, num_envs=128, extras=(), core=())
    rows = rows._replace(
        observation=np.zeros_like(rows.observation),
        is_first=np.zeros_like(rows.is_first),
        acts=np.ones_like(rows.acts),
        discount=np.zeros_like(rows.discount),
    )
    for number in range(40):
        acted, _ = act(state.params, jax.random.key(2 * number), rows.observation[0], rows.is_first[0], ())
        right = (np.asarray(acted.action) == np.arange(N)).all(axis=1).astype(np.float32)
        both = np.repeat(right[:, None], N, axis=1)
        batch = rows._replace(
            action=np.stack([acted.action] * 2),
            log_prob=np.stack([acted.log_prob] * 2),
            reward=np.stack([both, 0 * both]),
        )
        state, _ = update(state, batch, jax.random.key(2 * number + 1))
    assert right.mean() > 0.9


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="game has one agent; HAPPO is for teams"):
        happo(config(), dataclasses.replace(PLAIN, num_agents=None))
    with pytest.raises(ConfigError, match=r"critic_network\.shared=True, but the value function"):
        config(critic_network=NetworkConfig(shared=True))
    for fixed in (
        {"critic": "own"},
        {"rewards": "own"},
        {"agent_ids": True},
        {"returns": "vtrace"},
        {"chunk_length": 2},
    ):
        with pytest.raises(TypeError, match=f"HAPPOConfig has no field '{next(iter(fixed))}'"):
            config(**fixed)
