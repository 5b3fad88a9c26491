"""One device against four fake ones, in a separate process; the mean gradient over the rows of all devices."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.devices import masked_percentile, mean_gradient, normal_columns
from jsrl.agents.rows import RowMasks
from tests.fake_devices import fake_devices
from tests.marks import nightly

pytestmark = pytest.mark.slow  # compiling takes minutes in total

SCRIPT = """
import json, sys
import jax, numpy as np
from jsrl.agents.base import UpdateOutput
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Discrete, EnvSpec, Trajectory

algorithm, core = sys.argv[1:]
assert jax.local_device_count() == 4
T, B, D = 10, 16, 4
rng = np.random.default_rng(0)
is_first = rng.random((T + 1, B)) < 0.15
acts = np.ones((T + 1, B), np.uint8)
acts[:, :4] = rng.random((T + 1, 4)) < 0.3  # the first device has far fewer rows than the others
spec = EnvSpec(ArraySpec((3,), "float32"), Discrete(4))
common = dict(
    optimizer="sgd", learning_rate=0.3, max_grad_norm=0.05, normalize_observations=True,
    normalize_values=True, network=NetworkConfig(hidden=(16,), core=core, core_size=8), entropy_coef=0.01,
)
if algorithm == "ppo":
    agent = ppo(PPOConfig(num_epochs=3, num_minibatches=1, target_kl=10.0, **common), spec)
else:
    agent = impala(IMPALAConfig(**common), spec)
trajectory = Trajectory(
    observation=(rng.normal(size=(T + 1, B, 3)) * 3 + 1).astype(np.float32), is_first=is_first,
    action=rng.integers(4, size=(T + 1, B)).astype(np.int32),
    reward=(rng.normal(size=(T + 1, B)) * 5 + 3).astype(np.float32), discount=np.ones((T + 1, B), np.float32),
    acts=acts, log_prob=np.log(rng.uniform(0.2, 0.3, (T + 1, B))).astype(np.float32), extras=(),
    version=np.zeros((T + 1, B), np.int64), core=jax.tree.map(np.asarray, agent.initial_core(B)),
)

def split(x, axis):
    return np.stack(np.split(np.asarray(x), D, axis))

shares = jax.tree.map(lambda x: split(x, 1), trajectory._replace(core=()))
shares = shares._replace(core=jax.tree.map(lambda x: split(x, 0), trajectory.core))
update = jax.jit(agent.update)
spread = jax.pmap(lambda s, t, k: agent.update(s, t, k, axis_name="devices"), "devices", in_axes=(None, 0, None))
one = four = jax.jit(agent.init)(jax.random.key(0))
for step in range(3):
    key = jax.random.key(step)
    one, output = update(one, trajectory, key)
    every, every_output = spread(four, shares, key)
    every, every_metrics = jax.tree.map(np.asarray, (every, every_output.metrics))
    for device in range(D):  # every device, not only the first, holds the one-device state
        mine = jax.tree.map(lambda x: x[device], every)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-6), mine, one)
        for name, value in output.metrics.items():
            np.testing.assert_allclose(every_metrics[name][device], value, rtol=2e-3, atol=2e-5, err_msg=name)
    four = jax.tree.map(lambda x: x[0], every)
print(json.dumps({name: float(value) for name, value in output.metrics.items()}))
"""


@pytest.mark.parametrize("core", [nightly("none"), "gru"])
@pytest.mark.parametrize("algorithm", ["ppo", nightly("impala")])
def test_one_device_equals_four(algorithm, core):
    environment = fake_devices(4)
    command = [sys.executable, "-c", SCRIPT, algorithm, core]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    metrics = json.loads(ended.stdout.splitlines()[-1])
    assert metrics["grad_norm"] > 0.05  # gradients were clipped, so a wrong sum of gradients would be noticed


T, B, F, DEVICES = 3, 8, 5, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(T, B, F)).astype(np.float32)
WEIGHT = RNG.random((T, B)).astype(np.float32)
POLICY = np.repeat(np.array([[0, 0, 1, 0, 1, 1, 1, 1]], np.float32), T, axis=0)  # devices have 0, 1, 2 and 2 columns
VALUE = (RNG.random((T, B)) < 0.6).astype(np.float32)


def shares(x):
    return jnp.stack(jnp.split(jnp.asarray(x), DEVICES, axis=1))


def gradients_and_rest(x, weight, masks, axis_name=None):
    """The gradient of a loss with two masks, importance weights, a function of means and a penalty."""

    def loss(weights, mean):
        y = jnp.tanh(x @ weights)
        spread = jnp.sqrt(mean.value(y**2) - mean.value(y) ** 2)
        total = mean.policy(jnp.log(x[..., 0] + 9.0) * y * weight) + 0.3 * spread + 0.1 * jnp.sum(weights**2)
        return total, ({"spread": spread, "loss": total}, y)

    return mean_gradient(loss, jnp.linspace(-1.0, 1.0, F), RowMasks(*masks), axis_name)


def test_gradient_and_metrics_are_those_of_one_device():
    masks = (POLICY, VALUE)
    expected, (metrics, rows) = jax.jit(gradients_and_rest)(X, WEIGHT, masks)
    given = shares(X), shares(WEIGHT), tuple(map(shares, masks))
    spread = jax.vmap(lambda *share: gradients_and_rest(*share, axis_name="devices"), axis_name="devices")
    found, (each, their_rows) = jax.jit(spread)(*given)
    for device in range(DEVICES):
        np.testing.assert_allclose(found[device], expected, rtol=1e-5)
        for name, value in metrics.items():
            np.testing.assert_allclose(each[name][device], value, rtol=1e-5)
    np.testing.assert_array_equal(their_rows, shares(rows))  # values per row stay where they are


def test_gradient_equals_that_of_the_rows_that_count():
    kept = X[POLICY > 0]
    x = np.where(POLICY[..., None] > 0, X, np.nan)  # masked rows do not matter

    def square(weights, x):
        return jnp.square(x @ weights - 1.0)

    weights = jnp.linspace(-1.0, 1.0, F)
    given = jnp.nan_to_num(x)
    found, metric = mean_gradient(
        lambda w, mean: (mean(square(w, given)), mean(square(w, x))), weights, jnp.asarray(POLICY), None
    )
    np.testing.assert_allclose(found, jax.grad(lambda w: jnp.mean(square(w, kept)))(weights), rtol=1e-5)
    np.testing.assert_allclose(metric, jnp.mean(square(weights, kept)), rtol=1e-5)


def test_a_mean_of_something_else_than_rows_is_refused():
    with pytest.raises(ValueError, match=r"values \[3, 8, 5\] got a mask \[3, 8\]"):
        mean_gradient(lambda w, mean: (mean(X * w), ()), jnp.ones(()), jnp.asarray(POLICY), None)


@pytest.mark.slow
def test_percentiles_and_noise_are_those_of_one_device():
    expected = np.percentile(WEIGHT[POLICY > 0], [5, 95])
    np.testing.assert_allclose(masked_percentile(WEIGHT, POLICY, jnp.array([5, 95])), expected, rtol=1e-5)

    def of_share(value, mask):
        found = masked_percentile(value, mask, jnp.array([5, 95]), "devices")
        return found, normal_columns(jax.random.key(0), (2, 3), "devices")

    found, noise = jax.vmap(of_share, axis_name="devices")(shares(WEIGHT), shares(POLICY))
    np.testing.assert_allclose(found, np.broadcast_to(expected, (DEVICES, 2)), rtol=1e-5)
    np.testing.assert_array_equal(np.concatenate(noise), normal_columns(jax.random.key(0), (B, 3), None))
