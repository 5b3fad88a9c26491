"""Video recorders: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.base import end_hint
from jsrl.workers.kinds import Kind, LastTask, Lifecycle, Port, Shown, Travel

ACTIVITIES = (
    Activity("env", "simulate", "share of time inside environments", "small"),
    Activity("act", "infer", "share of time acting", "small"),
    Activity("render", "publish", "share of time drawing pictures", "depends"),
    Activity("encode", "publish", "share of time handing pictures to the encoder and finishing videos", "depends"),
    Activity(
        "wait",
        "wait",
        "share of time with nothing to film",
        "above 0.5 (else: film less often)",
        waits_for="nothing to do",
    ),
)

METRICS = (
    Metric("videos", "videos written so far", "count", "rises", "total"),
    Metric("failed", "videos that could not be written", "count", "0", "total"),
    Metric("lost", "video recorders lost for good; the run went on without them", "count", "0", "sum"),
    Metric("return_mean", "mean raw return of the filmed episodes", "reward", "rises"),
    Metric("length_mean", "mean length of the filmed episodes", "steps", "depends"),
    Metric("version_updates", "updates that the filmed params have seen", "updates", "rises"),
    Metric("video_frames", "pictures in the video", "count", "fps x max_seconds at most"),
)

FINAL_VIDEO = LastTask(
    lambda experiment, reason: {} if experiment.video.final else None,
    "final video",
    "snapshot_s",
    "; --video.niceness 0 gives it more time on a busy machine, and a smaller --video.max-seconds makes the video shorter",
)

KIND = Kind(
    name="video-recorder",
    plural="video recorders",
    build="jsrl.workers.video_recorder.worker:build_video_recorder",
    ports=(Port("params", "params", "reads", by_policy=True),),
    receives=("evaluated",),
    sends=("filmed",),
    lifecycle=Lifecycle(loss_ends_run=False, last_task=FINAL_VIDEO),
    shown=Shown(ACTIVITIES, METRICS, death_hint=end_hint),
    travel=Travel(needs_folder="it writes videos"),
)
