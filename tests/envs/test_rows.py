from __future__ import annotations

import functools
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jsrl.envs.base import Episode
from jsrl.envs.check import check_env
from jsrl.envs.config import AtariConfig, EnvConfig
from jsrl.envs.make import make, make_spec
from jsrl.envs.rows import slot_seeds
from jsrl.envs.spaces import ObservationLayout, allowed_choices, choice_starts, encode, spec_notes
from jsrl.errors import ConfigError, EnvironmentFault, SpecMismatch
from jsrl.types import ArraySpec, Discrete, EnvSpec, GameSpec, MultiDiscrete, Seat, map_tree, named_leaves
from tests.envs.scripted import Counting, Rich
from tests.marks import slow

S = "tests.envs.scripted:"


def vector_config(mode: str, **kwargs) -> EnvConfig:
    if mode == "sync":
        return EnvConfig(S + "Counting", kwargs=kwargs)
    return EnvConfig(S + "counting_vector", kwargs={"mode": mode, **kwargs})


@pytest.mark.parametrize("mode", ["sync", "NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_every_autoreset_becomes_the_row_table(mode, truncates, length):
    env = make(vector_config(mode, truncates=truncates, length=length), 2, 0)
    step = env.reset()
    times, draws = [step.observation[:, 0].copy()], [step.observation[:, 1].copy()]
    for t in range(1, 4 * (length + 1)):
        step = env.step(np.zeros(2, np.int32))
        place = t % (length + 1)  # 0: an episode starts, else env steps so far
        times.append(step.observation[:, 0].copy())
        draws.append(step.observation[:, 1].copy())
        assert (step.observation[:, 0] == place).all() and step.observation.dtype == np.float32
        assert (step.is_first == (place == 0)).all()
        assert (step.reward == place).all()
        ended = place == length
        assert (step.discount == (0.0 if ended and not truncates else 1.0)).all()
        total = length * (length + 1) / 2
        assert step.episodes == ([Episode(slot, total, length, not truncates) for slot in range(2)] if ended else [])
    by_episode = np.array(draws).reshape(4, length + 1, 2)
    assert (by_episode == by_episode[:, :1]).all(), "a row shows the observation of another episode"
    assert len(np.unique(by_episode[:, 0])) > 4, "episodes or slots are equal"


def test_slots_may_end_at_different_times_under_same_step():
    class Lengths:
        def __init__(self):
            self.next = 2

        def __call__(self):
            from tests.envs.scripted import Counting

            self.next += 1
            return Counting(length=self.next)

    import gymnasium

    from jsrl.envs.vector import GymVectorEnv

    for mode in ("SameStep", "Disabled"):
        lengths = Lengths()
        vector = gymnasium.vector.SyncVectorEnv([lengths] * 3, autoreset_mode=mode)
        first_length = lengths.next - 2
        env = GymVectorEnv(vector, EnvConfig("lengths"), 0)
        env.reset()
        periods = np.array([inner.length for inner in vector.envs]) + 1
        assert first_length >= 3 and len(set(periods)) == 3
        for t in range(1, 60):
            step = env.step(np.zeros(3, np.int32))
            assert (step.observation[:, 0] == t % periods).all()
            assert (step.is_first == (t % periods == 0)).all()


def test_rewards_of_rows_are_raw():
    env = make(EnvConfig(S + "Counting", reward_scale=0.5, reward_clip=1.0), 1, 0)
    env.reset()
    steps = [env.step(np.zeros(1, np.int32)) for _ in range(4)]
    assert [float(step.reward[0]) for step in steps] == [1.0, 2.0, 3.0, 0.0]
    assert steps[2].episodes[0].return_ == 6.0


@pytest.mark.parametrize("mode", ["sync", "NextStep", "SameStep", "Disabled"])
def test_episode_metrics(mode):
    names = ("level", "level:sum", "level:mean", "level:min", "level:max", "absent")
    config = vector_config(mode)
    env = make(EnvConfig(config.id, config.kwargs, episode_metrics=names), 2, 0)
    env.reset()
    episodes = [episode for _ in range(8) for episode in env.step(np.zeros(2, np.int32)).episodes]
    assert len(episodes) == 4
    for episode in episodes:
        expected = {"level": 3.0, "level:sum": 6.0, "level:mean": 2.0, "level:min": 1.0, "level:max": 3.0}
        assert episode.metrics == expected


@pytest.mark.parametrize("value", ["easy", None, [1.0, 2.0]])
def test_episode_metric_without_a_number_is_named(value, monkeypatch):
    config = EnvConfig(S + "Counting", episode_metrics=("level",))
    env = make(config, 1, 0)
    env.reset()
    step = env._envs[0].step
    monkeypatch.setattr(env._envs[0], "step", lambda action: (*step(action)[:-1], {"level": value}))
    with pytest.raises(EnvironmentFault, match=r"info\['level'\] is .*leave 'level' out of env.episode_metrics"):
        env.step(np.zeros(1, np.int32))


def test_discrete_start_is_added():
    env = make(EnvConfig(S + "Counting", kwargs={"start": 5}), 1, 0)
    assert env.spec.action == Discrete(2)
    env.reset()
    env.step(np.array([1], np.int32))
    assert env._envs[0].actions == [6]
    assert env._envs[0].actions[0].item() == 6  # an integer of NumPy, as Gymnasium's own vectors give


def test_rich_observations_and_masks():
    env = make(EnvConfig(S + "Rich"), 2, 0)
    assert env.spec.action == MultiDiscrete((2, 3))
    assert env.spec.observation["action_mask"] == ArraySpec((5,), "uint8")
    seen = env.reset().observation
    assert seen["image"].dtype == np.uint8 and (seen["image"] == 7).all()
    np.testing.assert_array_equal(seen["inner"]["count"], [[1, -2]] * 2)
    np.testing.assert_array_equal(seen["inner"]["bits"], [[0, 1, 1]] * 2)
    np.testing.assert_array_equal(seen["pair"]["0"], [[0, 1, 0]] * 2)
    np.testing.assert_array_equal(seen["pair"]["1"], [[0, 1, 0, 0, 1]] * 2)
    np.testing.assert_array_equal(seen["action_mask"], [[1, 0, 0, 1, 1]] * 2)
    assert all(leaf.dtype == np.float32 for leaf in (seen["inner"]["count"], seen["pair"]["0"]))
    env.step(np.array([[0, 1], [0, 2]], np.int32))


@pytest.mark.parametrize(
    ("space", "dtype", "note"),
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "uint8", ""),
        (spaces.Box(0, 255, (4, 10, 10), np.uint8), "uint8", "[4, 10, 10] is an image with the channels first"),
        (spaces.Box(0, 255, (128,), np.uint8), "uint8", "uint8 [128]: bytes, scaled by 1/255 or normalised"),
        (spaces.Box(0, 255, (2, 4, 9, 9, 3), np.uint8), "uint8", "uint8 [2, 4, 9, 9, 3]: bytes"),
        (spaces.Box(0, 255, (4, 9, 9, 3), np.uint8), "uint8", ""),
        (spaces.Box(0, 1, (3,), np.uint8), "bool", ""),
        (spaces.Box(0, 1, (2, 8, 8), bool), "bool", ""),
        (spaces.Box(0, 1, (3,), np.int8), "float32", ""),
        (spaces.Box(-9, 9, (2,), np.int64), "float32", ""),
        (spaces.Box(0, 2**40, (2,), np.int64), "float32", "is int64: float32 holds its values up to 16,777,216"),
        (spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32), "float32", "is int32: float32 holds"),
    ],
)
def test_arrays_are_read_as_images_bytes_flags_or_numbers_and_a_note_says_what_surprises(space, dtype, note):
    layout = ObservationLayout(spaces.Dict({"seen": space}), "here")
    assert layout.spec == {"seen": ArraySpec(space.shape, dtype)}
    (found,) = spec_notes(EnvSpec(layout.spec, Discrete(2), notes=tuple(layout.notes))) or ("",)
    assert note in found and bool(note) == bool(found)
    seats = tuple(Seat(name, layout.spec, Discrete(2)) for name in "ab")
    assert spec_notes(GameSpec(seats, notes=tuple(layout.notes))) == ((found,) if found else ())
    value = space.sample()
    arrays = layout.buffers(1)[1]
    layout.write(arrays, 0, {"seen": value})
    np.testing.assert_array_equal(arrays[0][0], value.astype(dtype))


@pytest.mark.parametrize("mode", ["sync", "NextStep", "SameStep", "Disabled"])
def test_mask_in_info_may_be_missing_only_at_the_end(mode):
    def steps(without: int) -> list:
        kwargs = {"without": without} | ({} if mode == "sync" else {"mode": mode})
        name = "ForgetfulMask" if mode == "sync" else "forgetful_vector"
        return steps_of(make(EnvConfig(S + name, kwargs=kwargs), 1, 0), 5)

    masks = [step.observation["action_mask"][0].tolist() for step in steps(3)]
    assert masks == [[1, 0]] * 3 + [[1, 1], [1, 0]]
    with pytest.raises(EnvironmentFault, match=r"step 1.*brought no info\['action_mask'\]; its first reset did"):
        steps(2)


@pytest.mark.parametrize("mode", ["sync", "NextStep", "SameStep", "Disabled"])
def test_mask_may_allow_nothing_only_at_the_end(mode):
    def steps(without: int, number: int = 5) -> list:
        kwargs = {"without": without, "shut": True} | ({} if mode == "sync" else {"mode": mode})
        name = "ForgetfulMask" if mode == "sync" else "forgetful_vector"
        return steps_of(make(EnvConfig(S + name, kwargs=kwargs), 2, 0), number)

    assert [step.observation["action_mask"][0, 0] for step in steps(3)] == [1, 1, 1, 0, 1]
    with pytest.raises(EnvironmentFault, match=r"slot 0, episode 0, step 1, .*allows no action: its mask is \[0, 0\]"):
        steps(2)


def test_masks_of_several_choices_allow_something_of_each():
    mask = np.array([[1, 0, 0, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], np.uint8)
    assert allowed_choices(mask, choice_starts(MultiDiscrete((2, 3)))).tolist() == [[1, 1], [1, 0], [0, 1]]
    assert allowed_choices(mask, choice_starts(Discrete(5))).all()


def test_check_env_finds_masks_that_allow_nothing():
    """Also in a vector of the user's own, which jsrl does not convert."""

    def made(num_envs, seed):
        env = make(EnvConfig("probe:masked"), num_envs, seed)
        step = env.step

        def shut(action):
            seen = step(action)
            return seen._replace(observation={**seen.observation, "action_mask": seen.observation["action_mask"] * 0})

        env.step = shut
        return env

    with pytest.raises(EnvironmentFault, match=r"the action mask of slots \[0 1\] allows nothing"):
        check_env(made, steps=4, num_envs=2)


def steps_of(env, number):
    """Return what reset and steps with action 0 give, copied."""
    steps = [map_tree(np.copy, env.reset()._replace(episodes=()))]
    for _ in range(number - 1):
        steps.append(map_tree(np.copy, env.step(np.zeros(env.num_envs, np.int32))._replace(episodes=())))
    return steps


@pytest.mark.parametrize(
    ("high", "transform", "sent", "got"),
    [
        (2.0, "clip", [-5.0, 5.0], [-1.0, 2.0]),
        (np.inf, "clip", [-5.0, 5.0], [-1.0, 5.0]),
        (2.0, "rescale", [0.0, 9.0], [0.5, 2.0]),
        (2.0, "squash", [0.0, 9.0], [0.5, 2.0]),
        (2.0, "auto", [0.0, 9.0], [0.5, 2.0]),
        (1.0, "auto", [0.1, -9.0], [0.1, -1.0]),
        (np.inf, "auto", [-5.0, 5.0], [-1.0, 5.0]),
        (3e38, "auto", [-5.0, 5.0], [-1.0, 5.0]),
        (1e308, "auto", [-5.0, 5.0], [-1.0, 5.0]),
    ],
)
def test_actions_are_clipped_to_the_bounds(high, transform, sent, got):
    env = make(EnvConfig(S + "Bounded", kwargs={"high": high}, action_transform=transform), 1, 0)
    env.reset()
    np.testing.assert_allclose(env.step(np.array([sent], np.float32)).observation[0], got, atol=1e-6)


@pytest.mark.parametrize(
    ("high", "action_transform", "is_said"), [(2.0, "auto", 1), (1.0, "auto", 0), (2.0, "rescale", 0)]
)
def test_the_default_scaling_of_actions_is_said_by_check_env(high, action_transform, is_said):
    config = EnvConfig(S + "Bounded", kwargs={"high": high}, action_transform=action_transform)
    report = check_env(config, steps=2)
    assert str(report).count("note  actions in [-1, 1] are scaled to the bounds") == is_said
    assert report.spec.action.transform == ("clip" if high == 1.0 else "rescale")  # on [-1, 1] actions keep their bits


@pytest.mark.parametrize("high", [3.4e38, 1e308])
@pytest.mark.parametrize("transform", ["rescale", "squash"])
def test_actions_are_not_scaled_to_a_range_beyond_float32(high, transform):
    with pytest.raises(ConfigError, match=rf"action transform '{transform}' needs finite bounds"):
        make(EnvConfig(S + "Bounded", kwargs={"high": high}, action_transform=transform), 1, 0)


@pytest.mark.parametrize("transform", ["clip", "rescale"])
def test_actions_of_float64_stay_within_bounds_that_float32_rounds(transform):
    env = make(EnvConfig(S + "Strict", action_transform=transform), 1, 0)
    env.reset()
    env.step(np.array([[-9.0, 9.0]], np.float32))


@pytest.mark.parametrize(
    ("foreign", "plain"), [("ForeignArrays", vector_config("sync")), ("foreign_vector", vector_config("NextStep"))]
)
def test_arrays_of_other_libraries_are_accepted(foreign, plain):
    one, other = (steps_of(make(config, 2, 0), 6) for config in (EnvConfig(S + foreign), plain))
    for mine, its in zip(one, other, strict=True):
        for name in ("observation", "reward", "discount", "is_first"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(its, name))


FAULTS = {
    "raise in step": "ZeroDivisionError in step: the wheel came off",
    "raise in reset": "RuntimeError in reset: no more levels",
    "nan": "nan in 'observation'[1]",
    "shape": "declares shape [3]",
    "dtype": "declares uint8",
    "reward nan": "inf in 'reward'",
    "reward shape": "returned what step must not: float64 [2] array([0., 0.]) as reward",
    "none": "returned what step must not",
}


@pytest.mark.parametrize("what", ["none", "four values"])
def test_wrong_returns_are_named_behind_a_time_limit(what):
    """The wrapper of the time limit unpacks what step returns, so its line raises."""
    env = make(EnvConfig(S + "Faulty", kwargs={"what": what}, max_episode_steps=10), 1, 0)
    env.reset()
    with pytest.raises(EnvironmentFault, match=r"returned what step must not: .*Expected \(observation, reward, term"):
        for _ in range(10):
            env.step(np.zeros(1, np.int32))


@pytest.mark.parametrize(("what", "message"), FAULTS.items())
def test_faults_name_slot_episode_step_and_values(what, message):
    env = make(EnvConfig(S + "Faulty", kwargs={"what": what}), 2, 0)
    env.reset()
    with pytest.raises(EnvironmentFault) as caught:
        for _ in range(10):
            env.step(np.zeros(2, np.int32))
    text = str(caught.value)
    assert message in text and "slot 0" in text and "episode 1" in text and "seed" in text
    assert what == "raise in reset" or "step 1" in text or "step 2" in text


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (4, "4 as 'observation'; its space has the values 1 to 3"),
        (0, "values 1 to 3"),
        ([3, 0], r"\[0, 0\] to \[2, 3\]"),
    ],
)
def test_values_outside_a_discrete_space_are_a_fault(value, told):
    env = make(EnvConfig(S + "OutsideSpace", kwargs={"value": value}), 1, 0)
    env.reset()
    with pytest.raises(EnvironmentFault, match=told):
        env.step(np.zeros(1, np.int32))


def test_reset_without_info_is_a_fault():
    with pytest.raises(
        EnvironmentFault, match=r"slot 0.*returned what reset must not: float64 \[2\].*\(observation, info\)"
    ):
        make(EnvConfig(S + "OldReset"), 2, 0)


def test_errors_of_close_are_logged_and_every_slot_is_closed(caplog):
    env = make(EnvConfig(S + "Unclosable"), 3, 0)
    closed: list[int] = env._envs[0].closed
    closed.clear()
    env.close()
    assert len(set(closed)) == len(caplog.records) == 3 and "RuntimeError: the window is gone" in caplog.text
    assert make_spec(EnvConfig(S + "Unclosable")).action == Discrete(2)


@pytest.mark.parametrize("limit", [None, 10])
def test_reset_without_seed_is_a_fault(limit):
    with pytest.raises(
        EnvironmentFault, match=r"cannot be reset: .*'seed'. Expected reset\(self, \*, seed=None, options=None\)"
    ):
        make(EnvConfig(S + "SeedlessReset", max_episode_steps=limit), 2, 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig("CartPoal-v1"), "CartPole-v1"),
        (EnvConfig("ALE/Pongg-v5"), "ALE/Pong-v5"),
        (EnvConfig("probe:memroy"), "memory"),
        (EnvConfig("probe:memory", kwargs={"delai": 2}), "delai"),
        (EnvConfig("CartPole-v1", kwargs={"gravity_": 2}), "gravity_"),
        (EnvConfig("Acrobot-v1", backend="native"), "no vector entry point"),
        (EnvConfig("CartPole-v1", backend="native", wrappers=(S + "DoubledReward",)), "wrappers"),
        (EnvConfig(S + "TextObservation"), "Text"),
        (
            EnvConfig(S + "EmptyObservation"),
            r"enemies is Box\(.*, \(0, 4\), float32\), which has no entries; leave it out",
        ),
        (EnvConfig(S + "NoSpaces"), "has no observation_space; set"),
        (EnvConfig(S + "DictAction"), "Dict"),
        (EnvConfig(S + "Countin"), "Counting"),
        (EnvConfig("ALE/Pong-v5", kwargs={"difficulty": 1}), "difficulty"),
    ],
)
def test_invalid_environments_are_refused_by_name(config, message):
    with pytest.raises(ConfigError, match=message):
        make(config, 2, 0)


def test_wrappers_wrap_single_environments():
    env = make(EnvConfig("CartPole-v1", wrappers=(S + "DoubledReward",)), 2, 0)
    env.reset()
    assert (env.step(np.zeros(2, np.int32)).reward == 2.0).all()


STATISTICS = "gymnasium.wrappers:RecordEpisodeStatistics"


@pytest.mark.parametrize("path", [{"wrappers": (STATISTICS,)}, {"backend": "sync"}])
def test_atari_options_are_refused_where_gymnasium_makes_the_games(path):
    pytest.importorskip("ale_py")
    config = EnvConfig("ALE/Breakout-v5", atari=AtariConfig(episodic_life=True, stack=2), **path)
    with pytest.raises(ConfigError, match=rf"env.atari.stack=2, env.atari.episodic_life=True.*env.{next(iter(path))}"):
        make(config, 1, 0)


def test_a_note_says_that_the_preprocessing_of_wrapped_atari_games_does_not_apply():
    pytest.importorskip("ale_py")
    env = make(EnvConfig("ALE/Breakout-v5", wrappers=(STATISTICS,)), 1, 0)
    assert env.spec.observation.shape == (210, 160, 3)
    assert re.search("env.atari .*does not apply.*sticky actions", env.spec.notes[0])
    env.close()


class ScriptedGame:
    """Stands for ale-py's vector of one game: `lives` after each step; frame t is all t + 1."""

    def __init__(self, lives: list[int]):
        self.lives, self.time = lives, 0

    def step(self, action: np.ndarray) -> Any:
        self.time += 1
        now, none = self.lives[self.time], np.zeros(1, bool)
        frames = np.full((1, 4, 84, 84), self.time + 1, np.uint8)
        return frames, np.ones(1), np.array([now == 0]), none, {"lives": np.array([now])}

    def reset(self, seed: Any = None) -> Any:
        return np.ones((1, 4, 84, 84), np.uint8), {"lives": np.array([self.lives[0]])}

    def close(self) -> None: ...


def test_life_lost_while_fire_is_pressed_ends_no_other_life():
    """Lives 3, 2, 1 in successive steps: the agent has not acted in the second life, so only the first one ends."""
    pytest.importorskip("ale_py")
    env: Any = make(EnvConfig("ALE/Breakout-v5", atari=AtariConfig(episodic_life=True)), 1, 0)
    env._env.close()
    env._env = ScriptedGame([3, 2, 1, 1, 0, 3])
    env.reset()
    steps = [env.step(np.zeros(1, np.int32)) for _ in range(5)]
    assert [bool(step.is_first[0]) for step in steps] == [False, True, False, False, True]
    assert [float(step.discount[0]) for step in steps] == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert [float(step.reward[0]) for step in steps] == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert [(e.return_, e.length) for step in steps for e in step.episodes] == [(4.0, 3)]


def test_frames_go_on_after_a_lost_life_and_are_black_before_a_game():
    pytest.importorskip("ale_py")
    env: Any = make(EnvConfig("ALE/Breakout-v5", atari=AtariConfig(episodic_life=True)), 1, 0)
    env._env.close()
    env._env = ScriptedGame([3, 2, 2, 0, 3])
    seen = [env.reset().observation[0, 0, 0].tolist()]
    seen += [env.step(np.zeros(1, np.int32)).observation[0, 0, 0].tolist() for _ in range(4)]
    assert seen == [[0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [0, 0, 0, 5]]


@pytest.mark.slow
def test_lost_life_ends_the_rows_and_not_the_game():
    pytest.importorskip("ale_py")
    env = make(EnvConfig("ALE/Breakout-v5", atari=AtariConfig(episodic_life=True)), 2, 0)
    assert env.spec.observation == ArraySpec((84, 84, 4), "uint8") and env.spec.action_repeat == 4
    rng, cuts, games, steps = np.random.default_rng(0), np.zeros(2, int), [], np.zeros(2, int)
    step = env.reset()
    before = step
    for _ in range(600):
        last_cut = before.discount == 0
        step = env.step(rng.integers(0, 4, 2).astype(np.int32))
        assert (step.is_first == last_cut).all()
        assert not step.reward[step.is_first].any()
        cuts += step.discount == 0
        steps += ~step.is_first
        for episode in step.episodes:
            assert episode.length == steps[episode.slot] and episode.terminated
            assert cuts[episode.slot] == 5, "a game of Breakout has five lives"
            cuts[episode.slot] = steps[episode.slot] = 0
            games.append(episode)
        before = step
    assert len(games) >= 4
    env.close()


@pytest.mark.parametrize("stack", [slow(2), slow(3), 4])
def test_stacked_frames_equal_ale_with_channels_last(stack):
    pytest.importorskip("ale_py")
    env = make(EnvConfig("ALE/Breakout-v5", atari=AtariConfig(stack=stack, max_frames=60)), 2, 0)
    inner, shown = env._env.step, []
    env._env.step = lambda action: (shown.append(inner(action)), shown[-1])[1]
    env.reset()
    for _ in range(50):
        step = env.step(np.zeros(2, np.int32))
        np.testing.assert_array_equal(step.observation, shown[-1][0].transpose(0, 2, 3, 1))
    env.close()


def test_a_forbidden_action_is_a_fault():
    env = make(EnvConfig("probe:masked"), 2, 0)
    forbidden = np.argmin(env.reset().observation["action_mask"], axis=1)
    with pytest.raises(EnvironmentFault, match="mask allows only"):
        env.step(forbidden)


def test_every_slot_of_every_group_has_its_own_seed():
    seeds = [seed for run_seed in (7, 8) for group in range(3) for seed in slot_seeds(run_seed, group, 4)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("steps", range(4))  # within an episode, and at its end
def test_probes_continue_from_a_saved_state(steps):
    config = EnvConfig("probe:memory", kwargs={"delay": 2})
    one, two = make(config, 3, 7), make(config, 3, 99)
    two.seeds[:] = one.seeds
    one.reset(), two.reset()
    for _ in range(steps):
        one.step(np.ones(3, np.int32))
    two.load(one.save())
    for _ in range(10):
        a, b = one.step(np.ones(3, np.int32)), two.step(np.ones(3, np.int32))
        assert a.episodes == b.episodes
        np.testing.assert_array_equal(a.observation, b.observation)
        np.testing.assert_array_equal(a.is_first, b.is_first)


def test_make_spec_equals_the_environment_spec():
    assert make_spec(EnvConfig("CartPole-v1")).observation == ArraySpec((4,), "float32")


@pytest.mark.parametrize(("name", "message"), [("Unseeded", "differ"), ("EqualSlots", "start with the same")])
def test_check_env_finds_bad_seeding(name, message):
    if name == "EqualSlots":
        report = check_env(EnvConfig(S + name), steps=20)
        assert any(message in note for note in report.notes)
    else:
        with pytest.raises(EnvironmentFault, match=message):
            check_env(EnvConfig(S + name), steps=20)


def test_step_limit_is_passed_to_a_vector_environment_or_refused():
    with pytest.raises(ConfigError, match="no parameter `max_episode_steps`"):
        make(EnvConfig(S + "counting_vector", {"mode": "NextStep"}, max_episode_steps=2), 1, 0)
    env = make(EnvConfig(S + "limited_vector", max_episode_steps=2), 1, 0)
    env.reset()
    assert [len(env.step(np.zeros(1, np.int32)).episodes) for _ in range(3)] == [0, 1, 0]


class Masking(Counting):
    """As environments of MaskablePPO; `told` says whether `info` has the mask, too."""

    def __init__(self, told: bool = False):
        super().__init__()
        self.told = told

    def action_masks(self):
        return np.ones(2, bool)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation, {**info, **({"action_mask": self.action_masks()} if self.told else {})}


def masking_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([Masking] * num_envs)


W = "gymnasium.wrappers:"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (EnvConfig(S + "Counting"), ()),
        (
            EnvConfig(S + "Counting", wrappers=(W + "NormalizeObservation",)),
            ("use agent.normalize_observations in its",),
        ),
        (
            EnvConfig(S + "Counting", wrappers=(W + "NormalizeReward", W + "NormalizeObservation")),
            ("use agent.normalize_observations in its place", "use agent.normalize_values in its place"),
        ),
        (EnvConfig(Masking, wrappers=(W + "RecordEpisodeStatistics",)), (r"action_masks() is not called; return the",)),
        (EnvConfig(Masking, kwargs={"told": True}), ()),
        (EnvConfig(masking_vector), ("action_masks() is not called",)),
        (
            EnvConfig("CartPole-v1", wrappers=(W + "RecordEpisodeStatistics",)),
            ("a vectorised implementation, which cannot",),
        ),
    ],
)
def test_notes_name_what_jsrl_does_not_use(config, told):
    notes = make_spec(config).notes
    assert len(notes) == len(told) and all(part in note for part, note in zip(told, notes, strict=True))


def test_a_partial_of_an_environment_gives_its_arguments():
    given = EnvConfig(functools.partial(Counting, length=5, start=7), kwargs={"start": 2})
    assert given == EnvConfig(Counting, kwargs={"length": 5, "start": 2})


MEET = {"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({}), r"the observation space Dict\(\) has no entries"),
        (spaces.Dict({"a": spaces.Tuple(())}), "has no entries"),
        (spaces.Dict(MEET), "two parts of its observation are called 'a/b'"),
        (spaces.Dict({1: spaces.Discrete(2), "1": spaces.Discrete(2)}), "two parts of its observation are called '1'"),
    ],
)
def test_observation_spaces_without_entries_or_with_equal_paths_are_refused(space, message):
    with pytest.raises(ConfigError, match=message):
        ObservationLayout(space, "here")


def test_raw_observations_are_encoded_as_the_vector_encodes_them():
    env = make(EnvConfig(S + "Rich"), 2, 0)
    raw = Rich()
    observation, info = raw.reset()
    found = encode(raw.observation_space, [observation] * 2, masks=[info["action_mask"]] * 2)
    wanted = dict(named_leaves(env.reset().observation))
    assert {name: leaf.dtype for name, leaf in named_leaves(found)} == {
        name: leaf.dtype for name, leaf in wanted.items()
    }
    for name, leaf in named_leaves(found):
        np.testing.assert_array_equal(leaf, wanted[name])
    np.testing.assert_array_equal(encode(spaces.Discrete(3, start=5), [7, 5]), [[0, 0, 1], [1, 0, 0]])
    with pytest.raises(
        SpecMismatch, match=r"environment 1 returned int 8 as 'observation'; its space has the values 5 to 7"
    ):
        encode(spaces.Discrete(3, start=5), [7, 8])
