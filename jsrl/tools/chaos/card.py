"""The score card of a storm: the faults injected into a run, its recovery, and whether it passed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jsrl.control.result import contradicted, ledger_lines
from jsrl.workers.director.audit import Games
from jsrl.workers.jobs import kind_of

HARMED_SHARE = 0.1  # by which share of the best score before the storm the best one during it may be lower


@dataclass
class InjectedFault:
    """A fault injected into one worker: how (`kill`, `pause`, `hang`), and seconds until recovery (None: no recovery).

    others: learners of other policies that were replaced too, after a fault of a learner. held_games: it plays or counts
    the games of a director, so that its open games are discarded.
    """

    worker: str
    how: str
    recovered_s: float | None = None
    others: tuple[str, ...] = ()
    held_games: bool = False


@dataclass
class ScoreCard:
    """The result of a storm over a run.

    Attributes:
      calm_per_s, storm_per_s: trajectories produced per second before and during the storm. result: the run's own.
      left: processes that remained after the run. ended: why it ended before the storm did; empty: it did not.
      scores: evaluations before and since the storm began.
      games: of the director before the storm and at the end; None: the run has no director.
    """

    faults: list[InjectedFault] = field(default_factory=list)
    calm_per_s: float = 0.0
    storm_per_s: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    ended: str = ""
    scores: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    games: tuple[Games, Games] | None = None

    @property
    def passed(self) -> bool:
        """Return whether the run recovered from every fault, nothing else was harmed, and nothing remained."""
        recovered = all(fault.recovered_s is not None and not fault.others for fault in self.faults)
        unharmed = self.learns and not self.game_faults
        return bool(self.faults) and recovered and unharmed and self.accounted and not self.left and not self.ended

    @property
    def learns(self) -> bool:
        """Return whether scores since the storm began reach those before it (also True without scores)."""
        before, since = self.scores
        return not (before and since) or max(since) >= max(before) - HARMED_SHARE * abs(max(before))

    @property
    def accounted(self) -> bool:
        """Return whether the run's ledgers balance: the producers' and consumers' counts match, except for unknown ones."""
        return not contradicted(self.result)

    @property
    def game_faults(self) -> list[str]:
        """Return what is wrong with the director's games, as sentences."""
        if self.games is None:
            return []
        before, end = self.games
        faults = list(end.faults)
        if end.finished <= before.finished:
            faults.append("no game was finished since the storm began")
        holders = sorted({fault.worker for fault in self.faults if fault.held_games})
        if holders and end.discarded <= before.discarded:
            faults.append(f"{', '.join(holders)} held games when hit, but no game was discarded")
        return faults

    def text(self) -> str:
        lines = [f"score card: {'passed' if self.passed else 'FAILED'}", *self._fault_lines()]
        share = self.storm_per_s / self.calm_per_s if self.calm_per_s else 0.0
        lines.append(
            f"  throughput: {self.calm_per_s:.1f} trajectories/s before, {self.storm_per_s:.1f} during the storm ({share:.0%})"
        )
        ledgers = ledger_lines(self.result.get("ledger") or {}, self.result.get("legs") or {})
        lines += [f"  {line}" for line in ledgers or ["ledger: none was left"]]
        lines += [*self._game_lines(), *self._learning_lines()]
        if self.ended:
            lines.append(f"  the run ended before the storm: {self.ended}")
        if self.left:
            lines.append(f"  left behind: {', '.join(self.left)}")
        return "\n".join(lines)

    def _fault_lines(self) -> list[str]:
        groups: dict[str, list[InjectedFault]] = {}
        for fault in self.faults:
            groups.setdefault(f"{fault.how} {kind_of(fault.worker)}", []).append(fault)
        width = max([18, *map(len, groups)])
        lines = [f"  {'fault':<{width}} count  recovered  p50 s  p95 s"]
        for name, faults in [*sorted(groups.items()), ("all", self.faults)]:
            times = sorted(fault.recovered_s for fault in faults if fault.recovered_s is not None)
            p50, p95 = (f"{quantile(times, q):.1f}" if times else "-" for q in (0.5, 0.95))
            lines.append(f"  {name:<{width}} {len(faults):>5}  {len(times):>9}  {p50:>5}  {p95:>5}")
        for fault in self.faults:
            if fault.others:
                lines.append(f"    {fault.how} {fault.worker}: {', '.join(fault.others)} had to be replaced too")
        return lines

    def _game_lines(self) -> list[str]:
        if self.games is None:
            return []
        before, end = self.games
        finished, discarded = end.finished - before.finished, end.discarded - before.discarded
        lines = [f"  games: {end}", f"    since the storm began: {finished:,} finished, {discarded:,} discarded"]
        return lines + [f"    WRONG: {fault}" for fault in self.game_faults]

    def _learning_lines(self) -> list[str]:
        before, since = self.scores
        lines = []
        if before or since:
            first, second = (f"{max(s):.1f} ({len(s)})" if s else "none" for s in (before, since))
            harmed = "" if self.learns else ": HARMED"
            lines.append(f"  learning: best score {first} before, {second} since the storm began{harmed}")
        score = self.result.get("final") or self.result.get("evaluation") or {}
        if "return_mean" in score:
            lines.append(f"  return: {score['return_mean']:.1f} after {self.result.get('env_steps', 0):,} env steps")
        return lines


def quantile(values: list[float], share: float) -> float:
    """Return the value that this share of sorted values does not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]
