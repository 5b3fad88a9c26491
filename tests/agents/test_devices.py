"""One device against four fake ones, in a separate process: the same state on every device, up to rounding."""

import json
import subprocess
import sys

import pytest

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
    optimizer="sgd", learning_rate=0.3, max_grad_norm=0.05, normalize_advantages=True, normalize_observations=True,
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
