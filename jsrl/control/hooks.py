"""Hooks: user code that the launching process calls during a run, in a separate thread. Also the files of its output."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jsrl.control.progress import RunState
from jsrl.control.result import STOPPED, Result
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.references.importing import import_target, nearest
from jsrl.services.metrics.sink_thread import CallThread
from jsrl.services.runs.runs import RunFolder

LOG, OUTPUT = "controller.log", "output.log"  # the controller's log; what a run in the background prints
STOP = "stop"  # return value of on_metrics, on_evaluation and on_snapshot that ends the run
METHODS = {
    "on_start": ("run",),
    "on_metrics": ("run", "row"),
    "on_evaluation": ("run", "score"),
    "on_snapshot": ("run", "snapshot"),
    "on_end": ("run", "result"),
}
MAY_STOP = ("on_metrics", "on_evaluation", "on_snapshot")
SLOW_S = 10.0  # a longer call is reported


class SavedSnapshot(NamedTuple):
    """A written snapshot.

    Attributes:
      path: its folder. tags: such as `latest` or `best`. updates: of its params. policy: its name.
      whole: it is the agent's whole state, from which a run resumes; else only params.
    """

    path: Path
    tags: tuple[str, ...]
    updates: int
    policy: str
    whole: bool


class LiveRun:
    """A run, as its hooks see it; everything may be read at any time.

    Attributes:
      name: EXPERIMENT/RUN.
      folder: the run's folder, a Path.
      experiment: of the run.
    """

    def __init__(self, run: RunState, folder: RunFolder, experiment: Experiment) -> None:
        self._run, self.name, self.folder, self.experiment = run, folder.name, folder.path, experiment

    @property
    def env_steps(self) -> int:
        """Return the env steps that the first policy has been trained on."""
        return self._run.env_steps

    @property
    def updates(self) -> int:
        """Return the updates of the first policy so far."""
        return self._run.updates

    @property
    def elapsed_s(self) -> float:
        """Return the wall-clock seconds since this start of the run."""
        return self._run.elapsed_s(time.monotonic())


@dataclass
class _Hook:
    """A hook, the time of its calls, and whether it was switched off."""

    value: Any
    name: str
    calls: int = 0
    busy_s: float = 0.0
    off: bool = False
    is_reported_slow: bool = False


class Hooks:
    """Calls the hooks of a run, one after another, in one thread.

    Attributes:
      stop_reason: why a hook ends the run; empty: none does.
    """

    def __init__(self, hooks: Sequence[Any] = (), log: Callable[[str], None] = lambda text: None) -> None:
        """Take checked hooks (load_hooks); `log` receives tracebacks."""
        self._hooks = [_Hook(hook, hook_name(hook)) for hook in hooks]
        self._log = log
        self._thread = CallThread("jsrl-hooks")
        self._messages: deque[tuple[str, str]] = deque()
        self._present: tuple[_Hook, str, float] | None = None
        self._reported_dropped = False
        self._run: LiveRun | None = None
        self.stop_reason = ""

    def start(self, run: LiveRun) -> None:
        """Call on_start; later methods get this run."""
        self._run = run
        self._call_all("on_start")

    def write(self, row: dict[str, Any]) -> None:
        self._call_all("on_metrics", dict(row), may_drop=True)

    def evaluated(self, score: dict[str, Any]) -> None:
        self._call_all("on_evaluation", score)

    def saved(self, snapshot: SavedSnapshot) -> None:
        self._call_all("on_snapshot", snapshot)

    def end(self, result: Result | None, limit_s: float) -> None:
        """Call on_end and wait for all calls, but no longer than `limit_s`."""
        if not self._hooks:
            return
        if result is not None:
            self._call_all("on_end", result)
        left = self._thread.finish(time.monotonic() + limit_s)
        if left:
            hook, method, _ = self._present or (_Hook(None, "?"), "?", 0.0)
            text = f"hooks: {hook.name}.{method} did not return within {limit_s:g} s of the end (deadlines.hooks_s)"
            self._messages.append((f"{text}; {left} calls were not finished", "warning"))
        given = [hook for hook in self._hooks if not isinstance(hook.value, OutputToFolder)]
        if not given:
            return
        times = ", ".join(f"{hook.name} {hook.busy_s:.2f} s in {hook.calls} calls" for hook in given)
        lost = f"; {self._thread.dropped} rows of metrics were dropped" if self._thread.dropped else ""
        self._log(f"hooks: {times}{lost}")

    def messages(self) -> list[tuple[str, str]]:
        """Return new messages for the user, as (text, level)."""
        present = self._present
        if present is not None and time.monotonic() - present[2] > SLOW_S and not present[0].is_reported_slow:
            present[0].is_reported_slow = True
            text = f"hook {present[0].name}: {present[1]} has not returned for {SLOW_S:g} s"
            self._messages.append((f"{text}; the run continues, and further calls wait behind it", "warning"))
        if self._thread.dropped and not self._reported_dropped:
            self._reported_dropped = True
            self._messages.append(("hooks are slower than the run: rows of metrics are dropped for them", "warning"))
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def _call_all(self, method: str, *values: Any, may_drop: bool = False) -> None:
        for hook in self._hooks:
            if not hook.off and hasattr(hook.value, method):
                self._thread.put(functools.partial(self._call, hook, method, values), may_drop=may_drop)

    def _call(self, hook: _Hook, method: str, values: tuple[Any, ...]) -> None:
        """Call one method of a hook; a hook that raises is switched off."""
        if hook.off:
            return
        begun_s = time.monotonic()
        self._present = hook, method, begun_s
        try:
            answer = getattr(hook.value, method)(self._run, *values)
        except (Exception, SystemExit) as error:
            hook.off = True
            self._log(f"hook {hook.name}: {method} raised\n{traceback.format_exc().rstrip()}")
            text = f"hook {hook.name}: {method} raised {type(error).__name__}: {error}"
            self._messages.append((f"{text}; it is switched off, and the run continues without it", "warning"))
        else:
            if method in MAY_STOP and isinstance(answer, str) and answer == STOP and not self.stop_reason:
                self.stop_reason = f"{STOPPED} hook {hook.name}"
        hook.calls, hook.busy_s = hook.calls + 1, hook.busy_s + time.monotonic() - begun_s
        self._present = None


def hook_name(hook: Any) -> str:
    name = getattr(hook, "name", None)
    return name if isinstance(name, str) and name else type(hook).__name__


def load_hooks(hooks: Sequence[Any]) -> list[Any]:
    """Return hooks, those given as `module:name` imported and made."""
    found = load_values("hook", hooks, METHODS)
    for hook in found:
        check_hook(hook)
    return found


def check_hook(hook: Any) -> None:
    what, known = f"hook {hook_name(hook)}", ", ".join(f"{name}({', '.join(a)})" for name, a in METHODS.items())
    strange = [n for n in dir(hook) if n.startswith("on_") and n not in METHODS and nearest(n, METHODS)]
    if strange:
        raise ConfigError(f"{what} has a method {strange[0]}, which nothing calls; the methods of a hook are {known}.")
    for name, arguments in METHODS.items():
        method = getattr(hook, name, None)
        try:
            if method is not None:
                inspect.signature(method).bind(*arguments)
        except TypeError:
            raise ConfigError(f"{what}: {name} cannot be called as {name}({', '.join(arguments)}).") from None
        except ValueError:  # a method in another language has no signature
            continue


def load_values(what: str, given: Sequence[Any], methods: Iterable[str]) -> list[Any]:
    """Return the values of a list, those given as `module:name` imported and made.

    Args:
      what: `hook` or `sink`. given: objects; or `module:name` of a function or class without arguments that makes one or
        several. methods: each value has at least one of them.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"{what}s is a value of type {type(given).__name__}, expected a list of {what}s.")
    methods, found = tuple(methods), list[Any]()
    for value in given:
        found += made_by(what, value, methods) if isinstance(value, str) else [value]
    for value in found:
        if inspect.isclass(value):
            name = value.__name__
            raise ConfigError(f"{what} {name} is a class, expected an instance of it; write {name}().")
        if not has_any(value, methods):
            known = ", ".join(methods)
            raise ConfigError(
                f"a value of type {type(value).__name__} is no {what}: it has none of the methods {known}."
            )
    return found


def made_by(what: str, reference: str, methods: Sequence[str]) -> list[Any]:
    """Return the values that `module:name` makes, or its value."""
    found = import_target(reference)
    if callable(found) and (inspect.isclass(found) or not has_any(found, methods)):
        try:
            found = found()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{what}s {reference}: calling it raised {type(error).__name__}: {error}. Expected a function or class "
                f"without arguments that makes a {what}, or a list of {what}s."
            ) from error
    return list(found) if isinstance(found, list | tuple) else [found]


def has_any(value: Any, methods: Iterable[str]) -> bool:
    return any(callable(getattr(value, name, None)) for name in methods)


# -- files of output ---------------------------------------------------------------------------------------------------


class RunLog:
    """The controller's log: every line for the display, shown or not, with the time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, line: str) -> None:
        """Append a line; the run continues without its log if the disk fails."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        except OSError:
            return


class OutputToFolder:
    """A hook that redirects this process's output to the folder of its run once it begins."""

    name = "output"

    def on_start(self, run: LiveRun) -> None:
        """Redirect standard output and standard error."""
        redirect(run.folder / "logs" / OUTPUT)


def redirect(path: Path) -> None:
    """Redirect the output of this process and its children to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
