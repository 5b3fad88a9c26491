"""Shared by all drivers: the arguments, a meter called after each update, and the final line of JSON.

A driver runs in the virtual environment of its library, where jsrl is not installed: standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import process_tree

KEY = "peer"


class Meter:
    """Records the end of each update: the start, the warm-up, the window.

    Attributes:
      env_steps, seconds, cpu_s: of the window so far, from the end of one update to the end of another.
    """

    def __init__(self, *, seconds: float, warm_up_s: float) -> None:
        process_tree.adopt_orphans()
        self._seconds, self._warm_up_s = seconds, warm_up_s
        self._began_s = process_tree.start_time_s(os.getpid())
        self.first_update_s: float | None = None
        self._first_s = 0.0
        self._window: tuple[float, int, float] | None = None
        self.env_steps, self.seconds, self.cpu_s, self.updates = 0, 0.0, 0.0, 0

    def update(self, env_steps: int) -> bool:
        """Record the end of an update after the given total of env steps; return whether the window is full."""
        now = time.monotonic()
        if self.first_update_s is None:
            self.first_update_s, self._first_s = time.time() - self._began_s, now
        if self._window is None:
            if now - self._first_s >= self._warm_up_s:
                self._window = (now, env_steps, process_tree.cpu_seconds(os.getpid()))
            return False
        begin_s, begin_steps, begin_cpu_s = self._window
        self.updates += 1
        if now - begin_s < self._seconds or env_steps == begin_steps:
            return False
        self.seconds, self.env_steps = now - begin_s, env_steps - begin_steps
        self.cpu_s = process_tree.cpu_seconds(os.getpid()) - begin_cpu_s
        return True

    def report(
        self, peer: str, work: dict[str, Any], setting: dict[str, Any], versions: dict[str, str], **more: Any
    ) -> None:
        """Print the line of JSON, with the current memory of the process tree."""
        used = process_tree.usage(os.getpid())
        line = {
            KEY: peer,
            "env_steps": self.env_steps,
            "seconds": self.seconds,
            "cpu_s": self.cpu_s,
            "updates": self.updates,
            "pss_mb": used.pss_mb,
            "processes": used.processes,
            "first_update_s": self.first_update_s,
            "setting": setting,
            "work": work,
            "versions": versions,
            **more,
        }
        sys.stdout.flush()
        print("\n" + json.dumps(line), flush=True)


def leave() -> None:
    """End this process and all its descendants at once: a library's own shutdown may hang or leave daemons."""
    sys.stdout.flush()
    process_tree.end_all(process_tree.descendants())
    os._exit(0)


def read_request() -> dict[str, Any]:
    """Return the driver's arguments: a work's fields, seconds, warm_up_s and the setting, as JSON in argv[1]."""
    return json.loads(sys.argv[1])


def command(settings: list[dict[str, Any]], main: Callable[[], None]) -> None:
    """Run a driver's command: with `--settings` list the settings to try, otherwise run the work."""
    if sys.argv[1] == "--settings":
        print(json.dumps(settings))
    else:
        main()


def versions_of(*packages: str) -> dict[str, str]:
    """Return the versions of packages."""
    from importlib.metadata import version

    return {package: version(package) for package in packages}


def count_steps(*optimizers: Any) -> Callable[[], int]:
    """Return a function that returns the total number of gradient steps of torch optimizers from now on."""
    taken = 0

    def count(*_: Any) -> None:
        nonlocal taken
        taken += 1

    for optimizer in optimizers:
        optimizer.register_step_post_hook(count)
    return lambda: taken


def done_work(request: dict[str, Any], **seen: Any) -> dict[str, Any]:
    """Return the field `work` of the report: the requested one, overridden by the real model and optimizer."""
    names = ("env", "num_envs", "rollout", "minibatch", "epochs", "learning_rate")
    return {**{name: request[name] for name in names}, **seen}
