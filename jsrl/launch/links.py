"""Where the streams of an experiment are bound, and with which keys."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.launch.replay_plan import replay_links
from jsrl.transport.address import check_ipc_path
from jsrl.transport.keys import CLIENT_FILE, check_encryption, make_keys
from jsrl.workers.jobs import Links

KEYS = "keys"  # in the run folder
_MAX_PORT = 65535


def make_links(experiment: Experiment, folder: str, memory_folder: Path) -> Links:
    """Return where the streams of an experiment are bound.

    Args:
      experiment: what to run. folder: the run's, where its keys lie. memory_folder: for shared memory and sockets.

    Raises:
      ConfigError: streams are to be encrypted, and cannot be; there are not enough ports; or a socket's path is too long.
    """
    names = str(memory_folder / "names")
    served = experiment.placement in ("served", "apart")
    served = served and experiment.recording is None  # nobody acts, but the evaluator, who does it alone
    servers = range(experiment.num_inference_servers if served else 0)
    addresses = zmq_addresses(experiment, memory_folder)
    if experiment.placement == "serial":
        unique = memory_folder.name
        replays = replay_links(experiment, memory_folder, addresses)
        return Links(names, f"local:{unique}-samples", f"local:{unique}-params", None, (), replays)
    params = f"shm:{memory_folder}/params"
    if experiment.road == "zeromq":
        samples, relay = addresses("samples"), addresses("params-relay")
        inference = tuple(addresses(f"inference-{i}") for i in servers)
        replays = replay_links(experiment, memory_folder, addresses)
        if not experiment.encrypted:
            return Links(names, samples, params, relay, inference, replays)
        check_encryption()
        return Links(names, samples, params, relay, inference, replays, f"{folder}/{KEYS}")
    inference = tuple(f"shm:{memory_folder}/inference-{i}" for i in servers)
    replays = replay_links(experiment, memory_folder, addresses)
    return Links(names, f"shm:{memory_folder}/samples", params, None, inference, replays)


def zmq_addresses(experiment: Experiment, memory_folder: Path) -> Callable[[str], str]:
    """Return the function that gives a stream over ZeroMQ, by its name, the address that it is bound to.

    On one host these are Unix sockets in `memory_folder`. With --bind or --encrypt they are TCP ports, which have keys: free
    ones, or one after another from the first one on; call it once a stream, always in the same order.

    Raises:
      ConfigError: (the function) the path of a socket is too long; there are not enough ports above the first one.
    """
    if not experiment.encrypted:
        return lambda name: f"ipc://{check_ipc_path(str(memory_folder / name))}"
    host, first_port = experiment.bind_to
    host = f"[{host}]" if ":" in host else host
    numbers = itertools.count()

    def next_port(name: str) -> str:
        number = next(numbers)
        port = 0 if first_port is None else first_port + number
        if port > _MAX_PORT:
            raise ConfigError(
                f"--bind {experiment.bind} leaves {number} ports for its streams, too few for {name}; begin with a lower one."
            )
        return f"tcp://{host}:{port}"

    return next_port


def begin_encryption(experiment: Experiment, keys: str | None, *, tell: Callable[[str], None]) -> None:
    """Make a run's keys where its streams are encrypted and it has none yet, and tell the user where they lie.

    Raises:
      ConfigError: they cannot be written, or those that are there are broken.
    """
    if keys is not None:
        path = make_keys(keys) / CLIENT_FILE
        tell(f"streams listen on {experiment.bind} and are encrypted; ends on other hosts need {path}")
