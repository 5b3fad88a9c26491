"""Building a learner's agent and updater: its devices and its replay; and checks of both before a run."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jsrl.agents.base import Agent, AgentState, Update
from jsrl.agents.finite import with_output_check, with_state_check
from jsrl.agents.minibatches import several_updates
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.building import agent_faults, build_agent, resolved_agent
from jsrl.experiment.numbers import device_columns
from jsrl.experiment.policies import explored_names
from jsrl.parallel import AXIS_NAME
from jsrl.references.importing import import_target
from jsrl.types import EnvSpec, Trajectory, leaves, map_tree, with_columns
from jsrl.workers.acting import UPDATE_STREAM, stream_key
from jsrl.workers.jobs import Job
from jsrl.workers.learner.kind import RESERVED
from jsrl.workers.learner.updaters import OwnUpdate, RingUpdate, Updater

if TYPE_CHECKING:
    from jsrl.replay.device.agent import OnDevice

# imported only where the learner is split, replays, has hyperparameters that a director changes, or scales rewards
SPLIT = "jsrl.workers.learner.split_update:split_update"
EXPLORED = "jsrl.agents.hyperparameters:with_hyperparameters"
SCALED = "jsrl.agents.rewards:with_rewards"
RUNNING_SCALE = "jsrl.agents.rewards:with_running_scale"
WINDOWS = "jsrl.replay.shared:windows_spec"
ON_DEVICE = "jsrl.replay.device.agent:on_device"


def make_updater(agent: Agent, job: Job) -> tuple[Updater, int]:
    """Return the updater, and the number of devices that share each batch."""
    e = job.experiment
    agent = checked(agent, e)
    devices = devices_for(e)
    if e.learner.split != "none":
        return import_target(SPLIT)(job, agent, devices), 1
    ring = replay_on_device(agent, job)
    if ring is not None:
        return RingUpdate(ring, devices, stream_key(e.seed, UPDATE_STREAM)), len(devices)
    several = several_updates(agent, e.updates_per_call)
    # nothing is donated: a check of the new state may need the previous one
    return OwnUpdate(several, devices, stream_key(e.seed, UPDATE_STREAM), donate=False), len(devices)


def trace_update(agent: Agent, experiment: Experiment, state: AgentState, trajectory: Trajectory) -> None:
    """Trace the agent's updates on shapes of a batch, so that an update which breaks the contract starts no worker.

    Args:
      state: shapes of the agent's state. trajectory: schema of the actors' trajectories.
    """
    replay, columns, learner = experiment.buffer, device_columns(experiment), experiment.learner
    if replay is not None:
        columns = replay.batch_size // (learner.num_devices or 1)
        trajectory = import_target(WINDOWS)(replay, trajectory)
    batch = map_tree(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), with_columns(trajectory, columns))
    prioritised = replay is not None and replay.prioritised
    devices = {AXIS_NAME: learner.num_ranks * (learner.num_devices or 1)}

    def trace(update: Update, axis: Mapping[str, int]) -> None:
        checked = with_output_check(update, RESERVED, prioritised=prioritised)
        with agent_faults("update"):  # one that returns no arrays raises only here
            jax.make_jaxpr(
                lambda state, batch, seed: checked(
                    state, batch, jax.random.key(seed), axis_name=next(iter(axis), None)
                ),
                axis_env=list(axis.items()),
            )(state, batch, jax.ShapeDtypeStruct((), jnp.uint32))

    if learner.split == "none":
        return trace(agent.update, devices)
    assert agent.split is not None
    trace(agent.split.policy, {})
    trace(agent.split.critic, {})


def checked(agent: Agent, e: Experiment) -> Agent:
    """Return the agent whose updates are checked for NaN."""
    prioritised = e.buffer is not None and e.buffer.prioritised
    return agent._replace(update=with_state_check(agent.update, prioritised=prioritised))


def split_over_devices(e: Experiment) -> int:
    """Return the number of columns that the learner's devices must divide evenly."""
    if e.buffer is None:
        return e.batch_columns // e.learner.num_ranks
    return e.buffer.batch_size if e.has_replay_workers else math.gcd(e.batch_columns, e.buffer.batch_size)


def replay_on_device(agent: Agent, job: Job) -> OnDevice | None:
    e = job.experiment
    if e.buffer is None or e.buffer.kind != "device":
        return None
    return import_target(ON_DEVICE)(
        agent,
        dataclasses.replace(e.buffer, updates_per_call=e.updates_per_call, updates_per_env_step=None),
        with_columns(job.schemas.trajectory, e.batch_columns),
        frames=job.schemas.env.frames,
        total_updates=job.total_updates,
    )


def missed_ratio(e: Experiment) -> str:
    """Return a warning where whole updates per batch miss replay.updates_per_env_step by more than a fifth; else empty."""
    if e.buffer is None or e.has_replay_workers or e.buffer.updates_per_env_step is None:
        return ""
    asked, made = e.buffer.updates_per_env_step, e.updates_per_env_step
    if abs(made - asked) <= 0.2 * asked:
        return ""
    return (
        f"replay.updates_per_env_step is {asked:g}, an update per {1 / asked:g} env steps, but batches have "
        f"{e.rows_per_update} and get {e.updates_per_call}: {made:g} per env step. Change num_envs or rollout_length."
    )


def unseen_rows(job: Job) -> str:
    """Return a warning where windows of a recurrent agent leave out rows, because they start only where trajectories do."""
    e, replay = job.experiment, job.experiment.buffer
    if replay is None or not leaves(job.schemas.trajectory.core) or replay.window >= e.rollout_length:
        return ""
    return (
        f"windows of {replay.window} rows start where trajectories do, every {e.rollout_length} rows, so the other "
        f"{e.rollout_length - replay.window} rows are never learned from; use --rollout-length {replay.window} or less."
    )


def devices_for(e: Experiment) -> list[jax.Device]:
    """Return the devices of this process that an experiment's learner uses. Raises ConfigError if it has too few."""
    if e.learner.split != "none":
        return learner_devices(2, 2, "leave learner.split out")
    return learner_devices(e.learner_devices, split_over_devices(e))


def learner_devices(number: int | None, columns: int, way_out: str = "lower learner.num_devices") -> list[jax.Device]:
    found = jax.local_devices()
    if jax.process_count() > 1:  # number over all ranks
        number = len(found)
        if len(jax.devices()) != jax.process_count() * number:
            raise ConfigError(
                f"this rank has {number} device(s), but all {jax.process_count()} ranks together have {len(jax.devices())}; "
                "each needs the same number: give learner.num_devices."
            )
    elif number is None:
        number = 1 if found[0].platform == "cpu" else len(found)
        while columns % number:
            number -= 1
    if number > len(found):
        raise ConfigError(
            f"the learner wants {number} devices, but this process sees {len(found)} ({found[0].platform}); {way_out}. "
            "(For a try on CPU alone, start serial runs with XLA_FLAGS="
            f"--xla_force_host_platform_device_count={number}.)"
        )
    return found[:number]


def trained_agent(experiment: Experiment, spec: EnvSpec, hyperparameters: Mapping[str, float]) -> Agent:
    """Return the agent that an experiment trains; `hyperparameters`: name of a field -> its value in a new state."""
    config, build, env = resolved_agent(experiment), functools.partial(build_agent, spec=spec), experiment.env
    agent = import_target(EXPLORED)(config, build, hyperparameters) if hyperparameters else build(config)
    if env.reward_scale == 1.0 and env.reward_clip is None:
        return agent
    if isinstance(env.reward_scale, float | int):
        return import_target(SCALED)(agent, env.reward_scale, env.reward_clip)
    if experiment.buffer is not None:
        raise ConfigError(
            "env.reward_scale=running needs fresh trajectories, and this agent learns from replay; give a number, or "
            "agent.normalize-values where the agent has it."
        )
    gamma = getattr(config, "gamma", 0.99)
    columns = (experiment.batch_columns, *([] if spec.num_agents is None else [spec.num_agents]))
    return import_target(RUNNING_SCALE)(agent, gamma=gamma, clip=env.reward_clip, columns=columns)


def agent_of(experiment: Experiment, spec: EnvSpec) -> Agent:
    """Return the agent that an experiment trains, for existing states."""
    return trained_agent(experiment, spec, dict.fromkeys(explored_names(experiment.director), 0.0))
