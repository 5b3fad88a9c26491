"""Record a trained policy for behaviour cloning: `jsrl record RUN@TAG --to DIR --episodes 100`.

If several policies play, their first one is recorded. RUN@POLICY/TAG records another one.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jsrl.cli.experiments import use_working_directory
from jsrl.cli.main import Parser, show_error, user_path
from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.envs.faults import endless_text
from jsrl.envs.make import make
from jsrl.errors import ConfigError, JsrlError, counted
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.experiment.policies import SEED_STRIDE
from jsrl.fields import AUTO
from jsrl.graph.recording_plan import begin_record
from jsrl.graph.schemas import make_schemas
from jsrl.services.metrics.metrics import Meter
from jsrl.services.recordings.recordings import MANIFEST, read_manifest
from jsrl.services.runs.runs import RunFolder, split_tag
from jsrl.tools.collect import HeldBlock, HeldParams
from jsrl.tools.policy import Policy, load_players
from jsrl.transport.base import InferenceClient
from jsrl.workers.acting import Engine, InlineInference
from jsrl.workers.actor.kind import KIND as ACTOR
from jsrl.workers.actor.policies import ActingPolicy
from jsrl.workers.actor.streams import Streams
from jsrl.workers.actor.worker import Actor, ActorSettings
from jsrl.workers.attached.recording import RecordingWriter
from jsrl.workers.base import NullReporter

NAME = "record"


class Recorded(NamedTuple):
    """The result of a recording: seed, episodes, env steps and their mean return; text: its folder, and warnings."""

    seed: int
    episodes: int
    env_steps: int
    return_mean: float
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, and print what was written."""
    parser = Parser(prog="jsrl record", description=__doc__)
    parser.add_argument("run", help="RUN or RUN@TAG: a path, EXPERIMENT/NAME, NAME, or EXPERIMENT; tag best by default")
    parser.add_argument(
        "--to",
        type=user_path,
        required=True,
        help="folder of the recording; an existing one of the same kind is extended",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=100,
        help="minimum number of episodes (default: 100); rows of unfinished ones are recorded too",
    )
    parser.add_argument("--num-envs", type=int, default=16, help="environments stepped together (default: 16)")
    parser.add_argument("--rollout-length", type=int, default=128, help="rows of a trajectory (default: 128)")
    parser.add_argument(
        "--seed", type=int, help="seed of episodes and actions (default: 1, or the next that DIR lacks)"
    )
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.add_argument(
        "--limit-mb", type=int, default=10_000, help="maximum size of the recording in MiB (default: 10000)"
    )
    parser.add_runs_dir()
    options = vars(parser.parse_args(arguments))
    use_working_directory()
    run, tag = split_tag(options.pop("run"))
    try:
        recorded = record_policy(run, options.pop("to"), tag=tag or "best", **options)
    except JsrlError as error:
        return show_error(error)
    print(
        f"{counted(recorded.episodes, 'episode')}, return {recorded.return_mean:.1f}, "
        f"{recorded.env_steps:,} env steps, seed {recorded.seed}. {recorded.text}"
    )
    return 0


def record_policy(
    run: str,
    folder: str | os.PathLike[str],
    *,
    tag: str = "best",
    episodes: int = 100,
    num_envs: int = 16,
    rollout_length: int = 128,
    seed: int | None = None,
    sampled: bool = False,
    limit_mb: int = 10_000,
    runs_dir: str = "runs",
) -> Recorded:
    """Play a run's snapshot until `episodes` episodes have ended, and write every row to `folder`.

    In environments with several policies all of them play, and the rows of one policy's seats are recorded. An actor plays,
    as in a run; its params stay the same, and its trajectories go only to the recording.

    Args:
      run, tag, runs_dir: as for `load_policy`. folder: of the recording; an existing one of the same kind is extended.
      num_envs, rollout_length: B and T of the trajectories.
      seed: of environments and actions; None: 1, or the next one that the folder does not hold of this policy.
      sampled: sample actions instead of taking the most likely ones. limit_mb: maximum size of the recording in MiB.

    Raises:
      ConfigError: there is no such run or tag. RecordingError, SpecMismatch: the folder holds something else.
    """
    _check_positive(episodes=episodes, num_envs=num_envs, rollout_length=rollout_length, limit_mb=limit_mb)
    if seed is not None and seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more.")
    folder = Path(folder).expanduser().absolute()  # an environment may change the working directory
    name = f"{RunFolder.open(run, runs_dir).name}@{tag}"
    held = read_manifest(folder).sources if (folder / MANIFEST).exists() else ()
    seed = max((s.seed + 1 for s in held if s.name == name), default=1) if seed is None else seed
    played = load_players(run, tag, runs_dir=runs_dir)
    max_steps = played[0].experiment.evaluator.max_steps
    e = _recorded(played[0].experiment, folder, num_envs, rollout_length)
    schemas = make_schemas(e, played[0].spec, learns=False)
    begin_record(e, schemas, name, seed, "sampled" if sampled else "greedy")
    meter, warnings = Meter(ACTOR.prefix), list[str]()
    limits: dict[str, Any] = {"limit_bytes": limit_mb * 2**20, "wait": True}
    writer = RecordingWriter(folder, NAME, schemas.trajectory, meter=meter, warn=warnings.append, **limits)

    def make_group() -> VectorEnv | VectorGame:
        groups = {policy.view.group: policy.seats for policy in played if policy.view is not None}
        return make(e.env, num_envs, seed, group=0, groups=groups or None)

    settings = ActorSettings(rollout_length, poll_s=0.0, environment=str(e.env.id), mean_over=None)
    facts = {"num_slots": num_envs, "sizes": [num_envs], "greedy": not sampled}
    policies = [_acting(policy, number, e, seed, facts) for number, policy in enumerate(played)]
    policies[0] = dataclasses.replace(policies[0], taps=(writer,))
    actor = Actor(NAME, settings, {0: make_group}, policies, NullReporter(), meter)
    actor.setup()
    try:
        return_mean, cut = _play(actor, episodes, rollout_length * num_envs, writer, max_steps * num_envs)
    finally:
        counts = actor.close()
    if cut:
        warnings.append(f"it was cut: {endless_text(played[0].spec.name, max_steps)}")
    env_steps = writer.recorded * rollout_length * num_envs
    return Recorded(seed, counts["episodes"], env_steps, return_mean, "; ".join([writer.summary, *warnings]))


def _recorded(e: Experiment, folder: str | os.PathLike[str], num_envs: int, rollout_length: int) -> Experiment:
    """Return an experiment as one serial actor that records to a folder."""
    changes: dict[str, Any] = {"num_envs": num_envs, "batch_envs": None, "num_groups": 1, "num_actors": 1}
    changes |= {"rollout_length": rollout_length, "placement": "serial", "env": e.evaluation_env}
    e = dataclasses.replace(e, director=None, evaluator=EvaluatorConfig(enabled=False), stop_at_return=None)
    return dataclasses.replace(e, **changes, learner=type(e.learner)(), replay=AUTO, recording=None, record=str(folder))


def _acting(policy: Policy, number: int, e: Experiment, seed: int, facts: dict[str, Any]) -> ActingPolicy:
    """Return a policy for an actor: the first one's rows are recorded, those of others are discarded."""
    own = dataclasses.replace(e, agent=policy.experiment.agent)

    def connect(group_sizes: dict[int, int]) -> tuple[InferenceClient, HeldBlock]:
        engine = Engine(policy.agent, policy.spec, seed=seed + SEED_STRIDE * number, policy=number, **facts)
        params: Any = HeldParams()
        params.put(policy.version, jax.tree.map(np.array, policy.params))
        schema = make_schemas(own, policy.spec, learns=False).trajectory
        served = {group: engine.serve(group, size) for group, size in group_sizes.items()}
        return InlineInference(engine, params, served), HeldBlock(schema)

    return ActingPolicy(Streams(connect), number=number, view=policy.view)


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1.")


def _play(actor: Actor, episodes: int, rows: int, writer: RecordingWriter, limit: int) -> tuple[float, bool]:
    """Step until enough episodes have ended and the trajectory with the last one's end is complete.

    Returns:
      Their mean return, and whether they were cut: no episode ended within `limit` env steps.
    """
    played = ended = since = 0
    while writer.dropped == 0:
        played += actor.step()
        if played % rows == 0:
            metrics, counts = actor.report()
            if counts["episodes"] > ended:
                ended, since = counts["episodes"], played
            cut = played - since >= limit
            if ended >= episodes or cut:
                return metrics.get("actor/return_mean", float("nan")), cut
    return float("nan"), False
