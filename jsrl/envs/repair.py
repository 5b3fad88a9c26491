"""`env.on_fault` restart-env: faulty environments are closed and rebuilt, with fresh seeds, up to a limit.

The row of the fault becomes a last observation (jsrl.types): its action was ignored, its mask is 0, and the row
before it is a truncation, which bootstraps from the last observation. Nothing is learned from the failed transition, and
the episode is not reported. An environment that hangs, or ends the process, can only be replaced with its actor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from jsrl.envs.base import EnvStep, TakesTasks, VectorEnv
from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import close_quietly, foreign, log
from jsrl.envs.rows import slot_seeds, vector_seed
from jsrl.errors import EnvironmentFault, JsrlError, counted
from jsrl.rate_limit import RateLimit
from jsrl.types import Array

Step = TypeVar("Step")
WINDOW_S = 600.0  # after which a rebuilt environment no longer counts


class Repairs:
    """The repairs of one vector of environments: counted within a window, and reported.

    Args:
      config: with `fault_limit`. warn: called with a line at each repair. clock: returns seconds.
    """

    def __init__(
        self, config: EnvConfig, warn: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._repairs_limit = RateLimit(config.fault_limit, WINDOW_S)
        self._warn, self._clock = warn, clock

    def take(self, fault: EnvironmentFault, cure: str) -> None:
        """Use one repair for `fault`; `cure` describes it."""
        limit, window_s, now_s = self._repairs_limit.limit, self._repairs_limit.window_s, self._clock()
        if not self._repairs_limit.spend(now_s):
            used_up = EnvironmentFault(
                f"{fault}. It failed again after {counted(limit, 'repair')} within {window_s:g} s. See what it raised, or "
                "allow more with env.fault_limit"
            )
            used_up.repairable = False
            raise used_up from fault
        count = f"repair {self._repairs_limit.used(now_s)} of {limit} within {window_s:g} s"
        log.warning("%s: %s", count, cure, exc_info=fault)
        if self._warn is not None:
            self._warn(f"{fault}. {cure} ({count}; its traceback is in the log)")


class SingleEnvs:
    """The common part of vectors of single environments, which can replace one of their slots.

    Attributes:
      repairs: the budget of repairs. None: a fault is raised.
    """

    repairs: Repairs | None = None
    _rows: Any

    def __init__(self, factory: Callable[[], Any], num_envs: int, seed: int | tuple[int, ...], group: int) -> None:
        self.num_envs, self._factory = num_envs, factory
        self._seeds = slot_seeds(seed, group, num_envs)
        self._tasks: dict[int, dict[str, Any]] = {}  # slot -> options of its next reset
        self._last_tasks: dict[int, dict[str, Any]] = {}  # slot -> options of its last reset, if it had any
        self._started = False
        self._at = 0  # the slot that is stepping
        self._envs: list[Any] = []
        try:
            self._envs.extend(factory() for _ in range(num_envs))
        except BaseException:
            self.close()
            raise

    def where(self) -> str:
        """Return which slot is stepping or resetting, and its position in the episode; other threads may call it."""
        return self._rows.where(self._at)

    def close(self) -> None:
        envs, self._envs = self._envs, []
        for env in envs:
            close_quietly(env)

    def _open_slots(self, begin: int) -> None:
        for slot in range(begin, self.num_envs):
            self._open(slot)

    def _seed_of(self, slot: int, replaced: int | None) -> int | None:
        """Return the seed of a slot's next reset; None: it goes on. replaced: that of an environment that replaces another."""
        return replaced if self._started else self._seeds[slot]

    def _options(self, slot: int, replaced: bool) -> dict[str, Any] | None:
        """Return the options of a slot's reset; a replaced environment begins the task of the episode that failed again."""
        if slot in self._tasks:
            self._last_tasks[slot] = self._tasks.pop(slot)
        elif not replaced:
            self._last_tasks.pop(slot, None)
        return self._last_tasks.get(slot)

    def _open(self, slot: int, seed: int | None = None) -> None:
        """Reset one environment (a replaced one with its new seed) and write its first observation."""
        raise NotImplementedError

    def _visited(self, visit: Callable[[int], None], finish: Callable[[], Step]) -> Step:
        """Return `finish()` after `visit` of that slot and all later ones; faulty environments are replaced on the way."""
        begin = 0
        while True:
            try:
                visit(begin)
                begin = self.num_envs
                return finish()
            except EnvironmentFault as fault:
                if self.repairs is None or fault.slot is None:
                    raise
                self._replace(fault, fault.slot, self.repairs)
                begin = max(begin, fault.slot + 1)

    def _replace(self, fault: EnvironmentFault, slot: int, repairs: Repairs) -> None:
        """Replace a faulty environment by a fresh one; the current step begins its first episode."""
        opened = False
        while not opened:
            seed = vector_seed(self._seeds[slot], 0)
            repairs.take(fault, f"Slot {slot} is rebuilt, with seed {seed}")
            close_quietly(self._envs[slot])
            self._rows.cut(slot)
            self._seeds[slot] = seed
            try:
                self._envs[slot] = self._factory()
                self._open(slot, seed)
                opened = True
            except EnvironmentFault as error:
                fault = error


class RebuiltVector:
    """A vector that is rebuilt as a whole after a fault that it does not repair itself, so that all slots begin episodes.

    Args:
      vector: the first one. build: seed -> another one. seed: of the first. repairs: the budget. name: for messages.
    """

    def __init__(
        self,
        vector: VectorEnv,
        build: Callable[[int], VectorEnv],
        seed: int | tuple[int, ...],
        repairs: Repairs,
        name: str,
    ) -> None:
        self.spec, self.num_envs = vector.spec, vector.num_envs
        self.groups = getattr(vector, "groups", {})  # of seats
        self._vector, self._build, self._seed, self._repairs = vector, build, seed, repairs
        self._name, self._lives = name, 0
        self._tasks: dict[int, Any] = {}  # slot -> the last one that it was given

    def reset(self) -> EnvStep:
        return self._guarded(self._vector.reset)

    def step(self, action: Array) -> EnvStep:
        return self._guarded(lambda: self._vector.step(action))

    def __getattr__(self, name: str) -> Any:
        """Return the vector's attribute; its `set_tasks` and `where` are available if it has them."""
        if name == "set_tasks" and hasattr(self._vector, name):
            return self._set_tasks
        if name == "where":
            return self._vector.where  # type: ignore[attr-defined]
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def _set_tasks(self, tasks: Mapping[int, Any]) -> None:
        self._tasks |= tasks
        cast(TakesTasks, self._vector).set_tasks(tasks)

    def _guarded(self, call: Callable[[], EnvStep]) -> EnvStep:
        while True:
            try:
                return call()
            except EnvironmentFault as error:
                if not error.repairable:
                    raise
                fault = error
            except JsrlError:
                raise
            except (Exception, SystemExit) as error:
                fault = foreign(f"environment {self._name!r}", error)
                fault.__cause__ = error
            call = self._rebuild(fault)

    def _rebuild(self, fault: EnvironmentFault) -> Callable[[], EnvStep]:
        """Return a function that begins the episodes of the vector that replaces the faulty one."""
        self._lives += 1
        seed = vector_seed(self._seed, self._lives)
        self._repairs.take(fault, f"All {self.num_envs} slots of its vector are rebuilt, with seed {seed}")
        close_quietly(self._vector)

        def begin() -> EnvStep:
            self._vector = self._build(seed)
            if self._tasks:
                cast(TakesTasks, self._vector).set_tasks(self._tasks)
            return self._vector.reset()

        return begin

    def close(self) -> None:
        self._vector.close()
