"""Contract of every environment adapter; a test module gives a `config` and imports these tests."""

from __future__ import annotations

import json

import numpy as np

from jsrl.envs.check import check_env, random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make, make_spec
from jsrl.references.reference import from_json, to_json
from jsrl.types import map_tree, named_leaves


def walk(config: EnvConfig, seed: int, steps: int, num_envs: int = 3, group: int = 0):
    """Return the copied EnvSteps of a run with random actions (drawn from a fixed stream)."""
    env, rng, steps_seen = make(config, num_envs, seed, group=group), np.random.default_rng(5), []
    try:
        step = env.reset()
        for _ in range(steps + 1):
            steps_seen.append(
                step._replace(observation=map_tree(np.array, step.observation), is_first=step.is_first.copy())
            )
            step = env.step(random_actions(env, step.observation, rng))
    finally:
        env.close()
    return steps_seen


def test_passes_the_environment_contract(config):
    report = check_env(config, steps=100, max_seconds=4)
    assert report.spec == make_spec(config)
    assert report.env_steps_per_s > 0 and "ok" in str(report)


def test_config_round_trips_as_json(config):
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_groups_have_their_own_seeds(config):
    runs = [walk(config, 0, 12, group=group) for group in range(3)]
    again = walk(config, 0, 12, group=1)

    def flat(run):
        return b"".join(
            np.ascontiguousarray(leaf).tobytes() for step in run for _, leaf in named_leaves(step.observation)
        )

    assert flat(again) == flat(runs[1])
    fixed = config.id.startswith("probe:") and len({flat(run) for run in runs}) == 1
    assert fixed or len({flat(run) for run in runs}) > 1


def test_a_second_reset_drops_the_open_episodes(config):
    env, rng = make(config, 2, 3), np.random.default_rng(0)
    step = env.reset()
    for _ in range(3):
        step = env.step(random_actions(env, step.observation, rng))
    step = env.reset()
    assert step.is_first.all() and not step.reward.any() and step.episodes == []
    lengths = np.zeros(2, int)
    for _ in range(60):
        step = env.step(random_actions(env, step.observation, rng))
        lengths += ~step.is_first
        for episode in step.episodes:
            assert episode.length == lengths[episode.slot]
            lengths[episode.slot] = 0
    env.close()
    env.close()
