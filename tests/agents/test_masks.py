"""Action masks reach acting and the losses: a single allowed action is played with probability 1."""

import jax
import numpy as np
import pytest

from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_trajectory_spec, zeros
from tests.marks import slow

T, B, A = 3, 4, 5
NETWORK = NetworkConfig(hidden=(8,))
OBSERVATION = {"observation": ArraySpec((2,), "float32"), "action_mask": ArraySpec((A,), "uint8")}
SPEC = EnvSpec(OBSERVATION, Discrete(A))
AGENTS = {
    "ppo": lambda: ppo(PPOConfig(network=NETWORK), SPEC),
    "impala": lambda: impala(IMPALAConfig(network=NETWORK), SPEC),
}


@pytest.fixture(params=["ppo", slow("impala")])
def agent(request):
    return AGENTS[request.param]()


def one_allowed(shape: tuple[int, ...]):
    """Return (the allowed action of each row, observations)."""
    rng = np.random.default_rng(0)
    action = rng.integers(A, size=shape).astype(np.int32)
    mask = np.eye(A, dtype=np.uint8)[action]
    return action, {"observation": rng.normal(size=(*shape, 2)).astype(np.float32), "action_mask": mask}


def test_the_only_allowed_action_is_played(agent):
    params = jax.jit(agent.init)(jax.random.key(0)).params
    act = jax.jit(agent.act, static_argnames="greedy")
    action, observation = one_allowed((16,))
    for greedy in (False, True):
        reply, _ = act(params, jax.random.key(1), observation, np.ones(16, bool), (), greedy=greedy)
        np.testing.assert_array_equal(reply.action, action)
        np.testing.assert_allclose(reply.log_prob, 0.0, atol=1e-5)


def test_one_allowed_action_gives_no_policy_gradient(agent):
    action, observation = one_allowed((T + 1, B))
    rows = zeros(make_trajectory_spec(SPEC, (), (), num_rows=T, num_envs=B))
    ones = np.ones_like(rows.reward)
    rows = rows._replace(observation=observation, action=action, acts=ones.astype(np.uint8), reward=ones)
    state = jax.jit(agent.init)(jax.random.key(0))
    new, output = jax.jit(agent.update)(state, rows, jax.random.key(1))
    assert float(output.metrics["entropy"]) == pytest.approx(0.0, abs=1e-5)
    assert float(output.metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-5)
    jax.tree.map(np.testing.assert_array_equal, new.params.weights, state.params.weights)
