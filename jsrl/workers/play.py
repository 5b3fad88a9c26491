"""Playing without learning, for evaluators and video recorders: newest params when due, own environments, whole episodes.

Every slot plays the same number of episodes, so that short episodes count no more than long ones.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from jsrl.agents.base import Agent
from jsrl.envs.base import EnvStep, Episode, GameStep, VectorEnv, VectorGame
from jsrl.envs.episodes import Episodes
from jsrl.envs.faults import LONG_STEPS, endless_text
from jsrl.envs.seats import SeatView, actions_of, finite_actions, part_of
from jsrl.intervals import return_facts
from jsrl.linux import lower_session_priority
from jsrl.references.importing import shown_target
from jsrl.services.metrics.metrics import Meter
from jsrl.transport.base import ParamsSubscriber, Request
from jsrl.types import Array, EnvSpec, version_updates
from jsrl.workers.acting import Engine, GroupSlots, make_agent
from jsrl.workers.base import EnvCall, Reporter, watched
from jsrl.workers.ends import subscribe
from jsrl.workers.jobs import Job

STEP_S = 0.05
PlayedEnv = TypeVar("PlayedEnv", bound="VectorEnv | VectorGame")


@dataclass(frozen=True, kw_only=True)
class PlayerSettings:
    """Settings of every player. period_updates: updates between the params that are played. name: of the worker.

    env_steps_per_batch: may be below 1, with replay workers. max_steps: of an episode, and max_s: of what is played for one
    snapshot; beyond them it is cut. last_params_s: how long the last task waits for the last params. niceness: None: leave
    the priority of the process (it is shared).
    """

    seed: int
    period_updates: int
    env_steps_per_batch: float
    updates_per_batch: int = 1
    start_updates: int = 0
    max_steps: int = LONG_STEPS
    max_s: float = math.inf
    last_params_s: float = 60.0
    niceness: int | None = None
    name: str = ""


@dataclass
class Score:
    """Episodes of one snapshot.

    Of environments with seats it has the mean return of the seats in `view`. cancelled: episodes in which the returns of
    these seats are not 0, but sum to 0.
    """

    version: int
    view: SeatView | None = None
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    cancelled: int = 0

    def add(self, episode: Episode) -> None:
        own = episode.return_ if self.view is None else self.view.return_of(episode)
        self.returns.append(own)
        self.cancelled += abs(own) < 1e-6 * max(map(abs, episode.returns), default=0.0)
        self.lengths.append(episode.length)
        self.terminated.append(episode.terminated)

    @property
    def is_opposed(self) -> bool:
        """Return whether the returns of the seats sum to 0 in every episode."""
        return self.cancelled == len(self.returns)

    @property
    def against(self) -> list[str]:
        return []

    def by_opponent(self) -> dict[str, float]:
        return {}

    def facts(self) -> dict[str, Any]:
        """Return mean and deviation of the returns, half width of the mean's 95% interval, length and number of episodes."""
        lengths = {"length_mean": float(np.mean(self.lengths)), "episodes": len(self.returns)}
        return return_facts(self.returns) | lengths | {"version_updates": version_updates(self.version)}


@dataclass(frozen=True)
class Seated:
    """A policy that plays: its engine, and its seats (None: the environment has none)."""

    engine: Engine
    view: SeatView | None = None


class Playing(Protocol):
    """What is played for one snapshot, as `Episodes`."""

    score: Any

    @property
    def env_steps(self) -> int: ...

    @property
    def endless(self) -> bool: ...

    def advance(self, budget_s: float) -> bool: ...


class Play(Episodes):
    """Episodes of some policies.

    Args:
      policies: of all seats; the first one's return is counted. options: of Episodes.
    """

    def __init__(
        self,
        policies: Sequence[Seated],
        env: VectorEnv | VectorGame,
        episodes: int,
        **options: Any,
    ) -> None:
        super().__init__(env, episodes, **options)
        self._policies = policies
        # Each engine serves only these slots; their cores start over with the reset.
        self._served = GroupSlots(0, np.arange(env.num_envs, dtype=np.int32))
        self.score = Score(policies[0].engine.version, policies[0].view)

    def act(self, latest: EnvStep | GameStep) -> Any:
        """Return the actions of all policies: [B, ...], or by group of seats."""
        return actions_of((policy.view, self._act_for(policy, latest)) for policy in self._policies)

    def _act_for(self, policy: Seated, latest: EnvStep | GameStep) -> Array:
        part = part_of(policy.view, latest)
        step = self.env_steps // len(self.left)
        reply = policy.engine.act(self._served, Request(part.observation, part.is_first, step=step))
        return finite_actions(np.array(reply.action), part)

    def count(self, episode: Episode) -> None:
        self.score.add(episode)


class PlayedPolicy:
    """A policy that a player plays: its newest params, and engines by use.

    Args:
      connect: returns its params stream. seed: of its acting. view: of its seats.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        connect: Callable[[], ParamsSubscriber],
        seed: int,
        view: SeatView | None = None,
        name: str = "",
    ) -> None:
        self.agent, self.spec, self.view, self.name = agent, spec, view, name
        self._connect, self._seed = connect, seed
        self.params: tuple[int, list[np.ndarray]] | None = None
        self._engines: dict[tuple[bool, int], Engine] = {}
        self._subscriber: ParamsSubscriber | None = None

    def connect(self) -> None:
        self._subscriber = self._connect()

    @property
    def updates(self) -> int:
        """Return the updates of its params; -1: it has none."""
        return -1 if self.params is None else version_updates(self.params[0])

    def take_newest(self) -> None:
        """Take the newest params, if there are newer ones."""
        assert self._subscriber is not None
        newer = self._subscriber.poll(0)
        self.params = newer if newer is not None else self.params

    def engine(self, greedy: bool, slots: int) -> Engine:
        if (greedy, slots) not in self._engines:
            engine = Engine(self.agent, self.spec, num_slots=slots, sizes=[slots], seed=self._seed, greedy=greedy)
            engine.warm_up()
            self._engines[greedy, slots] = engine
        return self._engines[greedy, slots]

    def seated(self, greedy: bool, slots: int) -> Seated:
        assert self.params is not None
        engine = self.engine(greedy, slots)
        engine.set_params(self.params[0], [np.array(value) for value in self.params[1]])
        return Seated(engine, self.view)

    def close(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()


class Player(Generic[PlayedEnv]):
    """The common part of players: params as they fall due, environments and engines by use, a watch for hanging calls.

    Args:
      name: the worker's. policies: that play in the environments; the first decides when params are due.
      make_env: (number of environments, seed) -> environment.
    """

    def __init__(
        self,
        name: str,
        policies: Sequence[PlayedPolicy],
        settings: PlayerSettings,
        make_env: Callable[[int, int], PlayedEnv],
        reporter: Reporter,
        meter: Meter | None = None,
    ) -> None:
        self.name = name
        self._players = list(policies)
        self._agent = policies[0].agent
        self._shared, self._make_env, self._reporter = settings, make_env, reporter
        self.meter = meter or Meter(name.replace("-", "_"))
        self._phases = self.meter.phases
        self._envs: dict[tuple[int, int], PlayedEnv] = {}
        self._play: Playing | None = None
        self._started_s = 0.0  # of what is played
        self._next_updates = settings.start_updates
        self._is_last = False  # it has its last task
        self._last_updates: Mapping[str, int] = {}  # policy -> updates of the params for which that waits
        self._wait_until_s = 0.0

    def _set_up_player(self, slots: int) -> None:
        """Lower the priority, make the environments of one use, compile, connect."""
        if self._shared.niceness is not None:
            lower_priority(self._shared.niceness)
        self._reporter.stage("making environments")
        self._env(slots, 1)
        self._reporter.stage("compiling act")
        for player in self._players:
            player.engine(True, slots)
        self._reporter.stage("connecting to params")
        for player in self._players:
            player.connect()

    def _env(self, slots: int, seed: int) -> PlayedEnv:
        """Return the environment of one use: different seeds share no episodes."""
        if (slots, seed) not in self._envs:
            with self._watched(makes=slots):
                self._envs[slots, seed] = self._make_env(slots, self._shared.seed + 1_000_003 * seed)
        return self._envs[slots, seed]

    def _watched(self, env: PlayedEnv | None = None, makes: int = 1) -> AbstractContextManager[None]:
        """Have the control thread watch that the environment returns in time.

        Each slot of `env` has its own time, if it tells its slot; the environments that the call `makes` share theirs.
        """
        call = self._environment if env is None else EnvCall(self._environment, env)
        return watched(self._reporter, call, self._environment, makes)

    def _options(self, env: PlayedEnv | None = None) -> dict[str, Any]:
        """Return the options of Episodes."""
        watch = functools.partial(self._watched, env)
        return {"watch": watch, "enter": self._phases.enter, "max_steps": self._shared.max_steps}

    @property
    def _environment(self) -> str:
        return f"{self.name}: environment {shown_target(self._players[0].spec.name)!r}"

    @property
    def _params(self) -> tuple[int, list[np.ndarray]] | None:
        return self._players[0].params

    def _seated(self, greedy: bool, slots: int) -> list[Seated]:
        return [player.seated(greedy, slots) for player in self._players]

    def _take_newest(self) -> None:
        for player in self._players:
            player.take_newest()

    def _begin_last(self, updates: Mapping[str, int] | None) -> None:
        """Begin the last task. `updates`: policy -> updates of its last params, which may still be on their way."""
        self._is_last, self._last_updates = True, updates or {}
        self._wait_until_s = time.monotonic() + self._shared.last_params_s

    @property
    def _late(self) -> list[PlayedPolicy]:
        """Return the policies whose last params are not there yet."""
        return [player for player in self._players if player.updates < self._last_updates.get(player.name, -1)]

    @property
    def due(self) -> bool:
        """Return whether something is being played, or params are due."""
        if self._play is not None:
            return True
        self._take_newest()
        there = all(player.params is not None for player in self._players)
        return there and self._params is not None and version_updates(self._params[0]) >= self._next_updates

    def _begin_period(self) -> None:
        """Count the next period from the params to play."""
        assert self._params is not None
        self._next_updates = version_updates(self._params[0]) + self._shared.period_updates

    def _env_steps(self, updates: int) -> int:
        """Return the env steps trained on before `updates` updates."""
        return int(updates // self._shared.updates_per_batch * self._shared.env_steps_per_batch)

    def step(self) -> int:
        """Play for a bounded time; return 1 when something was completed."""
        self._phases.enter("wait")
        completed = self._advance()
        self._phases.rest()
        return completed

    def _advance(self) -> int:
        if not self.due:
            time.sleep(0.01)
            return 0
        self._phases.enter("other")
        if self._play is None:
            self._started_s = time.monotonic()
            self._begin()
        if self._play is None:  # another policy's params are not there yet
            time.sleep(0.01)
            return 0
        if self._play.advance(STEP_S):
            self._complete()
            return 1
        if self._play.endless:
            self._cut(endless_text(shown_target(self._players[0].spec.name), self._shared.max_steps))
        elif time.monotonic() - self._started_s > self._shared.max_s:
            self._cut(f"it took longer than {self._shared.max_s:g} s (deadlines.evaluation_s)")
        return 0

    def _begin(self) -> None:
        """Start to play: set `_play`, if everything it needs is there."""
        raise NotImplementedError

    def _complete(self) -> None:
        """Take the result of `_play`, and set it to None."""
        raise NotImplementedError

    def _cut(self, why: str) -> None:
        """Say why `_play` is not completed, and set it to None."""
        raise NotImplementedError

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the shares of time; results are reported when they are complete."""
        return self.meter.flush(), {}

    def _close_player(self) -> None:
        for env in self._envs.values():
            env.close()
        for player in self._players:
            player.close()


def lower_priority(niceness: int) -> None:
    """Lower this process's priority, and that of its session if the kernel schedules by session."""
    os.nice(niceness)
    lower_session_priority(niceness)
    os.environ.setdefault("LP_NUM_THREADS", "1")  # Mesa's threads, without a graphics card


def one_per_group(job: Job) -> list[Job]:
    """Return the jobs of the policies that play all seats: the own one first, then one for each group of other seats."""
    of_group: dict[str, Job] = {}
    for one in job.by_policy:
        of_group.setdefault(one.part.seat_group, one)
    return list(of_group.values())


def played_policies(job: Job) -> list[PlayedPolicy]:
    return [
        PlayedPolicy(
            make_agent(one),
            one.schemas.env,
            functools.partial(subscribe, one),
            one.experiment.seed + 1,
            one.view,
            one.policy,
        )
        for one in one_per_group(job)
    ]


def player_settings(job: Job, period_updates: int, last_params_s: float, niceness: int) -> PlayerSettings:
    e = job.experiment
    return PlayerSettings(
        name=job.name,
        seed=e.seed,
        period_updates=period_updates,
        env_steps_per_batch=e.env_steps_per_batch,
        updates_per_batch=e.updates_per_batch,
        start_updates=job.start_point.updates,
        max_steps=e.evaluator.max_steps,
        max_s=e.deadlines.evaluation_s,
        last_params_s=last_params_s,
        niceness=None if job.in_process else niceness,
    )
