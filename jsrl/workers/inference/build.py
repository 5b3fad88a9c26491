"""Building inference servers."""

from __future__ import annotations

import functools

from jsrl.metrics.metrics import Meter
from jsrl.transport.base import InferenceServer, ParamsSubscriber
from jsrl.workers.acting import Engine
from jsrl.workers.base import Reporter
from jsrl.workers.ends import bind_server, subscribe
from jsrl.workers.inference.served import InferenceSettings, ServedPolicy
from jsrl.workers.inference.worker import InferenceWorker
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter
from jsrl.workers.players import frozen_players, make_agent
from jsrl.workers.refusals import Refusals


def build_inference(job: Job, reporter: Reporter) -> InferenceWorker:
    e = job.experiment
    settings = InferenceSettings(e.inference.max_rows, e.inference.max_wait_s, _merges(job), job.poll_s)
    meter, refusals = make_meter(job), Refusals(job.name, reporter)
    policies = [_serve(own, settings, refusals, meter) for own in job.by_policy]
    return InferenceWorker(job.name, policies, settings, reporter, meter, refusals)


def _serve(job: Job, settings: InferenceSettings, refusals: Refusals, meter: Meter) -> ServedPolicy:
    e, everybody = job.experiment, _all_rows(job)
    most = min(everybody, max(e.inference.max_rows, e.group_size))
    engine = Engine(
        make_agent(job),
        job.schemas.env,
        num_slots=2 * everybody,
        sizes=batch_sizes(e.group_size, most) if settings.merge else [e.group_size],
        seed=job.incarnation_seed,
        number=job.index,
        policy=job.policy_number,
        policy_name=job.policy,
        frozen=frozen_players(job, background=True),
    )
    return ServedPolicy(job.name, engine, settings, functools.partial(_connect, job), refusals, meter)


def _connect(job: Job) -> tuple[InferenceServer, ParamsSubscriber]:
    return bind_server(job, "inference"), subscribe(job)


def _all_rows(job: Job) -> int:
    """Return the rows of all environments for which a server may act: it may replace other servers."""
    end = job.end("inference")
    groups = end.stream.groups if end.stream.failover else end.groups
    return len(groups) * job.experiment.group_size * end.clients_per_group


def _merges(job: Job) -> bool:
    return not job.experiment.is_deterministic and _all_rows(job) > job.experiment.group_size


def batch_sizes(group_size: int, most: int) -> list[int]:
    """Return the padded batch sizes: the group's size, doubling, up to `most`."""
    sizes = [group_size]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes
