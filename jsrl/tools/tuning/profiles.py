"""Profiles: results of a tuning for one machine, one workload and one version, used by later runs.

`JSRL_PROFILES` is their folder (an empty value: profiles are neither kept nor used); the default is the user's cache.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import jsrl
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.fields import filled, options_of
from jsrl.references.reference import to_json
from jsrl.services.runs.files import read_json, write_json
from jsrl.services.runs.provenance import hardware_facts

VARIABLE = "JSRL_PROFILES"
OFF, AUTO = "none", "auto"
# Fields of an experiment that do not change how fast it trains; trials have no evaluator, video and recording.
FREE = (
    "seed", "total_env_steps", "max_minutes", "stop_at_return", "evaluator", "video", "record", "record_limit_mb",
    "trace", "restart", "supervision", "deadlines", "actor.step_deadline_s",
    "env.on_fault", "env.fault_limit", "env.reward_scale", "env.reward_clip",
)  # fmt: skip
# Options that a tuning may change: a profile tuned with some of these given holds for runs with the same ones given.
TUNED = (
    "placement", "num-actors", "num-groups", "num-inference-servers", "inference.max-rows",
    "learner.threads", "actor.blocks-per-group",
)  # fmt: skip


def profiles_folder(given: str | None = None) -> Path | None:
    """Return the folder of profiles (`given`, else JSRL_PROFILES, else the user's cache); None: none is used."""
    chosen = os.environ.get(VARIABLE) if given is None else given
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "jsrl" / "profiles"


def machine_facts() -> dict[str, Any]:
    """Return the facts that identify a kind of machine: processor, cores for this process, memory, accelerators."""
    facts = hardware_facts()
    return {
        "processor": facts["processor"],
        "cores": facts["cores"],
        "memory_gb": round(facts["memory_gb"]),
        "accelerators": facts["accelerators"],
    }


def work_facts(experiment: Experiment, given: Collection[str] = ()) -> dict[str, Any]:
    """Return everything that decides an experiment's workload: all but what is free and what is tuned.

    Of an agent's config, numbers with a fraction count only as zero or not: they change values, and no shapes.

    Args:
      experiment: to describe. given: options that were given explicitly, and are not tuned.
    """
    own = options_of(experiment)
    experiment = filled(experiment, num_envs=experiment.envs)
    facts = _without(to_json(experiment), (*FREE, *(name.replace("-", "_") for name in TUNED)))["fields"]
    for part in (facts, *(policy["fields"] for policy in facts["policies"].values())):
        part.pop("stop_at_return", None)
        agent = part["agent"] or {}
        if "factory" not in agent.get("fields", {"factory": None}):  # of a user's AgentReference everything counts
            values = {name: bool(v) if isinstance(v, float) else v for name, v in agent["fields"].items()}
            part["agent"] = {**agent, "fields": values}
    return {
        "experiment": experiment.name,
        "settings": facts,
        "fixed": {name: own[name].default for name in TUNED if name in given},
    }


def _without(tree: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a config's JSON without fields, which may be those of its parts: `learner.threads`."""
    fields = {name: value for name, value in tree["fields"].items() if name not in names}
    for name, value in fields.items():
        if inner := [other.partition(".")[2] for other in names if other.startswith(f"{name}.")]:
            fields[name] = _without(value, inner)
    return {**tree, "fields": fields}


def profile_key(machine: dict[str, Any], work: dict[str, Any], of_version: str) -> str:
    text = json.dumps([machine, work, of_version], sort_keys=True)
    return f"{work['experiment']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def make_folder(folder: Path) -> None:
    """Make the folder of profiles, if it is missing."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"the profile cannot be written to {folder} ({error.strerror}); choose another folder with {VARIABLE}."
        ) from None


T = TypeVar("T", bound=msgspec.Struct)


def save(value: msgspec.Struct, path: Path) -> None:
    """Write measurements or a profile as JSON."""
    try:
        write_json(path, msgspec.to_builtins(value))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); choose another place with --output or JSRL_PROFILES."
        ) from None


def load(kind: type[T], path: Path) -> T:
    """Read measurements or a profile."""
    try:
        return msgspec.convert(read_json(path), kind)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as {kind.__name__.lower()} ({error}); expected a file that this version's `jsrl tune` "
            "wrote, so tune again."
        ) from None


def applied(experiment: Experiment, options: dict[str, Any]) -> Experiment:
    """Return the experiment with options set, all at once, so that they are checked together."""
    changes: dict[str, Any] = {}
    for name, value in options.items():
        head, _, tail = name.replace("-", "_").partition(".")
        part = dataclasses.replace(changes.get(head, getattr(experiment, head)), **{tail: value}) if tail else value
        changes[head] = part
    return dataclasses.replace(experiment, **changes)


class Profile(msgspec.Struct, frozen=True, tag="jsrl profile 2"):
    """Options (name -> value) that made an experiment fast.

    Attributes:
      options: to set. words: the same as text. gain: speed over the default's. machine, work, version: for which it holds.
      trials: that succeeded. measurements: their file. path: of the profile, which its file does not say.
    """

    options: dict[str, Any]
    words: str
    gain: float | None
    machine: dict[str, Any]
    work: dict[str, Any]
    version: str
    trials: int
    measurements: str = ""
    path: str = ""

    @property
    def key(self) -> str:
        return profile_key(self.machine, self.work, self.version)

    def save(self, folder: Path) -> Profile:
        """Write this profile under its key and return it with its path."""
        make_folder(folder)
        save(self, folder / f"{self.key}.json")
        return msgspec.structs.replace(self, path=str(folder / f"{self.key}.json"))

    @classmethod
    def load(cls, path: Path) -> Profile:
        return msgspec.structs.replace(load(cls, path), path=str(path))


def _find(experiment: Experiment, folder: Path | None, given: Collection[str]) -> Profile | None:
    """Return the profile of this machine, workload and version: tuned with the same options given, or else with none."""
    if folder is None:
        return None
    for fixed in (given, ()):
        path = folder / f"{profile_key(machine_facts(), work_facts(experiment, fixed), jsrl.__version__)}.json"
        if path.exists():
            return Profile.load(path)
    return None


def use_profile(
    experiment: Experiment, which: str, *, given: Collection[str] = (), profiles_dir: str | None = None
) -> tuple[Experiment, str]:
    """Return (the experiment with a profile's options, one line about it, or an empty string).

    Args:
      experiment: to run. which: auto (the one made on this machine, if any), none, or a file's path.
      given: options that were given explicitly: they win. profiles_dir: folder of profiles.
    """
    if which == OFF:
        return experiment, ""
    asked = which != AUTO
    profile = Profile.load(Path(which)) if asked else _find(experiment, profiles_folder(profiles_dir), given)
    if profile is None:
        return experiment, ""
    name = f"profile {Path(profile.path).name}"
    if experiment.is_deterministic:
        return experiment, f"{name} is not used: the run is deterministic" if asked else ""
    now = options_of(experiment)
    own = [option for option, value in profile.options.items() if option in given and now[option].default != value]
    if "placement" in own:  # a placement's settings are not another's
        return experiment, f"{name} is not used: it is for --placement {profile.options['placement']}"
    chosen = {option: value for option, value in profile.options.items() if option not in given}
    try:
        tuned = applied(experiment, chosen)
    except ConfigError as error:
        if asked and not own:
            raise ConfigError(f"{which} does not fit this experiment: {error}") from None
        return experiment, f"{name} is not used: it cannot be combined with {', '.join(f'--{o}' for o in own)}"
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"{profile.path} names options that do not exist ({error}); tune again.") from None
    if tuned == experiment:
        return experiment, ""
    kept = f", but {', '.join(f'--{o}' for o in own)} as given" if own else ""
    gain = f" ({profile.gain:.1f}x the default when tuned)" if profile.gain else ""
    return tuned, f"uses {name}: {profile.words}{gain}{kept}; --profile none switches it off"
