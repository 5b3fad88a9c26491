"""The tunable settings as values: knobs, the settings they span, and how a setting changes an experiment.

A setting is a flat dict of knob name -> value. Knobs have the options' names, except `ring` (groups of one actor, so
that num-groups = num-actors x ring) and `envs-factor` (num-envs and batch-envs times this, which changes what is learned).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.automatic import Machine
from jsrl.tools.tuning.profiles import applied

Setting: TypeAlias = dict[str, Any]

PROCESSES = ("inline", "served", "apart")
SERVED = ("served", "apart")
MAX_DETAILS = 2  # detail knobs of a candidate that may differ from their defaults at once
CATEGORY_DISTANCE = 1.5  # between two placements, in steps of an ordinary knob


@dataclass(frozen=True)
class Knob:
    """One tunable option.

    Attributes:
      name: of the option (or `ring`, `envs-factor`). values: to choose from, in order if there is one.
      placements: for which it has an effect. weight: expected effect of one step.
      detail: stays at its default while others are searched, except for MAX_DETAILS of them at once.
    """

    name: str
    values: tuple[Any, ...]
    placements: tuple[str, ...] = ("serial", *PROCESSES)
    weight: float = 1.0
    detail: bool = False

    @property
    def is_category(self) -> bool:
        return any(isinstance(value, str) for value in self.values)


@dataclass(frozen=True)
class Space:
    """All settings of a search: `candidates` are valid settings, `default` is among them."""

    knobs: tuple[Knob, ...]
    default: Setting
    candidates: tuple[Setting, ...]

    @cached_property
    def keys(self) -> tuple[Any, ...]:
        return tuple(key_of(setting) for setting in self.candidates)

    @cached_property
    def points(self) -> np.ndarray:
        """Return every candidate's coordinates [C, X]."""
        return self.coordinates(self.candidates)

    @cached_property
    def grid(self) -> dict[Any, list[Setting]]:
        """Return, by placement, the candidates whose details are at their default, as for an exhaustive grid search."""
        details = [k.name for k in self.knobs if k.detail]
        usual: dict[Any, Setting] = {}
        found: dict[Any, list[Setting]] = {}
        for setting in self.candidates:  # the first of every placement has all details at their default
            placement = setting.get("placement")
            first = usual.setdefault(placement, setting)
            if all(setting.get(name) == first.get(name) for name in details):
                found.setdefault(placement, []).append(setting)
        return found

    def coordinates(self, settings: Iterable[Setting]) -> np.ndarray:
        """Return settings as points [S, X] in which a distance of 1 is one step of an ordinary knob."""
        return np.array([[x for knob in self.knobs for x in _coordinate(knob, setting)] for setting in settings])


def _coordinate(knob: Knob, setting: Setting) -> list[float]:
    if knob.is_category:
        side = CATEGORY_DISTANCE / math.sqrt(2)
        return [knob.weight * side * (setting.get(knob.name) == value) for value in knob.values]
    if knob.name not in setting:
        return [0.0]
    return [knob.weight * knob.values.index(setting[knob.name])]


def key_of(setting: Setting) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(setting.items()))


@dataclass(frozen=True)
class Trial:
    """One measurement of one setting.

    Attributes:
      setting: measured one. phase: `explore` or `final`. env_steps_per_s: trained; 0: it failed.
      seconds, updates: of the measurement. start_s: from the command to the first update.
      cut: ended early, because it was far behind. rising: it was still getting faster at its end. warm_s: after the first
        update, that do not count. error: why it failed. load: load average of the machine at its end.
      metrics: the run's last line. means: of its lines since it was warm. launcher_cores: of the launching process.
    """

    setting: Setting = field(default_factory=dict)
    phase: str = "explore"
    env_steps_per_s: float = 0.0
    seconds: float = 0.0
    updates: int = 0
    start_s: float = 0.0
    cut: bool = False
    rising: bool = False
    warm_s: float = 0.0
    error: str = ""
    load: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    launcher_cores: float = 0.0


# -- from an experiment to its space ----------------------------------------------------------------------------------


def make_knobs(experiment: Experiment, machine: Machine, *, batch: bool = False) -> tuple[Knob, ...]:
    """Return the knobs of an experiment on a machine; `batch`: also the number of environments and the batch."""
    e, cores = experiment, machine.cores
    envs = e.envs
    actors = {2**i for i in range(12)} | {cores, cores - 1, cores + 1, e.actors}
    actors = {n for n in actors if 1 <= n <= min(envs, max(2 * cores, e.actors))}
    placements = ("serial", *PROCESSES) if machine.accelerators else ("serial", "inline", "served")
    knobs = [
        Knob("placement", placements),
        Knob("num-actors", tuple(sorted(actors)), PROCESSES),
        Knob("ring", (1, 2, 4, 8), PROCESSES),
        Knob("num-inference-servers", (1, 2), SERVED, weight=0.7, detail=True),
        Knob("inference.max-rows", _batch_rows(e), SERVED, weight=0.5, detail=True),
        Knob("learner.threads", _threads(e, machine), PROCESSES, weight=0.5, detail=True),
    ]
    if e.max_policy_lag != 0:
        knobs.append(Knob("actor.blocks-per-group", (1, 2, 4), PROCESSES, weight=0.5, detail=True))
    if batch:
        knobs.append(Knob("envs-factor", ("1/2", "1", "2", "4"), weight=0.7))
    return tuple(knobs)


def _batch_rows(e: Experiment) -> tuple[int, ...]:
    """Return sizes of inference batches: a quarter and a half of all environments, and as many as fit."""
    return tuple(sorted({max(1, e.envs // 4), max(1, e.envs // 2), max(e.envs, e.inference.max_rows)}))


def _threads(e: Experiment, machine: Machine) -> tuple[int | None, ...]:
    if machine.accelerators or machine.cores == 1:
        return (e.learner.threads,)
    return (*sorted({1, max(1, machine.cores // 2), machine.cores - 1}), None)


def make_space(experiment: Experiment, knobs: tuple[Knob, ...], fixed: Iterable[str] = ()) -> Space:
    """Return the valid settings around an experiment.

    Args:
      experiment: its own values are the default. knobs: tunable options.
      fixed: options that keep the experiment's values; `num-groups` fixes the ring, `num-envs` and `batch-envs` the batch.
    """
    fixed = set(fixed)
    fixed |= {"ring"} if "num-groups" in fixed else set()
    fixed |= {"envs-factor"} if fixed & {"num-envs", "batch-envs"} else set()
    default = current(experiment, knobs)
    knobs = tuple(_with_default(knob, default, knob.name in fixed) for knob in knobs)
    candidates = [setting for setting in _spanned(knobs, default) if _is_valid(experiment, setting)]
    if key_of(default) not in {key_of(c) for c in candidates}:
        candidates.insert(0, default)
    if len(candidates) < 2:
        raise ConfigError(
            f"nothing is left to tune: {', '.join(sorted(fixed)) or 'the experiment'} leaves one setting only; give fewer "
            "options beside the tuning."
        )
    return Space(knobs, default, tuple(candidates))


def _with_default(knob: Knob, default: Setting, fixed: bool) -> Knob:
    """Return the knob with the experiment's own value added, or as its only value."""
    if knob.name not in default:
        return knob
    own = default[knob.name]
    if fixed:
        return dataclasses.replace(knob, values=(own,))
    if own in knob.values:
        return knob
    values = (*knob.values, own)
    order = values if knob.is_category else tuple(sorted(values, key=lambda v: (v is None, v)))
    return dataclasses.replace(knob, values=order)


def _spanned(knobs: tuple[Knob, ...], default: Setting) -> Iterator[Setting]:
    """Yield every combination of the main knobs with at most MAX_DETAILS details that differ from their default."""
    main, details = [k for k in knobs if not k.detail], [k for k in knobs if k.detail]
    placements = next(k.values for k in knobs if k.name == "placement")
    for placement in placements:
        used = [k for k in main if k.name != "placement" and placement in k.placements]
        some = [k for k in details if placement in k.placements]
        plain = {k.name: default.get(k.name, _usual(k)) for k in some}
        for values in itertools.product(*(k.values for k in used)):
            base = {"placement": placement, **dict(zip((k.name for k in used), values, strict=True)), **plain}
            for count in range(MAX_DETAILS + 1):
                for turned in itertools.combinations(some, count):
                    others = [[v for v in k.values if v != plain[k.name]] for k in turned]
                    for choice in itertools.product(*others):
                        yield base | dict(zip((k.name for k in turned), choice, strict=True))


USUAL = {"num-inference-servers": 1, "actor.blocks-per-group": 2}


def _usual(knob: Knob) -> Any:
    """Return a detail's value if the default's placement does not have it."""
    return USUAL.get(knob.name, knob.values[-1])


def current(experiment: Experiment, knobs: Iterable[Knob]) -> Setting:
    known = {"ring": experiment.ring, "envs-factor": "1"}
    return {
        knob.name: known[knob.name] if knob.name in known else _get(experiment, knob.name)
        for knob in knobs
        if experiment.placement in knob.placements
    }


# -- from a setting to an experiment ----------------------------------------------------------------------------------


def options_for(experiment: Experiment, setting: Setting) -> dict[str, Any]:
    """Return the options (name -> value) of a setting in an experiment."""
    options = {name: value for name, value in setting.items() if name not in ("ring", "envs-factor")}
    if "ring" in setting:
        options["num-groups"] = setting.get("num-actors", experiment.actors) * setting["ring"]
    factor = Fraction(setting.get("envs-factor", "1"))
    if factor != 1:
        options["num-envs"] = _whole(experiment.envs * factor)
        if experiment.batch_envs is not None:
            options["batch-envs"] = _whole(experiment.batch_envs * factor)
    return options


def _whole(number: Fraction) -> int:
    if number.denominator != 1:
        raise ConfigError(f"{number} environments are no whole number.")
    return int(number)


def with_setting(experiment: Experiment, setting: Setting) -> Experiment:
    return applied(experiment, options_for(experiment, setting))


def _is_valid(experiment: Experiment, setting: Setting) -> bool:
    """Return whether a setting is valid for an experiment, and differs in effect from other settings."""
    try:
        tuned = with_setting(experiment, setting)
    except ConfigError:
        return False
    if "inference.max-rows" not in setting:
        return True
    servers, rows = setting["num-inference-servers"], setting["inference.max-rows"]
    share = -(-tuned.actors // servers) * tuned.ring * tuned.group_size  # of one server
    own = setting == current(experiment, [Knob(name, ()) for name in setting])
    most = max(experiment.envs, experiment.inference.max_rows)
    rows_matter = rows == most or tuned.group_size <= rows < share
    return own or (servers <= tuned.actors and rows_matter)


def _get(experiment: Experiment, name: str) -> Any:
    value: Any = experiment
    for part in name.replace("-", "_").split("."):
        value = getattr(value, part)
    return value


def describe(experiment: Experiment, setting: Setting) -> str:
    """Return a setting as text, such as `served, 2 actors x 32 slots, ring 2`; details only if they are unusual."""
    tuned = with_setting(experiment, setting)
    slots = tuned.ring * tuned.group_size
    if not tuned.where.processes:
        words = [f"{tuned.placement}, {tuned.envs} slots"]
    else:
        words = [
            f"{tuned.placement}, {tuned.actors} actor{'s' * (tuned.actors > 1)} x {slots} slots, ring {tuned.ring}"
        ]
    for name, value in setting.items():
        detail = name not in ("placement", "num-actors", "ring", "envs-factor")
        if detail and value != _get(experiment, name):
            words.append(f"{name} {'none' if value is None else value}")
    if setting.get("envs-factor", "1") != "1":
        words.append(f"batch of {tuned.batch_columns} environments")
    return ", ".join(words)
