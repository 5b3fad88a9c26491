"""One part of a system at a time, on one core, in a separate process that prints a line of JSON.

`python benchmarks/throughput/alone.py ppo_cartpole --seconds 2 -- --rollout-length 128`: environment, inference and update
of that experiment, all environments in one group, each in rows per second and per CPU-second. With an accelerator, the last
two run there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "experiments")]
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def rate(work: Callable[[], float], seconds: float) -> tuple[float, float]:
    """Return rows per second and per CPU-second of a function that returns its rows, after two calls to warm up."""
    work()
    work()
    rows, begin, cpu_begin = 0.0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        rows += work()
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
    return rows / wall_s, rows / max(cpu_s, 1e-9)


def split_options(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and after the first `--`."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def near(path: str) -> str:
    """Return a path as it is written in the working directory: short for files below it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def on_one_core() -> None:
    """Restrict this process to one core and one math thread; call it before jax or numpy are imported."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()


def parts(experiment: Any) -> tuple[dict[str, Callable[[], float]], dict[str, Any]]:
    """Return environment, inference and update as functions, and facts about them."""
    import jax
    import numpy as np

    from benchmarks.throughput.traffic import traffic
    from jsrl.envs.make import make, make_spec
    from jsrl.envs.seats import actions_of, part_of, view_of
    from jsrl.experiment.building import build_agent, resolved_agent
    from jsrl.graph.schemas import make_schemas
    from jsrl.parallel import data_parallel, split_devices
    from jsrl.transport.base import Request
    from jsrl.transport.stream import POLICY
    from jsrl.types import GameSpec, make_trajectory_spec, zeros
    from jsrl.workers.acting import Engine

    schemas = make_schemas(experiment)
    agent = build_agent(resolved_agent(experiment), schemas.env)
    rows = experiment.num_envs
    spec = make_spec(experiment.env)
    seats = tuple(seat.name for seat in spec.seats) if isinstance(spec, GameSpec) else ()
    view = view_of(POLICY, range(len(seats)))  # one policy plays all seats
    env: Any = make(experiment.env, rows, 0, groups={POLICY: seats} if seats else None)
    step = part_of(view, env.reset())
    engine = Engine(agent, schemas.env, num_slots=rows, sizes=[rows], seed=0)
    state = jax.jit(agent.init)(jax.random.key(0))
    engine.set_params(0, [np.array(leaf) for leaf in jax.tree.leaves(state.params)])
    served, request = engine.serve(0, rows), Request(step.observation, step.is_first)
    actions = actions_of([(view, np.array(engine.act(served, request).action))])

    def act() -> int:
        engine.act(served, request)
        return rows

    def simulate() -> int:
        env.step(actions)
        return rows

    trajectory = make_trajectory_spec(
        schemas.env,
        schemas.act.extras,
        schemas.act.core if agent.store_core else (),
        num_rows=experiment.rollout_length,
        num_envs=experiment.batch_columns,
    )
    update = data_parallel(agent.update, jax.local_devices()[:1], donate=False)
    placed, batch = update.place(state), split_devices(zeros(trajectory), 1)
    key = jax.random.key(1)

    def learn() -> float:
        jax.block_until_ready(update(placed, batch, key))
        return experiment.rows_per_update / experiment.learner.reuse  # each row is learned from this many times

    facts = {
        "backend": jax.default_backend(),
        "parameters": int(sum(leaf.size for leaf in jax.tree.leaves((state.params, state.learner_params)))),
        "traffic": traffic(experiment, schemas),
    }
    return {"environment": simulate, "inference": act, "update": learn}, facts


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="an experiment of run.py")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each part")
    words, options = split_options(sys.argv[1:])
    given = parser.parse_args(words)
    on_one_core()
    from jsrl.cli.command_line import parse
    from jsrl.cli.experiments import experiments, use_working_directory
    from jsrl.errors import JsrlError
    from jsrl.graph.machine import keep_compiled_here

    use_working_directory()
    sys.path.insert(0, str(ROOT))  # a folder `benchmarks` of the user's must not hide ours
    try:
        experiment = parse(options, experiments()[given.name]()).experiment
        keep_compiled_here()
        works, facts = parts(experiment)
        measured = {name: rate(work, given.seconds) for name, work in works.items()}
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    rows = {name: {"rows_per_s": wall, "rows_per_cpu_s": cpu} for name, (wall, cpu) in measured.items()}
    print(json.dumps({"alone": rows, **facts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
