"""Inline inference: an actor acts in its own process, with its own params."""

from __future__ import annotations

from jsrl.errors import SnapshotError, StreamTimeout
from jsrl.metrics.phases import Phases
from jsrl.transport.base import ParamsSubscriber, Reply, Request
from jsrl.transport.inference.ends import unknown_policy, unserved
from jsrl.types import version_updates
from jsrl.workers.acting import Engine


class InlineInference:
    """An InferenceClient that acts in the caller's process, with params from a subscriber (IMPALA-style placement).

    Args:
      phases: of the caller's thread; records when it acts and when it waits for params.
    """

    def __init__(
        self, engine: Engine, params: ParamsSubscriber, group_sizes: dict[int, int], phases: Phases | None = None
    ) -> None:
        self._engine, self._params = engine, params
        self._phases = phases or Phases()
        self._served = {group: engine.serve(group, size) for group, size in group_sizes.items()}
        self._pending: list[tuple[int, Request]] = []

    def send(self, group: int, request: Request) -> None:
        """Queue a request. Its arrays are read at `receive`, before that group is stepped again.

        Raises:
          UnknownPolicy: the engine has other policies.
        """
        if not self._engine.serves(request.policy):
            raise unknown_policy("this process", unserved(group, request.policy, self._engine.served))
        self._pending.append((group, request))

    def receive(self, timeout_s: float) -> tuple[int, Reply]:
        """Act for the first group whose params have arrived.

        Raises:
          StreamTimeout: no request is pending, or the params it needs did not arrive in time.
        """
        self._phases.enter("transport")
        if not self._pending:
            raise StreamTimeout("no request is pending; send one before receiving.")
        self._refresh()
        ready = self._first_ready()
        if ready is None and timeout_s > 0:
            self._phases.enter("wait_params")
            self._params.wait(0, min(request.min_updates for _, request in self._pending), timeout_s)
            self._refresh()
            ready = self._first_ready()
        if ready is None:
            raise StreamTimeout(
                f"params with {self._pending[0][1].min_updates} updates did not arrive in {timeout_s} s."
            )
        group, request = self._pending.pop(ready)
        self._engine.pin_frozen(group, request)
        versions = self._engine.frozen_versions(request)
        if versions:
            self._take(group, request, versions)
        self._phases.enter("act")
        return group, self._engine.act(self._served[group], request)

    def _take(self, group: int, request: Request, versions: list[int]) -> None:
        """Load the frozen players that a request needs. Raises UnknownPolicy."""
        try:
            self._engine.take_frozen(group, versions)
        except SnapshotError as error:
            refusal = unserved(group, request.policy, self._engine.served, str(error))
            raise unknown_policy("this process", refusal) from error

    def forget(self) -> None:
        """Drop the pending requests: every group will send its request again."""
        self._pending.clear()

    def _refresh(self) -> None:
        newer = self._params.poll(0)
        if newer is not None:
            self._engine.set_params(*newer)

    def _first_ready(self) -> int | None:
        if self._engine.version < 0:
            return None
        updates = version_updates(self._engine.version)
        for i, (_, request) in enumerate(self._pending):
            if request.min_updates <= updates:
                return i
        return None

    def close(self) -> None:
        """Close the params stream."""
        self._params.close()
