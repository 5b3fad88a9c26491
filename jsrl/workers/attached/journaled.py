"""Environments that keep a journal, and continue where a deterministic run was interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jsrl.envs.base import EnvStep, GameStep
from jsrl.errors import EnvironmentFault, SnapshotError
from jsrl.experiment import Experiment
from jsrl.services.runs.control_bodies import REPLAYING
from jsrl.transport.wire.schema import to_dtype
from jsrl.types import Array, ArraySpec, GameSpec
from jsrl.workers.attached.journal import Journal, JournalHeader, JournalWriter, TaskJournal, digest, journal_path
from jsrl.workers.base import Reporter, where
from jsrl.workers.jobs import Job

STAGE_S = 5.0  # between two reports of how far a replay is


def exact_obstacle(experiment: Experiment, *, has_core: bool = False) -> str | None:
    """Return why a run of this experiment cannot be continued bit for bit; None: it can."""
    e = experiment
    if not e.is_deterministic:
        return "the run is not deterministic"
    if not e.snapshots.exact:
        return "snapshots.exact is off"
    if e.director is not None and e.max_policy_lag != 0:
        return "actors may be ahead of the learner, in episodes that its snapshots do not cover (--max-policy-lag 0)"
    if e.env.on_fault == "restart-env":
        return "journals do not record which environments were rebuilt (--env.on-fault restart-env)"
    if e.has_replay_workers:
        return "its replay workers draw ahead of the learner (--replay.kind device does not)"
    if e.order != "by_group":
        return "its batches are not one trajectory of every group (--batch-envs)"
    if e.buffer is not None and not e.buffer.save:
        return "its snapshots leave out the rows of the replay (--replay.save keeps them)"
    if has_core:
        return "its agent's recurrent states are not part of snapshots"
    return None


class JournaledEnv:
    """A group's vector environment that keeps a journal.

    Args:
      env: the environment, freshly seeded. path, header: of the journal. play: trajectories to replay before the first
        row (0: none; start a new journal). max_bytes: of the journal.
    """

    def __init__(
        self,
        env: Any,
        path: Any,
        header: JournalHeader,
        *,
        play: int | None,
        max_bytes: float,
        reporter: Reporter,
    ) -> None:
        self.spec, self.num_envs = env.spec, env.num_envs
        self.groups = getattr(env, "groups", {})
        self._env, self._path, self._header, self._play = env, path, header, play
        self._reporter, self._max_bytes = reporter, max_bytes
        self._actions = np.zeros(header.actions.shape, to_dtype(header.actions.dtype))
        self._packed = action_bytes(env.spec, env.groups) if isinstance(env.spec, GameSpec) else None
        self._row = self._steps = 0  # of the trajectory, and since the start of the journal
        self._writer: JournalWriter | None = None
        self._tasks = TaskJournal(path, (play or 0) * header.num_rows)
        self.goes_on = False  # its first row was already written before the resume

    def reset(self) -> EnvStep | GameStep:
        """Reset every slot; the first time, replay the journal."""
        latest = self._env.reset()
        if self._writer is not None:
            if self._steps or not self._tasks.at(0):
                self._writer.give_up("its environments were restarted")
                self.goes_on = False
            return latest
        if self._play:
            latest = self._play_again(latest, self._play)
            self.goes_on = True
        self._writer = JournalWriter(
            self._path, self._header, keep=self._play, max_bytes=self._max_bytes, on_warning=self._warn
        )
        self._written(self._tasks.begin)
        return latest

    def _written(self, write: Callable[..., None], *values: Any) -> None:
        """Write tasks to the journal; give the journal up if that fails."""
        assert self._writer is not None
        try:
            write(*values)
        except OSError as error:
            self._writer.give_up(str(error))

    def _play_again(self, latest: EnvStep | GameStep, count: int) -> EnvStep | GameStep:
        due_s = 0.0
        if first := self._tasks.at(0):
            self._env.set_tasks(first)
            latest = self._env.reset()
        for number, record in enumerate(Journal(self._path).records(count)):
            if (now_s := time.monotonic()) >= due_s:
                due_s = now_s + STAGE_S
                self._reporter.stage(f"{REPLAYING} trajectory {number:,} of {count:,} of group {self._header.group}")
            self._reporter.entering(f"playing trajectory {number} of group {self._header.group} again,", None)
            for action in record.actions:
                if self._steps and (given := self._tasks.at(self._steps)):
                    self._env.set_tasks(given)
                self._steps += 1
                latest = self._env.step(action.copy() if self._packed is None else self._packed.split(action))
            if digest(latest) != record.seen:
                raise EnvironmentFault(
                    f"environment {self._header.environment!r}, group {self._header.group}, cannot be continued exactly: "
                    f"replaying the actions of trajectory {self._header.first + number} gives other observations than "
                    "before. It is not deterministic given its seed (a clock, global random numbers, threads?), or another "
                    "version of it is installed. Continue with new episodes: --snapshots.exact false."
                )
        self._reporter.left()
        return latest

    def step(self, action: Any) -> EnvStep | GameStep:
        """Step every slot, and write a record with each trajectory's last row."""
        self._actions[self._row] = action if self._packed is None else self._packed.join(action)
        latest = self._env.step(action)
        self._steps += 1
        self._row += 1
        if self._row == self._header.num_rows:
            self._row = 0
            if self._writer is not None and self._writer.is_open:
                self._writer.append(self._actions, digest(latest))
        return latest

    def __getattr__(self, name: str) -> Any:
        """Return the environment's attribute; its `set_tasks` is wrapped if it has one."""
        if name == "set_tasks" and hasattr(self._env, name):
            return self._set_tasks
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def _set_tasks(self, tasks: Mapping[int, Any]) -> None:
        self._env.set_tasks(tasks)
        if self._writer is not None and self._writer.is_open:
            self._written(self._tasks.append, self._steps, tasks)

    def where(self) -> str:
        return where(self._env)

    def _warn(self, text: str) -> None:
        self._reporter.event("warning", text)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._env.close()


def journaled(job: Job, group: int, env: Any, reporter: Reporter) -> Any:
    """Return a group's environment: with its journal if the job's run can be continued exactly, else unchanged."""
    e, first = job.experiment, job.start_point.updates // job.experiment.updates_per_batch
    path = journal_path(job.folder, group)
    parts = job.by_policy
    obstacles = [exact_obstacle(part.experiment, has_core=part.schemas.act.core != ()) for part in parts]
    obstacle = next(filter(None, obstacles), None)
    if obstacle is not None or job.incarnation > 0:
        if obstacle is None and path.exists():
            text = (
                f"{job.name} was replaced, and its environments begin new episodes: the journals of its groups were given up. "
                "Training continues; a resume will start new episodes instead of continuing these exactly."
            )
            reporter.event("warning", text, once="journals")
        path.unlink(missing_ok=True)  # it would not lead to the state of these environments
        return env
    action = _action_spec(env)
    header = JournalHeader(
        str(e.env.id), group, env.num_envs, e.rollout_length, action, first, job.start_point.generation
    )
    play = None
    if job.start_point.journal_generation is not None:
        written = Journal(path).header
        play, header = first - written.first, header_as(header, written)
    limit = e.snapshots.journal_mb * 1e6 / e.groups
    return JournaledEnv(env, path, header, play=play, max_bytes=limit, reporter=reporter)


def _action_spec(env: Any) -> ArraySpec:
    if isinstance(env.spec, GameSpec):
        return action_bytes(env.spec, env.groups).spec
    return env.spec.action.array if env.spec.num_agents is None else env.spec.action.array.batched(env.spec.num_agents)


class ActionBytes:
    """The actions of all groups of seats as one array of bytes [B, S], and back. specs: group -> of [N_g, ...]."""

    def __init__(self, specs: Mapping[str, ArraySpec]) -> None:
        self._specs = dict(specs)
        self.spec = ArraySpec((sum(spec.size_bytes for spec in self._specs.values()),), "uint8")

    def join(self, actions: Mapping[str, Array]) -> Array:
        """Return the bytes of group -> actions [B, N_g, ...]."""
        parts = [np.ascontiguousarray(actions[group], spec.dtype) for group, spec in self._specs.items()]
        return np.concatenate([part.reshape(len(part), -1).view(np.uint8) for part in parts], axis=1)

    def split(self, joined: Array) -> dict[str, Array]:
        """Return group -> actions from the bytes of `join`."""
        found, at = {}, 0
        for group, spec in self._specs.items():
            part = np.ascontiguousarray(joined[:, at : at + spec.size_bytes]).view(to_dtype(spec.dtype))
            found[group] = part.reshape(len(joined), *spec.shape)
            at += spec.size_bytes
        return found


def action_bytes(spec: GameSpec, groups: Mapping[str, tuple[str, ...]]) -> ActionBytes:
    return ActionBytes({group: spec.view(names).action.array.batched(len(names)) for group, names in groups.items()})


def header_as(header: JournalHeader, written: JournalHeader) -> JournalHeader:
    """Return the header that an earlier start wrote; raise SnapshotError if it is of another group or environment."""
    for name in ("environment", "group", "group_size", "num_rows", "action"):
        ours, theirs = getattr(header, name), getattr(written, name)
        if ours != theirs:
            raise SnapshotError(
                f"the journal of group {header.group} is of another experiment: {name} was {theirs}, now it is {ours}. "
                "Continue with new episodes: --snapshots.exact false."
            )
    return written
