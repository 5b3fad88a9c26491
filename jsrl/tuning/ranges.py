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
        """Return whether the numbers are whole."""
        return self.kind.endswith("int")

    @property
    def distribution(self) -> Any:
        """Return Optuna's form."""
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
    """Return the ranges from the command line and from a file.

    Raises:
      ConfigError: there are none, the file cannot be read, or a range is invalid.
    """
    given = {**(read_space(Path(file)) if file is not None else {}), **vary}
    if not given:
        example = "--vary agent.learning-rate=log:1e-5:1e-2"
        raise ConfigError(f"there is nothing to search; add --vary OPTION=RANGE, such as {example}.")
    return [parse_range(option.replace("_", "-"), str(text)) for option, text in given.items()]


def read_space(path: Path) -> dict[str, Any]:
    """Return the ranges of a JSON file.

    Raises:
      ConfigError: it cannot be read, or holds something else.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--space {path} cannot be read as JSON ({error}).") from None
    if not isinstance(found, dict):
        raise ConfigError(f'--space {path} holds no JSON object; expected one such as {{"agent.gamma": "lin:0.9:1"}}.')
    return found


def parse_range(option: str, text: str) -> Range:
    """Return a range.

    Raises:
      ConfigError: the text is invalid; the message lists the forms.
    """
    kind, *ends = text.split(":")
    if kind in KINDS and len(ends) == 2:
        return Range(option, kind, *bounds(option, text, kind, ends))
    choices = tuple(word.strip() for word in text.split("|" if "|" in text else ","))
    if kind in KINDS or len(choices) < 2 or not all(choices) or len(set(choices)) < len(choices):
        raise ConfigError(f"--vary {option} is {text!r}, expected {FORMS}, at least two different ones.")
    return Range(option, "choice", choices=choices)


def bounds(option: str, text: str, kind: str, ends: list[str]) -> tuple[float, float]:
    """Return the ends of a range.

    Raises:
      ConfigError: they are not numbers, or not a range.
    """
    try:
        low, high = float(ends[0]), float(ends[1])
    except ValueError:
        raise ConfigError(f"--vary {option} is {text!r}, expected numbers: {FORMS}.") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"--vary {option} is {text!r}, expected a lower number and a higher one.")
    if kind.startswith("log") and low <= 0:
        raise ConfigError(
            f"--vary {option} is {text!r}; a logarithmic range begins above 0 (lin and int may begin anywhere)."
        )
    if kind.endswith("int") and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"--vary {option} is {text!r}, expected whole numbers after {kind}.")
    return low, high
