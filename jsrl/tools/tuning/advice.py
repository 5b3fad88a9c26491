"""Advice from measurements: the setting to use and its gain; a pure function of a file of measurements."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from jsrl.errors import ConfigError, counted
from jsrl.experiment.placements import PLACEMENTS
from jsrl.intervals import t_factor
from jsrl.tools.tuning.space import Setting, Trial, key_of

BUSY = 3.0  # load average per core above which other programs must have run: a trial keeps only its own cores busy
TIE = 0.02  # settings within this share of the best speed are ties; the one with fewer processes wins


class Measurements(msgspec.Struct, frozen=True, tag="jsrl measurements 2"):
    """All measurements of a tuning, with the machine and the experiment.

    Attributes:
      experiment: its name. machine, work: for which the figures hold (see jsrl.tools.tuning.profiles). version: of jsrl.
      default: the experiment's own setting. trials: in order. words, options: key of a setting -> the setting as text,
        and its options (name -> value). began: when (ISO 8601). total_s: duration.
      changes_learning: the number of environments and the batch were tuned as well.
    """

    experiment: str
    machine: dict[str, Any]
    work: dict[str, Any]
    version: str
    default: Setting
    trials: tuple[Trial, ...]
    words: dict[str, str]
    options: dict[str, dict[str, Any]]
    began: str = ""
    total_s: float = 0.0
    changes_learning: bool = False


def label(setting: Setting) -> str:
    return ";".join(f"{name}={value}" for name, value in key_of(setting))


@dataclass(frozen=True)
class Ranked:
    """A setting's speed: the median of `number` measurements, half of its 95% interval (NaN: unknown), those left out."""

    words: str
    median: float
    half: float
    number: int
    left_out: tuple[float, ...]
    rising: bool

    @property
    def text(self) -> str:
        found = f"{self.median:,.0f}" + ("" if math.isnan(self.half) else f" ± {self.half:,.0f}")
        notes = ["once" if self.number == 1 else f"{self.number} times"]
        if self.left_out:
            notes.append(f"{', '.join(f'{speed:,.0f}' for speed in self.left_out)} in the search does not count")
        if self.rising:
            notes.append("still rising")
        return f"{found:>18}  {self.words} ({'; '.join(notes)})"


@dataclass(frozen=True)
class Advice:
    """The setting to use.

    Attributes:
      setting, words, options: the best one, as value and as text. env_steps_per_s: its median speed.
      default_env_steps_per_s: of the default (0: it failed). ranking: of every setting, best first. text: all of this as text.
    """

    setting: Setting
    words: str
    options: dict[str, Any]
    env_steps_per_s: float
    default_env_steps_per_s: float
    ranking: tuple[Ranked, ...]
    text: str

    @property
    def gain(self) -> float:
        """Return its speed over the default's (infinite if the default failed)."""
        return self.env_steps_per_s / self.default_env_steps_per_s if self.default_env_steps_per_s else float("inf")


def advise(found: Measurements) -> Advice:
    """Return the advice from measurements.

    The setting with the highest median of its final measurements wins (of all measurements, if there are no final ones);
    within 2% of it the default is kept, else the setting with the fewest processes is taken.
    """
    explored, final = _by_phase(found.trials)
    # of a setting with final measurements only those count: the first one, by which it was chosen, may be luck
    speeds = {key: values for key, values in (explored | final).items() if min(values) > 0}
    settings = {key_of(t.setting): t.setting for t in found.trials}
    if not speeds:
        errors = [t.error for t in found.trials if t.error]
        raise ConfigError(f"no setting could be measured: {errors[0] if errors else 'there was no time'}")
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    compared = _comparable(found.trials) & set(speeds) or set(speeds)
    top = max(medians[key] for key in compared)
    level = [key for key in compared if medians[key] >= (1 - TIE) * top]
    default = key_of(found.default)
    chosen = min(level, key=lambda k: (k != default, _processes(settings[k]), -medians[k], str(k)))
    order = sorted(speeds, key=lambda key: (key != chosen, key not in compared, -medians[key], str(key)))
    noise, rising = _noise(speeds.values()), {key_of(t.setting) for t in found.trials if t.rising}
    ranked = {
        key: Ranked(
            found.words[label(settings[key])],
            medians[key],
            noise * medians[key] / math.sqrt(len(speeds[key])),
            len(speeds[key]),
            tuple(explored.get(key, ())) if key in final else (),
            key in rising,
        )
        for key in order
    }
    setting = settings[chosen]
    options, words = found.options[label(setting)], found.words[label(setting)]
    advice = Advice(setting, words, options, medians[chosen], medians.get(default, 0.0), tuple(ranked.values()), "")
    return dataclasses.replace(advice, text=_text(found, advice, ranked.get(default)))


def _by_phase(trials: Sequence[Trial]) -> tuple[dict[Any, list[float]], dict[Any, list[float]]]:
    """Return the speeds by setting: in the search, and in the final measurements."""
    explored: dict[Any, list[float]] = {}
    final: dict[Any, list[float]] = {}
    for trial in trials:
        speeds = final if trial.phase == "final" else explored
        speeds.setdefault(key_of(trial.setting), []).append(trial.env_steps_per_s)
    return explored, final


def _noise(repeated: Iterable[Sequence[float]]) -> float:
    """Return half of the 95% interval of one measurement as a share of the speed, from all repetitions; NaN without any."""
    logs = [np.log(speeds) for speeds in repeated if len(speeds) > 1]
    freedom = sum(len(own) - 1 for own in logs)
    if not freedom:
        return math.nan
    spread = math.sqrt(sum(float(np.square(own - own.mean()).sum()) for own in logs) / freedom)
    return t_factor(freedom) * spread


def _comparable(trials: Sequence[Trial]) -> set[Any]:
    """Return the settings that were measured most carefully: those with the most final measurements."""
    counts: dict[Any, int] = {}
    for trial in trials:
        if trial.phase == "final":
            counts[key_of(trial.setting)] = counts.get(key_of(trial.setting), 0) + 1
    most = max(counts.values(), default=0)
    return {key for key, count in counts.items() if count >= most - 1}


def _processes(setting: Setting) -> int:
    if "placement" in setting and not PLACEMENTS[setting["placement"]].processes:
        return 1
    return 1 + setting.get("num-actors", 1) + setting.get("num-inference-servers", 0)


def _text(found: Measurements, advice: Advice, default: Ranked | None) -> str:
    """Return the advice as text: the setting, its gain, its options, and the next best ones."""
    speed, best = f"{advice.env_steps_per_s:,.0f} env steps/s", advice.ranking[0]
    is_default = best is default
    if is_default:
        first = f"{found.experiment}: keep the default ({advice.words}), {speed}: nothing measured as often was faster by 2%"
    elif not advice.default_env_steps_per_s:
        first = f"{found.experiment}: {advice.words}: {speed} (the default failed)"
    else:
        first = f"{found.experiment}: {advice.words}: {advice.gain:.1f}x the default, {speed}"
    lines = [first]
    if not is_default:
        words = " ".join(f"--{name} {_plain(value)}" for name, value in sorted(advice.options.items()))
        lines.append(f"  as options: {words}")
    if found.changes_learning:
        lines.append("  the number of environments and the batch were tuned too: what is learned changes with them")
    count = len({key_of(t.setting) for t in found.trials})
    if default and not is_default and best.median - default.median <= math.hypot(best.half, default.half):
        lines.append(
            "  the gain is not above the noise of the measurements; a longer --tune-minutes shows whether it is real"
        )
    lines.append(
        f"  {counted(len(found.trials), 'trial')} of {counted(count, 'setting')} in {found.total_s:.0f} s; fastest, with 95% "
        "intervals:"
    )
    lines += [f"  {ranked.text}" for ranked in advice.ranking[:4]]
    load, cores = statistics.median(t.load for t in found.trials), found.machine.get("cores", 1)
    if load > BUSY * cores:
        lines.append(
            f"  other things ran meanwhile (load average {load:.0f} on {cores} cores): tune again when they are over"
        )
    failed = [t for t in found.trials if t.error]
    if failed:
        lines.append(f"  {len(failed)} failed, the first: {failed[0].error.splitlines()[0][:100]}")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)
