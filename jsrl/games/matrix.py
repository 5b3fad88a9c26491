"""Games given by payoff arrays: one-shot, repeated, or of a few stages; ids `matrix:NAME`.

| name | players | purpose |
|---|---|---|
| biased_rps | 2, zero-sum | the only Nash equilibrium is (1/4, 1/2, 1/4), not the uniform policy |
| rps | 2, zero-sum | rock, paper, scissors |
| climbing | 2, a team | the best joint action (11) lies beside the worst (-30) |
| penalty | 2, a team | two best joint actions (10), a penalty `k` (-100) where the players disagree on which |
| two_step | 2, a team | the first player chooses between a sure 7 and a game with 8: sums of utilities learn 7 |
| payoffs | kwargs `payoffs` | your own: [N, A_1, ..., A_N], or [A_1, A_2] for two players that earn the same |

kwargs: `rounds`: how often a one-stage game is played in an episode (1); more than one round is a time limit, so the
episode is truncated. `see_last`: the players see the last joint action, one-hot, besides the stage.
Source: climbing and penalty: Claus and Boutilier 1998; two_step: Rashid et al. 2018 (1803.11485), section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jsrl.envs.base import GameStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.games.rows import VectorisedGame
from jsrl.errors import ConfigError
from jsrl.references.importing import nearest
from jsrl.types import Array, ArraySpec, Discrete, GameSpec, Seat

END = -1
RPS = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]
BIASED_RPS = [[0, -1, 2], [1, 0, -1], [-2, 1, 0]]
CLIMBING = [[11, -30, 0], [-30, 7, 0], [0, 6, 5]]
NAMES = ("biased_rps", "rps", "climbing", "penalty", "two_step", "payoffs")


class MatrixGame(VectorisedGame):
    """B copies of a game with stages.

    Args:
      payoffs: [S, N, A_1, ..., A_N]: payoff of each player in each stage. following: int [S, A_1, ..., A_N]: the next
        stage, END: the episode terminates. rounds: env steps after which it is truncated, None: no limit.
    """

    def __init__(
        self,
        config: EnvConfig,
        payoffs: np.ndarray,
        following: np.ndarray,
        num_envs: int,
        seed: int | tuple[int, ...] = 0,
        group: int = 0,
        groups: Mapping[str, tuple[str, ...]] | None = None,
        *,
        rounds: int | None = None,
        see_last: bool = False,
    ):
        self._rounds, self._see_last = rounds, see_last
        stages, players, *actions = payoffs.shape
        self._actions = tuple(actions)
        self._payoffs = np.moveaxis(payoffs.reshape(stages, players, -1), 1, 2).astype(np.float32)
        self._following = following.reshape(stages, -1)
        team = all(np.array_equal(payoffs[:, 0], payoffs[:, i]) for i in range(players))
        exchangeable = stages == 1 and players == 2 and np.array_equal(payoffs[0, 1], payoffs[0, 0].T)
        opposed = players == 2 and np.ptp(payoffs.sum(axis=1)) == 0.0
        size = stages + (sum(actions) if see_last else 0)
        seats = tuple(
            Seat(f"player_{i}", ArraySpec((size,), "float32"), Discrete(count), "team" if team else "")
            for i, count in enumerate(actions)
        )
        state = ArraySpec((size,), "float32")
        spec = GameSpec(seats, config.id, state, symmetric=exchangeable, zero_sum=bool(opposed))
        super().__init__(spec, config, num_envs, seed, group, groups)
        self._starts = np.concatenate([[0], np.cumsum(actions)[:-1]]) + stages
        self._stage, self._clock = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._shape = (num_envs, players)

    def reset(self) -> GameStep:
        self._stage[:], self._clock[:] = 0, 0
        seen = self._seen(None, np.ones(self.num_envs, bool))
        return self._rows.opened(self._groups.stacked([seen] * self._shape[1]), state=seen)

    def step(self, action: Mapping[str, Array]) -> GameStep:
        first = self._rows.first
        chosen = np.stack(self._groups.actions(action), axis=1).astype(np.int64)
        chosen[first] = 0
        self._check_actions(chosen, np.array(self._actions))
        joint = np.ravel_multi_index(tuple(chosen.T), self._actions)
        reward, following = self._payoffs[self._stage, joint], self._following[self._stage, joint]
        terminated = (following == END) & ~first
        self._stage = np.where(first | terminated, 0, following)
        self._clock = np.where(first, 0, self._clock + 1)
        late = self._clock >= (self._rounds or np.inf)
        seen = self._seen(chosen, first)
        return self._rows.step(
            self._groups.stacked([seen] * self._shape[1]),
            reward,
            np.broadcast_to(terminated[:, None], self._shape),
            np.broadcast_to((late & ~terminated)[:, None], self._shape),
            state=seen,
        )

    def _seen(self, chosen: np.ndarray | None, first: np.ndarray) -> np.ndarray:
        """Return the observation of all players, [B, ...]: the stage, and with `see_last` the last joint action [B, N]."""
        seen = np.zeros((self.num_envs, self.spec.seats[0].observation.shape[0]), np.float32)
        seen[np.arange(self.num_envs), self._stage] = 1.0
        if self._see_last and chosen is not None:
            slots = np.flatnonzero(~first)
            seen[slots[:, None], self._starts + chosen[slots]] = 1.0
        return seen


def matrix(config: EnvConfig) -> Callable[..., MatrixGame]:
    """Return the maker of the game that an id names."""
    name, kwargs = config.id.partition(":")[2], dict(config.kwargs)
    if name not in NAMES:
        raise ConfigError(f"there is no matrix game {name!r}{nearest(name, NAMES)}; games: {', '.join(NAMES)}")
    rounds, see_last = kwargs.pop("rounds", 1), kwargs.pop("see_last", False)
    wanted = {"payoffs": {"payoffs"}, "penalty": {"k"}}.get(name, set[str]())
    if unknown := sorted(set(kwargs) - wanted):
        raise ConfigError(
            f"matrix game {name!r} does not take {', '.join(unknown)}; it takes rounds, see_last"
            + "".join(f", {key}" for key in sorted(wanted))
        )
    if rounds < 1 or (rounds > 1 and name == "two_step"):
        raise ConfigError(
            f"matrix game {name!r} was given rounds={rounds}; give at least 1, and exactly 1 for two_step"
        )
    payoffs, following = _two_step() if name == "two_step" else _one_stage(name, kwargs, rounds)
    limit = rounds if rounds > 1 else None
    return partial(MatrixGame, config, payoffs, following, rounds=limit, see_last=see_last)


def _one_stage(name: str, kwargs: Mapping[str, Any], rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return payoffs [1, N, A_1, ..., A_N] and the next stages, [1, A_1, ..., A_N]."""
    if name in ("rps", "biased_rps"):
        first = np.array(RPS if name == "rps" else BIASED_RPS, float)
        payoffs = np.stack([first, -first])
    elif name == "payoffs":
        payoffs = _own_payoffs(kwargs.get("payoffs"))
    else:
        k = float(kwargs.get("k", -100.0))
        payoffs = _shared(CLIMBING if name == "climbing" else [[k, 0, 10], [0, 2, 0], [10, 0, k]])
    return payoffs[None], np.full((1, *payoffs.shape[1:]), END if rounds == 1 else 0)


def _own_payoffs(given: Any) -> np.ndarray:
    try:
        payoffs = np.array(given, float)
    except (TypeError, ValueError):
        payoffs = np.array(0.0)
    if payoffs.ndim and not np.isfinite(payoffs).all():
        raise ConfigError(f"matrix:payoffs was given payoffs {given}; give finite numbers")
    players = payoffs.ndim - 1
    if players >= 2 and len(payoffs) == players and payoffs.size:
        return payoffs
    if players == 1 and payoffs.size:
        return _shared(payoffs)
    raise ConfigError(
        f"matrix:payoffs was given payoffs of shape {list(payoffs.shape)}; expected [N, A_1, ..., A_N] for N players, or "
        "[A_1, A_2] for two players with equal payoffs"
    )


def _shared(payoff: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return [N, A_1, ..., A_N] for a payoff [A_1, ..., A_N] that all players get."""
    array = np.array(payoff, float)
    return np.repeat(array[None], array.ndim, axis=0)


def _two_step() -> tuple[np.ndarray, np.ndarray]:
    stages = [np.zeros((2, 2)), np.full((2, 2), 7.0), np.array([[0.0, 1.0], [1.0, 8.0]])]
    following = np.full((3, 2, 2), END)
    following[0] = [[1, 1], [2, 2]]
    return np.stack([_shared(stage) for stage in stages]), following
