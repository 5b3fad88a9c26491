"""Engines, which start agents on hosts, and the thread that restarts their agents."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

LOOK_S = 0.3
BACKOFF_S = 1.0  # before the second start in a row, and twice as long before each further one
STARTS, WINDOW_S = 4, 600.0  # starts in a row without success, after which there is one in each window
LIVED_S = 20.0  # as a member of the run, after which a start counts as successful


class Engine(Protocol):
    """Starts an agent on each of its hosts.

    Attributes:
      hosts: names of the agents' hosts.
    """

    hosts: tuple[str, ...]

    def begin(self, host: str, key: Path) -> None:
        """Start the agent of a host, which joins with the run's key file; returns at once.

        Raises:
          OSError: nothing could be started.
        """
        ...

    def ended(self, host: str) -> str:
        """Return how the agent of a host ended, as text; empty: it has not, as far as the engine knows."""
        ...

    def close(self) -> None:
        """End everything that still runs; agents have a few seconds to end by themselves."""
        ...


class AgentStarter:
    """A thread that starts the agents of an engine, and starts them again when they end.

    Args:
      engine: to keep running. key: the run's key file.
      lose: called with a host whose agent ended, and why; returns for how many seconds it was a member of the run.
      notify: shows a line to the user.

    Attributes:
      given_up: host -> why its agent is not started now: for the rest of the window, or not any more after `release`.
    """

    def __init__(
        self,
        engine: Engine,
        key: Path,
        lose: Callable[[str, str], float],
        notify: Callable[[str], None],
    ) -> None:
        self._engine, self._key, self._lose, self._notify = engine, key, lose, notify
        self.given_up: dict[str, str] = {}
        self._starts = dict.fromkeys(engine.hosts, 0)  # in a row, without success
        self._due_s = dict.fromkeys(engine.hosts, 0.0)  # of the next start; not of hosts with a running agent
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            for host in self._engine.hosts:
                if host in self._due_s:
                    self._begin(host)
                elif host not in self.given_up and (why := self._engine.ended(host)):
                    self._end(host, why)
            self._closing.wait(LOOK_S)

    def _begin(self, host: str) -> None:
        if time.monotonic() < self._due_s.get(host, math.inf):
            return
        del self._due_s[host]
        self.given_up.pop(host, None)
        try:
            self._engine.begin(host, self._key)
        except OSError as error:
            self._end(host, str(error))

    def _end(self, host: str, why: str) -> None:
        """Record that the agent of a host ended; start it again after a pause: a host may just be booting."""
        self._starts[host] = starts = 1 + (0 if self._lose(host, why) >= LIVED_S else self._starts[host])
        if starts >= STARTS:
            self.given_up[host] = why
            pause_s, then = WINDOW_S, f"it is tried again in {WINDOW_S / 60:.2g} minutes"
            self._notify(f"host {host} is given up after {starts} starts of its agent in a row: {why}; {then}")
        else:
            pause_s = BACKOFF_S * 2.0 ** (starts - 1)
            self._notify(f"the agent of host {host} ended ({why}); it is started again in {pause_s:.2g} s")
        self._due_s[host] = time.monotonic() + pause_s

    def release(self, host: str, why: str) -> None:
        """Start no more agents on a host whose agent had to end."""
        if host in self._starts:
            self._due_s.pop(host, None)
            self.given_up[host] = why

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10.0)
        with contextlib.suppress(OSError):
            self._engine.close()
