"""Service times of an experiment's parts from a calibration, saved as JSON.

CPU times are those of one core of the calibrated machine; a `Cost` grows with the rows that one call handles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jsrl.errors import ConfigError
from jsrl.plain_files import read_plain

FORMAT = 1
_MOST_BYTES = 16 << 20


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one call: `call_s` + `row_s` x rows."""

    call_s: float = 0.0
    row_s: float = 0.0

    def of(self, rows: float) -> float:
        return self.call_s + self.row_s * rows


class Updates(NamedTuple):
    """Times of one call of the update alone: rows (env steps of the batch), CPU seconds of all threads, seconds."""

    rows: int
    cpu_s: float
    wall_s: float


class EnvTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of environments.

    Attributes:
      step, reset: CPU seconds of a step of a group, and additional ones of a reset (row_s: per started episode).
      step_idle, reset_idle: seconds in which the environment waits and uses no core.
      episode_steps: mean length of an episode. shape: quantiles of a group's step, over its mean.
    """

    step: Cost = Cost()
    step_idle: Cost = Cost()
    reset: Cost = Cost()
    reset_idle: Cost = Cost()
    episode_steps: float = 1e9
    shape: tuple[float, ...] = (1.0,)

    def idle_s(self, rows: float) -> float:
        """Return the mean seconds of a step of a group in which it uses no core, resets included."""
        return self.step_idle.of(rows) + self.reset_idle.of(rows / self.episode_steps)

    def cpu_s(self, rows: float) -> float:
        """Return the mean CPU seconds of a step of a group, resets included."""
        return self.step.of(rows) + self.reset.of(rows / self.episode_steps)


class ActorTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU seconds of an actor for each step of a group, without the environment.

    Attributes:
      act: acting in its own process. own: everything else if it acts itself. asking: everything else if a server acts.
      far_rows, far_asks: additional time if trajectories, or requests, go over TCP with keys.
    """

    act: Cost = Cost()
    own: Cost = Cost()
    asking: Cost = Cost()
    far_rows: Cost = Cost()
    far_asks: Cost = Cost()


class ServerTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of an inference server.

    Attributes:
      act: CPU seconds of a call, by its rows after padding. act_idle: seconds of waiting for its accelerator.
      gather: CPU seconds of each call before it takes the requests that have arrived by then.
      request: CPU seconds of a request and its reply. far_request: additional time over TCP with keys.
      far_thread: the same in the thread that receives and sends messages, beside the rest.
    """

    act: Cost = Cost()
    act_idle: Cost = Cost()
    gather: float = 0.0
    request: Cost = Cost()
    far_request: Cost = Cost()
    far_thread: Cost = Cost()


class LearnerTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of the learner.

    Attributes:
      update: seconds of an update by its rows (env steps of the batch), on cores that do nothing else.
      threads: cores that an update keeps busy; 0: it waits for an accelerator.
      batch: CPU seconds for each batch besides its updates and joining, by its rows.
      take: CPU seconds of the joining thread for a trajectory. far_take: additional time over TCP with keys.
      relay: CPU seconds of sending one version of the params to one worker over TCP, or to one host of a tree.
    """

    update: Cost = Cost()
    threads: float = 1.0
    batch: Cost = Cost()
    take: Cost = Cost()
    far_take: Cost = Cost()
    relay: Cost = Cost()


class ParamsTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPU seconds of one reader for each version of the params.

    Attributes:
      near: over shared memory, when it acts next. far: over TCP with keys, when it arrives.
    """

    near: float = 0.0
    far: float = 0.0


class ServiceTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All service times of an experiment.

    Attributes:
      experiment: its name, and the options of the calibration (as JSON of the experiment).
      params: of their readers.
      hop_s, far_hop_s: from a message's commit until its reader runs, over shared memory and over TCP.
      host_cores: cores that the controller, or a host's agent, keeps busy. relay_cores: the same for the parameter server, if
        params go over TCP.
      measured: the calibration's measurements, trial by trial; not used by the model.
    """

    experiment: str = ""
    env: EnvTimes = EnvTimes()
    actor: ActorTimes = ActorTimes()
    server: ServerTimes = ServerTimes()
    learner: LearnerTimes = LearnerTimes()
    params: ParamsTimes = ParamsTimes()
    hop_s: float = 0.0
    far_hop_s: float = 0.0
    relay_cores: float = 0.0
    host_cores: float = 0.0
    settings: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    measured: list[dict[str, Any]] = []
    format: int = FORMAT

    def lacks(self, served: bool, far: bool) -> str:
        """Return what the calibration lacks for a layout with servers, or with TCP; empty: nothing."""
        seen = {(one.get("placement") == "served", bool(one.get("far"))) for one in self.measured}
        if not seen or (served, far) in seen:
            return ""
        where = "over TCP between hosts" if far else "over shared memory"
        return f"{'inference servers' if served else 'actors that act themselves'} {where}"

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(msgspec.to_builtins(self), indent=1) + "\n")


def read_times(path: Path) -> ServiceTimes:
    try:
        found = msgspec.convert(json.loads(read_plain(path, _MOST_BYTES)), ServiceTimes)
    except OSError as error:
        raise ConfigError(
            f"the service times cannot be read from {path} ({error.strerror or error}); measure them first with `jsrl dev "
            "simulate --calibrate NAME`."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no file of service times ({error}); expected the output of `jsrl dev simulate --calibrate`."
        ) from error
    if found.format != FORMAT:
        raise ConfigError(f"{path} has format {found.format}, this version reads {FORMAT}; calibrate again.")
    return found


def fit(points: Iterable[tuple[float, float]]) -> Cost:
    """Return the cost `call_s + row_s x rows` nearest to (rows, seconds), neither part below zero.

    If all points have the same rows, half of the cost is attributed to the call.
    """
    found = [(rows, seconds) for rows, seconds in points]
    if not found:
        return Cost()
    rows = np.array([float(rows) for rows, _ in found])
    seconds = np.array([max(0.0, float(seconds)) for _, seconds in found])
    if np.ptp(rows) == 0:
        mean = float(seconds.mean())
        return Cost(mean / 2, mean / 2 / float(rows[0]))
    slope = float(((rows - rows.mean()) * (seconds - seconds.mean())).sum() / ((rows - rows.mean()) ** 2).sum())
    call = float(seconds.mean() - slope * rows.mean())
    if slope < 0:
        return Cost(float(seconds.mean()), 0.0)
    if call < 0:
        return Cost(0.0, float((rows * seconds).sum() / (rows * rows).sum()))
    return Cost(call, slope)
