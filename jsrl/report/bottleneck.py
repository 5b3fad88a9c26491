"""The bottleneck of a run, from its own measurements: one verdict of a table, and the option that would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jsrl.report.evidence import RunSetup, gather
from jsrl.report.verdicts import SERIAL, VERDICTS
from jsrl.workers.kinds import Kind


@dataclass(frozen=True)
class Bottleneck:
    """What limits a run: `kind` names the verdict (for programs), `text` explains it and what would help."""

    kind: str
    text: str


def find_bottleneck(metrics: Mapping[str, float], facts: RunSetup, kinds: Iterable[Kind] | None = None) -> Bottleneck:
    """Return what limits a run.

    Args:
      metrics: means over its steady part, by full name (`actor/env_share`, `system/actor_cpu_share`, ...).
      facts: of the experiment and the machine. kinds: of the run's workers; None: jsrl's own.
    """
    evidence = gather(metrics, facts, kinds)
    for kind, applies, text in SERIAL if facts.placement == "serial" else VERDICTS:
        if applies(evidence):
            return Bottleneck(kind, text(evidence))
    raise AssertionError("the last verdict always applies")
