import dataclasses
import functools

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig, actor_critic, observation_leaves
from jsrl.networks.off_policy import policy_network, value_network
from jsrl.networks.orthogonal import orthogonal, orthonormal_columns
from jsrl.networks.torsos import as_image
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, MultiDiscrete, named_leaves
from tests.marks import nightly, slow
from tests.networks.weights import drawn, programs

VECTOR = EnvSpec(ArraySpec((4,), "float32"), Discrete(3))
PIXELS = EnvSpec(ArraySpec((36, 40, 2), "uint8"), Discrete(6))
MIXED = EnvSpec(
    {
        "image": ArraySpec((10, 10, 3), "uint8"),
        "place": ArraySpec((2, 2), "float32"),
        "count": ArraySpec((), "int32"),
        "action_mask": ArraySpec((5,), "uint8"),
    },
    MultiDiscrete((2, 3)),
)
KEY = jax.random.key(0)


def make_rows(spec, *leading, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.integers(0, 9, (*leading, *s.shape)).astype(s.dtype), spec.observation)


def test_orthogonal_initialisation_with_the_usual_gains():
    policy, value = actor_critic(NetworkConfig(hidden=(16, 16)), VECTOR).init(KEY)
    hidden = np.asarray(policy["torso"]["MLP_0"]["Dense_1"]["kernel"])
    np.testing.assert_allclose(hidden.T @ hidden, 2.0 * np.eye(16), atol=1e-4)
    logits = np.asarray(policy["head"]["logits"]["kernel"])
    np.testing.assert_allclose(logits.T @ logits, 1e-4 * np.eye(3), atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(value["head"]["kernel"]), 1.0, rtol=1e-5)
    assert not any(np.any(x) for x in (policy["head"]["logits"]["bias"], value["head"]["bias"]))


def test_uniform_initialisation_as_pytorch_does():
    config = NetworkConfig(hidden=(64, 64), core="gru", core_size=64, init="uniform", log_std_init=-2.0)
    spec = EnvSpec(ArraySpec((4,), "float32"), Continuous((-1.0,) * 3, (1.0,) * 3))
    policy, value = actor_critic(config, spec).init(KEY)
    for layer, inputs in ((policy["torso"]["MLP_0"]["Dense_1"], 64), (policy["head"]["mean"], 64), (value["head"], 64)):
        bound = inputs**-0.5
        for weights in (layer["kernel"], layer["bias"]):
            assert bool(jnp.all(jnp.abs(weights) <= bound)) and bool(jnp.all(weights != 0.0))
    np.testing.assert_allclose(np.std(policy["torso"]["MLP_0"]["Dense_1"]["kernel"]), 64**-0.5 / 3**0.5, rtol=0.05)
    np.testing.assert_array_equal(policy["head"]["log_std"], -2.0)


@pytest.mark.parametrize(
    ("spec", "config", "shared"),
    [
        (VECTOR, NetworkConfig(), False),
        (VECTOR, NetworkConfig(shared=True, activation="relu"), True),
        (VECTOR, NetworkConfig(core="gru", core_size=8), True),
        (PIXELS, NetworkConfig(), True),
        (PIXELS, NetworkConfig(shared=False), False),
        slow(MIXED, NetworkConfig(core="lstm", core_size=8), True),
    ],
    ids=["mlp", "mlp-shared", "gru", "nature", "nature-separate", "mixed-lstm"],
)
def test_shapes_and_sharing(spec, config, shared):
    network = programs(actor_critic(config, spec))
    policy, value = drawn(network.init)
    assert network.shared == shared == ("torso" not in value)
    rows, is_first = make_rows(spec, 3, 2), np.zeros((3, 2), bool)
    logits, features, core = network.policy(policy, rows, is_first, network.initial_core(2))
    assert logits.shape == (3, 2, 5 if spec is MIXED else spec.action.num_actions)
    assert jax.tree.map(jnp.shape, core) == jax.tree.map(jnp.shape, network.initial_core(2))
    values = network.value(value, rows, features)
    assert values.shape == (3, 2)
    # the value reads features where shared, else observations; its head is where it says
    other = network.value(value, make_rows(spec, 3, 2, seed=1), features)
    assert bool(jnp.all(other == values)) == shared
    assert network.value_head == ("head",)
    raised = {**value, "head": {**value["head"], "bias": value["head"]["bias"] + 2.0}}
    np.testing.assert_allclose(network.value(raised, rows, features), values + 2.0, atol=1e-5)


def test_continuous_head():
    spec = dataclasses.replace(VECTOR, action=Continuous((-1.0, -1.0), (1.0, 1.0)))
    network = programs(actor_critic(NetworkConfig(log_std_init=-0.5), spec))
    policy, _ = network.init(KEY)
    mean, log_std = network.policy(policy, make_rows(spec, 3, 2), np.zeros((3, 2), bool), ())[0]
    assert mean.shape == log_std.shape == (3, 2, 2)
    np.testing.assert_array_equal(log_std, -0.5)
    assert policy["head"]["log_std"].shape == (2,)


def test_off_policy_head_starts_at_the_chosen_log_std():
    spec = dataclasses.replace(VECTOR, action=Continuous((-1.0, -1.0), (1.0, 1.0)))
    network = policy_network(NetworkConfig(hidden=(8,), log_std_init=-1.5), spec)
    mean, log_std = network.apply(network.init(KEY), np.zeros((3, 4), np.float32))  # the weights of zeros do not matter
    np.testing.assert_array_equal(mean, 0.0)
    np.testing.assert_array_equal(log_std, -1.5)


@pytest.mark.parametrize("spec", [VECTOR, slow(PIXELS)], ids=["mlp", "nature"])
def test_layer_norm_normalises_before_each_activation(spec):
    network = value_network(NetworkConfig(hidden=(8, 8), activation="relu", layer_norm=True), spec)
    weights = jax.jit(network.init)(KEY)
    norms = [path for path, _ in named_leaves(weights) if path.endswith("scale")]
    assert len(norms) == (2 if spec is VECTOR else 4)
    large = jax.tree.map(lambda x: 10.0 * x if x.ndim > 1 else x, weights["torso"])  # its kernels; biases are 0
    rows, apply = (28 * make_rows(spec, 2, 3), np.zeros((2, 3), bool), ()), jax.jit(network.apply)
    one, other = (apply({**weights, "torso": torso}, *rows)[0] for torso in (weights["torso"], large))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)  # its scale is divided out


def test_action_values_read_the_normalised_core():
    network = value_network(NetworkConfig(core="gru", core_size=8, core_norm=True, hidden=(8,)), VECTOR)
    weights = jax.eval_shape(network.init, KEY)
    assert set(weights) == {"torso", "core", "core_norm", "head"}
    weights = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), weights)
    weights["core_norm"]["bias"][:], weights["head"]["advantage"]["kernel"][:] = 1.0, 1.0
    rows = make_rows(VECTOR, 2, 3)
    values, core = jax.jit(network.apply)(weights, rows, np.zeros((2, 3), bool), network.initial_core(3))
    np.testing.assert_array_equal(values, 8.0)
    np.testing.assert_array_equal(core, 0.0)  # its state is not normalised


def test_separate_value_function_has_its_own_core():
    network = programs(
        actor_critic(NetworkConfig(core="lstm", core_size=8, core_norm=True, hidden=(8,), shared=False), VECTOR)
    )
    policy, value = drawn(network.init)
    assert set(policy) == {"torso", "core", "core_norm", "head", "value_torso", "value_core", "value_core_norm"}
    assert set(value) == {"head"} and not network.shared
    rows, is_first = make_rows(VECTOR, 6, 2), np.zeros((6, 2), bool)

    def run(part):
        changed = {name: jax.tree.map(lambda x: x + 0.5, x) if part in name else x for name, x in policy.items()}
        logits, features, core = network.policy(changed, rows, is_first, network.initial_core(2))
        return np.asarray(logits), np.asarray(network.value(value, rows, features)), core

    (logits, values, core), (same, moved, moved_core) = run("nothing"), run("value_core")
    np.testing.assert_array_equal(logits, same)
    assert np.abs(values - moved).max() > 1e-3
    jax.tree.map(np.testing.assert_array_equal, core["policy"], moved_core["policy"])
    assert np.abs(run("torso")[0] - logits).max() > 1e-3
    stepped = network.initial_core(2)
    for t in range(6):
        _, feature, stepped = network.policy(policy, rows[t : t + 1], is_first[t : t + 1], stepped)
        np.testing.assert_allclose(network.value(value, rows[t : t + 1], feature)[0], values[t], atol=1e-6)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_core_resets_before_reading_and_equals_single_steps(core):
    network = programs(actor_critic(NetworkConfig(core=core, core_size=8, hidden=(8,)), VECTOR))
    policy, _ = drawn(network.init)
    rows = make_rows(VECTOR, 6, 2)
    is_first = np.zeros((6, 2), bool)
    is_first[3, 0] = True
    start = jax.tree.map(lambda x: x + 0.3, network.initial_core(2))
    _, features, end = network.policy(policy, rows, is_first, start)
    stepped = start
    for t in range(6):  # acting: T = 1
        _, feature, stepped = network.policy(policy, rows[t : t + 1], is_first[t : t + 1], stepped)
        np.testing.assert_allclose(feature[0], features[t], atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), end, stepped)
    # environment 0 forgot everything before row 3; environment 1 did not
    _, fresh, _ = network.policy(policy, rows[3:], np.zeros((3, 2), bool), network.initial_core(2))
    np.testing.assert_allclose(fresh[:, 0], features[3:, 0], atol=1e-6)
    assert np.abs(fresh[:, 1] - features[3:, 1]).max() > 1e-3


def test_any_leading_axes_and_the_agent_axis():
    spec = EnvSpec(ArraySpec((3, 4), "float32"), Discrete(3), num_agents=3)
    network = programs(actor_critic(NetworkConfig(), spec))
    policy, value = drawn(network.init)
    rows = make_rows(spec, 5, 2)
    logits, features, _ = network.policy(policy, rows, np.zeros((5, 2), bool), ())
    assert logits.shape == (5, 2, 3, 3)
    assert network.value(value, rows, features).shape == (5, 2, 3)


@pytest.mark.slow
def test_action_mask_is_not_an_input():
    network = programs(actor_critic(NetworkConfig(), MIXED))
    policy, _ = drawn(network.init)
    rows = make_rows(MIXED, 1, 2)
    logits = [
        network.policy(policy, {**rows, "action_mask": np.full((1, 2, 5), m)}, np.zeros((1, 2), bool), ())[0]
        for m in (0, 1)
    ]
    np.testing.assert_array_equal(*logits)


def test_channels_first_pixels_are_the_same_network():
    first = EnvSpec(ArraySpec((2, 36, 40), "uint8"), Discrete(6))
    networks = [programs(actor_critic(NetworkConfig(), spec)) for spec in (PIXELS, first)]
    policy, _ = drawn(networks[0].init)
    rows, is_first = make_rows(PIXELS, 1, 3), np.zeros((1, 3), bool)
    last = networks[0].policy(policy, rows, is_first, ())[1]
    np.testing.assert_allclose(networks[1].policy(policy, np.moveaxis(rows, -1, 2), is_first, ())[1], last, atol=1e-5)


def test_pixels_are_scaled_inside():
    network = programs(actor_critic(NetworkConfig(), PIXELS))
    policy, _ = drawn(network.init)
    rows = np.full((1, 1, 36, 40, 2), 255, np.uint8)
    features = network.policy(policy, rows, np.zeros((1, 1), bool), ())[1]
    as_floats = network.policy(policy, rows.astype(np.float32) / 255, np.zeros((1, 1), bool), ())[1]
    np.testing.assert_allclose(features, as_floats, atol=1e-5)


@pytest.mark.parametrize(("shape", "torso"), [((5,), "auto"), ((4, 6), "auto"), ((9, 9, 3), "mlp")])
def test_bytes_that_are_no_image_are_scaled_as_pixels_are(shape, torso):
    spec = EnvSpec(ArraySpec(shape, "uint8"), Discrete(6))
    network = programs(actor_critic(NetworkConfig(torso=torso, shared=True), spec))
    policy, _ = drawn(network.init)
    rows = np.random.default_rng(0).integers(0, 256, (1, 2, *shape)).astype(np.uint8)
    features = network.policy(policy, rows, np.zeros((1, 2), bool), ())[1]
    as_floats = network.policy(policy, rows.astype(np.float32) / 255, np.zeros((1, 2), bool), ())[1]
    np.testing.assert_allclose(features, as_floats, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((3, 64, 64), 3),
        ((4, 10, 10), 4),
        ((20, 40, 40), 20),
        ((3, 210, 160), 3),
        ((84, 84, 4), 4),
        ((64, 64, 128), 128),
        ((8, 8, 111), 111),
        ((10, 10, 10), 10),
        ((6, 7, 2), 2),
    ],
)
def test_an_image_whose_first_axis_is_the_shortest_has_its_channels_first(shape, channels):
    (leaf,) = observation_leaves(EnvSpec(ArraySpec(shape, "uint8"), Discrete(2)))
    assert leaf.is_image and shape[0 if leaf.channels_first else 2] == channels


class Counting(gymnasium.Env):
    """Images of 2 x 2 pixels, each 20 brighter than the one before."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.shown = np.arange(12, dtype=np.uint8).reshape(2, 2, 3) + np.uint8(20)
        return self.shown, {}

    def step(self, action):
        self.shown = self.shown + np.uint8(20)
        return self.shown, 0.0, False, False, {}


def test_a_stack_of_frames_is_read_as_stable_baselines3_stacks_them():
    """Gymnasium's wrapper, and the channels of VecFrameStack of Stable-Baselines3 2.9.2 after a reset and a step."""
    env = gymnasium.wrappers.FrameStackObservation(Counting(), 2, padding_type="zero")
    (leaf,) = observation_leaves(EnvSpec(ArraySpec((2, 2, 2, 3), "uint8"), Discrete(2)))
    reset = [[[0, 0, 0, 20, 21, 22], [0, 0, 0, 23, 24, 25]], [[0, 0, 0, 26, 27, 28], [0, 0, 0, 29, 30, 31]]]
    step = [[[20, 21, 22, 40, 41, 42], [23, 24, 25, 43, 44, 45]], [[26, 27, 28, 46, 47, 48], [29, 30, 31, 49, 50, 51]]]
    np.testing.assert_array_equal(as_image(leaf, jnp.asarray(env.reset()[0])), reset)
    np.testing.assert_array_equal(as_image(leaf, jnp.asarray(env.step(0)[0][None])), [step])


@pytest.mark.parametrize("shape", [(2, 40, 36, 3), (2, 3, 40, 36)])
def test_a_stack_is_read_by_the_same_torso_whatever_its_layout(shape):
    stacked = EnvSpec(ArraySpec(shape, "uint8"), Discrete(6))
    joined = EnvSpec(ArraySpec((40, 36, 6), "uint8"), Discrete(6))
    rows = make_rows(stacked, 1, 2)
    (leaf,) = observation_leaves(stacked)
    network, other = (programs(actor_critic(NetworkConfig(), spec)) for spec in (stacked, joined))
    policy, _ = drawn(other.init)
    read = (np.zeros((1, 2), bool), ())
    features = other.policy(policy, np.asarray(as_image(leaf, jnp.asarray(rows))), *read)[1]
    np.testing.assert_array_equal(network.policy(policy, rows, *read)[1], features)


class OwnTorso(nn.Module):
    """Doubles its input."""

    @nn.compact
    def __call__(self, observation):
        return 2.0 * observation


class NnxTorso(nnx.Module):
    """Multiplies its input by the factor it was made with."""

    def __init__(self, factor: float = 2.0, *, rngs: nnx.Rngs) -> None:
        self.factor = factor

    def __call__(self, observation):
        return self.factor * observation


@pytest.mark.parametrize(
    "torso",
    [OwnTorso(), OwnTorso, NnxTorso, functools.partial(NnxTorso, factor=2.0), nnx.bridge.ToLinen(NnxTorso)],
    ids=["module", "class", "nnx", "nnx partial", "nnx bridge"],
)
def test_user_torso(torso):
    network = programs(actor_critic(NetworkConfig(torso=torso), VECTOR))
    policy, value = drawn(network.init)
    rows = make_rows(VECTOR, 2, 2)
    np.testing.assert_array_equal(network.policy(policy, rows, np.zeros((2, 2), bool), ())[1], 2.0 * rows)
    assert network.value(value, rows, None).shape == (2, 2)


class Unshaped(nn.Module):
    """A torso that loses the axes of time and environments."""

    @nn.compact
    def __call__(self, observation):
        return observation.reshape(-1)


@pytest.mark.parametrize(
    ("options", "spec", "message"),
    [
        ({"torso": "nature"}, VECTOR, "unknown network torso 'nature'; did you mean 'nature_cnn'"),
        ({"core": "gruu"}, VECTOR, "did you mean gru"),
        ({"activation": "tan"}, VECTOR, "did you mean tanh"),
        ({"torso": "nature_cnn"}, VECTOR, "needs an image"),
        ({"torso": "nature_cnn"}, MIXED, "at least 36 x 36"),
        ({"precision": "bfloat"}, VECTOR, "did you mean bfloat16"),
        ({"torso": "flax.linen:Dense", "precision": "bfloat16"}, VECTOR, "leave precision out"),
        ({"torso": 3}, VECTOR, "torso 3 is int, not a flax.linen or flax.nnx module"),
        (
            {"torso": "tests.networks.test_model:Unshaped"},
            VECTOR,
            r"to \(\d+,\); expected features of shape \(1, 1, F\)",
        ),
    ],
)
def test_invalid_models_are_refused(options, spec, message):
    with pytest.raises(ConfigError, match=message):
        actor_critic(NetworkConfig(**options), spec)


def test_refuses_an_observation_of_a_mask_only():
    spec = EnvSpec({"action_mask": ArraySpec((3,), "uint8")}, Discrete(3))
    with pytest.raises(ConfigError, match="only an action mask"):
        actor_critic(NetworkConfig(), spec)


@pytest.mark.parametrize(
    "shape",
    [(4, 64), slow((64, 64)), slow((64, 6)), nightly((1, 5)), (96, 1), (3, 3, 4, 16), (100, 35), nightly((96, 96))],
    ids=str,
)
def test_equals_jax_orthogonal_for_the_same_key(shape):
    key = jax.random.key(7)
    expected = jax.nn.initializers.orthogonal(1.5)(key, shape, jnp.float32)
    np.testing.assert_allclose(orthogonal(1.5)(key, shape), expected, atol=2e-5)


@pytest.mark.slow
def test_columns_of_an_ill_conditioned_matrix_are_orthonormal():
    random = np.random.default_rng(0)
    left, _ = np.linalg.qr(random.normal(size=(200, 80)))
    right, _ = np.linalg.qr(random.normal(size=(80, 80)))
    matrix = (left * np.logspace(0, -4, 80)) @ right.T  # a condition number of 10^4, more than a normal matrix has
    q = np.asarray(orthonormal_columns(jnp.asarray(matrix, jnp.float32)), np.float64)
    np.testing.assert_allclose(q.T @ q, np.eye(80), atol=1e-5)
    r = q.T @ matrix
    np.testing.assert_allclose(np.tril(r, -1), 0.0, atol=1e-5)
    assert (np.diag(r) > 0).all()


def test_no_lapack_kernel_is_compiled():
    """In jaxlib 0.10, as many concurrent LAPACK kernels as cores wait for each other forever."""
    init = orthogonal()
    compiled = (
        jax.jit(lambda key: [init(k, (8, 8)) for k in jax.random.split(key, 4)]).lower(jax.random.key(0)).as_text()
    )
    assert "lapack" not in compiled
    factorised = jax.jit(jnp.linalg.qr).lower(jnp.eye(3)).as_text()
    assert "lapack" in factorised or jax.default_backend() != "cpu"
