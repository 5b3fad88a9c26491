"""`ReplayBuffer`: the storage of a replay worker, for a loop of your own."""

from __future__ import annotations

import numpy as np

from jsrl.errors import ConfigError
from jsrl.experiment import ReplayConfig
from jsrl.replay.host.replay import HostReplay
from jsrl.replay.shared import PRIORITIES, windows_spec
from jsrl.types import Trajectory, map_tree, named_leaves, spec_of, zeros


class ReplayBuffer:
    """Trajectories in, windows out: as a run with this `replay` keeps and draws them, in memory of the host.

    Args:
      config: as of a run: capacity, window, batch_size, min_size, and those of priorities.
      frames: frames per observation that environments stack (`env.spec.frames`), which are stored once. seed: of the draws.
    """

    def __init__(self, config: ReplayConfig, *, frames: int | None = None, seed: int = 0) -> None:
        self._config, self._frames, self._seed = config, frames, seed
        self._replay: HostReplay | None = None
        self._added = 0

    @property
    def size(self) -> int:
        """Return the env steps that are held."""
        return 0 if self._replay is None else self._replay.size

    @property
    def is_ready(self) -> bool:
        """Return whether `min_size` env steps have been added, and a whole window."""
        replay = self._replay
        return replay is not None and replay.inserted >= self._config.min_size and replay.num_starts > 0

    def add(self, trajectory: Trajectory) -> None:
        """Add a trajectory [T+1, B, ...], whose row 0 is the last row of the one before, as `jsrl.Collector` returns them.

        Raises:
          ConfigError: its leaves differ in shape from those of the first one.
        """
        trajectory = map_tree(np.asarray, trajectory)
        if self._replay is None:
            self._spec: Trajectory = spec_of(trajectory)
            self._replay = HostReplay(self._config, self._spec, frames=self._frames, seed=self._seed)
        first, now = ({name: list(x.shape) for name, x in named_leaves(tree)} for tree in (self._spec, trajectory))
        if first != now:
            name = next(name for name in (*now, *first) if now.get(name) != first.get(name))
            raise ConfigError(
                f"{name} has shape {now.get(name)}, but {first.get(name)} in the first trajectory that was added; add "
                "trajectories of the same rows and columns."
            )
        self._replay.insert(0, (0, self._added), trajectory)
        self._added += 1

    def sample(self, beta: float | None = None) -> tuple[Trajectory, np.ndarray]:
        """Return `batch_size` windows [W+1, M, ...], and their ids [M] for `set_priorities`.

        With priorities, `sampling` has the importance weights [M] with exponent `beta` (None: that of the config).

        Raises:
          ConfigError: no whole window was added yet.
        """
        if self._replay is None:
            raise ConfigError("the replay buffer is empty; add a trajectory first.")
        windows: Trajectory = zeros(windows_spec(self._config, self._spec))
        ids = self._replay.draw(windows, self._config.beta if beta is None else beta)
        return windows, ids

    def set_priorities(self, ids: np.ndarray, priorities: np.ndarray) -> None:
        """Give windows new priorities [M] (0 or more), such as an update returns them; overwritten windows are ignored.

        Raises:
          ConfigError: there is not one for each of the ids, or not all are finite and 0 or more.
        """
        ids, priorities = np.asarray(ids), np.asarray(priorities)
        if priorities.shape != ids.shape or not (np.isfinite(priorities) & (priorities >= 0)).all():
            raise ConfigError(
                f"priorities {list(priorities.shape)} for windows {list(ids.shape)}: give one finite number of 0 or more for "
                "each, such as an absolute error."
            )
        if self._replay is not None:
            self._replay.feedback(ids, {PRIORITIES: priorities})
