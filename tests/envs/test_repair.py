"""Failed environments are rebuilt: correct rows, other slots unchanged, fresh seeds, a bounded number of rebuilds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from jsrl.envs.base import EnvStep
from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
from jsrl.envs.repair import WINDOW_S, RebuiltVector, Repairs
from jsrl.errors import ConfigError, EnvironmentFault

S = "tests.envs.test_repair:"
CLOSED: list[str] = []
SEEDS: list[int] = []
OPTIONS: list[tuple[int, int, dict | None]] = []


class FailingEnv(gymnasium.Env):
    """Observes (rebuilds so far, steps of the episode); fails as `what` says at step `at` of an episode until rebuilt."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-1.0, 100.0, (2,), np.float32)
    made = 0

    def __init__(self, what: str = "raise", at: int = 3, lives: int = 1, slots: int = 2, slot: int = 1) -> None:
        number, FailingEnv.made = FailingEnv.made, FailingEnv.made + 1
        self.slot = number if number < slots else slot  # only this slot is ever rebuilt
        self.life = max(0, number - slots + 1)
        self.fails = self.slot == slot and self.life < lives
        self.what, self.at, self.time, self.length = what, at, 0, 5

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        OPTIONS.append((self.slot, self.life, options))
        if seed is not None:
            SEEDS.append(seed)
        self.time = 0
        if self.fails and self.what == "first reset":
            raise RuntimeError("no level to begin with")
        if self.fails and self.what == "reset nan" and self.life:
            return np.full(2, np.nan, np.float32), {}
        return self._observe(), {"score": 1.0}

    def _observe(self) -> np.ndarray:
        return np.array([self.life, self.time], np.float32)

    def step(self, action) -> Any:
        self.time += 1
        if self.fails and self.time == self.at:
            if self.what in ("raise", "reset nan"):
                raise ZeroDivisionError("the wheel came off")
            if self.what == "exit":
                raise SystemExit(3)
            if self.what == "nan":
                return np.array([np.nan, 0], np.float32), 7.0, True, False, {"score": 100.0}
            if self.what == "reward":
                return self._observe(), float("nan"), False, False, {"score": 100.0}
            if self.what == "shape":
                return np.zeros(3, np.float32), 7.0, False, False, {}
            if self.what == "dtype":
                return np.array(["a", "b"]), 7.0, False, False, {}
            if self.what == "none":
                return None
        return self._observe(), 1.0, False, self.time == self.length, {"score": 1.0}

    def close(self) -> None:
        CLOSED.append(f"slot {self.slot}, life {self.life}")
        if self.fails:
            raise OSError("it cannot even be closed")


@pytest.fixture(autouse=True)
def fresh() -> None:
    FailingEnv.made = 0
    CLOSED.clear()
    SEEDS.clear()
    OPTIONS.clear()


def frail(what: str, told: list[str] | None = None, seed: int = 5, **options: Any):
    limits = {name: options.pop(name) for name in list(options) if name.startswith("fault_")}
    config = EnvConfig(
        S + "FailingEnv",
        kwargs={"what": what, **options},
        on_fault="restart-env",
        episode_metrics=("score:sum",),
        **limits,
    )
    return make(config, 2, seed, group=3, warn=None if told is None else told.append)


def steps_of(env, count: int) -> list[EnvStep]:
    """Return the EnvSteps of the reset and of `count` steps, with copied arrays."""
    found = [env.reset()]
    kept = [found[0]._replace(observation=found[0].observation.copy())]
    for _ in range(count):
        step = env.step(np.zeros(2, np.int32))
        kept.append(step._replace(observation=step.observation.copy(), is_first=step.is_first.copy()))
    return kept


@pytest.mark.parametrize("what", ["raise", "exit", "nan", "reward", "shape", "dtype", "none"])
def test_failed_slot_is_rebuilt_and_its_episode_cut(what: str) -> None:
    told: list[str] = []
    steps = steps_of(frail(what, told), 12)
    # slot 0 has episodes of 5 steps; in slot 1 the third step fails: row 2 is a last observation, row 3 is first
    assert [s.is_first[0] for s in steps] == [t % 6 == 0 for t in range(13)]
    assert [s.is_first[1] for s in steps] == [t == 0 or (t >= 3 and (t - 3) % 6 == 0) for t in range(13)]
    assert all((s.discount == 1.0).all() for s in steps)  # a truncation: it is not reported as a termination
    assert [s.reward[1] for s in steps] == [0.0 if s.is_first[1] else 1.0 for s in steps]
    assert [tuple(s.observation[1]) for s in steps[:6]] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [tuple(s.observation[0]) for s in steps[:6]] == [(0, t) for t in range(6)]
    ended = [(t, e.slot, e.length, e.return_, e.metrics) for t, s in enumerate(steps) for e in s.episodes]
    whole = {"score:sum": 5.0}  # the cut episode does not count in any statistic
    assert ended == [(5, 0, 5, 5.0, whole), (8, 1, 5, 5.0, whole), (11, 0, 5, 5.0, whole)]
    assert CLOSED == ["slot 1, life 0"]
    assert len(told) == 1
    for part in (
        "FailingEnv",
        "slot 1, episode 0, step 2, first reset with seed",
        "Slot 1 is rebuilt, with seed",
        "repair 1 of 10",
    ):
        assert part in told[0]


def test_repair_seed_is_equal_across_runs_and_differs_per_restart() -> None:
    runs = []
    for _ in range(2):
        FailingEnv.made = 0
        SEEDS.clear()
        told: list[str] = []
        steps_of(frail("raise", told, lives=3), 12)
        assert len(told) == 3 and f"rebuilt, with seed {SEEDS[-1]}" in told[-1] and f"seed {SEEDS[-2]})" in told[-1]
        runs.append(list(SEEDS))
    assert runs[0] == runs[1] and len(runs[0]) == 5 and len(set(runs[0])) == 5


@pytest.mark.parametrize("what", ["first reset", "reset nan"])
def test_environment_whose_first_observation_fails_is_rebuilt(what: str) -> None:
    told: list[str] = []
    steps = steps_of(frail(what, told, lives=3), 4)
    assert len(told) == 3 and not np.isnan(np.stack([s.observation for s in steps])).any()
    rebuilt = 0 if what == "first reset" else 3  # in the reset itself, or at the third step
    assert [t for t, s in enumerate(steps) if s.is_first[1]] == ([0] if rebuilt == 0 else [0, 3])
    assert steps[rebuilt].observation[1].tolist() == [3.0, 0.0]


def test_repeated_failures_end_with_the_fault() -> None:
    told: list[str] = []
    env = frail("raise", told, lives=1000, fault_limit=4)
    with pytest.raises(
        EnvironmentFault, match=r"slot 1, episode 4, step 2, .*the wheel came off.*failed again after 4 repairs"
    ):
        steps_of(env, 100)
    assert len(told) == 4


def test_repairs_before_the_window_do_not_count() -> None:
    now_s = 100.0
    repairs = Repairs(EnvConfig(fault_limit=2), clock=lambda: now_s)
    for _ in range(2):
        repairs.take(EnvironmentFault("it broke"), "cure")
    with pytest.raises(EnvironmentFault, match="it broke"):
        repairs.take(EnvironmentFault("it broke"), "cure")
    now_s += WINDOW_S + 0.5
    repairs.take(EnvironmentFault("it broke"), "cure")


def test_without_restart_policy_the_fault_is_raised() -> None:
    env = make(EnvConfig(S + "FailingEnv"), 2, 0)
    with pytest.raises(EnvironmentFault, match="the wheel came off"):
        steps_of(env, 10)
    assert FailingEnv.made == 2 and not CLOSED


# -- vector environments without replaceable slots --------------------------------------------------------------------


class FailingVector:
    """A vector environment with jsrl's protocol: two slots, a clock; the first instance raises at its third step."""

    made: list[int] = []  # noqa: RUF012

    def __init__(self, num_envs: int, seed: int, group: int) -> None:
        from jsrl.games.probes import make_probe

        self._probe = make_probe(EnvConfig("probe:memory"), num_envs, seed, group)
        self.spec, self.num_envs, self.close, self.reset = (
            self._probe.spec,
            num_envs,
            self._probe.close,
            self._probe.reset,
        )
        FailingVector.made.append(seed)
        self.time, self.fails = 0, len(FailingVector.made) == 1

    def step(self, action):
        self.time += 1
        if self.fails and self.time == 3:
            raise ZeroDivisionError("the axle broke")
        return self._probe.step(action)


def frail_gym_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([lambda: FailingEnv(slots=num_envs + 2)] * num_envs)


@pytest.mark.parametrize("name", ["FailingVector", "frail_gym_vector"])
def test_user_vector_environment_is_rebuilt_as_a_whole(name: str) -> None:
    FailingVector.made.clear()
    told: list[str] = []
    env = make(EnvConfig(S + name, on_fault="restart-env"), 2, 5, group=3, warn=told.append)
    steps = steps_of(env, 4)
    assert [s.is_first.tolist() for s in steps] == [[t in (0, 3)] * 2 for t in range(5)]
    assert all((s.discount == 1.0).all() and (s.reward[s.is_first] == 0.0).all() for s in steps)
    assert len(told) == 1 and "All 2 slots of its vector are rebuilt" in told[0]
    assert name in told[0] and ("the axle broke" in told[0] or "the wheel came off" in told[0])
    assert len(set(FailingVector.made)) == len(FailingVector.made)
    env.close()


def test_rebuilt_environments_begin_the_task_of_the_episode_that_failed() -> None:
    config = EnvConfig(S + "FailingEnv", on_fault="restart-env", tasks=tuple(range(1000)))
    steps_of(make(config, 2, 5, group=3), 12)
    first, rebuilt = (
        next(options for slot, life, options in OPTIONS if (slot, life) == (1, wanted)) for wanted in (0, 1)
    )
    assert first is not None and rebuilt == first
    later = [options for slot, life, options in OPTIONS if (slot, life) == (1, 1)][1:]
    assert later and all(options is not None and options != first for options in later)


def test_rebuilt_vector_gets_the_tasks_of_the_episodes_that_failed() -> None:
    given: list[dict[int, int]] = []

    class Vector(FailingVector):
        def set_tasks(self, tasks: dict[int, int]) -> None:
            given.append(dict(tasks))

    FailingVector.made.clear()
    env = RebuiltVector(Vector(2, 5, 3), lambda seed: Vector(2, seed, 3), 5, Repairs(EnvConfig("probe:memory")), "it")
    env.set_tasks({0: 7, 1: 8})
    env.reset()
    env.set_tasks({1: 9})
    for _ in range(3):
        env.step(np.zeros(2, np.int32))
    assert given == [{0: 7, 1: 8}, {1: 9}, {0: 7, 1: 9}]


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_fault": "ignore"}, "expected one of auto, stop, restart-env, restart-actor"),
        ({"fault_limit": 0}, "fault_limit is 0"),
    ],
)
def test_invalid_restart_policies_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnvConfig(**options)


def test_check_env_reports_faults_under_every_policy() -> None:
    with pytest.raises(EnvironmentFault, match="the wheel came off"):
        check_env(EnvConfig(S + "FailingEnv", on_fault="restart-env"), num_envs=2, steps=20)
