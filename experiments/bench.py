"""Measure a whole experiment on this machine: `python experiments/bench.py ppo_cartpole`.

Prints one table: environment, inference and update alone, the limit that follows from them, and trained env steps per second
end to end for each placement. Every end-to-end figure is a run of its own (`run.py` in a fresh process), counted after its
warm-up; repetitions alternate between placements. Trained rows are unique env steps, whatever the number of epochs.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from run import experiments

from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment import Experiment
from jsrl.services.provenance import environment_facts
from jsrl.services.runs import read_metrics

PLACEMENTS = ("serial", "inline", "served", "apart")
START_LIMIT_S = 300.0
RUN = Path(__file__).with_name("run.py")


def rate(work: Callable[[], int], seconds: float) -> float:
    """Return rows per second of a piece of work that returns its rows, after one call to warm up."""
    work()
    rows, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        rows += work()
    return rows / passed


def alone(experiment: Experiment, seconds: float) -> dict[str, float]:
    """Return rows per second of environment, inference and update, each by itself in this process."""
    import jax

    from jsrl.building import build_agent, resolved_agent
    from jsrl.envs.make import make
    from jsrl.launch.plan import make_schemas
    from jsrl.parallel import data_parallel, split_devices
    from jsrl.transport.base import Request
    from jsrl.types import make_trajectory_spec, zeros
    from jsrl.workers.acting import Engine

    schemas = make_schemas(experiment)
    agent = build_agent(resolved_agent(experiment), schemas.env)
    env = make(experiment.env, experiment.group_size, 0)
    step = env.reset()
    engine = Engine(agent, schemas.env, num_slots=experiment.num_envs, sizes=[experiment.group_size], seed=0)
    state = jax.jit(agent.init)(jax.random.key(0))
    engine.set_params(0, [np.array(leaf) for leaf in jax.tree.leaves(state.params)])
    served = engine.serve(0, experiment.group_size)
    request = Request(step.observation, step.is_first)
    action = np.array(engine.act(served, request).action)

    def act() -> int:
        engine.act(served, request)
        return experiment.group_size

    def simulate() -> int:
        env.step(action)
        return experiment.group_size

    spec = make_trajectory_spec(
        schemas.env,
        schemas.act.extras,
        schemas.act.core,
        num_rows=experiment.rollout_length,
        num_envs=experiment.batch_columns,
    )
    update = data_parallel(agent.update, jax.local_devices()[:1], donate=False)
    placed, batch = update.place(state), split_devices(zeros(spec), 1)
    key = jax.random.key(1)

    def learn() -> int:
        jax.block_until_ready(update(placed, batch, key))
        return experiment.rows_per_update

    rates = {"environment": rate(simulate, seconds), "inference": rate(act, seconds), "update": rate(learn, seconds)}
    env.close()
    return rates


def end_to_end(name: str, placement: str, seconds: float, options: list[str]) -> dict[str, float]:
    """Return trained env steps per second of one run, and its lag; counted from the second line of metrics on."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            str(RUN),
            name,
            "--placement",
            placement,
            "--runs-dir",
            folder,
            "--run-name",
            "bench",
        ]
        command += ["--total-env-steps", "1000000000", "--stop-at-return", "none"]
        command += ["--evaluator.enabled", "false", "--display", "quiet", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            metrics = watch(process, Path(folder), seconds)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    steps, wall = metrics["env_steps"], metrics["wall_s"]
    lag = metrics.get("learner/policy_lag_p95", np.zeros(1))
    result = {"env_steps_per_s": float((steps[-1] - steps[1]) / (wall[-1] - wall[1])), "lag_p95": float(np.nanmax(lag))}
    shares = ("actor/env_share", "actor/wait_inference_share", "inference/wait_share", "learner/wait_batch_share")
    return result | {name: float(np.nanmean(metrics[name][1:])) for name in shares if name in metrics}


def watch(process: subprocess.Popen[str], folder: Path, seconds: float) -> dict[str, np.ndarray]:
    """Return the metrics of a run once they cover `seconds` after its second line."""
    deadline = time.monotonic() + 10 * seconds + START_LIMIT_S
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if process.poll() is not None:
            raise ConfigError(f"the run ended with status {process.returncode}:\n{(process.communicate()[1])[-2000:]}")
        for path in folder.glob("*/bench/metrics.jsonl"):
            metrics = read_metrics(path)
            wall = metrics.get("wall_s", np.zeros(0))
            if len(wall) > 2 and wall[-1] - wall[1] >= seconds:
                return metrics
    raise ConfigError(f"the run trained for less than {seconds:g} s within {deadline - time.monotonic():.0f} s.")


def spread(values: list[float]) -> str:
    """Return median and range."""
    return f"{statistics.median(values):>10,.0f}  ({min(values):,.0f} - {max(values):,.0f})"


def main() -> int:
    """Measure, print the table, write the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="an experiment of run.py")
    parser.add_argument("--placements", default=",".join(PLACEMENTS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each end-to-end run, after its start")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", help="JSON file for the raw numbers")
    parser.add_argument("options", nargs="*", help="further options of run.py, after --")
    given = parser.parse_args()
    try:
        if given.name not in experiments():
            raise ConfigError(f"there is no experiment {given.name!r}; there are: {', '.join(experiments())}.")
        report(given)
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def report(given: argparse.Namespace) -> None:
    """Run all repetitions, alternating between placements."""
    from jsrl.launch.command_line import parse

    experiment = parse(given.options, experiments()[given.name]()).experiment
    placements = given.placements.split(",")
    parts: dict[str, list[float]] = {}
    runs: dict[str, list[dict[str, float]]] = {placement: [] for placement in placements}
    for repetition in range(given.repetitions):
        for part, value in alone(experiment, given.seconds / 5).items():
            parts.setdefault(part, []).append(value)
        for placement in placements:
            print(f"repetition {repetition + 1} of {given.repetitions}: {placement}", file=sys.stderr)
            runs[placement].append(end_to_end(given.name, placement, given.seconds, given.options))
    facts: dict[str, Any] = environment_facts()
    print_table(given.name, facts, parts, runs)
    if given.output:
        raw = {"name": given.name, "options": given.options, "alone": parts, "end_to_end": runs, "facts": facts}
        Path(given.output).write_text(json.dumps(raw, indent=1, default=str) + "\n")


def print_table(
    name: str, facts: dict[str, Any], parts: dict[str, list[float]], runs: dict[str, list[dict[str, float]]]
) -> None:
    """Print what was measured; the limit is cores / (time of a row in environment + inference + update)."""
    import os

    cores = len(os.sched_getaffinity(0))
    medians = {part: statistics.median(values) for part, values in parts.items()}
    limit = cores / sum(1.0 / value for value in medians.values())
    print(f"{name}; {json.dumps(facts.get('hardware', {}), default=str)}; commit {facts.get('commit')}")
    print(f"{'':<26}{'rows/s':>10}  (range)")
    for part, values in parts.items():
        print(f"{part + ' alone':<26}{spread(values)}")
    print(f"{f'limit on {cores} cores':<26}{limit:>10,.0f}")
    for placement, results in runs.items():
        rates = [result["env_steps_per_s"] for result in results]
        share = statistics.median(rates) / limit
        lag = max(result["lag_p95"] for result in results)
        print(f"{placement + ', trained':<26}{spread(rates)}  {share:.0%} of the limit, lag p95 {lag:g}")


if __name__ == "__main__":
    sys.exit(main())
