"""The model's view of a run: the host of each worker, and the messages between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jsrl.cluster.facts import HostFacts
from jsrl.cluster.layout import Layout, lay_out
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.launcher import Need
from jsrl.graph.needs import needs_of
from jsrl.graph.plan import Plan, make_plan
from jsrl.linux import SHM
from jsrl.transport.ends.packing import is_stack
from jsrl.transport.network.relay import FAN_OUT
from jsrl.types import ArraySpec, leaves
from jsrl.workers.inference.worker import batch_sizes
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import find_kind

Placing: TypeAlias = Callable[[Sequence[Need], Sequence[HostFacts]], Layout]
_HEADER_BYTES, _FRAME_BYTES = 200, 50  # of a message and of each of its arrays, keys and lengths included
_PACKETS = 1.05  # bytes on the wire per byte sent: packet headers, without acknowledgements


@dataclass(frozen=True)
class Sizes:
    """Bytes of one message on the wire: a group's request and reply, its trajectory, and the params."""

    request: float = 0.0
    reply: float = 0.0
    trajectory: float = 0.0
    params: float = 0.0


@dataclass(frozen=True)
class ActorPart:
    """One actor: its host, its groups, and the number of its server (None: it acts itself)."""

    host: int
    groups: tuple[int, ...]
    server: int | None = None


@dataclass(frozen=True)
class System:
    """A run on hosts.

    Attributes:
      hosts: all. actors, servers (host of each), learner (its host): numbers are positions in `hosts`.
      devices: accelerators that share each batch, if the learner has any.
      group_size: environments of a group. rows: T. batch_groups: trajectories of a batch. updates: made with one batch, in
        `reuse` calls.
      by_group: a batch has one trajectory of each group; else the first that arrive.
      wait_lag: a group's trajectory n needs params with at least n x updates - wait_lag updates; None: it does not wait.
      max_lag: rows older than this, in updates, are dropped; None: none are.
      blocks: trajectories that each group may have open or in flight.
      sizes: padded sizes of a server's batches; none: no padding. max_rows: of a batch.
        requests.
      bytes: of messages. far_rows, far_asks, far_params: these go over TCP with keys.
      fan_out: hosts to which each host sends new params; 0: the learner's host sends them to every reader itself.
      deaths_per_hour: of each actor. restart_s: until a dead one works again.
    """

    hosts: tuple[HostFacts, ...]
    actors: tuple[ActorPart, ...]
    servers: tuple[int, ...] = ()
    learner: int = 0
    devices: int = 1
    group_size: int = 1
    rows: int = 1
    batch_groups: int = 1
    updates: int = 1
    reuse: int = 1
    by_group: bool = False
    wait_lag: int | None = None
    max_lag: int | None = None
    blocks: int = 2
    sizes: tuple[int, ...] = ()
    max_rows: int = 1024
    bytes: Sizes = Sizes()
    far_rows: bool = False
    far_asks: bool = False
    far_params: bool = False
    fan_out: int = 0
    deaths_per_hour: float = 0.0
    restart_s: float = 10.0

    @property
    def batch_rows(self) -> int:
        return self.batch_groups * self.group_size * self.rows


def lay_out_on(experiment: Experiment, hosts: Sequence[HostFacts], place: Placing = lay_out) -> tuple[Layout, System]:
    """Return the hosts of an experiment's workers, and the model's view of the run.

    Args:
      experiment: with `auto` decided. hosts: the first one is that of the controller. place: assigns workers to hosts.
    """
    if not (experiment.where.processes and experiment.where.has_actors):
        raise ConfigError(
            f"this run cannot be simulated: a {experiment.placement} run is one process; choose --placement inline or served."
        )
    plan = make_plan(experiment, "(not run)", SHM / "jsrl")
    layout = place(needs_of(plan), hosts)
    if layout.servers:
        plan = make_plan(experiment, "(not run)", SHM / "jsrl", place=lambda _: layout.hosts_of_workers)
    return layout, system_of(plan, layout)


def system_of(plan: Plan, layout: Layout) -> System:
    e = plan.experiment
    check_known(e, len(plan.policies), plan.changed)
    number = {host.name: index for index, host in enumerate(layout.hosts)}
    jobs = {job.name: job for job in plan.jobs}
    home = {name: number[layout.of[name]] for name in jobs}
    servers = [name for name, job in jobs.items() if find_kind(job.kind).resources.device == "serves"]
    (learner,) = [name for name, job in jobs.items() if find_kind(job.kind).resources.device == "learns"]
    actors = [job for job in jobs.values() if find_kind(job.kind).resources.forks]
    parts = [ActorPart(home[job.name], _groups(job), _server(job, servers)) for job in actors]
    acting = {part.host for part in parts}
    serving = {home[name] for name in servers}
    encrypted = e.encrypted
    far_rows = encrypted or len(acting | {home[learner]}) > 1
    return System(
        hosts=layout.hosts,
        actors=tuple(parts),
        servers=tuple(home[name] for name in servers),
        learner=home[learner],
        devices=_devices(e, layout.hosts[home[learner]], home[learner] in serving),
        group_size=e.group_size,
        rows=e.rollout_length,
        batch_groups=e.batch_columns // e.group_size,
        updates=e.updates_per_batch,
        reuse=e.learner.reuse,
        by_group=e.order == "by_group",
        wait_lag=e.min_updates_lag,
        max_lag=e.max_policy_lag,
        blocks=e.actor.blocks_per_group,
        sizes=() if e.deterministic else tuple(batch_sizes(e.group_size, min(e.envs, e.inference.max_rows))),
        max_rows=e.group_size if e.deterministic else e.inference.max_rows,
        bytes=_sizes(plan),
        far_rows=far_rows,
        far_asks=bool(servers) and (encrypted or len(acting | serving) > 1),
        far_params=encrypted or len((serving or acting) | {home[learner]}) > 1,
        fan_out=FAN_OUT if len((serving or acting) | {home[learner]}) > 1 else 0,
    )


def _devices(e: Experiment, host: HostFacts, serves: bool) -> int:
    """Return how many accelerators of its host the learner divides a batch among; serves: a server is there too."""
    taken = 1 if serves and e.where.serves_alone and host.gpus > 1 else 0
    number = e.learner.num_devices or max(1, host.gpus - taken)
    while e.batch_columns % number:
        number -= 1
    return number


def check_known(e: Experiment, policies: int, changed: bool = False) -> None:
    """Refuse a run that the model does not support.

    Args:
      e: the experiment. policies: their number. changed: its graph is not that of the experiment.
    """
    wrong = ""
    if policies > 1 or e.director is not None:
        wrong = "it knows runs of one policy without a director"
    elif e.has_replay_workers:
        wrong = "it knows no replay workers; use --replay.kind device"
    elif e.learner.num_ranks > 1 or e.learner.split != "none":
        wrong = "it knows one learner process with whole updates; leave out --learner.num-ranks and --learner.split"
    elif e.recording is not None or changed:
        wrong = "it knows actors, inference servers and one learner; leave out recordings and --graph"
    if wrong:
        raise ConfigError(f"this run cannot be simulated: {wrong}.")


def _groups(job: Job) -> tuple[int, ...]:
    return next(end.groups for port, end in job.ends if find_kind(job.kind).port(port).stream_type == "samples")


def _server(job: Job, servers: list[str]) -> int | None:
    asked = [end.peers[0].worker for port, end in job.ends if find_kind(job.kind).port(port).role == "asks"]
    return servers.index(asked[0]) if asked else None


def _sizes(plan: Plan) -> Sizes:
    schemas, rows = plan.schemas, plan.experiment.group_size
    asked = [leaf.size_bytes * rows for leaf in leaves(schemas.act.observation)]
    answered = [schemas.act.action, schemas.act.log_prob, *leaves(schemas.act.extras)]
    written = [leaf.size_bytes for leaf in _arrays(schemas.trajectory)]
    frames, steps = schemas.env.frames, plan.experiment.rollout_length
    if frames is not None and is_stack(schemas.act.observation, frames):  # of later rows only the newest frame is sent
        asked[0] //= frames
        written[0] -= written[0] // (steps + 1) * steps * (frames - 1) // frames
    return Sizes(
        request=_message([*asked, rows, 4 * rows]),
        reply=_message([leaf.size_bytes * rows for leaf in answered]),
        trajectory=_message(written),
        params=_message([schemas.params_bytes]),
    )


def _arrays(tree: object) -> list[ArraySpec]:
    return list(leaves(tree))


def _message(arrays: list[int]) -> float:
    return _PACKETS * (_HEADER_BYTES + sum(size + _FRAME_BYTES for size in arrays))
