"""Write a recording of your own episodes, for `--recording` to learn from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.envs.spaces import checked
from jsrl.errors import ConfigError, RecordingError, SpecMismatch, counted
from jsrl.graph.recording_plan import begin_recorded
from jsrl.services.metrics.metrics import Meter
from jsrl.services.recordings.recordings import Source
from jsrl.transport.base import Entry, Origin, ProducerId
from jsrl.types import (
    ActionSpec,
    Array,
    Continuous,
    Discrete,
    EnvSpec,
    Trajectory,
    Tree,
    leaves,
    make_trajectory_spec,
    map_tree,
    zeros,
)
from jsrl.workers.attached.recording import RecordingWriter

WRITER = ProducerId("written", 0)


class RecordedEpisode(NamedTuple):
    """An episode of L steps.

    Attributes:
      observations: tree of [L+1, ...], the last one included, in the form that agents see (docs/environments.md).
      actions: [L, ...], as the environment takes them. rewards: [L], raw.
      terminated: False: a time limit or you ended it, so that its last observation has a value.
    """

    observations: Tree
    actions: Array
    rewards: Array
    terminated: bool = True


def write_recording(
    folder: str | os.PathLike[str],
    env: EnvConfig,
    episodes: Iterable[RecordedEpisode],
    *,
    source: str,
    rollout_length: int = 64,
) -> None:
    """Write episodes to the folder of a recording; what it holds already stays.

    Args:
      env: the environment that was played. source: who played; each source writes to a folder once.
      rollout_length: rows of a trajectory, the most that a window can have.

    Raises:
      SpecMismatch: an episode does not fit the environment, or the folder holds trajectories of another one.
      RecordingError: the folder cannot be written, or holds this source.
    """
    spec = make_spec(env)
    if not isinstance(spec, EnvSpec) or spec.num_agents is not None:
        raise ConfigError(f"{env.id!r} has several agents; record a policy with `jsrl record` instead.")
    schema, folder, told = _schema(spec, rollout_length), Path(folder), list[str]()
    begin_recorded(folder, spec, env, schema, Source(source, 0, "written"))
    writer = RecordingWriter(
        folder, WRITER.name, schema, meter=Meter(WRITER.name), warn=told.append, limit_bytes=2**62, wait=True
    )
    try:
        for sequence, trajectory in enumerate(_trajectories(spec, episodes, rollout_length)):
            writer.before_commit(trajectory)
            writer.after_commit(Entry(WRITER, 0, sequence, Origin(WRITER, sequence)))
    finally:
        writer.close()
    if writer.dropped:
        raise RecordingError(f"{writer.summary} {' '.join(told)}")


def _schema(spec: EnvSpec, num_rows: int) -> Trajectory:
    return make_trajectory_spec(spec, (), (), num_rows=num_rows, num_envs=1)


def _trajectories(spec: EnvSpec, episodes: Iterable[RecordedEpisode], length: int) -> Iterator[Trajectory]:
    """Yield the episodes one after another in trajectories of `length` rows; those after the last end train nothing."""
    rows = map_tree(lambda leaf: leaf[:0], zeros(_schema(spec, 0)))
    for number, episode in enumerate(episodes):
        rows = _joined(rows, _rows_of(spec, episode, f"episode {number}"))
        while len(rows.is_first) > length:
            yield map_tree(lambda leaf: leaf[: length + 1], rows)
            rows = map_tree(lambda leaf: leaf[length:], rows)
    if len(rows.is_first) > 1:
        ends = zeros(_schema(spec, length - len(rows.is_first)))
        yield _joined(rows, ends._replace(is_first=~ends.is_first, acts=ends.acts + 1, discount=ends.discount + 1))


def _joined(one: Trajectory, two: Trajectory) -> Trajectory:
    joined: Trajectory = map_tree(lambda *parts: np.concatenate(parts), one, two)
    return joined


def _rows_of(spec: EnvSpec, episode: RecordedEpisode, name: str) -> Trajectory:
    """Return an episode as rows [L+1, 1, ...]; the last one is its last observation."""
    try:
        observations = checked(episode.observations, spec)
    except SpecMismatch as error:
        raise SpecMismatch(f"{name}: {error}") from error
    action, reward = _stored(spec.action, np.asarray(episode.actions), name), np.asarray(episode.rewards, np.float32)
    steps = len(reward) if reward.ndim else 0
    rows: Trajectory = zeros(_schema(spec, steps))
    given = {len(leaf) for leaf in leaves(observations)} | {len(action) + 1, steps + 1}
    if not steps or len(given) > 1 or not np.isfinite(reward).all():
        raise SpecMismatch(
            f"{name} has {counted(steps, 'reward')} and {counted(len(action), 'action')}; expected as many of both, at least "
            "one, all finite, and one more observation."
        )
    rows.is_first[0], rows.acts[:], rows.discount[:] = True, 1, 1.0
    rows.action[:-1, 0], rows.reward[:-1, 0] = action, reward
    rows.discount[-2] = 0.0 if episode.terminated else 1.0
    return rows._replace(observation=map_tree(lambda leaf: leaf[:, None], observations))


def _stored(spec: ActionSpec, action: Array, name: str) -> Array:
    """Return actions [L, ...] of an environment as agents store them, the inverse of `to_environment`."""
    shape = spec.array.shape
    if action.size != len(action) * int(np.prod(shape)):
        raise SpecMismatch(f"{name}: actions are {action.dtype} {list(action.shape)}; expected [L, {list(shape)}].")
    action = action.reshape(len(action), *shape)
    if isinstance(spec, Continuous):
        low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    elif isinstance(spec, Discrete):
        low, high = np.array(spec.start), np.array(spec.start) + spec.num_actions - 1
    else:
        low = np.array(spec.starts or [0] * len(spec.nums))
        high = low + np.array(spec.nums) - 1
    fits = (low <= action) & (action <= high) & (isinstance(spec, Continuous) | (action % 1 == 0))
    wrong = ~fits.all(axis=tuple(range(1, action.ndim)))
    if wrong.any():
        step = int(wrong.argmax())
        raise SpecMismatch(f"{name}, step {step}: action {action[step]} is outside of {low} to {high}.")
    if not isinstance(spec, Continuous):
        return action - low
    if spec.transform == "clip":
        return action
    unit = 2.0 * (action - low) / (high - low) - 1.0
    return np.arctanh(np.clip(unit, -0.999999, 0.999999)) if spec.transform == "squash" else unit
