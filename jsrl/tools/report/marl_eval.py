"""Runs in the JSON format of marl-eval: environment -> task -> algorithm -> run -> step, for its plots and tables.

Source: Gorsane et al. (2022), "Towards a Standardised Performance Evaluation Protocol for Cooperative MARL", and the
README of marl-eval. It needs the same number of evaluations for each run of an environment, each metric as a list of values
(one value for a mean over episodes), and an absolute metric of more episodes at the end: here the final evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import ConfigError
from jsrl.services.runs.curves import policies_in
from jsrl.services.runs.files import write_atomic
from jsrl.services.runs.runs import Run
from jsrl.services.runs.state import read_result
from jsrl.tools.report.comparison import changes_learning, differing_options
from jsrl.tools.report.run_report import flat_options, of_policy

METRICS = {"return_mean": "return", "length_mean": "episode_length", "win_rate": "win_rate"}  # ours -> theirs
FAMILIES = {"ALE": "atari"}


def write_marl_eval(runs: Sequence[Run], path: Path) -> str:
    """Write runs to a file; return a line about it."""
    tree = marl_eval(runs)
    write_atomic(path, f"{json.dumps(tree, indent=2)}\n".encode())
    tasks = sum(len(own) for own in tree.values())
    counted = f"{len(runs)} run{'s' * (len(runs) != 1)} of {tasks} task{'s' * (tasks != 1)}"
    return f"{counted} in marl-eval's format: {path}"


def marl_eval(runs: Sequence[Run]) -> dict[str, Any]:
    """Return runs in marl-eval's format.

    Each run of an environment keeps as many evaluations as the shortest one has: spread evenly, with the first and
    the last one.
    """
    of_environment: dict[str, list[tuple[Run, str]]] = {}
    for run in runs:
        environment, task = _task_of(run)
        of_environment.setdefault(environment, []).append((run, task))
    tree: dict[str, Any] = {}
    for environment, own in of_environment.items():
        count = min(len(_evaluations(run)) for run, _ in own)
        names = _algorithms([run for run, _ in own])
        for (run, task), algorithm in zip(own, names, strict=True):
            of_algorithm = tree.setdefault(environment, {}).setdefault(task, {}).setdefault(algorithm, {})
            seed = f"seed_{flat_options(run.config).get('seed')}"
            name = seed if seed not in of_algorithm else f"{seed}_{run.folder.path.name}"
            of_algorithm[name] = _run(run, count)
    return tree


def _task_of(run: Run) -> tuple[str, str]:
    """Return the names of a run's environment and task: `particle:simple_spread_v3` is task simple_spread_v3 of particle."""
    options = flat_options(run.config)
    name = str(options.get("env.id"))
    family, colon, task = name.partition(":")
    if not colon:
        family, slash, task = name.partition("/")
        family, task = (FAMILIES.get(family, family), task) if slash else ("gymnasium", name)
    kwargs = options.get("env.kwargs")
    return family, task if kwargs in (None, "{}", "") else f"{task} {kwargs}"


def _algorithms(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its experiment's, with the learning settings that differ between the experiment's runs."""
    names = []
    for run in runs:
        same = [other for other in runs if other.folder.path.parent.name == run.folder.path.parent.name]
        options = flat_options(run.config)
        differing = [n for n in differing_options(same) if changes_learning(n) and not n.startswith("env.")]
        text = " ".join([run.folder.path.parent.name, *(f"{name} {options.get(name)}" for name in differing)])
        names.append(text.replace(",", ";"))  # marl-eval takes no commas
    return names


def _evaluations(run: Run) -> list[int]:
    """Return the lines of a run's metrics that hold an evaluation of the first policy."""
    column = run.metrics.get("evaluator/return_mean", np.zeros(0))
    lines = np.flatnonzero(np.isfinite(column)).tolist()
    if not lines:
        raise ConfigError(f"{run.name} has no evaluations, so that there is nothing to export; set evaluator.enabled.")
    return lines


def _run(run: Run, count: int) -> dict[str, Any]:
    lines, result = _evaluations(run), read_result(run.folder.path)
    chosen = [lines[i] for i in np.linspace(0, len(lines) - 1, count).round().astype(int)]
    steps: dict[str, Any] = {}
    for number, line in enumerate(chosen, 1):
        steps[f"step_{number}"] = {"step_count": int(run.metrics["env_steps"][line]), **_values(run, line)}
    first = result.get("final") or {}
    others = {name: own.get("final") or {} for name, own in (result.get("others") or {}).items()}
    absolute = _final("", first)
    for policy, facts in others.items():
        absolute |= _final(policy, facts)
    kept = set(steps["step_1"]) - {"step_count"}
    if missing := sorted(kept - set(absolute)):
        raise ConfigError(
            f"{run.name} has no final evaluation of {missing[0]}, which marl-eval calls the absolute metric; run it to its "
            "end with evaluator.final_episodes above 0."
        )
    return steps | {"absolute_metrics": {name: absolute[name] for name in sorted(kept)}}


def _values(run: Run, line: int) -> dict[str, list[float]]:
    """Return the metrics of all policies at a line: its evaluation's, for other policies the newest before it."""
    found = {}
    for policy in policies_in(run.metrics):
        own = of_policy(run.metrics, policy)
        for name, theirs in METRICS.items():
            column = own.get(f"evaluator/{name}", np.zeros(0))
            known = np.flatnonzero(np.isfinite(column))
            if known.size:
                newest = known[known <= line]
                found[_named(policy, theirs)] = [float(column[newest[-1] if newest.size else known[0]])]
    return found


def _final(policy: str, facts: dict[str, Any]) -> dict[str, list[float]]:
    return {_named(policy, theirs): [float(facts[name])] for name, theirs in METRICS.items() if name in facts}


def _named(policy: str, metric: str) -> str:
    return f"{policy}_{metric}" if policy else metric
