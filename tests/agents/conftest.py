"""Shared by the tests of algorithms: tiny vectorised environments with known answers, and a plain training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jsrl.agents.base import Agent, AgentState, row_mask
from jsrl.types import (
    ArraySpec,
    Continuous,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Trajectory,
    Tree,
    make_trajectory_spec,
    map_tree,
    spec_of,
    to_environment,
    zeros,
)

GAMMA = 0.7  # of the probes: far from 1, so that a missing or doubled discount is noticed


class Rows(NamedTuple):
    """The result of one action, like jsrl.envs.base.EnvStep."""

    observation: Tree
    is_first: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    acts: np.ndarray


class Probe:
    """Episodes of fixed length with next-step auto-reset; `cue` [B] in {0, 1} is drawn at each start.

    Args:
      see: (cue, time) -> observation tree of [B, ...]. judge: (environment action, cue, time) -> reward [B].
      length: acting rows of an episode. truncates: the last of them ends it with discount 1.
    """

    def __init__(self, spec: EnvSpec, see: Callable, judge: Callable, *, length: int, truncates=False, num_envs=64):
        self.spec, self.see, self.judge = spec, see, judge
        self.length, self.truncates, self.num_envs = length, truncates, num_envs

    def reset(self, seed: int) -> Rows:
        self.rng = np.random.default_rng(seed)
        self.cue = self.rng.integers(2, size=self.num_envs)
        self.time = self.rng.integers(self.length, size=self.num_envs) * 0
        ones = np.ones(self.num_envs, np.float32)
        return Rows(self.see(self.cue, self.time), ones > 0, 0 * ones, ones, ones.astype(np.uint8))

    def step(self, action: np.ndarray) -> Rows:
        over = self.time == self.length  # the row just acted on was a last observation: its action is ignored
        reward = self.judge(to_environment(self.spec.action, action), self.cue, self.time).astype(np.float32)
        ends = ~over & (self.time == self.length - 1)
        self.time = np.where(over, 0, self.time + 1)
        self.cue = np.where(over, self.rng.integers(2, size=self.num_envs), self.cue)
        discount = np.where(ends & (not self.truncates), 0.0, 1.0).astype(np.float32)
        acts = np.ones(self.num_envs, np.uint8)
        return Rows(self.see(self.cue, self.time), over, np.where(over, 0, reward).astype(np.float32), discount, acts)


class Played(NamedTuple):
    """Final values of the loop: state, last trajectory, metrics of every update, mean reward per unmasked row of the last."""

    state: AgentState
    trajectory: Trajectory
    metrics: list[dict[str, float]]
    score: float


def play(agent: Agent, env: Probe, *, num_updates: int, num_rows: int = 8, seed: int = 0) -> Played:
    """Run act -> step -> Trajectory -> update, as in a notebook. Few rows of many columns, because each row is one call."""

    @jax.jit
    def act(params, key, count, *request):
        return agent.act(params, jax.random.fold_in(key, count), *request)

    @jax.jit
    def update(state, trajectory, key, count):
        return agent.update(state, trajectory, jax.random.fold_in(key, count))

    state = jax.jit(agent.init)(jax.random.key(seed))
    act_key, update_key = jax.random.split(jax.random.key(seed + 1))
    core = agent.initial_core(env.num_envs)
    row, metrics, score = env.reset(seed), [], 0.0
    core_spec = map_tree(lambda s: ArraySpec(s.shape[1:], s.dtype), spec_of(core))
    schema = make_trajectory_spec(env.spec, (), core_spec, num_rows=num_rows, num_envs=env.num_envs)
    for number in range(num_updates):
        trajectory = zeros(schema)._replace(core=core)
        for t in range(num_rows):
            reply, core = act(state.params, act_key, number * num_rows + t, row.observation, row.is_first, core)
            map_tree(lambda to, value, t=t: to.__setitem__(t, value), trajectory.observation, row.observation)
            trajectory.is_first[t], trajectory.acts[t] = row.is_first, row.acts
            trajectory.action[t], trajectory.log_prob[t] = reply.action, reply.log_prob
            row = env.step(trajectory.action[t])
            trajectory.reward[t], trajectory.discount[t] = row.reward, row.discount
        map_tree(lambda to, value: to.__setitem__(num_rows, value), trajectory.observation, row.observation)
        trajectory.is_first[num_rows] = row.is_first
        state, output = update(state, trajectory, update_key, number)
        metrics.append(output.metrics)
        mask = np.asarray(row_mask(trajectory))
        score = float((trajectory.reward[:-1] * mask).sum() / mask.sum())
    metrics = [{name: float(value) for name, value in each.items()} for each in jax.device_get(metrics)]
    return Played(state, trajectory, metrics, score)


# -- environments -----------------------------------------------------------------------------------------------------


def signed(x: np.ndarray) -> np.ndarray:
    return 2.0 * np.asarray(x, np.float32) - 1.0


def matches(action_spec: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return (environment action, wanted in {0, 1}) -> reward in [-1, 1] (lower where continuous), 1 the best."""
    if isinstance(action_spec, Discrete):
        return lambda action, wanted: signed(action == wanted)
    if isinstance(action_spec, MultiDiscrete):  # every part has to be `wanted`
        return lambda action, wanted: signed(action == np.asarray(wanted)[..., None]).mean(-1)
    middle = (np.asarray(action_spec.high) + action_spec.low) / 2
    reach = (np.asarray(action_spec.high) - action_spec.low) / 4
    return lambda action, wanted: 1 - np.abs((action - middle) / reach - signed(wanted)[..., None]).mean(-1)


def vector(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float32)[:, None]


ACTIONS = {
    "discrete": Discrete(2),
    "multi_discrete": MultiDiscrete((2, 3)),
    "continuous": Continuous((-2.0, 0.0), (2.0, 1.0), "rescale"),
    "squashed": Continuous((-2.0, 0.0), (2.0, 1.0), "squash"),
}
LINE = ArraySpec((1,), "float32")


def constant_reward(truncates: bool = False) -> Probe:
    """Reward 1, then the end: v = 1 (truncated: v(o) = 1 + gamma v(last o), and both observations are equal)."""
    spec = EnvSpec(LINE, Discrete(2), "constant reward")
    return Probe(spec, lambda c, t: vector(0 * c), lambda a, c, t: 1.0 + 0 * c, length=1, truncates=truncates)


def seen_reward() -> Probe:
    """Reward is the observation, +-1: v(o) = o."""
    spec = EnvSpec(LINE, Discrete(2), "seen reward")
    return Probe(spec, lambda c, t: vector(signed(c)), lambda a, c, t: signed(c), length=1)


def delayed_reward() -> Probe:
    """Reward 1 at the second of two rows: v = gamma, 1."""
    spec = EnvSpec(LINE, Discrete(2), "delayed reward")
    return Probe(spec, lambda c, t: vector(t), lambda a, c, t: 1.0 * (t == 1), length=2)


def matching_reward(kind: str = "discrete") -> Probe:
    """Reward for playing the observed action."""
    spec, judge = EnvSpec(LINE, ACTIONS[kind], "matching reward"), matches(ACTIONS[kind])
    return Probe(spec, lambda c, t: vector(signed(c)), lambda a, c, t: judge(a, c), length=2)


def remembered_reward() -> Probe:
    """The cue is visible in row 0 only; the action of row 3 must repeat it. A feed-forward policy earns 0."""
    spec = EnvSpec(ArraySpec((2,), "float32"), Discrete(2), "remembered reward")

    def see(cue: np.ndarray, time: np.ndarray) -> np.ndarray:
        return np.stack([signed(cue) * (time == 0), time == 3], -1).astype(np.float32)

    return Probe(spec, see, lambda a, c, t: 4 * signed(a == c) * (t == 3), length=4)


def masked_reward() -> Probe:
    """Dict observation whose mask allows action 0 and the cue's action; action 2 (never allowed) would earn most."""
    mask = ArraySpec((3,), "uint8")
    spec = EnvSpec({"cue": ArraySpec((), "float32"), "action_mask": mask}, Discrete(3), "masked reward")

    def see(cue: np.ndarray, time: np.ndarray) -> Tree:
        allowed = np.stack([np.ones_like(cue), cue, np.zeros_like(cue)], -1).astype(np.uint8)
        return {"cue": signed(cue), "action_mask": allowed}

    return Probe(spec, see, lambda a, c, t: np.where(a == 2, 100.0, signed(a == c)), length=2)


def agents_reward() -> Probe:
    """Two agents that share a policy; agent i observes cue xor i and must play it. They act in turns."""
    spec = EnvSpec(ArraySpec((2, 2), "float32"), Discrete(2), "two agents", num_agents=2)

    class Turns(Probe):
        def reset(self, seed):
            return self.share(super().reset(seed))

        def step(self, action):
            time, cue = self.time.copy(), self.cue.copy()
            row = self.share(super().step(action))
            wanted = np.stack([cue, 1 - cue], -1)
            turn = np.arange(2) == (time % 2)[:, None]
            reward = signed(action == wanted) * turn * ~row.is_first[:, None]
            return row._replace(reward=reward.astype(np.float32))

        def share(self, row):
            turn = np.arange(2) == (self.time % 2)[:, None]
            both = [np.repeat(x[:, None], 2, 1) for x in (row.reward, row.discount)]
            return row._replace(reward=both[0], discount=both[1], acts=turn.astype(np.uint8))

    def see(cue, time):
        number = np.broadcast_to(signed(np.arange(2)), (len(cue), 2))
        return np.stack([signed(cue)[:, None] * -number, number], -1).astype(np.float32)

    return Turns(spec, see, lambda a, c, t: 0.0 * c, length=4)


PROBES = {
    probe.__name__: probe
    for probe in (
        constant_reward,
        seen_reward,
        delayed_reward,
        matching_reward,
        remembered_reward,
        masked_reward,
        agents_reward,
    )
}


@pytest.fixture
def probe() -> Callable[..., Probe]:
    """Return (name, ...) -> Probe."""
    return lambda name, *arguments: PROBES[name](*arguments)


@pytest.fixture(name="play")
def play_fixture() -> Callable[..., Played]:
    """Return `play`."""
    return play
