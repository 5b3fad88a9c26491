"""An experiment as a frozen value: environment + agent + limits + placement. It checks itself; nothing runs here.

`num_envs`, `rollout_length` and `batch_envs` are totals and define what is learned from; placement and the number of
actors only distribute the work. Numbers that do not divide are refused, with the nearest ones that do.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment.checks import check, leaves_host, split_bind
from jsrl.experiment.numbers import fitting_envs
from jsrl.experiment.placements import PLACEMENTS, Placement, PlacementName
from jsrl.experiment.policies import PolicyConfig, Seed
from jsrl.experiment.settings import (
    ANY_HOSTS,
    SERVED,
    ActorConfig,
    DeadlineConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    ReplayConfig,
    SnapshotConfig,
    SupervisionConfig,
    Trained,
    VideoConfig,
)
from jsrl.fields import AUTO, NonNegativeInt, PositiveFloat, PositiveInt, option, suggesting


@suggesting
@dataclass(frozen=True)
class Experiment(Trained):
    """The whole configuration of one run; `run.py` prints it, stores it, and gives each worker its part."""

    # fmt: off
    agent: Any = option(None, "A config such as PPOConfig (its class names its factory), or an AgentReference.",
        has_options=True)
    env: EnvConfig = field(default_factory=EnvConfig)
    name: str = option("experiment", "Name of the experiment; its runs go to RUNS_DIR/NAME.", in_python=True)
    total_env_steps: PositiveInt = option(1_000_000, "Stop after training on this many env steps (whole updates).")
    max_minutes: PositiveFloat | None = option(None, "Stop this many minutes after the first update; making "
        "environments and compiling do not count.")
    stop_at_return: float | None = option(None, "Stop when two greedy evaluations of the same params reach this mean "
        "return. They use different seeds. With evaluator.against it is a win rate.")
    seed: Seed = option(0, "Seed of environments, acting and learning; evaluations use other seeds.")

    num_envs: PositiveInt | Literal["auto"] = option(AUTO, "Number of environments, over all actors. auto: 16, or the "
        "nearest number that actors, groups and batches divide.")
    rollout_length: PositiveInt = option(128, "Rows T of a trajectory.")
    batch_envs: PositiveInt | None = option(None, "Environments (columns) of one update's batch; None: num_envs, so "
        "that each update sees every environment once.")
    max_policy_lag: NonNegativeInt | None = option(0, "How many updates old the params of a trained row may be. 0 is "
        "synchronous (on-policy), None has no limit (IMPALA).")

    placement: PlacementName = option("auto", "What computes actions: serial, inline, served, apart, fused, "
        "fused-serial or auto. serial: the one process; inline: actors; served: an inference server on the learner's "
        "device; apart: inference servers on their own devices; fused: the learner, with environments in JAX inside its "
        "compiled program; fused-serial: the same, with the evaluator in its process; auto: fused if the environment is "
        "in JAX, served if there is an accelerator and a large network, else inline.")
    num_actors: PositiveInt | Literal["auto"] = option("auto", "Number of actor processes; groups of environments are "
        "divided among them. auto: one per core, with at least 8 environments each. It determines the number of "
        "groups, and so the bits: see num_groups.")
    num_groups: PositiveInt | None = option(None, "Number of groups of environments; a group is stepped and sent as "
        "one. None: chosen from the number of actors; give it to get the same bits with any number of actors.")
    num_inference_servers: PositiveInt = option(1, "Number of inference servers; the actors are divided among them. "
        "With 1, each of several hosts without GPUs that has actors gets its own, except in a deterministic run or "
        "with --keep-here inference.", needs=SERVED)
    transport: Literal["shared-memory", "zeromq"] = option("shared-memory",
        "Transport of the streams between processes; zeromq works between hosts and without shared memory.")
    bind: str = option("127.0.0.1", "IP address of this host that streams listen on, with transport zeromq: ADDRESS or "
        "ADDRESS:FIRST_PORT (else free ports). Streams over TCP are encrypted and accept only holders of the run's "
        "keys; 127.0.0.1 without a port uses no TCP.")
    encrypt: bool = option(False, "With transport zeromq: encrypted streams over TCP, even on loopback, instead of "
        "Unix sockets.")
    compress: bool = option(False, "Compress trajectories and requests that go over TCP (to other hosts) with LZ4, for "
        "links slower than the cores.", needs=(*ANY_HOSTS, "--encrypt", "--bind"))
    deterministic: bool = option(False, "Give the same bits with any placement and number of actors; num_groups must "
        "be the same. Groups are never merged, and are processed in order. Serial placement always does this, on a GPU "
        "up to rounding.")
    restart: NonNegativeInt = option(0, "Maximum restarts of each dead or hung worker within supervision.window-s.")
    record: str | None = option(None, "Write every trajectory of the actors to this folder, for `recording` to read; "
        "None: nothing is written.")
    record_limit_mb: PositiveInt = option(10_000, "Stop recording at this many MiB, over all actors; the run "
        "continues.", in_python=True)
    recording: str | None = option(None, "Learn from the trajectories in this folder, without actors; num_envs is then "
        "the number of windows in a batch.")
    trace: bool = option(False, "Write trace.json for ui.perfetto.dev: a timeline of every thread of every worker.")

    actor: ActorConfig = field(default_factory=ActorConfig)
    inference: InferenceConfig = option(factory=InferenceConfig, needs=SERVED)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig | Literal["auto"] | None = option(AUTO, "Storage and sampling of an off-policy agent's rows; "
        "auto: what the agent usually has, none: fresh trajectories.", decided="buffer")
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    video: VideoConfig = option(factory=VideoConfig, needs=("--video.enabled",))
    snapshots: SnapshotConfig = field(default_factory=SnapshotConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)
    supervision: SupervisionConfig = option(factory=SupervisionConfig, needs=("--restart", "--supervision.restarts"))
    director: Any = option(None, "Assigns players and tasks: a director such as PFSP (jsrl.directors); None: the "
        "newest params play every seat.", has_options=True)
    policies: Mapping[str, PolicyConfig] = option(help="Instead of agent, in environments with several seats: name -> "
        "PolicyConfig; the first is the run's main policy.", factory=dict, has_options=True)
    # fmt: on

    def __post_init__(self) -> None:
        check(self)

    # Derived numbers are properties, never fields.

    def is_served(self, policy: str) -> bool:
        """Return whether inference servers act for a policy."""
        own = PLACEMENTS.get(self.policies[policy].placement) if policy in self.policies else None
        return self.where.serves if own is None else self.where.processes and own.serves

    @functools.cached_property
    def where(self) -> Placement:
        """Return the placement; `auto` counts as inline until `automatic.decided_for` decides it at the start."""
        name = "inline" if self.placement == AUTO else self.placement
        return dataclasses.replace(PLACEMENTS[name], transport=self.transport)

    @functools.cached_property
    def envs(self) -> int:
        """Return the number of environments, with `auto` decided."""
        return fitting_envs(self) if self.num_envs == AUTO else self.num_envs

    @property
    def groups(self) -> int:
        if self.num_groups is not None:
            return self.num_groups
        if not self.where.has_actors:
            return self.learner.num_devices or 1
        if self.deterministic:
            return math.gcd(self.envs, 4)
        # As few groups as possible: batches are whole groups, actors host whole groups; served ones need two each,
        # so that one steps while the other waits for its actions.
        fewest = math.lcm(self.envs // math.gcd(self.envs, self.batch_columns), self.actors)
        doubles = self.where.serves and fewest == self.actors and self.envs % (2 * fewest) == 0
        return 2 * fewest if doubles else fewest

    @property
    def group_size(self) -> int:
        """Return the environments B_g of one group."""
        return self.envs // self.groups

    @property
    def ring(self) -> int:
        """Return the groups of one actor."""
        return self.groups // self.actors

    @property
    def actors(self) -> int:
        """Return how many actors there are (one in serial mode, and until `auto` is decided)."""
        several = self.where.processes and self.where.has_actors
        return self.num_actors if isinstance(self.num_actors, int) and several else 1

    @property
    def batch_columns(self) -> int:
        """Return the environments of one update's batch."""
        return self.envs if self.batch_envs is None else self.batch_envs

    @property
    def rows_per_update(self) -> int:
        """Return the env steps in one batch as a whole number, at least 1."""
        return max(1, round(self.env_steps_per_batch))

    @property
    def env_steps_per_batch(self) -> float:
        """Return the env steps in one batch, or with replay workers those that correspond to one batch: may be below 1.

        Free-running replay workers follow no ratio; then it is the env steps in one trajectory of every environment.
        """
        replay = self.buffer
        if replay is not None and self.has_replay_workers and replay.updates_per_env_step is not None:
            return self.updates_per_call / replay.updates_per_env_step
        return self.batch_columns * self.rollout_length

    @property
    def last_number(self) -> int:
        """Return the number of the run's last version: its updates, if each batch gets them, also while replay fills."""
        return max(1, math.ceil(self.total_env_steps / self.env_steps_per_batch)) * self.updates_per_batch

    @property
    def total_updates(self) -> int:
        """Return the updates of the whole run, the one for schedules."""
        return max(1, self.updates_after(0))

    def updates_after(self, env_steps: int) -> int:
        """Return the updates from a start at these env steps to the end: a replay that does not save its rows fills first."""
        replay, left = self.buffer, self.total_env_steps - env_steps
        filling = 0 if replay is None else max(0, replay.min_size - replay.save * env_steps)
        if self.has_replay_workers:
            batches = math.ceil((left - filling) / self.env_steps_per_batch)
        else:  # the batch that completes the fill is learned from
            batches = math.ceil(left / self.env_steps_per_batch) - max(0, math.ceil(filling / self.rows_per_update) - 1)
        return max(0, batches) * self.updates_per_batch

    @property
    def has_replay_workers(self) -> bool:
        return self.buffer is not None and self.buffer.kind == "host"

    @property
    def is_free_running(self) -> bool:
        """Return whether there are replay workers without a ratio of updates to env steps."""
        return self.has_replay_workers and self.buffer is not None and self.buffer.updates_per_env_step is None

    @property
    def updates_per_call(self) -> int:
        """Return the updates of one compiled call: K with replay, else 1."""
        replay = self.buffer
        if replay is None or replay.updates_per_call is not None:
            return 1 if replay is None else replay.updates_per_call or 1
        if replay.kind == "host" or replay.updates_per_env_step is None:
            return 1
        return max(1, round(replay.updates_per_env_step * self.rows_per_update))

    @property
    def updates_per_env_step(self) -> float:
        """Return the updates per env step with a replay on the device; may differ from the option, as K is a whole number."""
        return self.updates_per_call / self.rows_per_update

    @property
    def updates_per_batch(self) -> int:
        return self.learner.reuse * self.updates_per_call

    @property
    def learner_devices(self) -> int | None:
        """Return the number of the learner's devices: two if policy and critics are split, else the option's."""
        return 2 if self.learner.split != "none" else self.learner.num_devices

    @property
    def split_lead(self) -> int:
        """Return by how many calls policy and critics on two devices may differ: 0 if every bit is fixed."""
        return 0 if self.is_deterministic else 2

    @property
    def order(self) -> str:
        """Return which trajectories form a batch: `by_group`, one of every group, or `fifo`, first in."""
        if self.has_replay_workers:
            return "fifo"
        on_device = self.buffer is not None  # columns of its ring are environments
        asked = self.max_policy_lag is not None or self.deterministic or on_device
        by_group = self.batch_columns == self.envs and asked
        return "by_group" if by_group else "fifo"

    @property
    def bind_to(self) -> tuple[str, int | None]:
        """Return the IP address that streams listen on, and the first port; None: any free ones."""
        return split_bind(self.bind)

    @property
    def encrypted(self) -> bool:
        """Return whether streams between processes use TCP and are encrypted; else they stay on the host."""
        return self.where.uses_zeromq and leaves_host(self)

    @property
    def is_deterministic(self) -> bool:
        """Return whether the seed fixes every bit of the run."""
        return self.deterministic or self.where.is_ordered

    @property
    def min_updates_lag(self) -> int | None:
        """Return K such that a group's trajectory n waits for version n x updates_per_batch - K; None: it never waits.

        The last update with a batch, not the first, may be `max_policy_lag` ahead of the batch's rows.
        """
        if self.max_policy_lag is None or self.order != "by_group":
            return None
        return self.max_policy_lag - (self.learner.reuse - 1)

    @property
    def evaluation_period(self) -> int:
        """Return the updates between evaluations."""
        return self.updates_in(self.evaluator.period_env_steps or self.total_env_steps // 40)

    @property
    def filming_period(self) -> int:
        """Return the updates between videos."""
        return self.updates_in(self.video.period_env_steps or self.total_env_steps // 10)

    def updates_in(self, env_steps: int) -> int:
        """Return the updates that come with so many env steps, at least 1."""
        return max(1, int(env_steps * self.updates_per_batch // self.env_steps_per_batch))

    @property
    def evaluation_env(self) -> EnvConfig:
        """Return the evaluator's environment: whole games, with its own options added."""
        whole_games = dataclasses.replace(self.env.atari, episodic_life=False)
        return _with_options(dataclasses.replace(self.env, atari=whole_games), "evaluator.env", self.evaluator.env)

    @property
    def filmed_env(self) -> EnvConfig:
        """Return the video recorder's environment: the evaluator's, with its own options added."""
        return _with_options(self.evaluation_env, "video.env", self.video.env)


def _with_options(env: EnvConfig, name: str, options: dict[str, Any]) -> EnvConfig:
    known = {f.name for f in dataclasses.fields(env)}
    unknown = sorted(set(options) - known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(sorted(known))}."
        raise ConfigError(f"{name} has no option {unknown[0]!r}; {hint}")
    return dataclasses.replace(env, **options)
