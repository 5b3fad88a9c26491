"""MAPPO: the inputs of the value function, which the policy does not read, and a game that needs both."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from jsrl.agents.check import check_agent
from jsrl.agents.mappo import CENTRAL, MAPPOConfig, critic_input, critic_size, mappo
from jsrl.agents.ppo import ppo
from jsrl.agents.random_rows import random_trajectory
from jsrl.errors import ConfigError
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Discrete, EnvSpec, spec_of
from tests.agents.test_happo import PLAIN, SPECS, N
from tests.marks import nightly

SMALL = NetworkConfig(hidden=(8,))


def config(**changes) -> MAPPOConfig:
    return MAPPOConfig(**{"network": SMALL, "critic_network": SMALL, "num_epochs": 1} | changes)


def rows_of(spec: EnvSpec, seed: int = 0):
    return random_trajectory(spec, np.random.default_rng(seed), num_rows=4, num_envs=2, extras=(), core=())


@pytest.mark.parametrize(
    ("changes", "spec"),
    [
        nightly({}, "plain"),
        nightly({"critic": "own", "agent_ids": False}, "masked"),
        nightly({"normalize_observations": True}, "with-state"),
        ({"network": NetworkConfig(hidden=(8,), core="gru", core_size=4)}, "masked"),
    ],
)
@pytest.mark.slow
def test_passes_check_agent(changes, spec: str) -> None:
    agent = mappo(config(**changes), SPECS[spec])
    check_agent(agent, SPECS[spec], num_rows=4, num_envs=4)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("critic", ["central", "own"])
def test_value_function_reads_the_inputs_of_the_oracle(spec: str, critic: str) -> None:
    rows, made = rows_of(SPECS[spec]), config(critic=critic)
    rows.acts[2, 1, 0] = 2
    found = np.asarray(jax.jit(lambda t: critic_input(made, t, N))(rows))
    assert found.shape == (5, 2, N, critic_size(made, SPECS[spec]))
    see = rows.observation if spec != "masked" else rows.observation["see"]
    for t, b, i in np.ndindex(5, 2, N):
        wanted = [see[t, b, i]] if critic == "own" else [see[t, b].ravel()]
        if spec == "with-state" and critic == "central":
            wanted = [rows.state["map"][t, b].ravel(), rows.state["time"][t, b].ravel(), see[t, b, i]]
        if rows.acts[t, b, i] == 2:  # dead: all zeros but its number
            wanted = [np.zeros_like(part) for part in wanted]
        np.testing.assert_allclose(found[t, b, i], np.concatenate([*wanted, np.eye(N)[i]]), rtol=1e-6)


def test_published_params_exclude_the_value_function() -> None:
    agent = mappo(config(), SPECS["with-state"])
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    inputs = {leaf.shape[0] for leaf in jax.tree.leaves(shapes.params.weights["torso"]) if len(leaf.shape) == 2}
    assert inputs == {4 + N} and CENTRAL not in str(jax.tree.structure(shapes.params))
    rows = rows_of(SPECS["with-state"])
    key, request = jax.random.key(1), (rows.observation[0], rows.is_first[0], ())
    acted, _ = jax.eval_shape(agent.act, shapes.params, key, *request)
    assert spec_of(acted.action) == ArraySpec((2, N), "int32")


@pytest.mark.slow
def test_seats_sharing_a_policy_are_told_apart_by_seat_number() -> None:
    """All seats observe the same and are rewarded for choosing three different actions, which needs seat numbers."""
    spec = EnvSpec(ArraySpec((N, 1), "float32"), Discrete(N), "choose", num_agents=N)
    told, blind = _play(spec, agent_ids=True), _play(spec, agent_ids=False)
    assert told > 0.95 and blind < 0.6


def _play(spec: EnvSpec, *, agent_ids: bool) -> float:
    """Return the share of sampled actions that are the seat's own number, after some updates with one-step episodes."""
    agent = mappo(config(agent_ids=agent_ids, learning_rate=0.02, entropy_coef=0.0, num_epochs=4), spec)
    state, update, act = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update), jax.jit(agent.act)
    rows = rows_of_size(spec, 1, 64)
    for number in range(40):
        acted, _ = act(state.params, jax.random.key(2 * number), rows.observation[0], rows.is_first[0], ())
        right = (np.asarray(acted.action) == np.arange(N)).astype(np.float32)
        batch = rows._replace(
            action=np.stack([acted.action, acted.action]),
            log_prob=np.stack([acted.log_prob, acted.log_prob]),
            reward=np.stack([right, 0 * right]),
            discount=np.zeros_like(rows.discount),
        )
        state, _ = update(state, batch, jax.random.key(2 * number + 1))
    return float(right.mean())


def rows_of_size(spec: EnvSpec, num_rows: int, num_envs: int):
    rows = random_trajectory(spec, np.random.default_rng(0), num_rows=num_rows, num_envs=num_envs, extras=(), core=())
    zeros = np.zeros_like(rows.observation)
    return rows._replace(observation=zeros, is_first=np.zeros_like(rows.is_first), acts=np.ones_like(rows.acts))


@pytest.mark.parametrize("rewards", ["own", "team"])
def test_ppo_learns_from_own_or_mean_rewards(rewards: str, monkeypatch) -> None:
    def learns_nothing(*args):
        return ppo(*args)._replace(update=lambda state, trajectory, key, axis_name: trajectory)

    monkeypatch.setattr("jsrl.agents.mappo.ppo", learns_nothing)
    rows = rows_of(PLAIN)
    read = mappo(config(rewards=rewards), PLAIN).update(None, rows, jax.random.key(0)).reward
    mean = np.broadcast_to(rows.reward.mean(axis=-1, keepdims=True), rows.reward.shape)
    np.testing.assert_allclose(read, mean if rewards == "team" else rows.reward, rtol=1e-6)


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="game has one agent; MAPPO and IPPO are for environments with several seats"):
        mappo(config(), dataclasses.replace(PLAIN, num_agents=None))
    with pytest.raises(
        ConfigError, match=r"critic_network\.core is 'gru'; the value function of MAPPO has no recurrent"
    ):
        config(critic_network=NetworkConfig(core="gru"))
    with pytest.raises(ConfigError, match=r"critic_network\.shared=True, but the value function"):
        config(critic_network=NetworkConfig(shared=True))
    with pytest.raises(ConfigError, match="critic is 'both'; expected one of central, own"):
        config(critic="both")
    with pytest.raises(ConfigError, match="rewards is 'sum'; expected one of own, team"):
        config(rewards="sum")
