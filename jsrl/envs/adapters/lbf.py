"""Level-based foraging: ids `lbf:Foraging-8x8-2p-2f-coop-v3`, the names registered by lbforaging.

All agents act at once, and an episode ends for all of them. lbforaging reports its limit of 50 steps as a termination; here it
is a truncation, as long as food is left. Runs with one seed are equal, unlike some of lbforaging's own (`_hashed_by`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium import spaces

from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import unfit
from jsrl.envs.games.loop import SyncVectorGame
from jsrl.envs.games.played import EnvState, SeatSpaces
from jsrl.errors import ConfigError
from jsrl.extras import import_extra
from jsrl.references.importing import nearest


def lbf(config: EnvConfig) -> Callable[..., SyncVectorGame]:
    """Return the maker of the game that an id names."""
    import_extra("lbforaging", "games", f"environment {config.id!r}")
    name = config.id.partition(":")[2]
    if name not in gymnasium.registry:
        known = [other for other in gymnasium.registry if other.startswith("Foraging")]
        raise ConfigError(
            f"lbforaging registers no environment {name!r}{nearest(name, known)}; an id is like "
            "lbf:Foraging-8x8-2p-2f-coop-v3 (size, players, food; at most 4 foods)"
        )
    return partial(SyncVectorGame, partial(Foraging, config, name), config)


class Foraging:
    """One foraging environment; its agents are a team, although each is rewarded only for the food it helped to lift."""

    symmetric = True  # every agent's level is drawn in every episode
    state_space: spaces.Space | None = None

    def __init__(self, config: EnvConfig, name: str):
        try:
            env: Any = gymnasium.make(name, disable_env_checker=True, **config.kwargs).unwrapped
        except (TypeError, gymnasium.error.Error) as error:
            raise unfit(config.id, config.kwargs, error) from error
        for place, player in enumerate(env.players):
            player.__class__ = _hashed_by(place, type(player))
        self._env, pairs = env, enumerate(zip(env.observation_space, env.action_space, strict=True))
        self.seats = tuple(SeatSpaces(f"agent_{i}", seen, acted, "team") for i, (seen, acted) in pairs)
        self._names = tuple(seat.name for seat in self.seats)

    def reset(self, seed: int | None) -> EnvState:
        observed, _ = self._env.reset(seed=seed)
        return EnvState(dict(zip(self._names, observed, strict=True)), self._names)

    def step(self, action: Mapping[str, Any]) -> EnvState:
        observed, reward, over, cut, _ = self._env.step([action[name] for name in self._names])
        late = bool(cut) or (bool(over) and bool(self._env.field.any()))
        return EnvState(
            dict(zip(self._names, observed, strict=True)),
            self._names,
            dict(zip(self._names, map(float, reward), strict=True)),
            self._names if over and not late else (),
            self._names if late else (),
        )

    def close(self) -> None:
        self._env.close()


def _hashed_by(place: int, base: type) -> type:
    """Return an agent's class whose hash is its place.

    lbforaging iterates over a set of agents when they lift food. With hashes from memory addresses, the order of that
    iteration, and so who lifts what, would differ between two runs with one seed.
    """
    return type(base.__name__, (base,), {"__hash__": lambda _: place})
