"""The result of a run, and why it ended."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsrl.errors import counted
from jsrl.intervals import score_text
from jsrl.services.runs.curves import Scores
from jsrl.services.runs.groups import Group
from jsrl.services.runs.runs import Run, RunFolder, to_resume
from jsrl.services.runs.state import NO_SNAPSHOT, has_snapshot, read_result
from jsrl.transport.ledger.reconcile import LegLedger, leg_ledger

if TYPE_CHECKING:
    from jsrl.tools.policy import Policy

INTENDED = ("total_env_steps", "max_minutes", "stop_at_return")
WIDTH = 120  # of text without a terminal
STOPPED = "stopped by"  # followed by `hook` and its name, or by the worker of a director and its reason


def is_intended(ended: str) -> bool:
    return ended in INTENDED or ended.startswith(STOPPED)


def is_finished(folder: Path) -> bool:
    result = read_result(folder)
    return is_intended(str(result.get("ended", ""))) and not result.get("unsaved")


def missing(group: Group) -> list[int]:
    """Return the seeds of a group whose runs have not ended as intended."""
    return [seed for seed in group.seeds if not is_finished(group.folder(seed))]


class RunData:
    """What a run's folder gives while it runs and afterwards: `metrics`, `scores`, `plot`, `policy`."""

    folder: Path

    @property
    def _run(self) -> Run:
        return Run(RunFolder(self.folder))

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the run's metrics as columns: name -> numpy array with NaN where a line has no value."""
        return self._run.metrics

    @property
    def scores(self) -> Scores:
        """Return the evaluations as arrays, those of the first policy if there are several: `scores.return_mean`."""
        return self._run.scores

    def plot(self, axes: Any = None) -> Any:
        """Draw the scores of every policy with their 95% intervals into matplotlib axes (None: new ones), and return these.

        Raises:
          MissingExtra: matplotlib is not installed.
        """
        return self._run.plot(axes)

    def policy(self, tag: str = "best", policy: str = "") -> Policy:
        """Return a policy of the run to act with: the best one, or that of another tag; see `load_policy`.

        Raises:
          ConfigError: there is no such tag or policy.
        """
        from jsrl.tools.policy import load_policy

        return load_policy(self.folder, tag, policy=policy)


@dataclass(frozen=True)
class Result(RunData):
    """The outcome of a run.

    Attributes:
      folder: the run's. ended: total_env_steps, max_minutes, stop_at_return, `stopped by hook NAME`,
        `stopped by director: REASON`, or interrupted. (The result.json of a run that raised says failed.)
      env_steps, updates, wall_s: reached. process_s: from the start of this process (with imports) to the end of the
        training.
      ledger: of the learner's sample stream, reconciled (jsrl.transport.ledger.reconcile). legs: the other streams', by name.
      others: the other policies, by name: why each ended, its env steps, updates, evaluation and final.
      evaluation: the last score (or the one that reached stop_at_return). final: of 100 fresh episodes; empty where the run
        was interrupted, in the final evaluation too. best: that of the snapshot `best`, and its name to `load`.
      first_policy: the name of the first of several policies, which the other fields are about.
      unsaved: which learner's final snapshot was not written, and why; empty: all were.
      restarts: worker -> how often it was restarted in this start of the run; without those that never were.
      summary: rates, shares of time and the bottleneck, as text; report.html has more.
    """

    folder: Path
    ended: str
    env_steps: int
    updates: int
    wall_s: float
    process_s: float = 0.0
    ledger: dict[str, Any] = field(default_factory=dict, repr=False)
    legs: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    evaluation: dict[str, float] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    others: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    first_policy: str = ""
    unsaved: str = ""
    restarts: dict[str, int] = field(default_factory=dict)
    summary: str = field(default="", repr=False)

    @property
    def as_intended(self) -> bool:
        """Return whether the run ended for one of its own reasons."""
        return is_intended(self.ended)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values, from which `from_facts` makes an equal result."""
        return dataclasses.asdict(self) | {"folder": str(self.folder)}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Result:
        """Return the result with these fields."""
        return cls(**facts | {"folder": Path(facts["folder"])})

    @property
    def params(self) -> Any:
        """Return the final params as a tree of numpy arrays."""
        return self.params_of()

    def params_of(self, policy: str = "") -> Any:
        """Return the final params of a policy other than the first, by its name."""
        from jsrl.services.snapshots.store import SnapshotStore

        store = SnapshotStore(self.folder / "snapshots" / policy / "state")
        return store.load("latest").tree["state"]["params"]

    def __str__(self) -> str:
        how = f"reached {self.ended}" if self.ended in INTENDED else self.ended
        lines = [
            f"{how} after {self.env_steps:,} env steps, {counted(self.updates, 'update')}, {self.wall_s:.1f} s "
            f"({self.process_s:.1f} s from the start of the process)",
        ]
        whose = f" of {self.first_policy}" if self.first_policy else ""
        lines += [f"{title}: {text}" for title, text in score_lines(vars(self), whose)]
        lines += [f"{name}: {text}" for name, text in other_lines(self.others)]
        lines += ledger_lines(self.ledger, self.legs)
        if self.restarts:
            lines.append("restarts: " + ", ".join(f"{worker} {count}" for worker, count in self.restarts.items()))
        if self.summary:
            lines.append(self.summary)
        summary = fitted("\n".join(lines), min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
        whole = [f"run folder: {self.folder}"]  # paths and commands are copied: they are not wrapped
        if (report := self.folder / "report.html").exists():
            whole.append(f"report: {report}")
        whole += play_lines(self.best, whose)
        whole += [line for name, facts in self.others.items() for line in play_lines(facts.get("best"), f" of {name}")]
        if self.unsaved or not self.as_intended:
            if has_snapshot(self.folder):
                whole.append(f"to continue: {to_resume(self.folder)}")
            elif self.updates:
                whole.append(NO_SNAPSHOT)
        return "\n".join([summary, *whole])


def fitted(text: str, width: int = WIDTH) -> str:
    """Return text with long lines wrapped between words, and continuation lines indented by two more columns."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        wrap = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        lines += wrap.wrap(line) or [""]
    return "\n".join(lines)


def score_lines(result: dict[str, Any], whose: str = "") -> list[tuple[str, str]]:
    """Return the scores of a policy: (title, text). The last params and the best ones often differ."""
    titles = {"evaluation": f"evaluation{whose}", "final": f"final evaluation{whose}, fresh seeds"}
    titles |= {"best": f"best{whose}"}
    found = [(title, result[name]) for name, title in titles.items() if result.get(name)]
    at = [f" at {int(facts['env_steps']):,} env steps" if "env_steps" in facts else "" for _, facts in found]
    if result.get("best"):
        at[-1] += ", the highest of its evaluations"
    return [(title, score(facts) + where) for (title, facts), where in zip(found, at, strict=True)]


def play_lines(best: dict[str, Any] | None, whose: str = "") -> list[str]:
    """Return the command that plays the snapshot `best`, on a line of its own to copy; none: there is no such snapshot."""
    return [f"to play the best{whose}: jsrl evaluate {best['load']}"] if best and "load" in best else []


def other_lines(others: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the results of each policy other than the first: (name, value)."""
    lines = []
    for name, facts in others.items():
        counts = f"{facts['env_steps']:,} env steps, {counted(facts['updates'], 'update')}"
        scores = [f"{title}: {text}" for title, text in score_lines(facts)]
        lines.append((f"policy {name}", "; ".join([counts, *scores])))
    return lines


def ledger_text(ledger: dict[str, Any]) -> str:
    return str(leg_ledger(ledger))


def ledger_lines(ledger: dict[str, Any], legs: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each leg that carried something; a fused run has no trajectories outside its program."""
    found = {"ledger": ledger, **{f"ledger of {name}": counts for name, counts in legs.items()}}
    used = {title: counts for title, counts in found.items() if leg_ledger(counts) != LegLedger()}
    return [f"{title}: {ledger_text(counts)}" for title, counts in used.items()]


def contradicted(result: dict[str, Any]) -> bool:
    """Return whether a result has no ledger, or one whose counts contradict each other."""
    ledgers = [result.get("ledger") or {}, *(result.get("legs") or {}).values()]
    return not all("produced" in counts and leg_ledger(counts).holds for counts in ledgers)


def score(facts: dict[str, float], actions: str = "greedy") -> str:
    """Return an evaluation's score as text; actions: greedy or sampled."""
    return score_text(facts, counted(int(facts["episodes"]), f"{actions} episode"))
