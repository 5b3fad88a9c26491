"""Recordings and replay in a plan: what a run writes and reads, checked before anything starts, and as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, SpecMismatch, counted
from jsrl.experiment import Experiment
from jsrl.references.reference import to_json
from jsrl.services.recordings.recordings import (
    Recording,
    Source,
    begin_recording,
    check_trains,
    make_manifest,
    open_recording,
)
from jsrl.services.runs.provenance import package_versions
from jsrl.types import EnvSpec, Trajectory
from jsrl.workers.attached.recorded import wanted_leaves
from jsrl.workers.jobs import Schemas

if TYPE_CHECKING:
    from jsrl.graph.plan import Plan

# Options of an environment that change what is recorded; rewards are stored raw.
RECORDED_OPTIONS = ("id", "kwargs", "wrappers", "max_episode_steps", "tasks", "task_weights", "atari")


def begin_record(e: Experiment, schemas: Schemas, name: str, seed: int, policy: str) -> None:
    """Prepare the folder that a run records to; name, seed, policy: see Source."""
    begin_recorded(Path(str(e.record)), schemas.env, e.env, schemas.trajectory, Source(name, seed, policy))


def check_recordings(plan: Plan, show: Callable[..., None]) -> None:
    """Compare the recordings that a run learns from with its agents' input; show a warning for another environment."""
    for part in plan.policies.values():
        recording = check_recording(part.experiment, plan.job(part.learner).schemas)
        if recording is not None and (note := other_environment(recording, part.experiment)):
            show(note, "warning")


def begin_recorded(folder: Path, spec: EnvSpec, env: EnvConfig, trajectory: Trajectory, source: Source) -> None:
    versions = dict(package_versions())
    begin_recording(
        folder, make_manifest(facts_of(spec), options_of(env), trajectory, source=source, versions=versions)
    )


def options_of(env: EnvConfig) -> dict[str, Any]:
    return {name: value for name, value in to_json(env)["fields"].items() if name in RECORDED_OPTIONS}


def facts_of(env: EnvSpec) -> dict[str, Any]:
    """Return an environment's spec as JSON, without the number of its first action: recorded actions count from 0."""
    found = to_json(env, None, "env")
    for name in ("start", "starts"):
        found["fields"]["action"]["fields"].pop(name, None)
    return found


def check_recording(e: Experiment, schemas: Schemas) -> Recording | None:
    """Return the recording that a run learns from, after comparing it with the agent's input.

    Raises:
      ConfigError: the agent learns only from recordings and none is given. RecordingError: there is none in the folder, it
        is broken, or none of its rows trains. SpecMismatch: it comes from another environment.
    """
    if e.recording is None:
        if getattr(e.agent, "needs_recording", False):
            raise ConfigError(
                f"{type(e.agent).__name__} learns from recorded trajectories; give --recording DIR. To make some: --record "
                "DIR with any run, or `jsrl record RUN@best --to DIR`."
            )
        return None
    recording = open_recording(Path(e.recording))
    _compare_env(recording, schemas.env)
    wanted_leaves(recording, schemas.trajectory)
    check_trains(recording)
    return recording


def _compare_env(recording: Recording, env: EnvSpec) -> None:
    """Refuse actions with another meaning: another space, other bounds, another transform."""
    recorded: Any = recording.manifest.env.get("fields", {})
    ours = facts_of(env)["fields"]
    for field in ("observation", "action"):
        if recorded.get(field) != ours[field]:
            raise SpecMismatch(
                f"{field}: the recording {recording.folder} ({recorded.get('name')}) has {_plain(recorded.get(field))}, "
                f"{env.name} has {_plain(ours[field])}. Give the environment that was recorded (--env.id, --env.kwargs, "
                "--env.action-transform and its wrappers)."
            )


def other_environment(recording: Recording, e: Experiment) -> str:
    """Return a warning if a recording is of another environment, with equal spaces, than its experiment's; else nothing."""
    there, here = recording.manifest.options, options_of(e.evaluation_env)
    if there in (here, options_of(e.env)):
        return ""
    unlike = [f"env.{n} {_plain(there.get(n))} (here {_plain(here[n])})" for n in here if there.get(n) != here[n]]
    return (
        f"the recording {recording.folder} was made with {', '.join(unlike)}: the policy learns from another environment than "
        "it is evaluated in"
    )


def _plain(value: Any) -> Any:
    """Return a spec's JSON without its tags, for messages."""
    if isinstance(value, dict):
        if "$tuple" in value:
            return tuple(_plain(part) for part in value["$tuple"])
        if "$type" not in value:
            return {name: _plain(part) for name, part in value.items()}
        kind = str(value["$type"]).rpartition(":")[2]
        fields = value.get("fields", value)
        text = ", ".join(f"{name}={_plain(part)}" for name, part in fields.items() if not name.startswith("$"))
        return f"{kind}({text})"
    return value


def recording_lines(plan: Plan) -> list[str]:
    e = plan.experiment
    if e.record is not None:
        return [f"actor -> {e.record}   recording  a copy of each trajectory, at most {e.record_limit_mb:,} MiB"]
    found = {
        part.learner: check_recording(part.experiment, plan.job(part.learner).schemas)
        for part in plan.policies.values()
    }
    return [_line(recording, learner, e) for learner, recording in found.items() if recording is not None]


def _line(recording: Recording, learner: str, e: Experiment) -> str:
    epochs, sources = e.total_env_steps / recording.env_steps, recording.manifest.sources
    source = ", ".join(dict.fromkeys(source.name for source in sources))
    return (
        f"{recording.folder} -> {learner}   windows    {recording.env_steps:,} recorded env steps in "
        f"{counted(len(recording.chunks), 'file')}, of {source}; trained on {epochs:.1f} times"
    )
