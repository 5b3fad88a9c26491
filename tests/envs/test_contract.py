"""Vectors of users are checked in runs: every mistake is refused at the step that shows it, not filled in by broadcasting."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jsrl import EvaluatorConfig, Experiment, NetworkConfig, PPOConfig, run
from jsrl.envs.base import EnvStep, Episode
from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.types import ArraySpec, Discrete, EnvSpec

ENDS_AT = 3  # steps of an episode
VALUES = ArraySpec((2,), "float32")


class Own:
    """A vector of jsrl's protocol whose steps `mistake` changes; episodes of 3 steps with reward 1 end in a termination."""

    def __init__(self, num_envs: int, mistake: Any = None, masked: bool = False):
        observation = {"observation": VALUES, "action_mask": ArraySpec((2,), "uint8")} if masked else VALUES
        self.spec, self.num_envs = EnvSpec(observation, Discrete(2), "own"), num_envs
        self.mistake, self.masked, self.time = mistake, masked, 0

    def reset(self) -> Any:
        self.time = -1
        return self.step(None)

    def step(self, action: Any) -> Any:
        slots = self.num_envs
        self.time = (self.time + 1) % (ENDS_AT + 1)
        first, over = self.time == 0, self.time == ENDS_AT
        seen: Any = np.full((slots, 2), self.time, np.float32)
        if self.masked:
            seen = {"observation": seen, "action_mask": np.ones((slots, 2), np.uint8)}
        step = EnvStep(
            seen,
            np.full(slots, first),
            np.full(slots, 0.0 if first else 1.0, np.float32),
            np.full(slots, 0.0 if over else 1.0, np.float32),
            np.ones(slots, np.uint8),
            [Episode(slot, 3.0, ENDS_AT, True) for slot in range(slots)] if over else [],
        )
        return step if self.mistake is None else self.mistake(step, self.time)

    def close(self) -> None:
        pass


def play(env: Any, steps: int = 6) -> None:
    env.reset()
    for _ in range(steps):
        env.step(np.zeros(env.num_envs, np.int32))


def with_nan(step: EnvStep, time: int) -> EnvStep:
    seen = step.observation.copy()
    seen[2, 1] = np.nan if time == 2 else 0.0
    return step._replace(observation=seen)


MISTAKES = {
    "one row": (lambda s, t: s._replace(observation=s.observation[:1]), r"float32 \[1, 2\]; expected float32 \[4, 2\]"),
    "one reward": (lambda s, t: s._replace(reward=s.reward[:1]), r"step 0: reward is float32 \[1\]; expected float32 \[4\]"),
    "doubles": (lambda s, t: s._replace(reward=s.reward.astype(np.float64)), r"reward is float64 \[4\]"),
    "bool": (lambda s, t: s._replace(is_first=bool(t == 0)), r"is_first is bool True; expected bool \[4\]"),
    "list": (lambda s, t: s._replace(discount=[1.0] * 4), r"discount is list .*; expected float32 \[4\]"),
    "scalar": (lambda s, t: s._replace(acts=1), r"acts is int 1; expected uint8 \[4\]"),
    "acts": (lambda s, t: s._replace(acts=s.acts * np.uint8(3)), r"acts .*; expected 0, 1 or 2"),
    "reward at is_first": (lambda s, t: s._replace(reward=np.ones(4, np.float32)), r"reward .* where is_first"),
    "discount 0.5": (lambda s, t: s._replace(discount=s.discount / (1 + (t == 2))), r"step 2: discount .*; expected 0 or 1"),
    "discount at is_first": (lambda s, t: s._replace(discount=s.discount * (t > 0)), r"where is_first; expected 1"),
    "never first again": (lambda s, t: s._replace(is_first=s.is_first & False), r"reset returned is_first .* all True"),
    "first in the middle": (lambda s, t: s._replace(is_first=np.full(4, t in (0, 2))), r"step 2: is_first .*right after"),
    "no episode": (lambda s, t: s._replace(episodes=[]), r"step 3: discount \[0. 0. 0. 0.\], but \[\] ended"),
    "twice": (lambda s, t: s._replace(episodes=s.episodes * 2), r"slot 0 reported two episodes"),
    "slot 7": (lambda s, t: s._replace(episodes=[Episode(7, 3.0, 3, True)]), r"episode of slot 7; expected 0 to 3"),
    "NaN": (with_nan, r"step 2: slot 2 returned nan in observation\[1\]; expected finite numbers"),
    "a tuple": (lambda s, t: tuple(s), r"it returned tuple .*; expected an EnvStep"),
    "a dict": (lambda s, t: s._replace(observation={"a": s.observation}), r"it returned \[.*'observation/a'.*expected \["),
}  # fmt: skip


@pytest.mark.parametrize(("mistake", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_users_vector_is_refused_at_its_mistake(mistake, told):
    with pytest.raises(EnvironmentFault, match=f"(?s)environment 'own', .*{told}"):
        play(make(EnvConfig(Own, kwargs={"mistake": mistake}), 4, 0))
    with pytest.raises(EnvironmentFault, match=f"(?s){told}"):
        check_env(lambda num_envs, seed: Own(num_envs, mistake), steps=6)


def test_a_users_vector_without_mistakes_plays_with_and_without_masks():
    play(make(EnvConfig(Own), 4, 0))
    play(make(EnvConfig(Own, kwargs={"masked": True}), 4, 0))


def test_rewards_of_a_users_vector_are_raw():
    """The learner scales and clips them: twice is once too often."""
    env = make(EnvConfig(f"{__name__}:one_that_fits", reward_scale=0.5, reward_clip=0.25), 2, 0)
    env.reset()
    assert env.step(np.zeros(2, np.int32)).reward.tolist() == [1.0, 1.0]


def test_a_mask_of_a_users_vector_that_allows_nothing_is_a_fault():
    def shut(step: EnvStep, time: int) -> EnvStep:
        step.observation["action_mask"][1] = time != 2
        return step

    with pytest.raises(EnvironmentFault, match=r"step 2: the action mask of slots \[1\] allows nothing"):
        play(make(EnvConfig(Own, kwargs={"masked": True, "mistake": shut}), 4, 0))


class SpecOfGymnasium(Own):
    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.spec = gymnasium.spec("CartPole-v1")


def test_a_users_vector_needs_a_spec_of_jsrl():
    with pytest.raises(ConfigError, match=r"has the spec EnvSpec EnvSpec\(id='CartPole-v1'.*of jsrl\.types"):
        make(EnvConfig(SpecOfGymnasium), 4, 0)


class EqualPaths(Own):
    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.spec = EnvSpec({"a/b": VALUES, "a": {"b": VALUES}}, Discrete(2), "own")


def test_two_parts_of_an_observation_of_a_users_vector_need_different_paths():
    with pytest.raises(ConfigError, match=r"environment 'own': two parts of its observation are called 'a/b'"):
        make(EnvConfig(EqualPaths), 4, 0)


def eight(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="sync")


def one_that_fits(num_envs: int) -> Own:
    return Own(num_envs)


def one_of_jsrl(num_envs: int) -> Own:
    return Own(1)


@pytest.mark.parametrize(("factory", "made"), [(eight, 8), (one_of_jsrl, 1)])
def test_a_vector_with_another_number_of_slots_is_refused(factory, made):
    with pytest.raises(ConfigError, match=f"asked for num_envs=4 and made a vector of {made}; expected as many"):
        make(EnvConfig(factory), 4, 0)


class GymVector(gymnasium.vector.VectorEnv):
    """Two slots that never end, whose reward and flags are given."""

    metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, **outcome: Any):
        self.num_envs, self.outcome = num_envs, outcome
        self.single_observation_space, self.single_action_space = (
            spaces.Box(-1, 1, (2,), np.float32),
            spaces.Discrete(2),
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        right = {"reward": np.ones(self.num_envs), "terminated": np.zeros(self.num_envs, bool)}
        outcome = right | {"truncated": np.zeros(self.num_envs, bool)} | self.outcome
        return np.zeros((self.num_envs, 2), np.float32), *outcome.values(), {}


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ({"reward": 1.0}, r"float64 \[\] array\(1\.\) as reward\. Expected numbers of shape \[2\]"),
        ({"reward": np.ones(1)}, r"float64 \[1\] .* as reward"),
        ({"reward": np.ones((2, 1))}, r"float64 \[2, 1\] .* as reward"),
        ({"reward": np.array(["a", "b"])}, r"<U1 \[2\] .* as reward"),
        ({"terminated": False}, r"bool \[\] .* as terminated\. Expected bools of shape \[2\]"),
        ({"truncated": np.zeros(2, int)}, r"int64 \[2\] .* as truncated"),
    ],
)
def test_rewards_and_flags_of_a_gymnasium_vector_have_one_entry_per_slot(outcome, told):
    play(make(EnvConfig(GymVector), 2, 0))
    with pytest.raises(EnvironmentFault, match=told):
        play(make(EnvConfig(GymVector, kwargs=outcome), 2, 0))


class OutOfBox(gymnasium.Env):
    """Its time grows out of the Box at step 5 of an episode; the second number has no bounds."""

    observation_space = gymnasium.spaces.Box(
        np.array([0, -np.inf]), np.array([4, np.finfo(np.float64).max]), dtype=np.float64
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = self.np_random.integers(2)
        return np.array([self.time, 1e30]), {}

    def step(self, action):
        self.time += 1
        return np.array([self.time, -1e30]), 0.0, self.time >= 7, False, {}


NOTE = r"OutOfBox' \(slot 0\) returned 5 in observation\[0\], outside its Box \(0 to 4\)"


def test_a_value_outside_its_box_is_a_note_of_check_env():
    config = EnvConfig(OutOfBox)
    (note,) = [note for note in check_env(config, steps=20, num_envs=1).notes if "Box" in note]
    assert re.search(NOTE, note)


class Bounded(Own):
    bounds = (0.0, 4.0)  # the user's, whatever it means


def test_a_vector_may_have_bounds_of_its_own():
    play(make(EnvConfig(Bounded), 4, 0, note=pytest.fail))


@pytest.mark.slow
def test_a_run_says_once_that_a_value_is_outside_its_box(tmp_path, capsys):
    agent = PPOConfig(network=NetworkConfig(hidden=(4,)), num_epochs=1, num_minibatches=1)
    options = {"num_envs": 4, "num_groups": 2, "rollout_length": 16, "total_env_steps": 128, "placement": "serial"}
    off = EvaluatorConfig(enabled=False)
    run(Experiment(agent, EnvConfig(OutOfBox), evaluator=off, **options), runs_dir=tmp_path, display="plain")
    assert len(re.findall("outside its Box", capsys.readouterr().err)) == 1
