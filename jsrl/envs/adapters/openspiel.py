"""OpenSpiel's games: ids `openspiel:kuhn_poker`, `openspiel:goofspiel(num_cards=4,imp_info=True)`; kwargs are game parameters.

Players move in turn, or all at once in simultaneous games; chance is drawn by a generator of the slot's seed and takes no
row. A game that draws by itself has a parameter `rng_seed`, which is the slot's seed unless kwargs set it. A player sees its
information state (all it knows of the past) if the game has one, else its observation; kwargs `tensor: information` or
`observation` choose one. Both are flat, with an action mask. Rewards are what a move adds to each player's return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from jsrl.envs.config import EnvConfig
from jsrl.envs.games.loop import SyncVectorGame
from jsrl.envs.games.played import EnvState, SeatSpaces
from jsrl.envs.spaces import MASK_KEY
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.extras import import_extra
from jsrl.references.importing import nearest

TENSORS = ("information", "observation")


def openspiel(config: EnvConfig) -> Callable[..., SyncVectorGame]:
    """Return the maker of the game that an id names."""
    spiel, kwargs = import_extra("pyspiel", "openspiel", f"environment {config.id!r}"), dict(config.kwargs)
    asked, name = kwargs.pop("tensor", None), config.id.partition(":")[2]
    known = spiel.registered_names()
    if name.partition("(")[0] not in known:
        raise ConfigError(f"OpenSpiel has no game {name!r}{nearest(name, known)}")
    try:
        game = spiel.load_game(name, kwargs) if kwargs else spiel.load_game(name)
    except spiel.SpielError as error:
        raise ConfigError(f"OpenSpiel could not load {name!r} with {kwargs}: {error}. Check env.kwargs") from error
    kind, has = game.get_type(), {}
    has["information"], has["observation"] = kind.provides_information_state_tensor, kind.provides_observation_tensor
    tensor: str = asked or next((which for which in TENSORS if has[which]), "")
    if not has.get(tensor, False) or kind.dynamics == spiel.GameType.Dynamics.MEAN_FIELD:
        raise ConfigError(
            f"OpenSpiel's {name!r} was asked for the tensor {tensor!r}; of {' and '.join(TENSORS)} it has "
            f"{[which for which in TENSORS if has[which]]}: set env.kwargs `tensor`. Mean-field games are not supported"
        )
    own_seed = "rng_seed" in kwargs or "rng_seed=" in name
    return partial(SyncVectorGame, partial(SpielGame, spiel, game, tensor, own_seed), config)


class SpielGame:
    """One game and its state.

    Args:
      own_seed: keep the parameter `rng_seed` of a game that draws by itself; else the slot's seed replaces it.
    """

    symmetric = False  # first moves or deals differ
    state_space: spaces.Space | None = None

    def __init__(self, spiel: Any, game: Any, tensor: str, own_seed: bool = False):
        self._game, self._information = game, tensor == "information"
        kind = game.get_type()
        draws = "rng_seed" in kind.parameter_specification and not own_seed
        self._load = partial(spiel.load_game, kind.short_name) if draws else None
        size = game.information_state_tensor_size() if self._information else game.observation_tensor_size()
        seen = spaces.Dict(
            {
                "observation": spaces.Box(-np.inf, np.inf, (size,), np.float32),
                MASK_KEY: spaces.Box(0, 1, (game.num_distinct_actions(),), np.int8),
            }
        )
        self._num_actions = game.num_distinct_actions()
        action = spaces.Discrete(self._num_actions)
        utilities, utility = spiel.GameType.Utility, kind.utility
        self.zero_sum = utility in (utilities.ZERO_SUM, utilities.CONSTANT_SUM)
        side = "team" if utility == utilities.IDENTICAL else ""
        self._names = tuple(f"player_{i}" for i in range(game.num_players()))
        self.seats = tuple(SeatSpaces(name, seen, action, side) for name in self._names)
        self._rng = np.random.default_rng()

    def reset(self, seed: int | None) -> EnvState:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            if self._load is not None:
                self._game = self._load({**self._game.get_parameters(), "rng_seed": seed})
        self._state = self._game.new_initial_state()
        self._draw()
        self._returns = np.zeros(len(self._names))
        return self._moment(self._legal())

    def step(self, action: Mapping[str, Any]) -> EnvState:
        """Make the moves of all players in turn, and draw chance until a player must move."""
        legal = self._legal()
        moves = [int(action.get(name, 0)) for name in self._names]
        for player, allowed in legal.items():
            if moves[player] not in allowed:
                raise EnvironmentFault(f"was given action {moves[player]} by player_{player}; legal are {allowed}")
        if self._state.is_simultaneous_node():
            self._state.apply_actions(moves)
        else:
            self._state.apply_action(moves[self._state.current_player()])
        self._draw()
        over, before = self._state.is_terminal(), self._returns
        self._returns = np.array(self._state.returns())
        moment = self._moment(self._legal() or legal)
        moment.reward = dict(zip(self._names, (self._returns - before).tolist(), strict=True))
        moment.terminated = self._names if over else ()
        return moment

    def _draw(self) -> None:
        while self._state.is_chance_node():
            outcomes, chances = zip(*self._state.chance_outcomes(), strict=True)
            share = np.array(chances)
            self._state.apply_action(int(self._rng.choice(outcomes, p=share / share.sum())))

    def _legal(self) -> dict[int, list[int]]:
        """Return player -> its legal actions, for the players in turn."""
        if self._state.is_terminal():
            return {}
        if not self._state.is_simultaneous_node():
            return {self._state.current_player(): self._state.legal_actions()}
        moves = {player: self._state.legal_actions(player) for player in range(len(self._names))}
        return {player: allowed for player, allowed in moves.items() if allowed}

    def _moment(self, legal: Mapping[int, list[int]]) -> EnvState:
        look = self._state.information_state_tensor if self._information else self._state.observation_tensor
        seen = {}
        for player, name in enumerate(self._names):
            mask = np.zeros(self._num_actions, np.int8)
            if player in legal:
                mask[legal[player]] = 1
            seen[name] = {"observation": np.array(look(player), np.float32), MASK_KEY: mask}
        return EnvState(seen, [self._names[player] for player in legal])

    def close(self) -> None:
        """Do nothing: it holds no resources."""
