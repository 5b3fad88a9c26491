"""The vector game of hide-and-seek; ids `hide_and_seek:randomwalls`, `quadrant`, `empty`, and those of the tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from jsrl.envs.base import GameStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.games.rows import VectorisedGame
from jsrl.errors import ConfigError, EnvironmentFault, MissingExtra
from jsrl.extras import import_extra, install_command
from jsrl.games.hide_and_seek import rules
from jsrl.games.hide_and_seek.hands import Hands
from jsrl.games.hide_and_seek.layouts import draw_layout
from jsrl.games.hide_and_seek.observations import Observations, observation_spec, state_size
from jsrl.games.hide_and_seek.pictures import Pictures
from jsrl.games.hide_and_seek.settings import FORCE_STEP, LEVELS, NEUTRAL, SUBSTEPS, TIMESTEP_S, Settings, settings_of
from jsrl.games.hide_and_seek.sight import Sight
from jsrl.games.hide_and_seek.statistics import Statistics
from jsrl.games.hide_and_seek.tasks import Construction, Counting, Locking, Shelter, Task
from jsrl.games.hide_and_seek.worlds import World, Worlds, WorldsAhead
from jsrl.references.importing import nearest
from jsrl.types import Array, ArraySpec, GameSpec, MultiDiscrete, Seat

log = logging.getLogger("jsrl.envs")
TASKS: dict[str, type[Task]] = {
    "lock_and_return": Locking,
    "sequential_lock": Locking,
    "construction": Construction,
    "shelter": Shelter,
    "counting": Counting,
}
LEAST_MUJOCO = (3, 5)  # its mj_multiRay has one argument more than before
ACTIONS = MultiDiscrete((LEVELS, LEVELS, LEVELS, 2, 2))  # force along x and y, torque, pull, lock


class HideAndSeek(VectorisedGame):
    """B worlds with hiders and seekers, or with one agent and a task.

    Episodes are truncated after `horizon` steps, or `max_episode_steps` if that is less; `construction` also terminates.

    An episode whose physics becomes invalid is truncated at its last valid state, and counted in `discarded`.

    Attributes:
      settings: of the game. worlds, sight, hands: its state. clock: int [B]: steps of the open episodes.
      task: of a lone agent; None: there are two teams.
      discarded: episodes whose physics became invalid.
    """

    metadata: ClassVar = {"render_fps": 1 / (TIMESTEP_S * SUBSTEPS)}

    def __init__(
        self,
        config: EnvConfig,
        settings: Settings,
        num_envs: int,
        seed: int | tuple[int, ...],
        group: int = 0,
        groups: Mapping[str, tuple[str, ...]] | None = None,
    ):
        self.settings = settings
        names = [f"hider_{i}" for i in range(settings.n_hiders)] + [f"seeker_{i}" for i in range(settings.n_seekers)]
        seen = observation_spec(settings)
        seats = tuple(Seat(name, seen, ACTIONS, f"{name.partition('_')[0]}s") for name in names)
        spec = GameSpec(seats, config.id, ArraySpec((state_size(settings),), "float32"))
        super().__init__(spec, config, num_envs, seed, group, groups)
        self._index = {group: _index(index) for group, index in self._groups.index.items()}
        self._ahead = WorldsAhead(settings, self._seeds.tolist())
        self.worlds = Worlds(settings, num_envs)
        self.sight = Sight(settings, self.worlds)
        self.hands = Hands(settings, self.worlds)
        self.task = TASKS[settings.scenario](settings, self.worlds, self.hands) if settings.is_task else None
        self._statistics = Statistics(settings, self.worlds, self.hands)
        self._check_metrics()
        self._observations = Observations(settings, self.worlds, self.sight, self.hands)
        self.clock, self._begun = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._limit = min(settings.horizon, config.max_episode_steps or settings.horizon)
        self.discarded = 0
        self._pictures: Pictures | None = None
        self._seekers = np.arange(len(names)) >= settings.n_hiders

    def _check_metrics(self) -> None:
        """Check that the statistics of `episode_metrics` exist. Raises ConfigError."""
        known = (*self._statistics.of(0, discarded=False), "task_score")
        for _, key, _ in self._rows.metrics.entries:
            if key not in known:
                raise ConfigError(
                    f"env.episode_metrics has {key!r}{nearest(key, known)}; statistics of hide_and_seek: {', '.join(known)}"
                )

    def reset(self) -> GameStep:
        self._begin(range(self.num_envs))
        return self._rows.opened(self._look(), state=self._observations.state, turns=self._turns())

    def step(self, action: Mapping[str, Array]) -> GameStep:
        first = self._rows.first
        chosen = np.stack(self._groups.actions(action), axis=1).astype(np.int64)
        chosen[first] = NEUTRAL
        self._check_actions(chosen, np.broadcast_to(ACTIONS.nums, chosen.shape[1:]))
        preparing = self.clock < self.settings.prep_steps
        chosen[preparing[:, None] & self._seekers] = NEUTRAL
        going = np.flatnonzero(~first).tolist()
        if self.task is not None:
            self.task.move(chosen, going)
        self.hands.use(chosen[..., 3] > 0, chosen[..., 4] > 0, self.sight.seen)
        self.worlds.step((chosen[..., :3] - LEVELS // 2) * FORCE_STEP, going)
        broken = self.worlds.broken & ~first
        self.clock += 1
        self._begin(np.flatnonzero(first).tolist())
        observation = self._look()
        reward = self._reward(preparing | first | broken)
        done = np.zeros_like(broken) if self.task is None else self.task.over & ~first & ~broken
        over = (((self.clock >= self._limit) | done) & ~first) | broken
        for slot in np.flatnonzero(over).tolist():
            self._report(slot, discarded=bool(broken[slot]))
        ends = [np.repeat(each[:, None], len(self._seekers), axis=1) for each in (done, over)]
        return self._rows.step(observation, reward, *ends, state=self._observations.state, turns=self._turns())

    def refresh(self) -> GameStep:
        """Return what a reset would return, after code outside changed the worlds; the clocks continue."""
        self.worlds.measure(list(range(self.num_envs)))
        return self._rows.opened(self._look(), state=self._observations.state, turns=self._turns())

    def _turns(self) -> np.ndarray | None:
        """Return bool [B, n]: which agents act next; None: all."""
        if not self.settings.seekers_wait:
            return None
        return (self.clock >= self.settings.prep_steps)[:, None] | ~self._seekers

    def render(self, slot: int = 0, *, lidar: bool | None = None) -> np.ndarray:
        """Return a picture of a slot, uint8 [480, 480, 3]. It needs OpenGL: MUJOCO_GL=egl or osmesa without a display.

        `lidar`: draw the rays; None: as `show_lidar` says.
        """
        lidar = self.settings.show_lidar if lidar is None else lidar
        if self._pictures is None:
            self._pictures = Pictures(self.settings, self.worlds, self.sight, self.hands)
        return self._pictures.draw(slot, lidar=lidar)

    def _begin(self, slots: Any) -> None:
        for slot in slots:
            self.put(slot, self._ahead.take(slot, int(self._begun[slot])))
            self._begun[slot] += 1

    def put(self, slot: int, world: World) -> None:
        """Continue a slot in another world, as an episode that starts there."""
        self.clock[slot] = 0
        self.worlds.place(slot, world)
        for part in (self.sight, self.hands, self._statistics):
            part.place(slot)
        if self.task is not None:
            self.task.place(slot)

    def _look(self) -> dict[str, Any]:
        self.sight.look()
        self._observations.build(np.minimum(1.0, self.clock / (self.settings.prep_steps + 1e-5)))
        seen = self._observations.seen
        return {group: {key: leaf[:, index] for key, leaf in seen.items()} for group, index in self._index.items()}

    def _reward(self, nothing: np.ndarray) -> np.ndarray:
        """Return the rewards [B, n] of a step; 0 where `nothing`."""
        settings = self.settings
        if self.task is not None:
            reward, no = np.where(nothing, 0.0, self.task.rewards())[:, None], np.zeros(self.num_envs, bool)
            self._statistics.add(reward, no, no, np.zeros_like(reward, bool), self.clock)
            return reward
        centres = self.worlds.centres()
        apart = rules.distances(settings, centres)
        caught = rules.anyone_seen(settings, self.sight.seen, apart)
        out = rules.outside(settings, centres) & self.worlds.present
        reward = rules.rewards(settings, rules.visibility(settings, self.sight.seen, apart), out, nothing)
        self._statistics.add(reward, caught, apart.min(axis=(1, 2)), out[:, : settings.n_agents], self.clock)
        return reward

    def _report(self, slot: int, *, discarded: bool) -> None:
        if discarded:
            self.discarded += 1
            log.warning(
                "environment %s, %s: the physics became invalid; the episode is truncated at its last valid state (%d so far)",
                self.spec.name,
                self._rows.where(slot),
                self.discarded,
            )
        if self._rows.metrics.entries:
            score = {} if self.task is None else {"task_score": float(self.task.score[slot])}
            self._rows.metrics.add(slot, self._statistics.of(slot, discarded=discarded) | score)

    def close(self) -> None:
        self._ahead.close()
        if self._pictures is not None:
            self._pictures.close()
        self.worlds.close()
        self.sight.close()


def _index(index: np.ndarray) -> Any:
    """Return a slice if seats are consecutive, which avoids a copy."""
    first, last = int(index[0]), int(index[-1])
    return slice(first, last + 1) if np.array_equal(index, np.arange(first, last + 1)) else index


def hide_and_seek(config: EnvConfig) -> Callable[..., HideAndSeek]:
    """Return the maker of the game that an id names."""
    mujoco = import_extra("mujoco", "hide-and-seek", f"environment {config.id!r}")
    if tuple(int(part) for part in mujoco.__version__.split(".")[:2]) < LEAST_MUJOCO:
        least = ".".join(map(str, LEAST_MUJOCO))
        raise MissingExtra(
            f"environment {config.id!r} needs MuJoCo {least} or newer; {mujoco.__version__} is installed: "
            f"{install_command('hide-and-seek')}"
        )
    settings = settings_of(config.id.partition(":")[2], config.kwargs)
    try:
        draw_layout(settings, np.random.default_rng(0))  # else the first reset would fail
    except EnvironmentFault as error:
        raise ConfigError(f"{error}.") from error
    return partial(HideAndSeek, config, settings)
