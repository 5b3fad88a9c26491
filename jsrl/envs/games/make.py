"""The adapters of environments with seats: one entry per scheme of ids, imported on demand."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from jsrl.envs.base import VectorGame
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError


class Suite(NamedTuple):
    """The adapter of a scheme.

    Attributes:
      module: of the adapter. make: its function of (config, num_envs, seed, group, groups).
      prepare: its function of (config) that imports the packages that `make` needs, besides the module itself; empty: none.
    """

    module: str
    make: str
    prepare: str = ""


SUITES = {
    "particle": Suite("jsrl.games.particle.game", "make_particle"),
    "matrix": Suite("jsrl.games.matrix", "make_matrix"),
    "foraging": Suite("jsrl.games.foraging", "make_foraging"),
    "hide_and_seek": Suite("jsrl.games.hide_and_seek.game", "make_hide_and_seek", "import_mujoco"),
    "pettingzoo": Suite("jsrl.envs.adapters.pettingzoo", "make_pettingzoo", "import_pettingzoo"),
    "lbf": Suite("jsrl.envs.adapters.lbf", "make_lbf", "import_lbf"),
    "openspiel": Suite("jsrl.envs.adapters.openspiel", "make_openspiel", "import_openspiel"),
}


def make_by_scheme(
    config: EnvConfig,
    num_envs: int,
    seed: int | tuple[int, ...],
    group: int = 0,
    groups: Mapping[str, tuple[str, ...]] | None = None,
) -> VectorGame:
    """Build the game that an id `SCHEME:NAME` names; see jsrl.envs.make.make_game."""
    suite = SUITES[config.id.partition(":")[0]]
    make = getattr(import_module(suite.module), suite.make)
    try:
        return make(config, num_envs, seed, group, groups)
    except (TypeError, ValueError) as error:  # an option of another type
        raise ConfigError(
            f"environment {config.id!r} could not be made with kwargs {config.kwargs}: {error}. Check env.kwargs"
        ) from error


def import_suite(config: EnvConfig) -> None:
    """Import what `make_by_scheme` needs, and create nothing: for a process that will fork."""
    suite = SUITES[config.id.partition(":")[0]]
    module = import_module(suite.module)
    if suite.prepare:
        getattr(module, suite.prepare)(config)
