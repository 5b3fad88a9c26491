"""Whole updates against losses written out by hand: signs, coefficients, clips, masks, units, and what is held fixed."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents import actor_critic as ac
from jsrl.agents import normalization as norm
from jsrl.agents import off_policy as off
from jsrl.agents import ppo as ppo_file
from jsrl.agents import sac as sac_file
from jsrl.agents import td3 as td3_file
from jsrl.agents.bc import BCConfig, bc
from jsrl.agents.distributions import distribution
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.happo import HAPPOConfig, happo
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.minibatches import plan_minibatches
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.qmix import QMIXConfig, qmix
from jsrl.agents.r2d2 import R2D2Config, r2d2
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.rows import RowMasks
from jsrl.networks.model import NetworkConfig, actor_critic
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, Trajectory
from tests.agents.compiled import compiled
from tests.marks import marked, slow

T, B, A = 6, 8, 4
GAMMA, LAMBDA = 0.9, 0.8
NETWORK = NetworkConfig(hidden=(8,))
SPEC = EnvSpec(ArraySpec((3,), "float32"), Discrete(A))
REAL = EnvSpec(ArraySpec((3,), "float32"), Continuous((-1.0,) * 2, (1.0,) * 2))
COMMON = {
    "optimizer": "sgd", "learning_rate": 0.3, "max_grad_norm": None, "gamma": GAMMA,
    "value_coef": 0.6, "entropy_coef": 0.3, "normalize_values": True, "normalize_observations": True, "network": NETWORK,
}  # fmt: skip


def rows(seed: int) -> Trajectory:
    """Rows with ends of episodes in every second column; the behaviour policy is far from uniform."""
    rng = np.random.default_rng(seed)
    t = random_trajectory(SPEC, rng, num_rows=T, num_envs=B, extras=(), core=())
    log_prob = rng.normal(-1.4, 0.4, t.log_prob.shape).astype(np.float32)
    return t._replace(log_prob=log_prob, reward=3 * t.reward + 2, observation=2 * t.observation + 1)


def corrections(t: Trajectory, value, rho, c):
    """Walk back over each column: vs_t - v_t, float64 [T, B] (GAE where rho = 1 and c = lambda)."""
    x = np.zeros((T + 1, B))
    for row in range(T - 1, -1, -1):
        delta = t.reward[row] + GAMMA * t.discount[row] * value[row + 1] - value[row]
        x[row] = np.where(t.is_first[row + 1], 0.0, rho[row] * delta + GAMMA * c[row] * t.discount[row] * x[row + 1])
    return x


def unscaled(x, moments):
    return float(moments.mean) + np.sqrt(max(float(moments.variance), 1e-4)) * np.asarray(x, np.float64)


def scaled(x, moments):
    return (x - float(moments.mean)) / np.sqrt(max(float(moments.variance), 1e-4))


def huber(error):
    return jnp.where(jnp.abs(error) < 0.7, 0.5 * error**2, 0.7 * (jnp.abs(error) - 0.35))


def begin(agent, config):
    """Return (network, a state whose moments two updates have moved, rows of a third, its normalised observations)."""
    update, state = jax.jit(agent.update), jax.jit(agent.init)(jax.random.key(0))
    for seed in range(2):
        state, _ = update(state, rows(seed), jax.random.key(seed))
    t, moments = rows(2), state.params.moments
    seen = np.clip((t.observation - moments.mean) / np.sqrt(moments.variance + 1e-8), -10, 10)
    return update, actor_critic(config.network, SPEC), state, t, jnp.asarray(seen)


def assert_near(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4), got, expected)


def outputs_of(network, policy, value, seen):
    first = jnp.zeros(seen.shape[:2], bool)
    logits, features, _ = network.policy(policy, seen, first, ())
    return jax.nn.log_softmax(logits), network.value(value, seen, features)


@pytest.mark.slow
def test_ppo_descends_the_loss_of_its_paper_twice(monkeypatch):
    monkeypatch.setattr(ppo_file, "HUBER_DELTA", 0.7)  # that of MAPPO's paper is beyond all errors here
    config = PPOConfig(
        **COMMON,
        value_loss="huber",
        num_epochs=2,
        num_minibatches=1,
        gae_lambda=LAMBDA,
        clip_ratio=0.15,
        value_clip=0.02,
    )
    update, network, state, t, seen = begin(ppo(config, SPEC), config)
    after, output = update(state, t, jax.random.key(9))
    policy, value = state.params.weights, state.learner_params
    forward = jax.jit(lambda policy, value: outputs_of(network, policy, value, seen))
    raw = unscaled(forward(policy, value)[1], state.extra)
    mask = 1.0 - t.is_first[1:]
    advantage = corrections(t, raw, np.ones((T, B)), np.full((T, B), LAMBDA))[:T]
    target = raw[:T] + advantage
    mean = (advantage * mask).sum() / mask.sum()
    normal = (advantage - mean) / np.sqrt((mask * (advantage - mean) ** 2).sum() / mask.sum())
    # PopArt: the head is rescaled to the units of the moments that include these targets
    value = norm.rescale_head(value, network.value_head, state.extra, after.extra)
    goal, old = scaled(target, after.extra), scaled(raw[:T], after.extra)
    clipped = []

    def loss(weights):
        log_p, v = outputs_of(network, *weights, seen)
        log_p, v = log_p[:T], v[:T]
        ratio = jnp.exp(jnp.take_along_axis(log_p, t.action[:T, :, None], -1)[..., 0] - t.log_prob[:T])
        gain = jnp.minimum(ratio * normal, jnp.clip(ratio, 0.85, 1.15) * normal)
        near = old + jnp.clip(v - old, -0.02, 0.02)
        of_value = jnp.maximum(huber(v - goal), huber(near - goal))
        entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
        each = -gain + 0.6 * of_value - 0.3 * entropy
        return jnp.sum(each * mask) / mask.sum(), (jnp.abs(v - old) > 0.02).sum()

    weights = policy, value
    for _ in range(2):
        gradient, beyond = jax.jit(jax.grad(loss, has_aux=True))(weights)
        weights = jax.tree.map(lambda w, g: w - 0.3 * g, weights, gradient)
        clipped.append(int(beyond))
    assert clipped[0] == 0 < clipped[1]  # the clip of values matters in the second step
    assert 0.1 < float(output.metrics["clip_fraction"]) < 0.9
    assert_near((after.params.weights, after.learner_params), weights)
    residual = (target - raw[:T])[mask > 0]
    np.testing.assert_allclose(
        output.metrics["explained_variance"], 1 - residual.var() / target[mask > 0].var(), rtol=2e-3, atol=1e-3
    )


@pytest.mark.slow
def test_impala_descends_the_loss_of_its_paper_and_then_rescales_its_head():
    config = IMPALAConfig(**COMMON, vtrace_lambda=LAMBDA, rho_clip=1.1, c_clip=0.9)
    update, network, state, t, seen = begin(impala(config, SPEC), config)
    after, _ = update(state, t, jax.random.key(9))
    weights = state.params.weights, state.learner_params
    log_p, v = jax.jit(lambda weights: outputs_of(network, *weights, seen))(weights)
    raw = unscaled(v, state.extra)
    chosen = np.take_along_axis(np.asarray(log_p)[:T], t.action[:T, :, None], -1)[..., 0]
    ratio = np.exp(chosen - t.log_prob[:T])
    assert (ratio > 1.1).any() and (ratio < 0.9).any()
    mask, rho = 1.0 - t.is_first[1:], np.minimum(ratio, 1.1)
    x = corrections(t, raw, rho, LAMBDA * np.minimum(ratio, 0.9))
    following = raw[1:] + LAMBDA * x[1:]
    advantage = rho * (t.reward[:T] + GAMMA * t.discount[:T] * following - raw[:T])
    advantage, goal = advantage / np.sqrt(float(state.extra.variance)), scaled(raw[:T] + x[:T], state.extra)

    def loss(weights):
        log_p, v = outputs_of(network, *weights, seen)
        log_p, v = log_p[:T], v[:T]
        entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
        own = jnp.take_along_axis(log_p, t.action[:T, :, None], -1)[..., 0]
        return jnp.sum((-own * advantage + 0.6 * 0.5 * (v - goal) ** 2 - 0.3 * entropy) * mask) / mask.sum()

    policy, value = jax.tree.map(lambda w, g: w - 0.3 * g, weights, jax.jit(jax.grad(loss))(weights))
    assert float(after.extra.mean) != float(state.extra.mean)
    assert_near(after.params.weights, policy)
    assert_near(after.learner_params, norm.rescale_head(value, network.value_head, state.extra, after.extra))


def test_ppo_with_vtrace_leaves_the_ratio_of_the_advantage_to_its_loss():
    config = PPOConfig(gamma=GAMMA, gae_lambda=LAMBDA, returns="vtrace", normalize_advantages=False, network=NETWORK)
    network, t = actor_critic(NETWORK, SPEC), rows(2)
    parts = ppo_file.Components(config, network, distribution(SPEC.action), None, config.clip_ratio)
    state = ppo(config, SPEC).init(jax.random.key(0))
    weights = ppo_file.weights_of(parts, state)
    batch, _ = jax.jit(lambda: ppo_file.prepare(parts, weights, state, t, None))()
    log_p, value = jax.jit(lambda: outputs_of(network, *weights, t.observation))()
    value = np.asarray(value, np.float64)
    ratio = np.exp(np.take_along_axis(np.asarray(log_p)[:T], t.action[:T, :, None], -1)[..., 0] - t.log_prob[:T])
    rho = np.minimum(ratio, 1.0)
    x, mask = corrections(t, value, rho, LAMBDA * rho), 1.0 - t.is_first[1:]
    following = value[1:] + LAMBDA * x[1:]
    advantage = (t.reward[:T] + GAMMA * t.discount[:T] * following - value[:T]) * mask
    np.testing.assert_allclose(batch.advantage, advantage, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.target, value[:T] + x[:T], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [ppo, slow(impala)])
def test_observation_moments_cover_the_rows_that_were_trained_on(make):
    agent = make((PPOConfig if make is ppo else IMPALAConfig)(network=NETWORK, normalize_observations=True), SPEC)
    t = rows(0)
    last = t.is_first[1:]
    assert last.any()
    t.observation[:T][last] = 1e4
    t.observation[T] = 1e4
    moments = jax.jit(agent.update)(agent.init(jax.random.key(0)), t, jax.random.key(1))[0].params.moments
    trained = t.observation[:T][~last]
    assert moments.count == len(trained)
    np.testing.assert_allclose(moments.mean, trained.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.variance, trained.var(0), rtol=1e-3)


# -- gradient steps ---------------------------------------------------------------------------------------------------


def test_gradients_are_clipped_before_adam_scales_them():
    optimizer = ac.make_optimizer("adam", eps=1.0, max_grad_norm=0.5)
    gradient = {"a": np.array([3.0, 0.0], np.float32), "b": np.array([4.0], np.float32)}  # of norm 5
    step, _ = jax.jit(optimizer.update)(gradient, jax.jit(optimizer.init)(gradient))
    np.testing.assert_allclose(step["a"], [0.3 / 1.3, 0.0], rtol=1e-5)
    np.testing.assert_allclose(step["b"], [0.4 / 1.4], rtol=1e-5)


def test_rmsprop_divides_by_the_decayed_mean_of_squares():
    optimizer = ac.make_optimizer("rmsprop", eps=0.25, max_grad_norm=None)
    gradients, squares = (np.array([3.0], np.float32), np.array([-1.0], np.float32)), 0.0
    state = optimizer.init(gradients[0])
    for gradient in gradients:
        step, state = optimizer.update(gradient, state)
        squares = 0.99 * squares + 0.01 * gradient**2
        np.testing.assert_allclose(step, gradient / np.sqrt(squares + 0.25), rtol=1e-5)


@pytest.mark.parametrize("columns", [1, 12])
def test_every_epoch_reads_each_column_once_in_an_order_of_its_own(columns):
    parts = min(3, columns)
    plan = np.asarray(
        plan_minibatches(columns, num_epochs=4, num_minibatches=parts, key=jax.random.key(0), axis_name=None)
    )
    epochs = plan.reshape(4, columns)
    assert plan.shape == (4 * parts, columns // parts)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.broadcast_to(np.arange(columns), (4, columns)))
    if columns > 1:
        assert len({tuple(epoch) for epoch in [*epochs, np.arange(columns)]}) == 5


def test_each_device_reads_its_columns_in_an_order_of_its_own():
    sizes = {"num_epochs": 1, "num_minibatches": 3, "key": jax.random.key(0), "axis_name": "d"}
    plans = jax.vmap(lambda _: plan_minibatches(12, **sizes), axis_name="d")(jnp.arange(4))
    assert len({tuple(plan.ravel().tolist()) for plan in np.asarray(plans)}) == 4


def test_ppo_bounds_the_loss_of_stale_rows_with_negative_advantages():
    chosen = SimpleNamespace(log_prob=lambda *given: jnp.zeros((1, 2)), entropy=lambda outputs: jnp.zeros((1, 2)))
    rows = {"log_prob": jnp.full((1, 2), -np.log(10.0)), "advantage": jnp.array([[-1.0, -1.0]])}
    batch = ppo_file.Batch(*[None] * len(ppo_file.Batch._fields))
    batch = batch._replace(**rows, masks=RowMasks(jnp.ones((1, 2)), None))
    for dual_clip, expected in ((None, 10.0), (3.0, 3.0)):
        parts = ppo_file.Components(PPOConfig(dual_clip=dual_clip), None, chosen, None, 0.2)
        assert ppo_file.policy_terms(parts, None, batch, jnp.mean)["loss_policy"] == pytest.approx(expected, rel=1e-5)


def test_ppo_may_normalise_the_advantages_of_each_minibatch():
    """As Stable-Baselines3 does, but for its division by n - 1."""
    advantage, ratio = np.array([[3.0, -1.0, 0.5, 9.0]]), np.array([[1.1, 0.7, 1.5, 7.0]])
    mask = np.array([[1.0, 1.0, 1.0, 0.0]])
    chosen = SimpleNamespace(log_prob=lambda *given: jnp.log(ratio), entropy=lambda outputs: jnp.zeros((1, 4)))
    batch = ppo_file.Batch(*[None] * len(ppo_file.Batch._fields))
    batch = batch._replace(log_prob=jnp.zeros((1, 4)), advantage=advantage, masks=RowMasks(jnp.asarray(mask), None))
    parts = ppo_file.Components(PPOConfig(normalize_advantages="minibatch"), None, chosen, None, 0.2)
    kept, r = advantage[mask > 0], ratio[mask > 0]
    normal = (kept - kept.mean()) / kept.std(ddof=1) * np.sqrt(3 / 2)
    expected = -np.minimum(r * normal, np.clip(r, 0.8, 1.2) * normal).mean()
    terms = ppo_file.policy_terms(parts, None, batch, lambda x: jnp.sum(x * mask) / 3)
    assert terms["loss_policy"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("schedule", "expected"), [("linear", 0.05), ("optax:cosine_decay_schedule", 0.2 * 0.1464466)])
def test_ppos_clip_range_follows_its_schedule(schedule, expected):
    config = PPOConfig(clip_ratio=0.2, clip_schedule=schedule, total_updates=40)
    parts = ppo_file.at(ppo_file.Components(config, None, None, None, config.clip_ratio), jnp.int32(30))
    assert float(parts.clip_ratio) == pytest.approx(expected, rel=1e-5)


# -- policies of off-policy agents ------------------------------------------------------------------------------------


def windows() -> off.Transition:
    rng = np.random.default_rng(3)
    t = random_trajectory(REAL, rng, num_rows=2, num_envs=16, extras=(), core=(), weighted=True)
    t.acts[0, :5] = 2  # value-only: no policy gradient
    return compiled(lambda t: off.transition(t, GAMMA))(t)


def large(weights):
    return jax.tree.map(lambda w: 20.0 * w, weights)


@pytest.mark.slow
def test_sacs_policy_follows_its_online_critics():
    parts, _ = sac_file.continuous_parts(sac_file.SACConfig(network=NETWORK), REAL)
    policy, critics = large(parts.policy.init(jax.random.key(0))), parts.critics.init(jax.random.key(1))
    batch, log_alpha = windows(), jnp.log(0.3)
    noise = np.random.default_rng(4).normal(size=(16, 2)).astype(np.float32)

    def loss(policy):
        mean, log_std = parts.policy.apply(policy, batch.observation)
        u = mean + jnp.exp(log_std) * noise
        normal = -0.5 * ((u - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        log_prob = jnp.sum(normal - jnp.log(1 - jnp.tanh(u) ** 2), axis=-1)
        value = jnp.min(parts.critics.apply(critics, batch.observation, jnp.tanh(u)), axis=0)
        return jnp.sum((0.3 * log_prob - value) * batch.acting) / 7.0, -log_prob

    def theirs(policy):
        return sac_file.sac_policy_loss(
            parts, policy, (critics, log_alpha), (batch, noise), lambda x: jnp.sum(x * batch.acting) / 7.0
        )

    assert 0 < batch.acting.sum() < batch.mask.sum()
    (expected, entropy), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(policy)
    (got, (metrics, _)), step = jax.jit(jax.value_and_grad(theirs, has_aux=True))(policy)
    np.testing.assert_allclose(got, expected, rtol=1e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-2, atol=1e-3), step, gradient)
    np.testing.assert_allclose(metrics["entropy_excess"], ((entropy + 2.0) * batch.acting).sum() / 7.0, rtol=1e-3)


@pytest.mark.slow
def test_td3s_policy_climbs_its_first_critic():
    nets = (
        td3_file.policy_network(NETWORK, REAL, deterministic=True), td3_file.critic_network(NETWORK, REAL, num_critics=2)
    )  # fmt: skip
    parts = td3_file.Components(td3_file.TD3Config(network=NETWORK), *nets, off.action_box(REAL), None)
    policy, critics, batch = large(nets[0].init(jax.random.key(0))), nets[1].init(jax.random.key(1)), windows()

    def loss(policy):
        action = nets[0].apply(policy, batch.observation)
        return -jnp.sum(nets[1].apply(critics, batch.observation, action)[0] * batch.acting) / 7.0

    def theirs(policy):
        return td3_file.policy_loss(parts, policy, critics, batch, lambda x: jnp.sum(x * batch.acting) / 7.0)[0]

    for got, expected in zip(*(jax.jit(jax.value_and_grad(of))(policy) for of in (theirs, loss)), strict=True):
        assert_near(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_policy_steps_by_the_critics_of_this_update_and_not_by_their_targets(name):
    """Other targets leave the policy's step unchanged; other critics, which the first step of the update moves, do not."""
    make, config = (sac_file.sac, sac_file.SACConfig) if name == "sac" else (td3_file.td3, td3_file.TD3Config)
    agent = make(config(network=NETWORK, critic_learning_rate=0.1), REAL)
    slow = make(config(network=NETWORK, critic_learning_rate=1e-9), REAL)
    t = random_trajectory(REAL, np.random.default_rng(0), num_rows=1, num_envs=16, extras=(), core=())
    state, key = jax.jit(agent.init)(jax.random.key(0)), jax.random.key(1)
    step = jax.jit(agent.split.policy)
    targets = {name: large(part) for name, part in state.learner_params._asdict().items() if "target" in name}
    assert targets
    other = state._replace(learner_params=state.learner_params._replace(**targets))
    one, two = (step(s, t, key)[0].params.weights.network for s in (state, other))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    fast, still = (jax.jit(a.update)(state, t, key)[0].params.weights.network for a in (agent, slow))
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (fast, still)), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_critics_step_towards_every_target(name):
    make, config = (sac_file.sac, sac_file.SACConfig) if name == "sac" else (td3_file.td3, td3_file.TD3Config)
    agent = make(config(network=NETWORK), REAL)
    t = random_trajectory(REAL, np.random.default_rng(0), num_rows=1, num_envs=16, extras=(), core=())
    state, key = jax.jit(agent.init)(jax.random.key(0)), jax.random.key(1)
    update = jax.jit(agent.update)

    def critics_after(**parts):
        learner = update(state._replace(learner_params=state.learner_params._replace(**parts)), t, key)[
            0
        ].learner_params
        return jax.tree.leaves(learner.online if name == "sac" else learner.critics)

    targets = {name: large(part) for name, part in state.learner_params._asdict().items() if "target" in name}
    assert len(targets) == (1 if name == "sac" else 2)
    for target, part in targets.items():
        pairs = zip(critics_after(), critics_after(**{target: part}), strict=True)
        assert any((x != y).any() for x, y in pairs), f"the critics do not depend on {target}"


@pytest.mark.slow
@pytest.mark.parametrize("target", [-50.0, 50.0])
def test_sacs_temperature_weighs_entropy_in_both_steps_and_rises_where_there_is_too_little(target):
    agent = sac_file.sac(sac_file.SACConfig(network=NETWORK, target_entropy=target), REAL)
    t = random_trajectory(REAL, np.random.default_rng(0), num_rows=1, num_envs=16, extras=(), core=())
    state, steps = jax.jit(agent.init)(jax.random.key(0)), (agent.split.critic, agent.split.policy)
    hot = state._replace(extra=state.extra._replace(log_temperature=jnp.asarray(3.0)))
    critic, policy = ([jax.jit(step)(begun, t, jax.random.key(1))[0] for begun in (state, hot)] for step in steps)
    for begun, end in zip((state, hot), policy, strict=True):
        assert (end.extra.log_temperature > begun.extra.log_temperature) == (target > 0)
    for ends in ([s.learner_params.online for s in critic], [s.params.weights.network for s in policy]):
        assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, ends), strict=True))


RECURRENT = NetworkConfig(hidden=(8,), core="gru", core_size=4)
TEAM = EnvSpec(ArraySpec((2, 3), "float32"), Discrete(A), num_agents=2, state=ArraySpec((4,), "float32"))
READERS = {
    "dqn": lambda **options: (dqn(DQNConfig(network=NETWORK, total_updates=10, **options), SPEC), SPEC),
    "r2d2": lambda **options: (r2d2(R2D2Config(network=RECURRENT, burn_in=2, **options), SPEC), SPEC),
    "qmix": lambda **options: (qmix(QMIXConfig(network=NETWORK, total_updates=10, **options), TEAM), TEAM),
    "bc": lambda **options: (bc(BCConfig(network=NETWORK, **options), SPEC), SPEC),
    "happo": lambda **options: (happo(HAPPOConfig(network=NETWORK, **options), TEAM), TEAM),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(READERS, nightly={"happo"}))
def test_an_update_reads_observations_in_units_of_the_moments(name):
    (plain, spec), (agent, _) = READERS[name](), READERS[name](normalize_observations=True)
    core = jax.tree.map(np.asarray, agent.initial_core(B))
    t = random_trajectory(spec, np.random.default_rng(0), num_rows=T, num_envs=B, extras=(), core=core)
    begun = jax.jit(agent.init)(jax.random.key(0))

    def moved(leaf):
        return norm.Moments(jnp.float32(9.0), leaf.mean + 2.0, leaf.variance * 4.0)

    own = begun.params.moments
    own = {**own, "observation": moved(own["observation"])} if isinstance(own, dict) else moved(own)
    begun = begun._replace(params=begun.params._replace(moments=own))
    key, raw = jax.random.key(1), t._replace(observation=2.0 * t.observation + 2.0)
    after, _ = jax.jit(agent.update)(begun, raw, key)
    assert getattr(after.params.weights, "updates", 1) == 1  # which exploration follows
    if name == "qmix":  # the moments of the mixer's state
        assert after.extra.count > begun.extra.count
    wanted = jax.jit(plain.update)(jax.jit(plain.init)(jax.random.key(0)), t, key)[0].params.weights
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), after.params.weights, wanted)
