"""Time the implementations of convolution on this backend: the Nature CNN's rows per second, arms alternating.

    python benchmarks/conv.py [--batch 512] [--rounds 5]

infer: forward pass. train: forward and backward. scan: train inside `lax.scan` over 4 minibatches with a gradient step.
One math thread; every figure is the best of `rounds`, because other load only slows a run down.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.networks.images import NatureCNN
from jsrl.networks.kernels import conv
from jsrl.networks.kernels.products import Precision

NUM_MINIBATCHES = 4


def native(stride: int, pads: conv.Pads, batch_first: bool, precision: Precision, x: jax.Array, kernel: jax.Array):
    """Convolve with XLA's convolution, differentiated by XLA."""
    return conv.native_conv(stride, pads, batch_first, x, kernel, precision)


def shifted(stride: int, pads: conv.Pads, batch_first: bool, precision: Precision, x: jax.Array, kernel: jax.Array):
    """Convolve with shifted products, differentiated by JAX."""
    return conv.product_conv(stride, pads, batch_first, x, kernel, precision)


FORMS: dict[str, tuple[Callable, Precision]] = {
    "lax.conv": (native, "float32"),
    "shifted, autodiff": (shifted, "float32"),
    "jsrl": (conv._conv, "float32"),
    "jsrl, bfloat16": (conv._conv, "bfloat16"),
}


def make_arm(form: Callable, precision: Precision, kind: str, batch: int) -> Callable[[], None]:
    """Return a function that runs one arm once and waits for it."""
    rng = np.random.default_rng(0)
    pixels = jnp.asarray(rng.integers(0, 256, (NUM_MINIBATCHES, batch, 84, 84, 4)), jnp.uint8)
    module = NatureCNN(precision=precision)
    weights = module.init(jax.random.key(0), pixels[0, :1])

    def loss(weights, images):
        features = module.apply(weights, images)
        assert isinstance(features, jax.Array)
        return jnp.mean(jnp.square(features))

    def step(weights, images):
        value, gradient = jax.value_and_grad(loss)(weights, images)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradient), value

    call = {
        "infer": lambda: jax.jit(module.apply).lower(weights, pixels[0]),
        "train": lambda: jax.jit(step).lower(weights, pixels[0]),
        "scan": lambda: jax.jit(partial(jax.lax.scan, step)).lower(weights, pixels),
    }[kind]
    with mock.patch.object(conv, "_conv", form):  # trace this implementation
        compiled = call().compile()
    images = pixels if kind == "scan" else pixels[0]
    return lambda: jax.block_until_ready(compiled(weights, images))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512, help="rows of a minibatch")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all arms")
    parser.add_argument("--slow", action="store_true", help="also time lax.conv inside lax.scan on CPU (minutes)")
    options = parser.parse_args()
    arms: dict[tuple[str, str], Callable[[], None]] = {}
    best: dict[tuple[str, str], float] = {}
    for kind in ("infer", "train", "scan"):
        for name, form in FORMS.items():
            if kind == "scan" and name == "lax.conv" and jax.default_backend() == "cpu" and not options.slow:
                continue
            arms[name, kind] = make_arm(*form, kind, options.batch)
            arms[name, kind]()
    for _ in range(options.rounds):
        for arm, run in arms.items():
            start = time.perf_counter()
            run()
            best[arm] = min(best.get(arm, float("inf")), time.perf_counter() - start)
    sys.stdout.write(f"{jax.default_backend()}, batch {options.batch}, rows/s\n{'form':20} infer  train   scan\n")
    for name in FORMS:
        rows = {kind: options.batch * (NUM_MINIBATCHES if kind == "scan" else 1) for kind in ("infer", "train", "scan")}
        cells = [f"{rows[kind] / best[name, kind]:6.0f}" if (name, kind) in best else "     -" for kind in rows]
        sys.stdout.write(f"{name:20} {' '.join(cells)}\n")


if __name__ == "__main__":
    main()
