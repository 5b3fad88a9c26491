"""Building the workers that act with jax: inference servers, evaluators, and the inline client of actors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from jsrl.agents.base import Agent
from jsrl.building import build_agent
from jsrl.envs.base import VectorEnv
from jsrl.envs.make import make
from jsrl.envs.rendering import RenderedEnv, make_rendered
from jsrl.services.phases import Phases
from jsrl.services.snapshots import SnapshotStore
from jsrl.services.video_shelf import FOLDER, VideoShelf
from jsrl.transport.base import InferenceServer, ParamsSubscriber
from jsrl.transport.inference import bind_inference
from jsrl.transport.params import connect_params
from jsrl.workers.acting import Engine, InlineInference
from jsrl.workers.base import Reporter
from jsrl.workers.evaluator.worker import Evaluator, EvaluatorSettings
from jsrl.workers.inference.worker import InferenceSettings, InferenceWorker
from jsrl.workers.jobs import Job, make_recorder
from jsrl.workers.peers import FollowingParams, Peer
from jsrl.workers.recorder.worker import RecorderSettings, VideoRecorder

PARAMS_STORE = "params"
FILMED = 1  # beside the seed of what is filmed: other episodes than those that are scored


def make_agent(job: Job) -> Agent:
    """Return the job's agent."""
    return build_agent(job.experiment.agent, job.schemas.env)


def subscribe(job: Job) -> ParamsSubscriber:
    """Return the subscriber to the run's params, whichever life of their publisher is the present one."""
    connect = functools.partial(connect_params, keys=job.links.keys)
    return FollowingParams(Peer(job.names, job.params_name, job.find(job.params_name)), connect)


def inline_client(job: Job, group_sizes: dict[int, int], phases: Phases) -> InlineInference:
    """Return the client that acts in the actor's own process; `phases` are those of the actor."""
    slots = sum(group_sizes.values())
    engine = Engine(
        make_agent(job), job.schemas.env, num_slots=slots, sizes=[*group_sizes.values()], seed=job.life_seed
    )
    engine.warm_up()
    return InlineInference(engine, subscribe(job), group_sizes, phases)


def build_inference(job: Job, reporter: Reporter) -> InferenceWorker:
    """Return the inference server of a job."""
    e = job.experiment
    everybody = e.actors * e.ring * e.group_size  # it may have to stand in for all other servers
    merge = not e.is_deterministic and everybody > e.group_size
    most = min(everybody, max(e.inference.max_rows, e.group_size))
    sizes = batch_sizes(e.group_size, most) if merge else [e.group_size]
    engine = Engine(
        make_agent(job), job.schemas.env, num_slots=2 * everybody, sizes=sizes, seed=job.life_seed, number=job.index
    )
    settings = InferenceSettings(e.inference.max_rows, e.inference.max_wait_s, merge, job.poll_s)

    def connect() -> tuple[InferenceServer, ParamsSubscriber]:
        server = bind_inference(job.links.inference[job.index], job.schemas.act, keys=job.links.keys)
        job.announce(job.name, server.address)
        return server, subscribe(job)

    return InferenceWorker(job.name, engine, settings, connect, reporter, make_recorder(job))


def batch_sizes(group_size: int, most: int) -> list[int]:
    """Return the sizes that batches are padded to: the group's, doubling, up to `most`."""
    sizes = [group_size]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


def what_players_share(job: Job) -> dict[str, Any]:
    """Return the fields of PlayerSettings that evaluator and recorder have in common."""
    e = job.experiment
    return {
        "seed": e.seed,
        "rows_per_update": e.rows_per_update,
        "updates_per_batch": e.updates_per_batch,
        "start_updates": job.origin.updates,
        "step_deadline_s": e.actor.step_deadline_s,
    }


def build_evaluator(job: Job, reporter: Reporter) -> Evaluator:
    """Return the evaluator of a job."""
    e = job.experiment
    settings = EvaluatorSettings(
        episodes=e.evaluator.episodes,
        sampled_episodes=e.evaluator.sampled_episodes,
        final_episodes=e.evaluator.final_episodes,
        num_envs=e.evaluator.num_envs,
        period_updates=e.evaluation_period,
        **what_players_share(job),
    )

    def make_env(num_envs: int, seed: int) -> VectorEnv:
        return make(e.evaluation_env, num_envs, seed, group=0, tell=functools.partial(reporter.event, "warning"))

    store = params_store(job, reporter)
    connect = functools.partial(subscribe, job)
    recorder = make_recorder(job)
    return Evaluator(make_agent(job), job.schemas.env, settings, make_env, connect, store, reporter, recorder)


def build_recorder(job: Job, reporter: Reporter) -> VideoRecorder:
    """Return the recorder of a job."""
    e = job.experiment
    settings = RecorderSettings(
        episodes=e.recorder.episodes,
        fps=e.recorder.fps,
        max_seconds=e.recorder.max_seconds,
        niceness=None if e.placement == "serial" else e.recorder.niceness,
        period_updates=e.filming_period,
        **what_players_share(job),
    )

    def make_env(num_envs: int, seed: int) -> RenderedEnv:
        return make_rendered(e.filmed_env, (seed, FILMED))

    def open_shelf() -> VideoShelf:
        return VideoShelf(Path(job.folder) / FOLDER, e.recorder.keep_newest)

    connect = functools.partial(subscribe, job)
    recorder = make_recorder(job)
    return VideoRecorder(make_agent(job), job.schemas.env, settings, make_env, connect, open_shelf, reporter, recorder)


def params_store(job: Job, reporter: Any) -> SnapshotStore:
    """Return the store of params snapshots (`best`)."""
    return SnapshotStore(
        f"{job.folder}/snapshots/{PARAMS_STORE}", on_warning=functools.partial(reporter.event, "warning")
    )
