"""VDN and QMIX: mixing and targets against slow oracles, waiting seats, the two-step game, and refusals."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import dqn as dqn_file
from jsrl.agents import factoring
from jsrl.agents import off_policy as off
from jsrl.agents.check import check_agent
from jsrl.agents.qmix import MonotonicMixer, QMIXConfig, RecurrentQMIXConfig, monotonic, qmix, recurrent_qmix
from jsrl.agents.r2d2 import r2d2
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.rows import row_masks
from jsrl.agents.seats import team_rows
from jsrl.agents.vdn import RecurrentVDNConfig, VDNConfig, recurrent_vdn, summing, vdn
from jsrl.envs.config import EnvConfig
from jsrl.envs.games.rows import GameRows
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import value_network
from jsrl.types import (
    ACTING,
    VALUE_ONLY,
    ArraySpec,
    Discrete,
    EnvSpec,
    GameSpec,
    Seat,
    make_trajectory_spec,
    named_leaves,
    spec_for_one,
    zeros,
)
from tests.agents.compiled import compiled
from tests.agents.test_happo import PLAIN, STATE, N
from tests.agents.test_happo import SPECS as TEAMS
from tests.marks import nightly, slow

GAMMA = 0.9
SMALL = NetworkConfig(hidden=(8,), activation="relu")
RECURRENT = NetworkConfig(hidden=(8,), activation="relu", core="gru", core_size=4)
SPECS = TEAMS | {"masked": dataclasses.replace(TEAMS["masked"], state=STATE)}
FAST = {"network": SMALL, "gamma": GAMMA, "total_updates": 100}
SLOW_MEMORY = {"network": RECURRENT, "gamma": GAMMA, "burn_in": 1, "n_step": 2}
AGENTS = {
    "vdn": lambda spec, **changes: vdn(VDNConfig(**{**FAST, **changes}), spec),
    "qmix": lambda spec, **changes: qmix(QMIXConfig(**{**FAST, **changes}), spec),
    "recurrent vdn": lambda spec, **changes: recurrent_vdn(RecurrentVDNConfig(**{**SLOW_MEMORY, **changes}), spec),
    "recurrent qmix": lambda spec, **changes: recurrent_qmix(RecurrentQMIXConfig(**{**SLOW_MEMORY, **changes}), spec),
}


def rows_of(agent, spec: EnvSpec, seed: int = 0, num_rows: int = 4, num_envs: int = 8, weighted: bool = False):
    """Return rows of acting, waiting and dead seats; seat 2 of every environment is absent."""
    rng = np.random.default_rng(seed)
    core = jax.tree.map(np.asarray, agent.initial_core(num_envs)) if agent.store_core else ()
    sizes = {"num_rows": num_rows, "num_envs": num_envs, "extras": (), "core": core, "weighted": weighted}
    t = random_trajectory(spec, rng, **sizes)
    acts = rng.choice(3, size=t.acts.shape, p=(0.2, 0.6, 0.2)).astype(np.uint8)
    acts[..., 2] = 0
    discount = np.where(rng.random(t.is_first.shape) < 0.1, 0.0, 1.0)[..., None] * np.ones(N)
    discount[..., 0] *= rng.random(t.is_first.shape) < 0.5  # the death of one seat does not end the game of its team
    return t._replace(acts=acts, discount=discount.astype(np.float32))


def with_dead_teams(t):
    """Return the rows with some on which all seats are dead, while others of their side play on."""
    dead = np.random.default_rng(1).random(t.is_first.shape) < 0.3
    return t._replace(acts=np.where(dead[..., None], VALUE_ONLY, t.acts).astype(np.uint8))


# -- mixing -----------------------------------------------------------------------------------------------------------


def numpy_mixer(weights, utilities, state, embedding: int):
    """The mixer for one state, in numpy: figure 2 of the paper."""

    def layer(name, x):
        one = weights[name]
        return x @ np.asarray(one["kernel"], np.float64) + np.asarray(one["bias"], np.float64)

    def relu(x):
        return np.maximum(x, 0.0)

    first = np.abs(layer("first", relu(layer("first_hyper", state)))).reshape(len(utilities), embedding)
    hidden = utilities @ first + layer("first_bias", state)
    hidden = np.where(hidden > 0, hidden, np.expm1(np.minimum(hidden, 0.0)))
    last = np.abs(layer("last", relu(layer("last_hyper", state))))
    return hidden @ last + layer("last_bias", relu(layer("last_hidden", state)))[0]


def random_mixer(state_size: int = 5):
    mixing = monotonic(QMIXConfig(**FAST, mixer_embedding=4, mixer_hidden=8))(N, state_size)
    rng = np.random.default_rng(1)
    weights = compiled(mixing.init)(jax.random.key(0))
    return mixing, jax.tree.map(lambda w: w + 0.5 * rng.normal(size=w.shape).astype(np.float32), weights)


def test_mixer_equals_the_paper() -> None:
    mixing, weights = random_mixer()
    rng = np.random.default_rng(0)
    utilities, states = 3 * rng.normal(size=(50, N)), 3 * rng.normal(size=(50, 5))
    found = compiled(mixing.apply)(weights, utilities.astype(np.float32), states.astype(np.float32))
    wanted = [numpy_mixer(weights, u, s, 4) for u, s in zip(utilities, states, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [slow(4), slow(60), 200])
def test_utilities_hardly_matter_at_first(size: int) -> None:
    """Whatever the size of the state: else QMIX does not learn cooperative navigation (its state has 57 numbers)."""
    mixer, state, utilities = MonotonicMixer(), jax.random.normal(jax.random.key(1), (64, size)), jnp.zeros((64, 3))
    weights = jax.jit(mixer.init)(jax.random.key(0), utilities, state)
    derivative = jax.jit(jax.grad(lambda u: jnp.sum(mixer.apply(weights, u, state))))(utilities)
    assert derivative.min() > 0.0 and derivative.mean() < 0.02


def test_mixing_is_monotonic_in_10000_states() -> None:
    mixing, weights = random_mixer()
    rng = np.random.default_rng(0)
    utilities, states = (rng.normal(scale=5, size=(10_000, size)).astype(np.float32) for size in (N, 5))
    slopes = compiled(jax.vmap(jax.grad(mixing.apply, argnums=1), (None, 0, 0)))(weights, utilities, states)
    assert slopes.min() >= 0 and (slopes > 1e-3).mean() > 0.5
    sums = compiled(jax.vmap(jax.grad(summing(N, 5).apply, argnums=1), (None, 0, 0)))((), utilities, states)
    np.testing.assert_array_equal(sums, np.ones((10_000, N)))


@pytest.mark.parametrize("name", ["vdn", slow("qmix")])
def test_utilities_of_waiting_seats_have_no_effect(name: str) -> None:
    mixing, weights = random_mixer(4 + N) if name == "qmix" else (summing(N, 4 + N), ())
    rng = np.random.default_rng(0)
    acts = (rng.random((200, N)) < 0.5).astype(np.float32)
    acts[~acts.any(axis=1)] = 1.0
    observation = {"acts": acts, "state": rng.normal(size=(200, 4 + N)).astype(np.float32)}
    utilities = rng.normal(size=(200, N)).astype(np.float32)
    mix = compiled(lambda utilities: factoring.mix(mixing, weights, utilities, observation))
    one, other = mix(utilities), mix(np.where(acts > 0, utilities, np.nan).astype(np.float32))
    np.testing.assert_array_equal(one, other)
    assert (one != mix(utilities + acts)).all()


# -- rows and targets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_team_is_one_player_with_the_mean_reward(spec: str) -> None:
    agent = AGENTS["vdn"](SPECS[spec])
    t = rows_of(agent, SPECS[spec])
    team = factoring.make_team(VDNConfig(**FAST), SPECS[spec], lambda *_: agent, summing)
    rows = compiled(lambda t: factoring.as_team(team, t))(t)
    for at in np.ndindex(t.is_first.shape):
        assert rows.acts[at] == any(kind == 1 for kind in t.acts[at])
        assert rows.discount[at] == (0.0 if all(d == 0 for d in t.discount[at]) else 1.0)
        np.testing.assert_allclose(rows.reward[at], sum(t.reward[at]) / N, rtol=1e-5)
        acting = [float(kind == 1) for kind in t.acts[at]]
        if spec == "plain":
            seen = [see if acts else 0 * see for see, acts in zip(t.observation[at], acting, strict=True)]
        else:
            seen = [t.state["map"][at].ravel(), t.state["time"][at].ravel()]
        np.testing.assert_allclose(rows.observation["state"][at], np.concatenate([*seen, acting]), rtol=1e-6)
    assert team.mixer_size == rows.observation["state"].shape[-1]


@pytest.mark.parametrize("absent", [0, 1])
def test_team_whose_seats_die_in_different_steps_terminates(absent: int) -> None:
    """Also if others play on to a time limit: nothing is left to bootstrap from, and the last row has a target."""
    seats = tuple(Seat(name, ArraySpec((1,), "float32"), Discrete(2)) for name in ("red_0", "red_1", "blue"))
    rows, seen = GameRows(GameSpec(seats), EnvConfig(max_episode_steps=6), 1, None), {"all": np.zeros((1, 3, 1))}
    present, never = np.array([[True, not absent, True]]), np.zeros((1, 3), bool)
    steps = [rows.opened(seen, present=present)]
    for count in range(1, 8):
        died = np.array([[count == 4, count == 2, False]])
        steps.append(rows.step(seen, np.ones((1, 3), np.float32), died, never, present=present))
    spec = EnvSpec(ArraySpec((2, 1), "float32"), Discrete(2), num_agents=2)
    blank = zeros(make_trajectory_spec(spec, (), (), num_rows=7, num_envs=1))
    played = blank._replace(
        is_first=np.stack([step.is_first for step in steps]),
        acts=np.stack([step.acts[:, :2] for step in steps]),
        reward=np.stack([step.reward[:, :2] for step in steps[1:] + steps[:1]]),
        discount=np.stack([step.discount[:, :2] for step in steps[1:] + steps[:1]]),
    )

    def masks_and_last_window(t):
        team = team_rows(t, 2)
        return row_masks(team).value, off.transition(jax.tree.map(lambda x: x[3:], team), GAMMA)

    mask, window = compiled(masks_and_last_window)(played)
    assert mask[:, 0].tolist() == [1.0] * 4 + [0.0] * 3
    assert (window.mask.tolist(), window.discount.tolist()) == ([1.0], [0.0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "double"),
    [("qmix", True), *(slow(*c) for c in (("vdn", True), ("qmix", False)))],
)
def test_targets_equal_a_loop_over_seats(name: str, double: bool) -> None:
    """Each seat's best action is chosen separately; the target mixer mixes the target network's utilities of these actions."""
    spec = SPECS["masked"]
    config = (VDNConfig if name == "vdn" else QMIXConfig)(**FAST, double=double, loss="mse")
    make = summing if name == "vdn" else monotonic(config)
    team = factoring.make_team(config, spec, lambda *_: AGENTS["vdn"](spec), make)
    network = value_network(config.network, team.spec)
    parts, mixing = dqn_file.Components(config, network, jnp.zeros(1)), team.mixing
    init = compiled(lambda k: jax.tree.map(lambda w: 3.0 * w, factoring.Factored(network.init(k), mixing.init(k))))
    online, target = (init(jax.random.key(seed)) for seed in (3, 4))
    t = with_dead_teams(rows_of(team.base, spec, weighted=True))
    batch = compiled(lambda t: off.transition(factoring.as_team(team, t), GAMMA))(t)
    loss = compiled(lambda *weights: factoring.dqn_loss(parts, mixing, *weights, batch, lambda x: jnp.sum(x) / 7.0))
    total, (_, error) = loss(online, target)
    apply = compiled(network.apply)

    def values(weights, observation, b, i):
        one = jax.tree.map(lambda x: x[b, i][None], observation["seats"])
        return apply(weights.network, one, np.zeros(1, bool), ())[0][0, :, 0]

    def mixed(weights, utilities, observation, b):
        acts = np.asarray(observation["acts"][b]) > 0
        utilities = np.where(acts, utilities, 0.0) if acts.any() else utilities  # all seats are dead
        if name == "vdn":
            return utilities.sum()
        return numpy_mixer(weights.mixer, utilities, np.asarray(observation["state"][b], np.float64), 32)

    wanted = []
    for b in range(len(batch.mask)):
        best = []
        for i in range(N):
            chooser = values(online if double else target, batch.next_observation, b, i)
            allowed = np.asarray(batch.next_observation["seats"]["action_mask"][b, i])
            acts = batch.next_observation["acts"][b, i] > 0
            best.append(int(np.argmax(np.where(allowed, chooser, -np.inf))) if acts else 0)
        ahead = [values(target, batch.next_observation, b, i)[a] for i, a in enumerate(best)]
        here = [values(online, batch.observation, b, i)[int(batch.action[b, i])] for i in range(N)]
        goal = batch.reward[b] + batch.discount[b] * mixed(target, np.array(ahead), batch.next_observation, b)
        wanted.append(mixed(online, np.array(here), batch.observation, b) - goal)
    np.testing.assert_allclose(error, wanted, rtol=2e-3, atol=2e-3)
    squared = 0.5 * np.square(np.array(wanted)) * np.asarray(batch.weight)
    np.testing.assert_allclose(total, squared.sum() / 7.0, rtol=3e-3)
    dead = np.asarray(batch.mask) * (t.acts[0] == VALUE_ONLY).all(axis=-1)
    ahead = np.asarray(batch.mask * batch.discount) > 0
    assert dead.sum() > 0 and (ahead & ~np.asarray(batch.next_observation["acts"]).any(axis=-1)).any()


ENDS, DIES = 0.25, 0.5


def life_and_after(num_rows: int, num_envs: int, rng: np.random.Generator):
    """Return rows of a team of two seats that act at random, die together, and are paid until their side has lost.

    What a seat observes: 0 while it lives, 1 when it is dead. A living team is paid its sum of actions, a dead one 1 a step.
    """
    lives, first, over = np.ones(num_envs, bool), np.ones(num_envs, bool), np.zeros(num_envs, bool)
    rows = []
    for _ in range(num_rows):
        action = rng.integers(2, size=(num_envs, 2)) * lives[:, None]
        ends = ~lives & ~over & (rng.random(num_envs) < ENDS)
        rows.append((lives, first, action, np.where(lives, action.sum(axis=1), ~over), ends))
        dies = rng.random(num_envs) < DIES
        lives, first, over = np.where(over, True, lives & ~dies), over, ends  # after `ends`: a last observation
    return [np.stack(leaf) for leaf in zip(*rows, strict=True)]


def life_values() -> tuple[np.ndarray, float]:
    """Return the exact values of a living team's sums of actions, and of a dead team."""
    dead = 1.0 / (1.0 - GAMMA * (1.0 - ENDS))
    alive = (1.0 + GAMMA * DIES * dead) / (1.0 - GAMMA * (1.0 - DIES))
    return np.arange(3) + GAMMA * (DIES * dead + (1.0 - DIES) * alive), dead


@pytest.mark.parametrize("window", [1, slow(3)])
def test_rewards_after_the_death_of_all_seats_have_exact_values(window: int) -> None:
    """A window that reaches the team's death continues to the values of its dead rows, which are learned as well."""
    spec = EnvSpec(ArraySpec((2, 1), "float32"), Discrete(2), "game", num_agents=2)
    team = factoring.make_team(VDNConfig(**FAST), spec, lambda *_: None, summing)
    rng = np.random.default_rng(0)
    lives, first, action, reward, ends = life_and_after(400, 64, rng)
    rows = np.arange(400 - window)[None] + np.arange(window + 1)[:, None]
    lives, first, action, reward, ends = (
        x[rows].reshape(window + 1, -1, *x.shape[2:]) for x in (lives, first, action, reward, ends)
    )
    both = lambda x: np.repeat(x[..., None], 2, axis=-1)  # noqa: E731
    t = random_trajectory(spec, rng, num_rows=window, num_envs=1, extras=(), core=())._replace(
        observation=both(~lives)[..., None].astype(np.float32),
        is_first=first,
        action=action.astype(np.int32),
        reward=both(reward).astype(np.float32),
        discount=both(~ends).astype(np.float32),
        acts=np.where(both(lives), ACTING, VALUE_ONLY).astype(np.uint8),
        log_prob=both(reward),
        version=both(reward),
    )
    batch = jax.tree.map(np.asarray, compiled(lambda t: off.transition(factoring.as_team(team, t), GAMMA))(t))
    used, dead = batch.mask > 0, lambda seen: seen["seats"]["observation"][..., 0, 0].astype(int)
    place = np.where(dead(batch.observation) > 0, 3, batch.action.sum(axis=-1))[used]
    values = np.zeros(4)  # of a living team's sums of actions, and of a dead team
    for _ in range(60):
        ahead = np.array([values[:3] @ (0.25, 0.5, 0.25), values[3]])[dead(batch.next_observation)]
        target = (batch.reward + batch.discount * ahead)[used]
        values = np.bincount(place, target, minlength=4) / np.maximum(np.bincount(place, minlength=4), 1)
    alive, after = life_values()
    np.testing.assert_allclose(values, [*alive, after], atol=0.05)


@pytest.mark.slow
def test_recurrent_targets_come_from_the_target_mixer() -> None:
    """Another target mixer changes the errors of rows that bootstrap, and only theirs."""
    agent = AGENTS["recurrent qmix"](SPECS["masked"])
    t = rows_of(agent, SPECS["masked"], num_rows=6)
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    learned = state.learner_params
    mixer = jax.tree.map(lambda w: 2.0 * w + 0.1, learned.target.mixer)
    other = state._replace(learner_params=learned._replace(target=learned.target._replace(mixer=mixer)))
    for discount, same in ((np.zeros_like(t.discount), True), (np.ones_like(t.discount), False)):
        one, two = (update(s, t._replace(discount=discount), jax.random.key(1))[1].priorities for s in (state, other))
        assert (np.asarray(one) > 0).any()
        assert np.array_equal(one, two) == same


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vdn", nightly("recurrent vdn")])
def test_team_with_one_acting_seat_learns_like_a_single_agent(name: str) -> None:
    """DQN and R2D2 train the seat alone. The team's reward is a mean, so the seat's own reward is N times as large."""
    spec, recurrent = SPECS["masked"], name != "vdn"
    options = {**(SLOW_MEMORY if recurrent else FAST), "normalize_observations": True}
    options |= {"rescale_values": True} if recurrent else {}
    team = AGENTS[name](spec, **options, agent_ids=False)
    make, configure = (r2d2, RecurrentVDNConfig) if recurrent else (dqn_file.dqn, VDNConfig)
    alone = make(configure(**options), spec)
    t = rows_of(team, spec, num_rows=6, weighted=True)
    acts = np.where(np.arange(N) == 0, t.acts > 0, False).astype(np.uint8)
    own = np.where(np.arange(N) == 0, t.reward, 0.0).astype(np.float32)
    t = t._replace(acts=acts, discount=np.repeat(t.discount[..., :1], N, axis=-1))
    ends = [
        jax.jit(agent.update)(agent.init(jax.random.key(0)), t._replace(reward=reward), jax.random.key(1))
        for agent, reward in ((team, N * own), (alone, own))
    ]
    (one, found), (other, wanted) = ends
    assert (np.asarray(found.priorities) > 0).sum() > 3 and found.priorities.shape == (8,)
    np.testing.assert_allclose(found.priorities, wanted.priorities, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), one.params, other.params)


@pytest.mark.parametrize("name", ["qmix", nightly("recurrent qmix")])
def test_data_of_waiting_seats_changes_no_bit(name: str) -> None:
    spec = SPECS["masked"]
    agent = AGENTS[name](spec, normalize_observations=True)
    t = rows_of(agent, spec, num_rows=6)
    waits, unused = t.acts == 0, t.acts != 1
    absent = np.broadcast_to(waits.all(axis=0), waits.shape) if agent.store_core else waits
    see = np.where(absent[..., None], np.nan, t.observation["see"])
    mask = np.where(absent[..., None], False, t.observation["action_mask"])
    bad = t._replace(
        observation={"see": see.astype(np.float32), "action_mask": mask},
        action=np.where(unused, 0, t.action),
        log_prob=np.where(unused, np.nan, t.log_prob).astype(np.float32),
    )
    assert absent.any() and (t.acts == 2).any()
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    ends = [update(state, rows, jax.random.key(1)) for rows in (t, bad)]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    for path, leaf in named_leaves((ends[1][0].params, ends[1][0].learner_params)):
        assert np.isfinite(leaf).all(), path


def test_published_params_exclude_the_mixer() -> None:
    agent = AGENTS["qmix"](SPECS["with-state"])
    params = jax.eval_shape(agent.init, jax.random.key(0)).params
    inputs = {leaf.shape[0] for leaf in jax.tree.leaves(params.weights.network["torso"]) if len(leaf.shape) == 2}
    assert inputs == {4 + N} and "mixer" not in str(jax.tree.structure(params))


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("vdn", "plain"),
        ("qmix", "with-state"),
        nightly("qmix", "masked"),
        nightly("recurrent vdn", "masked"),
        nightly("recurrent qmix", "plain"),
    ],
)
@pytest.mark.slow
def test_agents_pass_check_agent(name: str, spec: str) -> None:
    agent = AGENTS[name](SPECS[spec], normalize_observations=True)
    report = check_agent(agent, SPECS[spec], num_rows=6, num_envs=8)
    assert "update_ignores_masked_rows" in report.checks


# -- learning ---------------------------------------------------------------------------------------------------------


def two_step(agent, act, update, seed: int, num_updates: int = 400) -> float:
    """Return the return of greedy play in the two-step game after learning from random play."""
    game, spec = two_step_game(seed)
    rows, rng, step = [], np.random.default_rng(seed), game.reset()
    for _ in range(40):
        action = rng.integers(2, size=(64, 2)).astype(np.int32)
        before, step = step, game.step({"team": action})
        rows.append((before, action, step))
    state = jax.jit(agent.init)(jax.random.key(seed))
    for number in range(num_updates):
        state, _ = update(state, windows_of(rows, spec, rng), jax.random.key(number))
    earned, step = 0.0, game.reset()
    for _ in range(2):
        reply, _ = act(state.params, jax.random.key(0), step.observation["team"], step.is_first, (), greedy=True)
        step = game.step({"team": np.asarray(reply.action)})
        earned += float(step.reward[0, 0])
    return earned


def two_step_game(seed: int):
    game = make_game(EnvConfig("matrix:two_step"), 64, seed, groups={"team": ("player_0", "player_1")})
    return game, spec_for_one(game.spec)


def windows_of(rows, spec: EnvSpec, rng: np.random.Generator):
    """Return 64 windows of one row."""
    at = [(rows[t], b) for b, t in enumerate(rng.integers(len(rows), size=64))]
    base = random_trajectory(spec, rng, num_rows=1, num_envs=64, extras=(), core=())

    def pair(take):
        return np.stack([np.stack([take(row[side])[b] for row, b in at]) for side in (0, 2)])

    def once(take):
        return np.stack([np.stack([take(row)[b] for row, b in at])] * 2)

    return base._replace(
        observation=pair(lambda step: step.observation["team"]),
        is_first=pair(lambda step: step.is_first),
        acts=pair(lambda step: step.acts),
        state=pair(lambda step: step.state),
        action=once(lambda row: row[1]),
        reward=once(lambda row: row[2].reward),
        discount=once(lambda row: row[2].discount),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "best"), [nightly("vdn", 7.0), ("qmix", 8.0)])
def test_qmix_solves_the_two_step_game_and_vdn_does_not(name: str, best: float) -> None:
    """Learning from random play, as in the paper: the sum of utilities estimates 6.25 where the team could earn 8."""
    options = {"learning_rate": 3e-3, "gamma": 0.99, "target_period": 20, "loss": "mse", "agent_ids": True}
    agent = AGENTS[name](two_step_game(0)[1], **options, network=NetworkConfig(hidden=(32,), activation="relu"))
    act, update = jax.jit(agent.act, static_argnames="greedy"), jax.jit(agent.update)
    assert [two_step(agent, act, update, seed) for seed in range(5)] == [best] * 5


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="game has one agent; VDN and QMIX are for teams"):
        AGENTS["vdn"](dataclasses.replace(PLAIN, num_agents=None))
    with pytest.raises(TypeError, match="VDNConfig has no field 'num_atoms'"):
        VDNConfig(num_atoms=51)
    with pytest.raises(ConfigError, match="mixer_embedding is 0; it must be at least 1"):
        QMIXConfig(mixer_embedding=0)
    with pytest.raises(ConfigError, match="core='gru'"):
        QMIXConfig(network=RECURRENT)
