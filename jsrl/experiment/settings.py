"""The parts of an experiment that configure each kind of worker: frozen values with their defaults."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from jsrl.errors import ConfigError
from jsrl.fields import (
    InvalidValue,
    NonNegativeFinite,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFinite,
    PositiveFloat,
    PositiveInt,
    Range,
    UnitFloat,
    option,
    suggesting,
)
from jsrl.types import EITHER, FRESH, REPLAY

JOINED = ("--listen", "--hosts", "--launcher ray")  # hosts join by these
SERVED = ("--placement served", "--placement apart")
ANY_HOSTS = (*JOINED, "--launcher slurm without --seeds")
Niceness = Annotated[int, Range(ge=0, le=19)]


@suggesting
@dataclass(frozen=True)
class AgentReference:
    """An agent of the user's: `factory(spec, **kwargs) -> Agent`, a function or `module:function`."""

    factory: str | Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)


# fmt: off
@suggesting
@dataclass(frozen=True)
class ActorConfig:
    """How actors work."""

    blocks_per_group: PositiveInt = option(2, "Trajectories that each group may be ahead of the learner; then its "
        "actor waits.")
    step_deadline_s: PositiveFloat = option(60.0, "An actor ends with an error when its environment does not return "
        "from reset or step within this many seconds.")


@suggesting
@dataclass(frozen=True)
class InferenceConfig:
    """How inference servers form batches."""

    max_rows: PositiveInt = option(1024, "Maximum rows in one batch; the request of a group is never split.")
    device: str = option("auto", "Where servers act: auto (served: the learner's device; apart: its own), cpu, or an "
        "index such as gpu:1.")
    threads: PositiveInt = option(1, "CPU threads that a server computes with.")
    shared: bool = option(False, "With several policies: the same servers act for all of them, in fewer processes; "
        "false: each policy has its own.")
    frozen_mb: NonNegativeInt = option(512, "MiB of frozen players kept by a worker that acts; the least recently used "
        "are evicted.", in_python=True)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|gpu:\d+", self.device):
            raise InvalidValue(type(self), "device", self.device, "use auto, cpu, or an index such as gpu:1.")


@suggesting
@dataclass(frozen=True)
class LearnerConfig:
    """How the learner consumes trajectories."""

    num_devices: PositiveInt | None = option(None, "Devices that share each batch (pmap), per rank; None: every "
        "visible accelerator, or one CPU device.")
    num_ranks: PositiveInt = option(1, "Processes that make each update together, on one host or several; each has its "
        "own devices, actors and share of the batch.")
    split: Literal["none", "actor-critic"] = option("none", "actor-critic: policy and critics on two devices, which "
        "update in parallel and exchange params (sac, td3, ddpg).")
    reuse: PositiveInt = option(1, "Number of updates with each batch.")
    threads: PositiveInt | None = option(None, "CPU threads that the learner computes with; None: one per core. "
        "Results depend on it, so that a deterministic run keeps the number of its first start, for all of its "
        "workers.")


@suggesting
@dataclass(frozen=True)
class ReplayConfig:
    """How an off-policy agent's rows are kept and drawn: windows of `window` rows and a bootstrap row."""

    kind: Literal["device", "host"] = option("device", "device: in the learner's state, inserted and sampled in its "
        "compiled call; host: in replay workers.")
    capacity: PositiveInt = option(1_000_000, "Env steps kept, over all environments; the oldest are overwritten.")
    batch_size: PositiveInt = option(256, "Windows in one update.")
    window: PositiveInt = option(1, "Rows of a window: n for n-step returns, burn-in + unroll for sequences of a "
        "recurrent agent.")
    min_size: PositiveInt = option(1_000, "Env steps inserted before the first update.")
    updates_per_env_step: PositiveFinite | None = option(None, "Updates per env step inserted, a fraction as a rule; "
        "None: no limit.")
    tolerance: PositiveFloat = option(0.1, "Share of the draws of the first min_size env steps by which either side may "
        "run ahead (host).", in_python=True)
    updates_per_call: PositiveInt | None = option(None, "Updates in one compiled call; None: chosen from "
        "updates_per_env_step (device), or 1.")
    prioritised: bool = option(False, "Sample windows in proportion to priority^alpha instead of uniformly.")
    alpha: UnitFloat = option(0.6, "Exponent of priorities: 0 is uniform.", needs=("prioritised",))
    beta: UnitFloat = option(0.4, "Exponent of importance weights at the start.", needs=("prioritised",))
    beta_end: UnitFloat = option(1.0, "Exponent of importance weights at total_env_steps; linear in "
        "between.", in_python=True)
    epsilon: NonNegativeFinite = option(1e-6, "Added to each priority, so that every window can be "
        "sampled.", in_python=True)
    num_replays: PositiveInt = option(1, "Number of replay workers; the actors' streams are divided among them.",
        needs=("kind host",))
    threads: PositiveInt = option(1, "Sampling threads of each replay worker.", needs=("kind host",))
    save: bool = option(False, "Save the rows in snapshots as well; false: a resumed run refills its replay.")

    def __post_init__(self) -> None:
        if self.min_size > self.capacity:
            raise ConfigError(
                f"replay.min_size is {self.min_size}; use at most replay.capacity, {self.capacity}, or raise that."
            )


class Trained:
    """An agent and how its rows are kept: an experiment, or one of its policies."""

    agent: Any
    replay: ReplayConfig | Literal["auto"] | None

    @property
    def learns_from(self) -> str:
        """Return what the agent learns from: fresh trajectories, replay, or either."""
        found = getattr(self.agent, "learns_from", EITHER)
        if found not in (FRESH, REPLAY, EITHER):
            raise ConfigError(f"{type(self.agent).__name__}.learns_from is {found!r}; use fresh, replay or either.")
        return found

    @property
    def usual_replay(self) -> ReplayConfig | None:
        """Return what the agent usually has (`usual_replay` of its config); None: fresh rows."""
        return ReplayConfig(**getattr(self.agent, "usual_replay", {})) if self.learns_from == REPLAY else None

    @property
    def buffer(self) -> ReplayConfig | None:
        """Return the replay with `auto` decided; None: no replay."""
        return self.usual_replay if isinstance(self.replay, str) else self.replay


@suggesting
@dataclass(frozen=True)
class EvaluatorConfig:
    """How snapshots are evaluated: with separate environment options and seeds, and a fixed number of episodes per slot."""

    enabled: bool = option(True, "Evaluate snapshots while the run trains, and after its end.")
    episodes: PositiveInt = option(20, "Greedy episodes per evaluation.")
    sampled_episodes: NonNegativeInt = option(0, "Further episodes with sampled actions, reported separately.")
    final_episodes: NonNegativeInt = option(100, "Episodes of the final evaluation, on other seeds; 0: none. Its time "
        "does not count as training.")
    num_envs: PositiveInt = option(20, "Environments stepped together; each plays the same number of episodes.")
    period_env_steps: PositiveInt | None = option(None, "Env steps of training between evaluations; None: a fortieth "
        "of the total. In a serial run without stop_at_return, where training waits for evaluations, None also keeps "
        "the env steps of evaluations below a quarter of those trained: long episodes are scored less often.")
    max_steps: PositiveInt = option(30_000, "Env steps of an episode after which an evaluation, a match or a video is "
        "cut, because it seems to have no end.")
    against: tuple[str, ...] = option((), "Opponents, in environments with seats: frozen players of this run (initial, "
        "frozen-3) or RUN@TAG. The score is then the mean result of `episodes` games against each (win 1, draw 0.5) "
        "instead of the mean return. Opponents sample actions.")
    env: dict[str, Any] = option(help="Options that differ from the training environment (rewards are always raw, "
        "lives never end an episode).", factory=dict)


@suggesting
@dataclass(frozen=True)
class VideoConfig:
    """How episodes of the newest params are filmed (extra `video`), by a process of low priority."""

    enabled: bool = option(False, "Film episodes to RUN/videos; the best video and the newest ones are kept, and shown "
        "in the report.")
    period_env_steps: PositiveInt | None = option(None, "Env steps of training between videos; None: a tenth of the "
        "total.")
    episodes: PositiveInt = option(1, "Greedy episodes in one video.")
    final: bool = option(True, "Film the last params after the end. Its time does not count as training.")
    keep_newest: PositiveInt = option(5, "Videos kept besides the best one.", in_python=True)
    fps: PositiveFinite | None = option(None, "Frames (env steps) per second of video; None: the environment's "
        "render_fps, which is real time.")
    max_seconds: PositiveFloat = option(60.0, "Maximum seconds of a video; a longer episode is played to its end "
        "without being filmed.")
    niceness: Niceness = option(10, "Niceness of the video recorder's process: 0 (normal priority) to 19 (lowest).")
    env: dict[str, Any] = option(help="Options that differ from the evaluator's environment.", factory=dict)


@suggesting
@dataclass(frozen=True)
class DeadlineConfig:
    """Time limits of the controller."""

    ready_s: PositiveFloat = option(180.0, "Seconds from a worker's start until it is ready; the error says at which "
        "stage it was. The time in which a resumed run plays its steps again does not count.")
    silence_s: PositiveFloat = option(30.0, "Seconds without a heartbeat after which a worker counts as dead. A "
        "separate thread sends the heartbeats.")
    stuck_s: PositiveFloat = option(300.0, "Seconds that one turn of a worker's loop may take; then the worker counts "
        "as stuck, although its process is alive.")
    rank_s: PositiveFloat = option(10.0, "The same as silence_s and stuck_s in a learner of several ranks; a turn may "
        "take ten times the median update if that is more.", needs=("--learner.num-ranks",))
    still_s: PositiveFloat = option(60.0, "Seconds without any step, reply or update after which the run reports what "
        "every worker is doing; it continues.", in_python=True)
    leave_s: PositiveFloat = option(10.0, "Seconds for a worker to shut down; a tenth of it after "
        "Ctrl-C in training.", in_python=True)
    snapshot_s: PositiveFloat = option(60.0, "Seconds for the final snapshot.", in_python=True)
    evaluation_s: PositiveFloat = option(3600.0, "Seconds of one evaluation or video, after which it is cut; also "
        "those of the final evaluation after the training.", in_python=True)
    hooks_s: PositiveFinite = option(10.0, "Seconds that the end of a run waits for hooks.", in_python=True)
    sinks_s: PositiveFinite = option(5.0, "Seconds that the end of a run waits for TensorBoard, Weights & Biases and "
        "other sinks of metrics.", in_python=True)


@suggesting
@dataclass(frozen=True)
class SupervisionConfig:
    """How workers that end or hang are replaced, if `restart` allows it."""

    window_s: PositiveFloat = option(600.0, "Restarts of a worker count against `restart` for this many seconds.")
    backoff_s: NonNegativeFloat = option(0.25, "Seconds before a worker's first restart; doubled at each further "
        "restart within the window.")
    max_backoff_s: NonNegativeFloat = option(30.0, "Maximum seconds before a restart.")
    restarts: dict[str, NonNegativeInt] = option(help="Restarts of each worker of a kind: actor, inference, learner, "
        "replay, evaluator, video_recorder, parameter_server, or a kind of your own. Other kinds: `restart`. The "
        "learner continues from its last snapshot; a replay worker loses its rows unless they are saved; without a "
        "video recorder the run continues.", factory=dict)


@suggesting
@dataclass(frozen=True)
class SnapshotConfig:
    """When snapshots and journals are written."""

    period_s: NonNegativeFloat = option(60.0, "Seconds between snapshots.")
    keep: PositiveInt = option(3, "Newest snapshots kept, besides best and final; at least 3 are kept, because a "
        "reader may be in the oldest.")
    exact: bool = option(True, "Deterministic runs keep a journal of actions, so that a resumed run has the same bits "
        "as an uninterrupted one.", needs=("--deterministic", "--placement serial", "--placement fused"))
    journal_mb: NonNegativeFloat = option(256.0, "Maximum MB of a run's journals; larger ones are dropped. Resuming "
        "replays them, which takes as long as the original stepping.", in_python=True)
