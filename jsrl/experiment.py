"""An experiment as a frozen value: environment + agent + limits + placement. It checks itself; nothing runs here.

Totals are totals: `num_envs`, `rollout_length` and `batch_envs` describe what is learned from; placement and the number of
actors only say who does the work, and never change it. What does not divide is refused, with the nearest numbers that do.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError

PlacementKind: TypeAlias = Literal["serial", "inline", "served", "apart"]
ROADS = ("shared-memory", "zeromq")


@dataclass(frozen=True)
class AgentReference:
    """An agent of the user's: `factory(spec, **kwargs) -> Agent`, a function or `module:function`."""

    factory: str | Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ActorConfig:
    """How actors work."""

    blocks_per_group: int = 2
    """Room for trajectories that each group may fill ahead of the learner (back-pressure beyond)."""
    step_deadline_s: float = 60.0
    """An environment that does not return from reset or step within this time ends its actor, by name."""


@dataclass(frozen=True)
class InferenceConfig:
    """How inference servers batch."""

    max_rows: int = 1024
    """Rows in one batch at most; requests of whole groups are never split."""
    max_wait_s: float = 0.0
    """After the first request, wait this long for more of them (0: take what has arrived)."""
    device: str = "auto"
    """Where servers act: auto (served: the learner's device; apart: its own), cpu, or an index such as gpu:1."""
    threads: int = 1
    """CPU threads of a server's matrix products."""


@dataclass(frozen=True)
class LearnerConfig:
    """How the learner consumes trajectories."""

    num_devices: int | None = None
    """Devices to spread each batch over (pmap); None: every visible accelerator, or one CPU device."""
    order: Literal["auto", "by_group", "fifo", "freshest"] = "auto"
    """Which trajectories make a batch: one of every group, first in, or newest first (older ones stay behind)."""
    reuse: int = 1
    """How many updates each batch is used for."""
    check_finite: bool = True
    """Stop before publishing when a metric is not finite, with state and batch saved (keeps the state undonated)."""
    threads: int | None = None
    """CPU threads of the learner's matrix products; None: as many as there are cores."""
    memory_share: float = 0.6
    """Share of the accelerator's memory that the learner takes when others use it as well."""


@dataclass(frozen=True)
class EvaluatorConfig:
    """How snapshots are played without learning: own environment options, own seeds, a fixed number per slot."""

    enabled: bool = True
    episodes: int = 20
    """Greedy episodes of one snapshot for one score."""
    sampled_episodes: int = 0
    """Episodes with sampled actions as well (reported apart)."""
    final_episodes: int = 100
    """Episodes with fresh seeds after the end, outside the clock (0: none)."""
    num_envs: int = 20
    """Environments stepped together; `episodes` is shared out evenly."""
    period_env_steps: int | None = None
    """Env steps of training between evaluations; None: a fortieth of the total."""
    env: dict[str, Any] = field(default_factory=dict)
    """Options that differ from the training environment (rewards are always raw, lives never end an episode)."""


@dataclass(frozen=True)
class DeadlineConfig:
    """How long the controller waits before it calls a worker lost."""

    ready_s: float = 180.0
    """From a worker's start until it works; the message says which stage it is in."""
    silence_s: float = 30.0
    """Without a heartbeat (each worker has a thread for it) a worker counts as stopped, or stuck in one call."""
    leave_s: float = 10.0
    """For a worker to leave in order; a tenth of it after Ctrl-C."""
    snapshot_s: float = 60.0
    """For the final snapshot."""


@dataclass(frozen=True)
class SnapshotConfig:
    """When durable copies are written."""

    period_s: float = 60.0
    keep: int = 3


@dataclass(frozen=True)
class Experiment:
    """Everything that one run is; `run.py` prints it, stores it, and hands each worker its part."""

    agent: Any
    """A config such as PPOConfig (its class names its factory), or an AgentReference."""
    env: EnvConfig = field(default_factory=EnvConfig)
    name: str = "experiment"
    total_env_steps: int = 1_000_000
    """Stop after this many env steps were trained on (whole updates)."""
    max_minutes: float | None = None
    """Stop after this wall-clock time."""
    stop_at_return: float | None = None
    """Stop when one snapshot's greedy evaluation reaches this mean return."""
    seed: int = 0
    """Of environments, acting and learning; evaluations use others."""

    num_envs: int = 16
    """Environments in all, over every actor."""
    rollout_length: int = 128
    """Rows T of a trajectory."""
    batch_envs: int | None = None
    """Environments (columns) of one update's batch; None: num_envs, so that each update sees every environment once."""
    max_policy_lag: int | None = 0
    """Updates that rows may be behind the learner: 0 is synchronous (on-policy), None unbounded (IMPALA)."""

    placement: PlacementKind = "served"
    """serial: one process; inline: actors act; served: inference server on the learner's device; apart: on its own."""
    num_actors: int = 1
    """Actor processes; whole groups of environments are shared out over them."""
    num_groups: int | None = None
    """Groups of environments (each steps, acts and travels as one); None: chosen. Groups per actor = its ring."""
    num_inference_servers: int = 1
    """Inference servers, which share the actors between them."""
    road: Literal["shared-memory", "zeromq"] = "shared-memory"
    """What streams between processes go over; zeromq also between hosts, and without shared memory."""
    deterministic: bool = False
    """Same bits for any placement and number of actors: fixed groups, never merged, taken in order (serial always is)."""
    restart: int = 0
    """How often each actor may be restarted after it died, before the run ends."""

    actor: ActorConfig = field(default_factory=ActorConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)

    def __post_init__(self) -> None:
        check(self)

    # Derived numbers are properties, never fields to be filled in.

    @property
    def groups(self) -> int:
        """Return the number of groups of environments."""
        if self.num_groups is not None:
            return self.num_groups
        if self.deterministic:
            return math.gcd(self.num_envs, 4)
        # As few groups as there must be: batches are whole groups, actors host whole groups; served ones want two each,
        # so that one steps while the other waits for its actions.
        fewest = math.lcm(self.num_envs // math.gcd(self.num_envs, self.batch_columns), self.actors)
        served = self.placement in ("served", "apart")
        return 2 * fewest if served and fewest == self.actors and self.num_envs % (2 * fewest) == 0 else fewest

    @property
    def group_size(self) -> int:
        """Return the environments B_g of one group."""
        return self.num_envs // self.groups

    @property
    def ring(self) -> int:
        """Return the groups of one actor."""
        return self.groups // self.actors

    @property
    def actors(self) -> int:
        """Return how many actors there are (one in serial mode)."""
        return 1 if self.placement == "serial" else self.num_actors

    @property
    def batch_columns(self) -> int:
        """Return the environments of one update's batch."""
        return self.num_envs if self.batch_envs is None else self.batch_envs

    @property
    def rows_per_update(self) -> int:
        """Return the env steps that one batch holds."""
        return self.batch_columns * self.rollout_length

    @property
    def total_updates(self) -> int:
        """Return the updates of the whole run."""
        return max(1, math.ceil(self.total_env_steps / self.rows_per_update)) * self.learner.reuse

    @property
    def order(self) -> str:
        """Return which trajectories make a batch, with `auto` decided."""
        if self.learner.order != "auto":
            return self.learner.order
        by_group = self.batch_columns == self.num_envs and (self.max_policy_lag is not None or self.deterministic)
        return "by_group" if by_group else "fifo"

    @property
    def is_deterministic(self) -> bool:
        """Return whether every bit of the run is fixed by the seed."""
        return self.deterministic or self.placement == "serial"

    @property
    def min_updates_lag(self) -> int | None:
        """Return K such that a group's trajectory n waits for version n - K; None: it never waits."""
        return self.max_policy_lag if self.order == "by_group" else None

    @property
    def evaluation_period(self) -> int:
        """Return the updates between evaluations."""
        env_steps = self.evaluator.period_env_steps or self.total_env_steps // 40
        return max(1, env_steps * self.learner.reuse // self.rows_per_update)

    @property
    def evaluation_env(self) -> EnvConfig:
        """Return the evaluator's environment: raw rewards, whole games, own options on top."""
        known = {f.name for f in dataclasses.fields(self.env)}
        unknown = sorted(set(self.evaluator.env) - known)
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(known))}."
            raise ConfigError(f"evaluator.env has no option {unknown[0]!r}; {hint}")
        whole_games = dataclasses.replace(self.env.atari, episodic_life=False)
        overrides = {"reward_clip": None, "reward_scale": 1.0, "atari": whole_games} | self.evaluator.env
        return dataclasses.replace(self.env, **overrides)


def nearest_divisors(number: int, wanted: int) -> str:
    """Return the divisors of `number` next to `wanted`, for messages."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = max((d for d in divisors if d <= wanted), default=None)
    above = min((d for d in divisors if d >= wanted), default=None)
    return " or ".join(str(d) for d in dict.fromkeys((below, above)) if d is not None)


def check(experiment: Experiment) -> None:
    """Refuse what cannot work.

    Raises:
      ConfigError: says which option, what it was, and the nearest values that work.
    """
    e = experiment
    if isinstance(e.agent, dict | list | tuple):
        raise ConfigError(
            "several policies in one experiment are not available yet; give one agent (a config such as PPOConfig)."
        )
    positive = {
        "total_env_steps": e.total_env_steps,
        "num_envs": e.num_envs,
        "rollout_length": e.rollout_length,
        "num_actors": e.num_actors,
        "batch_envs": e.batch_columns,
        "num_inference_servers": e.num_inference_servers,
        "learner.reuse": e.learner.reuse,
        "actor.blocks_per_group": e.actor.blocks_per_group,
        "evaluator.num_envs": e.evaluator.num_envs,
        "evaluator.episodes": e.evaluator.episodes,
    }
    for name, value in positive.items():
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1.")
    if e.groups < 1:
        raise ConfigError(f"num_groups is {e.groups}; it must be at least 1.")
    for name, seconds in dataclasses.asdict(e.deadlines).items():
        if not seconds > 0:
            raise ConfigError(f"deadlines.{name} is {seconds}; it must be a number of seconds above 0.")
    if e.max_minutes is not None and not e.max_minutes > 0:
        raise ConfigError(f"max_minutes is {e.max_minutes}; it must be above 0, or None for no limit.")
    if e.stop_at_return is not None and not e.evaluator.enabled:
        raise ConfigError(
            f"stop_at_return={e.stop_at_return} is decided by the evaluator, which is off; set evaluator.enabled."
        )
    if e.num_envs % e.groups:
        raise ConfigError(
            f"num_envs={e.num_envs} cannot be split into {e.groups} equal groups; use "
            f"{'num_actors' if e.num_groups is None else 'num_groups'} {nearest_divisors(e.num_envs, e.groups)}, or num_envs "
            f"{e.num_envs // e.groups * e.groups or e.groups} or {-(-e.num_envs // e.groups) * e.groups}."
        )
    if e.groups % e.actors:
        raise ConfigError(
            f"{e.groups} groups cannot be shared out evenly over {e.actors} actors; use num_actors "
            f"{nearest_divisors(e.groups, e.actors)}, or a num_groups that is a multiple of {e.actors}."
        )
    if e.batch_columns % e.group_size or e.batch_columns > e.num_envs:
        options = [k * e.group_size for k in range(1, e.groups + 1)]
        nearest = min(options, key=lambda n: abs(n - e.batch_columns))
        raise ConfigError(
            f"batch_envs={e.batch_columns} is not a number of whole groups of {e.group_size} environments (of which there "
            f"are {e.groups}); the nearest that works is {nearest}."
        )
    _check_devices_and_lag(e)
    _ = e.evaluation_env  # made here so that an unknown option is refused before anything starts


def _check_devices_and_lag(e: Experiment) -> None:
    devices = e.learner.num_devices
    if devices is not None and (devices < 1 or e.batch_columns % devices):
        raise ConfigError(
            f"a batch of {e.batch_columns} environments cannot be split over learner.num_devices={devices}; use "
            f"{nearest_divisors(e.batch_columns, max(1, devices))} devices, or a batch that is a multiple."
        )
    if not re.fullmatch(r"auto|cpu|gpu:\d+", e.inference.device):
        raise ConfigError(f"inference.device is {e.inference.device!r}; use auto, cpu, or an index such as gpu:1.")
    if e.max_policy_lag is not None and e.max_policy_lag < 0:
        raise ConfigError(f"max_policy_lag is {e.max_policy_lag}; use 0 (synchronous), a positive number, or None.")
    if e.order == "by_group" and e.batch_columns != e.num_envs:
        raise ConfigError(
            f"learner.order=by_group takes one trajectory of every group, but batch_envs={e.batch_columns} is not "
            f"num_envs={e.num_envs}; use learner.order=fifo, or make them equal."
        )
    if e.max_policy_lag == 0 and e.order != "by_group":
        raise ConfigError(
            "max_policy_lag=0 (synchronous) needs batches of one trajectory of every group: batch_envs equal to num_envs "
            "and learner.order auto or by_group. Otherwise allow a lag of at least 1."
        )
    if e.deterministic and e.order != "by_group":
        raise ConfigError(
            "deterministic mode takes the groups in order: use batch_envs equal to num_envs and learner.order auto or "
            "by_group. (Serial placement is deterministic with any order.)"
        )
    if e.max_policy_lag == 0 and e.learner.reuse > 1:
        raise ConfigError(
            f"learner.reuse={e.learner.reuse} uses a batch for several updates, which max_policy_lag=0 excludes; use the "
            f"agent's num_epochs for several passes, or allow a lag of at least {e.learner.reuse - 1}."
        )
    if e.deterministic and e.max_policy_lag != 0 and e.placement != "serial":
        raise ConfigError(
            f"deterministic mode awaits each version, which max_policy_lag={e.max_policy_lag} does not; use 0, or serial."
        )
