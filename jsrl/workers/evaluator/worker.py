"""The evaluator: plays snapshots without learning, in its own environments, and tags the best one."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jsrl.agents.base import ActParams
from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.envs.make import make
from jsrl.errors import SnapshotError
from jsrl.experiment import EvaluatorConfig
from jsrl.intervals import score_of
from jsrl.references.importing import import_target
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import FINAL, Command
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import version_updates
from jsrl.workers.base import Reporter, snapshot_store
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter
from jsrl.workers.play import Play, PlayedPolicy, Player, PlayerSettings, played_policies, player_settings

if TYPE_CHECKING:
    from jsrl.workers.evaluator.matches import Opponent

# imported only where opponents are named
MATCHES = "jsrl.workers.evaluator.matches:Matches"
OPPONENTS = "jsrl.workers.evaluator.matches:make_opponents"


OPPOSED = (
    "the returns of the policy's seats sum to 0 in each of {episodes} episodes, and it learns from their mean reward: from "
    "nothing. If one seat gains what another loses, give each side a policy of its own, or use an agent that learns from own "
    "rewards, such as ppo"
)
SEEDS = {"evaluator/final": 2, "evaluator/confirmation": 3}  # of the environments of each use; 1: all others


class Evaluator(Player[VectorEnv | VectorGame]):
    """A worker that scores snapshots.

    A score that reaches the goal is confirmed by as many episodes with other seeds, because the best of many scores is
    often luck.

    Args:
      policies: play; the first is scored. make_env: (number of environments, seed) -> vector environment.
      store: of params snapshots (`best`).
      opponents: of matches; empty: episodes of these policies together are scored. With opponents each seat of an environment
        of `make_env` is a group.
      goal: the score that ends the run; None: no goal. joins_rewards: the policy learns from the mean reward of its seats.
      max_share: of the env steps trained since the start; none begins while evaluations have played more. None: no limit.
    """

    def __init__(
        self,
        policies: Sequence[PlayedPolicy],
        settings: PlayerSettings,
        config: EvaluatorConfig,
        make_env: Callable[[int, int], VectorEnv | VectorGame],
        store: SnapshotStore,
        reporter: Reporter,
        meter: Meter | None = None,
        opponents: Callable[[], Sequence[Opponent]] = tuple,
        *,
        goal: float | None = None,
        max_share: float | None = None,
        joins_rewards: bool = False,
    ) -> None:
        super().__init__(settings.name or "evaluator", policies, settings, make_env, reporter, meter)
        self._config, self._store = config, store
        self._goal, self._max_share, self._joins_rewards = goal, max_share, joins_rewards
        self._plan: list[tuple[str, bool, int]] = []
        self._make_opponents = opponents
        self._opponents: list[Opponent] = []
        self._best, self._best_against = -math.inf, list[str]()
        self._best_params: tuple[int, list[np.ndarray]] | None = None
        self._metrics: dict[str, float] = {}
        self._played = 0  # env steps of all evaluations
        self._final_score: dict[str, Any] | None = None

    def setup(self) -> None:
        self._opponents = list(self._make_opponents())
        self._set_up_player(min(self._config.num_envs, self._config.episodes))
        self._load_best()

    def _load_best(self) -> None:
        """Restore score and params of `best` after a resume or restart; if it is broken, start without one."""
        try:
            if "best" not in self._store.tags():
                return
            version, tree, meta, _ = self._store.load_snapshot("best", {"params": self._params_shapes()})
        except SnapshotError as error:
            self._reporter.event("warning", f"snapshot `best` is not used, the next evaluation replaces it: {error}")
            return
        if ("win_rate" in meta) != bool(self._opponents):
            return  # it was scored in another way
        self._best, self._best_against = score_of(meta), list(meta.get("against", ()))
        self._best_params = version, jax.tree.leaves(tree["params"])

    def _params_shapes(self) -> ActParams:
        return jax.eval_shape(self._agent.init, jax.random.key(0)).params

    @property
    def due(self) -> bool:
        """Return whether an evaluation is running, or params are due for one."""
        return bool(self._plan) or (not self._is_last and super().due and self._within_share)

    @property
    def _within_share(self) -> bool:
        """Return whether evaluations have played no more than their share of the env steps."""
        if self._max_share is None or not self._played:
            return True
        assert self._params is not None
        begun, now = (self._env_steps(n) for n in (self._shared.start_updates, version_updates(self._params[0])))
        return self._played <= self._max_share * (now - begun)

    def _begin(self) -> None:
        if self._is_last and not self._has_last_params():
            return
        if not self._plan:
            self._begin_period()
            if self._config.sampled_episodes:  # first: both are reported together
                self._plan.append(("evaluator/sampled", False, self._config.sampled_episodes))
            self._plan.append(("evaluator", True, self._config.episodes))
        name, greedy, episodes = self._plan[0]
        slots = min(self._config.num_envs, episodes)
        there = [one for opponent in self._opponents if (one := opponent(slots)) is not None]
        if self._opponents and not there:
            return
        policies, env = self._seated(greedy, slots), self._env(slots, SEEDS.get(name, 1))
        options = self._options(env)
        if there:
            self._play = import_target(MATCHES)(policies, there, env, episodes, **options)
        else:
            self._play = Play(policies, env, episodes, rests=self._is_last, **options)

    def _complete(self) -> None:
        assert self._play is not None and self._params is not None
        self._played += self._play.env_steps
        score, (name, greedy, _) = self._play.score, self._plan.pop(0)
        against = score.against
        self._play = None
        if self._joins_rewards and score.is_opposed:
            self._reporter.event("warning", OPPOSED.format(episodes=len(score.returns)), once="opposed")
        facts, updates = score.facts(), version_updates(score.version)
        if self._is_last:
            self._final_score = facts
            known = self._best_params is not None and self._best_params[0] == score.version
            if not known and score_of(facts) > self._best and against == self._best_against:
                self._save(score.version, facts | {"env_steps": self._env_steps(updates)})
            self._reporter.event(FINAL, **facts)
            return
        if name == "evaluator/confirmation":
            self._reporter.event("confirmed", updates=updates, **facts)
            return
        if not greedy:
            prefixes = ("return", "win_rate")
            self._metrics |= {f"evaluator/sampled_{k}": v for k, v in facts.items() if k.startswith(prefixes)}
            return
        env_steps = self._env_steps(updates)
        self._metrics |= {f"{name}/{key}": value for key, value in facts.items()}
        self._metrics |= {f"{name}/{key}": value for key, value in score.by_opponent().items()}
        # of equal scores the newest is the best: those of opposed sides in self-play all are 0. Scores against different
        # opponents do not compare.
        if score_of(facts) >= self._best or against != self._best_against:
            self._best, self._best_against, self._best_params = score_of(facts), against, self._params
            self._save(score.version, facts | {"env_steps": env_steps})
        metrics, self._metrics = self._metrics, {}
        self._reporter.event("evaluated", updates=updates, env_steps=env_steps, metrics=metrics, **facts)
        complete = len(against) == len(self._opponents)
        if self._goal is not None and complete and score_of(facts) >= self._goal:
            self._plan.append(("evaluator/confirmation", True, self._config.episodes))

    def _cut(self, why: str) -> None:
        self._played += 0 if self._play is None else self._play.env_steps
        self._plan, self._play, self._metrics = [], None, {}
        self.meter.count("cut")
        what = "the final evaluation" if self._is_last else "an evaluation"
        self._reporter.event("warning", f"{what} was cut and gives no score: {why}")
        if self._is_last:
            self._reporter.event("skipped finally")

    def _save(self, version: int, facts: dict[str, Any]) -> None:
        assert self._params is not None
        self._phases.enter("publish")
        params = jax.tree.unflatten(jax.tree.structure(self._params_shapes()), self._params[1])
        named = {"against": self._best_against} if self._best_against else {}
        try:
            self._store.save(version, {"params": params}, meta=facts | named, tags=("best",))
        except SnapshotError as error:
            self._reporter.event("warning", f"snapshot `best` failed: {error}", once="snapshots")
        self._phases.enter("other")

    def command(self, command: Command) -> None:
        """Execute `final`: score the best (`which=best`) or the newest params with fresh seeds."""
        if command.name != "final":
            return
        self.begin_final(**{"which": "latest"} | command.facts)

    def begin_final(self, which: str, updates: Mapping[str, int] | None = None) -> None:
        """Start the final evaluation.

        Args:
          which: `best` or `latest` params. updates: policy -> updates of its last params, which may still be on their way.
        """
        self._take_newest()
        use_best = which == "best" and self._best_params is not None
        if use_best:
            self._players[0].params = self._best_params
        self._begin_last(
            dict.fromkeys((player.name for player in self._players), 0) | ({} if use_best else dict(updates or {}))
        )
        self._play = None
        self._plan = [("evaluator/final", True, self._config.final_episodes)]

    def _has_last_params(self) -> bool:
        """Return whether the last params of each policy are there; after `last_params_s` older ones are enough."""
        late = self._late
        if late and time.monotonic() < self._wait_until_s:
            self._take_newest()
            return False
        waited = f"within {self._shared.last_params_s:g} s (deadlines.snapshot_s)"
        if any(player.params is None for player in self._players):
            self._plan = []
            self._reporter.event("warning", f"no params arrived {waited}, so there is no final evaluation")
            self._reporter.event("skipped finally")
            return False
        for player in late:
            last = f"the last params, version {self._last_updates[player.name]}, did not arrive {waited}"
            self._reporter.event("warning", f"{last}; the final evaluation plays version {player.updates}")
        self._last_updates = {}
        return True

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        metrics, facts = super().report()
        return metrics, facts if self._final_score is None else facts | {FINAL: self._final_score}

    def close(self) -> dict[str, Any]:
        self._close_player()
        self._store.close()
        return {}


NICENESS = 5  # of its process
SHARE = 0.25  # of the env steps, for evaluations of a serial run: at most a tenth of its time, while training waits


def build_evaluator(job: Job, reporter: Reporter) -> Evaluator:
    e = job.experiment
    settings = player_settings(job, e.evaluation_period, e.deadlines.snapshot_s, NICENESS)
    limited = job.in_process and e.evaluator.period_env_steps is None and not e.stop_at_return

    def make_env(num_envs: int, seed: int) -> VectorEnv | VectorGame:
        warn = functools.partial(reporter.event, "warning")
        groups = None if e.evaluator.against else job.seat_groups or None
        return make(e.evaluation_env, num_envs, seed, group=0, groups=groups, warn=warn)

    def opponents() -> Sequence[Opponent]:
        return import_target(OPPONENTS)(job) if e.evaluator.against else ()

    store = snapshot_store(job, reporter, "params")
    return Evaluator(
        played_policies(job),
        settings,
        e.evaluator,
        make_env,
        store,
        reporter,
        make_meter(job),
        opponents,
        goal=e.stop_at_return,
        max_share=SHARE if limited else None,
        joins_rewards=getattr(e.agent, "rewards", "own") == "team",
    )
