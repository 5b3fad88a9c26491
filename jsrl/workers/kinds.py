"""Kinds of workers: each folder of `jsrl/workers` with a `kind.py` describes one; a user's module may describe more.

Code that starts, watches or reports workers gets what it needs from their kinds and names no kind itself.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.metrics.catalogue import Catalogue, Metric, worker_metrics
from jsrl.metrics.metrics import Meter
from jsrl.metrics.phases import REST, REST_ACTIVITY, TURN, Activity
from jsrl.metrics.tracing import Tracer
from jsrl.runs.control import AnyMessage, Event
from jsrl.runs.control_bodies import RESERVED_EVENTS, complaint, metrics_of, texts_of
from jsrl.runs.door import TEXT_BYTES, TEXT_BYTES_PER_S, TextBudget
from jsrl.transport.stream import Sort

if TYPE_CHECKING:
    from jsrl.workers.jobs import Job

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)  # of C code in a process
MIN_SPANS = 1_000  # per traced thread, for any number of workers
PARTS = ("name", "meter", "setup", "step", "report", "command", "close")  # of a worker; see jsrl.workers.base.Worker
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def ended_by_own_code(status: int | None) -> bool:
    """Return whether a process ended itself (os._exit) or crashed in C code; a signal from elsewhere is neither.

    Args:
      status: its exit status, negative for a signal; None: not known.
    """
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
      name: of the port. sort: of stream. does: the worker's role at the port.
      optional: it may stay without a stream. schemas: of samples that it accepts; none: any.
      by_policy: it may have several streams, one for each policy that plays in the worker's environments.
    """

    name: str
    sort: Sort
    does: Literal["reads", "writes", "asks", "answers"]
    optional: bool = False
    schemas: tuple[str, ...] = ()
    by_policy: bool = False

    @property
    def binds(self) -> bool:
        """Return whether this end binds (the other one connects)."""
        return self.does == {"samples": "reads", "params": "writes"}.get(self.sort, "answers")

    @property
    def publishes(self) -> bool:
        """Return whether this end publishes params."""
        return self.sort == "params" and self.does == "writes"


class Kind(NamedTuple):
    """One kind of worker.

    Attributes:
      name: as in `actor-3`; lower-case letters, digits and dashes. plural: for messages.
      build: "module:function" of (job, reporter), which returns the worker; imported in the worker's own process.
      ports: its connections.
      activities: of its threads, besides `wait_turn` and `other`.
      metrics: that it reports besides the shares of its activities; names without the kind. averages: those combined as
        means, and others, are means over the time since its last report, and not numbers at a moment.
      loads_jax: whether the process of a worker (of a graph, or its job) loads jax.
      device: whether it learns or serves on an accelerator, if there is one. threads: CPU threads that it computes with,
        from the experiment; None: one per core.
      state: `snapshot`: a replaced worker starts from the run's last committed snapshot, like a resumed one.
      saves: its shutdown may take as long as writing a snapshot. must_finish: the run fails if its shutdown fails.
      least_restarts: restarts that other options of an experiment grant it, from (experiment).
      may_restart: whether it may be replaced after a death, from (job, exit status, name of its last error or None).
      loss_ends_run: False: the run continues without it when its restarts are exhausted.
      forks: one process may fork several of them, if they load no jax.
      declares: bytes that its streams and state may use beyond its memory after start-up, from (job); None: no other worker
        connects to it.
      keeps: estimate of its memory in bytes besides libraries, params and streams, from (job); for the plan.
      final: the facts of its command `final`, from (experiment, why the run ends); None: it has no task after training. The
        controller adds `updates`: policy -> updates of its last params, which may still be on their way. The worker
        reports the end of this task with an event whose name ends with `finally`. final_name: of this task, for the
        display. final_deadline: its limit, one of `deadlines`. final_hint: advice if it was not finished in time.
      when_due: in serial mode it works after updates, until it is no longer `due`.
      death_hint: text added to the message of a death without an error, from (job, exit status or None).
      headline: its row of the live display. is_hit: `jsrl dev chaos` kills it by default.
      receives: names of other workers' events that it gets as commands; it may send commands to other workers.
      says: events of jsrl.runs.control_bodies.EVENTS that it may send, besides warnings and notes; and the first parts of its
        metrics' names besides its own name, with a slash.
      relays: it runs on the host of the stream that it reads, for workers on other hosts.
      needs_folder: what it does in the run folder, such as `it writes videos`; it then runs on a host that sees the folder.
        Empty: it may run on other hosts. From (experiment) where its options decide. A worker that reads samples counts them
        in the run folder, and needs it unless it has `keeps_files`.
      keeps_files: folders below the run's, from (job), in which it keeps files of its own: they travel with it to other hosts.
      check: refuses a worker of a graph with invalid ports or settings.
    """

    name: str
    plural: str
    build: str
    ports: tuple[Port, ...] = ()
    activities: tuple[Activity, ...] = ()
    metrics: tuple[Metric, ...] = ()
    averages: bool = False
    loads_jax: Callable[[Any], bool] = lambda worker: True
    device: Literal["cpu", "learns", "serves"] = "cpu"
    threads: Callable[[Experiment], int | None] = lambda experiment: 1
    state: Literal["none", "snapshot"] = "none"
    saves: bool = False
    must_finish: bool = False
    least_restarts: Callable[[Experiment], int] = lambda experiment: 0
    may_restart: Callable[[Job, int | None, str | None], bool] = lambda job, status, error: True
    loss_ends_run: bool = True
    forks: bool = False
    declares: Callable[[Job], int | None] = lambda job: None
    keeps: Callable[[Job], int] = lambda job: 0
    final: Callable[[Experiment, str], dict[str, Any] | None] = lambda experiment, reason: None
    final_name: str = "last task"
    final_deadline: str = "evaluation_s"
    final_hint: str = ""
    when_due: bool = False
    death_hint: Callable[[Job, int | None], str] = lambda job, status: ""
    headline: Headline = Headline()
    is_hit: bool = True
    receives: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    relays: bool = False
    needs_folder: str | Callable[[Experiment], str] = "its kind does not say that it may leave the run folder"
    keeps_files: Callable[[Job], tuple[str, ...]] = lambda job: ()
    check: Callable[[Any], None] | None = None

    def port(self, name: str) -> Port:
        """Return a port by its name.

        Raises:
          ConfigError: there is none; the message lists the ports.
        """
        for port in self.ports:
            if port.name == name:
                return port
        names = ", ".join(port.name for port in self.ports) or "none"
        raise ConfigError(f"a worker of kind {self.name} has no port {name!r}; it has: {names}.")

    @property
    def plays(self) -> bool:
        """Return whether it makes the trajectories that it writes."""
        writes = any(port.does == "writes" and "trajectory" in port.schemas for port in self.ports)
        return writes and not self.reads_samples

    @property
    def reads_samples(self) -> bool:
        """Return whether it reads samples of other workers."""
        return any(port.sort == "samples" and port.does == "reads" for port in self.ports)

    @property
    def prefix(self) -> str:
        """Return the first part of its metrics' names."""
        return self.name.replace("-", "_")

    @property
    def heads(self) -> set[str]:
        """Return the first parts of its metrics' names."""
        return {self.prefix, *(said.removesuffix("/") for said in self.says if said.endswith("/"))}

    @property
    def title(self) -> str:
        """Return its name for messages."""
        return self.name.replace("-", " ")

    @property
    def all_activities(self) -> tuple[Activity, ...]:
        """Return its activities with those that every worker has."""
        return (*self.activities, TURN, REST_ACTIVITY)


@cache
def own_kinds() -> tuple[Kind, ...]:
    """Return the kinds of jsrl itself."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/kind.py"))
    return tuple(import_module(f"jsrl.workers.{folder}.kind").KIND for folder in folders)


def objection(message: AnyMessage, kind: Kind, budget: TextBudget) -> str:
    """Return why a message of a worker of this kind must be dropped, though the worker sent it; empty: it need not."""
    if why := complaint(message):
        return why
    if isinstance(message, Event) and message.name in RESERVED_EVENTS and message.name not in kind.says:
        return f"a worker of kind {kind.name} does not send it"
    if metrics := metrics_of(message):
        foreign, known = {name.partition("/")[0] for name in metrics} - kind.heads, _heads_of_own_kinds()
        if kind.name not in known:  # a user's kind
            foreign &= {"controller", "system"}.union(*known.values())
        if foreign:
            return f"a worker of kind {kind.name} does not measure {min(foreign)[:80]!r}"
    if not budget.pay(*texts_of(message)):
        return f"it has more text than its sender may still say: {TEXT_BYTES >> 20} MiB, and {TEXT_BYTES_PER_S} bytes a second"
    return ""


@cache
def _heads_of_own_kinds() -> dict[str, set[str]]:
    return {kind.name: kind.heads for kind in own_kinds()}


def find_kind(reference: str) -> Kind:
    """Return a kind by its name (`actor`), or a user's kind by its location (`my_workers:AUGMENT`).

    Raises:
      ConfigError: there is no such kind, or one of its fields is invalid.
    """
    if isinstance(reference, Kind):
        raise ConfigError(
            f"a worker's kind is given as the object {reference.name!r}; give its location as `module:NAME`, such as "
            "'my_workers:AUGMENT', because each worker's process imports it."
        )
    module, _, name = reference.partition(":")
    if not name:
        for kind in own_kinds():
            if reference == kind.name:
                return kind
        names = ", ".join(kind.name for kind in own_kinds())
        raise ConfigError(
            f"there is no worker of kind {reference!r}; there are: {names}, and your own as `module:NAME`."
        )
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the kind of worker {reference!r} cannot be imported: {error}.") from error
    if not isinstance(found, Kind):
        raise ConfigError(f"{reference} is {type(found).__name__}; a kind of worker is a jsrl.workers.kinds.Kind.")
    if not _NAME.fullmatch(found.name):
        raise ConfigError(f"the kind {reference} is called {found.name!r}; use lower-case letters, digits and dashes.")
    if any(found.name == kind.name for kind in own_kinds()):
        raise ConfigError(
            f"the kind {reference} is called {found.name!r}, as one of jsrl's own is; give it another name."
        )
    _check_fields(found, reference)
    return found


def _check_fields(kind: Kind, reference: str) -> None:
    """Refuse fields of a user's kind that have another type than they should."""
    for field, sort in (("ports", Port), ("activities", Activity), ("metrics", Metric)):
        given = getattr(kind, field)
        if not isinstance(given, tuple | list) or not all(isinstance(entry, sort) for entry in given):
            raise ConfigError(
                f"{field} of the kind {reference} must be a tuple of {sort.__name__}; a tuple with one entry has a comma: "
                f"{field}=({sort.__name__}(...),)."
            )
    for field, default in Kind._field_defaults.items():
        given = getattr(kind, field)
        if callable(default) and not callable(given):
            raise ConfigError(
                f"{field} of the kind {reference} is {given!r}; give a function that returns it: lambda *_: {given!r}."
            )
    if not isinstance(kind.build, str) or not all(kind.build.partition(":")):
        raise ConfigError(
            f"build of the kind {reference} is {kind.build!r}; give the location of a function or class as `module:NAME`."
        )


def build_worker(job: Job, reporter: Any) -> Any:
    """Return the worker that a job describes; imports only what its kind needs.

    Raises:
      ConfigError: it lacks a part of a worker, or has another name.
    """
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
    e = job.experiment
    spans = max(MIN_SPANS, e.trace_spans // (job.workers + 1))
    tracer = Tracer(job.folder, job.name, job.incarnation, spans) if e.trace else None
    return Meter(find_kind(job.kind).prefix, rest=TURN.name if job.in_process else REST, tracer=tracer)


def kind_metrics(kind: Kind) -> tuple[Metric, ...]:
    """Return the metrics of a kind, with their full names."""
    return worker_metrics(kind.prefix, kind.plural, kind.metrics, kind.all_activities)


def catalogue(kinds: Iterable[Kind] | None = None, policies: Iterable[str] = ()) -> Catalogue:
    """Return the catalogue of metrics of some kinds of workers (default: all of jsrl's), with those of further policies."""
    kinds = own_kinds() if kinds is None else tuple(kinds)
    metrics = [metric for kind in kinds for metric in kind_metrics(kind)]
    return Catalogue(metrics, policies, [kind.prefix for kind in kinds if kind.averages])


def phase_of(kinds: Iterable[Kind] | None = None) -> dict[str, str]:
    """Return activity -> phase of some kinds of workers (default: all of jsrl's)."""
    kinds = own_kinds() if kinds is None else kinds
    return {"setup": "other"} | {a.name: a.phase for kind in kinds for a in kind.all_activities}
