"""Runs in the JSON format of marl-eval: environment -> task -> algorithm -> run -> step, for its plots and tables.

Source: Gorsane et al. (2022), "Towards a Standardised Performance Evaluation Protocol for Cooperative MARL", and the
README of marl-eval. It needs the same number of evaluations for each run of an environment, each metric as a list of values
(one value for a mean over episodes), and an absolute metric of more episodes at the end: here the final evaluation.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import ConfigError, counted
from jsrl.services.runs.files import write_atomic
from jsrl.services.runs.runs import Run
from jsrl.services.runs.state import read_result
from jsrl.tools.report.comparison import learned_differently, with_settings
from jsrl.tools.report.run_report import flat_options

METRICS = {"return_mean": "return", "length_mean": "episode_length", "win_rate": "win_rate"}  # ours -> theirs
FAMILIES = {"ALE": "atari"}


def write_marl_eval(runs: Sequence[Run], path: Path) -> str:
    """Write runs to a file; return a line about it."""
    tree = marl_eval(runs)
    write_atomic(path, f"{json.dumps(tree, indent=2)}\n".encode())
    tasks = sum(map(len, tree.values()))
    return f"{counted(len(runs), 'run')} of {counted(tasks, 'task')} in marl-eval's format: {path}"


def marl_eval(runs: Sequence[Run]) -> dict[str, Any]:
    """Return runs in marl-eval's format.

    Each run of an environment keeps as many evaluations as the shortest one has: spread evenly, with the first and
    the last one. Settings that differ within one of its tasks are in the names of an experiment's runs in all of them, so that
    an algorithm has one name.
    """
    fewest: dict[str, int] = {}
    tasks: defaultdict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        environment, task = _task_of(run)
        tasks[environment, task, run.folder.path.parent.name].append(run)
        count = run.scores.env_steps.size
        if not count:
            raise ConfigError(
                f"{run.name} has no evaluations, so that there is nothing to export; set evaluator.enabled."
            )
        fewest[environment] = min(count, fewest.get(environment, count))
    differing: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)  # options, each once
    for (environment, _, experiment), own in tasks.items():
        differing[environment, experiment] |= dict.fromkeys(learned_differently(own))
    tree: dict[str, Any] = {}
    for (environment, task, experiment), own in tasks.items():
        of_task = tree.setdefault(environment, {}).setdefault(task, {})
        for run in own:
            algorithm = with_settings(experiment, run, differing[environment, experiment])
            found = of_task.setdefault(algorithm.replace(", ", " ").replace(",", ";"), {})  # marl-eval takes no commas
            seed = f"seed_{flat_options(run.config).get('seed')}"
            name = seed if seed not in found else f"{seed}_{run.folder.path.name}"
            found[name] = _run(run, fewest[environment])
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


def _run(run: Run, count: int) -> dict[str, Any]:
    scores, result = run.scores, read_result(run.folder.path)
    steps: dict[str, Any] = {f"step_{number}": {} for number in range(1, count + 1)}
    for policy, own in {"": scores, **scores.others}.items():
        chosen = np.linspace(0, own.env_steps.size - 1, count).round().astype(int) if own.env_steps.size else ()
        for step, place in zip(steps.values(), chosen, strict=False):
            step.setdefault("step_count", int(own.env_steps[place]))
            values = {_named(policy, theirs): float(getattr(own, name)[place]) for name, theirs in METRICS.items()}
            step |= {name: [value] for name, value in values.items() if np.isfinite(value)}
    final = {"": result.get("final") or {}}
    final |= {name: own.get("final") or {} for name, own in (result.get("others") or {}).items()}
    absolute = {
        _named(policy, METRICS[name]): [float(value)]
        for policy, facts in final.items()
        for name, value in facts.items()
        if name in METRICS
    }
    kept = sorted(set(steps["step_1"]) - {"step_count"})
    if missing := [name for name in kept if name not in absolute]:
        raise ConfigError(
            f"{run.name} has no final evaluation of {missing[0]}, which marl-eval calls the absolute metric; run it to its "
            "end with evaluator.final_episodes above 0."
        )
    return steps | {"absolute_metrics": {name: absolute[name] for name in kept}}


def _named(policy: str, metric: str) -> str:
    return f"{policy}_{metric}" if policy else metric
