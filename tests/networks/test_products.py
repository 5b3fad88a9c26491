"""Mixed precision: operands rounded to bfloat16, sums and everything else in float32."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from jsrl.agents.check import check_agent
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.sac import SACConfig, sac
from jsrl.networks.images import ImpalaResNet, NatureCNN
from jsrl.networks.kernels import conv
from jsrl.networks.model import NetworkConfig, actor_critic
from jsrl.networks.torsos import MLP, dense
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec
from tests.marks import nightly
from tests.networks.test_conv import CASES, native

LOW = {"precision": "bfloat16"}


def rounded(x) -> np.ndarray:
    """Return the values of bfloat16, as float64."""
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.fixture(params=["cpu", "default"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the form of the layers that is computed here: that of CPUs, or that of other backends."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, **forms: forms[request.param](*args))
    return str(request.param)


def test_dense_layer_and_gradients_equal_rounded_operands(form: str) -> None:
    rng = np.random.default_rng(0)
    x, gradient = (rng.normal(size=(5, 7, width)).astype(np.float32) for width in (300, 20))
    layer = dense(20, precision="bfloat16")
    weights = layer.init(jax.random.key(0), x)
    kernel = np.asarray(weights["params"]["kernel"])
    new = jax.jit(lambda w, x: layer.apply(w, x))  # noqa: PLW0108 - layer.apply may be traced with the other form
    out, pull = jax.vjp(new, weights, x)
    d_weights, d_x = pull(jnp.asarray(gradient))
    np.testing.assert_allclose(out, rounded(x) @ rounded(kernel), atol=1e-5)
    np.testing.assert_allclose(d_x, rounded(gradient) @ rounded(kernel).T, atol=1e-5)
    factors = (x.astype(np.float64), gradient.astype(np.float64)) if form == "cpu" else (rounded(x), rounded(gradient))
    np.testing.assert_allclose(d_weights["params"]["kernel"], np.einsum("tbf,tbo->fo", *factors), atol=1e-4)
    assert np.abs(out - x @ kernel).max() > 1e-3  # rounding is visible: this test can fail
    assert {leaf.dtype for leaf in jax.tree.leaves((out, d_x, d_weights, weights))} == {np.dtype("float32")}


def test_first_layer_is_not_rounded() -> None:
    x = jnp.linspace(1000.0, 1001.0, 12).reshape(4, 3)  # bfloat16 can represent 1000 and 1004 only
    one, two = (MLP(hidden, **LOW) for hidden in ((8,), (8, 8)))
    weights = two.init(jax.random.key(0), x)
    first = {"params": {"Dense_0": weights["params"]["Dense_0"]}}
    np.testing.assert_array_equal(one.apply(first, x), MLP((8,)).apply(first, x))
    assert np.abs(two.apply(weights, x) - MLP((8, 8)).apply(weights, x)).max() > 1e-5


@pytest.mark.parametrize("case", [CASES[i] for i in (0, 2, 5, 6)], ids=str)
def test_convolution_equals_rounded_operands(case, form: str) -> None:
    height, width, c_in, c_out, size, stride, padding, batch_first = case
    rng = np.random.default_rng(0)
    shape = (3, height, width, c_in) if batch_first else (height, width, 3, c_in)
    x = jnp.asarray(rng.normal(size=shape), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(size, size, c_in, c_out)) / (size * c_in**0.5), jnp.float32)
    low = [jnp.asarray(rounded(operand), jnp.float32) for operand in (x, kernel)]
    expected, pull_expected = jax.vjp(lambda x, k: native(x, k, stride, padding, batch_first), *low)
    options = {"stride": stride, "padding": padding, "batch_first": batch_first, **LOW}
    given, pull = jax.vjp(jax.jit(lambda x, k: conv.conv(x, k, **options)), x, kernel)
    result = 0.0 if form == "cpu" else 2.0**-8  # the others round results to bfloat16, too
    np.testing.assert_allclose(given, expected, rtol=result, atol=2e-6)
    weight = jnp.asarray(rounded(rng.normal(size=expected.shape)), jnp.float32)
    d_x, d_kernel = pull(weight)
    np.testing.assert_allclose(d_x, pull_expected(weight)[0], rtol=result, atol=1e-5)
    if form == "cpu":
        _, pull_kernel = jax.vjp(lambda k: native(x, k, stride, padding, batch_first), kernel)  # not rounded on CPUs
        np.testing.assert_allclose(d_kernel, pull_kernel(weight)[0], atol=5e-5)
    else:
        np.testing.assert_allclose(d_kernel, pull_expected(weight)[1], rtol=result, atol=5e-5)
    assert {leaf.dtype for leaf in (given, d_x, d_kernel)} == {np.dtype("float32")}


def test_other_backends_multiply_rounded_operands() -> None:
    image = jnp.zeros((2, 84, 84, 4), jnp.uint8)
    torso = NatureCNN(**LOW)
    weights = jax.eval_shape(torso.init, jax.random.key(0), image)
    traced = jax.jit(jax.grad(lambda w: torso.apply(w, image).sum())).trace(weights)
    lines = traced.lower(lowering_platforms=("cuda",)).as_text().splitlines()
    products = [line for line in lines if "stablehlo.convolution" in line or "stablehlo.dot_general" in line]
    assert (
        len(products) == 3 + 3 + 2 + 1 + 2
    )  # forward, gradients of kernels and of inputs; the three of the linear layer
    for line in products:
        operands = line.rsplit(" : (", 1)[1].split(") -> ")[0]
        assert operands.count("bf16") == 2, line


@pytest.mark.slow
@pytest.mark.parametrize("torso", [NatureCNN, nightly(ImpalaResNet)])
def test_image_torsos_differ_by_rounding_only(torso) -> None:
    image = jnp.asarray(np.random.default_rng(0).integers(0, 256, (3, 40, 40, 4)), jnp.uint8)
    weights = torso().init(jax.random.key(0), image)
    exact, low = torso().apply(weights, image), torso(**LOW).apply(weights, image)
    difference = float(jnp.abs(low - exact).max() / jnp.abs(exact).max())
    assert 1e-5 < difference < 0.02


VECTORS = EnvSpec(ArraySpec((5,), "float32"), Continuous((-1.0,) * 2, (1.0,) * 2, "squash"))


MAKERS = {"ppo": lambda n: ppo(PPOConfig(network=n), VECTORS), "sac": lambda n: sac(SACConfig(network=n), VECTORS)}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["ppo", nightly("sac")])
def test_agents_still_pass_check_agent(name: str) -> None:
    check_agent(MAKERS[name](NetworkConfig(hidden=(16, 16), **LOW)), VECTORS)


def test_option_applies_to_all_layers_but_first_and_head() -> None:
    spec = EnvSpec(ArraySpec((5,), "float32"), Discrete(3))
    network = actor_critic(NetworkConfig(hidden=(8, 8, 8), **LOW), spec)
    policy, value = network.init(jax.random.key(0))
    observation = jnp.zeros((1, 2, 5))

    def forward(policy, value):
        _, features, _ = network.policy(policy, observation, jnp.zeros((1, 2), bool), ())
        return network.value(value, observation, features)

    text = jax.jit(forward).lower(policy, value).as_text()
    assert sum("dot_general" in line and line.count("bf16>") == 2 for line in text.splitlines()) == 2
