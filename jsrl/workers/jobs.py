"""The job of each worker: frozen values that travel as JSON and are the same in serial mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsrl.envs.seats import SeatView, view_of
from jsrl.errors import ConfigError, StreamTimeout
from jsrl.experiment import Experiment
from jsrl.references.importing import import_target
from jsrl.services.runs.names import FileNames
from jsrl.services.runs.values import Registration
from jsrl.transport.base import InferenceSpec, ProducerId
from jsrl.transport.ledger.legs import recorded_leg
from jsrl.transport.stream import POLICY, End
from jsrl.types import ArraySpec, EnvSpec, GameSpec, Trajectory, changed_leaves

if TYPE_CHECKING:
    from jsrl.directors.messages import Assignment

CONNECT_TIMEOUT_S = 120.0
NAMED_BY_KEY = "jsrl.transport.door.keys:named_by_key"  # imported where streams have keys
FAILED_UPDATE = "failed-update"  # folder of a run: the state before an update that was not finite, and its batch
BEGINS_WITH = "begins-with"  # folder of a run: snapshots of other runs, for learners on hosts that do not see these
SEED_STRIDE, STARTS_PER_GENERATION = 7_919, 1_009


@dataclass(frozen=True)
class Schemas:
    """The specs of everything that streams carry; the launcher computes them once, so that actors need no jax.

    Attributes:
      env: the environment. act: one environment's request and reply. trajectory: of one group (T rows + 1).
      params_bytes, state_bytes: size of the published params, and of the agent's whole state.
    """

    env: EnvSpec
    act: InferenceSpec
    trajectory: Trajectory
    params_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class StartPoint:
    """Where this start of the run begins: fresh, or from a snapshot.

    Attributes:
      generation: of the learner. updates: number of the version. unmade: those of them that were not made, because replay was
        filling or a director gave the state. restore: "store folder@selector" of the state to restore, or None.
      params_only: restore only the params (a fresh optimizer, counters at 0).
      journal_generation: the one in which the environments of the journals were seeded, if they are continued exactly;
        None: start new episodes.
      env_steps: trained on before, as the snapshot of a resumed run says.
    """

    generation: int = 0
    updates: int = 0
    restore: str | None = None
    params_only: bool = False
    journal_generation: int | None = None
    env_steps: int = 0
    unmade: int = 0

    @property
    def made(self) -> int:
        """Return the updates made before."""
        return self.updates - self.unmade


@dataclass(frozen=True)
class Sides:
    """The sides of an environment.

    Attributes:
      environment: its name. seats: names of the seats of each side; none with one agent.
      policies: that can play all seats of each side.
    """

    environment: str
    seats: tuple[tuple[str, ...], ...]
    policies: tuple[tuple[str, ...], ...]

    def check(self, one: Assignment) -> None:
        if sorted(one.sides) != list(range(len(self.policies))):
            raise ConfigError(
                f"the director assigns players to {len(one.sides)} sides, but environment {self.environment!r} has "
                f"{len(self.policies)}; set the director's sides (num_sides, or one policy for each), or give the seats of a "
                "team one side."
            )
        for player, side in zip(one.players, one.sides, strict=True):
            if player.policy not in self.policies[side]:
                raise ConfigError(
                    f"the director lets {player.policy!r} play side {side} ({', '.join(self.seats[side])}), whose seats it "
                    f"does not all have; policies that have: {', '.join(self.policies[side]) or 'none'}. See "
                    f"policies.{player.policy}.seats."
                )


def sides_of(spec: EnvSpec | GameSpec, seats: Mapping[str, Mapping[str, int]]) -> Sides:
    """Return the sides of an environment; seats: policy -> its seats: name -> place."""
    if not isinstance(spec, GameSpec):
        return Sides(spec.name, ((),), (tuple(sorted(seats)),))
    names, policies = [], []
    for side in range(max(spec.sides) + 1):
        places = [place for place, number in enumerate(spec.sides) if number == side]
        names.append(tuple(spec.names[place] for place in places))
        policies.append(tuple(sorted(policy for policy, own in seats.items() if set(places) <= set(own.values()))))
    return Sides(spec.name, tuple(names), tuple(policies))


@dataclass(frozen=True)
class JobPlace:
    """Where a worker finds its files and the other workers.

    Attributes:
      folder: the run's, or one of its host's agent. registry: folder of the names under which workers find each other.
      keys: folder of the keys that encrypt ZeroMQ traffic; None: no encryption.
      away: its host does not see the run's folder, so `folder` is one of the host's agent.
    """

    folder: str
    registry: str
    keys: str | None = None
    away: bool = False


@dataclass(frozen=True)
class JobPart:
    """The policy that a worker trains, acts with or evaluates.

    Attributes:
      name: of the policy. folder: under folders of the run; empty for the first one: the folder itself.
      seats: that it plays: name -> place in the order of all; empty: the environment has one agent.
      seat_group: the environments' name for these seats: the first policy that plays them.
      hyperparameters: that a director changes: name of a field of the agent's config -> its first value.
    """

    name: str = POLICY
    folder: str = ""
    seats: Mapping[str, int] = field(default_factory=dict)
    seat_group: str = ""
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunFacts:
    """What all jobs of a run have in common.

    Attributes:
      workers: their number. policies: names of the policies, in the order of their numbers.
      shares_environments: several policies play in the same environments, and may be trained for different times.
      keeps_initial: evaluations play against the first params of the policies.
      sides: of the environment, in runs with a director.
    """

    workers: int = 1
    policies: tuple[str, ...] = (POLICY,)
    shares_environments: bool = False
    keeps_initial: bool = False
    sides: Sides | None = None


@dataclass(frozen=True)
class Job:
    """One worker of one run. What your own worker may use of it is listed in docs/dataflow.md; the rest may change.

    Attributes:
      kind, name, settings: as in the graph. index: among the workers of its kind. ends: (port, its end of the stream) pairs.
      experiment: of its policy; without the agent for workers that must not load jax.
      schemas: shapes and dtypes of observations, actions and trajectories.
      start_point: where this start of the run begins. incarnation: number of restarts of this worker.
      others: jobs for further policies that play in the worker's environments; they differ in the policy and in what follows
        from it.
    """

    kind: str
    name: str
    index: int
    experiment: Experiment
    schemas: Schemas
    ends: tuple[tuple[str, End], ...]
    place: JobPlace
    part: JobPart = JobPart()
    run: RunFacts = RunFacts()
    settings: Any = None
    start_point: StartPoint = StartPoint()
    incarnation: int = 0
    others: tuple[Job, ...] = ()

    @property
    def by_policy(self) -> tuple[Job, ...]:
        """Return the job for each policy that plays in this worker's environments, with this worker's incarnation."""
        return (self, *(dataclasses.replace(other, incarnation=self.incarnation) for other in self.others))

    @property
    def seat_groups(self) -> dict[str, tuple[str, ...]]:
        """Return group -> the names of its seats, for jsrl.envs.make.make; empty where the environment has one agent."""
        return {part.seat_group: tuple(part.seats) for part in (job.part for job in (self, *self.others)) if part.seats}

    @property
    def view(self) -> SeatView | None:
        return view_of(self.part.seat_group, tuple(self.part.seats.values()))

    @property
    def policy(self) -> str:
        """Return the policy of its streams."""
        return self.part.name

    @property
    def folder(self) -> str:
        """Return the run's folder, or one of its host's agent that holds what travels with the worker."""
        return self.place.folder

    @property
    def keys(self) -> str | None:
        return self.place.keys

    def end(self, port: str) -> End:
        """Return its end of the stream at a port: `end.stream`, `end.groups`. Raises ConfigError if there is none."""
        for name, end in self.ends:
            if name == port:
                return end
        raise ConfigError(f"{self.name}.{port} has no stream.")

    @property
    def input_leg(self) -> str:
        """Return the name under which a learner's input trajectories are counted; one that reads a recording has no stream."""
        return self.end("samples").leg if self.has("samples") else recorded_leg(self.part.folder)

    def has(self, port: str) -> bool:
        """Return whether a port has a stream."""
        return any(name == port for name, _ in self.ends)

    @property
    def snapshots(self) -> Path:
        """Return the folder of the policy's snapshots."""
        return Path(self.folder, "snapshots", self.part.folder)

    @property
    def failed_update(self) -> Path:
        """Return the folder of this policy's update that was not finite."""
        return Path(self.folder, FAILED_UPDATE, self.part.folder)

    @property
    def begins_with(self) -> Path:
        """Return the folder of the snapshot of another run that this policy begins with, if its host does not see that run."""
        return Path(self.folder, BEGINS_WITH, self.part.folder)

    @property
    def snapshots_of(self) -> dict[str, Path]:
        first, *others = self.run.policies
        return {first: Path(self.folder, "snapshots")} | {name: Path(self.folder, "snapshots", name) for name in others}

    @property
    def policy_number(self) -> int:
        return self.run.policies.index(self.policy)

    @property
    def in_process(self) -> bool:
        """Return whether the run is serial: all workers take turns in one process."""
        return not self.experiment.where.processes

    @property
    def poll_s(self) -> float:
        """Return how long a step may wait for messages."""
        return 0.1 if self.experiment.where.waits else 0.0

    @property
    def producer(self) -> ProducerId:
        return ProducerId(self.name, self.incarnation)

    @property
    def total_updates(self) -> int:
        """Return the updates of the whole run, those made before this start of it included."""
        start = self.start_point
        return max(1, start.made + self.experiment.updates_after(start.env_steps))

    @property
    def incarnation_seed(self) -> int:
        """Return the seed of this worker's episodes and draws: the run's at first, another one after each restart.

        A restarted actor or resumed run must not play its predecessor's episodes again, unless it continues them
        exactly.
        """
        generation = (
            self.start_point.generation
            if self.start_point.journal_generation is None
            else self.start_point.journal_generation
        )
        return self.experiment.seed + SEED_STRIDE * (self.incarnation + STARTS_PER_GENERATION * generation)

    @property
    def names(self) -> FileNames:
        return FileNames(self.place.registry)

    def announce(self, name: str, address: str) -> None:
        """Register the address of a stream that this worker bound."""
        named = address if self.keys is None else import_target(NAMED_BY_KEY)(address, self.keys)
        self.names.register(name, named, self.incarnation)

    def find(self, name: str) -> Registration:
        """Return the registration of a stream's owner; waits for it.

        Raises:
          StreamTimeout: there is none. ConfigError: there is none in a serial run, where workers are set up one after another.
        """
        if not self.in_process:
            return self.names.lookup(name, CONNECT_TIMEOUT_S)
        try:
            return self.names.lookup(name, 0.0)
        except StreamTimeout:
            raise ConfigError(
                f"{self.name} cannot connect to {name} (STREAM.WORKER), because that worker's setup did not bind the stream. "
                "It must bind each stream that it reads, answers or publishes; a setup that replaces that of a base class "
                "calls super().setup()."
            ) from None


def check_params(start: StartPoint, wanted: Mapping[str, ArraySpec], given: Mapping[str, ArraySpec]) -> None:
    """Check that the params that a run begins with are those of its agent: name of a leaf -> shape and dtype."""
    if changed := changed_leaves(given, wanted):
        raise ConfigError(
            f"the params in {start.restore} do not fit: {changed}. --init-from needs the same network and spaces."
        )


def kind_of(worker: str) -> str:
    """Return the kind in a worker's name: `actor` for `actor-3`."""
    head, _, tail = worker.rpartition("-")
    return head if tail.isdigit() else worker
