"""check_env on environments with seats: good ones pass, and each broken rule is named."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError, EnvironmentFault

FATE = "pettingzoo:tests.envs.seat_games:"
SIDES = {"a_[01]": "red", "a_[23]": "blue"}
GOOD = [
    (EnvConfig("particle:simple_tag_v3", kwargs={"max_cycles": 5}), {"waited", "died"}),
    (
        EnvConfig("particle:simple_reference_v3", kwargs={"max_cycles": 5, "continuous_actions": True}),
        {"waited", "died"},
    ),
    (EnvConfig("matrix:climbing", kwargs={"rounds": 3, "see_last": True}), {"waited", "died"}),
    (EnvConfig(FATE + "ParallelGame"), set()),
    (EnvConfig(FATE + "ParallelGame", kwargs={"death": "team", "sides": SIDES}), set()),
    (EnvConfig(FATE + "TurnGame"), set()),
    (EnvConfig(FATE + "TurnGame", kwargs={"death": "team", "sides": SIDES}, max_episode_steps=4), set()),
    (EnvConfig(FATE + "Masked"), set()),
]


@pytest.mark.parametrize(("config", "unseen"), GOOD, ids=lambda case: getattr(case, "id", ""))
def test_good_games_pass(config: EnvConfig, unseen: set[str]) -> None:
    report = check_env(config, steps=80, num_envs=3)
    assert any("each seat's rewards" in line for line in report.passed)
    assert {note.split()[2].rstrip(",") for note in report.notes if note.startswith("no seat")} == unseen
    assert f"{len(report.spec.seats)} seats" in str(report) and report.episodes > 0


class Broken:
    """A game with a mutation of each step: (step, number of steps so far) -> step."""

    def __init__(self, config: EnvConfig, num_envs: int, seed: int, mutate):
        self.game, self.mutate, self.count = make_game(config, num_envs, seed), mutate, 0
        self.spec, self.num_envs, self.groups = self.game.spec, num_envs, self.game.groups

    def reset(self):
        return self.game.reset()

    def step(self, action):
        self.count += 1
        return self.mutate(self.game.step(action), self.count)

    def close(self):
        self.game.close()


def no_last_reward(step, count):
    ended = [episode.slot for episode in step.episodes]
    reward = step.reward.copy()
    reward[ended] = 0.0
    return step._replace(reward=reward)


def act_forever(step, count):
    return step._replace(acts=np.ones_like(step.acts))


def act_after_the_end(step, count):
    acts = step.acts.copy()
    for slot in [episode.slot for episode in step.episodes if not episode.terminated]:
        acts[slot][step.discount[slot] == 0] = 1
    return step._replace(acts=acts)


def no_seat_acts(step, count):
    return step._replace(acts=step.acts * (count != 5))


def pay_the_dead(step, count):
    return step._replace(reward=step.reward + (~step.is_first[:, None]).astype(np.float32))


def forget_first(step, count):
    return step._replace(is_first=step.is_first & False)


def own_mask(step, count):
    return step._replace(
        observation={
            name: {**tree, "action_mask": tree["action_mask"] * np.array([0, 1, 0], np.uint8)}
            for name, tree in step.observation.items()
        }
    )


def tear_a_side(step, count):
    discount = step.discount.copy()
    discount[~step.is_first, 0] = 0.0
    return step._replace(discount=discount)


def mean_is_sum(step, count):
    return step._replace(episodes=[e.__class__(**{**vars(e), "return_": sum(e.returns)}) for e in step.episodes])


def value_only(step, count):
    return step._replace(acts=np.where(step.acts == 0, 2, step.acts).astype(np.uint8))


def wide(step, count):
    return step._replace(reward=step.reward.astype(np.float64))


TEAM = {"death": "team", "sides": SIDES}


@pytest.mark.parametrize(
    ("form", "kwargs", "mutate", "told"),
    [
        ("ParallelGame", {}, no_last_reward, r"reported returns .*; its rewards sum to"),
        ("ParallelGame", {}, act_forever, r"act after they died"),
        ("ParallelGame", {}, act_after_the_end, r"act after they died"),
        ("ParallelGame", {}, no_seat_acts, r"no seat acts in slots"),
        ("ParallelGame", {}, pay_the_dead, r"earn rewards after they died"),
        ("ParallelGame", {}, forget_first, r"expected is_first right after"),
        ("ParallelGame", TEAM, tear_a_side, r"differs within a side"),
        ("ParallelGame", {}, mean_is_sum, r"expected one of each seat, and their mean"),
        ("TurnGame", {}, value_only, r"(?s)acts .*; expected one of \(0, 1\)"),
        ("ParallelGame", {}, wide, r"reward is float64 \[3, 4\]; expected float32 \[3, 4\]"),
        ("Masked", {}, own_mask, r"does not act is not all ones"),
    ],
)
def test_each_broken_rule_is_named(form: str, kwargs: dict, mutate, told: str) -> None:
    config = EnvConfig(FATE + form, kwargs=kwargs)
    with pytest.raises(EnvironmentFault, match=told):
        check_env(lambda num_envs, seed: Broken(config, num_envs, seed, mutate), steps=80, num_envs=3)


def test_unused_seeds_are_found() -> None:
    count = itertools.count()

    def deaf(num_envs: int, seed: int):
        return make_game(EnvConfig("particle:simple_spread_v3"), num_envs, next(count))

    with pytest.raises(EnvironmentFault, match=r"two runs with seed 0 and the same actions differ"):
        check_env(deaf, steps=5)


def test_fixed_start_is_allowed_with_a_single_slot() -> None:
    for name in ("probe:constant_reward", "matrix:rps"):
        report = check_env(EnvConfig(name), steps=10, num_envs=1)
        assert any("start with the same" in note for note in report.notes)
    report = check_env(EnvConfig("particle:simple_spread_v3"), steps=5, num_envs=1)
    assert "other seeds and other slots start differently" in report.passed


def test_other_seeds_are_tried_until_one_starts_differently() -> None:
    made = list[int]()

    def build(num_envs: int, seed: int):
        made.append(seed)
        return make_game(EnvConfig("particle:simple_spread_v3"), num_envs, seed)

    check_env(build, steps=5)
    assert made == [0, 0, 1]  # two equal runs, and one other seed


@pytest.mark.parametrize("given", ["CartPole-v1", None])
def test_what_is_no_environment_is_refused(given: str | None) -> None:
    with pytest.raises(
        ConfigError, match=r"expected EnvConfig\('CartPole-v1'\), or" if given else r"EnvConfig\(\.\.\.\)"
    ):
        check_env(given)


@pytest.mark.parametrize("given", [functools.partial(dict, [1]), object(), 3])
def test_an_id_that_is_neither_a_name_nor_a_class_or_function_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=rf"id is a {type(given).__name__} object; .*EnvConfig\(MyEnv, kwargs="):
        EnvConfig(given)
    with pytest.raises(ConfigError, match='give a class, "module:Class", or'):
        EnvConfig(wrappers=(given,))


@pytest.mark.parametrize("name", ["wrappers", "episode_metrics"])
def test_a_text_in_place_of_several_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"EnvConfig.{name} is 'x'; expected a list such as"):
        EnvConfig(**{name: "x"})
