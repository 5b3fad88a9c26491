"""Kinds of workers: a `kind.py` in a folder of `jsrl/workers` describes one; a user's module may describe more.

Code that starts, watches or reports workers gets what it needs from their kinds and names no kind itself.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from jsrl.errors import ConfigError
from jsrl.references.importing import import_target
from jsrl.services.metrics.catalogue import Catalogue, Metric, worker_metrics
from jsrl.services.metrics.metrics import Meter
from jsrl.services.metrics.phases import REST, REST_ACTIVITY, TURN, Activity
from jsrl.services.runs.message_limits import Speech
from jsrl.transport.stream import StreamType
from jsrl.workers.jobs import Job

OWN = {  # kinds of jsrl: name -> location below jsrl.workers, which is imported where a run has one
    "actor": "actor.kind:KIND",
    "director": "director.kind:KIND",
    "evaluator": "evaluator.kind:KIND",
    "fused": "learner.kind:FUSED",
    "inference": "inference.kind:KIND",
    "learner": "learner.kind:KIND",
    "rank": "learner.kind:RANK",
    "parameter-server": "relay.kind:KIND",
    "replay": "replay.kind:KIND",
    "video-recorder": "video_recorder.kind:KIND",
}
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)  # of C code in a process
TRACE_SPANS = 200_000  # in a trace, over all workers, of about 100 bytes; the newest are kept
TRACER = "jsrl.services.metrics.tracing:Tracer"  # imported where a run is traced
MIN_SPANS = 1_000  # per traced thread, for any number of workers
PARTS = ("name", "meter", "setup", "step", "report", "command", "close")  # of a worker; see jsrl.workers.base.Worker
Value = TypeVar("Value")
OrFunction: TypeAlias = Value | Callable[..., Value]  # a field of a kind, or the function that returns it
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def value_of(field: Any, *args: Any) -> Any:
    """Return the value of a kind's field that may be a function of these."""
    return field(*args) if callable(field) else field


def ended_by_own_code(status: int | None) -> bool:
    """Return whether a process ended itself (os._exit) or crashed in C code; a signal from elsewhere is neither."""
    return status is not None and (status > 0 or -status in CRASHES)


class Headline(NamedTuple):
    """What the live display shows for a kind; metrics and shares without the kind's name.

    Attributes:
      rate, unit: the metric of its speed. queue: of its waiting input. others: activities to show beside its waits.
    """

    rate: str = ""
    unit: str = ""
    queue: str = ""
    others: tuple[str, ...] = ()


class Port(NamedTuple):
    """A connection point of a worker for a stream.

    Attributes:
      name: of the port. stream_type: type of the streams that it may have. role: of the worker at the port.
      optional: it may stay without a stream. schemas: of samples that it accepts; none: any.
      by_policy: it may have several streams, one for each policy that plays in the worker's environments.
    """

    name: str
    stream_type: StreamType
    role: Literal["reads", "writes", "asks", "answers"]
    optional: bool = False
    schemas: tuple[str, ...] = ()
    by_policy: bool = False

    @property
    def binds(self) -> bool:
        """Return whether this end binds (the other one connects)."""
        return self.role == {"samples": "reads", "params": "writes"}.get(self.stream_type, "answers")

    @property
    def gives(self) -> bool:
        """Return whether this end writes to the stream, or is a client."""
        return self.role in ("writes", "asks")

    @property
    def publishes(self) -> bool:
        """Return whether this end publishes params."""
        return self.stream_type == "params" and self.role == "writes"


class Resources(NamedTuple):
    """The processor and the memory of a worker.

    Attributes:
      device: whether it learns or serves on an accelerator, if there is one.
      threads: CPU threads that it computes with, from (experiment); None: one per core.
      forks: one process may fork several of them, if they load no jax.
      memory_bytes: estimate of its memory besides libraries, params and streams, from (job); for the plan.
    """

    device: Literal["cpu", "learns", "serves"] = "cpu"
    threads: OrFunction[int | None] = 1
    forks: bool = False
    memory_bytes: OrFunction[int] = 0


class LastTask(NamedTuple):
    """What a worker does after the training, such as a final evaluation.

    The controller sends the command `final` with `facts` and with `updates`: policy -> updates of its last params, which may
    still be on their way. The worker reports the end with an event whose name ends with `finally`. It has an attribute `due`.

    Attributes:
      facts: of the command, from (experiment, why the run ends); None: it has no last task.
      name: for the display. deadline: its limit, one of `deadlines`. hint: advice if it was not finished in time.
    """

    facts: OrFunction[dict[str, Any] | None] = None
    name: str = "last task"
    deadline: str = "evaluation_s"
    hint: str = ""


class Lifecycle(NamedTuple):
    """How a worker is replaced, and how it ends.

    Attributes:
      state: `snapshot`: a replaced worker starts from the run's last committed snapshot, like a resumed one.
      min_restarts: restarts that it has at least, from (experiment).
      may_restart: whether it may be replaced after a death, from (job, exit status, name of its last error or None).
      loss_ends_run: False: the run continues without it when its restarts are exhausted; `jsrl dev chaos` then spares it by
        default.
      saves: its shutdown may take as long as writing a snapshot.
      must_finish: the run fails if its shutdown fails. Such a worker has an attribute `counts`.
      last_task: after the training.
      check_resume: "module:function" of (job), called before a resumed run starts: refuses it, or returns lines to show.
    """

    state: Literal["none", "snapshot"] = "none"
    min_restarts: OrFunction[int] = 0
    may_restart: OrFunction[bool] = True
    loss_ends_run: bool = True
    saves: bool = False
    must_finish: bool = False
    last_task: LastTask = LastTask()
    check_resume: str = ""


class Shown(NamedTuple):
    """What users see of a worker.

    Attributes:
      activities: of its threads, besides `wait_turn` and `other`.
      metrics: that it reports besides the shares of its activities; names without the kind.
      headline: its row of the live display.
      prefixes: first parts of its metrics' names besides its own name.
      death_hint: text added to the message of a death without an error, from (job, exit status or None).
      named: first part of its metrics' names; empty: its name.
    """

    activities: tuple[Activity, ...] = ()
    metrics: tuple[Metric, ...] = ()
    headline: Headline = Headline()
    prefixes: tuple[str, ...] = ()
    death_hint: OrFunction[str] = ""
    named: str = ""


class Travel(NamedTuple):
    """Where a worker may run.

    Attributes:
      needs_folder: what it does in the run folder, such as `it writes videos`, from (experiment); it then runs on a host that
        sees the folder. Empty: it may run on other hosts. A worker that reads samples counts them in the run folder, and
        needs it unless it has `keeps_files`.
      keeps_files: folders below the run's, from (job), in which it keeps files of its own: they travel with it to other hosts.
      relays: it runs on the host of the stream that it reads, for workers on other hosts.
    """

    needs_folder: OrFunction[str] = "its kind does not say that it may leave the run folder"
    keeps_files: OrFunction[tuple[str, ...]] = ()
    relays: bool = False


class Kind(NamedTuple):
    """One kind of worker. A field described as "from (...)" is a value, or a function that gets these and returns it.

    Attributes:
      name: as in `actor-3`; lower-case letters, digits and dashes. plural: for messages.
      build: "module:function" of (job, reporter), which returns the worker; imported in the worker's own process.
      ports: its connections.
      loads_jax: whether the process of a worker loads jax, from (worker of a graph, or its job).
      receives: names of other workers' events that it gets as commands; it may send commands to other workers.
      sends: events that the controller acts on, such as `finished` and `saved`, that it may send (all of them:
        jsrl.services.runs.control_bodies.EVENTS).
      check: refuses a worker of a graph with invalid ports or settings.
    """

    name: str
    plural: str
    build: str
    ports: tuple[Port, ...] = ()
    loads_jax: OrFunction[bool] = True
    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    check: Callable[[Any], None] | None = None
    resources: Resources = Resources()
    lifecycle: Lifecycle = Lifecycle()
    shown: Shown = Shown()
    travel: Travel = Travel()

    def port(self, name: str) -> Port:
        """Return a port by its name."""
        for port in self.ports:
            if port.name == name:
                return port
        names = ", ".join(port.name for port in self.ports) or "none"
        raise ConfigError(f"a worker of kind {self.name} has no port {name!r}; it has: {names}.")

    @property
    def plays(self) -> bool:
        """Return whether it makes the trajectories that it writes."""
        writes = any(port.role == "writes" and "trajectory" in port.schemas for port in self.ports)
        return writes and not self.reads_samples

    @property
    def reads_samples(self) -> bool:
        """Return whether it reads samples of other workers."""
        return any(port.stream_type == "samples" and port.role == "reads" for port in self.ports)

    @property
    def trains(self) -> bool:
        """Return whether it trains a policy: it publishes its params, and the run fails without its last state."""
        return self.lifecycle.must_finish and any(port.publishes for port in self.ports)

    @property
    def prefix(self) -> str:
        """Return the first part of its metrics' names."""
        return self.shown.named or self.name.replace("-", "_")

    @property
    def heads(self) -> set[str]:
        """Return the first parts of its metrics' names."""
        return {self.prefix, *self.shown.prefixes}

    @property
    def speech(self) -> Speech:
        """Return what its workers may say. Those of a user's kind may measure what no kind of jsrl does."""
        own = () if self.name in OWN else own_kinds()
        foreign = frozenset({"controller", "system"}.union(*(kind.heads for kind in own))) if own else None
        return Speech(self.name, frozenset(self.sends), frozenset(self.heads), foreign)

    @property
    def title(self) -> str:
        """Return its name for messages."""
        return self.name.replace("-", " ")

    @property
    def all_activities(self) -> tuple[Activity, ...]:
        """Return its activities with those that every worker has."""
        return (*self.shown.activities, TURN, REST_ACTIVITY)


@cache
def own_kinds() -> tuple[Kind, ...]:
    """Return all kinds of jsrl itself."""
    return tuple(find_kind(name) for name in OWN)


def named_kinds() -> tuple[Kind, ...]:
    """Return the kinds of jsrl whose metrics have their own name, and not another kind's."""
    return tuple(kind for kind in own_kinds() if not kind.shown.named)


def find_kind(reference: str) -> Kind:
    """Return a kind by its name (`actor`), or a user's kind by its location (`my_workers:AUGMENT`)."""
    if isinstance(reference, Kind):
        raise ConfigError(
            f"a worker's kind is given as the object {reference.name!r}; give its location as `module:NAME`, such as "
            "'my_workers:AUGMENT', because each worker's process imports it."
        )
    if isinstance(reference, Described):
        return reference.kind
    if reference in OWN:
        own: Kind = import_target(f"jsrl.workers.{OWN[reference]}")
        return own
    module, _, name = reference.partition(":")
    if not name:
        raise ConfigError(
            f"there is no worker of kind {reference!r}; there are: {', '.join(OWN)}, and your own as `module:NAME`."
        )
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the kind of worker {reference!r} cannot be imported: {error}.") from error
    if not isinstance(found, Kind):
        raise ConfigError(f"{reference} is {type(found).__name__}; a kind of worker is a jsrl.workers.kinds.Kind.")
    if not _NAME.fullmatch(found.name):
        raise ConfigError(f"the kind {reference} is called {found.name!r}; use lower-case letters, digits and dashes.")
    if found.name in OWN:
        raise ConfigError(
            f"the kind {reference} is called {found.name!r}, as one of jsrl's own is; give it another name."
        )
    _check_fields(found, reference)
    return found


class Described(str):
    """The location of a user's kind, with what reports show of it (`kind`): `find_kind` then imports nothing."""

    kind: Kind

    @classmethod
    def read(cls, reference: str, facts: Any) -> Described:
        """Return it from the JSON form of `description`."""
        read = msgspec.convert(facts, _Description)
        found = cls(reference)
        found.kind = Kind(
            read.name,
            read.plural,
            "",
            read.ports,
            lifecycle=Lifecycle(must_finish=read.must_finish),
            shown=Shown(read.activities, read.metrics),
        )
        return found


class _Description(NamedTuple):
    name: str
    plural: str
    ports: tuple[Port, ...]
    activities: tuple[Activity, ...]
    metrics: tuple[Metric, ...]
    must_finish: bool


def description(kind: Kind) -> Any:
    shown, must_finish = kind.shown, kind.lifecycle.must_finish
    facts = _Description(kind.name, kind.plural, kind.ports, shown.activities, shown.metrics, must_finish)
    return msgspec.to_builtins(facts)


def _check_fields(kind: Kind, reference: str) -> None:
    """Refuse fields of a user's kind that have another type than they should."""
    for field in ("resources", "lifecycle", "shown", "travel"):
        part = type(Kind._field_defaults[field])
        if not isinstance(given := getattr(kind, field), part):
            raise ConfigError(f"{field} of the kind {reference} is {given!r}; give {field}={part.__name__}(...).")
    tuples: tuple[tuple[str, Any, type], ...] = (
        ("ports", kind.ports, Port),
        ("activities", kind.shown.activities, Activity),
        ("metrics", kind.shown.metrics, Metric),
    )
    for field, given, entry in tuples:
        if not isinstance(given, tuple | list) or not all(isinstance(each, entry) for each in given):
            raise ConfigError(
                f"{field} of the kind {reference} must be a tuple of {entry.__name__}; a tuple with one entry has a comma: "
                f"{field}=({entry.__name__}(...),)."
            )
    if not isinstance(kind.build, str) or not all(kind.build.partition(":")):
        raise ConfigError(
            f"build of the kind {reference} is {kind.build!r}; give the location of a function or class as `module:NAME`."
        )


def build_worker(job: Job, reporter: Any) -> Any:
    """Return the worker that a job describes; imports only what its kind needs."""
    build = find_kind(job.kind).build
    module, _, function = build.partition(":")
    worker = getattr(import_module(module), function)(job, reporter)
    if missing := [part for part in PARTS if not hasattr(worker, part)]:
        raise ConfigError(
            f"{build} built {job.name} without {', '.join(missing)}; a worker has name and meter, which its constructor or "
            "that of its base class sets, and the methods setup, step, report, command and close."
        )
    if worker.name != job.name:
        raise ConfigError(f"{build} built {job.name} with the name {worker.name!r}; set name to job.name.")
    return worker


def make_meter(job: Job) -> Meter:
    """Return the meter of a worker; it also keeps spans if the experiment asks for a trace."""
    spans = max(MIN_SPANS, TRACE_SPANS // (job.run.workers + 1))
    tracer = import_target(TRACER)(job.folder, job.name, job.incarnation, spans) if job.experiment.trace else None
    return Meter(find_kind(job.kind).prefix, rest=TURN.name if job.in_process else REST, tracer=tracer)


def kind_metrics(kind: Kind) -> tuple[Metric, ...]:
    return worker_metrics(kind.prefix, kind.plural, kind.shown.metrics, kind.all_activities)


def catalogue(kinds: Iterable[Kind] | None = None, policies: Iterable[str] = ()) -> Catalogue:
    """Return the catalogue of metrics of some kinds of workers (default: all of jsrl's), with those of further policies."""
    kinds = named_kinds() if kinds is None else tuple(kinds)
    metrics = [metric for kind in kinds for metric in kind_metrics(kind)]
    return Catalogue(metrics, policies, [kind.prefix for kind in kinds if kind.trains])


def phase_of(kinds: Iterable[Kind] | None = None) -> dict[str, str]:
    """Return activity -> phase of some kinds of workers (default: all of jsrl's)."""
    kinds = own_kinds() if kinds is None else kinds
    return {"setup": "other"} | {a.name: a.phase for kind in kinds for a in kind.all_activities}
