"""The formulas of Q-learning against rlax and slow oracles in numpy, and which state the updates of DQN and R2D2 change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import action_values as av
from jsrl.agents import dqn as dqn_file
from jsrl.agents import off_policy as off
from jsrl.agents import r2d2 as r2d2_file
from jsrl.agents.actor_critic import one_agent
from jsrl.agents.devices import masked_mean
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.r2d2 import R2D2Config, r2d2
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.rows import row_margin, row_masks
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig
from jsrl.networks.off_policy import ValuesHead, value_network
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec
from tests.agents.compiled import compiled
from tests.agents.test_off_policy import dead_seats
from tests.marks import slow

GAMMA = 0.9
KEY = jax.random.key(0)
NETWORK = NetworkConfig(hidden=(8,), activation="relu")
RECURRENT = NetworkConfig(hidden=(8,), activation="relu", core="gru", core_size=4)
SPEC = EnvSpec({"x": ArraySpec((3,), "float32"), "action_mask": ArraySpec((4,), "uint8")}, Discrete(4), "choice")


@pytest.fixture(scope="module")
def rlax():
    """Import it here: it takes a second, and each test process collects every file."""
    return pytest.importorskip("rlax")


def draw(num_rows=3, num_envs=16, core=(), seed=0):
    """Return windows with endings, waiting rows and action masks at random rows."""
    rng = np.random.default_rng(seed)
    t = random_trajectory(SPEC, rng, num_rows=num_rows, num_envs=num_envs, extras=(), core=core, weighted=True)
    is_first = rng.random(t.is_first.shape) < 0.15
    discount = np.where(np.roll(is_first, -2, 0) & (rng.random(is_first.shape) < 0.5), 0.0, 1.0).astype(np.float32)
    mask = (rng.random(t.observation["action_mask"].shape) < 0.6).astype(np.uint8)
    mask[..., 0] = 1
    acts = rng.choice(3, t.acts.shape, p=(0.04, 0.86, 0.1)).astype(np.uint8)
    observation = {**t.observation, "action_mask": mask}
    return t._replace(observation=observation, is_first=is_first, discount=discount, acts=acts)


def test_rescaling_equals_rlax_and_inverts(rlax):
    x = np.array([-1e4, -300.0, -2.5, -1e-3, 0.0, 1e-3, 0.7, 42.0, 1e4], np.float32)
    rescale, unscale = compiled(av.rescale), compiled(av.unscale)
    np.testing.assert_allclose(rescale(x), compiled(rlax.signed_hyperbolic)(x), rtol=1e-6)
    np.testing.assert_allclose(unscale(rescale(x)), x, rtol=1e-4, atol=1e-5)
    y = np.array([-80.0, -1.0, 0.0, 0.3, 5.0], np.float32)
    np.testing.assert_allclose(unscale(y), compiled(rlax.signed_parabolic)(y), rtol=2e-3, atol=1e-4)


def test_projection_equals_rlax(rlax):
    rng = np.random.default_rng(0)
    support = np.linspace(-3, 3, 11).astype(np.float32)
    atoms = (rng.normal(size=(50, 1)) * 3 + rng.uniform(0, 1, (50, 1)) * support).astype(np.float32)
    chances = rng.dirichlet(np.ones(11), 50).astype(np.float32)
    got = compiled(av.project)(atoms, chances, support)
    expected = compiled(jax.vmap(rlax.categorical_l2_project, (0, 0, None)))(atoms, chances, support)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(got.sum(-1), 1.0, rtol=1e-5)


def test_epsilon_greedy_has_its_probabilities_and_obeys_the_mask():
    values = jnp.tile(jnp.array([9.0, 1.0, 3.0, 2.0]), (8000, 1))
    observation = {"action_mask": jnp.tile(jnp.array([0, 1, 1, 1]), (8000, 1))}
    action, log_prob = jax.jit(av.epsilon_greedy)(jax.random.key(0), values, jnp.asarray(0.3), observation)
    share = np.bincount(np.asarray(action), minlength=4) / 8000
    expected = np.array([0.0, 0.1, 0.8, 0.1])
    np.testing.assert_allclose(share, expected, atol=0.015)
    np.testing.assert_allclose(np.exp(log_prob), expected[np.asarray(action)], rtol=1e-5)
    greedy, log_prob = av.epsilon_greedy(jax.random.key(1), values, 1.0, observation, greedy=True)
    assert (np.asarray(greedy) == 2).all() and (np.asarray(log_prob) == 0).all()


def test_exploration_follows_its_schedule():
    linear = DQNConfig(epsilon=0.1, total_updates=1000)
    got = [dqn_file.epsilon_now(linear, jnp.asarray(updates)) for updates in (0, 50, 100, 900)]
    np.testing.assert_allclose(got, [1.0, 0.55, 0.1, 0.1], rtol=1e-6)
    ladder = DQNConfig(exploration="ladder", epsilon=0.4)
    np.testing.assert_allclose(dqn_file.epsilon_now(ladder, jnp.asarray(0)), 1.0)
    np.testing.assert_allclose(dqn_file.epsilon_now(ladder, jnp.asarray(1)), 0.4**4.5, rtol=1e-6)
    with pytest.raises(ConfigError, match="total_updates"):
        dqn(DQNConfig(), SPEC)


@pytest.mark.parametrize(("updates", "epsilon"), [(0, 1.0), (5, 0.55), (20, 0.1)])
def test_acting_explores_by_the_updates_of_its_params(updates, epsilon):
    agent = dqn(DQNConfig(network=NETWORK, epsilon=0.1, total_updates=100), SPEC)
    params = jax.jit(agent.init)(jax.random.key(0)).params
    params = params._replace(weights=params.weights._replace(updates=jnp.asarray(updates)))
    observation = {"x": np.ones((300, 3), np.float32), "action_mask": np.ones((300, 4), np.uint8)}
    output, _ = jax.jit(agent.act)(params, jax.random.key(1), observation, np.zeros(300, bool), ())
    chances = np.unique(np.exp(np.asarray(output.log_prob)).round(5))
    np.testing.assert_allclose(chances, np.unique([epsilon / 4, 1 - 0.75 * epsilon]), rtol=1e-4)


def test_dueling_values_average_to_the_value_stream():
    head, features = ValuesHead(4, 2, dueling=True), jax.random.normal(jax.random.key(0), (5, 6))
    variables = jax.jit(head.init)(jax.random.key(1), features)
    weights = variables["params"]
    value = features @ weights["value"]["kernel"] + weights["value"]["bias"]
    np.testing.assert_allclose(compiled(head.apply)(variables, features).mean(-2), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (DQNConfig, {"epsilon": 1.5}, "epsilon"),
        (DQNConfig, {"num_atoms": 51, "value_min": 1.0, "value_max": 1.0}, "value_min"),
        (DQNConfig, {"quantiles": True}, "num_atoms above 1"),
        (DQNConfig, {"network": RECURRENT}, "r2d2"),
        (R2D2Config, {"network": NETWORK}, "dqn"),
        (R2D2Config, {"burn_in": -1}, "burn_in"),
    ],
)
def test_invalid_configs_are_refused(config, options, message):
    with pytest.raises(ConfigError, match=message):
        config(**options)


def test_continuous_actions_and_windows_without_an_unroll_are_refused():
    with pytest.raises(ConfigError, match="sac, td3 or ddpg"):
        dqn(DQNConfig(total_updates=10), EnvSpec(ArraySpec((3,), "float32"), Continuous((-1.0,), (1.0,))))
    agent = r2d2(R2D2Config(network=RECURRENT, burn_in=3), SPEC)
    with pytest.raises(ConfigError, match="burn_in=3"):
        jax.eval_shape(agent.update, jax.eval_shape(agent.init, KEY), draw(core=agent.initial_core(16)), KEY)


# -- DQN --------------------------------------------------------------------------------------------------------------


def fifth(x):
    """Stands for the mean of the rows of all devices; masked rows have weight 0 here."""
    return jnp.sum(x) / 5.0


def action_0_where_dead(batch, chooser):
    """Return scores [B, A] that prefer action 0 where the next row is value-only: its value is the only one trained there."""
    dead = np.asarray(batch.next_acting) == 0
    assert (dead & (np.asarray(batch.discount) > 0) & (chooser.argmax(-1) > 0)).any()
    return np.where(dead[:, None], np.array([1.0, 0.0, 0.0, 0.0], np.float32), chooser)


@pytest.mark.parametrize("double", [True, slow(False)])
def test_one_atom_loss_equals_a_loop_and_rlax(rlax, double):
    config = DQNConfig(network=NETWORK, double=double, dueling=False, loss="mse", total_updates=10, gamma=GAMMA)
    network = value_network(NETWORK, SPEC)
    parts = dqn_file.Components(config, network, jnp.zeros(1))
    weights, target = map(compiled(network.init), (jax.random.key(0), jax.random.key(1)))
    batch = compiled(lambda t: off.transition(t, GAMMA))(draw())
    total, (_, error) = compiled(lambda t: dqn_file.dqn_loss(parts, weights, t, batch, fifth))(target)
    apply = compiled(lambda weights, seen: dqn_file.apply(parts, weights, seen))
    now, following = (apply(weights, seen)[..., 0] for seen in (batch.observation, batch.next_observation))
    fixed = apply(target, batch.next_observation)[..., 0]
    allowed = np.asarray(batch.next_observation["action_mask"], bool)
    chooser = np.where(allowed, following if double else fixed, -np.inf)
    chooser = action_0_where_dead(batch, chooser)
    oracle = compiled(jax.vmap(rlax.double_q_learning))
    expected = oracle(now, batch.action, batch.reward, batch.discount, fixed, chooser)
    np.testing.assert_allclose(error, -np.asarray(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(total, (0.5 * np.square(expected) * batch.weight).sum() / 5.0, rtol=1e-4)
    still = compiled(jax.grad(lambda t: dqn_file.dqn_loss(parts, weights, t, batch, fifth)[0]))(target)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(still))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Rlax categorical_cross_entropy:PendingDeprecationWarning")
def test_c51_loss_equals_rlax(rlax):
    config = DQNConfig(network=NETWORK, num_atoms=7, value_min=-2.0, value_max=2.0, total_updates=10)
    network = value_network(NETWORK, SPEC, dueling=True, num_atoms=7)
    parts = dqn_file.Components(config, network, jnp.linspace(-2.0, 2.0, 7))
    weights, target = map(compiled(network.init), (jax.random.key(0), jax.random.key(1)))
    batch = compiled(lambda t: off.transition(t, GAMMA))(draw())
    total, (metrics, error) = compiled(lambda t: dqn_file.dqn_loss(parts, weights, t, batch, fifth))(target)
    apply = compiled(lambda weights, seen: dqn_file.apply(parts, weights, seen))
    now, following = (apply(weights, seen) for seen in (batch.observation, batch.next_observation))
    fixed = apply(target, batch.next_observation)
    chooser = (np.asarray(jax.nn.softmax(following)) * np.asarray(parts.support)).sum(-1)
    chooser = np.where(np.asarray(batch.next_observation["action_mask"], bool), chooser, -np.inf)
    chooser = action_0_where_dead(batch, chooser)
    each = compiled(jax.vmap(rlax.categorical_double_q_learning, (None, 0, 0, 0, 0, None, 0, 0)))(
        parts.support, now, batch.action, batch.reward, batch.discount, parts.support, fixed, chooser
    )
    np.testing.assert_allclose(total, (each * batch.weight).sum() / 5.0, rtol=1e-4)
    ahead = np.asarray(jax.nn.softmax(fixed))[np.arange(len(chooser)), chooser.argmax(-1)]
    atoms = np.asarray(batch.reward)[:, None] + np.asarray(batch.discount)[:, None] * np.asarray(parts.support)
    goal = compiled(jax.vmap(rlax.categorical_l2_project, (0, 0, None)))(atoms, ahead, parts.support)
    own_entropy = -(goal * np.log(np.maximum(goal, 1e-30))).sum(-1)
    np.testing.assert_allclose(error, each - own_entropy, rtol=1e-3, atol=1e-4)  # the KL divergence
    still = compiled(jax.grad(lambda t: dqn_file.dqn_loss(parts, weights, t, batch, fifth)[0]))(target)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(still))
    assert abs(metrics["value_mean"]) < 2


def test_quantile_loss_is_that_of_stable_baselines3():
    """Numbers of sb3-contrib 2.9.2, and a slow form of the paper's equation."""
    value = np.array([[0.3, -1.2, 2.5], [1.0, 0.1, -0.4]], np.float32)
    target = np.array([[1.5, -0.6, 0.2], [-2.0, 0.9, 3.0]], np.float32)
    np.testing.assert_allclose(
        dqn_file.quantile_loss(value, target), [0.9716666340827942, 2.5880556106567383], rtol=1e-6
    )
    value, target = np.random.default_rng(0).normal(size=(2, 4, 5))
    expected = np.zeros(4)
    for row, i, j in np.ndindex(4, 5, 5):
        u = target[row, j] - value[row, i]
        huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
        expected[row] += abs((i + 0.5) / 5 - (u < 0)) * huber / 5
    got = dqn_file.quantile_loss(jnp.asarray(value), jnp.asarray(target))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.slow
def test_the_loss_of_quantiles_has_its_targets_from_the_target_network():
    config = DQNConfig(network=NETWORK, num_atoms=7, quantiles=True, double=False, total_updates=10)
    network = value_network(NETWORK, SPEC, dueling=True, num_atoms=7)
    parts = dqn_file.Components(config, network, jnp.zeros(7))
    weights, target = map(compiled(network.init), (jax.random.key(0), jax.random.key(1)))
    batch = compiled(lambda t: off.transition(t, GAMMA))(draw())
    total, (_, error) = compiled(lambda t: dqn_file.dqn_loss(parts, weights, t, batch, fifth))(target)
    now, ahead = (
        compiled(lambda w, seen: dqn_file.apply(parts, w, seen))(*asked)
        for asked in ((weights, batch.observation), (target, batch.next_observation))
    )
    chooser = np.where(np.asarray(batch.next_observation["action_mask"], bool), ahead.mean(-1), -np.inf)
    best = action_0_where_dead(batch, chooser).argmax(-1)
    rows = np.arange(len(best))
    goal = np.asarray(batch.reward)[:, None] + np.asarray(batch.discount)[:, None] * ahead[rows, best]
    taken = now[rows, np.asarray(batch.action)]
    each = np.asarray(dqn_file.quantile_loss(taken, goal))
    np.testing.assert_allclose(total, (each * batch.weight).sum() / 5.0, rtol=1e-4)
    np.testing.assert_allclose(error, taken.mean(-1) - goal.mean(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_target_network_is_replaced_every_period():
    agent = dqn(DQNConfig(network=NETWORK, target_period=2, total_updates=10, learning_rate=0.01), SPEC)
    update, state, t = jax.jit(agent.update), jax.jit(agent.init)(jax.random.key(0)), draw(num_rows=1)
    start = state.learner_params.target
    state, _ = update(state, t, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, state.learner_params.target, start)
    state, output = update(state, t, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, state.learner_params.target, state.params.weights.network)
    mask = np.asarray(off.transition(t, GAMMA).mask)
    assert ((np.asarray(output.priorities) > 0) == (mask > 0)).all()


# -- R2D2 -------------------------------------------------------------------------------------------------------------


def slow_target(t, value, trained, row, column, n):
    """Loop from `row` over n of the agent's rows: raw return that bootstraps with `value`."""
    total, scale, own = 0.0, 1.0, 0
    while own < n and row < len(trained) and trained[row, column]:
        total += scale * t.reward[row, column]
        scale *= t.discount[row, column]
        row += 1
        while scale > 0 and not t.acts[row, column]:
            total += scale * t.reward[row, column]
            scale *= t.discount[row, column]
            row += 1
        scale, own = scale * GAMMA, own + 1
        if scale == 0:
            return total
    return total + scale * value[row, column]


@pytest.mark.slow
@pytest.mark.parametrize("rescaled", [True, False])
def test_sequence_loss_equals_a_loop_over_rows(rlax, rescaled):
    config = R2D2Config(network=RECURRENT, burn_in=2, n_step=2, gamma=GAMMA, rescale_values=rescaled, dueling=False)
    network = value_network(RECURRENT, SPEC)
    parts = r2d2_file.Components(config, network)
    weights, target = map(compiled(network.init), (jax.random.key(0), jax.random.key(1)))
    core = r2d2_file.Core(jax.random.normal(jax.random.key(2), (8, 4)), jnp.zeros(8))
    t = draw(num_rows=9, num_envs=8, core=core)
    sequences = jax.jit(lambda t: r2d2_file.burn_in(parts, weights, target, (), t, None))(t)

    def loss(s):
        return r2d2_file.loss(parts, weights, target, s, lambda x: masked_mean(x, s.rows.mask, None))

    total, (_, error) = jax.jit(loss)(sequences)

    # The stored core goes in at row 0, so reading the whole window gives the same values after the burn-in.
    apply = compiled(network.apply)
    online, fixed = (apply(w, t.observation, t.is_first, core.network)[0][..., 0] for w in (weights, target))
    best = np.where(t.observation["action_mask"] > 0, online, -np.inf).argmax(-1)
    assert (best[t.acts == 2] > 0).any()
    best = np.where(t.acts == 1, best, 0)  # on value-only rows only the value of action 0 is trained
    bootstrap = np.take_along_axis(fixed, best[..., None], -1)[..., 0]
    bootstrap = np.asarray(rlax.signed_parabolic(bootstrap)) if rescaled else bootstrap
    mask, expected = compiled(lambda t: row_masks(t, row_margin(t)))(t).value, np.zeros((7, 8))
    for row in range(7):
        for column in range(8):
            goal = slow_target(t, bootstrap, mask, row + 2, column, 2)
            goal = float(rlax.signed_hyperbolic(jnp.float32(goal))) if rescaled else goal
            expected[row, column] = online[row + 2, column, t.action[row + 2, column]] - goal
    expected *= mask[2:]
    np.testing.assert_allclose(error, expected, rtol=1e-3, atol=2e-3)
    np.testing.assert_allclose(total, (0.5 * expected**2 * t.sampling).sum() / mask[2:].sum(), rtol=5e-3)
    got = r2d2_file.window_priorities(jnp.asarray(error), jnp.asarray(mask[2:]), None)
    distance = np.abs(np.asarray(error))
    mean = distance.sum(0) / np.maximum(mask[2:].sum(0), 1)
    np.testing.assert_allclose(got, 0.9 * distance.max(0) + 0.1 * mean, rtol=1e-5)

    def of(core, target):
        sequences = r2d2_file.burn_in(parts, weights, target, (), t._replace(core=core), None)
        return loss(sequences)[0]

    still = jax.jit(jax.grad(of, argnums=(0, 1)))(core, target)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(still))  # no gradient flows into the burn-in and the target


@pytest.mark.slow
def test_an_episode_keeps_its_epsilon():
    agent = r2d2(R2D2Config(network=RECURRENT), SPEC)
    params, act = jax.jit(agent.init)(jax.random.key(0)).params, jax.jit(agent.act)
    observation = {"x": np.zeros((64, 3), np.float32), "action_mask": np.ones((64, 4), np.uint8)}
    first, core = np.ones(64, bool), agent.initial_core(64)
    _, core = act(params, jax.random.key(1), observation, first, core)
    assert core.epsilon.min() >= 0.4**8 and core.epsilon.max() <= 0.4 and len(np.unique(core.epsilon)) > 60
    some = np.arange(64) < 5
    _, later = act(params, jax.random.key(2), observation, some, core)
    np.testing.assert_array_equal(np.asarray(later.epsilon) == np.asarray(core.epsilon), ~some)


@pytest.mark.parametrize("recurrent", [False, slow(True)])
def test_dead_seats_bootstrap_with_action_0_which_alone_is_trained_there(recurrent):
    """The errors of rows of dead seats are 0 if the values of action 0 explain the rewards."""
    spec = EnvSpec(ArraySpec((2, 3), "float32"), Discrete(4), num_agents=2)
    shared = {"gamma": GAMMA, "network": RECURRENT if recurrent else NETWORK}
    if recurrent:
        agent = r2d2(R2D2Config(**shared, burn_in=0, rescale_values=False), spec)
    else:
        agent = dqn(DQNConfig(**shared, total_updates=10), spec)
    state, core = compiled(agent.init)(jax.random.key(0)), agent.initial_core(16) if recurrent else ()
    t = dead_seats(spec, 3 if recurrent else 1, core)
    network, first = (
        value_network(shared["network"], one_agent(spec), dueling=True),
        np.zeros((len(t.reward), 32), bool),
    )
    seen = t.observation.reshape(len(t.reward), 32, 3)
    if recurrent:
        q, _ = compiled(network.apply)(state.params.weights.network, seen, first, network.initial_core(32))
    else:
        q, _ = compiled(jax.vmap(network.apply, (None, 0, 0, None)))(state.params.weights.network, seen, first, ())
    value = q[..., 0, 0].reshape(-1, 16, 2)
    t.reward[:-1] = value[:-1] - GAMMA * value[1:]
    np.testing.assert_allclose(compiled(agent.update)(state, t, KEY)[1].priorities, 0.0, atol=1e-5)
