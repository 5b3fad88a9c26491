"""The inference server: takes what has arrived, acts once for all of it, replies; params change between batches only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jsrl.errors import SnapshotError, SpecMismatch, StreamTimeout
from jsrl.metrics.metrics import Recorder
from jsrl.runs.control import Command
from jsrl.transport.base import ClientRequest, InferenceServer, ParamsSubscriber, ProducerId
from jsrl.transport.inference.ends import unknown_policy, unserved
from jsrl.types import version_updates
from jsrl.workers.acting import Engine, GroupSlots
from jsrl.workers.base import Reporter
from jsrl.workers.refusals import Refusals

LOADING_S = 0.001  # between looks at whether a frozen player is loaded


@dataclass(frozen=True)
class InferenceSettings:
    """What an inference server has to know.

    Attributes:
      max_rows: of one batch. max_wait_s: for more requests after the first. merge: several groups in one batch (never in
        deterministic mode). poll_s: how long a step waits for requests.
    """

    max_rows: int = 1024
    max_wait_s: float = 0.0
    merge: bool = True
    poll_s: float = 0.1


class InferenceWorker:
    """A worker that answers observations with actions, by the latest params; keeps cores by (client, group).

    Args:
      connect: () -> (the answering end of the stream, params subscriber), called when everything is compiled.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        settings: InferenceSettings,
        connect: Callable[[], tuple[InferenceServer, ParamsSubscriber]],
        reporter: Reporter,
        recorder: Recorder | None = None,
    ) -> None:
        self.name, self._engine, self._settings = name, engine, settings
        self._connect, self._reporter = connect, reporter
        self._served: dict[tuple[ProducerId, int], GroupSlots] = {}
        self._vacant: dict[tuple[int, int], GroupSlots] = {}
        self._held: list[ClientRequest] = []
        self._rows = 0
        self.recorder = self._recorder = recorder or Recorder("inference")
        self._phases = self.recorder.phases
        self._warm_compilations = 0
        self._refusals = Refusals(name, reporter)

    def setup(self) -> None:
        """Compile every batch size, bind the stream, wait for the first params."""
        self._reporter.stage("compiling act")
        self._engine.warm_up()
        self._warm_compilations = self._engine.compilations
        self._reporter.stage("binding streams")
        self._server, self._params = self._connect()

    def step(self) -> int:
        """Answer what has arrived (and what waited for params that are there now); return the rows answered."""
        rows = self._serve()
        self._phases.rest()
        return rows

    def _serve(self) -> int:
        self._phases.enter("transport")
        newer = self._params.poll(0)
        if newer is not None:
            self._engine.set_params(*newer)
        arrived = self._collect()
        self._phases.enter("transport")
        arrived = [r for r in arrived if self._serves(r)]
        self._forget_departed()
        requests = self._held + arrived
        if self._engine.frozen is not None:
            self._engine.frozen.receive()
        updates = version_updates(self._engine.version) if self._engine.version >= 0 else -1
        self._held = []
        ready: list[ClientRequest] = []
        for r in requests:
            if self._engine.version < 0 or r.request.min_updates > updates:
                self._held.append(r)
            elif (found := self._has_frozen(r)) is None:
                continue
            else:
                (ready if found else self._held).append(r)
        return self._answer(ready) if ready else 0

    def _has_frozen(self, request: ClientRequest) -> bool | None:
        """Return whether the frozen players that a request needs are loaded; None: they cannot be, and it was refused."""
        versions = self._engine.frozen_versions(request.request)
        if not versions:
            return True
        try:
            return self._engine.take_frozen((request.client, request.group), versions)
        except SnapshotError as error:
            served = self._engine.served
            refusal = unserved(request.group, request.request.policy, served, str(error))
            self._refusals.note(unknown_policy(self.name, refusal))
            self._server.refuse(request, served, str(error))
            return None

    def _collect(self) -> list[ClientRequest]:
        """Take what has arrived. While requests wait for newer params, look for those as well."""
        if not self._held:
            self._phases.enter("wait")
            arrived = self._arrived(self._settings.poll_s)
            if arrived and self._settings.max_wait_s > 0:
                arrived += self._arrived(self._settings.max_wait_s)
            return arrived
        if any(self._engine.frozen_versions(r.request) for r in self._held):
            self._phases.enter("wait")
            return self._arrived(LOADING_S)
        everybody_waits = len(self._held) >= max(1, len(self._served))
        self._phases.enter("wait_params" if everybody_waits else "wait")
        arrived = self._arrived(0.0 if everybody_waits else 0.0003)
        if not arrived and everybody_waits:
            try:
                self._params.wait(0, min(r.request.min_updates for r in self._held), 0.005)
            except StreamTimeout:
                return []
        newer = self._params.poll(0)
        if newer is not None:
            self._engine.set_params(*newer)
        return arrived

    def _arrived(self, max_wait_s: float) -> list[ClientRequest]:
        try:
            return self._server.collect(self._settings.max_rows, max_wait_s)
        except SpecMismatch as error:  # it was told, and turned away
            self._refusals.note(error)
            return []

    def _serves(self, request: ClientRequest) -> bool:
        """Return whether the engine has the policies that the rows ask for; refuse the request where it has not."""
        policy, served = request.request.policy, self._engine.served
        if self._engine.serves(policy):
            return True
        self._refusals.note(unknown_policy(self.name, unserved(request.group, policy, served)))
        self._server.refuse(request, served)
        return False

    def _answer(self, ready: list[ClientRequest]) -> int:
        rows = 0
        for batch in self._batched(ready):
            pairs = [(self._seat(r), r.request) for r in batch]
            self._phases.enter("act")
            if self._settings.merge and len(batch) > 1:
                replies = self._engine.act_merged(pairs)
            else:
                replies = [self._engine.act(served, request) for served, request in pairs]
            self._phases.enter("transport")
            for request, reply in zip(batch, replies, strict=True):
                self._server.reply(request, reply)
            batch_rows = sum(len(served.index) for served, _ in pairs)
            self._recorder.mean("batch_rows_mean", batch_rows)
            self._recorder.rate("rows", batch_rows)
            rows += batch_rows
        self._rows += rows
        return rows

    def _batched(self, ready: list[ClientRequest]) -> list[list[ClientRequest]]:
        """Split requests into batches of at most `max_rows` rows (of one group each where nothing may be merged)."""
        if not self._settings.merge:
            return [[r] for r in ready]
        batches: list[list[ClientRequest]] = [[]]
        rows = 0
        for r in ready:
            size = len(r.request.is_first)
            if batches[-1] and rows + size > self._settings.max_rows:
                batches.append([])
                rows = 0
            batches[-1].append(r)
            rows += size
        return batches

    def _seat(self, request: ClientRequest) -> GroupSlots:
        """Return where this client's group keeps its cores; a replaced client's seat is taken over."""
        key = (request.client, request.group)
        if key not in self._served:
            size = len(request.request.is_first)
            vacant = self._vacant.pop((request.group, size), None)
            self._served[key] = vacant or self._engine.serve(request.group, size)
        return self._served[key]

    def _forget_departed(self) -> None:
        """Free the seats of clients that had left when requests were taken last: one that came again may have asked since.

        Who has left since then keeps its seat until the next time, so that none is taken after it was freed.
        """
        gone = self._server.departed(look=False)
        for client in gone:
            for key in [k for k in self._served if k[0] == client]:
                served = self._served.pop(key)
                self._vacant[(served.group, len(served.index))] = served
            for r in self._held:
                if r.client == client and self._engine.frozen is not None:
                    self._engine.frozen.forget((client, r.group))
            self._held = [r for r in self._held if r.client != client]

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return rates, batch sizes, and how often something was compiled after the warm-up (healthy: 0)."""
        compilations = self._engine.compilations
        self._recorder.last("compilations", compilations)
        self._recorder.last("compilations_after_warmup", compilations - self._warm_compilations)
        self._recorder.last("refused", self._refusals.count)
        if self._engine.frozen is not None:
            for name, value in self._engine.frozen.figures().items():
                self._recorder.last(name, value)
        if self._engine.version >= 0:
            self._recorder.last("params_updates", version_updates(self._engine.version))
        return self._recorder.flush(), {"rows": self._rows}

    def command(self, command: Command) -> None:
        """Inference servers take no commands but stop."""

    def close(self) -> dict[str, Any]:
        """Leave the streams."""
        if hasattr(self, "_server"):
            self._server.close()
            self._params.close()
        if self._engine.frozen is not None:
            self._engine.frozen.close()
        if self._settings.merge and self._engine.compilations > self._warm_compilations:
            self._reporter.event("warning", f"{self.name} compiled again after its warm-up; batch sizes are not fixed.")
        return {"rows": self._rows}
