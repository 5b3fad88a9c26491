"""Launchers: they start workers and return a handle for each. No other part of the controller deals with processes.

`jsrl.launch.local.launcher.Local` starts them as processes of this host, `jsrl.launch.hosts.launcher.JoinedHosts` on others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from jsrl.errors import ConfigError
from jsrl.graph.graph import Graph
from jsrl.references.reference import SpawnEnvironment
from jsrl.workers.jobs import Job

STOPPED = "stopped"  # the state of a worker that was paused


@dataclass(frozen=True)
class Hosts:
    """Where the workers of a run live.

    Attributes:
      own: IP address of this host, at which workers on others reach the controller and the workers here; empty: there are
        no others. of: worker -> IP address of its host, where its streams listen; workers not listed run on this host.
      relayed: the launcher forwards the control messages of other hosts; else their workers connect over TCP, with keys.
    """

    own: str = ""
    of: Mapping[str, str] = field(default_factory=dict)
    relayed: bool = False

    def __post_init__(self) -> None:
        """Refuse other hosts that could not reach this one."""
        if self.of and not self.own:
            raise ConfigError(
                f"workers are to live on {', '.join(sorted(set(self.of.values())))}, but Hosts.own is empty; let the launcher "
                "give an IP address of this host that they can reach."
            )

    @property
    def control_over_tcp(self) -> bool:
        """Return whether the control road is a TCP port."""
        return bool(self.of) and not self.relayed

    def address(self, worker: str) -> str:
        """Return the IP address of a worker's host."""
        return self.of.get(worker, self.own)

    def are_here(self, workers: Iterable[str]) -> bool:
        """Return whether all these workers live on this host, so that streams between them need not leave it."""
        return not any(worker in self.of for worker in workers)


ALONE = Hosts()  # all workers live on this host


@dataclass(frozen=True)
class Need:
    """What one worker needs of a host.

    Attributes:
      device: what it uses an accelerator for, if there is one. gpus: least number of accelerators of its host; 0: any.
        alone: its accelerator must not be used by a learner.
      cores: cores that it keeps busy; None: all cores of its host. memory_mb: an estimate.
      stays: why it must run on a host that sees the run folder; empty: it need not.
      spreads: workers of its kind share the cores that other kinds leave, in proportion to the cores of the hosts.
      answers: workers that spread ask workers of its kind for actions, so these are distributed in the same proportion.
        asks: the worker that it asks first; empty: none.
      beside: the worker whose host suits it best; empty: the host with the most idle cores.
      follows: it learns as another rank of a learner, and needs no run folder for that.
    """

    worker: str
    device: Literal["cpu", "learns", "serves"] = "cpu"
    gpus: int = 0
    alone: bool = False
    cores: int | None = 1
    memory_mb: int = 0
    stays: str = ""
    spreads: bool = False
    answers: bool = False
    asks: str = ""
    beside: str = ""
    follows: bool = False


@dataclass(frozen=True)
class Start:
    """What a worker is started with, besides its job.

    Attributes:
      folder: of the run, for its job file and its log. control: address of the controller, with keys where it is a TCP
        port: the folder of the run's keys. spawn: where it finds the user's modules. variables: of its environment, which
        give it devices and threads of this host. forks: one process may fork it and others of its kind.
      variables_on: (accelerators of a host, None: of this one; workers that live there, None: all) -> its variables there.
    """

    folder: Path
    control: str
    spawn: SpawnEnvironment
    variables: Mapping[str, str]
    keys: str | None = None
    forks: bool = False
    variables_on: Callable[[list[str] | None, Collection[str] | None], Mapping[str, str]] | None = None


@dataclass(frozen=True)
class Exit:
    """How a worker ended: its exit status (negative: the signal that killed it; None: not known), and the same for people.

    `with_host`: its host was lost, which is no fault of the worker.
    """

    status: int | None
    text: str
    with_host: bool = False


@dataclass(frozen=True)
class ResourceUsage:
    """The resources that a worker uses.

    Attributes:
      state: such as running, sleeping or `stopped`. cpu_s: CPU time since its start, with that of all processes that it
        started, living or ended. resident_bytes: its own memory. threads: their number.
    """

    state: str
    cpu_s: float
    resident_bytes: int
    threads: int


class Handle(Protocol):
    """One incarnation of a worker.

    Attributes:
      where: it runs, for people, such as `pid 4711`. host: that it runs on; empty: this one.
      log: where its output is kept, for people.
    """

    @property
    def where(self) -> str: ...  # noqa: D102

    @property
    def host(self) -> str: ...  # noqa: D102

    @property
    def log(self) -> str: ...  # noqa: D102

    @property
    def alive(self) -> bool:
        """Return whether it has not ended."""
        ...

    @property
    def exit(self) -> Exit | None:
        """Return how it ended; None while it lives."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended, waiting for that."""
        ...

    def stop(self) -> None:
        """Ask it to leave in order; returns at once."""
        ...

    def kill(self) -> None:
        """End it and the processes it started; wait a few seconds. A process that hangs in the kernel may still live."""
        ...

    def pause(self) -> None:
        """Stop it where it stands; its `usage` says `stopped` then."""
        ...

    def resume(self) -> None:
        """Let it go on after a pause."""
        ...

    def tail(self, lines: int) -> str:
        """Return the end of its log; after a crash in C code, what the log says of the thread that crashed."""
        ...

    def usage(self) -> ResourceUsage | None:
        """Return what it takes of its machine; None: it has ended, or is not known yet."""
        ...

    def stacks(self, timeout_s: float) -> str:
        """Return what its threads are doing, though it may hang in C code; empty: it did not say so in time.

        May be called from another thread than the rest.
        """
        ...


class Launcher(Protocol):
    """Starts workers. `run(experiment, launcher=...)` takes one, for one run."""

    def place(self, graph: Graph, needs: Sequence[Need], stop_asked: Callable[[], bool]) -> Hosts:
        """Return on which host each worker of a run will live; asked once, before anything starts.

        A worker that binds a stream keeps its address when it is restarted. `needs`: of the workers, in the graph's order.
        `stop_asked`: whether somebody asked for the run's end meanwhile, for a launcher that waits here.

        Raises:
          KeyboardInterrupt: somebody did.
        """
        ...

    def start(self, job: Job, start: Start) -> Handle:
        """Start a worker; returns before it is ready.

        Raises:
          OSError: it could not be started now.
        """
        ...

    def moves(self) -> Mapping[str, str]:
        """Return worker -> why, of those that should leave in order, because their next life belongs on another host."""
        ...

    def busy_s(self) -> float | None:
        """Return the CPU seconds that all programs but this one have used on the workers' machine; None: not known."""
        ...

    def close(self) -> None:
        """End what still runs of what was started, and give everything back."""
        ...
