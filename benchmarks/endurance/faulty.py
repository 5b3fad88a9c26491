"""CartPole that counts its steps and misbehaves every few seconds in one of the processes that play it.

JSRL_FAULTS names a folder. Each process writes the steps of its environments there, into a file named by its process ID.
Once a file `begin` exists there, the first process that steps (and after its death the next new one) misbehaves.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from jsrl.services.runs.files import write_atomic

EVERY_S, LOOK_S = 5.0, 0.2


def fail() -> None:
    """Raise."""
    raise RuntimeError("misbehaves on purpose")


def print_much() -> None:
    """Print 10 MB."""
    for _ in range(100):
        print("x" * 100_000, flush=True)


def allocate() -> None:
    """Allocate 2 GB and write all of it."""
    np.ones(2**31, np.uint8)


MISDEEDS: dict[str, Callable[[], object]] = {
    "raise": fail,
    "nan": lambda: None,  # see step for the observation
    "sleep": lambda: time.sleep(60.0),
    "exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "print": print_much,
    "allocate": allocate,
}


class Counted:
    """The steps of this process, and whether it is the one that misbehaves."""

    def __init__(self) -> None:
        self.folder, self.pid = Path(os.environ["JSRL_FAULTS"]), os.getpid()
        self.steps, self.chosen, self.born = 0, False, time.time()
        self.looked_s = self.misbehaved_s = time.monotonic()

    def due(self) -> bool:
        """Count a step; return whether to misbehave in it."""
        self.steps += 1
        now_s = time.monotonic()
        if now_s - self.looked_s < LOOK_S:
            return False
        self.looked_s = now_s
        counted = f"{now_s} {self.steps} {int(self.chosen)}"
        write_atomic(self.folder / str(self.pid), counted.encode(), durable=False)
        self.chosen = self.chosen or self._choose()
        if not self.chosen or now_s - self.misbehaved_s < EVERY_S:
            return False
        self.misbehaved_s = now_s
        return True

    def _choose(self) -> bool:
        """Return whether this process misbehaves from now on."""
        begin, chosen = self.folder / "begin", self.folder / "chosen"
        if not begin.exists():
            return False
        if chosen.exists():
            new, other = self.born > begin.stat().st_mtime, chosen.read_text()
            if not new or Path("/proc", other).exists():
                return False
        chosen.write_text(str(self.pid))
        return True


class Faulty(CartPoleEnv):
    """See above. misdeed: one of MISDEEDS, or `none`."""

    counted: Counted | None = None

    def __init__(self, misdeed: str = "none") -> None:
        super().__init__()
        self._misdeed = misdeed

    def step(self, action: Any) -> Any:
        """Take a step, or misbehave first."""
        if Faulty.counted is None or Faulty.counted.pid != os.getpid():
            Faulty.counted = Counted()
        bad = Faulty.counted.due() and self._misdeed in MISDEEDS
        if bad:
            MISDEEDS[self._misdeed]()
        observation, *rest = super().step(action)
        return (observation * np.nan if bad and self._misdeed == "nan" else observation, *rest)
