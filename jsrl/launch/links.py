"""Where the streams of an experiment are bound."""

from __future__ import annotations

from pathlib import Path

from jsrl.experiment import Experiment
from jsrl.launch.replay_plan import replay_links
from jsrl.workers.jobs import Links


def make_links(experiment: Experiment, memory_folder: Path) -> Links:
    """Return where the streams of an experiment are bound."""
    names = str(memory_folder / "names")
    served = experiment.placement in ("served", "apart")
    served = served and experiment.recording is None  # nobody acts, but the evaluator, who does it alone
    servers = range(experiment.num_inference_servers if served else 0)
    replays = replay_links(experiment, memory_folder)
    if experiment.placement == "serial":
        unique = memory_folder.name
        return Links(names, f"local:{unique}-samples", f"local:{unique}-params", None, (), replays)
    params = f"shm:{memory_folder}/params"
    if experiment.road == "zeromq":
        free_port = "tcp://127.0.0.1:0"
        return Links(names, free_port, params, free_port, tuple(free_port for _ in servers), replays)
    inference = tuple(f"shm:{memory_folder}/inference-{i}" for i in servers)
    return Links(names, f"shm:{memory_folder}/samples", params, None, inference, replays)
