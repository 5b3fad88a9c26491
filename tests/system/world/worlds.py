"""Environments that misbehave on purpose, each in one way. Imports no jax."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import subprocess
import sys
import time

import gymnasium
import numpy as np


class World(gymnasium.Env):
    """One-step episodes: action 1 earns 1, action 0 earns -1. Subclasses go wrong `count` env steps later."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, count: int = 20, step_s: float = 0.0005) -> None:
        self.count, self.step_s, self.steps = count, step_s, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.step_s:
            time.sleep(self.step_s)
        if self.steps == self.count:
            return self.misbehave(action)
        return np.zeros(1, np.float32), 2.0 * action - 1.0, True, False, {}

    def misbehave(self, action):
        return np.zeros(1, np.float32), 2.0 * action - 1.0, True, False, {}


class RaisesInStep(World):
    def misbehave(self, action):
        raise ZeroDivisionError("step gave up on purpose")


class RaisesInReset(World):
    def reset(self, *, seed=None, options=None):
        if self.steps >= self.count:
            raise ZeroDivisionError("reset gave up on purpose")
        return super().reset(seed=seed)


class RaisesInConstruction(World):
    def __init__(self) -> None:
        raise ZeroDivisionError("construction gave up on purpose")


class ReturnsNan(World):
    def misbehave(self, action):
        return np.full(1, np.nan, np.float32), 0.0, True, False, {}


class ReturnsWrongShape(World):
    def misbehave(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


class ReturnsWrongDtype(World):
    def misbehave(self, action):
        return np.array(["zero"]), 0.0, True, False, {}


class HangsInStep(World):
    def misbehave(self, action):
        time.sleep(3600.0)


class HangsInConstruction(World):
    def __init__(self) -> None:
        time.sleep(3600.0)


class HangsInActor(World):
    """Can be built by the launching process, but not by a worker."""

    def __init__(self) -> None:
        super().__init__()
        if in_worker():
            time.sleep(3600.0)


class CallsSysExit(World):
    def misbehave(self, action):
        sys.exit(3)


class CallsOsExit(World):
    def misbehave(self, action):
        os._exit(3)


class Segfaults(World):
    def misbehave(self, action):
        ctypes.string_at(0)


class HangsInReset(World):
    def reset(self, *, seed=None, options=None):
        if self.steps >= self.count:
            time.sleep(3600.0)
        return super().reset(seed=seed)


class HoldsTheGil(World):
    """Hangs in a C function that holds the GIL."""

    def misbehave(self, action):
        ctypes.PyDLL(None).sleep(3600)


class HoldsTheGilInActor(World):
    """Takes three seconds to build in a worker, in a C function that holds the GIL."""

    def __init__(self) -> None:
        super().__init__(1 << 30)
        if in_worker():
            ctypes.PyDLL(None).sleep(3)


class Allocates(World):
    """Allocates 2 GB in a process that may have 1 GB more than it has now."""

    def misbehave(self, action):
        pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), limits[1]))
        try:
            return np.ones(1 << 28, np.float64)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)


class AllocatesAndGoesOn(World):
    """Allocates and keeps 2 GB, which a process may do."""

    def misbehave(self, action):
        self.kept = np.zeros(1 << 28, np.float64)
        return super().misbehave(action)


class Prints(World):
    def misbehave(self, action):
        for _ in range(10):
            print("x" * 99 + "\n", end="", flush=True)  # noqa: T201
            sys.stdout.write(("y" * 999 + "\n") * 1000)
        return super().misbehave(action)


class HasChild(World):
    """Starts a process, which must not outlive the run."""

    def __init__(self) -> None:
        super().__init__(count=-1)
        self.child = subprocess.Popen(["sleep", "3600"]) if in_worker() else None


class ImportsJax(World):
    def __init__(self) -> None:
        super().__init__(count=-1)
        import jax  # noqa: F401


class SlowInSecondActor(World):
    """Makes the first actor mostly wait for params, right after a commit, while the second is mostly inside a trajectory."""

    def __init__(self) -> None:
        super().__init__(count=-1, step_s=0.01 if "actor-1" in sys.orig_argv else 0.0)


class Counts(gymnasium.Env):
    """Shows the steps since its reset; episodes have 5 to 40 of them."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.length = 0, int(self.np_random.integers(5, 41))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(0.0005)
        self.count += 1
        return np.full(1, self.count, np.float32), 0.0, self.count >= self.length, False, {}


class Once(World):
    """Fails in the first incarnation of an actor, `count` steps in."""

    def misbehave(self, action):
        if "--incarnation" not in sys.orig_argv or sys.orig_argv[sys.orig_argv.index("--incarnation") + 1] == "0":
            self.fail()
        return super().misbehave(action)


class HangsOnce(Once):
    def fail(self):
        time.sleep(3600.0)


class RaisesOnce(Once):
    def fail(self):
        raise ZeroDivisionError("step gave up on purpose")


class ExitsOnce(Once):
    def fail(self):
        os._exit(3)


class SegfaultsOnce(Once):
    def fail(self):
        ctypes.string_at(0)


class TellsOfJax(World):
    """Fails with the list of modules that the actor's process should not have loaded, and the number of its frozen objects."""

    def misbehave(self, action):
        loaded = [name for name in ("jax", "jaxlib", "flax", "optax", "orbax") if name in sys.modules]
        raise RuntimeError(f"loaded: {loaded}, frozen: {gc.get_freeze_count()}")


class RaisesAsVector:
    """A user's vector environment with jsrl's protocol, without an adapter."""

    def __init__(self, num_envs: int, seed: int, group: int) -> None:
        from jsrl.envs.config import EnvConfig
        from jsrl.games.probes import make_probe

        self._probe = make_probe(EnvConfig("probe:action_matters"), num_envs, seed, group)
        self.spec, self.num_envs, self.close = self._probe.spec, num_envs, self._probe.close
        self.reset = self._probe.reset

    def step(self, action):
        raise ZeroDivisionError("step gave up on purpose")


def in_worker() -> bool:
    return "jsrl.workers" in " ".join(sys.orig_argv)


class Wide(World):
    """Observes 64 KiB at each step, so that a process that keeps untaken rows grows fast."""

    observation_space = gymnasium.spaces.Box(0, 255, (65536,), np.uint8)

    def __init__(self) -> None:
        super().__init__(count=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(65536, np.uint8), {}

    def step(self, action):
        _, *rest = super().step(action)
        return np.full(65536, self.steps % 256, np.uint8), *rest
