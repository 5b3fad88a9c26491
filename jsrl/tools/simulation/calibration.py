"""Measures the service times of an experiment: its environments alone, then short runs with 1 to 4 actors.

Each run is a trial of jsrl.tools.tuning: the real system, whose activities, rates and CPU times give the cost of its parts.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.placements import PLACEMENTS, PlacementName
from jsrl.graph.graph_file import saved_experiment
from jsrl.graph.machine import accelerators
from jsrl.services.runs.limits import usable_cores
from jsrl.services.runs.runs import RunFolder, read_metrics
from jsrl.tools.simulation.speed import LOOP, beside_loop, busy_cores
from jsrl.tools.simulation.system import check_known
from jsrl.tools.simulation.times import (
    ActorTimes,
    Cost,
    EnvTimes,
    LearnerTimes,
    ParamsTimes,
    ServerTimes,
    ServiceTimes,
    Updates,
    fit,
)
from jsrl.tools.simulation.timing import time_acting, time_environments, time_params, time_updates
from jsrl.tools.tuning.space import Trial
from jsrl.tools.tuning.trial import Limits, measure

MOST_ACTORS = 4
NO_PARAMS = ParamsTimes()
USUAL_HOP_S = 1e-4  # if no run shows it
INLINE: PlacementName = "inline"
SERVED: PlacementName = "served"


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements of one run, per second unless noted.

    Attributes:
      placement (SERVED with any inference server, else INLINE), far (streams over TCP with keys), actors, ring, group_size,
        rows (of a trajectory), batch_rows: the run.
      steps: of groups. updates, calls: of the learner's batches (each trained on
        `reuse` times) and of servers. call_rows: mean rows of a call.
      actor_cpu, server_cpu, learner_cpu, relay_cpu, launcher_cpu: cores that all workers of a kind keep busy.
      shares: of time, by name of the metric (`actor/env_share`). env_steps_per_s: trained.
      loop_s: of the machine's cores around the run, see jsrl.tools.simulation.speed; 0: not measured.
    """

    placement: str
    far: bool
    actors: int
    ring: int
    group_size: int
    rows: int
    batch_rows: int
    env_steps_per_s: float
    steps: float
    updates: float
    calls: float = 0.0
    call_rows: float = 0.0
    actor_cpu: float = 0.0
    server_cpu: float = 0.0
    learner_cpu: float = 0.0
    relay_cpu: float = 0.0
    launcher_cpu: float = 0.0
    reuse: int = 1
    shares: dict[str, float] = {}
    loop_s: float = 0.0

    def share(self, name: str) -> float:
        return self.shares.get(name, 0.0)

    @property
    def trajectories(self) -> float:
        """Return the trajectories that the learner trains on per second."""
        return self.updates * self.batch_rows / (self.rows * self.group_size)


@dataclass(frozen=True)
class Variant:
    """One run of a calibration."""

    placement: PlacementName
    far: bool
    experiment: Experiment

    @property
    def text(self) -> str:
        e = self.experiment
        transport = "TCP with keys" if self.far else "shared memory"
        return f"{self.placement}, {e.actors} actor(s), {e.envs} environments, {transport}"


def acting_sizes(experiment: Experiment) -> list[int]:
    """Return the rows of the batches whose acting is timed: from 1 to four times the environments of the calibration."""
    return [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if size <= max(4, 4 * experiment.envs)]


def updating_sizes(experiment: Experiment) -> list[int]:
    """Return the environments of the batches whose updates are timed: a quarter of the experiment's to four times as many."""
    return sorted({max(1, experiment.batch_columns // 4), experiment.batch_columns, 4 * experiment.batch_columns})


def variants(experiment: Experiment, placements: Sequence[PlacementName]) -> list[Variant]:
    """Return the runs of a calibration: for each placement and transport one with 1 actor and one with up to 4.

    The first of both has a quarter of the environments, if they can be divided so, in one group: then sizes of groups and
    batches differ, and costs per call and per row can be separated.
    """
    found = []
    for placement in placements:
        for far in (False, True):  # shared memory, and TCP with keys
            own = dataclasses.replace(
                experiment, placement=placement, transport="zeromq" if far else "shared-memory", encrypt=far
            )
            found += [Variant(placement, far, e) for e in (_small(own), _large(own)) if e is not None]
    return found


def _small(experiment: Experiment) -> Experiment | None:
    envs, batch = experiment.envs, experiment.batch_columns
    for part in (4, 2, 1):
        if envs % part == 0 and batch % part == 0:
            made = _replaced(
                experiment,
                num_actors=1,
                num_envs=envs // part,
                batch_envs=batch // part,
                num_groups=batch_groups(envs, batch),
            )
            if made is not None:
                return made
    return None


def batch_groups(num_envs: int, batch_envs: int) -> int:
    return max(1, num_envs // batch_envs)


def _large(experiment: Experiment) -> Experiment | None:
    for actors in range(MOST_ACTORS, 1, -1):
        made = _replaced(experiment, num_actors=actors, num_groups=None)
        if made is not None:
            return made
    return None


def _replaced(experiment: Experiment, **fields: Any) -> Experiment | None:
    try:
        made = dataclasses.replace(experiment, **fields)
        return made if made.groups else None
    except ConfigError:
        return None


def calibrate(
    experiment: Experiment,
    placements: Sequence[PlacementName] = (INLINE, SERVED),
    *,
    seconds: float = 6.0,
    notify: Callable[[str], None] = lambda line: None,
) -> ServiceTimes:
    """Return the service times of an experiment on this machine, which must be idle otherwise.

    Args:
      experiment: to simulate. placements: of the runs, each with shared memory and with TCP and keys.
      seconds: measured per run. notify: shows a line about each.
    """
    apart = {name: placement.processes and placement.has_actors for name, placement in PLACEMENTS.items()}
    if wrong := [placement for placement in placements if not apart[placement]]:
        raise ConfigError(
            f"a {wrong[0]} run is one process, which shows no waits; calibrate with inline, served or apart."
        )
    check_known(experiment, len(experiment.policies))  # before minutes of runs
    runs = variants(experiment, placements)
    if not runs:
        raise ConfigError(
            f"{experiment.name} cannot run with 1 to {MOST_ACTORS} actors; choose --num-envs and --batch-envs that divide."
        )
    busy = busy_cores()
    env = time_environments(experiment, [run.experiment.group_size for run in runs])
    notify(f"environments: {_text(env.step)} on a core, {_text(env.step_idle)} asleep, for each step of a group")
    acting = (
        time_acting(experiment, acting_sizes(experiment)) if any(run.experiment.where.serves for run in runs) else []
    )
    updates = time_updates(experiment, updating_sizes(experiment)) if experiment.buffer is None else []
    found = []
    for number, run in enumerate(runs, 1):
        limits = Limits(seconds=seconds, longest_s=4 * seconds)
        speed, loop_s = beside_loop(functools.partial(measure, run.experiment, limits))
        if speed.error:
            raise ConfigError(f"the calibration with {run.text} failed: {speed.error}")
        found.append(msgspec.structs.replace(measured(run, speed), loop_s=loop_s))
        notify(f"{number} of {len(runs)}: {run.text}: {speed.env_steps_per_s:,.0f} env steps/s")
    times = fitted(found, env, acting, updates, time_params(experiment))
    return msgspec.structs.replace(
        times,
        experiment=experiment.name,
        machine={
            "cores": usable_cores(),
            "accelerators": len(accelerators()),
            "busy_cores": busy,
            LOOP: statistics.median(one.loop_s for one in found),
        },
        measured=[msgspec.to_builtins(one) for one in found],
    )


def _text(cost: Cost) -> str:
    return f"{1e3 * cost.call_s:.3g} ms + {1e3 * cost.row_s:.3g} ms per environment"


def measured(run: Variant, speed: Trial) -> Measured:
    e, means = run.experiment, speed.means
    made = means.get("actor/env_steps_per_s", speed.env_steps_per_s)
    rows = means.get("inference/batch_rows_mean", 0.0)
    return Measured(
        SERVED if e.where.serves else INLINE,
        run.far,
        e.actors,
        e.ring,
        e.group_size,
        e.rollout_length,
        e.rows_per_update,
        speed.env_steps_per_s,
        steps=made / e.group_size,
        updates=speed.env_steps_per_s / e.rows_per_update,
        calls=means.get("inference/rows_per_s", 0.0) / rows if rows else 0.0,
        call_rows=rows,
        actor_cpu=means.get("system/actor_cpu_share", 0.0),
        server_cpu=means.get("system/inference_cpu_share", 0.0),
        learner_cpu=means.get("system/learner_cpu_share", 0.0),
        relay_cpu=means.get("system/parameter_server_cpu_share", 0.0),
        launcher_cpu=speed.launcher_cores,
        reuse=e.learner.reuse,
        shares={name: round(value, 5) for name, value in means.items() if name.endswith("_share")},
    )


def from_run(run: str, runs_dir: str) -> ServiceTimes:
    """Return the service times from a run's metrics, from the second half of its lines.

    One run cannot separate costs per call from costs per row, nor show another placement or transport than its own.
    """
    folder = RunFolder.open(run, runs_dir)
    experiment = saved_experiment(folder)
    if not experiment.where.processes:
        raise ConfigError(f"{folder.path} was serial: one process shows no waits; take a run with actors.")
    columns = read_metrics(folder.metrics_path)
    lines = len(columns.get("wall_s", ()))
    if lines < 4:
        raise ConfigError(f"{folder.path} has {lines} lines of metrics, expected 4 or more; let it run for longer.")
    half = lines // 2
    late = {name: values[half:] for name, values in columns.items()}
    means = {name: float(np.nanmean(values)) for name, values in late.items() if np.isfinite(values).any()}
    passed_s = float(late["wall_s"][-1] - late["wall_s"][0])
    rate = float(late["env_steps"][-1] - late["env_steps"][0]) / passed_s
    seen = measured(
        Variant(experiment.placement, experiment.encrypted, experiment), Trial(env_steps_per_s=rate, means=means)
    )
    times = fitted([seen], time_environments(experiment, [experiment.group_size]))
    return msgspec.structs.replace(times, experiment=experiment.name, measured=[msgspec.to_builtins(seen)])


def fitted(
    found: Sequence[Measured],
    env: EnvTimes,
    acting: Sequence[tuple[int, float]] = (),
    updates: Sequence[Updates] = (),
    params: ParamsTimes = NO_PARAMS,
) -> ServiceTimes:
    """Return the service times that explain some runs.

    Args:
      found: their measurements. env: of their environments, timed alone. acting: (rows, CPU seconds) of calls, timed alone;
        none: estimated from the runs. updates: timed alone; none: likewise. params: of readers, timed alone.
    """
    near = [one for one in found if not one.far] or list(found)
    far = [one for one in found if one.far]
    return ServiceTimes(
        env=_as_in_runs(env, near),
        actor=_actor(near, far, env, params),
        server=_server(_of(near, SERVED), _of(far, SERVED), acting, params),
        learner=_learner(near, far, updates),
        params=params,
        hop_s=_hop_s(_of(near, SERVED)),
        far_hop_s=_hop_s(_of(far, SERVED)),
        relay_cores=_relay(far).call_s,
        host_cores=sum(one.launcher_cpu for one in found) / len(found),
    )


def _as_in_runs(env: EnvTimes, near: Sequence[Measured]) -> EnvTimes:
    """Return the environments' times with the idle times of these runs instead of those measured alone."""
    ratios = []
    for one in near:
        seen_s = one.share("actor/env_share") * one.actors / one.steps
        alone_s = env.idle_s(one.group_size)
        if alone_s > 0.0:
            ratios.append(min(max((seen_s - env.cpu_s(one.group_size)) / alone_s, 0.5), 2.0))
    ratio = sum(ratios) / len(ratios) if ratios else 1.0
    idle, reset = env.step_idle, env.reset_idle
    return msgspec.structs.replace(
        env,
        step_idle=Cost(ratio * idle.call_s, ratio * idle.row_s),
        reset_idle=Cost(ratio * reset.call_s, ratio * reset.row_s),
    )


def _actor(near: Sequence[Measured], far: Sequence[Measured], env: EnvTimes, params: ParamsTimes) -> ActorTimes:
    """Return the actors' times for a step, without environments and new params."""

    def beside_env(one: Measured) -> float:
        reading = _reading(one, params) / one.steps if one.placement == INLINE else 0.0
        return _actor_s(one) - env.cpu_s(one.group_size) - reading

    inline, served = _of(near, INLINE), _of(near, SERVED)
    act = fit((one.group_size, _act_s(one)) for one in inline)
    own = fit((one.group_size, beside_env(one) - act.of(one.group_size)) for one in inline)
    asking = fit((one.group_size, beside_env(one)) for one in served)
    alone = Cost(act.call_s + own.call_s, act.row_s + own.row_s)
    far_rows = fit((one.group_size, beside_env(one) - alone.of(one.group_size)) for one in _of(far, INLINE))
    before = Cost(asking.call_s + far_rows.call_s, asking.row_s + far_rows.row_s)
    far_asks = fit((one.group_size, beside_env(one) - before.of(one.group_size)) for one in _of(far, SERVED))
    return ActorTimes(act, own, asking, far_rows, far_asks)


def _reading(one: Measured, params: ParamsTimes) -> float:
    """Return the cores that reading new params keeps busy, of all readers."""
    return _versions(one) * (params.far if one.far else params.near)


def _versions(one: Measured) -> float:
    """Return the versions of the params that all readers get per second."""
    return one.updates * one.reuse * (one.actors if one.placement == INLINE else 1)


def _of(found: Iterable[Measured], placement: str) -> list[Measured]:
    return [one for one in found if one.placement == placement]


def _actor_s(one: Measured) -> float:
    return one.actor_cpu / one.steps


def _act_s(one: Measured) -> float:
    """Return the CPU seconds of acting for one step of a group: at most everything except the environment."""
    return min(one.share("actor/act_share") * one.actors / one.steps, _actor_s(one))


def _server(
    near: Sequence[Measured], far: Sequence[Measured], acting: Sequence[tuple[int, float]], params: ParamsTimes
) -> ServerTimes:
    """Return the servers' times: half of what is neither acting nor new params per call, the other half per request."""

    def call_s(one: Measured) -> float:
        return _call_s(one) - _reading(one, params) / one.calls

    asked, asked_far = [one for one in near if one.calls], [one for one in far if one.calls]
    if not asked:
        return ServerTimes()
    alone = fit(acting or ((one.call_rows, _served_act_s(one)) for one in asked))
    beyond = min(max(0.0, _served_act_s(one) - alone.of(one.call_rows)) for one in asked)
    act = Cost(alone.call_s + beyond, alone.row_s)
    rest = min(max(0.0, call_s(one) - act.of(one.call_rows)) for one in asked)
    request_s = rest / 2 / min(one.steps / one.calls for one in asked)
    further = [max(0.0, call_s(one) - act.of(one.call_rows) - rest) * one.calls / one.steps for one in asked_far]
    far_s = min(further, default=0.0)
    thread_s = min(far_s, min(filter(None, map(_beside_s, asked_far)), default=0.0))
    device = max(0.0, act.call_s - min(call_s(one) for one in asked)) if accelerators() else 0.0
    return ServerTimes(
        act=Cost(act.call_s - device, act.row_s),
        act_idle=Cost(device),
        gather=rest / 2,
        request=Cost(request_s),
        far_request=Cost(far_s - thread_s),
        far_thread=Cost(thread_s),
    )


def _beside_s(one: Measured) -> float:
    """Return the CPU seconds of a server for a request that its main thread did not use: more than it was busy."""
    busy = 1.0 - one.share("inference/wait_share") - one.share("inference/wait_params_share")
    return max(0.0, one.server_cpu - busy) / one.steps


def _served_act_s(one: Measured) -> float:
    return one.share("inference/act_share") / one.calls


def _call_s(one: Measured) -> float:
    """Return the CPU seconds of a server for a call, with its requests and replies."""
    return one.server_cpu / one.calls


def _learner(near: Sequence[Measured], far: Sequence[Measured], updates: Sequence[Updates]) -> LearnerTimes:
    """Return the learner's times: updates as timed alone, if they were; else its CPU time except joining counts as updates."""
    joined_s = sum(_join_s(one) for one in near) / len(near)

    def beyond_s(one: Measured, update: Cost) -> float:
        return one.learner_cpu / one.updates - joined_s * _each(one) - one.reuse * update.of(one.batch_rows)

    take = fit((one.rows * one.group_size, _join_s(one)) for one in near)
    if updates:
        cpu, wall = (fit((one.rows, getattr(one, name)) for one in updates) for name in ("cpu_s", "wall_s"))
        batch = fit((one.batch_rows, beyond_s(one, cpu)) for one in near)
        most = max(one.rows for one in updates)
    else:
        cpu = fit((one.batch_rows, beyond_s(one, Cost()) / one.reuse) for one in near)
        wall = fit((one.batch_rows, _update_s(one)) for one in near)
        batch, most = Cost(), max(one.batch_rows for one in near)
    threads = min(max(cpu.of(most) / max(wall.of(most), 1e-9), 0.2), float(usable_cores()))
    further = [max(0.0, beyond_s(one, cpu) - batch.of(one.batch_rows)) / _each(one) for one in far]
    return LearnerTimes(
        update=wall if accelerators() else Cost(cpu.call_s / threads, cpu.row_s / threads),
        threads=0.0 if accelerators() else threads,
        batch=batch,
        take=take,
        far_take=Cost(sum(further) / len(further)) if further else Cost(),
        relay=Cost(_relay(far).row_s),
    )


def _each(one: Measured) -> float:
    return one.batch_rows / (one.rows * one.group_size)


def _join_s(one: Measured) -> float:
    return one.share("learner/prefetch_transport_share") / one.trajectories


def _update_s(one: Measured) -> float:
    """Return the seconds of the learner's main thread per batch, without waits."""
    return max(1.0 - one.share("learner/wait_batch_share"), 0.0) / one.updates / one.reuse


def _relay(far: Sequence[Measured]) -> Cost:
    """Return the cores that an idle parameter server keeps busy, and the CPU seconds of each version for each reader."""
    return fit((_versions(one), one.relay_cpu) for one in far)


def _hop_s(served: Sequence[Measured]) -> float:
    """Return the seconds of one way, from runs in which only one group sends requests: the actor's wait minus the answer."""
    alone = [one for one in served if one.actors * one.ring == 1 and one.calls]
    waits = [one.share("actor/wait_inference_share") / one.steps - one.server_cpu / one.calls for one in alone]
    return max(0.0, sum(waits) / len(waits) / 2) if waits else USUAL_HOP_S
