"""Building the learner: devices, the restored state, streams."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path

import jax

from jsrl.agents.base import Agent, AgentState, adopt
from jsrl.agents.finite import with_state_check
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.building import agent_name, build_agent, check_split
from jsrl.parallel import data_parallel
from jsrl.replay.device.agent import OnDevice, on_device
from jsrl.replay.device.several import several_updates
from jsrl.snapshots.store import SnapshotStore
from jsrl.transport.base import Ledger, ParamsPublisher, SampleConsumer
from jsrl.transport.ledger.hops import SAMPLES, hop_folder, ledger_path
from jsrl.transport.ledger.page import begin_life, continued
from jsrl.transport.samples.replay_batch import replay_batch_spec
from jsrl.transport.stream import epoch_at
from jsrl.types import ArraySpec, leaves, map_trajectory, spec_of
from jsrl.workers.acting import INIT_STREAM, stream_key
from jsrl.workers.base import Reporter
from jsrl.workers.ends import bind_publisher, bind_reader
from jsrl.workers.jobs import Job, Origin
from jsrl.workers.kinds import make_recorder
from jsrl.workers.learner.batching import BatchPlan, of_another_run, of_any_age
from jsrl.workers.learner.recorded import recorded_batch, recorded_consumer
from jsrl.workers.learner.replay_link import batch_of_windows, replay_consumer
from jsrl.workers.learner.split_update import SplitUpdate
from jsrl.workers.learner.worker import FAILED_UPDATE, Learner, LearnerSettings

STATE_STORE = "state"


def build_learner(job: Job, reporter: Reporter) -> Learner:
    """Return the learner of a job."""
    e = job.experiment
    agent = checked(build_agent(e.agent, job.schemas.env), e)
    split = e.learner.split != "none"
    devices = learner_devices(e.learner_devices, 2 if split else split_over_devices(e))
    combined, through_host, alone = replay_on_device(agent, job), job.has("priorities"), agent
    agent = combined.agent if combined is not None else several_updates(agent, e.updates_per_call)
    epoch, trained, ledger = begin_counting(job, reporter)
    plan = batch_plan(job, 1 if split else len(devices), epoch)
    spec = batch_of_windows(job) if through_host else job.schemas.trajectory
    if e.recording is not None:
        spec = recorded_batch(spec, plan.columns)
    settings = LearnerSettings(
        seed=e.seed,
        plan=plan,
        total_updates=e.total_updates,
        rows_per_update=e.rows_per_update,
        updates_per_call=e.updates_per_call,
        total_env_steps=e.total_env_steps if through_host else None,
        windows_per_call=None if e.replay is None else e.replay.batch_size * e.updates_per_call,
        check_finite=e.learner.check_finite,
        snapshot_period_s=e.snapshots.period_s,
        prefetch=e.learner.prefetch and not job.in_process,
        poll_s=job.poll_s,
        failure_folder=str(Path(job.folder, FAILED_UPDATE, job.policy_folder)),
        start_trained=trained,
        name=job.name,
    )

    def connect() -> tuple[SampleConsumer, ParamsPublisher]:
        if e.recording is not None:
            hop = hop_folder(Path(job.folder), SAMPLES)
            recorded = recorded_consumer(e.recording, spec, seed=e.seed, start=trained, ledger=ledger, hop=hop)
            return recorded, bind_publisher(job, "params")
        samples = job.end("samples").stream
        if (
            samples.policy == job.end("params").stream.policy
        ):  # those who act for another policy wait for no params of ours
            job.announce(epoch_at(samples.name, job.name), str(epoch))
        consumer = bind_reader(job, "samples", replay_batch_spec(spec) if through_host else spec, ledger)
        return replay_consumer(consumer, job) if through_host else consumer, bind_publisher(job, "params")

    donate = combined is not None or not e.learner.check_finite
    update = split_update(job, alone, devices, donate) if split else data_parallel(agent.update, devices, donate=donate)
    warn = functools.partial(reporter.event, "warning", once="snapshots")
    store = SnapshotStore(job.snapshots / STATE_STORE, keep_last=max(3, e.snapshots.keep), on_warning=warn)
    pack = combined.pack if combined is not None else (lambda state: state)

    def fresh() -> AgentState:
        return pack(agent.init(stream_key(e.seed, INIT_STREAM)))

    state = restore(job.origin, agent, fresh) if job.origin.restore else None
    recorder, ring = make_recorder(job), None if split else combined  # a split update keeps the rings itself
    return Learner(agent, update, settings, spec, connect, store, reporter, state=state, replay=ring, recorder=recorder)


def checked(agent: Agent, e: Experiment) -> Agent:
    """Return the agent, whose update also tells whether the new state is finite where the experiment wants that checked."""
    return agent._replace(update=with_state_check(agent.update)) if e.learner.check_finite else agent


def split_update(job: Job, agent: Agent, devices: list[jax.Device], donate: bool) -> SplitUpdate:
    """Return the two updates of an agent's policy and critics, each with the replay that the experiment wants.

    Raises:
      ConfigError: the agent has no such updates.
    """
    e = job.experiment
    check_split(agent, agent_name(e.agent))
    assert agent.split is not None
    updates = [checked(agent._replace(update=u), e).update for u in (agent.split.policy, agent.split.critic)]
    rings = [replay_on_device(agent._replace(update=u), job) for u in updates]
    sides = [
        several_updates(agent._replace(update=u), e.updates_per_call) if ring is None else ring.agent
        for u, ring in zip(updates, rings, strict=True)
    ]
    ring = rings[0]
    return SplitUpdate(
        sides[0],
        (sides[0].update, sides[1].update),
        devices,
        max_lead=e.split_lead,
        updates_per_call=e.updates_per_call,
        donate=donate,
        check_finite=e.learner.check_finite,
        pack=None if ring is None else ring.pack,
        unpack=None if ring is None else ring.unpack,
    )


def split_over_devices(e: Experiment) -> int:
    """Return the columns that the learner's devices must be able to share evenly."""
    if e.replay is None:
        return e.batch_columns
    return e.replay.batch_size if e.has_replay_workers else math.gcd(e.batch_columns, e.replay.batch_size)


def batch_plan(job: Job, devices: int, epoch: int) -> BatchPlan:
    """Return how the learner's batches are made: of the actors' trajectories, or of the windows of one compiled call."""
    e = job.experiment
    plan = BatchPlan(
        order=e.order,
        groups=job.end("samples").groups if job.has("samples") else (0,),
        group_size=e.group_size,
        columns=e.batch_columns,
        num_rows=e.rollout_length,
        devices=devices,
        max_lag=e.max_policy_lag if e.replay is None else None,
        reuse=e.updates_per_batch,
        start_updates=job.origin.updates,
        epoch=epoch,
    )
    if e.recording is not None:
        return dataclasses.replace(plan, judge=of_another_run, order="fifo", groups=(0,), group_size=e.batch_columns)
    if job.has("samples") and job.end("samples").stream.policy != job.policy:  # their versions are another learner's
        plan = dataclasses.replace(plan, judge=of_another_run)
    if e.replay is None or not e.has_replay_workers:
        return plan
    size = e.replay.batch_size
    columns = size * e.updates_per_call
    return dataclasses.replace(plan, judge=of_any_age, group_size=size, columns=columns, num_rows=e.replay.window)


def begin_counting(job: Job, reporter: Reporter) -> tuple[int, int, Ledger]:
    """Return (epoch, trajectories that the restored state was trained on, ledger of all lives) of a learner that starts.

    The epoch rises on the disk at each start, also where no snapshot was written since the last one, so that no two lives
    of a run ever publish under the same version.
    """
    saved = None
    if job.origin.restore and not job.origin.params_only:
        folder, _, selector = job.origin.restore.rpartition("@")
        meta = SnapshotStore(folder).meta(selector)
        saved = meta["ledger"] | {"epoch": meta["epoch"]} if "ledger" in meta else None
    trained = int(saved["trained"]) if saved else 0
    try:
        run = Path(job.folder)
        hop = job.end("samples").hop if job.has("samples") else SAMPLES
        epoch, ledger = begin_life(ledger_path(run, hop), job.origin.epoch, saved, hop=hop_folder(run, hop))
    except OSError as error:
        text = f"the ledger cannot be kept in {job.folder} ({error}); this life counts in memory only"
        reporter.event("warning", text)
        return job.origin.epoch, trained, continued(None, saved)
    return epoch, trained, ledger


def replay_on_device(agent: Agent, job: Job) -> OnDevice | None:
    """Return the agent combined with a ring of rows, where the experiment wants one on the device."""
    e = job.experiment
    if e.replay is None or e.replay.kind != "device":
        return None
    one = job.schemas.trajectory
    rows, columns = e.rollout_length + 1, e.batch_columns
    spec = map_trajectory(
        lambda leaf: ArraySpec((rows, columns, *leaf.shape[2:]), leaf.dtype),
        lambda leaf: ArraySpec((columns, *leaf.shape[1:]), leaf.dtype),
        one,
    )
    return on_device(
        agent,
        dataclasses.replace(e.replay, updates_per_call=e.updates_per_call, samples_per_insert=None),
        spec,
        frames=job.schemas.env.frames,
        total_updates=e.total_updates,
        check_finite=e.learner.check_finite,
    )


def learner_devices(number: int | None, columns: int) -> list[jax.Device]:
    """Return the devices to spread a batch over.

    Raises:
      ConfigError: there are not so many, or the batch cannot be split over them.
    """
    found = jax.local_devices()
    if number is None:
        number = 1 if found[0].platform == "cpu" else len(found)
        while columns % number:
            number -= 1
    if number > len(found):
        raise ConfigError(
            f"the learner wants {number} devices, but this process sees {len(found)} ({found[0].platform}); lower "
            "learner.num_devices, or leave learner.split out. (For a try on CPU alone, start serial runs with XLA_FLAGS="
            f"--xla_force_host_platform_device_count={number}.)"
        )
    return found[:number]


def restore(origin: Origin, agent: Agent, fresh: Callable[[], AgentState]) -> AgentState:
    """Return the state that a run begins with: a snapshot's, or a fresh one with a snapshot's params."""
    folder, _, selector = str(origin.restore).rpartition("@")
    store = SnapshotStore(folder)
    if not origin.params_only:
        return store.load(selector, template={"state": jax.eval_shape(fresh)}).tree["state"]
    loaded = store.load(selector).tree
    params = loaded["params"] if "params" in loaded else loaded["state"]["params"]
    state = jax.device_get(jax.jit(fresh)())
    wanted, given = leaves(spec_of(state.params)), leaves(spec_of(params))
    if wanted != given:
        raise ConfigError(
            f"the params in {origin.restore} are not this experiment's: expected {wanted}, found {given}; "
            "`init-from` needs the same network and spaces."
        )
    return adopt(agent, state, jax.tree.unflatten(jax.tree.structure(state.params), leaves(params)))
