"""The arms of levers that are measured on whole runs, or on all of a run but its learner."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.srl.acting import ActingSystem
from benchmarks.srl.blocks import Arm, Figures
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.tools.tuning.trial import Limits, measure
from jsrl.tools.tuning.tune import applied

WIDTHS = (64, 128, 256, 512, 1024, 2048)


def whole_run(name: str, experiment: Experiment, seconds: float) -> Arm:
    """Return the arm that trains for the given time in a separate run (warm-up not counted)."""

    def block() -> Figures:
        speed = measure(experiment, Limits(seconds, longest_s=6 * seconds, start_s=180.0))
        if speed.error:
            raise RuntimeError(f"{name}: {speed.error}")
        cores = sum(value for key, value in speed.means.items() if key.endswith("_cpu_share"))
        lag = speed.means.get("learner/policy_lag_mean", 0.0)
        figures = {"env_steps_per_s": speed.env_steps_per_s, "start_s": speed.start_s, "policy_lag_mean": lag}
        return figures | ({"env_steps_per_cpu_s": speed.env_steps_per_s / cores, "cores": cores} if cores else {})

    return Arm(name, block)


@contextlib.contextmanager
def acting(experiments: dict[str, Experiment], seconds: float, folder: Path) -> Iterator[list[Arm]]:
    """Yield arms that act without a learner; all of them exist at once, and are idle while another one is measured."""
    with contextlib.ExitStack() as stack:
        arms = []
        for name, experiment in experiments.items():
            system = stack.enter_context(ActingSystem(experiment, folder))
            arms.append(Arm(name, partial(system.measure, seconds)))
        yield arms


def with_width(experiment: Experiment, width: int) -> Experiment:
    """Return the experiment with an MLP of two layers of the given width.

    Raises:
      ConfigError: its agent has no such network.
    """
    network = getattr(experiment.agent, "network", None)
    if network is None or not hasattr(network, "hidden"):
        raise ConfigError(f"{experiment.name} has no network with `hidden`; choose an experiment of vectors, with PPO.")
    wide = dataclasses.replace(network, hidden=(width, width))
    return dataclasses.replace(experiment, agent=dataclasses.replace(experiment.agent, network=wide))


def placements(experiment: Experiment, with_apart: bool) -> dict[str, Experiment]:
    """Return the experiment as IMPALA does it (inline), as SEED does it (served), and decoupled (apart)."""
    kinds = ("inline", "served", "apart") if with_apart else ("inline", "served")
    return {kind: applied(experiment, {"placement": kind}) for kind in kinds}


def rings(experiment: Experiment, sizes: Sequence[int]) -> dict[str, Experiment]:
    """Return the experiment with one served actor whose environments are in one group, in two, in four ..."""
    one = {"placement": "served", "num-actors": 1, "max-policy-lag": None}
    fitting = [size for size in sizes if experiment.num_envs % size == 0]
    return {f"ring {size}": applied(experiment, one | {"num-groups": size}) for size in fitting}


def slots(experiment: Experiment, sizes: Sequence[int]) -> dict[str, Experiment]:
    """Return the experiment with one served actor, a ring of 2, and the given number of slots per group."""
    fixed = {"placement": "served", "num-actors": 1, "num-groups": 2, "max-policy-lag": None, "batch-envs": None}
    return {f"{size} slots": applied(experiment, fixed | {"num-envs": 2 * size}) for size in sizes}


def switch(
    experiment: Experiment, option: str, on: object, off: object, names: tuple[str, str]
) -> dict[str, Experiment]:
    """Return the experiment with an option on and off."""
    return {names[0]: applied(experiment, {option: on}), names[1]: applied(experiment, {option: off})}
