"""Which adapter makes an environment with seats."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from jsrl.envs.base import VectorGame
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError


def make_by_scheme(
    config: EnvConfig,
    num_envs: int,
    seed: int | tuple[int, ...],
    group: int = 0,
    groups: Mapping[str, tuple[str, ...]] | None = None,
) -> VectorGame:
    """Build the game that an id `SCHEME:NAME` names; see jsrl.envs.make.make_game.

    Raises:
      ConfigError: it does not exist, or it does not take these options. MissingExtra: its suite is not installed.
    """
    scheme = config.id.partition(":")[0]
    if scheme == "particle":
        from jsrl.envs.particle.game import make_particle

        return make_particle(config, num_envs, seed, group, groups)
    if scheme == "matrix":
        from jsrl.envs.games.matrix import make_matrix

        return make_matrix(config, num_envs, seed, group, groups)
    if scheme == "pettingzoo":
        from jsrl.envs.adapters.pettingzoo import make_pettingzoo

        return make_pettingzoo(config, num_envs, seed, group, groups)
    if scheme == "lbf":
        from jsrl.envs.adapters.lbf import make_lbf

        return make_lbf(config, num_envs, seed, group, groups)
    if scheme == "openspiel":
        from jsrl.envs.adapters.openspiel import make_openspiel

        return make_openspiel(config, num_envs, seed, group, groups)
    raise ConfigError(f"environments {scheme}:... are not known")


def import_suite(config: EnvConfig) -> None:
    """Import what `make_by_scheme` will need, and make nothing: for a process that is going to fork.

    Raises:
      ConfigError, MissingExtra: something cannot be imported.
    """
    scheme = config.id.partition(":")[0]
    if scheme == "pettingzoo":
        from jsrl.envs.adapters.pettingzoo import find_factory

        find_factory(config.id, config.kwargs.get("api"))
    elif scheme == "lbf":
        from jsrl.envs.adapters.lbf import import_lbf

        import_lbf(config)
    elif scheme == "openspiel":
        from jsrl.envs.adapters.openspiel import import_openspiel

        import_openspiel(config)
    elif scheme == "particle":
        import_module("jsrl.envs.particle.game")
    elif scheme == "matrix":
        import_module("jsrl.envs.games.matrix")
