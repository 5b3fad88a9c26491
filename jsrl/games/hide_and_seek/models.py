"""Compiles a layout to a MuJoCo model. Order of bodies: agents, ramps, boxes (each with four joints), walls."""

from __future__ import annotations

from typing import Any

from jsrl.games.hide_and_seek.layouts import Layout
from jsrl.games.hide_and_seek.settings import TIMESTEP_S, Settings
from jsrl.games.hide_and_seek.walls import OUTER_HEIGHT, box_of

FIRST_BODY = 2  # id of agent 0, after the world and the empty body that unused welds are attached to
GEOMS_PER_AGENT = 3
FIRST_GEOM = 1  # after the floor
GEAR = 100.0
LOW_SLIDING, HIGH_SLIDING = 0.01, 0.2
RAMP_VERTICES = (
    (-0.25, -0.25, -0.25),
    (0.25, -0.25, -0.25),
    (-0.25, 0.25, -0.25),
    (0.25, 0.25, -0.25),
    (-0.25, -0.25, 0.25),
    (0.25, -0.25, 0.25),
)
RAMP_CENTROID = (0.0, -1 / 12, -1 / 12)
HIDER, SEEKER = "0.27 0.55 0.95 1", "0.90 0.25 0.22 1"
BOX, LONG_BOX, RAMP = "0.93 0.76 0.32 1", "0.80 0.62 0.36 1", "0.60 0.45 0.75 1"
CYLINDER, SITE = "0.85 0.55 0.60 1", "0.35 0.75 0.70 1"
CYLINDER_HEIGHT = 0.5
INNER_WALL, OUTER_WALL = "0.45 0.70 0.50 1", "0.45 0.70 0.50 0.1"  # never invisible: rays would pass through


def compile_model(settings: Settings, layout: Layout) -> Any:
    """Return the mujoco.MjModel of a layout."""
    import mujoco

    return mujoco.MjModel.from_xml_string(model_xml(settings, layout))


def model_xml(settings: Settings, layout: Layout) -> str:
    """Return a layout in MuJoCo's format.

    The Jacobian is dense: MuJoCo 4.0.0 factorises sparse ones wrongly, and dense ones are as fast at these sizes. MuJoCo's
    automatic reset is off, so that a non-finite state stays and is detected.
    """
    middle = settings.floor_size / 2
    agents, ramps = settings.n_agents, settings.n_ramps
    bodies = [_agent(i, settings) for i in range(agents)]
    bodies += [_ramp(j) for j in range(ramps)]
    bodies += [_box(j, size) for j, size in enumerate(layout.sizes[agents + ramps :])]
    friction = f' friction="{LOW_SLIDING}"' if settings.scenario == "quadrant" else ""
    for i, wall in enumerate(layout.walls):
        centre, half = box_of(wall, settings.cell)
        colour = OUTER_WALL if wall.height == OUTER_HEIGHT else INNER_WALL
        geom = f'<geom type="box" size="{_text(half)}" rgba="{colour}"{friction}/>'
        bodies.append(f'<body name="wall{i}" pos="{_text(centre)}">{geom}</body>')
    bodies += [_site(settings, site) for site in layout.sites.tolist()]
    welds = "".join(f'<weld body1="agent{i}" body2="floor0" active="false"/>' for i in range(agents))
    motors = "".join(
        f'<motor joint="agent{i}:{axis}" gear="{GEAR}" ctrllimited="true" ctrlrange="-0.9 0.9"/>'
        for i in range(agents)
        for axis in ("tx", "ty", "rz")
    )
    vertices = " ".join(_text(vertex) for vertex in RAMP_VERTICES)
    return f"""<mujoco>
<compiler angle="radian"/>
<option timestep="{TIMESTEP_S}" gravity="0 0 -50" jacobian="dense"><flag autoreset="disable"/></option>
<visual><headlight ambient="0.45 0.45 0.45" diffuse="0.5 0.5 0.5"/><global offwidth="1280" offheight="1280"/></visual>
<asset><mesh name="ramp" vertex="{vertices}"/></asset>
<worldbody>
<geom name="floor" type="plane" size="{middle} {middle} 1" pos="{middle} {middle} 0" friction="{HIGH_SLIDING}"
 rgba="0.85 0.86 0.88 1"/>
<body name="floor0" pos="{middle} {middle} 0"/>
{"".join(bodies)}
</worldbody>
<equality>{welds}</equality>
<actuator>{motors}</actuator>
</mujoco>"""


def _agent(i: int, settings: Settings) -> str:
    colour = HIDER if i < settings.n_hiders else SEEKER
    arms = "".join(
        f'<geom name="agent{i}:arm{j}" size="0.05" mass="0" pos="{x} -0.075 -0.05" friction="{LOW_SLIDING}" rgba="{colour}"/>'
        for j, x in enumerate((-0.13, 0.13))
    )
    geom = f'<geom name="agent{i}" size="0.15" mass="1" friction="{LOW_SLIDING}" rgba="{colour}"/>'
    return _body(f"agent{i}", (0.15, 0.15, 0.15), (10, 10, 1, 10), geom + arms)


def _ramp(j: int) -> str:
    geom = f'<geom name="ramp{j}" type="mesh" mesh="ramp" mass="1" friction="{LOW_SLIDING}" rgba="{RAMP}"/>'
    return _body(f"ramp{j}", (0.25, 0.25, 0.25), (0.1, 0.1, 0.1, 0.1), geom)


def _box(j: int, size: Any) -> str:
    half = (size[0] / 2, size[1] / 2, size[2] / 2)
    colour = BOX if size[0] == size[1] else LONG_BOX
    geom = f'<geom name="box{j}" type="box" size="{_text(half)}" mass="1" friction="{HIGH_SLIDING}" rgba="{colour}"/>'
    return _body(f"box{j}", half, (0.01, 0.01, 0.01, 0.01), geom)


def _site(settings: Settings, site: list[float]) -> str:
    """Return a mark on the floor; in a shelter's world a cylinder."""
    x, y, size = site
    if settings.scenario == "shelter":
        geom = f'<geom type="cylinder" size="{size / 2!r} {CYLINDER_HEIGHT / 2!r}" rgba="{CYLINDER}"/>'
        return f'<body pos="{_text((x, y, CYLINDER_HEIGHT / 2))}">{geom}</body>'
    return f'<site type="box" pos="{_text((x, y, 0.0))}" size="{_text((size / 2, size / 2, 0.005))}" rgba="{SITE}"/>'


def _body(name: str, origin: tuple[float, ...], damping: tuple[float, ...], geoms: str) -> str:
    """Return a body that slides along x, y, z and turns about z; its joints are 0 if its corner is at 0, 0, 0."""
    axes = (("tx", "slide", "1 0 0"), ("ty", "slide", "0 1 0"), ("tz", "slide", "0 0 1"), ("rz", "hinge", "0 0 1"))
    joints = "".join(
        f'<joint name="{name}:{label}" type="{kind}" axis="{axis}" damping="{value}"/>'
        for (label, kind, axis), value in zip(axes, damping, strict=True)
    )
    return f'<body name="{name}" pos="{_text(origin)}">{joints}{geoms}</body>'


def _text(values: Any) -> str:
    return " ".join(repr(float(value)) for value in values)


def bodies_of(settings: Settings) -> int:
    """Return M, the number of moving bodies with the maximum number of boxes."""
    return settings.n_agents + settings.n_ramps + settings.max_boxes
