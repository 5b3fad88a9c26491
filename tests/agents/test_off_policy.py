"""The formulas of the off-policy algorithms against slow oracles in numpy, and which state their updates change."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import off_policy as off
from jsrl.agents import sac as sac_file
from jsrl.agents.actor_critic import one_agent
from jsrl.agents.ddpg import DDPGConfig, ddpg
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.sac import SACConfig, sac
from jsrl.agents.td3 import TD3Config, td3
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import critic_network
from jsrl.types import VALUE_ONLY, ArraySpec, Continuous, Discrete, EnvSpec, MultiDiscrete, to_environment
from tests.agents.compiled import compiled
from tests.marks import nightly, slow

GAMMA = 0.9
NETWORK = NetworkConfig(hidden=(8,), activation="relu")
LINE = ArraySpec((3,), "float32")
REAL = EnvSpec(LINE, Continuous((-2.0, 0.0), (2.0, 1.0), "rescale"), "real")
CHOICE = EnvSpec({"x": LINE, "action_mask": ArraySpec((4,), "uint8")}, Discrete(4), "choice")
transition = compiled(lambda t: off.transition(t, GAMMA))
MAKERS = {"sac": (sac, SACConfig), "td3": (td3, TD3Config), "ddpg": (ddpg, DDPGConfig)}


def draw(spec, seed=0, *, num_rows=5, num_envs=64, weighted=False, waiting=0.05):
    """Return windows with every kind of row at random positions."""
    rng = np.random.default_rng(seed)
    sizes = {"num_rows": num_rows, "num_envs": num_envs, "weighted": weighted}
    t = random_trajectory(spec, rng, **sizes, extras=(), core=())
    is_first = rng.random(t.is_first.shape) < 0.2
    discount = np.where(np.concatenate([is_first[2:], is_first[:2]]) & (rng.random(is_first.shape) < 0.5), 0.0, 1.0)
    acts = rng.choice(3, t.acts.shape, p=(waiting, 0.85 - waiting, 0.15)).astype(np.uint8)
    return t._replace(is_first=is_first, discount=discount.astype(np.float32), acts=acts)


def slow_margin(t):
    """Return the longest wait, in rows, of an agent's row for its next row or the end; at most 2 or a quarter."""
    slowest, num_rows = 1, t.is_first.shape[0] - 1
    for column in range(t.is_first.shape[1]):
        for start in range(num_rows):
            row = start
            while t.acts[start, column] and not t.is_first[row + 1, column]:
                row += 1
                ended = t.discount[row - 1, column] == 0
                if ended or t.acts[row, column] or row == num_rows:
                    slowest = max(slowest, row - start + (not ended and not t.acts[row, column]))
                    break
    return min(slowest, max(2, num_rows // 4))


def slow_transition(t, column, margin):
    """Loop over one window: (reward, discount, the agent's last row, which bootstraps; 0: masked)."""
    reward, scale, row, found = 0.0, 1.0, 0, (0.0, 1.0, 0)
    num_rows = t.is_first.shape[0] - 1
    if not t.acts[0, column]:
        return found
    while row < num_rows and not t.is_first[row + 1, column]:
        reward += scale * t.reward[row, column]
        scale *= t.discount[row, column] * (GAMMA if t.acts[row + 1, column] else 1.0)
        row += 1
        if scale == 0 or t.acts[row, column]:
            found = reward, scale, row
        if scale == 0 or (t.acts[row, column] and row + margin > num_rows):
            break
    return found


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_transitions_equal_a_loop_over_each_window(num_rows):
    t = draw(REAL, num_rows=num_rows, num_envs=200, weighted=True)
    got = transition(t)
    ends, margin = set(), slow_margin(t)
    assert margin == 2
    for column in range(200):
        reward, discount, row = slow_transition(t, column, margin)
        np.testing.assert_array_equal(got.observation[column], t.observation[0, column])
        assert got.mask[column] == (row > 0)
        assert got.acting[column] == (row > 0 and t.acts[0, column] == 1)
        np.testing.assert_allclose(got.weight[column], (row > 0) * t.sampling[column])
        ends.add(row)
        if row == 0:
            assert got.reward[column] == 0
            continue
        np.testing.assert_allclose(got.reward[column], reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got.discount[column], discount, rtol=1e-6)
        if discount > 0:
            np.testing.assert_array_equal(got.next_observation[column], t.observation[row, column])
            assert got.next_acting[column] == (t.acts[row, column] == 1)
    assert ends == set(range(num_rows + 1))  # every kind of ending occurred


def test_windows_too_short_for_the_next_row_train_nothing():
    """In a turn game, a window of one row would train only on rows in which the game ends at once."""
    t = draw(REAL, num_rows=1, num_envs=200, waiting=0.4)
    assert not np.asarray(transition(t).mask).any()
    assert np.asarray(transition(draw(REAL, num_rows=1, num_envs=200, waiting=0.0)).mask).any()


def test_loss_weights_equal_the_mask_without_importance_weights():
    got = transition(draw(REAL))
    np.testing.assert_array_equal(got.weight, got.mask)


@pytest.mark.parametrize("transform", ["clip", "rescale", "squash"])
def test_units_are_shares_of_the_bounds_for_every_transform(transform):
    spec = EnvSpec(LINE, Continuous((-2.0, 0.0), (2.0, 1.0), transform))
    box, unit = off.action_box(spec), np.linspace(-0.99, 0.99, 14, dtype=np.float32).reshape(7, 2)
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 1.0])
    played = to_environment(spec.action, np.asarray(box.from_unit(unit)))
    np.testing.assert_allclose(played, low + (unit + 1) / 2 * (high - low), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(box.to_unit(box.from_unit(unit)), unit, rtol=1e-4, atol=1e-5)
    raw = np.arctanh(unit)
    np.testing.assert_allclose(box.to_unit(box.from_raw(raw)), unit, rtol=1e-4, atol=1e-5)
    assert np.isfinite(box.from_unit(np.ones((1, 2), np.float32))).all()


@pytest.mark.parametrize(
    ("make", "action", "message"),
    [
        (sac, Continuous((-np.inf,), (1.0,)), "unbounded"),
        (sac, Continuous((-3.4e38,), (3.4e38,)), "unbounded"),
        (sac, MultiDiscrete((2, 3)), "expected Continuous.*ppo or impala"),
        (dqn, MultiDiscrete((2, 3)), "need Discrete.*ppo or impala"),
        (td3, Discrete(3), "expected Continuous.*dqn or sac"),
        (ddpg, Discrete(3), "expected Continuous.*dqn or sac"),
    ],
)
def test_unplayable_actions_are_refused(make, action, message):
    config = {sac: SACConfig, td3: TD3Config, ddpg: DDPGConfig, dqn: partial(DQNConfig, total_updates=10)}[make]
    with pytest.raises(ConfigError, match=message):
        make(config(), EnvSpec(LINE, action))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (SACConfig, {"learning_rate": 0.0}),
        (SACConfig, {"tau": 0.0}),
        (SACConfig, {"temperature": 0.0}),
        (SACConfig, {"policy_delay": 0}),
        (TD3Config, {"num_critics": 0}),
        (SACConfig, {"temperature": float("inf")}),
        (TD3Config, {"target_noise": -0.1}),
        (DDPGConfig, {"exploration_noise": float("inf")}),
        (DDPGConfig, {"critic_learning_rate": -1.0}),
    ],
)
def test_invalid_configs_are_refused(config, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        config(**options)


def test_recurrent_networks_are_refused_by_name():
    with pytest.raises(ConfigError, match="r2d2"):
        sac(SACConfig(network=NetworkConfig(core="gru")), REAL)


def mean_of(mask, count):
    """Return the share of these columns in a mean over `count` columns of all devices."""
    return lambda x: jnp.sum(x * mask) / count


def test_chunked_gradients_equal_the_full_batch(monkeypatch):
    rng = np.random.default_rng(0)
    weights = {"w": jnp.asarray(rng.normal(size=3), jnp.float32)}
    columns = rng.normal(size=(12, 3)).astype(np.float32)

    def loss(weights, x, mean):
        error = jnp.tanh(x @ weights["w"]) - 0.3
        total = mean(jnp.square(error))
        return total, ({"loss": total}, error)

    mask = (np.arange(12) % 5 > 0).astype(np.float32)
    whole = off.gradient(loss, weights, columns, mask)
    monkeypatch.setattr(off, "CHUNK", 4)
    chunked = off.gradient(loss, weights, columns, mask)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), whole, chunked)
    assert chunked[2].shape == (12,)


def test_targets_move_by_tau_every_period():
    target, online = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    for updates, expected in ((0, 0.0), (1, 0.0), (2, 0.25), (3, 0.0), (5, 0.25)):
        moved = off.move_targets(target, online, tau=0.25, period=3, updates=jnp.asarray(updates))
        np.testing.assert_allclose(moved["w"], expected)
    np.testing.assert_allclose(off.move_targets(target, online, tau=0.1, period=1, updates=0)["w"], 0.1, rtol=1e-6)
    hard = off.move_targets(target, {"w": jnp.full(2, 0.7)}, tau=1.0, period=2, updates=jnp.asarray(1))
    np.testing.assert_array_equal(hard["w"], np.full(2, 0.7, np.float32))  # bit for bit


# -- losses -----------------------------------------------------------------------------------------------------------


def forward(weights, inputs):
    """One critic or policy of one hidden layer, in numpy."""
    (hidden,), head = weights["MLP_0"].values(), weights["head"]
    x = np.maximum(inputs @ hidden["kernel"] + hidden["bias"], 0.0)
    (out,) = head.values()
    return x @ out["kernel"] + out["bias"]


def member(weights, e):
    return jax.tree.map(lambda w: np.asarray(w[e], np.float64), weights)


@pytest.mark.slow
def test_soft_critic_loss_equals_distrax_and_numpy():
    distrax = pytest.importorskip("distrax")
    config = SACConfig(network=NETWORK, gamma=GAMMA, temperature=0.3)
    parts, _ = sac_file.continuous_parts(config, REAL)
    policy = compiled(parts.policy.init)(jax.random.key(1))
    online, target = map(compiled(parts.critics.init), (jax.random.key(2), jax.random.key(3)))
    policy = jax.tree.map(lambda w: 20.0 * w, policy)  # far from 0, where squashing matters
    t = draw(REAL, num_rows=3, num_envs=16, weighted=True)
    noise = np.random.default_rng(4).normal(size=(16, 2)).astype(np.float32)
    batch, fixed = transition(t), (target, policy, np.log(np.float32(0.3)))
    losses = compiled(
        lambda fixed: sac_file.sac_critic_loss(parts, online, fixed, (batch, noise), mean_of(batch.mask, 7.0))
    )
    loss, (metrics, error) = losses(fixed)

    outputs = forward(jax.tree.map(lambda w: np.asarray(w, np.float64), policy), np.asarray(batch.next_observation))
    mean, log_std = outputs[:, :2], np.clip(outputs[:, 2:], -20, 2)
    raw = mean + np.exp(log_std) * np.asarray(noise)

    def oracle(mean, log_std, raw):
        normal = distrax.Independent(distrax.Normal(mean, jnp.exp(log_std)), 1)
        return normal.log_prob(raw) - distrax.Block(distrax.Tanh(), 1).forward_log_det_jacobian(raw)

    log_prob = compiled(oracle)(mean, log_std, raw)
    unit = np.where(np.asarray(batch.next_acting)[:, None] > 0, np.tanh(raw), 0.0)  # value-only: the stored action 0
    joint = np.concatenate([batch.next_observation, unit], -1)
    least = np.minimum(*(forward(member(target, e), joint)[:, 0] for e in range(2)))
    bonus = 0.3 * np.asarray(log_prob) * np.asarray(batch.next_acting)  # none where the next row is value-only
    assert 0 < np.asarray(batch.next_acting).sum() < 16
    goal = np.asarray(batch.reward) + np.asarray(batch.discount) * (least - bonus)
    joint = np.concatenate([batch.observation, np.clip(batch.action, -1, 1)], -1)
    value = np.stack([forward(member(online, e), joint)[:, 0] for e in range(2)])
    np.testing.assert_allclose(error, np.abs(value - goal).mean(0), rtol=2e-4, atol=1e-4)
    np.testing.assert_allclose(loss, (0.5 * (value - goal) ** 2 * batch.weight).sum() / 7.0, rtol=1e-3)
    np.testing.assert_allclose(metrics["value_mean"], (value.mean(0) * batch.mask).sum() / 7.0, rtol=1e-3, atol=1e-5)

    still = compiled(
        jax.grad(lambda f: sac_file.sac_critic_loss(parts, online, f, (batch, noise), mean_of(batch.mask, 7.0))[0])
    )(fixed)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(still))  # no gradient flows into the targets


@pytest.mark.slow
def test_discrete_soft_values_are_expectations_over_allowed_actions():
    parts, _ = sac_file.discrete_parts(SACConfig(network=NETWORK), CHOICE)
    policy, critics = compiled(parts.policy.init)(jax.random.key(0)), compiled(parts.critics.init)(jax.random.key(1))
    policy, critics = jax.tree.map(lambda w: 30.0 * w, (policy, critics))
    rng = np.random.default_rng(0)
    mask = np.array([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1]], np.uint8)
    observation = {"x": rng.normal(size=(3, 3)).astype(np.float32), "action_mask": mask}
    evaluate = compiled(lambda acting: parts.evaluate(policy, critics, observation, None, acting))
    value, log_prob = evaluate(None)
    logits = np.asarray(parts.policy.apply(policy, observation), np.float64)
    p = np.where(mask, np.exp(logits), 0.0)
    p /= p.sum(-1, keepdims=True)
    every = np.asarray(parts.critics.apply(critics, observation)).min(0)
    np.testing.assert_allclose(value, (p * every).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(log_prob, (p * np.log(np.where(p > 0, p, 1.0))).sum(-1), rtol=1e-4, atol=1e-5)
    assert log_prob[1] == 0  # only one action: no entropy
    acting = np.array([1.0, 0.0, 0.0], np.float32)
    at_zero, _ = evaluate(acting)
    np.testing.assert_allclose(at_zero, np.where(acting > 0, value, every[:, 0]), rtol=1e-6)  # value-only: action 0
    action = np.array([2, 1, 0])
    taken = parts.predict(critics, observation, action)
    expected = np.asarray(parts.critics.apply(critics, observation))[:, np.arange(3), action]
    np.testing.assert_array_equal(taken, expected)


@pytest.mark.slow
def test_td3_targets_use_the_smoothed_action_of_the_target_policy():
    from jsrl.agents import td3 as td3_file
    from jsrl.networks.off_policy import critic_network, policy_network

    config = TD3Config(network=NETWORK, target_noise=0.5, target_noise_clip=0.3)
    nets = policy_network(NETWORK, REAL, deterministic=True), critic_network(NETWORK, REAL, num_critics=2)
    parts = td3_file.Components(config, *nets, off.action_box(REAL), None)
    policy = jax.tree.map(lambda w: 50.0 * w, compiled(nets[0].init)(jax.random.key(1)))
    online, target = map(compiled(nets[1].init), (jax.random.key(2), jax.random.key(3)))
    batch = transition(draw(REAL, num_envs=16))
    noise = np.random.default_rng(4).normal(size=(16, 2)).astype(np.float32)
    losses = compiled(
        lambda fixed: td3_file.critic_loss(parts, online, fixed, (batch, noise), mean_of(batch.mask, 5.0))
    )
    loss, (_, error) = losses((target, policy))

    outputs = np.tanh(forward(jax.tree.map(np.asarray, policy), np.asarray(batch.next_observation)))
    action = np.clip(outputs + np.clip(0.5 * np.asarray(noise), -0.3, 0.3), -1, 1)
    assert (np.abs(action) == 1).any()  # gradients were clipped
    acting = np.asarray(batch.next_acting)
    assert 0 < acting.sum() < 16
    action = np.where(acting[:, None] > 0, action, 0.0)  # value-only: the stored action 0
    joint = np.concatenate([batch.next_observation, action], -1)
    least = np.minimum(*(forward(member(target, e), joint)[:, 0] for e in range(2)))
    goal = np.asarray(batch.reward) + np.asarray(batch.discount) * least
    joint = np.concatenate([batch.observation, np.clip(batch.action, -1, 1)], -1)
    value = np.stack([forward(member(online, e), joint)[:, 0] for e in range(2)])
    np.testing.assert_allclose(error, np.abs(value - goal).mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(loss, (0.5 * (value - goal) ** 2 * batch.weight).sum() / 5.0, rtol=1e-3)
    still = compiled(
        jax.grad(lambda f: td3_file.critic_loss(parts, online, f, (batch, noise), mean_of(batch.mask, 5.0))[0])
    )((target, policy))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(still))


@pytest.mark.parametrize(
    ("name", "transform"),
    [slow("sac", "clip"), slow("sac", "squash"), slow("sac", "discrete"), slow("td3", "clip"), ("ddpg", "rescale")],
)
def test_dead_seats_bootstrap_with_the_action_that_is_trained_there(name, transform):
    """Rows of dead seats train only the value of the stored action 0: there is no error if that explains the rewards."""
    action = Discrete(3) if transform == "discrete" else Continuous((-2.0,), (1.0,), transform)
    spec = EnvSpec(ArraySpec((2, 3), "float32"), action, num_agents=2)
    make, config = MAKERS[name]
    options = {"network": NETWORK, "gamma": GAMMA} | ({} if name == "ddpg" else {"num_critics": 1})
    agent = make(config(**options), spec)
    state, t = compiled(agent.init)(jax.random.key(0)), dead_seats(spec)
    critics = critic_network(NETWORK, one_agent(spec), num_critics=1)
    stored_0 = np.full((2, 16, 2, 1), 1.0 / 3.0 if transform == "clip" else 0.0, np.float32)  # as a share of the bounds
    inputs = (t.observation,) if transform == "discrete" else (t.observation, stored_0)
    here, ahead = compiled(critics.apply)(state.learner_params[0], *inputs).reshape(2, 16, 2, -1)[..., 0]
    t.reward[0] = here - GAMMA * ahead
    for update in (agent.update, agent.split.critic):
        priorities = compiled(update)(state, t, jax.random.key(1))[1].priorities
        np.testing.assert_allclose(priorities, 0.0, atol=1e-5)


def dead_seats(spec, num_rows=1, core=()):
    """Return windows [T+1, 16, N] in which all seats are dead and their teams play on."""
    sizes = {"num_rows": num_rows, "num_envs": 16, "extras": (), "core": core}
    t = random_trajectory(spec, np.random.default_rng(0), **sizes)
    return t._replace(
        acts=np.full_like(t.acts, VALUE_ONLY),
        is_first=np.zeros_like(t.is_first),
        discount=np.ones_like(t.discount),
        reward=np.zeros_like(t.reward),
    )


# -- updates ----------------------------------------------------------------------------------------------------------


def changed(a, b):
    return any((np.asarray(x) != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


@pytest.mark.slow
def test_td3_moves_policy_and_targets_every_second_update():
    agent, t = td3(TD3Config(network=NETWORK, policy_delay=2), REAL), draw(REAL, num_rows=1)
    update, state, moved = jax.jit(agent.update), jax.jit(agent.init)(jax.random.key(0)), []
    for step in range(4):
        new, _ = update(state, t, jax.random.key(step))
        parts = (lambda s: s.params.weights.network), (lambda s: s.learner_params[1:]), (lambda s: s.learner_params[0])
        moved.append([changed(part(state), part(new)) for part in parts])
        state = new
    between = [False, False, True]
    assert moved == [[True, True, True], between, [True, True, True], between]
    assert state.params.weights.updates == 4


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True])
def test_sac_moves_its_policy_every_second_update(split):
    agent, t = sac(SACConfig(network=NETWORK, policy_delay=2), REAL), draw(REAL, num_rows=1)
    update, state, moved = jax.jit(agent.split.policy if split else agent.update), agent.init(jax.random.key(0)), []
    for step in range(3):
        new, _ = update(state, t, jax.random.key(step))
        parts = (lambda s: s.params.weights.network), (lambda s: s.learner_params), (lambda s: s.extra.log_temperature)
        moved.append([changed(part(state), part(new)) for part in parts])
        state = new
    assert moved == [[True, not split, True], [False, not split, False], [True, not split, True]]


@pytest.mark.slow
def test_ddpg_has_one_critic_no_delay_and_no_smoothing():
    agent, t = ddpg(DDPGConfig(network=NETWORK), REAL), draw(REAL, num_rows=1)
    update, state = jax.jit(agent.update), jax.jit(agent.init)(jax.random.key(0))
    assert all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(state.learner_params.critics))
    for step in range(2):
        new, _ = update(state, t, jax.random.key(step))
        other, _ = update(state, t, jax.random.key(9))
        jax.tree.map(np.testing.assert_array_equal, new, other)  # it has no randomness
        assert changed(state.params.weights.network, new.params.weights.network)
        assert changed(state.learner_params.target_policy, new.learner_params.target_policy)
        state = new


def near(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", nightly("td3"), nightly("ddpg")])
def test_split_policy_and_critic_updates_equal_one_update(name):
    """Strictly alternating, with everything exchanged, the two updates equal the fused one."""
    make, config = MAKERS[name]
    options = {
        "network": NETWORK,
        "gamma": GAMMA,
        "normalize_observations": True,
        "learning_rate": 0.1,
    }
    if name != "ddpg":
        options["policy_delay"] = 1
    if name != "sac":  # targets follow the policy that the critic's side had: keep them fixed
        options["tau"] = 1e-7
    agent, t = make(config(**options), REAL), draw(REAL, num_rows=2, num_envs=16, weighted=True)
    fused, split = jax.jit(agent.update), agent.split
    critic, policy = jax.jit(split.critic), jax.jit(split.policy)
    whole = jax.jit(agent.init)(jax.random.key(0))
    critics = players = whole
    for step in range(3):
        key = jax.random.key(step)
        whole, output = fused(whole, t, key)
        before = critics.params, critics.extra
        critics, apart = critic(critics, t, key)
        jax.tree.map(np.testing.assert_array_equal, before, (critics.params, critics.extra))  # the other side's
        np.testing.assert_allclose(apart.priorities, output.priorities, rtol=1e-4, atol=1e-5)
        players = split.take_critic(players, split.publish_critic(critics))
        kept = players.learner_params
        players, metrics = policy(players, t, key)
        jax.tree.map(np.testing.assert_array_equal, kept, players.learner_params)
        critics = split.take_policy(critics, split.publish_policy(players))
        jax.tree.map(near, players.params, whole.params)
        online = split.publish_critic(critics), whole.learner_params[0]
        jax.tree.map(near, *online)
    assert {**apart.metrics, **metrics.metrics}.keys() == output.metrics.keys()
    jax.tree.map(near, critics.learner_params[1:], whole.learner_params[1:])  # targets


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_weights_priorities_and_masks_reach_the_update(name):
    make, config = MAKERS[name]
    agent = make(config(network=NETWORK, gamma=GAMMA), REAL)
    t = draw(REAL, num_rows=2, num_envs=16)
    t = t._replace(sampling=np.where(np.arange(16) < 4, 0.0, 0.5).astype(np.float32))
    update, state = jax.jit(agent.update), jax.jit(agent.init)(jax.random.key(0))
    one, output = update(state, t, jax.random.key(1))
    mask = np.asarray(transition(t).mask)
    assert output.priorities.shape == (16,)
    assert (np.asarray(output.priorities)[mask == 0] == 0).all() and (
        np.asarray(output.priorities)[mask == 1] > 0
    ).all()
    reward = t.reward + 5.0 * (np.arange(16) < 4)
    two, other = update(state, t._replace(reward=reward.astype(np.float32)), jax.random.key(1))
    assert not changed(one.learner_params, two.learner_params)  # columns of weight 0 do not train the critics
    assert (np.asarray(other.priorities) != np.asarray(output.priorities)).any()  # but have a priority
    full, _ = update(state, t._replace(sampling=()), jax.random.key(1))
    assert changed(one.learner_params, full.learner_params)


def after_an_update(params):
    return params._replace(weights=params.weights._replace(updates=jnp.asarray(1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_actions_are_random_until_the_first_update(name):
    make, config = MAKERS[name]
    agent = make(config(network=NETWORK), REAL)
    params = jax.jit(agent.init)(jax.random.key(0)).params
    observation, is_first = np.zeros((2000, 3), np.float32), np.zeros(2000, bool)
    output, _ = jax.jit(agent.act)(params, jax.random.key(1), observation, is_first, ())
    action = np.asarray(output.action)
    counts, _ = np.histogram(action[:, 0], bins=10, range=(-1, 1))
    assert abs(counts - 200).max() < 75  # uniform: a standard deviation is 13
    learned = after_an_update(params)
    output, _ = jax.jit(agent.act)(learned, jax.random.key(1), observation, is_first, ())
    assert abs(np.asarray(output.action).mean()) < 0.1
    if name != "sac":
        np.testing.assert_allclose(np.asarray(output.action).std(), 0.1, rtol=0.1)
    greedy = jax.jit(lambda p, k: agent.act(p, k, observation, is_first, (), greedy=True)[0].action)
    np.testing.assert_array_equal(greedy(params, jax.random.key(1)), greedy(learned, jax.random.key(2)))
    assert np.asarray(greedy(params, jax.random.key(1))).std() < 1e-6


def test_noise_of_td3_may_be_an_ornstein_uhlenbeck_process():
    """Noise of several steps, an episode's end among them, against Stable-Baselines3's recursion with the same draws."""
    config = TD3Config(network=NETWORK, noise_process="ou", exploration_noise=0.5)
    agent = td3(config, REAL)
    params, core = after_an_update(agent.init(jax.random.key(0)).params), agent.initial_core(3)
    observation, noise = jnp.zeros((3, *REAL.observation.shape)), np.zeros((3, len(REAL.action.low)))
    act, none = compiled(agent.act), jnp.zeros(3, bool)
    greedy = jax.jit(partial(agent.act, greedy=True))(params, jax.random.key(0), observation, none, core)[0].action
    for t in range(40):
        first = jnp.asarray([t == 0, t in (0, 20), t == 0])
        key = jax.random.key(t)
        output, core = act(params, key, observation, first, core)
        noise[np.asarray(first)] = 0.0
        noise += -0.15 * noise * 0.01 + 0.5 * np.sqrt(0.01) * np.asarray(jax.random.normal(key, noise.shape))
        np.testing.assert_allclose(output.action, np.clip(greedy + noise, -1.0, 1.0), rtol=1e-4, atol=1e-5)
    assert not jax.tree.leaves(td3(dataclasses.replace(config, noise_process="normal"), REAL).initial_core(3))
