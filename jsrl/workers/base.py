"""What every worker is: setup / step / close, the receiver of its reports, and what several kinds share.

Its process is jsrl.workers.process. Imports no jax.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.envs.faults import foreign
from jsrl.errors import ConfigError, JsrlError, SpecMismatch, StreamClosed, StreamError, StreamTimeout
from jsrl.references.importing import import_target, shown_target
from jsrl.services.metrics.metrics import Meter, as_number
from jsrl.services.runs.control_bodies import Command
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import ended_by_own_code

if TYPE_CHECKING:
    from jsrl.services.snapshots.store import SnapshotStore

STORE = "jsrl.services.snapshots.store:SnapshotStore"  # imported only where a worker has snapshots


class Reporter(Protocol):
    """Receives a worker's reports: sends them to the controller from a process, calls it directly in serial mode."""

    def stage(self, stage: str) -> None:
        """Report the current stage of the start."""
        ...

    def event(self, name: str, text: str = "", **facts: Any) -> None:
        """Report an event to the controller."""
        ...

    def entering(self, activity: object, steps: float | None = None) -> None:
        """Note the start of a call that may hang (`str(activity)` names it).

        It may take as long as so many `steps` of an environment; None: as one turn of the worker.
        """
        ...

    def left(self) -> None:
        """Note the end of the call."""
        ...


class NullReporter:
    """A Reporter that discards every report."""

    def stage(self, stage: str) -> None: ...

    def event(self, name: str, text: str = "", **facts: Any) -> None: ...

    def entering(self, activity: object, steps: float | None = None) -> None: ...

    def left(self) -> None: ...


class Worker(Protocol):
    """A worker: `step` is bounded in time, so that one process can call all workers in turn.

    It may also have these, which a kind with a last task (`due`) or one that must finish (`counts`) needs:

    * `drop_pending()`, called before `close` if a step failed: closes the ends that it reads, so that the rest is counted.
    * `due`: in serial mode it only works after updates, and only while this is true.
    * `counts`: its `updates`, `version` and `env_steps`, as in its facts.
    """

    name: str
    meter: Meter

    def setup(self) -> None:
        """Connect, build, compile."""
        ...

    def step(self) -> int:
        """Do a bounded amount of work; return how much was achieved (0: nothing to do now)."""
        ...

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return (metrics since the last report, facts)."""
        ...

    def command(self, command: Command) -> None:
        """Execute a command of the controller."""
        ...

    def close(self) -> dict[str, Any]:
        """Close everything; return the last facts (ledger, counters)."""
        ...


def step_of(worker: Worker) -> int:
    """Return what a step of a worker achieved; refuse None, which a function without `return` gives."""
    done: int | None = worker.step()
    if done is None:
        raise ConfigError(f"step of {worker.name} returned None; return the amount of work done, 0 for none.")
    return done


def report_of(worker: Worker) -> tuple[dict[str, float], dict[str, Any]]:
    """Return a worker's (metrics since the last report, facts); refuse anything else."""
    found = worker.report()
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(part, dict) for part in found):
        raise ConfigError(
            f"report of {worker.name} returned {found!r}; return two dicts, metrics and facts, as in `return "
            "self.meter.flush(), {}`."
        )
    metrics, facts = found
    for name, value in metrics.items():
        as_number(f"{name} of {worker.name}", value)
    return metrics, facts


T = TypeVar("T")


class Refusals:
    """The connections that a worker's streams rejected: another schema, or a violation of the protocol.

    They never end the worker, else any outsider could end a run. A rejected worker of this run gets the reason in its
    reply and ends.

    Args:
      worker: the worker's name. reporter: receives a warning about the first rejection; None: no warning.

    Attributes:
      count: rejections so far.
    """

    def __init__(self, worker: str, reporter: Reporter | None = None) -> None:
        self._worker, self._reporter = worker, reporter
        self.count = 0

    def note(self, error: Exception) -> None:
        self.count += 1
        if self.count == 1 and self._reporter is not None:
            self._reporter.event(
                "warning",
                f"{self._worker} rejected a connection and continues: {error} (further ones are only counted)",
            )

    def take(self, take: Callable[[float], T], timeout_s: float) -> T:
        """Return what `take(timeout_s)` returns; a rejection it raises is counted, and it is called again until the timeout.

        Raises:
          StreamTimeout: nothing came in time. StreamClosed: this end is closed.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return take(max(0.0, deadline_s - time.monotonic()))
            except (StreamTimeout, StreamClosed):
                raise
            except (SpecMismatch, StreamError) as error:
                self.note(error)
                if time.monotonic() >= deadline_s:
                    raise StreamTimeout(f"nothing but {error}") from error


def where(env: Any) -> str:
    """Return which slot of a vector is stepping and its position in the episode; empty if it reports none."""
    return env.where() if hasattr(env, "spec") and callable(getattr(env, "where", None)) else ""


def end_hint(job: Job, status: int | None) -> str:
    """Return what may have ended a worker with environments that sent no error, as the end of a sentence, and what to do."""
    name = shown_target(job.experiment.env.id)
    if not ended_by_own_code(status):
        return f" (environment {name!r})"
    return (
        f". The environment {name!r} may have ended the process, by os._exit or in C code, as errors of Python code leave a "
        "traceback. Try it with check_env (jsrl.envs.check); --restart 3 replaces a worker that ends"
    )


@contextlib.contextmanager
def watched(reporter: Reporter, call: object, environment: str, steps: int = 1) -> Iterator[None]:
    """Have the control thread watch that an environment returns in time; name the environment in its exceptions."""
    reporter.entering(call, steps)
    try:
        yield
    except JsrlError:
        raise
    except (Exception, SystemExit) as error:
        raise foreign(environment, error) from error
    finally:
        reporter.left()


class EnvCall:
    """Text for messages about an environment call that has not returned; names the stepping slot when read."""

    def __init__(self, text: str, env: VectorEnv | VectorGame) -> None:
        self._text, self._env = text, env

    def __str__(self) -> str:
        place = where(self._env)
        text = f"{self._text} ({place})" if place else self._text
        return f"{text}," if "," in self._text else text  # the second comma of `environment 'a:B', group 0,`


def snapshot_store(job: Job, reporter: Reporter, name: str = "state", *, keep_last: int = 3) -> SnapshotStore:
    """Return a store of the policy's snapshots, which reports what was written.

    Args:
      name: `state` (what a resume begins with), or `params` (`best`). keep_last: newest snapshots that it keeps.
    """

    def report(written: Any) -> None:
        reporter.event("saved", store=name, version=written.version, tags=list(written.tags))

    warn = functools.partial(reporter.event, "warning", once="snapshots")
    store: SnapshotStore = import_target(STORE)(
        job.snapshots / name, keep_last=keep_last, on_warning=warn, on_written=report
    )
    return store
