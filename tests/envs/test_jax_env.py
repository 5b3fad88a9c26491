"""Environments in JAX: their rows are those of any environment, and an own one is checked like any other."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl import EnvConfig, Experiment, PPOConfig, check_env, load_policy, make_env, run
from jsrl.envs.adapters.in_jax import make_single, reset_all, step_all
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.extend import ArraySpec, Continuous, Discrete, EnvSpec, GameSpec, JaxStep, Seat
from jsrl.graph.plan import make_plan
from tests.envs.jax_rows import assert_rows_agree


class State(NamedTuple):
    time: jax.Array
    start: jax.Array
    key: jax.Array  # a key in the state must survive resets


class Climb:
    """Climbs from a random start, one step at a time: observation (start, time), reward time, ends after `length` steps."""

    def __init__(self, length: int = 3, truncates: bool = False, action=None, fails: bool = False):
        self.spec = EnvSpec(ArraySpec((2,), "float32"), action or Discrete(2))
        self.length, self.truncates, self.fails = length, truncates, fails

    def reset(self, key):
        state = State(0, jax.random.uniform(key), key)  # a weakly typed 0
        return state, self._seen(state)

    def step(self, key, state, action):
        if self.fails:
            raise ValueError("no floor")
        state = state._replace(time=state.time + 1)
        over = state.time >= self.length
        reward = state.time * (action if jnp.ndim(action) == 0 else action[0])
        return JaxStep(state, self._seen(state), reward, over & (not self.truncates), over & self.truncates)

    def _seen(self, state):
        return jnp.stack([state.start, jnp.float32(state.time)])


def climb(num_envs: int = 2, seed: int = 0, group: int = 0, most: int | None = None, **kwargs):
    config = EnvConfig(f"{__name__}:Climb", kwargs=kwargs, backend="jax", max_episode_steps=most)
    env = make_env(config, num_envs, seed, group=group)
    return env, env.reset()


@pytest.mark.parametrize("truncates", [False, True])
def test_rows_are_those_of_next_step_resets(truncates: bool) -> None:
    env, first = climb(truncates=truncates)
    steps = [env.step(np.ones(2, np.int32)) for _ in range(5)]
    assert first.is_first.all() and [step.is_first.tolist() for step in steps] == [[t == 3] * 2 for t in range(5)]
    assert [step.observation[0, 1] for step in steps] == [
        1,
        2,
        3,
        0,
        1,
    ]  # the last observation, then the next first one
    assert [float(step.reward[0]) for step in steps] == [1, 2, 3, 0, 1]
    assert [float(step.discount[0]) for step in steps] == [1, 1, 1 if truncates else 0, 1, 1]
    ended = steps[2].episodes
    assert [(e.slot, e.return_, e.length, e.terminated) for e in ended] == [(s, 6, 3, not truncates) for s in (0, 1)]
    assert steps[2].observation[0, 0] == first.observation[0, 0] != steps[3].observation[0, 0]  # another random start
    assert env._envs._functions.step._cache_size() == 1


def test_the_same_seed_and_group_give_the_same_episodes() -> None:
    starts = [climb(seed=s, group=g)[1].observation[:, 0].tolist() for s, g in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert starts[0] == starts[1] and len({*map(tuple, starts)}) == 3 and len(set(starts[0])) == 2


def test_episodes_may_be_cut_and_actions_are_within_their_bounds() -> None:
    env, _ = climb(most=2, action=Continuous((-2.0,), (2.0,), "rescale"))
    steps = [env.step(np.full((2, 1), 9.0, np.float32)) for _ in range(3)]
    assert [float(step.reward[0]) for step in steps] == [2, 4, 0] and steps[2].is_first.all()
    assert [e.terminated for e in steps[1].episodes] == [False, False] and (steps[1].discount == 1).all()


def test_check_env_checks_it_and_mistakes_are_named() -> None:
    assert check_env(EnvConfig(Climb, backend="jax"), steps=12).episodes > 0
    with pytest.raises(
        EnvironmentFault, match=r"Climb' raised ValueError in step: no floor. It was raised in .*test_jax"
    ):
        climb(fails=True)
    with pytest.raises(ConfigError, match=r"made an environment in JAX .*, Climb; add --env.backend jax"):
        make_env(EnvConfig(f"{__name__}:Climb"), 1, 0)
    with pytest.raises(
        ConfigError, match=r"env.backend=jax made OrderedDict; expected an environment with spec, reset"
    ):
        make_env(EnvConfig("collections:OrderedDict", backend="jax"), 1, 0)
    with pytest.raises(ConfigError, match=r"Climb' could not be made with kwargs \{'depth': 3\}: .*'depth'"):
        make_env(EnvConfig(Climb, kwargs={"depth": 3}, backend="jax"), 1, 0)


MISTAKES = {  # field of JaxStep -> what becomes of its value
    "state": lambda x: x._replace(time=x.time * 1.0),
    "observation": lambda x: x[None],
    "reward": lambda x: x[None],
    "terminated": lambda x: jnp.stack([x, x]),
}


class Drifts(Climb):
    def __init__(self, field: str):
        super().__init__()
        self.field = field

    def step(self, key, state, action):
        stepped = super().step(key, state, action)
        return stepped._replace(**{self.field: MISTAKES[self.field](getattr(stepped, self.field))})


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            "state",
            r"the state of step\.time is float32 \[\]; expected int32 \[\], as in the state of reset. Convert it",
        ),
        ("observation", r"the observation of step is float32 \[1, 2\]; expected float32 \[2\], as its spec says"),
        ("reward", r"the reward of step is int32 \[1\]; expected float32 \[\], one number"),
        ("terminated", r"terminated of step is bool \[2\]; expected bool \[\], one flag"),
    ],
)
def test_shapes_and_dtypes_are_checked_before_anything_is_compiled(field: str, said: str, monkeypatch) -> None:
    monkeypatch.setattr("jsrl.envs.adapters.in_jax.Compiled", None)
    config = EnvConfig(f"{__name__}:Drifts", kwargs={"field": field}, backend="jax")
    for make in (check_env, lambda config: make_env(config, 2, 0), make_single):
        with pytest.raises(EnvironmentFault, match=f"Drifts': {said}"):
            make(config)


@pytest.mark.parametrize("placement", ["inline", "served"])
def test_actors_load_jax_for_it_and_are_not_forked(placement: str, tmp_path) -> None:
    env = EnvConfig(f"{__name__}:Climb", backend="jax")
    e = Experiment(PPOConfig(num_minibatches=1), env, num_envs=16, num_actors=16, placement=placement)
    plan = make_plan(e, str(tmp_path), tmp_path)
    assert not plan.forked
    assert plan.job("actor-0").experiment.agent is not None


@pytest.mark.slow
def test_the_same_bits_in_the_process_and_in_actors(tmp_path) -> None:
    agent = PPOConfig(num_epochs=1, num_minibatches=1, learning_rate=0.01)
    env = EnvConfig(f"{__name__}:Climb", backend="jax")
    common = {"num_envs": 4, "num_groups": 2, "rollout_length": 8, "total_env_steps": 320, "deterministic": True}
    weights = []
    for placement in ("serial", "served"):
        e = Experiment(agent, env, placement=placement, num_actors=1 if placement == "serial" else 2, **common)
        result = run(e, runs_dir=tmp_path, name=placement, display="quiet")
        weights.append(jax.tree.leaves(load_policy(f"{result.folder}@latest").params))
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


# -- seats ------------------------------------------------------------------------------------------------------------


class Counted(Climb):
    traced = 0

    def step(self, key, state, action):
        Counted.traced += 1  # takes 100 s, see below
        return super().step(key, state, action)


def test_check_env_compiles_it_once_outside_its_limit_of_time(monkeypatch) -> None:
    monkeypatch.setattr("jsrl.envs.check.time.monotonic", lambda: 100.0 * Counted.traced)
    assert check_env(EnvConfig(Counted, backend="jax"), steps=20, max_seconds=10.0).episodes > 0
    assert Counted.traced == 2, "once for its shapes, once compiled"


class Tug:
    """Two seats pull at a rope: one earns what the other loses; it ends beyond 2, or is truncated after `limit` steps."""

    def __init__(self, limit: int = 5):
        seat = ArraySpec((2,), "float32"), Discrete(3)
        self.spec, self.limit = GameSpec((Seat("left", *seat), Seat("right", *seat)), zero_sum=True), limit

    def reset(self, key):
        state = {"at": jax.random.uniform(key, minval=-1.0), "time": jnp.int32(0)}
        return state, self._seen(state)

    def step(self, key, state, action):
        pull = 0.5 * (action["right"] - action["left"])
        state = {"at": state["at"] + pull, "time": state["time"] + 1}
        over = jnp.abs(state["at"]) > 2
        return JaxStep(state, self._seen(state), {"left": -pull, "right": pull}, over, state["time"] >= self.limit)

    def _seen(self, state):
        return {name: jnp.stack([sign * state["at"], jnp.float32(state["time"])]) for name, sign in SIGNS.items()}


SIGNS = {"left": -1, "right": 1}


def test_rows_of_seats_are_the_same_fused_and_in_actors() -> None:
    endings = assert_rows_agree(EnvConfig(f"{__name__}:Tug", backend="jax"))
    assert any(endings) and not all(endings)


def test_each_policy_sees_its_seats_and_earns_for_them() -> None:
    assert check_env(EnvConfig(Tug, backend="jax"), steps=30).episodes > 0
    env = make_game(EnvConfig(Tug, kwargs={"limit": 2}, backend="jax"), 2, 0)
    first, seen = env.reset().observation, []
    for _ in range(3):
        seen.append(env.step({"left": np.zeros((2, 1), np.int32), "right": np.array([[1], [2]], np.int32)}))
    np.testing.assert_allclose(seen[0].observation["right"][:, 0, 0] - first["right"][:, 0, 0], [0.5, 1.0], atol=1e-6)
    np.testing.assert_array_equal(seen[0].observation["left"][..., 0], -seen[0].observation["right"][..., 0])
    assert seen[0].reward.tolist() == [[-0.5, 0.5], [-1.0, 1.0]] and seen[2].reward.tolist() == [[0, 0], [0, 0]]
    assert seen[2].is_first.all() and seen[1].discount[0].tolist() == [1, 1]
    assert seen[1].episodes[0].returns == (-1.0, 1.0) and not seen[1].episodes[0].terminated


# -- starts from few resets -------------------------------------------------------------------------------------------


class Costly(Climb):
    envs_per_reset = 4


def test_few_resets_start_the_episodes_of_many_environments() -> None:
    env, key = Costly(), jax.random.key(3)
    begin, go = jax.jit(partial(reset_all, env, 8)), jax.jit(partial(step_all, env))
    state, observation = begin(key, np.uint32(1))
    for call, ends in enumerate([[0], [1, 6], range(8)], 2):
        first = np.isin(np.arange(8), ends)
        seen = np.asarray(go(key, np.uint32(call), state, np.zeros(8, np.int32), first).observation)
        assert (seen[~first, 0] == observation[~first, 0]).all() and (seen[:, 1] == np.where(first, 0, 1)).all()
        assert not np.isin(seen[first, 0], observation[:, 0]).any()
        assert len(set(seen[first, 0].tolist())) == min(2, len(ends)), "two resets for eight environments"


# -- gymnax -----------------------------------------------------------------------------------------------------------


def test_cartpole_of_gymnax_moves_as_gymnasiums_and_keeps_last_observations() -> None:
    pytest.importorskip("gymnax")
    env = make_env(EnvConfig("gymnax:CartPole-v1", kwargs={"max_steps_in_episode": 5}), 3, 0)
    step, other = env.reset(), gymnasium.make("CartPole-v1").unwrapped
    other.reset()
    for t in range(5):
        other.state = step.observation[1].astype(np.float64)
        expected = other.step(t % 2)[0]
        step = env.step(np.full(3, t % 2, np.int32))
        np.testing.assert_allclose(step.observation[1], expected, atol=1e-5)
    assert [(e.length, e.terminated) for e in step.episodes] == [(5, False)] * 3 and (step.discount == 1).all()
    assert env.step(np.zeros(3, np.int32)).is_first.all()
