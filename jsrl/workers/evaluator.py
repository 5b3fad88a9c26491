"""The evaluator: plays snapshots without learning, in its own environments, and tags the best one.

Every slot plays the same number of episodes, so that short episodes count no more than long ones.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jsrl.agents.base import Agent
from jsrl.envs.base import EnvStep, Episode, VectorEnv
from jsrl.envs.faults import foreign
from jsrl.errors import JsrlError, SnapshotError
from jsrl.services.control import Command
from jsrl.services.metrics import Recorder
from jsrl.services.phases import Phases
from jsrl.services.snapshots import SnapshotStore
from jsrl.transport.base import ParamsSubscriber, Request
from jsrl.types import EnvSpec, version_updates
from jsrl.workers.acting import Engine
from jsrl.workers.base import Reporter

STEP_S = 0.05


@dataclass(frozen=True)
class EvaluatorSettings:
    """What an evaluator has to know; see EvaluatorConfig. period_updates: updates between evaluations."""

    seed: int
    episodes: int
    sampled_episodes: int
    final_episodes: int
    num_envs: int
    period_updates: int
    rows_per_update: int
    updates_per_batch: int = 1
    start_updates: int = 0
    step_deadline_s: float = 60.0


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
        """Count finished episodes; those beyond a slot's share are let go."""
        for episode in episodes:
            if self._quota[episode.slot]:
                self._quota[episode.slot] -= 1
                self.score.returns.append(episode.return_)
                self.score.lengths.append(episode.length)
                self.score.terminated.append(episode.terminated)


class Play:
    """Fixed numbers of episodes per slot with one engine, in bounded steps."""

    def __init__(
        self,
        engine: Engine,
        env: VectorEnv,
        episodes: int,
        watch: Callable[[], AbstractContextManager[None]],
        phases: Phases,
    ):
        self._engine, self._env, self._watch, self._phases = engine, env, watch, phases
        self._served = engine.serve(0, env.num_envs)
        phases.enter("env")
        with watch():
            self._latest: EnvStep = env.reset()
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
            self._phases.enter("other")
            self._tally.count(self._latest.episodes)
            if time.perf_counter() >= until:
                break
        return self._tally.complete


class Evaluator:
    """A worker that scores snapshots.

    Args:
      make_env: (number of environments, seed) -> vector environment. connect: () -> params subscriber.
      store: where params snapshots go (`best`).
    """

    name = "evaluator"

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        settings: EvaluatorSettings,
        make_env: Callable[[int, int], VectorEnv],
        connect: Callable[[], ParamsSubscriber],
        store: SnapshotStore,
        reporter: Reporter,
        recorder: Recorder | None = None,
    ) -> None:
        self._agent, self._spec, self._settings, self._make_env = agent, spec, settings, make_env
        self._connect, self._store, self._reporter = connect, store, reporter
        self.recorder = recorder or Recorder("evaluator")
        self._phases = self.recorder.phases
        self._envs: dict[tuple[int, int], VectorEnv] = {}
        self._engines: dict[tuple[bool, int], Engine] = {}
        self._play: Play | None = None
        self._plan: list[tuple[str, bool, int]] = []
        self._params: tuple[int, list[np.ndarray]] | None = None
        self._next_updates = settings.start_updates
        self._best = -math.inf
        self._best_params: tuple[int, list[np.ndarray]] | None = None
        self._metrics: dict[str, float] = {}
        self._final = False

    def setup(self) -> None:
        """Make the environments, compile, connect."""
        self._reporter.stage("making environments")
        slots = min(self._settings.num_envs, self._settings.episodes)
        self._env(slots, 1)
        self._reporter.stage("compiling act")
        self._engine(True, slots)
        self._reporter.stage("connecting to params")
        self._subscriber = self._connect()
        if "best" in self._store.tags():  # of the run's earlier lives
            self._best = float(self._store.meta("best").get("return_mean", self._best))
        self.recorder.begin()

    def _env(self, slots: int, seed: int) -> VectorEnv:
        """Return the environment of one use: training-time scores (seed 1) and the final one (2) never share seeds."""
        if (slots, seed) not in self._envs:
            with self._watched():
                self._envs[slots, seed] = self._make_env(slots, self._settings.seed + 1_000_003 * seed)
        return self._envs[slots, seed]

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Have the control road watch that the environment returns in time."""
        self._reporter.entering(f"evaluator: environment {self._spec.name!r}", self._settings.step_deadline_s)
        try:
            yield
        except JsrlError:
            raise
        except (Exception, SystemExit) as error:
            raise foreign(f"evaluator: environment {self._spec.name!r}", error) from error
        finally:
            self._reporter.left()

    def _engine(self, greedy: bool, slots: int) -> Engine:
        if (greedy, slots) not in self._engines:
            engine = Engine(
                self._agent, self._spec, num_slots=slots, sizes=[slots], seed=self._settings.seed + 1, greedy=greedy
            )
            engine.warm_up()
            self._engines[greedy, slots] = engine
        return self._engines[greedy, slots]

    @property
    def due(self) -> bool:
        """Return whether an evaluation is running, or there are params that should be scored now."""
        if self._play is not None or self._plan:
            return True
        newer = self._subscriber.poll(0)
        if newer is not None:
            self._params = newer
        return self._params is not None and version_updates(self._params[0]) >= self._next_updates

    def step(self) -> int:
        """Play for a bounded time; return 1 when a score was completed."""
        self._phases.enter("wait")
        scored = self._score()
        self._phases.rest()
        return scored

    def _score(self) -> int:
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
        if not self._plan:
            assert self._params is not None
            self._next_updates = version_updates(self._params[0]) + self._settings.period_updates
            self._plan = [("evaluator", True, self._settings.episodes)]
            if self._settings.sampled_episodes:
                self._plan.append(("evaluator/sampled", False, self._settings.sampled_episodes))
        assert self._params is not None
        _, greedy, episodes = self._plan[0]
        slots = min(self._settings.num_envs, episodes)
        engine = self._engine(greedy, slots)
        engine.set_params(self._params[0], [np.array(v) for v in self._params[1]])
        self._play = Play(engine, self._env(slots, 2 if self._final else 1), episodes, self._watched, self._phases)

    def _complete(self) -> None:
        assert self._play is not None and self._params is not None
        score, (name, greedy, _) = self._play.score, self._plan.pop(0)
        self._play = None
        facts = score.facts()
        if self._final:
            self._reporter.event("evaluated finally", **facts)
            return
        if not greedy:
            self._metrics |= {f"evaluator/sampled_{k}": v for k, v in facts.items() if k.startswith("return")}
            return
        self._metrics |= {f"{name}/{key}": value for key, value in facts.items()}
        if facts["return_mean"] > self._best:
            self._best, self._best_params = facts["return_mean"], self._params
            self._save(score.version, facts)
        updates = version_updates(score.version)
        env_steps = updates // self._settings.updates_per_batch * self._settings.rows_per_update
        metrics, self._metrics = self._metrics, {}
        self._reporter.event("evaluated", updates=updates, env_steps=env_steps, metrics=metrics, **facts)

    def _save(self, version: int, facts: dict[str, Any]) -> None:
        assert self._params is not None
        self._phases.enter("publish")
        structure = jax.tree.structure(jax.eval_shape(self._agent.init, jax.random.key(0)).params)
        params = jax.tree.unflatten(structure, self._params[1])
        try:
            self._store.save(version, {"params": params}, meta=dict(facts), tags=("best",))
        except SnapshotError as error:
            self._reporter.event("warning", f"snapshot `best` failed: {error}")
        self._phases.enter("other")

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return where the time went; scores are told as they are completed."""
        return self.recorder.flush(), {}

    def command(self, command: Command) -> None:
        """Obey `final`: score the best (`which=best`) or the newest params with fresh seeds."""
        if command.name != "final":
            return
        self.begin_final(command.facts.get("which", "latest"))

    def begin_final(self, which: str) -> None:
        """Turn to the final evaluation."""
        newer = self._subscriber.poll(0)
        self._params = newer if newer is not None else self._params
        if which == "best" and self._best_params is not None:
            self._params = self._best_params
        self._final, self._play = True, None
        if self._params is None:
            self._plan = []
            return
        self._plan = [("evaluator/final", True, self._settings.final_episodes)]

    def close(self) -> dict[str, Any]:
        """Leave."""
        for env in self._envs.values():
            env.close()
        if hasattr(self, "_subscriber"):
            self._subscriber.close()
        self._store.close()
        return {}
