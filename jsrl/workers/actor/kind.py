"""Actors: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from collections import Counter
from typing import Any

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.base import end_hint
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import Headline, Kind, Lifecycle, Port, Resources, Shown, Travel, ended_by_own_code


def loads_jax(worker: Any) -> bool:
    """Return whether an actor acts itself for some policy, or its environments are in JAX."""
    experiment = getattr(worker, "experiment", None)
    if experiment is not None and experiment.env.in_jax:
        return True
    return any(one.has("params") for one in (worker, *getattr(worker, "others", ())))


def check_acting(worker: Any) -> None:
    """Refuse an actor with no source of actions for a policy, or with two."""
    ports = Counter(link.port for link in worker.links)
    if ports["inference"] + ports["params"] != ports["samples"]:
        raise ConfigError(
            f"{worker.name} must have either inference (a server acts for it) or params (it acts itself), not "
            f"{'both' if worker.has('params') else 'neither'}."
        )


def min_restarts(experiment: Experiment) -> int:
    return experiment.env.fault_limit if experiment.env.on_fault == "restart-actor" else 0


def may_restart(job: Job, status: int | None, error: str | None) -> bool:
    """Return False if an environment fault ended the actor and `env.on_fault` is `stop`.

    A signal from elsewhere (SIGKILL, SIGTERM) is no environment fault.
    """
    if job.experiment.env.on_fault != "stop":
        return True
    if error is not None:
        return error != "EnvironmentFault"
    return not ended_by_own_code(status)


ACTIVITIES = (
    Activity("env", "simulate", "share of time inside environments", "above 0.5"),
    Activity("act", "infer", "share of time acting (inline placement)", "below env_share"),
    Activity(
        "wait_inference",
        "wait",
        "share of time waiting for actions",
        "below 0.3 (else: more groups)",
        waits_for="actions",
    ),
    Activity(
        "wait_params",
        "wait",
        "share of time waiting for newer params (inline placement)",
        "near 0 when async",
        waits_for="params",
    ),
    Activity(
        "wait_block",
        "wait",
        "share of time waiting for room in the sample stream",
        "near 0 when async",
        waits_for="room",
    ),
    Activity(
        "wait_games", "wait", "share of time waiting for a director's assignments", "near 0", waits_for="a director"
    ),
    Activity("transport", "transport", "share of time writing rows, committing them and asking for actions"),
)

METRICS = (
    Metric("env_steps_per_s", "env steps taken by all actors", "1/s", "as high as the machine allows"),
    Metric("episodes", "episodes finished so far", "count", "rises", "total"),
    Metric(
        "return_mean",
        "mean raw return of the first policy in the last 100 episodes of each actor",
        "reward",
        "rises",
        "",
        "actor/episodes",
    ),
    Metric("length_mean", "mean length of those episodes", "steps", "depends", "", "actor/episodes"),
    Metric("trained_rows_share", "share of rows that train a policy, where a director assigns", "0-1", "0.5 and above"),
    Metric("env_faults", "faulty environments that were rebuilt so far (env.on_fault)", "count", "0", "total"),
    Metric("recorded", "trajectories copied for the recording so far", "count", "rises, where one is made", "total"),
    Metric(
        "recording_dropped", "trajectories not recorded: disk too slow, full, or at its limit", "count", "0", "total"
    ),
)

KIND = Kind(
    name="actor",
    plural="actors",
    build="jsrl.workers.actor.build:build_actor",
    ports=(
        Port("samples", "samples", "writes", schemas=("trajectory",), by_policy=True),
        Port("inference", "inference", "asks", optional=True, by_policy=True),
        Port("params", "params", "reads", optional=True, by_policy=True),
    ),
    loads_jax=loads_jax,
    sends=("games",),
    check=check_acting,
    resources=Resources(forks=True),
    lifecycle=Lifecycle(min_restarts=min_restarts, may_restart=may_restart),
    shown=Shown(ACTIVITIES, METRICS, Headline("env_steps_per_s", "steps/s"), death_hint=end_hint),
    travel=Travel(needs_folder=""),
)
