"""Recordings of a user's own episodes: their rows train like those of an actor, and what does not fit is refused."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jsrl.agents.rows import acting_mask
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.errors import ConfigError, RecordingError, SpecMismatch
from jsrl.services.recordings.recordings import Source, open_recording, read_chunk
from jsrl.tools.write_recording import RecordedEpisode, write_recording
from jsrl.types import make_trajectory_spec, named_leaves, to_environment, unflatten
from jsrl.workers.attached import recording

CARTPOLE, PENDULUM = EnvConfig("CartPole-v1"), EnvConfig("Pendulum-v1")


def read(folder, env: EnvConfig, rows: int) -> list:
    """Return the trajectories of a recording."""
    schema = make_trajectory_spec(make_spec(env), (), (), num_rows=rows, num_envs=1)
    found = open_recording(folder)
    names = [name for name, _ in named_leaves(schema)]
    parts = [read_chunk(found, chunk, names) for chunk in found.chunks]
    assert all(len(part[0]) == found.chunks[0].count for part in parts)
    return [unflatten(schema, [leaf[i] for leaf in part]) for part in parts for i in range(len(part[0]))]


def test_every_step_trains_once_and_last_observations_do_not(tmp_path):
    seen = np.arange(40, dtype=np.float32).reshape(10, 4)
    episodes = [
        RecordedEpisode(seen[:4], np.array([1, 0, 1]), np.array([1.0, 2.0, 3.0]), terminated=False),
        RecordedEpisode(seen[4:6], np.array([1]), np.array([4.0])),
        RecordedEpisode(seen[6:10], np.array([0, 0, 1]), np.array([5.0, 6.0, 7.0])),
    ]
    write_recording(tmp_path, CARTPOLE, iter(episodes), source="me", rollout_length=4)
    found, trained, mask = read(tmp_path, CARTPOLE, 4), [], jax.jit(acting_mask)
    for t in found:
        for row in np.flatnonzero(np.asarray(mask(t))[:, 0]):
            parts = (t.observation[row, 0, 0] // 4, t.action[row, 0], t.reward[row, 0], t.discount[row, 0])
            trained.append(tuple(map(float, parts)))
    assert trained == [
        (0, 1, 1, 1), (1, 0, 2, 1), (2, 1, 3, 1), (4, 1, 4, 0), (6, 0, 5, 1), (7, 0, 6, 1), (8, 1, 7, 0),
    ]  # fmt: skip
    np.testing.assert_array_equal(found[0].observation[4], found[1].observation[0])
    assert open_recording(tmp_path).manifest.sources == (Source("me", 0, "written"),)
    with pytest.raises(RecordingError, match="me would begin with the same ones"):
        write_recording(tmp_path, CARTPOLE, episodes, source="me", rollout_length=4)
    with pytest.raises(SpecMismatch, match="'max_episode_steps': 9"):
        write_recording(tmp_path, EnvConfig("CartPole-v1", max_episode_steps=9), [], source="you", rollout_length=4)


def test_what_the_disk_refuses_is_an_error(tmp_path, monkeypatch):
    def write_chunk(path, names, taken):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording, "write_chunk", write_chunk)
    with pytest.raises(RecordingError, match="1 not recorded"):
        write_recording(tmp_path, CARTPOLE, [RecordedEpisode(np.zeros((2, 4)), [1], [1.0])], source="me")


@pytest.mark.parametrize("transform", ["clip", "rescale", "squash"])
def test_actions_are_stored_as_agents_store_them(tmp_path, transform):
    env, given = EnvConfig("Pendulum-v1", action_transform=transform), np.array([[-1.9], [0.0], [0.7]], np.float32)
    write_recording(tmp_path, env, [RecordedEpisode(np.zeros((4, 3)), given, np.zeros(3))], source="me")
    (trajectory,) = read(tmp_path, env, 64)
    np.testing.assert_allclose(to_environment(make_spec(env).action, trajectory.action[:3, 0]), given, atol=1e-5)


@pytest.mark.parametrize(
    ("env", "episode", "error", "told"),
    [
        (PENDULUM, ((2, 3), [[50.0]], [0.0]), SpecMismatch, r"step 0: action \[50.\] is outside of \[-2.\] to \[2.\]"),
        (CARTPOLE, ((2, 4), [2], [0.0]), SpecMismatch, "episode 0, step 0: action 2 is outside of 0 to 1"),
        (CARTPOLE, ((2, 4), [0.5], [0.0]), SpecMismatch, "action 0.5 is outside of 0 to 1"),
        (CARTPOLE, ((2, 4), [[1, 0]], [0.0]), SpecMismatch, r"actions are int64 \[1, 2\]; expected \[L, \[\]\]"),
        (CARTPOLE, ((2, 3), [1], [0.0]), SpecMismatch, r"episode 0: CartPole-v1: observation is float64 \[2, 3\]; expected"),
        (CARTPOLE, ((3, 4), [1], [0.0]), SpecMismatch, "1 reward and 1 action; expected as many of both"),
        (CARTPOLE, ((2, 4), [1], [np.nan]), SpecMismatch, "all finite"),
        (CARTPOLE, ((1, 4), [], []), SpecMismatch, "0 rewards and 0 actions"),
        (EnvConfig("matrix:climbing"), ((1, 4), [], []), ConfigError, "several agents"),
    ],
)  # fmt: skip
def test_an_episode_that_does_not_fit_is_refused(tmp_path, env, episode, error, told):
    shape, actions, rewards = episode
    with pytest.raises(error, match=told):
        own = RecordedEpisode(np.zeros(shape), np.array(actions), np.array(rewards))
        write_recording(tmp_path, env, [own], source="me")
