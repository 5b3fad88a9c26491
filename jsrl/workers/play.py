"""Playing without learning, for the workers that do: newest params when they are due, own environments, whole episodes.

Every slot plays the same number of episodes, so that short episodes count no more than long ones.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from jsrl.agents.base import Agent
from jsrl.envs.base import EnvStep, Episode, VectorEnv
from jsrl.envs.faults import foreign
from jsrl.errors import JsrlError
from jsrl.metrics.metrics import Recorder
from jsrl.metrics.phases import Phases
from jsrl.transport.base import ParamsSubscriber, Request
from jsrl.types import EnvSpec, version_updates
from jsrl.workers.acting import Engine, GroupSlots
from jsrl.workers.base import Reporter

STEP_S = 0.05
PlayedEnv = TypeVar("PlayedEnv", bound=VectorEnv)


@dataclass(frozen=True, kw_only=True)
class PlayerSettings:
    """What every player has to know. period_updates: updates between the params that are played. name: of the worker."""

    seed: int
    period_updates: int
    rows_per_update: int
    updates_per_batch: int = 1
    start_updates: int = 0
    step_deadline_s: float = 60.0
    name: str = ""


@dataclass
class Score:
    """Episodes of one snapshot."""

    version: int
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return mean, standard deviation, 95% confidence interval (half width), length and number of episodes."""
        returns, n = np.array(self.returns), len(self.returns)
        std = float(returns.std(ddof=1)) if n > 1 else 0.0
        return {
            "return_mean": float(returns.mean()),
            "return_std": std,
            "return_ci95": 1.96 * std / math.sqrt(n),
            "length_mean": float(np.mean(self.lengths)),
            "episodes": n,
            "version_updates": version_updates(self.version),
        }


class Tally:
    """Counts the episodes of one snapshot: each slot's fair share, and no more, so that short ones count like long ones."""

    def __init__(self, version: int, episodes: int, slots: int) -> None:
        self.score = Score(version)
        self._quota = np.array([episodes // slots + (slot < episodes % slots) for slot in range(slots)])

    @property
    def complete(self) -> bool:
        """Return whether every slot played its episodes."""
        return not self._quota.any()

    def count(self, episodes: list[Episode]) -> None:
        """Count finished episodes; those beyond a slot's share are ignored."""
        for episode in episodes:
            if self._quota[episode.slot]:
                self._quota[episode.slot] -= 1
                self.score.returns.append(episode.return_)
                self.score.lengths.append(episode.length)
                self.score.terminated.append(episode.terminated)


class Play:
    """Fixed numbers of episodes per slot with one engine, in bounded steps; `camera` sees every step of the environment."""

    def __init__(
        self,
        engine: Engine,
        env: VectorEnv,
        episodes: int,
        watch: Callable[[], AbstractContextManager[None]],
        phases: Phases,
        camera: Callable[[EnvStep], None] | None = None,
    ):
        self._engine, self._env, self._watch, self._phases = engine, env, watch, phases
        self._camera = camera
        # The engine has these slots and serves nobody else; their cores start over with the reset below.
        self._served = GroupSlots(0, np.arange(env.num_envs, dtype=np.int32))
        phases.enter("env")
        with watch():
            self._latest: EnvStep = env.reset()
        if camera is not None:
            camera(self._latest)
        self._step = 0
        self._tally = Tally(engine.version, episodes, env.num_envs)
        self.score = self._tally.score

    def advance(self, budget_s: float) -> bool:
        """Step until every slot played its episodes (True) or the time is up (False)."""
        until = time.perf_counter() + budget_s
        while not self._tally.complete:
            request = Request(self._latest.observation, self._latest.is_first, step=self._step)
            self._phases.enter("act")
            reply = self._engine.act(self._served, request)
            self._step += 1
            self._phases.enter("env")
            with self._watch():
                self._latest = self._env.step(np.array(reply.action))
            if self._camera is not None:
                self._camera(self._latest)
            self._phases.enter("other")
            self._tally.count(self._latest.episodes)
            if time.perf_counter() >= until:
                break
        return self._tally.complete


class Player(Generic[PlayedEnv]):
    """The part that players share: params as they fall due, environments and engines by use, a watch on what may hang.

    Args:
      name: the worker's. make_env: (number of environments, seed) -> environment. connect: () -> params subscriber.
    """

    def __init__(
        self,
        name: str,
        agent: Agent,
        spec: EnvSpec,
        settings: PlayerSettings,
        make_env: Callable[[int, int], PlayedEnv],
        connect: Callable[[], ParamsSubscriber],
        reporter: Reporter,
        recorder: Recorder | None = None,
    ) -> None:
        self.name = name
        self._agent, self._spec, self._shared, self._make_env = agent, spec, settings, make_env
        self._connect, self._reporter = connect, reporter
        self.recorder = recorder or Recorder(name)
        self._phases = self.recorder.phases
        self._envs: dict[tuple[int, int], PlayedEnv] = {}
        self._engines: dict[tuple[bool, int], Engine] = {}
        self._play: Play | None = None
        self._params: tuple[int, list[np.ndarray]] | None = None
        self._next_updates = settings.start_updates

    def _set_up_player(self, slots: int) -> None:
        """Make the environments of one use, compile, connect."""
        self._reporter.stage("making environments")
        self._env(slots, 1)
        self._reporter.stage("compiling act")
        self._engine(True, slots)
        self._reporter.stage("connecting to params")
        self._subscriber = self._connect()

    def _env(self, slots: int, seed: int) -> PlayedEnv:
        """Return the environment of one use: those of different seeds share no episodes."""
        if (slots, seed) not in self._envs:
            with self._watched():
                self._envs[slots, seed] = self._make_env(slots, self._shared.seed + 1_000_003 * seed)
        return self._envs[slots, seed]

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Have the control road watch that the environment returns in time."""
        self._reporter.entering(f"{self.name}: environment {self._spec.name!r}", self._shared.step_deadline_s)
        try:
            yield
        except JsrlError:
            raise
        except (Exception, SystemExit) as error:
            raise foreign(f"{self.name}: environment {self._spec.name!r}", error) from error
        finally:
            self._reporter.left()

    def _engine(self, greedy: bool, slots: int) -> Engine:
        if (greedy, slots) not in self._engines:
            engine = Engine(
                self._agent, self._spec, num_slots=slots, sizes=[slots], seed=self._shared.seed + 1, greedy=greedy
            )
            engine.warm_up()
            self._engines[greedy, slots] = engine
        return self._engines[greedy, slots]

    def _loaded_engine(self, greedy: bool, slots: int) -> Engine:
        """Return an engine with the params that are to be played."""
        assert self._params is not None
        engine = self._engine(greedy, slots)
        engine.set_params(self._params[0], [np.array(value) for value in self._params[1]])
        return engine

    def _take_newest(self) -> None:
        newer = self._subscriber.poll(0)
        self._params = newer if newer is not None else self._params

    @property
    def due(self) -> bool:
        """Return whether something is being played, or there are params that should be played now."""
        if self._play is not None:
            return True
        self._take_newest()
        return self._params is not None and version_updates(self._params[0]) >= self._next_updates

    def _begin_period(self) -> None:
        """Count the next period from the params that are to be played."""
        assert self._params is not None
        self._next_updates = version_updates(self._params[0]) + self._shared.period_updates

    def _env_steps(self, updates: int) -> int:
        """Return the env steps trained on before a number of updates."""
        return updates // self._shared.updates_per_batch * self._shared.rows_per_update

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
            self._begin()
        assert self._play is not None
        if not self._play.advance(STEP_S):
            return 0
        self._complete()
        return 1

    def _begin(self) -> None:
        """Begin to play: set `_play`."""
        raise NotImplementedError

    def _complete(self) -> None:
        """Take what was played, and set `_play` to None."""
        raise NotImplementedError

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return where the time went; what was played is told as it is completed."""
        return self.recorder.flush(), {}

    def _close_player(self) -> None:
        for env in self._envs.values():
            env.close()
        if hasattr(self, "_subscriber"):
            self._subscriber.close()
