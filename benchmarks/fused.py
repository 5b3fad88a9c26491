"""Env steps per CPU-second of the fused program beside rejax: `python benchmarks/fused.py --rejax PYTHON --out FILE.json`.

With `--seeds 1 4 16` instead: the time of so many seeds in one program, for the same work of each.

PPO on CartPole, 64 environments x 64 rows, 4 epochs of 4 minibatches, two networks of 64x64 tanh units, on one core: the same
work in both, evaluations off. Blocks alternate in fresh processes; the first calls of each, which compile, are not counted.
PYTHON is an interpreter of an environment with rejax 0.1.3 and gymnax below 1.0 (rejax cannot step newer ones).

`--alone ENVS` measures jsrl with another number of environments on this machine's device instead, by wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
ENVS, ROWS, EPOCHS, MINIBATCHES = 64, 64, 4, 4
STEPS = 1 << 20  # of a block of `--alone`
TRAJECTORIES = 20  # of each seed in a block
ONE_CORE = {"PJRT_NPROC": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}


def experiment(seed: int = 0, envs: int = ENVS) -> Any:
    from jsrl import EnvConfig, EvaluatorConfig, Experiment, PPOConfig

    return Experiment(
        PPOConfig(num_epochs=EPOCHS, num_minibatches=MINIBATCHES, learning_rate=5e-4),
        EnvConfig("examples.jax_cartpole:CartPole", backend="jax"),
        placement="fused",
        num_envs=envs,
        rollout_length=ROWS,
        total_env_steps=10**9,
        evaluator=EvaluatorConfig(enabled=False),
        seed=seed,
    )


def ours(
    trajectories: int, blocks: int, envs: int = ENVS, clock: Callable[[], float] = time.process_time
) -> list[float]:
    """Return env steps per CPU-second (or another clock's) of each block, of a fused worker in this process."""
    from jsrl.graph.plan import make_plan
    from jsrl.workers.base import NullReporter
    from jsrl.workers.kinds import build_worker

    with tempfile.TemporaryDirectory() as folder:
        worker: Any = build_worker(make_plan(experiment(envs=envs), folder, Path(folder)).job("fused"), NullReporter())
        worker.setup()
        speeds = []
        for _ in range(blocks + 1):
            worker._updater.pace.size = trajectories
            before, begun_s = worker.env_steps, clock()
            worker.step()
            speeds.append((worker.env_steps - before) / (clock() - begun_s))
        worker.close()
    return speeds[1:]


def seeds(count: int, trajectories: int, blocks: int) -> dict[str, Any]:
    """Return the time and CPU-seconds of `trajectories` of each of several seeds in one program, for each block."""
    from jsrl.graph.plan import make_plan
    from jsrl.workers.base import NullReporter
    from jsrl.workers.fused.together import Together

    with tempfile.TemporaryDirectory() as root:
        folders = [Path(root, str(seed)) for seed in range(count)]
        for folder in folders:
            folder.mkdir(0o700)
        jobs = [make_plan(experiment(i), str(one), one).job("fused") for i, one in enumerate(folders)]
        group = Together(jobs)
        workers: list[Any] = [group.build(job, NullReporter()) for job in jobs]
        begun_s = time.process_time()
        for worker in workers:
            worker.setup()
        found: dict[str, Any] = {"setup_cpu_s": time.process_time() - begun_s, "wall_s": [], "cpu_s": []}
        for _ in range(blocks + 1):
            workers[0]._updater.pace.size = trajectories
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            for worker in workers:
                worker.step()
            found["wall_s"].append(time.perf_counter() - wall_s)
            found["cpu_s"].append(time.process_time() - cpu_s)
    return found | {name: found[name][1:] for name in ("wall_s", "cpu_s")}


def measure_seeds(counts: list[int], rounds: int, out: Path | None) -> None:
    """Measure each number of seeds in fresh processes, in turns."""
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for number in range(rounds):
        for count in counts if number % 2 == 0 else counts[::-1]:
            command = [sys.executable, str(Path(__file__).resolve()), "--measure", "seeds", str(count)]
            environment = {**os.environ, **ONE_CORE, "PYTHONPATH": str(ROOT)}
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[count].append(json.loads(ended.stdout.splitlines()[-1]) | {"load": os.getloadavg()[0]})
            cpu_s, wall_s = (statistics.median(found[count][-1][name]) for name in ("cpu_s", "wall_s"))
            print(f"{number + 1}/{rounds} {count} seeds: {cpu_s:.2f} CPU-s, {wall_s:.2f} s", flush=True)
    if out:
        work = {"envs": ENVS, "rows": ROWS, "epochs": EPOCHS, "minibatches": MINIBATCHES, "trajectories": TRAJECTORIES}
        out.write_text(json.dumps({"work": work, "seeds": found}) + "\n")


def rejax(trajectories: int, blocks: int) -> list[float]:
    """Return the same of rejax's PPO."""
    import jax
    import rejax as peer

    steps = ENVS * ROWS * trajectories
    algorithm = peer.PPO.create(
        env="CartPole-v1",
        num_envs=ENVS,
        num_steps=ROWS,
        num_epochs=EPOCHS,
        num_minibatches=MINIBATCHES,
        learning_rate=5e-4,
        ent_coef=0.0,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        agent_kwargs={"activation": "tanh"},
    ).replace(eval_callback=lambda *_: ())
    state = algorithm.init_state(jax.random.key(0))
    train = jax.jit(lambda state: algorithm.train(train_state=state)[0], donate_argnums=0)
    state, speeds = jax.block_until_ready(train(state)), []
    for _ in range(blocks):
        begun_s = time.process_time()
        state = jax.block_until_ready(train(state))
        speeds.append(steps / (time.process_time() - begun_s))
    return speeds


def alone(envs: int) -> dict[str, Any]:
    """Return env steps per second of jsrl on the device here."""
    import jax

    trajectories = min(64, max(2, STEPS // (envs * ROWS)))
    speed = statistics.median(ours(trajectories, 5, envs, time.perf_counter))
    return {"device": jax.local_devices()[0].device_kind, "envs": envs, "rows": ROWS, "env_steps_per_s": round(speed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    compared = parser.add_mutually_exclusive_group(required=True)
    compared.add_argument("--rejax", help="an interpreter that has rejax")
    compared.add_argument("--alone", type=int, metavar="ENVS")
    compared.add_argument("--seeds", type=int, nargs="+", help="numbers of seeds in one program")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where to write the numbers")
    asked = parser.parse_args()
    if asked.seeds:
        return measure_seeds(asked.seeds, asked.pairs, asked.out)
    if asked.alone:
        text = json.dumps(alone(asked.alone))
        print(text)
        if asked.out:
            asked.out.write_text(text + "\n")
        return
    found: dict[str, list[float]] = {"jsrl": [], "rejax": []}
    for pair in range(asked.pairs):
        for system in sorted(found, reverse=bool(pair % 2)):
            python = asked.rejax if system == "rejax" else sys.executable
            command = [python, str(Path(__file__).resolve()), "--measure", system]
            environment = {**os.environ, **ONE_CORE, "PYTHONPATH": str(ROOT)}
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[system].append(statistics.median(json.loads(ended.stdout.splitlines()[-1])))
            print(f"{pair + 1}/{asked.pairs} {system}: {found[system][-1]:,.0f} env steps per CPU-second", flush=True)
    ratios = [one / other for one, other in zip(found["jsrl"], found["rejax"], strict=True)]
    print(f"jsrl / rejax: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if asked.out:
        work = {"envs": ENVS, "rows": ROWS, "epochs": EPOCHS, "minibatches": MINIBATCHES}
        asked.out.write_text(json.dumps({"work": work, "env_steps_per_cpu_s": found, "ratios": ratios}) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        if sys.argv[2] == "seeds":
            print(json.dumps(seeds(int(sys.argv[3]), TRAJECTORIES, 3)))
        else:
            print(json.dumps({"jsrl": ours, "rejax": rejax}[sys.argv[2]](40, 5)))
    else:
        main()
