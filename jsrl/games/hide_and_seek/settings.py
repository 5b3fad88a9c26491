"""Options of the game, and the settings of its scenarios.

Source: Baker et al. 2020 (1909.07528), as released by its authors; the runs of SRL (2306.16688) used the same settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

import msgspec

from jsrl.errors import ConfigError
from jsrl.references.importing import nearest

TIMESTEP_S, SUBSTEPS = 0.005, 15
LEVELS, FORCE_STEP = 11, 18.0  # choices per axis, and newtons (or newton metres) between adjacent ones
TEAM_SCENARIOS = ("randomwalls", "quadrant", "empty")  # the others are tasks for one agent
SITES = {"construction": (1, 4), "shelter": (1, 1)}  # least and greatest number of sites
NEUTRAL = (5, 5, 5, 0, 0)  # no force, no torque, no pull, no lock
VIEW_HALF_ANGLE = 3 * math.pi / 8
OUT_OF_BOUNDS_REWARD = -10.0
LEAST_GRID = 20  # cells along the floor: fewer have no place for a quadrant


@dataclass(frozen=True)
class Settings:
    """A variant of the game. Lengths are in metres.

    Attributes:
      scenario: `randomwalls`: 1 to `n_rooms` rooms with doors; `quadrant`: one room in a corner; `empty`: only outer walls;
        the others are tasks for one agent.
      n_hiders, n_seekers: 1 to 3 each; in a task 1 and 0.
      max_others: rows of other agents in an observation; unused rows are zeros and masked. None: no padding.
      rows: rows of boxes, ramps and sites in an observation, likewise; boxes and ramps then have sizes and locks in every
        scenario, so that a policy can move from one to another. None: those that the scenario needs.
      horizon: env steps of an episode. prep_fraction: share of them in which seekers cannot act and rewards are 0.
      floor_size: side of the square floor. grid_size: cells along it; walls and objects are placed on this grid.
      n_boxes: minimum and maximum number of boxes of an episode; one number: always that many. n_elongated_boxes: number
        of elongated ones, likewise. n_ramps: number of ramps. n_sites: of a task: where to build, or what to shield; likewise.
      lock_ramp: ramps can be locked. penalize_objects_out: all agents earn -10 while a box or ramp is outside restrict_rect.
      n_rooms: maximum, for `randomwalls`; random_room_number: draw 1 to n_rooms; else always n_rooms.
      prob_outside_walls: probability that `randomwalls` has outer walls. door_size: in cells.
      p_door_dropout: probability that only one wall of the room of `quadrant` has a door.
      hiders_together_radius, seekers_together_radius: of the start positions around a team's first agent; None: anywhere.
      hider_uniform_placement: hiders of `quadrant` start anywhere, else in the room.
      restrict_rect: x_min, y_min, x_max, y_max; an agent outside earns -10. None: no limit.
      reward_range: a hider counts as seen, for rewards and `seen_share`, only within this distance of the seeker. None: no
        limit, as in the original; without hiding places, a seeker that turns on the spot then earns as much as a chaser.
      reward_falls: the reward for a seen hider falls linearly from 1 at distance 0 to 0 at `reward_range`, so that each
        step towards it pays. False: 1 within `reward_range`.
      reward_each: each seeker's reward counts what it sees itself, so that each one gains by coming near; False: what any
        seeker sees, as in the original. Hiders' rewards always count what any seeker sees.
      n_lidar: rays of each agent's lidar; 0: none. lidar_range: value of a ray that hits nothing.
      corner_bias: test the view cone between corners, as in the original; else between centres.
      seekers_wait: in the preparation phase seekers do not act (`acts` 0), so that nothing is learned from actions without
        effect; else their actions are received and ignored, as in the original.
      relative: positions of other entities are relative to the agent's, along the world's axes; the angle of another agent
        is its bearing relative to the agent's direction of view; the agent's own angle is wrapped. For small networks.
      hide_unseen: rows of unseen entities are zeros, for networks that do not read the masks.
      show_lidar: pictures and films show the lidar's rays.
    """

    scenario: str
    n_hiders: int = 2
    n_seekers: int = 2
    max_others: int | None = None
    rows: tuple[int, int, int] | None = None
    horizon: int = 80
    prep_fraction: float = 0.4
    floor_size: float = 6.0
    grid_size: int = 30
    n_boxes: int | tuple[int, int] = 0
    n_elongated_boxes: int | tuple[int, int] = 0
    n_ramps: int = 0
    n_sites: int | tuple[int, int] = 0
    lock_ramp: bool = True
    penalize_objects_out: bool = False
    n_rooms: int = 4
    random_room_number: bool = True
    prob_outside_walls: float = 0.5
    door_size: int = 2
    p_door_dropout: float = 0.5
    hiders_together_radius: float | None = None
    seekers_together_radius: float | None = None
    hider_uniform_placement: bool = True
    restrict_rect: tuple[float, float, float, float] | None = None
    reward_range: float | None = None
    reward_falls: bool = False
    reward_each: bool = False
    n_lidar: int = 30
    lidar_range: float = 6.0
    corner_bias: bool = True
    seekers_wait: bool = False
    relative: bool = False
    hide_unseen: bool = False
    show_lidar: bool = False

    def __post_init__(self) -> None:  # noqa: C901
        if self.is_task and (self.n_hiders, self.n_seekers) != (1, 0):
            raise ConfigError(
                f"n_hiders is {self.n_hiders} and n_seekers {self.n_seekers}; {self.scenario} is for one agent: give 1 and 0"
            )
        for name in () if self.is_task else ("n_hiders", "n_seekers"):
            if not 1 <= getattr(self, name) <= 3:
                raise ConfigError(f"{name} is {getattr(self, name)}; give 1, 2 or 3")
        if self.max_others is not None and self.max_others < self.n_agents - 1:
            raise ConfigError(
                f"max_others is {self.max_others}; {self.n_agents} agents need at least {self.n_agents - 1}"
            )
        needed = (self.max_boxes, self.n_ramps, self.max_sites)
        if self.rows is not None and any(row < need for row, need in zip(self.rows, needed, strict=True)):
            raise ConfigError(
                f"rows is {self.rows}; give [boxes, ramps, sites]; {self.scenario} needs at least {list(needed)}"
            )
        if self.scenario == "counting":
            self._check_counting()
        if self.horizon < 1 or not 0 <= self.prep_fraction < 1:
            raise ConfigError(
                f"horizon is {self.horizon} and prep_fraction {self.prep_fraction}; give at least 1, and 0 to below 1"
            )
        for name, least in (("grid_size", LEAST_GRID), ("n_lidar", 0), ("n_rooms", 1), ("door_size", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; give at least {least}")
        for name in ("n_boxes", "n_elongated_boxes"):
            least, most = span(getattr(self, name))
            if not 0 <= least <= most <= 9:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number, or two in order, from 0 to 9")
        if not 0 <= self.n_ramps <= 4:
            raise ConfigError(f"n_ramps is {self.n_ramps}; give 0 to 4")
        self._check_sites()
        for name in ("floor_size", "lidar_range", "reward_range", "hiders_together_radius", "seekers_together_radius"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value:g}; give a positive, finite number")
        for team, number in (("hiders", self.n_hiders), ("seekers", self.n_seekers)):
            radius = getattr(self, f"{team}_together_radius")
            if number > 1 and radius is not None and radius <= self.cell:
                raise ConfigError(
                    f"{team}_together_radius is {radius:g}; {number} agents need more than a cell, {self.cell:g}"
                )
        if self.reward_falls and self.reward_range is None:
            raise ConfigError(
                "reward_falls needs a reward_range, the distance at which a seen hider counts 0; give both"
            )
        for name in ("prob_outside_walls", "p_door_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number from 0 to 1")

    def _check_counting(self) -> None:
        if (self.floor_size, self.grid_size) != (6.0, 30):
            raise ConfigError("counting is played on a floor of 6 m, 30 cells; leave out floor_size and map_scale")
        if not isinstance(self.n_boxes, int) or not 1 <= self.n_boxes <= 6:
            raise ConfigError(f"n_boxes is {self.n_boxes}; counting needs a number from 1 to 6")
        for name in ("n_elongated_boxes", "n_ramps"):
            if getattr(self, name) != 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; counting has only cubes: give 0, or leave it out")

    def _check_sites(self) -> None:
        """Check the sites, what must be there besides them, and the rectangle. Raises ConfigError."""
        least, most = span(self.n_sites)
        low, high = SITES.get(self.scenario, (0, 0))
        if not low <= least <= most <= high:
            raise ConfigError(
                f"n_sites is {self.n_sites}; {self.scenario} has "
                + (f"{low} to {high}" if high > low else f"exactly {low}" if low else "none: leave it out")
            )
        if self.scenario == "construction" and span(self.n_boxes)[0] < 1:
            raise ConfigError(f"n_boxes is {self.n_boxes}; construction needs at least 1")
        rect = self.restrict_rect
        if rect is not None and not (rect[0] < rect[2] and rect[1] < rect[3]):
            raise ConfigError(
                f"restrict_rect is {rect}; give x_min, y_min, x_max, y_max, each minimum below its maximum"
            )

    @property
    def is_task(self) -> bool:
        """Return whether a lone agent has a task, instead of two teams that play."""
        return self.scenario not in TEAM_SCENARIOS

    @property
    def n_agents(self) -> int:
        return self.n_hiders + self.n_seekers

    @property
    def max_boxes(self) -> int:
        return span(self.n_boxes)[1]

    @property
    def max_sites(self) -> int:
        return span(self.n_sites)[1]

    @property
    def sized(self) -> bool:
        return span(self.n_elongated_boxes)[1] > 0 or self.rows is not None

    @property
    def shown_rows(self) -> tuple[int, int, int]:
        return self.rows or (self.max_boxes, self.n_ramps, self.max_sites)

    @property
    def others(self) -> int:
        return self.n_agents - 1 if self.max_others is None else self.max_others

    @property
    def prep_steps(self) -> int:
        return math.ceil(self.prep_fraction * self.horizon - 1e-9)

    @property
    def cell(self) -> float:
        return self.floor_size / self.grid_size


def span(value: int | tuple[int, int]) -> tuple[int, int]:
    """Return the minimum and the maximum of a number that may be drawn."""
    return value if isinstance(value, tuple) else (value, value)


def _task(scenario: str, **changes: Any) -> Settings:
    """Return the settings of a task for one agent, in a room with outer walls."""
    usual: dict[str, Any] = {
        "n_hiders": 1,
        "n_seekers": 0,
        "max_others": 1,
        "horizon": 120,
        "prep_fraction": 0.0,
        "random_room_number": False,
        "prob_outside_walls": 1.0,
    }
    return Settings(scenario, **{**usual, **changes})


SCENARIOS = {
    "randomwalls": Settings(
        "randomwalls",
        horizon=240,
        n_boxes=(3, 9),
        n_elongated_boxes=(3, 9),
        n_ramps=2,
        hiders_together_radius=0.5,
        seekers_together_radius=0.5,
        restrict_rect=(-6.0, -6.0, 12.0, 12.0),
    ),
    "quadrant": Settings(
        "quadrant",
        n_boxes=2,
        n_ramps=1,
        lock_ramp=False,
        penalize_objects_out=True,
        restrict_rect=(0.1, 0.1, 5.9, 5.9),
    ),
    "empty": Settings("empty"),
    "lock_and_return": _task("lock_and_return", n_boxes=1, n_rooms=6),
    "sequential_lock": _task("sequential_lock", n_boxes=4, n_ramps=3, n_rooms=3, door_size=0),
    "construction": _task("construction", horizon=150, n_boxes=8, n_sites=(1, 4)),
    "shelter": _task("shelter", horizon=240, n_boxes=8, n_elongated_boxes=3, n_sites=1),
    "counting": _task("counting", horizon=80, n_boxes=6),
}


def settings_of(name: str, options: Mapping[str, Any]) -> Settings:
    """Return a scenario's settings with some options changed.

    Args:
      options: fields of Settings, and `map_scale`: a factor for the floor, its grid, the rectangle and the radii.
    """
    if name not in SCENARIOS:
        raise ConfigError(
            f"hide_and_seek has no scenario {name!r}{nearest(name, SCENARIOS)}; scenarios: {', '.join(SCENARIOS)}"
        )
    kinds, types = (
        get_type_hints(Settings) | {"map_scale": float},
        {field.name: field.type for field in fields(Settings)},
    )
    del kinds["scenario"]
    changes: dict[str, Any] = {}
    for option, value in options.items():
        if option not in kinds:
            raise ConfigError(f"hide_and_seek has no option {option!r}{nearest(option, kinds)}")
        try:
            changes[option] = msgspec.convert(value, kinds[option])  # of JSON, where a tuple becomes a list
        except msgspec.ValidationError as error:
            kind = types.get(option, "float")
            raise ConfigError(
                f"hide_and_seek: {option} is {value!r}; its type is {kind} (a tuple is a list in JSON)"
            ) from error
    settings = replace(_scaled(SCENARIOS[name], changes.pop("map_scale", 1.0)), **changes)
    rect, size = settings.restrict_rect, settings.floor_size
    if "restrict_rect" not in changes and rect is not None and min(rect[2:]) < size - settings.cell:
        raise ConfigError(
            f"floor_size is {size:g}, and agents beyond {min(rect[2:]):g} m are out of bounds in {name}; give map_scale "
            "instead, or restrict_rect too"
        )
    return settings


def _scaled(settings: Settings, factor: float) -> Settings:
    """Return a larger map of the same cells, rooms and objects."""
    least = LEAST_GRID / settings.grid_size
    if not least <= factor < math.inf:
        raise ConfigError(f"map_scale is {factor:g}; give a finite number of at least {least:.2g}")
    hiders, seekers, rect = (
        settings.hiders_together_radius,
        settings.seekers_together_radius,
        settings.restrict_rect,
    )
    return replace(
        settings,
        floor_size=settings.floor_size * factor,
        grid_size=round(settings.grid_size * factor),
        hiders_together_radius=None if hiders is None else hiders * factor,
        seekers_together_radius=None if seekers is None else seekers * factor,
        restrict_rect=None if rect is None else tuple(side * factor for side in rect),  # type: ignore[arg-type]
    )
