"""The environment ring on an emulated accelerator: replies arrive t_inf after their request, all at once, without any CPU.

The actor and the streams are jsrl's own; only its environment (which takes t_env a step) and the answering process are
emulated. Full speed is reached when a reply arrives within t_env x (R - 1), so that the speed relative to R = 1 is
min(R, 1 + t_inf / t_env). Source: Mei et al., 2023, arXiv 2306.16688.
"""

from __future__ import annotations

import heapq
import itertools
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from jsrl.envs.base import EnvStep
from jsrl.errors import StreamTimeout
from jsrl.transport.base import ClientRequest, InferenceSpec, ProducerId, Reply, SampleConsumer
from jsrl.transport.table import bind_inference, bind_samples, connect_inference, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_trajectory_spec
from jsrl.workers.actor.policies import ActingPolicy
from jsrl.workers.actor.streams import Streams
from jsrl.workers.actor.worker import Actor, ActorSettings
from jsrl.workers.base import NullReporter

ENV = EnvSpec(ArraySpec((4,), "float32"), Discrete(2), name="emulated")
ACT = InferenceSpec(ENV.observation, ENV.action.array, ArraySpec((), "float32"), (), ())
ROWS = 32
SAMPLES = make_trajectory_spec(ENV, (), (), num_rows=ROWS, num_envs=1)
PUBLISHED = {7.3: 8.3, 2.7: 3.7, 0.5: 1.5}  # t_inf / t_env -> plateau, as published for Pong and two SMAC maps
_numbers = itertools.count()


def plateau(ratio: float, ring: int) -> float:
    """Return the expected speed relative to a ring of 1, for t_inf / t_env."""
    return min(ring, 1 + ratio)


class TimedEnv:
    """One environment whose step takes `step_s`: asleep (which leaves the core to others), or spinning."""

    spec, num_envs = ENV, 1

    def __init__(self, step_s: float, *, spins: bool = False) -> None:
        self._step_s, self._spins = step_s, spins
        one = np.ones(1, np.float32)
        first, later = np.ones(1, bool), np.zeros(1, bool)
        acts, observation = np.ones(1, np.uint8), np.zeros((1, 4), np.float32)
        self._opening = EnvStep(observation, first, 0 * one, one, acts, [])
        self._step = EnvStep(observation, later, one, one, acts, [])

    def reset(self) -> EnvStep:
        """Start an episode."""
        return self._opening

    def step(self, action: np.ndarray) -> EnvStep:
        """Take the time of a step."""
        until = time.perf_counter() + self._step_s
        if not self._spins:
            time.sleep(self._step_s)
        while self._spins and time.perf_counter() < until:
            pass
        return self._step

    def close(self) -> None:
        """Do nothing; nothing is held."""


# -- the answering process --------------------------------------------------------------------------------------------


def set_at_end(ended: threading.Event) -> None:
    """Set an event at the end of standard input."""
    sys.stdin.read()
    ended.set()


def serve(address: str, answer_s: float) -> None:
    """Answer every request `answer_s` after its arrival, until standard input ends."""
    server = bind_inference(address, ACT)
    print(server.address, flush=True)
    ended = threading.Event()
    threading.Thread(target=set_at_end, args=(ended,), daemon=True).start()
    due: list[tuple[float, int, ClientRequest]] = []
    order = itertools.count()
    reply = Reply(np.zeros(1, np.int32), np.zeros(1, np.float32), (), 0)
    while not ended.is_set():
        wait_s = due[0][0] - time.perf_counter() if due else 0.2
        if 0 < wait_s < 0.002:
            time.sleep(wait_s)  # streams wait in whole milliseconds
            wait_s = 0.0
        for request in server.collect(1, math.floor(max(wait_s, 0.0) * 1000) / 1000):
            heapq.heappush(due, (time.perf_counter() + answer_s, next(order), request))
        while due and due[0][0] <= time.perf_counter():
            server.reply(heapq.heappop(due)[2], reply)
        server.departed()
    server.close()


class EmulatedAccelerator:
    """The process that answers after `answer_s`; a context manager."""

    def __init__(self, folder: Path, answer_s: float) -> None:
        name = f"emulated-{next(_numbers)}"
        command = [sys.executable, str(Path(__file__).parents[1] / "levers.py"), "--serve", f"shm:{folder}/{name}"]
        self._process = subprocess.Popen(
            [*command, repr(answer_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def __enter__(self) -> EmulatedAccelerator:
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


# -- one block --------------------------------------------------------------------------------------------------------


def measure_ring(
    accelerator: EmulatedAccelerator, ring: int, step_s: float, seconds: float, *, spins: bool = False
) -> dict[str, float]:
    """Return env steps per second of an actor with a ring of the given size: of its median turn, and of all turns.

    Args:
      accelerator: the one that answers. ring: R. step_s: t_env. seconds: to measure, after one turn. spins: see TimedEnv.
    """
    number = next(_numbers)
    consumer = bind_samples(f"local:ring-{number}", SAMPLES, blocks_per_producer=2 * ring)
    who = ProducerId("actor-0", number)

    def connect(sizes: dict[int, int]):
        client = connect_inference(accelerator.address, ACT, who, sizes, timeout_s=20.0)
        return client, connect_samples(consumer.address, SAMPLES, who, ring, 20.0)

    environments = {group: (lambda: TimedEnv(step_s, spins=spins)) for group in range(ring)}
    policies = [ActingPolicy(Streams(connect))]
    actor = Actor("actor-0", ActorSettings(ROWS), environments, policies, NullReporter())
    stop = threading.Event()
    drain = threading.Thread(target=_drain, args=(consumer, stop), daemon=True)
    drain.start()
    actor.setup()
    begun = time.perf_counter()
    stamps: list[float] = []
    while not stamps or len(stamps) < 3 * ring or stamps[-1] - stamps[ring - 1] < seconds:
        if actor.step():
            stamps.append(time.perf_counter())
        if time.perf_counter() - begun > 10 * seconds + 60:
            raise RuntimeError(f"a ring of {ring} made only {len(stamps)} steps in {10 * seconds + 60:.0f} s")
    actor.close()
    stop.set()
    drain.join(5.0)
    consumer.close()
    turns = np.diff(stamps[ring - 1 :: ring])  # seconds of each whole turn after the first one
    return {
        "env_steps_per_s": ring / float(np.median(turns)),
        "env_steps_per_s_mean": ring / float(turns.mean()),
        "turns": float(turns.size),
    }


def _drain(consumer: SampleConsumer, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            consumer.release(consumer.get(0.2))
        except StreamTimeout:
            continue
