"""What is known of a run: counters and scores of each policy, why it ends, and what became of its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.graph.policies import PolicyPart
from jsrl.intervals import decimals_of, score_of, score_title
from jsrl.services.runs.state import read_best
from jsrl.types import version_updates
from jsrl.workers.jobs import StartPoint

BEGINNING = StartPoint()
MAX_PROGRESS = 4096  # points of env steps by updates, and scores


class Progress:
    """One policy's training, as the launching process knows it.

    Args:
      policy: of the run. start: of this start of the run. Only with replay workers do the env steps not follow from the
        number of the version.

    Attributes:
      env_steps, updates: trained so far, by the learner that got furthest. number: of its version.
        ended: why its training has ended; empty: it goes on. kept, kept_number: those of the newest learner, which may not
        have caught up with the one that it replaced.
      goal: the score to reach; None: none. reached: whether its newest score did, and a second one of the same params.
      evaluation: the last score, or the one that reached `stop_at_return`. final: of fresh episodes after the end.
      curve: (env steps, score) of each evaluation; of very many every second one, with the best.
    """

    def __init__(self, policy: PolicyPart, start: StartPoint = BEGINNING) -> None:
        self.policy = policy
        self._experiment = e = policy.experiment
        self.updates = start.made
        self.number = self.kept_number = self._start_number = start.updates
        trained = int(start.updates // e.updates_per_batch * e.env_steps_per_batch)
        self.env_steps = start.env_steps if e.has_replay_workers else trained
        self.ended = ""
        self.goal, self.reached = e.stop_at_return, False
        self.evaluation: dict[str, float] = {}
        self.final: dict[str, float] = {}
        self.curve: list[tuple[int, float]] = []
        self.kept = {"env_steps": self.env_steps, "updates": self.updates}
        self._points = [(self.number, start.unmade, self.env_steps)]

    @property
    def has_trained(self) -> bool:
        """Return whether a batch was used since this start of the run."""
        return self.number > self._start_number

    @property
    def counters(self) -> dict[str, int]:
        return {self.policy.named("env_steps"): self.env_steps, self.policy.named("updates"): self.updates}

    def best(self, run: Path) -> dict[str, Any]:
        facts = read_best(run, self.policy.folder)
        if "env_steps" in facts:
            number = int(facts["version_updates"])
            facts |= {
                "version_updates": self.made(number),
                "env_steps": self.env_steps_before(number, facts["env_steps"]),
            }
        return facts

    def outcome(self, run: Path) -> dict[str, Any]:
        scores = {"evaluation": self.evaluation, "final": self.final, "best": self.best(run)}
        return {"ended": self.ended, **self.kept, **scores}

    def take(self, facts: dict[str, Any]) -> None:
        """Take the counters from a report or from a worker's last message."""
        self.env_steps = max(self.env_steps, facts.get("env_steps", 0) if "updates" in facts else 0)
        self.updates = max(self.updates, facts.get("updates", 0))
        if "updates" not in facts:
            return
        rows_are_kept = self._experiment.has_replay_workers
        env_steps = self.env_steps if rows_are_kept else facts.get("env_steps", self.kept["env_steps"])
        self.kept = {"env_steps": env_steps, "updates": facts["updates"]}
        self.kept_number = number = version_updates(facts["version"]) if "version" in facts else facts["updates"]
        self.number = max(self.number, number)
        unmade = number - facts["updates"]
        if number > self._points[-1][0] and (rows_are_kept or unmade != self._points[-1][1]):
            self._points.append((number, unmade, self.env_steps))
            if len(self._points) > MAX_PROGRESS:
                del self._points[1:-1:2]  # the points between are interpolated anyway

    def evaluated(self, facts: dict[str, Any]) -> None:
        if self.ended != "stop_at_return":
            self.evaluation = {k: v for k, v in facts.items() if k not in ("metrics", "updates")}
        self.curve.append((facts["env_steps"], score_of(facts)))
        if len(self.curve) > MAX_PROGRESS:
            best = max(self.curve, key=lambda point: point[1])
            self.curve = [point for number, point in enumerate(self.curve) if number % 2 == 0 or point is best]
        self.reached = self.reached and self.goal is not None and score_of(facts) >= self.goal

    def confirmed(self, facts: dict[str, Any]) -> str:
        """Take the second score of params whose first one reached the goal. Return a sentence."""
        goal = self.goal
        score, episodes, first = score_of(facts), int(facts["episodes"]), self.evaluation
        if self.ended or goal is None or facts["updates"] <= self._start_number:
            return ""  # it has ended already, or these are its first params: no reason to end
        digits, before = decimals_of(goal), score_of(first) if first else goal
        again = f"{before:.{digits}f}, and {score:.{digits}f} over {episodes} episodes with other seeds"
        self.reached = score >= goal
        if not self.reached:
            return f"a {score_title(facts)} of {again}: below the goal of {goal:g}, so training continues"
        return f"a {score_title(facts)} of {again}: the goal of {goal:g} is reached"

    def end(self, reason: str) -> None:
        """Record why its training has ended; the first reason stays."""
        self.ended = self.ended or reason

    def made(self, number: int) -> int:
        """Return the updates that were made up to the version of this number, as the learner reported them."""
        numbers, unmade, _ = zip(*self._points, strict=True)
        return number - int(np.interp(number, numbers, unmade))

    def counted(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of a player with the true counts of its params: it knows only the number of their version."""
        number, metrics = facts["updates"], facts["metrics"]
        made = self.made(number)
        counts: dict[str, Any] = {"updates": made, "version_updates": made}
        counts["metrics"] = {k: float(made) if k.endswith("/version_updates") else v for k, v in metrics.items()}
        counts["env_steps"] = self.env_steps_before(number, facts["env_steps"])
        return facts | counts

    def env_steps_before(self, number: int, env_steps: int) -> int:
        """Return the env steps at a version: `env_steps`, or with replay workers interpolated from the reports."""
        if not self._experiment.has_replay_workers:
            return env_steps
        numbers, _, known = zip(*self._points, strict=True)
        return int(np.interp(number, numbers, known))


class RunState:
    """A run, as the launching process knows it. Times are of the monotonic clock.

    Attributes:
      policies: name -> its progress. first: whose counters lines of metrics have; others: the rest.
      reason: why the run must end; None: it goes on. begun_s: when it began; finished_s: when the reason came, or None.
      trained_s, trained_steps: time of the first reported update since this start, or None, and the env steps at that time.
      finals: workers whose last task is finished. unsaved: learner -> why its final snapshot was not written.
      restarts, hosts, pids: worker -> those of its newest incarnation.
      ends: incarnation of a worker -> where and when it ended unexpectedly.
    """

    def __init__(self, policies: Sequence[Progress], policy_of: Mapping[str, str], now_s: float) -> None:
        """`policy_of`: worker -> its policy; other workers belong to the first."""
        self.policies = {progress.policy.name: progress for progress in policies}
        self.first, *self.others = policies
        self._policy_of = {worker: self.policies[policy] for worker, policy in policy_of.items()}
        self.reason: str | None = None
        self.begun_s = now_s
        self.finished_s: float | None = None
        self.trained_s: float | None = None
        self.trained_steps = 0
        self.finals: set[str] = set()
        self.unsaved: dict[str, str] = {}
        self.restarts: dict[str, int] = {}
        self.hosts: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.ends: dict[str, str] = {}

    @property
    def env_steps(self) -> int:
        return self.first.env_steps

    @property
    def updates(self) -> int:
        return self.first.updates

    @property
    def last_updates(self) -> dict[str, int]:
        """Return the number of the last version of each policy's newest learner, by the policy's name."""
        return {name: progress.kept_number for name, progress in self.policies.items()}

    def progress_of(self, worker: str) -> Progress:
        return self._policy_of.get(worker, self.first)

    def elapsed_s(self, now_s: float) -> float:
        """Return the wall-clock seconds of this start of the run, up to its end."""
        return (self.finished_s or now_s) - self.begun_s

    def end(self, reason: str, now_s: float) -> None:
        """Record why the run ends; the first reason stays."""
        if self.reason is None:
            self.reason, self.finished_s = reason, now_s
            for progress in self.policies.values():
                progress.end(reason)

    def end_with_policies(self, now_s: float) -> None:
        """End the run once the training of every policy has ended."""
        reasons = [progress.ended for progress in self.policies.values()]
        if all(reasons):
            self.end(reasons[0] if len(set(reasons)) == 1 else "total_env_steps", now_s)

    def end_at_goals(self, progress: Progress, now_s: float, *, shared: bool) -> list[str]:
        """End the training of a policy that has reached its goal, if environments are `shared`, together with all others.

        Returns the policies that it waits for.
        """
        waits = [name for name, p in self.policies.items() if shared and p.goal is not None and not p.reached]
        if progress.reached and not waits:
            for ending in self.policies.values() if shared else (progress,):
                ending.end("stop_at_return")
            self.end_with_policies(now_s)
        return waits if progress.reached else []

    def facts(self, worker: str, facts: Mapping[str, Any], now_s: float) -> None:
        """Take the counters of a learner."""
        progress = self.progress_of(worker)
        progress.take(dict(facts))
        if self.trained_s is None and progress.has_trained:
            self.trained_s, self.trained_steps = now_s, self.env_steps
        self.unsaved[worker] = facts.get("unsaved", "")
        if facts.get("finished"):
            progress.end("total_env_steps")
            self.end_with_policies(now_s)

    def started(self, worker: str, restarts: int, host: str) -> None:
        """Record where an incarnation of a worker was started, and after how many restarts."""
        self.hosts[worker] = host
        self.pids.pop(worker, None)
        if restarts:
            self.restarts[worker] = restarts

    def note_end(self, worker: str, incarnation: int, clock: str) -> None:
        """Record where and when a worker's incarnation ended unexpectedly: the ledger may not find its last trajectories."""
        host = self.hosts.get(worker, "")
        self.ends[f"{worker}.{incarnation}"] = f"{f'host {host}' if host else worker}, {clock}"

    def place_of(self, producer: str) -> str:
        return self.ends.get(producer, producer.rpartition(".")[0])
