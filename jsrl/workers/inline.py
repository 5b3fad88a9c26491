"""Inline inference: an actor acts in its own process."""

from __future__ import annotations

from collections.abc import Mapping

from jsrl.errors import SnapshotError, StreamTimeout
from jsrl.references.importing import import_target
from jsrl.services.metrics.phases import Phases
from jsrl.transport.base import ParamsSubscriber, Reply, Request
from jsrl.types import version_updates
from jsrl.workers.acting import Engine, GroupSlots, frozen_players, make_agent
from jsrl.workers.ends import subscribe
from jsrl.workers.jobs import Job

REFUSED = "jsrl.transport.ends.inference:refused"  # imported with the first refusal


class InlineInference:
    """An InferenceClient that acts in the caller's process, with params from a subscriber (IMPALA-style placement).

    Args:
      params: closed with it. served: group -> its slots in the engine.
      phases: of the caller's thread; records when it acts and when it waits for params.
    """

    def __init__(
        self,
        engine: Engine,
        params: ParamsSubscriber,
        served: Mapping[int, GroupSlots],
        phases: Phases | None = None,
    ) -> None:
        self._engine, self._params, self._served = engine, params, served
        self._phases = phases or Phases()
        self._pending: dict[int, Request] = {}

    def send(self, group: int, request: Request) -> None:
        """Queue a request, in place of the group's last one. Its arrays are read at `receive`, before it is stepped again."""
        if not self._engine.serves(request.policy):
            raise import_target(REFUSED)("this process", group, request.policy, self._engine.served)
        self._pending[group] = request

    def receive(self, timeout_s: float) -> tuple[int, Reply]:
        """Act for the first group whose params have arrived."""
        self._phases.enter("transport")
        if not self._pending:
            raise StreamTimeout("no request is pending; send one before receiving.")
        self._refresh()
        group = self._first_ready()
        if group is None and timeout_s > 0:
            self._phases.enter("wait_params")
            self._params.wait(0, min(request.min_updates for request in self._pending.values()), timeout_s)
            self._refresh()
            group = self._first_ready()
        if group is None:
            wanted = next(iter(self._pending.values())).min_updates
            raise StreamTimeout(f"params with {wanted} updates did not arrive in {timeout_s} s.")
        request = self._pending.pop(group)
        self._load_frozen(group, request)
        self._phases.enter("act")
        return group, self._engine.act(self._served[group], request)

    def _refresh(self) -> None:
        newer = self._params.poll(0)
        if newer is not None:
            self._engine.set_params(*newer)

    def _first_ready(self) -> int | None:
        if self._engine.version < 0:
            return None
        updates = version_updates(self._engine.version)
        for group, request in self._pending.items():
            if request.min_updates <= updates:
                return group
        return None

    def _load_frozen(self, group: int, request: Request) -> None:
        """Load the frozen players that a request needs. Raises UnknownPolicy."""
        self._engine.pin_frozen(group, request)
        try:
            if versions := self._engine.frozen_versions(request):
                self._engine.take_frozen(group, versions)
        except SnapshotError as error:
            reason, served = str(error), self._engine.served
            raise import_target(REFUSED)("this process", group, request.policy, served, reason) from error

    def drop(self) -> None:
        """Drop the requests that were not answered."""
        self._pending.clear()

    def close(self) -> None:
        self._params.close()


def own_inference(job: Job, group_sizes: dict[int, int], phases: Phases) -> InlineInference:
    """Return what acts in an actor's own process, compiled. `group_sizes`: group -> its number of environments."""
    engine = Engine(
        make_agent(job),
        job.schemas.env,
        num_slots=sum(group_sizes.values()),
        sizes=[*group_sizes.values()],
        seed=job.incarnation_seed,
        policy=job.policy_number,
        policy_name=job.policy,
        frozen=frozen_players(job, background=False),
    )
    engine.warm_up()
    served = {group: engine.serve(group, size) for group, size in group_sizes.items()}
    return InlineInference(engine, subscribe(job), served, phases)
