"""Launchers: they start workers and return a handle for each. No other part of the controller handles processes.

`jsrl.control.processes.launcher.Local` starts them as processes of this host, `jsrl.cluster.launcher.JoinedHosts` on others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from jsrl.errors import ConfigError
from jsrl.graph.graph import Graph
from jsrl.references.importing import SpawnEnvironment
from jsrl.services.runs.values import Exit, ResourceUsage
from jsrl.workers.jobs import Job

if TYPE_CHECKING:
    from jsrl.services.runs.control import ControlServer

STOPPED = "stopped"  # the state of a paused worker


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run's workers.

    Attributes:
      own: IP address of this host, at which workers on others reach the controller and the workers here; empty: there are
        no others. of: worker -> IP address of its host, where its streams listen; workers not listed run on this host.
      servers: the actors on each host, where each has its own inference server in place of the graph's only one; the new
        ones are called inference-0, inference-1 and so on. Empty: the graph stays.
      relayed: the launcher forwards the control messages of other hosts; else their workers connect over TCP, with keys.
    """

    own: str = ""
    of: Mapping[str, str] = field(default_factory=dict)
    relayed: bool = False
    servers: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check that other hosts can reach this one."""
        if self.of and not self.own:
            raise ConfigError(
                f"workers would run on {', '.join(sorted(set(self.of.values())))}, but Hosts.own is empty; let the launcher "
                "give an IP address of this host that they can reach."
            )

    @property
    def control_over_tcp(self) -> bool:
        """Return whether the control connection is a TCP port."""
        return bool(self.of) and not self.relayed

    def address(self, worker: str) -> str:
        """Return the IP address of a worker's host."""
        return self.of.get(worker, self.own)

    def are_here(self, workers: Iterable[str]) -> bool:
        """Return whether all these workers are on this host, so that streams between them stay on it."""
        return not any(worker in self.of for worker in workers)


ALONE = Hosts()  # all workers are on this host


@dataclass(frozen=True)
class Need:
    """What one worker needs from a host.

    Attributes:
      device: its use of an accelerator, if there is one. gpus: least number of accelerators of its host; 0: any.
        alone: its accelerator must not be used by a learner.
      cores: cores that it keeps busy; None: all cores of its host. memory_mb: an estimate.
      stays: why it must run on a host that sees the run folder; empty: it need not.
      spreads: workers of its kind share the cores that other kinds leave, in proportion to the cores of the hosts.
      each: each host that has actors gets such a server, if no host has GPUs.
      answers: workers that spread request actions from workers of its kind, so these are distributed in the same proportion.
        asks: the worker that it requests first; empty: none.
      feeds: the rank of a learner that reads its samples; empty: none. The workers that spread over one host feed one rank,
        where that overloads no host.
      beside: the worker whose host suits it best; empty: the host with the most idle cores.
      follows: the learner of which it is another rank; it goes wherever devices are. Empty: it is none.
      on: the name of the host that it must run on; empty: any.
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
    each: bool = False
    asks: str = ""
    feeds: str = ""
    beside: str = ""
    follows: str = ""
    on: str = ""


@dataclass(frozen=True)
class Start:
    """Start parameters of a worker, besides its job.

    Attributes:
      folder: of the run, for its job file and its log. control: address of the controller; keys: if it is a TCP
        port, the folder of the run's keys. server: takes the messages that the launcher relays.
      spawn: where it finds the user's modules. variables: of its environment, for devices and threads of this host.
        forks: one process may fork it and others of its kind.
      variables_on: (accelerators of a host, None: of this one; workers there, None: all) -> its variables there.
      nice: added to its niceness, so that other processes of its host come first.
    """

    folder: Path
    control: str
    spawn: SpawnEnvironment
    variables: Mapping[str, str]
    keys: str | None = None
    forks: bool = False
    variables_on: Callable[[list[str] | None, Collection[str] | None], Mapping[str, str]] | None = None
    nice: int = 0
    server: ControlServer | None = None


class Handle(Protocol):
    """One incarnation of a worker.

    Attributes:
      where: the place where it runs, as text, such as `pid 4711`. host: its host; empty: this one.
      log: the place of its output, as text.
    """

    @property
    def where(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def log(self) -> str: ...

    @property
    def alive(self) -> bool:
        """Return whether it has not ended."""
        ...

    @property
    def exit(self) -> Exit | None:
        """Return how it ended; None while it is alive."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it has ended."""
        ...

    def kill(self) -> None:
        """End it and the processes it started; wait a few seconds. A process that hangs in the kernel may remain."""
        ...

    def pause(self) -> None:
        """Stop it (SIGSTOP); its `usage` says `stopped` then."""
        ...

    def resume(self) -> None:
        """Continue it after a pause."""
        ...

    def tail(self, lines: int) -> str:
        """Return the end of its log; after a crash in C code, the log's stack of the crashed thread."""
        ...

    def usage(self) -> ResourceUsage | None:
        """Return its use of its machine; None: it has ended, or is not known yet."""
        ...

    def stacks(self, timeout_s: float) -> str:
        """Return the stacks of its threads, even if it hangs in C code; empty: there was no answer in time.

        May be called from another thread than the other methods.
        """
        ...


class Launcher(Protocol):
    """Starts workers. `run(experiment, launcher=...)` takes one, for one run.

    A launcher whose `place` waits may have an attribute `waits_for`: a text for `jsrl status`, such as `hosts: 1 of 2 joined`.
    One of other hosts may have a method `silence`: see JoinedHosts.
    """

    def place(self, graph: Graph, needs: Sequence[Need], stop_asked: Callable[[], bool]) -> Hosts:
        """Return the host of each worker of a run; called once, before anything starts.

        A worker that binds a stream keeps its address when it is restarted. `needs`: of the workers, in the graph's order.
        `stop_asked`: whether the user asked for the run's end meanwhile, for a launcher that waits here.

        Raises:
          KeyboardInterrupt: the user did.
        """
        ...

    def start(self, job: Job, start: Start) -> Handle:
        """Start a worker; returns before it is ready.

        Raises:
          OSError: it could not be started now.
        """
        ...

    def moves(self) -> Mapping[str, str]:
        """Return worker -> the reason, for workers that should leave because they belong on another host now."""
        ...

    def busy_s(self) -> float | None:
        """Return the CPU seconds used by all other programs on the workers' machine; None: unknown."""
        ...

    def close(self) -> None:
        """End everything that was started and still runs, and free all resources."""
        ...
