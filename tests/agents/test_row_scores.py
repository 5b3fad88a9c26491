"""Scores of games: agents that compute scores also score games that they must not train on."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jsrl.agents.happo import HAPPOConfig, happo
from jsrl.agents.impala import IMPALAConfig, impala
from jsrl.agents.mappo import MAPPOConfig, mappo
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.rows import row_scores
from jsrl.networks.model import NetworkConfig
from jsrl.types import ONLY_SCORED, ArraySpec, Discrete, EnvSpec, make_trajectory_spec, zeros
from tests.agents.compiled import compiled
from tests.marks import marked

T, B, N = 3, 4, 2
NETWORK = NetworkConfig(hidden=(4,))
SPEC = EnvSpec(ArraySpec((N, 2), "float32"), Discrete(3), num_agents=N, state=ArraySpec((2,), "float32"))
STEPS = {"num_epochs": 2, "num_minibatches": 1, "normalize_advantages": True, "normalize_observations": True}
AGENTS = {
    "ppo": lambda: ppo(PPOConfig(network=NETWORK, **STEPS), SPEC),
    "mappo": lambda: mappo(MAPPOConfig(network=NETWORK, critic_network=NETWORK, **STEPS), SPEC),
    "ppo with V-trace": lambda: ppo(PPOConfig(network=NETWORK, returns="vtrace", **STEPS), SPEC),
    "happo": lambda: happo(HAPPOConfig(network=NETWORK, critic_network=NETWORK, **STEPS), SPEC),
    "impala": lambda: impala(IMPALAConfig(network=NETWORK, normalize_observations=True), SPEC),
}  # fmt: skip


@pytest.mark.parametrize("name", marked(AGENTS, slow=AGENTS.keys() - {"ppo", "happo"}, nightly={"happo"}))
def test_scored_games_are_not_trained_on_and_get_scores(name):
    agent, draws = AGENTS[name](), np.random.default_rng(0)
    rows = zeros(make_trajectory_spec(SPEC, (), (), num_rows=T, num_envs=B, scored=True))
    rows = jax.tree.map(np.array, rows)
    rows.observation[...] = draws.normal(size=rows.observation.shape)
    rows.reward[...], rows.discount[...], rows.acts[...] = draws.normal(size=rows.reward.shape), 1.0, 1
    rows.log_prob[...] = -np.log(3.0)
    game = np.broadcast_to(np.arange(B, dtype=np.int32), (T + 1, B))
    others = rows._replace(game=game.copy())
    others.game[:, 2:] = ONLY_SCORED - others.game[:, 2:]
    changed = jax.tree.map(np.copy, others)
    changed.observation[:, 2:], changed.reward[:, 2:] = 7.0, 100.0

    state, update = compiled(agent.init)(jax.random.key(0)), compiled(agent.update)
    all_trained = update(state, rows._replace(game=game), jax.random.key(1))
    found = [update(state, trajectory, jax.random.key(1)) for trajectory in (others, changed)]
    jax.tree.map(np.testing.assert_array_equal, found[0][0], found[1][0])
    weights = [jax.tree.leaves(new.params) for new in (all_trained[0], found[0][0])]
    assert any((one != other).any() for one, other in zip(*weights, strict=True))

    scores = found[0][1].priorities
    assert scores.shape == (B, T, 5) and (scores[..., 3] > 0).all() and (scores[..., 0] > 0).all()
    np.testing.assert_allclose(scores, all_trained[1].priorities, rtol=1e-5)
    assert (found[1][1].priorities[2:, :, 0] > scores[2:, :, 0]).all()


def test_sums_of_a_row_are_those_of_its_trained_agents() -> None:
    """Two agents, two rows, one environment; the second agent waits in the second row."""
    rows = zeros(make_trajectory_spec(SPEC, (), (), num_rows=2, num_envs=1, scored=True))
    rows = rows._replace(reward=np.array([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]))  # folded: [T+1, B * N]
    target, value = np.array([[5.0, 1.0], [2.0, 9.0]]), np.array([[2.0, 3.0], [4.0, 0.0]])
    found = row_scores(rows, target, value, np.array([[1.0, 1.0], [1.0, 0.0]]), N)
    assert found is not None
    np.testing.assert_allclose(found, [[[5.0, 3.0, 5.0, 2.0, 1.5], [2.0, 0.0, 4.0, 1.0, 3.5]]])
