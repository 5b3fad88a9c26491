"""`auto` in placement, actors and environments: the values for one machine. Pure: the machine is an argument."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from jsrl.errors import ConfigError
from jsrl.experiment.experiment import Experiment
from jsrl.experiment.placements import PlacementName
from jsrl.experiment.settings import Trained
from jsrl.fields import AUTO, filled
from jsrl.types import EnvSpec, is_image, own_leaves

ENVS_PER_ACTOR = 8  # with fewer, acting in small batches costs more than another core gains
WIDE = 512  # units of a layer from which an accelerator acts faster than a CPU core


class Machine(NamedTuple):
    """The facts that decide a placement: usable cores, accelerators, and the threads of XLA if they are given."""

    cores: int
    accelerators: int = 0
    threads: int | None = None


def decided_for(experiment: Experiment, machine: Machine, spec: Callable[[], EnvSpec]) -> tuple[Experiment, str | None]:
    """Return the experiment with `auto` decided for a machine, and a sentence about it; None: nothing was `auto`.

    Environments: see Experiment.envs. Placement: `fused` if the environment is in JAX and no other option excludes it,
    `served` if there is an accelerator and a large network (images, a recurrent core, layers of 512 units or an unknown
    network), else `inline`. Actors: one per core (one less if actors and learner work at the same time), with at least 8
    environments each, as far as groups can be divided evenly. `spec` returns the environment's spec; it is called only if
    it is needed. A deterministic run on CPU also gets its number of threads: XLA sums in parts, one per thread.
    """
    chosen: dict[str, str | int] = {}
    if experiment.num_envs == AUTO:
        chosen["num-envs"] = experiment.envs
        experiment = dataclasses.replace(experiment, num_envs=experiment.envs)
    if experiment.placement == AUTO:
        experiment = dataclasses.replace(experiment, placement=_placement(experiment, machine, spec))
        chosen["placement"] = experiment.placement
    if experiment.num_actors == AUTO:
        experiment = dataclasses.replace(experiment, num_actors=most_actors(experiment, machine))
        if experiment.where.processes and experiment.where.has_actors and experiment.recording is None:
            chosen["num-actors"] = experiment.actors
    if experiment.is_deterministic and experiment.learner.threads is None and not machine.accelerators:
        learner = dataclasses.replace(experiment.learner, threads=machine.threads or machine.cores)
        experiment = dataclasses.replace(experiment, learner=learner)
    if not chosen:
        return experiment, None
    options = " ".join(f"--{name} {value}" for name, value in chosen.items())
    return experiment, f"auto: {options} (for {_counted(machine.cores, 'core')}, {_accelerators(machine.accelerators)})"


def _placement(experiment: Experiment, machine: Machine, spec: Callable[[], EnvSpec]) -> PlacementName:
    if experiment.env.in_jax:
        with contextlib.suppress(ConfigError):
            return dataclasses.replace(experiment, placement="fused").placement
    return "served" if machine.accelerators > 0 and has_large_network(experiment, spec) else "inline"


def with_replays(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """Return the experiment with `auto` decided for the replay of each agent, and a line about each that has one."""
    policies = {name: filled(policy, replay=policy.buffer) for name, policy in experiment.policies.items()}
    lines = [_usual_line(f"policies.{name}.", policy) for name, policy in experiment.policies.items()]
    lines += [] if policies else [_usual_line("", experiment)]
    decided = filled(experiment, policies=policies, replay=AUTO if policies else experiment.buffer)
    return decided, list(filter(None, lines))


def _usual_line(prefix: str, trained: Trained) -> str:
    """Return the line about a replay that an agent usually has; empty: it was given, or there is none."""
    if trained.replay != AUTO or (usual := trained.usual_replay) is None:
        return ""
    values = {name: getattr(usual, name) for name in getattr(trained.agent, "usual_replay", {})}
    options = [f"--{prefix}replay.{name.replace('_', '-')} {value}" for name, value in values.items()]
    settings = " ".join(options) or f"replay of {prefix or 'the run'} with the defaults of ReplayConfig"
    return f"auto: {settings} (usual for {type(trained.agent).__name__})"


def has_large_network(experiment: Experiment, spec: Callable[[], EnvSpec]) -> bool:
    """Return whether the network is large enough to act on an accelerator."""
    network = getattr(experiment.agent, "network", None)
    if network is None or network.torso not in ("auto", "mlp"):
        return True
    if network.core != "none" or max(network.hidden, default=0) >= WIDE:
        return True
    return network.torso == "auto" and any(is_image(leaf) for _, leaf in own_leaves(spec()))


def most_actors(experiment: Experiment, machine: Machine) -> int:
    """Return the largest suitable number of actors that divides the experiment's environments."""
    overlap = experiment.max_policy_lag != 0
    most = min(machine.cores - overlap, experiment.envs // ENVS_PER_ACTOR)
    for count in range(most, 1, -1):
        try:
            dataclasses.replace(experiment, num_actors=count)
        except ConfigError:
            continue
        return count
    return experiment.learner.num_ranks  # each rank has at least one


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _accelerators(count: int) -> str:
    return _counted(count, "accelerator") if count else "no accelerator"
