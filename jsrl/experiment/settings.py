"""The parts of an experiment that say how each kind of worker works: frozen values with their defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


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
    rows_in_place: bool = True
    """Write rows straight into the stream's memory; false: aside, copied when a trajectory is complete (to compare)."""


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
    split: Literal["none", "actor-critic"] = "none"
    """actor-critic: policy and critics on two devices, updating side by side and exchanging params (sac, td3, ddpg)."""
    split_lead: int = 2
    """Compiled calls that either side may be ahead of the other; 0: they take turns (deterministic runs always do)."""
    order: Literal["auto", "by_group", "fifo", "freshest"] = "auto"
    """Which trajectories make a batch: one of every group, first in, or newest first (older ones stay behind)."""
    reuse: int = 1
    """How many updates each batch is used for."""
    prefetch: bool = True
    """Join the next batch while an update runs; false: after it (serial placement never does)."""
    check_finite: bool = True
    """Stop before publishing when a metric, the params, learner_params or extra hold NaN or infinity (undonated)."""
    threads: int | None = None
    """CPU threads of the learner's matrix products; None: as many as there are cores."""
    memory_share: float = 0.6
    """Share of the accelerator's memory that the learner takes when others use it as well."""


@dataclass(frozen=True)
class ReplayConfig:
    """How an off-policy agent's rows are kept and drawn: windows of `window` rows and a bootstrap row."""

    kind: Literal["device", "host"] = "device"
    """device: inside the learner's state, added and drawn in its compiled call; host: workers between actors and learner."""
    capacity: int = 1_000_000
    """Env steps kept, over all environments; the oldest go first."""
    batch_size: int = 256
    """Windows of one update."""
    window: int = 1
    """Rows of a window: n for n-step returns, burn-in + unroll for sequences of a recurrent agent."""
    min_size: int = 1_000
    """Env steps inserted before the first update."""
    samples_per_insert: float | None = None
    """Windows drawn per env step inserted (batch_size x updates per env step); None: free-running."""
    tolerance: float = 0.1
    """Share of min_size x samples_per_insert by which either side may run ahead (host)."""
    updates_per_call: int | None = None
    """Updates in one compiled call; None: what samples_per_insert asks for (device), or 1."""
    prioritised: bool = False
    """Draw windows in proportion to priority^alpha instead of evenly."""
    alpha: float = 0.6
    """Exponent of priorities: 0 is uniform."""
    beta: float = 0.4
    """Exponent of importance weights, at first."""
    beta_end: float = 1.0
    """Exponent of importance weights when total_env_steps are reached (linear in between; equal to beta: fixed)."""
    epsilon: float = 1e-6
    """Added to each priority, so that every window can be drawn."""
    num_replays: int = 1
    """Replay workers (host); the actors' streams are shared out over them."""
    threads: int = 1
    """Threads of each replay worker that draw batches (host)."""
    save: bool = False
    """Write the rows into snapshots, too; without, a resumed run refills its replay."""


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
class RecorderConfig:
    """How episodes of the newest params are filmed (extra `video`), by a process that gives way to all others."""

    enabled: bool = False
    """Film episodes to RUN/videos; the best video and the newest ones are kept, and shown in the report."""
    period_env_steps: int | None = None
    """Env steps of training between videos; None: a tenth of the total."""
    episodes: int = 1
    """Greedy episodes in one video."""
    final: bool = True
    """Film the last params after the end, outside the clock."""
    keep_newest: int = 5
    """Videos kept besides the best one."""
    fps: float | None = None
    """Pictures (env steps) per second of video; None: as the environment asks, which is its real time."""
    max_seconds: float = 60.0
    """Length of a video at most; an episode that takes longer is played to its end unseen."""
    niceness: int = 10
    """How much the recorder's process gives way to the others: 0 (not at all) to 19."""
    env: dict[str, Any] = field(default_factory=dict)
    """Options that differ from the evaluator's environment."""


@dataclass(frozen=True)
class DeadlineConfig:
    """How long the controller waits before it calls a worker lost."""

    ready_s: float = 180.0
    """From a worker's start until it works; the message says which stage it is in."""
    silence_s: float = 30.0
    """Without a heartbeat (each has a thread for it) a worker that was ready counts as stopped, or stuck in one call."""
    stuck_s: float = 300.0
    """A worker at work whose loop has not come round for so long is stuck: a thread that hangs behind a living process."""
    still_s: float = 60.0
    """Without any step, answer or update for so long the run says so, and what every worker is doing; it goes on."""
    leave_s: float = 10.0
    """For a worker to leave in order; a tenth of it after Ctrl-C."""
    snapshot_s: float = 60.0
    """For the final snapshot."""


@dataclass(frozen=True)
class SupervisionConfig:
    """How dead, stopped and stuck workers are replaced where `restart` allows it."""

    window_s: float = 600.0
    """`restart` counts the restarts of one worker within so many seconds; older ones are forgiven."""
    backoff_s: float = 0.25
    """Before a worker's first restart; doubled at each further one within the window."""
    max_backoff_s: float = 30.0
    """At most so long before a restart."""
    memory_margin_mb: int = 1024
    """With road zeromq: how many MiB a worker that others connect to may take beyond what it had once it was settled and
    what its streams and state declare; then it is replaced, as a connection may have taken it all."""
    actor: int | None = None
    """Restarts of each actor; None: `restart`."""
    inference: int | None = None
    """Restarts of each inference server; None: `restart`."""
    learner: int | None = None
    """Restarts of the learner, which goes on from its last snapshot; None: `restart`."""
    replay: int | None = None
    """Restarts of each replay worker, whose rows are lost unless they are saved; None: `restart`."""
    evaluator: int | None = None
    """Restarts of the evaluator; None: `restart`."""
    recorder: int | None = None
    """Restarts of the recorder, without which a run goes on; None: `restart`."""
    parameter_server: int | None = None
    """Restarts of the parameter server; None: `restart`."""


@dataclass(frozen=True)
class SnapshotConfig:
    """When durable copies are written."""

    period_s: float = 60.0
    keep: int = 3
    exact: bool = True
    """Deterministic runs keep a journal of actions, so that resumed they equal runs that were never stopped, to the bit."""
    journal_mb: float = 256.0
    """Size of a run's journals beyond which they are given up (resuming plays them again, which takes its time)."""
