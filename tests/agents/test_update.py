"""Rules of one update apart from learning: masks, purity, PopArt, early stop by KL, recurrence, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import normalization as norm
from jsrl.agents.actor_critic import Weights, scheduled
from jsrl.agents.bc import BCConfig, bc
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.rows import row_margin, row_masks
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig, actor_critic
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, Trajectory
from tests.agents.compiled import made
from tests.marks import nightly, slow

SMALL = NetworkConfig(hidden=(16,))
SPEC = EnvSpec(ArraySpec((3,), "float32"), Discrete(4))
FACTORIES = {"ppo": (ppo, PPOConfig), "impala": (impala, IMPALAConfig)}
T, B = 12, 8


@pytest.fixture(params=["ppo", slow("impala")])
def factory(request):
    make, config = FACTORIES[request.param]
    return lambda spec=SPEC, **options: made(make, config(**{"network": SMALL, **options}), spec)


def random_trajectory(seed: int, core=(), action=None) -> Trajectory:
    """Rows that follow the row table, with a few waiting rows; log_prob as of a policy close to uniform."""
    rng = np.random.default_rng(seed)
    is_first = np.zeros((T + 1, B), bool)
    discount = np.ones((T + 1, B), np.float32)
    for column in range(B):
        is_first[0, column] = column % 2
        row = 2 + column % 3
        while row < T:
            is_first[row + 1, column], discount[row - 1, column] = True, rng.integers(2)
            row += int(rng.integers(3, 7))
    reward = rng.normal(size=(T + 1, B)).astype(np.float32)
    acts = (rng.random((T + 1, B)) < 0.9).astype(np.uint8)
    for leaf in (reward, discount, acts):
        leaf[T] = 0
    return Trajectory(
        observation=rng.normal(size=(T + 1, B, 3)).astype(np.float32),
        is_first=is_first,
        action=rng.integers(4, size=(T + 1, B)).astype(np.int32) if action is None else action,
        reward=reward,
        discount=discount,
        acts=acts,
        log_prob=np.full((T + 1, B), np.log(0.25), np.float32),
        extras=(),
        version=np.zeros((T + 1, B), np.int64),
        core=core,
    )


def run(agent, trajectory, *, seed=0):
    state = jax.jit(agent.init)(jax.random.key(seed))
    return jax.jit(agent.update)(state, trajectory, jax.random.key(1))


def shapes_of(agent, trajectory):
    """Return the shapes of what an update returns, without compiling it."""
    key = jax.random.key(0)
    return jax.eval_shape(agent.update, jax.eval_shape(agent.init, key), trajectory, key)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_update_is_pure_and_changes_the_expected_state(factory):
    agent = factory(normalize_observations=True, normalize_values=True)
    trajectory = random_trajectory(0)
    state = jax.jit(agent.init)(jax.random.key(0))
    before = jax.tree.map(np.array, state)
    update = jax.jit(agent.update)
    (first, output), (second, _) = (update(state, trajectory, jax.random.key(1)) for _ in range(2))
    assert_same(first, second)
    assert_same(before, state)
    assert first.updates == 1 and output.priorities is None
    assert jax.tree.structure(first) == jax.tree.structure(state)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(first), strict=True):
        assert old.shape == new.shape and old.dtype == new.dtype and np.isfinite(new).all()
    parts = {
        "policy": lambda s: s.params.weights,
        "value": lambda s: s.learner_params,
        "normaliser": lambda s: s.params.moments,
    }
    for name, part in parts.items():
        pairs = zip(jax.tree.leaves(part(before)), jax.tree.leaves(part(first)), strict=True)
        assert any((x != y).any() for x, y in pairs), f"the update does not change the {name}"
    assert all(v.shape == () and np.isfinite(v) for v in output.metrics.values())
    names = {"loss", "loss_policy", "loss_value", "entropy", "approx_kl", "clip_fraction", "explained_variance"}
    assert names | {"grad_norm", "learning_rate"} <= set(output.metrics)


def test_masked_rows_have_no_effect(factory):
    """Action, log_prob and reward of a last observation's row, and the leaves of row T: the same state bit for bit."""
    agent = factory(normalize_observations=True, normalize_values=True)
    trajectory = random_trajectory(1)
    cut = np.concatenate([trajectory.is_first[1:], np.ones((1, B), bool)])
    garbage = trajectory._replace(
        action=np.where(cut, 3, trajectory.action).astype(np.int32),
        log_prob=np.where(cut, -1e9, trajectory.log_prob).astype(np.float32),
        reward=np.where(cut, 1e6, trajectory.reward).astype(np.float32),
    )
    assert cut[:-1].any()
    assert_same(run(agent, trajectory), run(agent, garbage))


def test_rows_of_other_agents_are_not_trained_on_but_their_reward_counts(factory):
    agent = factory(normalize_observations=True, normalize_values=True)
    trajectory = random_trajectory(2)
    waiting = (trajectory.acts == 0) & ~np.concatenate([trajectory.is_first[1:], np.ones((1, B), bool)])
    other_action = trajectory._replace(
        action=np.where(waiting, 0, trajectory.action).astype(np.int32),
        log_prob=np.where(waiting, 30.0, trajectory.log_prob).astype(np.float32),
    )
    other_reward = trajectory._replace(reward=np.where(waiting, 5.0, trajectory.reward).astype(np.float32))
    assert waiting.sum() > 3
    state, _ = run(agent, trajectory)
    assert_same(state, run(agent, other_action)[0])
    changed, _ = run(agent, other_reward)
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(changed), strict=True))


@pytest.mark.slow
def test_batch_without_trained_rows_is_finite(factory):
    agent = factory(normalize_observations=True, normalize_values=True)
    trajectory = random_trajectory(3)
    state, output = run(agent, trajectory._replace(acts=np.zeros_like(trajectory.acts)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, output)))


@pytest.mark.slow
def test_popart_moves_the_scale_and_keeps_raw_values(factory):
    """With a rate of nearly 0 only PopArt changes the value function: the raw values of every row stay."""
    agent = factory(normalize_values=True, learning_rate=1e-12)
    trajectory = random_trajectory(4)
    trajectory = trajectory._replace(reward=trajectory.reward * 100 + 500)
    network = actor_critic(SMALL, SPEC)
    state = jax.jit(agent.init)(jax.random.key(0))

    @jax.jit
    def raw(state):
        _, features, _ = network.policy(state.params.weights, trajectory.observation, trajectory.is_first, ())
        return norm.denormalize_value(
            state.extra, network.value(state.learner_params, trajectory.observation, features)
        )

    after, _ = jax.jit(agent.update)(state, trajectory, jax.random.key(0))
    assert after.extra.std > 50 and after.extra.mean > 200
    np.testing.assert_allclose(raw(after), raw(state), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["impala", "bc"])
def test_devices_with_shares_of_a_batch_make_the_update_of_the_whole_batch(name):
    """Four devices as a vmapped axis; the first one has few rows to train on. The others' cases: test_devices."""
    if name == "bc":
        agent = bc(BCConfig(network=SMALL, normalize_observations=True), SPEC)
    else:
        common = {"optimizer": "sgd", "learning_rate": 0.3, "normalize_observations": True, "normalize_values": True}
        agent = impala(IMPALAConfig(network=SMALL, **common), SPEC)
    whole, key = random_trajectory(8), jax.random.key(1)
    whole.acts[:, :2] &= np.arange(T + 1, dtype=np.uint8)[:, None] % 3 == 0
    whole = whole._replace(reward=5 * whole.reward + 3, observation=3 * whole.observation + 1)
    shares = jax.tree.map(lambda x: np.stack(np.split(x, 4, axis=1)), whole)

    def of_share(state, share):
        return agent.update(state, share, key, axis_name="devices")

    state = jax.jit(agent.init)(jax.random.key(0))
    one, output = jax.jit(agent.update)(state, whole, key)
    every, outputs = jax.jit(jax.vmap(of_share, (None, 0), axis_name="devices"))(state, shares)
    for device in range(4):
        mine = jax.tree.map(lambda x, d=device: x[d], (every, outputs.metrics))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5), mine, (one, output.metrics))


@pytest.mark.slow
def test_observations_are_normalised_by_the_moments_before_the_update():
    agent = ppo(PPOConfig(network=SMALL, normalize_observations=True), SPEC)
    plain = ppo(PPOConfig(network=SMALL), SPEC)
    trajectory = random_trajectory(5)
    trajectory = trajectory._replace(observation=np.clip(trajectory.observation, -9, 9))
    state, _ = run(agent, trajectory)
    expected, _ = run(plain, trajectory)  # the first moments are 0 and 1: only the epsilon has an effect
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), state.params.weights, expected.params.weights
    )
    mask = np.asarray(row_masks(trajectory, row_margin(trajectory)).value)
    rows = trajectory.observation[:-1][mask > 0]
    np.testing.assert_allclose(state.params.moments.mean, rows.mean(0), atol=1e-5)
    assert state.params.moments.count == len(rows)


@pytest.mark.slow
def test_unlagged_update_starts_at_ratio_one():
    agent = ppo(PPOConfig(network=SMALL, num_epochs=1, num_minibatches=1), SPEC)
    state = jax.jit(agent.init)(jax.random.key(0))
    trajectory = random_trajectory(6)
    observation = trajectory.observation.reshape(-1, 3)
    first = np.zeros(len(observation), bool)
    reply, _ = jax.jit(agent.act)(state.params, jax.random.key(1), observation, first, ())
    played = trajectory._replace(
        action=np.asarray(reply.action).reshape(T + 1, B), log_prob=np.asarray(reply.log_prob).reshape(T + 1, B)
    )
    _, output = jax.jit(agent.update)(state, played, jax.random.key(2))
    assert output.metrics["approx_kl"] < 1e-10 and output.metrics["clip_fraction"] == 0


@pytest.mark.slow
def test_target_kl_ends_the_update_early():
    options = {"network": SMALL, "learning_rate": 0.05, "num_epochs": 6, "num_minibatches": 2}
    trajectory = random_trajectory(7)
    free, free_output = run(ppo(PPOConfig(**options), SPEC), trajectory)
    stopped, output = run(ppo(PPOConfig(**options, target_kl=0.01), SPEC), trajectory)
    loose, loose_output = run(ppo(PPOConfig(**options, target_kl=1e9), SPEC), trajectory)
    assert free_output.metrics["epochs_run"] == loose_output.metrics["epochs_run"] == 6
    assert 0 < output.metrics["epochs_run"] < 6
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), free.params, loose.params)
    count = stopped.opt_state[1].count
    assert count == output.metrics["epochs_run"] * 2
    assert output.metrics["approx_kl"] < free_output.metrics["approx_kl"]


def test_the_learning_rate_falls_to_zero_at_total_updates(factory):
    rates = [float(scheduled(0.1, "linear", 4, jnp.asarray(n))) for n in range(6)]
    np.testing.assert_allclose(rates, [0.1, 0.075, 0.05, 0.025, 0.0, 0.0], atol=1e-7)
    assert float(scheduled(0.1, "linear", 10**10, jnp.asarray(2))) == pytest.approx(0.1)  # more than an int32 holds
    with pytest.raises(ConfigError, match=r"needs total_updates .* got None"):
        shapes_of(factory(schedule="linear"), random_trajectory(0))
    agent = factory(schedule="linear", total_updates=2, learning_rate=0.1)
    state = jax.jit(agent.init)(jax.random.key(0))
    ended = state._replace(updates=jnp.asarray(2, jnp.int32))
    after, output = jax.jit(agent.update)(ended, random_trajectory(0), jax.random.key(0))
    assert output.metrics["learning_rate"] == 0
    assert_same(after.params.weights, ended.params.weights)


@pytest.mark.slow
def test_core_is_reset_at_episode_starts(factory):
    network = NetworkConfig(hidden=(16,), core="gru", core_size=8)
    agent = factory(network=network)
    state, core = jax.jit(agent.init)(jax.random.key(0)), agent.initial_core(2)
    observation = np.ones((2, 3), np.float32)
    spoiled = jax.tree.map(lambda x: x + 0.7, core)
    is_first, act = np.array([True, False]), jax.jit(agent.act, static_argnames="greedy")
    (fresh, _), (reply, _) = (
        act(state.params, jax.random.key(1), observation, is_first, c, greedy=True) for c in (core, spoiled)
    )
    difference = np.abs(np.asarray(fresh.log_prob - reply.log_prob))
    assert difference[0] == 0 and difference[1] > 1e-6
    start = random_trajectory(0, core=agent.initial_core(B))
    other = start._replace(core=jax.tree.map(lambda x: x + 0.7, start.core))
    first_only = [t._replace(is_first=np.concatenate([np.ones((1, B), bool), t.is_first[1:]])) for t in (start, other)]
    assert_same(*(run(agent, t)[0].params for t in first_only))
    changed = zip(*(jax.tree.leaves(run(agent, t)[0].params) for t in (start, other)), strict=True)
    assert any((x != y).any() for x, y in changed)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [None, nightly(False)])
def test_chunks_start_with_the_core_of_acting(shared):
    """The loss of the first gradient step equals that of whole trajectories for any chunks; gradients end at chunk edges."""
    network = NetworkConfig(hidden=(16,), core="lstm", core_size=8, shared=shared)
    options = {"network": network, "optimizer": "sgd", "num_epochs": 1, "num_minibatches": 1}
    losses, gradients = [], []
    for length in (None, T, 4):
        agent = ppo(PPOConfig(**options, chunk_length=length), SPEC)
        core = jax.tree.map(lambda x: x + 0.3, agent.initial_core(B))
        _, output = run(agent, random_trajectory(0, core=core))
        losses.append([float(output.metrics[name]) for name in ("loss_policy", "loss_value", "entropy", "approx_kl")])
        gradients.append(float(output.metrics["grad_norm"]))
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-4, atol=1e-6)
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-4)
    assert gradients[2] != pytest.approx(gradients[0], rel=1e-3)


def test_chunks_divide_trajectories():
    config = PPOConfig(network=NetworkConfig(core="gru"), chunk_length=10, num_minibatches=8)
    config.check_batch(80, 64)
    with pytest.raises(ConfigError, match=r"chunk_length=10 does not divide the 81 rows of a trajectory; use 9 or 27"):
        config.check_batch(81, 64)
    with pytest.raises(ConfigError, match=r"num_minibatches=8 does not divide the 20 chunks of a batch; use 5 or 10"):
        config.check_batch(20, 10)


@pytest.mark.parametrize("transform", ["clip", slow("squash")])
def test_continuous_actions(factory, transform):
    spec = EnvSpec(SPEC.observation, Continuous((-1.0, -2.0), (1.0, 2.0), transform))
    action = np.random.default_rng(0).normal(size=(T + 1, B, 2)).astype(np.float32)
    state, output = run(factory(spec), random_trajectory(0, action=action))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, output)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"returns": "td"}, "returns is 'td'; expected one of gae, vtrace"),
        ({"chunk_length": 4}, "chunk_length=4 is for recurrent networks, and network.core is 'none'"),
    ],
)
def test_invalid_values_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PPOConfig(**options)


def test_a_penalty_on_entropy_and_values_that_are_not_trained_are_valid():
    assert PPOConfig(entropy_coef=-0.01, value_coef=0.0).entropy_coef == -0.01


def test_invalid_specs_are_refused(factory):
    with pytest.raises(
        ConfigError, match=r"has shape \(3,\); every observation leaf needs the agent axis first: \(2, "
    ):
        factory(dataclasses.replace(SPEC, num_agents=2))
    mask = {"x": SPEC.observation, "action_mask": ArraySpec((2,), "uint8")}
    with pytest.raises(ConfigError, match="continuous actions, which cannot be masked"):
        factory(EnvSpec(mask, Continuous((0.0, 0.0), (1.0, 1.0))))
    with pytest.raises(ConfigError, match="num_minibatches=7 does not divide the 96 columns"):
        shapes_of(ppo(PPOConfig(num_minibatches=7, network=SMALL), SPEC), random_trajectory(0))


@pytest.mark.slow
def test_values_sent_by_actors_equal_those_of_the_learner():
    """With the params that acted (no lag) an update is the same up to rounding, on either side that computes the values."""
    options = {"network": SMALL, "normalize_observations": True, "num_minibatches": 2}
    ours, acting = (ppo(PPOConfig(**options, values=who), SPEC) for who in ("learner", "acting"))
    trajectory = random_trajectory(5)
    state = jax.jit(acting.init)(jax.random.key(0))
    act = jax.jit(acting.act)
    value = np.full((T + 1, B), 1e9, np.float32)  # no actor sends row T
    for row in range(T):
        output, _ = act(
            state.params, jax.random.key(row), trajectory.observation[row], trajectory.is_first[row], trajectory.core
        )
        value[row] = output.extras["value"]
    new, output = run(acting, trajectory._replace(extras={"value": value}))
    expected, metrics = run(ours, trajectory)
    assert new.learner_params == () and isinstance(new.params.weights, Weights)
    weights = Weights(expected.params.weights, expected.learner_params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), new.params.weights, weights)
    np.testing.assert_allclose(output.metrics["explained_variance"], metrics.metrics["explained_variance"], atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"returns": "vtrace"}, {"normalize_values": True}, {"network": NetworkConfig(core="gru")}]
)
def test_values_unknown_to_actors_are_refused(options):
    with pytest.raises(ConfigError, match="values='acting' needs returns='gae', normalize_values=False and a feed-f"):
        PPOConfig(values="acting", **options)


def test_optimizer_state_has_the_structure_of_the_trained_weights():
    agent = ppo(PPOConfig(network=SMALL), SPEC)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    moments = state.opt_state[1].mu
    assert isinstance(moments, Weights)
    assert jax.tree.structure(moments.policy) == jax.tree.structure(state.params.weights)


@pytest.mark.slow
def test_rows_of_scored_games_are_scored_by_absolute_advantage():
    """With gamma 0 the advantage is the reward minus the value sent by the actors."""
    agent = ppo(PPOConfig(network=SMALL, values="acting", gamma=0.0, num_epochs=1, num_minibatches=1), SPEC)
    rng = np.random.default_rng(0)
    rows = random_trajectory(3)._replace(extras={"value": rng.normal(size=(T + 1, B)).astype(np.float32)})
    assert shapes_of(agent, rows)[1].priorities is None
    scored = rows._replace(game=np.zeros((T + 1, B), np.int32))
    found = run(agent, scored)[1].priorities
    mask = np.asarray(row_masks(scored, row_margin(scored)).policy)
    expected = np.abs(rows.reward - rows.extras["value"])[:-1] * mask
    acting_next = (rows.acts[1:] == 1) | rows.is_first[1:]
    assert found.shape == (B, T, 5)
    np.testing.assert_array_equal(found[..., 3], mask.T)
    kept = mask.astype(bool) & acting_next
    np.testing.assert_allclose(np.asarray(found[..., 0]).T[kept], expected[kept], rtol=1e-5)
    assert not np.asarray(found[..., 0]).T[mask == 0].any()
