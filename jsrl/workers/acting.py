"""Acting: one jitted `act` and the cores of all served environments, for every worker that acts.

The key of a group's step is fold_in(fold_in(seed key, group), step), so actions do not depend on which worker acts for
the group. A merged batch (several groups at once) takes its key from the server's number and a counter instead; its bits
depend on which requests arrived together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActOutput, Agent
from jsrl.errors import SnapshotError, StreamError, StreamTimeout
from jsrl.experiment.building import build_agent
from jsrl.parallel import small_calls
from jsrl.references.importing import import_target
from jsrl.services.metrics.phases import Phases
from jsrl.transport.base import LATEST_VERSION, NOT_PLAYED, ParamsSubscriber, Reply, Request
from jsrl.transport.stream import POLICY
from jsrl.types import Array, EnvSpec, Tree, leaves, map_tree, spread, version_updates
from jsrl.workers.ends import subscribe
from jsrl.workers.jobs import Job

if TYPE_CHECKING:
    from jsrl.workers.frozen import FrozenParams

ACT_STREAM, UPDATE_STREAM, INIT_STREAM = 1, 2, 0
REFUSED = "jsrl.transport.ends.inference:refused"  # imported with the first refusal
FROZEN = "jsrl.workers.frozen:frozen_players"  # imported only where a run has a director

Batch = tuple[Tree, Array, Array]  # observation [B, ...], is_first [B], index [B] of the core table


def stream_key(seed: int, stream: int) -> jax.Array:
    """Return the key of one use of a run's seed (acting, updating, initialising)."""
    return jax.random.fold_in(jax.random.key(seed), stream)


@dataclass(frozen=True)
class GroupSlots:
    """The slots of one group of environments in an engine: group number, and its rows `index` [B] of the core table."""

    group: int
    index: np.ndarray


class Engine:
    """Params, cores, and the compiled act.

    Args:
      agent: provides `act`. spec: of the environment. num_slots: most environments served.
      sizes: compiled batch sizes; a batch is padded to the smallest that holds it.
      seed: of the run. greedy: take the most likely action.
      number: of the inference server, so that two servers draw different numbers for merged batches.
      policy, policy_name: number and name of the policy it acts for; requests use the number, messages the name.
      frozen: (engine's `as_params`) -> the frozen players that requests may ask for; None: no frozen players.

    Attributes:
      served: number -> name of the policies it acts for.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        *,
        num_slots: int,
        sizes: Sequence[int],
        seed: int,
        greedy: bool = False,
        number: int = 0,
        policy: int = 0,
        policy_name: str = POLICY,
        frozen: Callable[[Callable[[list[np.ndarray]], Tree]], FrozenParams] | None = None,
    ) -> None:
        self._agent, self._spec, self._greedy, self._number = agent, spec, greedy, number
        self.sizes = sorted(set(sizes))
        self._num_slots, self._next_slot = num_slots, 0
        self.served = {policy: policy_name}
        self._policy = policy
        self._own_rows: dict[int, bytes] = {}  # number of rows -> bytes of a request for this policy in all of them
        self._table = agent.initial_core(num_slots + 1)  # the last row is scratch, for padding
        self.has_core = bool(jax.tree.leaves(self._table))
        self._on_accelerator = jax.default_backend() != "cpu"
        self._structure = jax.tree.structure(jax.eval_shape(agent.init, jax.random.key(0)).params)
        self._params: Tree = None
        self.version = -1
        self.compilations = 0
        self.batches = 0
        self._key = stream_key(seed, ACT_STREAM)
        self._act = jax.jit(self._traced, donate_argnums=1 if self.has_core else (), compiler_options=small_calls())
        self._padded = {size: self._buffers(size) for size in self.sizes}
        self.frozen = frozen(self.as_params) if frozen is not None else None
        self._cores_of = jax.jit(lambda table, index: jax.tree.map(lambda rows: rows[index], table))

    def _buffers(self, size: int) -> Batch:
        observation = map_tree(lambda s: s.batched(size).zeros(), self._spec.observation)
        return observation, np.ones(size, bool), np.full(size, self._num_slots, np.int32)

    def _traced(self, params, table, index, key, ids, observation, is_first, plays=None):
        """Act; `plays` (bool [B] or [B, N]): rows whose cores change (None: all)."""
        self.compilations += 1  # runs only while tracing: once per compilation
        key = jax.random.fold_in(jax.random.fold_in(key, ids[0]), ids[1])
        core = jax.tree.map(lambda rows: rows[index], table)
        output, new_core = self._agent.act(params, key, observation, is_first, core, greedy=self._greedy)
        if plays is not None:
            new_core = jax.tree.map(lambda new, old: jnp.where(spread(plays, new), new, old), new_core, core)
        table = jax.tree.map(lambda rows, new: rows.at[index].set(new), table, new_core)
        output = ActOutput(output.action, output.log_prob, output.extras)  # the part that a row stores
        return output, core, table

    def serve(self, group: int, num_envs: int) -> GroupSlots:
        """Reserve slots for a group's cores (they are never freed: an engine serves a fixed number of groups)."""
        first = self._next_slot
        if first + num_envs > self._num_slots:
            if self.has_core:
                raise StreamError(
                    f"group {group} of {num_envs} environments finds {self._num_slots - first} slots free."
                )
            first = 0 if num_envs <= self._num_slots else self._num_slots
        self._next_slot = first + num_envs
        return GroupSlots(group, np.arange(first, first + num_envs, dtype=np.int32) % (self._num_slots + 1))

    def serves(self, policy: Array | int) -> bool:
        """Return whether this engine acts for the requested policy in every row; policy: an int, or int32 [B]."""
        if isinstance(policy, int):
            return policy == self._policy
        rows = len(policy)
        if rows not in self._own_rows:
            self._own_rows[rows] = np.full(rows, self._policy, np.int32).tobytes()
        return policy.tobytes() == self._own_rows[rows]

    def set_params(self, version: int, values: list[np.ndarray]) -> None:
        """Take new params: leaves in jax.tree order, which this engine may keep."""
        self._params = self.as_params(values)
        self.version = int(version)

    def as_params(self, values: list[np.ndarray]) -> Tree:
        return jax.tree.unflatten(self._structure, [jnp.asarray(v) for v in values])

    def warm_up(self) -> None:
        """Compile every batch size (with the params set, or zeros of their shapes); cores and keys stay untouched."""
        params = self._params
        if params is None:
            shapes = jax.eval_shape(self._agent.init, jax.random.key(0)).params
            params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        for size in self.sizes:
            observation, is_first, index = self._padded[size]
            ids = np.zeros(2, np.uint32)
            output, _, self._table = self._act(params, self._table, index, self._key, ids, observation, is_first)
            jax.block_until_ready(output)
            if self.frozen is not None and self.has_core:
                plays = np.zeros(output.log_prob.shape, bool)
                output, _, self._table = self._act(
                    params, self._table, index, self._key, ids, observation, is_first, plays
                )
                jax.block_until_ready((output, self._cores_of(self._table, index)))

    def act(self, served: GroupSlots, request: Request) -> Reply:
        """Act for one group, with the group's own key: the bits do not depend on the worker."""
        ids = np.array([served.group, request.step], np.uint32)
        if self._asks_frozen(request):
            return self._act_by_version([(served, request)], ids)[0]
        action, log_prob, extras, core = self._call(served.index, ids, request.observation, request.is_first)
        own_core = jax.device_get(core) if self.has_core and request.wants_core else ()
        return Reply(action, log_prob, extras, self.version, own_core, self._policy)

    def act_merged(self, requests: list[tuple[GroupSlots, Request]]) -> list[Reply]:
        """Act for several groups in one padded batch, or in one batch per requested version."""
        if any(self._asks_frozen(request) for _, request in requests):
            return self._act_by_version(requests, None)
        parts = [(request.observation, request.is_first, served.index) for served, request in requests]
        observation, is_first, index = self._pad(parts)
        return self._split(self._call(index, self._merged_ids(), observation, is_first), requests)

    def _pad(self, parts: Sequence[tuple[Tree, Array, Array]]) -> Batch:
        """Return (observation, is_first, index) of all parts in the buffer of the smallest size that holds them."""
        rows = sum(len(index) for _, _, index in parts)
        size = next((s for s in self.sizes if s >= rows), rows)
        batch = self._padded.get(size) or self._buffers(size)
        at = 0
        for part in parts:
            end = at + len(part[2])
            for target, source in zip(leaves(batch), leaves(part), strict=True):
                target[at:end] = source
            at = end
        _, is_first, index = batch
        is_first[at:], index[at:] = True, self._num_slots
        return batch

    def _merged_ids(self) -> np.ndarray:
        """Return the numbers that the key of the next merged batch is made from."""
        self.batches += 1
        return np.array([0xFFFFFFFF - self._number, self.batches & 0xFFFFFFFF], np.uint32)

    def frozen_versions(self, request: Request) -> list[int]:
        if not self._asks_frozen(request):
            return []
        return [int(v) for v in np.unique(request.version) if v not in (LATEST_VERSION, NOT_PLAYED)]

    def take_frozen(self, owner: Hashable, versions: Collection[int]) -> bool:
        """Return whether frozen versions are loaded; see jsrl.workers.frozen.FrozenParams.take."""
        if self.frozen is None:
            raise SnapshotError(f"frozen players {sorted(versions)} were requested, but this worker has none.")
        return self.frozen.take(owner, versions)

    def _asks_frozen(self, request: Request) -> bool:
        """Return whether some row needs params other than the newest."""
        version = request.version
        return version != LATEST_VERSION if isinstance(version, int) else bool((version != LATEST_VERSION).any())

    def _act_by_version(self, requests: list[tuple[GroupSlots, Request]], ids: np.ndarray | None) -> list[Reply]:
        """Act once per version; `ids` of the key: each call covers all rows, so that bits do not depend on the versions."""
        index = np.concatenate([served.index for served, _ in requests])
        asked = [request for _, request in requests]
        observation = map_tree(lambda *parts: np.concatenate(parts), *(request.observation for request in asked))
        is_first = np.concatenate([request.is_first for request in asked])
        wanted = np.concatenate([versions_of(request) for request in asked])
        wants_core = self.has_core and any(request.wants_core for request in asked)
        core = jax.device_get(self._cores_of(self._table, index)) if wants_core else ()
        result: tuple[Array, Array, Tree] | None = None
        for version in np.unique(wanted[wanted != NOT_PLAYED]).tolist() or [LATEST_VERSION]:
            plays = wanted == version
            rows = plays.reshape(len(plays), -1).any(1).nonzero()[0] if ids is None else np.arange(len(plays))
            part = map_tree(lambda x, r=rows: x[r], (observation, is_first, index, plays))
            found = self._act_rows(version, part, ids)
            result = result or map_tree(lambda x: np.zeros((len(wanted), *x.shape[1:]), x.dtype), found)
            for whole, new in zip(leaves(result), leaves(found), strict=True):
                whole[rows] = np.where(spread(plays[rows], new), new, whole[rows])
        assert result is not None
        return self._split((*result, core), requests)

    def _act_rows(self, version: int, part: tuple[Tree, Array, Array, Array], ids: np.ndarray | None):
        """Act with one version's params; return (action, log_prob, extras) of the rows."""
        observation, is_first, index, plays = part
        rows = len(index)
        params = self._params if version == LATEST_VERSION or self.frozen is None else self.frozen.get(version)
        if ids is None:
            ids = self._merged_ids()
            observation, is_first, index = self._pad([(observation, is_first, index)])
            plays = np.concatenate([plays, np.zeros((len(index) - rows, *plays.shape[1:]), bool)])
        masked = (plays,) if self.has_core else ()
        action, log_prob, extras, _ = self._call(index, ids, observation, is_first, params, *masked)
        return map_tree(lambda x: x[:rows], (action, log_prob, extras))

    def _call(self, index: np.ndarray, ids: np.ndarray, observation: Tree, is_first: np.ndarray, params=None, *plays):
        params = self._params if params is None else params
        output, core, self._table = self._act(params, self._table, index, self._key, ids, observation, is_first, *plays)
        if self._on_accelerator:
            for leaf in jax.tree.leaves(output):
                leaf.copy_to_host_async()
        # Block until the call has ended: JAX on CPU aliases the caller's buffers, which must not be written before.
        return np.asarray(output.action), np.asarray(output.log_prob), map_tree(np.asarray, output.extras), core

    def _split(self, result, requests: list[tuple[GroupSlots, Request]]) -> list[Reply]:
        action, log_prob, extras, core = result
        if self.has_core and any(request.wants_core for _, request in requests):
            core = jax.device_get(core)
        replies, at = [], 0
        for served, request in requests:
            part = slice(at, at + len(served.index))
            at = part.stop
            own_core = map_tree(lambda x, p=part: x[p], core) if self.has_core and request.wants_core else ()
            own_extras = map_tree(lambda x, p=part: x[p], extras)
            replies.append(Reply(action[part], log_prob[part], own_extras, self.version, own_core, self._policy))
        return replies


def versions_of(request: Request) -> np.ndarray:
    """Return the versions that a request asks for, per row (and per agent, where they differ)."""
    version = request.version
    return np.full(len(request.is_first), version, np.int64) if isinstance(version, int) else version


def make_agent(job: Job) -> Agent:
    return build_agent(job.experiment.agent, job.schemas.env)


def frozen_players(job: Job, *, background: bool) -> Callable[..., FrozenParams] | None:
    """Return the function that makes the frozen players of an engine; None: the run has none."""
    return None if job.experiment.director is None else import_target(FROZEN)(job, background=background)


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
