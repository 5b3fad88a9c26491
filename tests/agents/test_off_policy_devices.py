"""One device against four fake ones, in a separate process: the same state up to rounding, noise included."""

import subprocess
import sys

import pytest

from tests.fake_devices import fake_devices
from tests.marks import nightly

pytestmark = pytest.mark.slow  # compiling takes minutes in total

SCRIPT = """
import sys
import jax, numpy as np, optax
from jsrl.agents import actor_critic as ac
from jsrl.agents.bc import BCConfig, bc
from jsrl.agents.ddpg import DDPGConfig, ddpg
from jsrl.agents.dqn import DQNConfig, dqn
from jsrl.agents.r2d2 import R2D2Config, r2d2
from jsrl.agents.happo import HAPPOConfig, happo
from jsrl.agents.ppg import PPGConfig, ppg
from jsrl.agents.pqn import PQNConfig, pqn
from jsrl.agents.qmix import QMIXConfig, qmix
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.sac import SACConfig, sac
from jsrl.agents.td3 import TD3Config, td3
from jsrl.agents.vdn import RecurrentVDNConfig, recurrent_vdn
from jsrl.networks.model import NetworkConfig
from jsrl.parallel import data_parallel, join_devices, split_devices
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec
from tests.parallel_cases import replicas

clipped = []

def descent(name, *, eps, max_grad_norm):  # Adam would hide a gradient that is four times too large
    clipped.append(max_grad_norm)
    return optax.clip_by_global_norm(0.05)

ac.make_optimizer = descent
assert jax.local_device_count() == 4
T, B = 4, 16
network = NetworkConfig(hidden=(16,), activation="tanh")
recurrent = NetworkConfig(hidden=(16,), core="gru", core_size=8)
common = dict(learning_rate=0.3, normalize_observations=True)
value = dict(common, total_updates=100, network=network, target_period=2)
chosen = {
    "sac": (Continuous((-1.0,) * 2, (1.0,) * 2, "squash"), sac, SACConfig(**common, network=network, policy_delay=2)),
    "sac-discrete": (Discrete(3), sac, SACConfig(**common, network=network)),
    "td3": (Continuous((-1.0,) * 2, (1.0,) * 2), td3, TD3Config(**common, network=network)),
    "ddpg": (Continuous((-1.0,) * 2, (1.0,) * 2), ddpg, DDPGConfig(**common, network=network)),
    "dqn": (Discrete(3), dqn, DQNConfig(**value, num_atoms=5)),
    "r2d2": (Discrete(3), r2d2, R2D2Config(**common, network=recurrent, burn_in=1, target_period=2)),
    "ppg": (
        Discrete(3),
        ppg,
        PPGConfig(**common, network=network, num_minibatches=1, phase_rows=T * B, aux_minibatches=1, aux_epochs=2),
    ),
    "pqn": (Discrete(3), pqn, PQNConfig(**common, total_updates=100, network=network, num_minibatches=1)),
    "bc": (Discrete(3), bc, BCConfig(**common, network=recurrent)),
    "qmix": (Discrete(3), qmix, QMIXConfig(**value)),
    "recurrent-vdn": (
        Discrete(3), recurrent_vdn, RecurrentVDNConfig(**common, network=recurrent, burn_in=1, target_period=2)
    ),
    "happo": (Discrete(3), happo, HAPPOConfig(**common, network=network, critic_network=network, num_epochs=2)),
}
action, make, config = chosen[sys.argv[1]]
spec = EnvSpec(ArraySpec((3,), "float32"), action)
if sys.argv[1] in ("qmix", "recurrent-vdn", "happo"):
    spec = EnvSpec(ArraySpec((2, 3), "float32"), action, num_agents=2, state=ArraySpec((4,), "float32"))
agent, rng = make(config, spec), np.random.default_rng(0)
update, spread = jax.jit(agent.update), data_parallel(agent.update, donate=False)
one = jax.jit(agent.init)(jax.random.key(0))
four = spread.place(one)
for step in range(3):
    core = jax.tree.map(np.asarray, agent.initial_core(B))
    t = random_trajectory(spec, rng, num_rows=T, num_envs=B, extras=(), core=core, weighted=True)
    acts = t.acts.copy()
    acts[:, :4] = rng.random(acts[:, :4].shape) < 0.3  # the first device has far fewer rows than the others
    t = t._replace(acts=acts, observation=3 * t.observation + 1, reward=5 * t.reward + 3)
    key = jax.random.key(step)
    one, output = update(one, t, key)
    four, every = spread(four, split_devices(t, 4), key)
    for device in replicas(four):  # every device, not only the first, holds the one-device state
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=5e-4, atol=5e-6), device, one)
    for metrics in replicas(every.metrics):
        for name, value in output.metrics.items():
            np.testing.assert_allclose(metrics[name], value, rtol=2e-3, atol=2e-5, err_msg=name)
    if output.priorities is not None:
        np.testing.assert_allclose(join_devices(every.priorities), output.priorities, rtol=2e-3, atol=2e-5)
assert clipped
print("equal")
"""


@pytest.mark.parametrize(
    "algorithm",
    [
        "sac",
        nightly("td3"),
        nightly("dqn"),
        nightly("r2d2"),
        nightly("qmix"),
        nightly("happo"),  # separate policies
        nightly("sac-discrete"),
        nightly("ddpg"),  # one critic
        nightly("ppg"),  # rows of all devices are kept on each
        nightly("pqn"),  # returns of fresh rows
        nightly("bc"),  # a mean over rows
        nightly("recurrent-vdn"),  # R2D2 in a team
    ],
)
def test_one_device_equals_four(algorithm):
    environment = fake_devices(4)
    command = [sys.executable, "-c", SCRIPT, algorithm]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1] == "equal"
