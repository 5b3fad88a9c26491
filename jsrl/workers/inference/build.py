"""Building inference servers."""

from __future__ import annotations

from jsrl.transport.base import InferenceServer, ParamsSubscriber
from jsrl.workers.acting import Engine
from jsrl.workers.base import Reporter
from jsrl.workers.ends import bind_server, subscribe
from jsrl.workers.inference.worker import InferenceSettings, InferenceWorker
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_recorder
from jsrl.workers.players import frozen_players, make_agent


def build_inference(job: Job, reporter: Reporter) -> InferenceWorker:
    """Return the inference server of a job."""
    e = job.experiment
    stream = job.end("inference").stream
    groups = stream.groups if stream.failover else job.end("inference").groups
    everybody = len(groups) * e.group_size * job.end("inference").askers_per_group  # it may stand in for other servers
    merge = not e.is_deterministic and everybody > e.group_size
    most = min(everybody, max(e.inference.max_rows, e.group_size))
    sizes = batch_sizes(e.group_size, most) if merge else [e.group_size]
    engine = Engine(
        make_agent(job),
        job.schemas.env,
        num_slots=2 * everybody,
        sizes=sizes,
        seed=job.life_seed,
        number=job.index,
        policy=job.policy_number,
        policy_name=job.policy,
        frozen=frozen_players(job, background=True),
    )
    settings = InferenceSettings(e.inference.max_rows, e.inference.max_wait_s, merge, job.poll_s)

    def connect() -> tuple[InferenceServer, ParamsSubscriber]:
        return bind_server(job, "inference"), subscribe(job)

    return InferenceWorker(job.name, engine, settings, connect, reporter, make_recorder(job))


def batch_sizes(group_size: int, most: int) -> list[int]:
    """Return the sizes that batches are padded to: the group's, doubling, up to `most`."""
    sizes = [group_size]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes
