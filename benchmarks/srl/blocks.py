"""Arms measured in alternating blocks of one session, and their ratios."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.services.runs.provenance import environment_facts

Figures = dict[str, float]


@dataclass(frozen=True)
class Arm:
    """One arm: `measure` runs one block and returns its figures."""

    name: str
    measure: Callable[[], Figures]


@dataclass(frozen=True)
class Block:
    """The figures of one block. load: load average of the machine at its end."""

    arm: str
    round: int
    figures: Figures
    seconds: float
    load: float


@dataclass
class Record:
    """All measurements of one lever's session, as written to a file.

    Attributes:
      lever: its name. main: the figure that arms are compared by. options: of the session. blocks: in order.
      summary: figures computed from the blocks.
    """

    lever: str
    main: str
    options: dict[str, Any]
    blocks: list[Block] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def values(self, arm: str, figure: str | None = None) -> list[float]:
        """Return an arm's figure, one number per round."""
        name = figure or self.main
        return [b.figures[name] for b in self.blocks if b.arm == arm and name in b.figures]

    def median(self, arm: str, figure: str | None = None) -> float:
        """Return the median of an arm's figure (NaN without any)."""
        values = self.values(arm, figure)
        return statistics.median(values) if values else float("nan")

    def save(self, path: Path) -> None:
        """Write the record with machine, commit and versions."""
        facts = environment_facts()
        facts.pop("working_directory", None)
        path.parent.mkdir(parents=True, exist_ok=True)
        values = asdict(self) | {"environment": facts}
        path.write_text(json.dumps(values, indent=1, default=float) + "\n")


def alternate(
    record: Record,
    arms: Sequence[Arm],
    rounds: int,
    *,
    show: bool = True,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Measure every arm once a round, alternating forwards and backwards (A B, B A, ...); appends to the record.

    Ends after `rounds` rounds, or after the first one at whose end `enough` is true.
    """
    for number in range(rounds):
        if enough():
            return
        for arm in arms if number % 2 == 0 else arms[::-1]:
            begin = time.monotonic()
            figures = arm.measure()
            block = Block(arm.name, number, figures, round(time.monotonic() - begin, 3), round(os.getloadavg()[0], 2))
            record.blocks.append(block)
            if show:
                value = figures.get(record.main, float("nan"))
                print(f"  round {number + 1}/{rounds}  {arm.name:<28} {record.main} {value:,.4g}", file=sys.stderr)


def paired_ratio(record: Record, arm: str, against: str, figure: str | None = None) -> dict[str, float]:
    """Return the median over rounds of arm / against, and a bootstrap interval of 95% (seeded)."""
    name = figure or record.main
    by_round = {(b.arm, b.round): b.figures.get(name, float("nan")) for b in record.blocks}
    pairs = [
        by_round[arm, n] / by_round[against, n]
        for n in sorted({b.round for b in record.blocks})
        if (arm, n) in by_round and by_round.get((against, n))
    ]
    ratios = np.array([p for p in pairs if np.isfinite(p)])
    if not ratios.size:
        return {"median": float("nan"), "low": float("nan"), "high": float("nan"), "pairs": 0}
    drawn = np.random.default_rng(0).choice(ratios, (2000, ratios.size))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return {"median": float(np.median(ratios)), "low": float(low), "high": float(high), "pairs": int(ratios.size)}


def ratio_text(ratio: dict[str, float]) -> str:
    """Return a ratio as text."""
    return f"{ratio['median']:.2f}x ({ratio['low']:.2f} - {ratio['high']:.2f}, {ratio['pairs']:.0f} pairs)"
