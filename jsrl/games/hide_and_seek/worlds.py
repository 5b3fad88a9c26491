"""The worlds of B slots, each stepped by MuJoCo; arrays hold the states of all slots."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from typing import Any, NamedTuple

import numpy as np

from jsrl.errors import EnvironmentFault
from jsrl.games.hide_and_seek.layouts import Layout, draw_layout
from jsrl.games.hide_and_seek.models import FIRST_BODY, GEAR, bodies_of, compile_model
from jsrl.games.hide_and_seek.settings import SUBSTEPS, Settings

HUGE = 1e10  # MuJoCo's own limit of a valid state
JOINTS = 4  # of each body: x, y, z, angle


class World(NamedTuple):
    """The world of one episode.

    Attributes:
      layout: that it was built from. model, simulation: MuJoCo's MjModel and MjData.
      rng: for random choices during the episode.
    """

    layout: Layout
    model: Any
    simulation: Any
    rng: np.random.Generator


def build_world(settings: Settings, seed: int, episode: int) -> World:
    """Return the world of a slot's episode, a function of the arguments alone."""
    rng = np.random.default_rng((seed, episode))
    return world_of(settings, draw_layout(settings, rng), rng)


def world_of(settings: Settings, layout: Layout, rng: np.random.Generator) -> World:
    import mujoco

    model = compile_model(settings, layout)
    data = mujoco.MjData(model)
    corners = np.zeros((len(layout.sizes), JOINTS))
    corners[:, :2] = layout.corners
    data.qpos[:] = corners.ravel()
    mujoco.mj_kinematics(model, data)
    return World(layout, model, data, rng)


class Worlds:
    """B worlds of M bodies (agents, ramps, boxes), padded to the maximum number of boxes.

    Attributes:
      position, velocity: x, y, z and angle, [B, M, 4]; positions are those of corners, as the joints of the original.
      start: corners at the start of the episode, [B, M, 3]. half: half extents, unrotated, [B, M, 3].
      sites: of a task: centre x, y, and size, [B, S, 3]; rows of size 0 are padding.
      present: bool [B, M]. broken: bool [B]: the last step made the state invalid, and the state before is kept.
    """

    def __init__(self, settings: Settings, num_envs: int):
        import mujoco

        self._advance, self._kinematics = mujoco.mj_step, mujoco.mj_kinematics
        agents, bodies = settings.n_agents, bodies_of(settings)
        self.position, self.velocity = np.zeros((num_envs, bodies, JOINTS)), np.zeros((num_envs, bodies, JOINTS))
        self.start, self.half = np.zeros((num_envs, bodies, 3)), np.zeros((num_envs, bodies, 3))
        self.sites = np.zeros((num_envs, settings.max_sites, 3))
        self.present = np.zeros((num_envs, bodies), bool)
        self.broken = np.zeros(num_envs, bool)
        self._control = np.zeros((num_envs, agents * 3))
        self._read = np.zeros((2, num_envs, bodies * JOINTS))
        first, last = mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQACC
        self._bad = slice(int(first), int(last) + 1)  # warnings of invalid positions, velocities and accelerations
        self._warned = np.zeros((num_envs, last - first + 1), int)
        self.worlds: list[World | None] = [None] * num_envs
        self._steps: list[tuple[Any, ...]] = [()] * num_envs

    def place(self, slot: int, world: World) -> None:
        layout, count = world.layout, len(world.layout.sizes)
        self.worlds[slot] = world
        for array in (self.position, self.velocity, self.start, self.half, self.sites):
            array[slot] = 0.0
        self.sites[slot, : len(layout.sites)] = layout.sites
        self.present[slot] = np.arange(self.present.shape[1]) < count
        self.position[slot, :count, :2] = self.start[slot, :count, :2] = layout.corners
        self.half[slot, :count] = layout.sizes / 2
        self._read[:, slot], self._warned[slot], self.broken[slot] = 0.0, 0, False
        data, width = world.simulation, count * JOINTS
        self._steps[slot] = (
            world.model,
            data,
            (data.ctrl, self._control[slot]),
            (self._read[0, slot, :width], data.qpos),
            (self._read[1, slot, :width], data.qvel),
            (self._warned[slot], data.warning.number[self._bad]),
        )

    def centres(self) -> np.ndarray:
        """Return the centres of all bodies, [B, M, 3]."""
        return self.position[..., :3] + self.half

    def step(self, force: np.ndarray, slots: list[int]) -> None:
        """Step some slots by one env step with the forces on agents [B, n, 3]: along x and y, and a torque."""
        self._control[:] = force.reshape(self._control.shape) / GEAR
        for slot in slots:
            model, data, (control, given), (position, qpos), (velocity, qvel), (warned, number) = self._steps[slot]
            control[:] = given
            self._advance(model, data, SUBSTEPS)
            self._kinematics(model, data)
            position[:], velocity[:], warned[:] = qpos, qvel, number
        self._take()

    def measure(self, slots: list[int]) -> None:
        """Read the state of some slots again, after code outside changed it."""
        for slot in slots:
            model, data, _, (position, qpos), (velocity, qvel), _ = self._steps[slot]
            self._kinematics(model, data)
            position[:], velocity[:] = qpos, qvel
        self._take()

    def _take(self) -> None:
        """Store the states that were read, except invalid ones, also if they were so only within the step."""
        with np.errstate(invalid="ignore"):
            fine = np.asarray((np.abs(self._read) < HUGE).all(axis=(0, 2))) & ~self._warned.any(axis=1)
        self.broken[:] = ~fine
        shape = self.position.shape
        if fine.all():
            self.position[:], self.velocity[:] = self._read.reshape(2, *shape)
            return
        self.position[fine], self.velocity[fine] = self._read.reshape(2, *shape)[:, fine]

    def freeze(self, slot: int, body: int, frozen: bool) -> None:
        """Fix a ramp or box in place, or release it."""
        model = self._world(slot).model
        joints = slice(body * JOINTS, (body + 1) * JOINTS)
        model.jnt_limited[joints] = frozen
        if frozen:
            model.jnt_range[joints] = self.position[slot, body, :, None]

    def hold(self, slot: int, agent: int, body: int) -> None:
        """Weld a ramp or box to an agent in their current relative pose; -1: release what it holds."""
        world = self._world(slot)
        world.simulation.eq_active[agent] = body >= 0
        if body < 0:
            return
        world.model.eq_obj2id[agent] = FIRST_BODY + body
        mine, its = self.position[slot, agent], self.position[slot, body]
        apart = its[:3] + self.half[slot, body] - mine[:3] - self.half[slot, agent]
        cosine, sine, turned = np.cos(mine[3]), np.sin(mine[3]), (its[3] - mine[3]) / 2
        row = world.model.eq_data[agent]
        row[0:3] = 0.0
        row[3:6] = cosine * apart[0] + sine * apart[1], cosine * apart[1] - sine * apart[0], apart[2]
        row[6:11] = np.cos(turned), 0.0, 0.0, np.sin(turned), 1.0

    def close(self) -> None:
        self.worlds, self._steps = [None] * len(self.worlds), [()] * len(self.worlds)

    def rng(self, slot: int) -> np.random.Generator:
        """Return the slot's generator of random choices during the episode."""
        return self._world(slot).rng

    def simulation(self, slot: int) -> Any:
        return self._world(slot).simulation

    def _world(self, slot: int) -> World:
        world = self.worlds[slot]
        assert world is not None
        return world


DEADLINE_S = 60.0


class WorldsAhead:
    """Supplies worlds. A world is a function of its slot's seed and its episode, so any thread builds the same one.

    The thread starts with the first world that is requested: an environment made only for its spec starts none.
    """

    def __init__(self, settings: Settings, seeds: list[int]):
        self._settings, self._seeds = settings, seeds
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="hide-and-seek")
        self._ahead: dict[tuple[int, int], Future[World]] = {}  # by slot and episode

    def take(self, slot: int, episode: int) -> World:
        """Return the world of a slot's episode, and start building that of the next one."""
        future = self._ahead.pop((slot, episode), None)
        if future is None or future.cancel():  # no thread has started to build it
            world = build_world(self._settings, self._seeds[slot], episode)
        else:
            try:
                world = future.result(DEADLINE_S)
            except TimeoutError:
                raise EnvironmentFault(
                    f"hide_and_seek: the world of slot {slot}, episode {episode} was not built within {DEADLINE_S:.0f} s. "
                    "The machine is overloaded: start fewer actors"
                ) from None
        following = self._builder.submit(build_world, self._settings, self._seeds[slot], episode + 1)
        self._ahead[slot, episode + 1] = following
        return world

    def close(self) -> None:
        self._builder.shutdown(wait=False, cancel_futures=True)
        self._ahead.clear()
