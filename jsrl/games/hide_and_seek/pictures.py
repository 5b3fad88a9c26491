"""Pictures of a slot: hiders blue, seekers red, boxes yellow, ramps violet, locked objects in their team's colour."""

from __future__ import annotations

from typing import Any

import numpy as np

from jsrl.games.hide_and_seek.hands import Hands
from jsrl.games.hide_and_seek.models import FIRST_GEOM, GEOMS_PER_AGENT, RAMP_VERTICES
from jsrl.games.hide_and_seek.settings import Settings
from jsrl.games.hide_and_seek.sight import Sight
from jsrl.games.hide_and_seek.worlds import Worlds

SIZE = 480  # pixels of a side
TEAM_COLOURS = ((0.10, 0.30, 0.75, 1.0), (0.70, 0.10, 0.10, 1.0))
EYE, HELD = (1.0, 1.0, 1.0, 1.0), (0.10, 0.10, 0.10, 1.0)
LIDAR = ((0.27, 0.55, 0.95, 0.35), (0.90, 0.25, 0.22, 0.35))
EYES = ((-0.06, -0.13, 0.06), (0.06, -0.13, 0.06))  # in the agent's frame, which looks along -y
EXTRA_GEOMS = 1000
SLOPE = ((2, 3), (3, 5), (5, 4), (4, 2))  # edges of a ramp's slope, by its vertices


class Pictures:
    """Draws worlds with MuJoCo's renderer, which needs OpenGL: MUJOCO_GL=egl or osmesa if there is no display.

    A dark line connects an agent and the object that it holds; lidar rays are thin lines in their team's colour.
    """

    def __init__(self, settings: Settings, worlds: Worlds, sight: Sight, hands: Hands):
        self._settings, self._worlds, self._sight, self._hands = settings, worlds, sight, hands
        self._renderer: Any = None
        self._model: Any = None

    def draw(self, slot: int, *, lidar: bool) -> np.ndarray:
        """Return a picture of a slot: uint8 [480, 480, 3]."""
        import mujoco

        world = self._worlds.worlds[slot]
        assert world is not None
        if self._model is not world.model:
            self.close()
            self._renderer = mujoco.Renderer(world.model, SIZE, SIZE, max_geom=EXTRA_GEOMS)
            self._model = world.model
        self._renderer.update_scene(world.simulation, self._camera(mujoco))
        self._paint_locked(mujoco, slot)
        self._add_eyes(mujoco, slot)
        self._add_held(mujoco, slot)
        self._add_slopes(mujoco, world.simulation)
        if lidar:
            self._add_lidar(mujoco, slot)
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = self._model = None

    def _camera(self, mujoco: Any) -> Any:
        camera, middle = mujoco.MjvCamera(), self._settings.floor_size / 2
        camera.lookat[:] = middle, middle, 0.0
        camera.distance, camera.azimuth, camera.elevation = 3.7 * middle, 65.0, -58.0  # oblique: ramps show their slope
        return camera

    def _paint_locked(self, mujoco: Any, slot: int) -> None:
        agents, scene = self._settings.n_agents, self._renderer.scene
        first = FIRST_GEOM + agents * GEOMS_PER_AGENT
        for geom in scene.geoms[: scene.ngeom]:
            thing = geom.objid - first
            if geom.objtype != mujoco.mjtObj.mjOBJ_GEOM or not 0 <= thing < int(
                self._worlds.present[slot, agents:].sum()
            ):
                continue
            if self._hands.locked[slot, thing]:
                geom.rgba[:] = TEAM_COLOURS[self._hands.team[self._hands.owner[slot, thing]]]

    def _add_eyes(self, mujoco: Any, slot: int) -> None:
        for agent in range(self._settings.n_agents):
            at, angle = self._worlds.centres()[slot, agent], self._worlds.position[slot, agent, 3]
            cosine, sine = np.cos(angle), np.sin(angle)
            for x, y, z in EYES:
                spot = at + np.array([cosine * x - sine * y, sine * x + cosine * y, z])
                self._add(mujoco, mujoco.mjtGeom.mjGEOM_SPHERE, (0.035, 0.035, 0.035), spot, EYE)

    def _add_held(self, mujoco: Any, slot: int) -> None:
        centres = self._worlds.centres()[slot]
        for agent, body in enumerate(self._hands.held[slot].tolist()):
            if body >= 0:
                self._line(mujoco, centres[agent], centres[body], 6.0, HELD)

    def _add_slopes(self, mujoco: Any, simulation: Any) -> None:
        """Draw the edges of the ramps' slopes: seen from behind, a ramp's faces look like those of a box."""
        for ramp in range(self._settings.n_ramps):
            body = simulation.body(f"ramp{ramp}")
            corners = np.array(RAMP_VERTICES) @ body.xmat.reshape(3, 3).T + body.xpos
            for one, other in SLOPE:
                self._line(mujoco, corners[one], corners[other], 2.0, EYE)

    def _add_lidar(self, mujoco: Any, slot: int) -> None:
        for agent in range(self._settings.n_agents):
            begin, colour = self._worlds.centres()[slot, agent], LIDAR[self._hands.team[agent]]
            for angle, far in enumerate(self._sight.lidar[slot, agent].tolist()):
                turn = 2 * np.pi * angle / self._settings.n_lidar
                self._line(mujoco, begin, begin + far * np.array([np.cos(turn), np.sin(turn), 0.0]), 1.0, colour)

    def _add(self, mujoco: Any, kind: Any, size: Any, at: np.ndarray, colour: Any) -> Any:
        scene = self._renderer.scene
        geom = scene.geoms[scene.ngeom]
        mujoco.mjv_initGeom(geom, kind, np.array(size, float), at, np.eye(3).ravel(), np.array(colour, np.float32))
        scene.ngeom += 1
        return geom

    def _line(self, mujoco: Any, begin: np.ndarray, end: np.ndarray, width: float, colour: Any) -> None:
        kind = mujoco.mjtGeom.mjGEOM_LINE
        mujoco.mjv_connector(self._add(mujoco, kind, (0, 0, 0), begin, colour), kind, width, begin, end)
