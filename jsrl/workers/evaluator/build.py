"""Building the evaluator."""

from __future__ import annotations

import functools
from pathlib import Path

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.envs.make import make
from jsrl.matches.players import Contestant
from jsrl.workers.base import Reporter
from jsrl.workers.evaluator.opponents import FrozenOpponent, FrozenPolicy, LoadedOpponent, Opponent
from jsrl.workers.evaluator.worker import Evaluator, EvaluatorSettings
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter
from jsrl.workers.players import common_player_settings, make_agent, played_policies, snapshot_store

SHARE = 0.25  # of the env steps, for evaluations of a serial run: at most a tenth of its time, while training waits


def build_evaluator(job: Job, reporter: Reporter) -> Evaluator:
    e = job.experiment
    settings = EvaluatorSettings(
        episodes=e.evaluator.episodes,
        sampled_episodes=e.evaluator.sampled_episodes,
        final_episodes=e.evaluator.final_episodes,
        num_envs=e.evaluator.num_envs,
        goal=e.stop_at_return,
        last_params_s=e.deadlines.snapshot_s,
        joins_rewards=getattr(e.agent, "rewards", "own") == "team",
        period_updates=e.evaluation_period,
        niceness=None if job.in_process else e.evaluator.niceness,
        most_share=SHARE if job.in_process and e.evaluator.period_env_steps is None and not e.stop_at_return else None,
        **common_player_settings(job),
    )

    def make_env(num_envs: int, seed: int) -> VectorEnv | VectorGame:
        warn = functools.partial(reporter.event, "warning")
        groups = None if e.evaluator.against else job.seat_groups or None
        return make(e.evaluation_env, num_envs, seed, group=0, groups=groups, warn=warn)

    store, opponents = snapshot_store(job, reporter, "params"), functools.partial(make_opponents, job)
    return Evaluator(played_policies(job), settings, make_env, store, reporter, make_meter(job), opponents)


def make_opponents(job: Job) -> list[Opponent]:
    of_group: dict[str, Job] = {}
    for part in job.by_policy:
        of_group.setdefault(part.seat_group, part)
    found: list[Opponent] = []
    for number, name in enumerate(job.experiment.evaluator.against):
        if "@" in name:
            found.append(LoadedOpponent(name, functools.partial(_load, number)))
            continue
        policy, _, player = name.rpartition("/")
        parts = [part for part in job.by_policy if part.policy == policy] if policy else list(of_group.values())
        found.append(FrozenOpponent(name, player, [_frozen(part, number) for part in parts]))
    return found


def _frozen(part: Job, number: int) -> FrozenPolicy:
    assert part.view is not None
    seed = part.experiment.seed + 2 + number
    return FrozenPolicy(part.players, make_agent(part), part.schemas.env, part.view, seed)


def _load(number: int, name: str) -> Contestant:
    from jsrl.contest import contestant_of, load_player

    run, _, tag = name.rpartition("@")
    label = f"{Path(run).parent.name}/{Path(run).name}@{tag}"
    return contestant_of(load_player(name)._replace(name=label), number + 1, greedy=False)
