"""Rules across the fields of an experiment; messages give the nearest valid values. Ranges are at the fields."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from jsrl.errors import ConfigError, NumbersDisagree, counted, nearest_divisors, nearest_multiples
from jsrl.experiment.policies import check_policies
from jsrl.experiment.settings import ReplayConfig, Trained
from jsrl.fields import AUTO
from jsrl.types import EITHER, FRESH, REPLAY

if TYPE_CHECKING:
    from jsrl.experiment import Experiment


def check(experiment: Experiment) -> None:
    e = experiment
    if isinstance(e.agent, type):
        raise ConfigError(f"agent is the class {e.agent.__name__}; make an instance: agent={e.agent.__name__}(...).")
    if hasattr(e.agent, "initial_core"):
        raise ConfigError(
            "agent is an Agent, whose functions no other process can be given; give what makes it there: "
            "AgentReference(factory, kwargs), where factory(spec, **kwargs) returns the Agent."
        )
    if isinstance(e.agent, dict | list | tuple):
        raise ConfigError(
            "an experiment has one agent (a config such as PPOConfig). Several policies in one environment are its policies: "
            "policies={NAME: PolicyConfig(agent, seats=...)}. To train policies on environments of their own, see "
            "Two policies in docs/dataflow.md."
        )
    check_policies(e)
    _check_learns_from(e)
    if e.stop_at_return is not None and not e.evaluator.enabled:
        raise ConfigError(
            f"stop_at_return={e.stop_at_return} is decided by the evaluator, which is off; set evaluator.enabled."
        )
    _check_against(e)
    _check_groups(e)
    _check_devices_and_lag(e)
    _check_director(e)
    if e.buffer is not None:
        _check_replay(e, e.buffer)
    _check_split(e)
    _check_ranks(e)
    if e.where.trains == "fused":
        _check_fused(e)
    if e.recording is not None and (e.buffer is not None or e.record is not None):
        other = "replay" if e.buffer is not None else f"record={e.record!r}"
        raise ConfigError(
            f"recording={e.recording!r} trains on recorded trajectories, without actors; {other} is for a run that has some. "
            "Leave one of them out (`jsrl run bc --recording DIR` has no replay)."
        )
    _check_bind(e)
    _ = e.evaluation_env, e.filmed_env  # made here so that an unknown option is refused before anything starts


def _check_groups(e: Experiment) -> None:
    """Environments form equal groups, actors have equally many of them, and a batch takes whole ones."""
    if e.envs % e.groups:
        raise NumbersDisagree(
            f"num_envs={e.envs} cannot be split into {e.groups} equal groups; use "
            f"{'num_actors' if e.num_groups is None else 'num_groups'} {nearest_divisors(e.envs, e.groups)}, or num_envs "
            f"{nearest_multiples(e.envs, e.groups)}."
        )
    if e.groups % e.actors:
        groups = [n for n in range(e.actors, e.envs + 1, e.actors) if e.envs % n == 0]
        nearest = min(groups, key=lambda n: abs(n - e.groups), default=e.actors)
        also = "" if groups else f" with num_envs {nearest_multiples(e.envs, e.actors)}"
        raise NumbersDisagree(
            f"{e.groups} groups cannot be divided evenly among {counted(e.actors, 'actor')}; use num_actors "
            f"{nearest_divisors(e.groups, e.actors)}, or num_groups {nearest}{also}."
        )
    if e.batch_columns % e.group_size or e.batch_columns > e.envs:
        options = [k * e.group_size for k in range(1, e.groups + 1)]
        nearest = min(options, key=lambda n: abs(n - e.batch_columns))
        raise NumbersDisagree(
            f"batch_envs={e.batch_columns} is not a number of whole groups of {e.group_size} environments (of which there "
            f"are {e.groups}); the nearest that works is {nearest}."
        )


def _check_learns_from(e: Experiment) -> None:
    """Refuse an agent whose data is of another kind than it learns from."""
    if e.policies and e.replay != AUTO:
        raise ConfigError(
            "the experiment has a replay beside its policies; each policy has its own: leave it out, and give "
            "policies={NAME: PolicyConfig(agent, replay=...)}."
        )
    parts: dict[str, Trained] = {f"policies.{name}.": policy for name, policy in e.policies.items()}
    for prefix, one in (parts or {"": e}).items():
        kind, name = one.learns_from, type(one.agent).__name__
        if kind != EITHER and e.recording is not None:
            raise ConfigError(
                f"{name} learns from {'replay' if kind == REPLAY else 'fresh trajectories'}, and "
                f"recording={e.recording!r} is neither; leave it out, or use BC (`jsrl run bc --recording DIR`)."
            )
        if kind == REPLAY and one.buffer is None:
            raise ConfigError(
                f"{prefix}replay is none, but {name} learns from replay; leave it out, for what {name} usually has, or give a "
                "ReplayConfig."
            )
        if kind == FRESH and one.buffer is not None:
            raise ConfigError(
                f"{name} learns from fresh trajectories, and rows of a replay are older; leave {prefix}replay out, or choose "
                "an agent that learns from replay, such as DQN or SAC."
            )


def split_bind(bind: str) -> tuple[str, int | None]:
    """Return the IP address and the first port of an option `bind`; port None: any free ports."""
    found = re.fullmatch(r"\[(.*)\](?::(\d{1,5}))?", bind) or re.fullmatch(r"([^:]*)(?::(\d{1,5}))?", bind)
    host, port = found.groups() if found else (bind, None)
    try:
        address = str(ipaddress.ip_address(host))
        if port is not None and not 0 < int(port) < 65536:
            raise ValueError(port)
    except ValueError:
        raise ConfigError(
            f"bind is {bind!r}; expected an IP address of this host, such as 10.0.0.5, or 0.0.0.0 for all of them. With a "
            "first port: 10.0.0.5:7000, for IPv6 [fd00::5]:7000."
        ) from None
    return address, None if port is None else int(port)


def leaves_host(e: Experiment) -> bool:
    """Return whether the options `bind` and `encrypt` ask for streams over TCP."""
    address, port = split_bind(e.bind)
    return e.encrypt or port is not None or not ipaddress.ip_address(address).is_loopback


def _check_bind(e: Experiment) -> None:
    if leaves_host(e) and e.transport != "zeromq":
        given = "encrypt" if e.encrypt else f"bind {e.bind}"
        raise ConfigError(
            f"{given} is for streams over ZeroMQ, but the transport is {e.transport}, which never leaves this host; "
            f"add --transport zeromq."
        )


def _check_against(e: Experiment) -> None:
    opponents = e.evaluator.against
    if not opponents:
        return
    if not e.evaluator.enabled:
        raise ConfigError(
            f"evaluator.against is {', '.join(opponents)}, but the evaluator is off; set evaluator.enabled, or remove the "
            "opponents: --evaluator.against ''."
        )
    if len(set(opponents)) < len(opponents):
        raise ConfigError(f"evaluator.against names one twice: {', '.join(opponents)}; name each once.")
    goal, frozen = e.stop_at_return, [name for name in opponents if "@" not in name]
    if goal is not None and not 0 < goal <= 1:
        raise ConfigError(
            f"stop_at_return is {goal:g}, but with evaluator.against the score is a win rate; give a number from 0 to 1."
        )
    later = [name for name in frozen if name.rpartition("/")[2] != "initial"]
    if later and e.director is None:
        raise ConfigError(
            f"evaluator.against names the frozen player {later[0]!r}, and only a director freezes players; name initial, or "
            "a snapshot of another run: RUN@TAG."
        )
    if len(later) == len(opponents):
        raise ConfigError(
            f"evaluator.against names only players that are frozen later ({', '.join(later)}); add initial, so that there is "
            "an opponent from the start."
        )


def _check_director(e: Experiment) -> None:
    if e.director is None:
        return
    if not all(callable(getattr(e.director, name, None)) for name in ("init", "propose", "report")):
        raise ConfigError(f"director is {e.director!r}; give a director such as jsrl.PFSP(...).")
    if e.recording is not None or e.record is not None:
        option = "recording" if e.recording is not None else "record"
        raise ConfigError(f"{option} is for runs without a director; leave one of them out.")


def _check_devices_and_lag(e: Experiment) -> None:
    devices = e.learner.num_devices if e.learner.split == "none" else None
    columns, each = e.batch_columns // e.learner.num_ranks, " of each rank" if e.learner.num_ranks > 1 else ""
    if devices is not None and columns % devices:
        raise NumbersDisagree(
            f"a batch of {columns} environments{each} cannot be split over learner.num_devices={devices}; use "
            f"{nearest_divisors(columns, devices)} devices, or a batch that is a multiple."
        )
    if e.max_policy_lag == 0 and e.order != "by_group" and not e.has_replay_workers:
        raise NumbersDisagree(
            "max_policy_lag=0 (synchronous) needs batches of one trajectory of every group: batch_envs equal to num_envs. "
            "Otherwise allow a lag of at least 1."
        )
    if e.deterministic and e.order != "by_group":
        raise NumbersDisagree(
            "deterministic mode takes the groups in order: use batch_envs equal to num_envs, and no replay workers. (Serial "
            "placement is deterministic with any order.)"
        )
    if e.max_policy_lag == 0 and e.learner.reuse > 1:
        raise ConfigError(
            f"learner.reuse={e.learner.reuse} uses a batch for several updates, which max_policy_lag=0 excludes; use the "
            f"agent's num_epochs for several passes, or allow a lag of at least {e.learner.reuse - 1}."
        )
    if e.deterministic and e.max_policy_lag != 0 and e.where.processes:
        raise ConfigError(
            f"deterministic mode waits for each version, but max_policy_lag={e.max_policy_lag} does not; use 0, or serial."
        )


def _check_split(e: Experiment) -> None:
    if e.learner.split == "none":
        return
    if e.learner.num_devices not in (None, 2):
        raise ConfigError(
            f"learner.split puts the policy on one device and the critics on another, so "
            f"learner.num_devices={e.learner.num_devices} is not possible; leave it out. To spread each batch "
            "over devices, leave learner.split out."
        )
    if e.buffer is not None and e.buffer.prioritised:
        raise ConfigError(
            "learner.split draws the same windows on both sides, which replay.prioritised would change on one of them alone; "
            "set it to false."
        )


def _check_ranks(e: Experiment) -> None:
    ranks = e.learner.num_ranks
    if ranks == 1:
        return
    others = {
        "replay": e.buffer is not None,
        f"recording={e.recording!r}": e.recording is not None,
        f"learner.split={e.learner.split}": e.learner.split != "none",
        "a director": e.director is not None,
        f"placement {e.placement}": not e.where.processes,
    }
    if given := [name for name, is_given in others.items() if is_given]:
        raise ConfigError(
            f"learner.num_ranks={ranks} divides batches of fresh trajectories over processes; it cannot be combined with "
            f"{given[0]}. Leave one of them out."
        )
    if e.num_actors != "auto" and e.actors % ranks:
        raise NumbersDisagree(
            f"{counted(e.actors, 'actor')} cannot be divided evenly among learner.num_ranks={ranks}; use num_actors "
            f"{max(1, e.actors // ranks) * ranks}, or another multiple."
        )
    if e.num_actors != "auto" and e.batch_columns % (ranks * e.group_size):
        nearest = -(-e.batch_columns // (ranks * e.group_size)) * ranks * e.group_size
        raise NumbersDisagree(
            f"a batch of {e.batch_columns} environments cannot be divided among learner.num_ranks={ranks} in whole groups "
            f"of {e.group_size}; use batch_envs {nearest}, or a larger num_groups."
        )


def _check_fused(e: Experiment) -> None:
    """In a fused program one policy learns from whole batches of its own environments, a group on each device."""
    if not e.env.in_jax:
        raise ConfigError(
            f"placement fused compiles the environment, and {e.env.id!r} is not in JAX; give one of gymnax:, brax:, "
            "jaxmarl: or craftax:, or your own with env.backend=jax (jsrl.extend.JaxEnv), or another placement."
        )
    devices = e.learner.num_devices or 1
    others = {
        "policies": bool(e.policies),
        "a director": e.director is not None,
        f"record={e.record!r}": e.record is not None,
        f"recording={e.recording!r}": e.recording is not None,
        "replay.kind=host": e.has_replay_workers,
        f"learner.num_ranks={e.learner.num_ranks}": e.learner.num_ranks > 1,
        f"learner.split={e.learner.split}": e.learner.split != "none",
        f"learner.reuse={e.learner.reuse}": e.learner.reuse > 1,
        f"batch_envs={e.batch_envs}": e.batch_columns != e.envs,
        f"num_groups={e.num_groups}, other than learner.num_devices={devices}": e.num_groups not in (None, devices),
        "env.tasks": bool(e.env.tasks),
        "env.on_fault=restart-env": e.env.on_fault == "restart-env",
    }
    if given := [name for name, is_given in others.items() if is_given]:
        raise ConfigError(
            f"placement fused cannot be combined with {given[0]}; leave it out, or choose another placement."
        )


def _check_replay(e: Experiment, r: ReplayConfig) -> None:
    if (burn_in := getattr(e.agent, "burn_in", 0)) >= r.window:
        raise ConfigError(
            f"replay.window is {r.window}, which leaves no row to learn from after agent.burn_in={burn_in}; make the window "
            "longer, or burn_in smaller."
        )
    if e.learner.reuse > 1:
        raise ConfigError(f"learner.reuse is {e.learner.reuse}; with replay use replay.updates_per_call instead.")
    devices = (e.learner.num_devices or 1) if e.learner.split == "none" else 1
    if r.batch_size % devices:
        raise ConfigError(
            f"replay.batch_size={r.batch_size} cannot be split over learner.num_devices={devices}; use "
            f"{-(-r.batch_size // devices) * devices}."
        )
    if r.kind == "device":
        _check_device_replay(e, r)
    elif r.num_replays > e.actors:
        raise NumbersDisagree(
            f"replay.num_replays={r.num_replays}, but only {counted(e.actors, 'actor')} can feed them; use at most that."
        )


def _check_device_replay(e: Experiment, r: ReplayConfig) -> None:
    if e.order != "by_group":
        raise NumbersDisagree(
            f"replay.kind=device keeps a column for each environment, so batches hold all of them in order; leave batch_envs "
            f"({e.batch_columns} of {e.envs}) out, or use replay.kind=host."
        )
    if r.num_replays > 1:
        raise ConfigError(
            f"replay.num_replays={r.num_replays} needs replay.kind=host; on the device there is one replay."
        )
    if r.updates_per_env_step is not None and r.updates_per_call is not None:
        asked = r.updates_per_env_step * e.rows_per_update
        if round(asked) != r.updates_per_call:
            raise NumbersDisagree(
                f"replay.updates_per_call={r.updates_per_call}, but updates_per_env_step={r.updates_per_env_step:g} asks for "
                f"{asked:g} updates per batch of {e.rows_per_update} env steps; leave one of them out."
            )
