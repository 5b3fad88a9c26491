"""Building the evaluator."""

from __future__ import annotations

import functools

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.envs.make import make
from jsrl.workers.base import Reporter
from jsrl.workers.evaluator.worker import Evaluator, EvaluatorSettings
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_recorder
from jsrl.workers.players import params_store, played_policies, what_players_share


def build_evaluator(job: Job, reporter: Reporter) -> Evaluator:
    """Return the evaluator of a job."""
    e = job.experiment
    settings = EvaluatorSettings(
        episodes=e.evaluator.episodes,
        sampled_episodes=e.evaluator.sampled_episodes,
        final_episodes=e.evaluator.final_episodes,
        num_envs=e.evaluator.num_envs,
        goal=e.stop_at_return,
        period_updates=e.evaluation_period,
        **what_players_share(job),
    )

    def make_env(num_envs: int, seed: int) -> VectorEnv | VectorGame:
        tell = functools.partial(reporter.event, "warning")
        return make(e.evaluation_env, num_envs, seed, group=0, groups=job.seat_groups or None, tell=tell)

    store = params_store(job, reporter)
    return Evaluator(played_policies(job), settings, make_env, store, reporter, make_recorder(job))
