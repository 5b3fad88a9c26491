"""`jsrl.Collector` and `jsrl.extend.ReplayBuffer` give what an actor and a replay worker give."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsrl
from jsrl.extend import ActOutput, ActParams, Agent, AgentState, ReplayBuffer, Trajectory, UpdateOutput, version_updates
from jsrl.replay.host.replay import HostReplay
from jsrl.replay.shared import windows_spec
from jsrl.types import ArraySpec, Discrete, GameSpec, Seat, leaves, map_tree

ENV = jsrl.EnvConfig("CartPole-v1", max_episode_steps=7)
NUM_ENVS, NUM_ROWS = 3, 5
seen: list[Trajectory] = []


def remembering(spec: Any) -> Agent:
    """Return a recurrent agent that samples actions, learns nothing, and shows what it was given to learn from."""

    def init(key):
        weights = jax.random.normal(key, (*spec.observation.shape, spec.action.num_actions))
        return AgentState(ActParams(weights), (), (), (), jnp.zeros((), jnp.int32))

    def act(params, key, observation, is_first, core, *, greedy=False):
        core = jnp.where(is_first[:, None], 0.0, core) * 0.5 + observation
        logits = core @ params.weights
        action = jnp.argmax(logits, -1) if greedy else jax.random.categorical(key, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        return ActOutput(action.astype(jnp.int32), log_prob, {"first": core[:, 0]}), core

    def update(state, trajectory, key, *, axis_name=None):
        jax.debug.callback(seen.append, trajectory)
        return state._replace(updates=state.updates + 1), UpdateOutput({"loss": jnp.zeros(())})

    return Agent(init, lambda size: jnp.zeros((size, *spec.observation.shape)), act, update)


def collected(number: int) -> tuple[list[Trajectory], list[float]]:
    """Return trajectories of a collector, and the returns of the episodes that ended."""
    env = jsrl.make_env(ENV, NUM_ENVS, 0)
    agent = remembering(env.spec)
    collect = jsrl.Collector(agent, env, NUM_ROWS, seed=0)
    params = agent.init(jax.random.fold_in(jax.random.key(0), 0)).params
    found, returns = [], []
    for _ in range(number):
        found.append(collect(params))
        returns += [episode.return_ for episode in collect.episodes]
    return found, returns


@pytest.mark.slow
def test_rows_are_those_of_an_actor(tmp_path: Path) -> None:
    seen.clear()
    jsrl.run(
        jsrl.Experiment(
            name="rows",
            env=ENV,
            agent=jsrl.AgentReference(remembering),
            num_envs=NUM_ENVS,
            rollout_length=NUM_ROWS,
            total_env_steps=4 * NUM_ENVS * NUM_ROWS,
            evaluator=jsrl.EvaluatorConfig(enabled=False),
        ),
        runs_dir=tmp_path,
        placement="serial",
        display="quiet",
    )
    jax.effects_barrier()
    mine, returns = collected(4)
    assert len(seen) == 4 and len(returns) >= NUM_ENVS
    for number, (own, actors) in enumerate(zip(mine, seen, strict=True)):
        assert (version_updates(own.version[:-1]) == number).all()
        for one, other in zip(leaves(own._replace(version=())), leaves(actors._replace(version=())), strict=True):
            np.testing.assert_array_equal(one, np.asarray(other))
    ended = np.concatenate([own.is_first[:-1] for own in mine])[1:]
    assert ended.any() and np.abs(mine[1].core).max() > 0.0
    np.testing.assert_array_equal(mine[0].observation[-1], mine[1].observation[0])


@pytest.mark.parametrize("prioritised", [False, True])
def test_windows_are_those_of_a_replay_worker(prioritised: bool) -> None:
    env = jsrl.make_env(ENV, NUM_ENVS, 0)
    rng = np.random.default_rng(0)
    step, rows = env.reset(), []
    for _ in range(41):
        before = step
        rows.append((before.observation.copy(), before.is_first.copy(), before.acts.copy()))
        step = env.step(rng.integers(0, 2, NUM_ENVS).astype(np.int32))
    observation, is_first, acts = (np.stack(column) for column in zip(*rows, strict=True))
    zeros = np.zeros(acts.shape, np.float32)
    action = rng.integers(0, 2, acts.shape).astype(np.int32)
    whole = Trajectory(observation, is_first, action, zeros, zeros + 1, acts, zeros, (), acts.astype(np.int64), ())
    parts = [map_tree(lambda leaf, t=t: leaf[t : t + 6], whole) for t in range(0, 40, 5)]
    config = jsrl.ReplayConfig(capacity=90, batch_size=16, window=2, min_size=60, prioritised=prioritised)
    spec: Trajectory = map_tree(lambda leaf: ArraySpec(leaf.shape, str(leaf.dtype)), parts[0])
    replay = HostReplay(config, spec, seed=3)
    buffer = ReplayBuffer(config, seed=3)
    with pytest.raises(jsrl.extend.ConfigError, match="replay buffer is empty"):
        buffer.sample()
    for number, part in enumerate(parts):
        assert buffer.is_ready == (number >= 4)
        replay.insert(0, (0, number), part)
        buffer.add(jax.tree.map(jnp.asarray, part) if number == 3 else part)
    assert buffer.size == replay.size <= 120
    for _ in range(2):
        windows, ids = buffer.sample()
        expected = map_tree(lambda leaf: leaf.zeros(), windows_spec(config, spec))
        np.testing.assert_array_equal(ids, replay.draw(expected, config.beta))
        for one, other in zip(leaves(windows), leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other)
        priorities = rng.random(16)
        buffer.set_priorities(ids, priorities)
        replay.feedback(ids, {"priorities": priorities})
    starts = [np.flatnonzero((observation == first).all(axis=-1)) for first in windows.observation[0]]
    assert all(len(start) for start in starts)


def test_a_buffer_says_what_it_does_not_take() -> None:
    env = jsrl.make_env(ENV, NUM_ENVS, 0)
    agent = remembering(env.spec)
    rows = jsrl.Collector(agent, env, NUM_ROWS)(agent.init(jax.random.key(0)).params)
    buffer = ReplayBuffer(jsrl.ReplayConfig(capacity=90, batch_size=4, window=2, min_size=3, prioritised=True))
    buffer.add(rows)
    with pytest.raises(jsrl.extend.ConfigError, match=r"reward has shape \[6, 2\], but \[6, 3\] in the first"):
        buffer.add(rows._replace(reward=rows.reward[:, :2]))
    _, ids = buffer.sample()
    for wrong in ([1.0] * 3, [1.0, 2.0, -1.0, 0.0], [1.0, np.nan, 1.0, 1.0]):
        with pytest.raises(jsrl.extend.ConfigError, match="one finite number of 0 or more for each"):
            buffer.set_priorities(ids, np.array(wrong))


def test_a_collector_takes_environments_of_one_agent() -> None:
    spec = GameSpec((Seat("a", ArraySpec((3,), "float32"), Discrete(3)),))
    with pytest.raises(jsrl.extend.ConfigError, match="has several seats, and a Collector takes"):
        jsrl.Collector(remembering(spec.view(spec.names)), SimpleNamespace(spec=spec, num_envs=2), NUM_ROWS)
