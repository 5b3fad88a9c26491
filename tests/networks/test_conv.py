import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.networks.kernels import conv
from jsrl.networks.kernels.pooling import max_pool
from tests.marks import slow

CASES = [  # height, width, C_in, C_out, k, stride, padding, batch_first
    (36, 40, 4, 8, 8, 4, "VALID", True),
    (37, 38, 4, 8, 8, 4, "VALID", True),  # rows and columns outside all windows
    (12, 10, 3, 6, 4, 2, "VALID", False),
    slow((9, 7, 5, 6, 3, 1, "VALID", False)),
    slow((13, 11, 3, 5, 3, 1, "SAME", False)),
    (13, 12, 3, 5, 4, 2, "SAME", True),
    slow((11, 14, 3, 5, 4, 2, "SAME", False)),
]


def native(x, kernel, stride, padding, batch_first):
    layout = ("NHWC" if batch_first else "HWNC", "HWIO", "HWNC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=layout)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_lax(case):
    height, width, c_in, c_out, size, stride, padding, batch_first = case
    rng = np.random.default_rng(0)
    shape = (3, height, width, c_in) if batch_first else (height, width, 3, c_in)
    x = jnp.asarray(rng.normal(size=shape), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(size, size, c_in, c_out)) / (size * c_in**0.5), jnp.float32)
    expected, pull_expected = jax.vjp(lambda x, k: native(x, k, stride, padding, batch_first), x, kernel)
    options = {"stride": stride, "padding": padding, "batch_first": batch_first}
    given, pull = jax.vjp(jax.jit(lambda x, k: conv.conv(x, k, **options)), x, kernel)
    np.testing.assert_allclose(given, expected, atol=2e-6)
    weight = jnp.asarray(rng.normal(size=expected.shape), jnp.float32)
    for ours, theirs in zip(pull(weight), pull_expected(weight), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6 * float(jnp.abs(theirs).max()) + 1e-6)


def test_forms_of_both_backends_are_the_same_function():
    x = jax.random.normal(jax.random.key(0), (12, 12, 3, 4))
    kernel = jax.random.normal(jax.random.key(1), (4, 4, 4, 6)) / 8
    pads = ((0, 0), (0, 0))
    np.testing.assert_allclose(
        conv.native_conv(2, pads, False, x, kernel), conv.product_conv(2, pads, False, x, kernel), atol=2e-6
    )


def test_lowers_to_the_form_of_the_platform():
    def gradient(x, kernel):
        return jax.grad(lambda k: conv.conv(x, k, stride=4, batch_first=True).sum())(kernel)

    arguments = jnp.zeros((2, 36, 36, 4), jnp.uint8), jnp.zeros((8, 8, 4, 16))
    traced = jax.jit(gradient).trace(*arguments)
    assert "stablehlo.convolution" not in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "stablehlo.convolution" in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.convolution" in traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.slow
def test_pixels_are_cast_and_have_a_kernel_gradient():
    x = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 36, 36, 4)), jnp.uint8)
    kernel = jax.random.normal(jax.random.key(0), (8, 8, 4, 6)) / 255
    ours = jax.grad(lambda k: jnp.square(conv.conv(x, k, stride=4, batch_first=True)).sum())(kernel)
    theirs = jax.grad(lambda k: jnp.square(native(x.astype(jnp.float32), k, 4, "VALID", True)).sum())(kernel)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * float(jnp.abs(theirs).max()))


@pytest.mark.slow
def test_works_inside_scan():
    images = jax.random.normal(jax.random.key(0), (4, 9, 9, 2, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 5)) / 5

    def step(kernel, x):
        return kernel - 0.01 * jax.grad(lambda k: jnp.square(conv.conv(x, k)).mean())(kernel), None

    looped, _ = jax.jit(lambda k: jax.lax.scan(step, k, images))(kernel)
    for x in images:
        kernel, _ = step(kernel, x)
    np.testing.assert_allclose(looped, kernel, atol=1e-6)


def test_refuses_windows_that_are_no_multiple_of_the_stride():
    with pytest.raises(ValueError, match="the 3 x 3 window of a convolution is no multiple of its stride 2"):
        conv.conv(jnp.zeros((9, 9, 1, 3)), jnp.zeros((3, 3, 3, 4)), stride=2)


def test_refuses_images_smaller_than_the_window():
    with pytest.raises(ValueError, match="image of 5 x 9 is smaller than the 8 x 8 window"):
        conv.conv(jnp.zeros((5, 9, 1, 3)), jnp.zeros((8, 8, 3, 4)), stride=4)


@pytest.mark.parametrize("shape", [(84, 84), (13, 12), (5, 7), slow((1, 2))], ids=str)
def test_max_pool_equals_lax_also_in_ties(shape):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 3, (*shape, 2, 3)), jnp.float32)

    def lax_pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 3, 1, 1), (2, 2, 1, 1), "SAME")

    expected, pull_expected = jax.vjp(lax_pool, x)
    given, pull = jax.vjp(jax.jit(max_pool), x)
    np.testing.assert_array_equal(given, expected)
    weight = jnp.asarray(rng.normal(size=expected.shape), jnp.float32)
    np.testing.assert_allclose(pull(weight)[0], pull_expected(weight)[0], atol=1e-5)
