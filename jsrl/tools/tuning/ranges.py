"""The varied options of a search: a range as text, its values, and Optuna's form."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsrl.errors import ConfigError

KINDS = ("log", "lin", "int", "log-int")
FORMS = "log:LOW:HIGH, lin:LOW:HIGH, int:LOW:HIGH, log-int:LOW:HIGH, or values such as 0.5,1,10"


@dataclass(frozen=True)
class Range:
    """The values that an option may take: numbers from `low` to `high`, or `choices` as texts.

    Attributes:
      option: its name without dashes. kind: one of KINDS; `choice`.
    """

    option: str
    kind: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def is_log(self) -> bool:
        """Return whether numbers are drawn uniformly in their logarithm."""
        return self.kind.startswith("log")

    @property
    def is_whole(self) -> bool:
        return self.kind.endswith("int")

    @property
    def distribution(self) -> Any:
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution(self.choices)
        if self.is_whole:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.is_log)
        return distributions.FloatDistribution(self.low, self.high, log=self.is_log)

    @property
    def samples(self) -> tuple[str, ...]:
        """Return values as texts to check the range with: all choices; both ends and a number between."""
        if self.choices:
            return self.choices
        between = self.low + 0.4142 * (self.high - self.low)
        return tuple(self.text(value) for value in (self.low, between, self.high))

    def text(self, value: Any) -> str:
        """Return a value in the form of the command line."""
        if self.choices:
            return str(value)
        return str(round(value)) if self.is_whole else repr(float(f"{value:.6g}"))


def parse_space(vary: Mapping[str, Any], file: str | None) -> list[Range]:
    """Return the ranges from the command line and from a JSON file."""
    given = {**(_read(Path(file)) if file is not None else {}), **vary}
    if not given:
        example = "--vary agent.learning-rate=log:1e-5:1e-2"
        raise ConfigError(f"there is nothing to search; add --vary OPTION=RANGE, such as {example}.")
    return [parse_range(option.replace("_", "-"), str(text)) for option, text in given.items()]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--space {path} cannot be read as JSON ({error}).") from None
    if not isinstance(found, dict):
        raise ConfigError(f'--space {path} holds no JSON object; expected one such as {{"agent.gamma": "lin:0.9:1"}}.')
    return found


def parse_range(option: str, text: str) -> Range:
    def wrong(expected: str) -> ConfigError:
        return ConfigError(f"--vary {option} is {text!r}, expected {expected}.")

    kind, *ends = text.split(":")
    if kind not in KINDS or len(ends) != 2:
        choices = tuple(word.strip() for word in text.split("|" if "|" in text else ","))
        if kind in KINDS or len(choices) < 2 or not all(choices) or len(set(choices)) < len(choices):
            raise wrong(f"{FORMS}, at least two different ones")
        return Range(option, "choice", choices=choices)
    try:
        low, high = map(float, ends)
    except ValueError:
        raise wrong(f"numbers: {FORMS}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise wrong("a lower number and a higher one")
    if kind.startswith("log") and low <= 0:
        raise wrong("numbers above 0 in a logarithmic range (lin and int may begin anywhere)")
    if kind.endswith("int") and not (low.is_integer() and high.is_integer()):
        raise wrong(f"whole numbers after {kind}")
    return Range(option, kind, low, high)
