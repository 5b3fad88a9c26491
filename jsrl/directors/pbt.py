"""Population-based training: bad members copy good ones, and vary their hyperparameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jsrl import fields
from jsrl.directors import in_order
from jsrl.directors.base import Bookkeeping, State, check_policies, of_players, players_of
from jsrl.directors.draws import Draws
from jsrl.directors.messages import Assignment, Command, Copy, Outcome, Player
from jsrl.directors.pools import points_of
from jsrl.errors import ConfigError
from jsrl.fields import PositiveInt, UnitFloat, option, suggesting

HalfFloat = Annotated[float, fields.Range(ge=0, le=0.5)]


@suggesting
@dataclass(frozen=True)
class Range:
    """The range of a hyperparameter."""

    # fmt: off
    low: float = option(help="Least value.")
    high: float = option(help="Greatest value.")
    log: bool = option(True, "Draw it uniformly in its logarithm; false: uniformly in its value.")
    whole: bool = option(False, "It is an integer.")
    # fmt: on

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf or (self.log and self.low <= 0.0):
            raise ConfigError(
                f"a range from {self.low:g} to {self.high:g} with log={self.log}; give finite numbers, low <= high, and "
                "log=False where low is not positive"
            )

    def draw(self, draws: Draws) -> float:
        share = draws.uniform()
        if self.log:
            return self.clip(math.exp(math.log(self.low) + share * math.log(self.high / self.low)))
        return self.clip(self.low + share * (self.high - self.low))

    def clip(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return min(max(round(value), math.ceil(self.low)), math.floor(self.high)) if self.whole else value


@suggesting
@dataclass(frozen=True)
class PBT(Bookkeeping):
    """Truncation selection: a member of the worst share copies one of the best share, and explores from there.

    A member's score is its mean over its last `window` games, in the order of their assignment: of its return, or
    of its points if members play each other. Every `ready_env_steps` a member records its score and compares it with the last
    recorded scores of the others, once half of them have one. `Copy` carries its new hyperparameters; then it needs a
    whole window of new games, and its earlier games do not count. Each share has at least one member,
    even in a small population. All members have about the same number of open games, so that each trains on as many rows
    even if the games of a good one are longer.

    Source: Jaderberg et al. (2017), section 4.1.1, "truncation selection"; Jaderberg et al. (2019) for members that play
    each other.
    """

    # fmt: off
    policies: tuple[str, ...] = option(help="The members; at least 2.")
    hyperparameters: dict[str, Range] = option(help="Hyperparameters that differ between members; first values are "
        "drawn from these ranges.", factory=dict)
    opponents: Literal["none", "population"] = option("none", "none: each member plays alone. population: against "
        "another member, drawn uniformly; both learn.")
    ready_env_steps: PositiveInt = option(1_000_000, "Env steps of a member's games between two comparisons (1e6 to "
        "1e7 in the paper).")
    window: PositiveInt = option(20, "Games in a score. A member with fewer is not compared.")
    worst_share: HalfFloat = option(0.2, "Share of members that copy.")
    best_share: HalfFloat = option(0.2, "Share of members that are copied.")
    resample: UnitFloat = option(0.25, "Probability that a hyperparameter is drawn again; otherwise it is multiplied "
        "by one of `factors`.")
    factors: tuple[float, ...] = option((0.8, 1.2), "Factors of hyperparameters, all equally likely.")
    # fmt: on

    def __post_init__(self) -> None:
        check_policies(self, self.policies, at_least=2)
        if not self.factors or min(self.factors) <= 0.0:
            raise ConfigError(f"PBT has factors={self.factors}; give at least one, all positive")

    def init(self, seed: int) -> State:
        """Return the state before the first assignment, with each member's first hyperparameters."""
        state = super().init(seed)
        draws = Draws(state)
        for policy in self.policies:
            first = {name: allowed.draw(draws) for name, allowed in self.hyperparameters.items()}
            member = {"hyperparameters": first, "noted": None, "life": 0, **_new_record()}
            state["members"][policy] = member
        return state

    def _start(self) -> State:
        return {"members": {}}

    def hyperparameters_of(self, state: State, policy: str) -> dict[str, float]:
        return dict(state["members"][policy]["hyperparameters"])

    def score(self, state: State, policy: str) -> float | None:
        """Return a member's current score, None: it has too few games."""
        scores = state["members"][policy]["scores"]
        return sum(scores) / len(scores) if len(scores) >= self.window else None

    def figures(self, state: State) -> dict[str, float]:
        """Return the figures for displays: copies so far, and the scores of the best and the worst member."""
        scores = [score for policy in self.policies if (score := self.score(state, policy)) is not None]
        found = {"copies": float(sum(member["life"] for member in state["members"].values()))}
        return found | ({"score_best": max(scores), "score_worst": min(scores)} if scores else {})

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        index = self._least_open(state, cache)
        players = [Player(self.policies[index])]
        if self.opponents == "population":
            other = (index + 1 + draws.below(len(self.policies) - 1)) % len(self.policies)
            players.append(Player(self.policies[other]))
        members = [state["members"][player.policy] for player in players]
        sides, lives = draws.permutation(len(players)), [member["life"] for member in members]
        game = self._assign(state, draws, players, [True] * len(players), sides, lives=lives)
        cache["open"].update(map(str, players))
        for member in members:
            in_order.assign(member["queue"], game.id)
        return game

    def _least_open(self, state: State, cache: dict[Any, Any]) -> int:
        """Return the member with the fewest open games; of several, the next one in turn."""
        if "open" not in cache:
            cache["open"] = Counter(text for record in state["open"].values() for text in record["players"])
        count, turn = len(self.policies), state["assigned"] % len(self.policies)
        names = [str(Player(policy)) for policy in self.policies]
        return min(range(count), key=lambda i: (cache["open"][names[i]], (i - turn) % count))

    def _ended(self, state: State, record: State, outcome: Outcome) -> Iterator[Command]:
        scores = self._scores(record, outcome)
        for player, life, score in zip(players_of(record), record["lives"], scores, strict=True):
            member = state["members"][player.policy]
            if life != member["life"]:
                continue
            counted = in_order.end(member["queue"], outcome.assignment, score)
            member["scores"] = [*member["scores"], *counted][-self.window :]
            member["env_steps"] += 0 if outcome.discarded else outcome.length
            present = self.score(state, player.policy)
            if member["env_steps"] >= self.ready_env_steps and present is not None:
                member.update(env_steps=0, noted=present)
                yield from self._compare(state, Draws(state), player.policy)

    def _scores(self, record: State, outcome: Outcome) -> list[float] | list[None]:
        """Return each player's score in an outcome; None: it has none."""
        if outcome.discarded:
            return [None] * len(record["players"])
        if self.opponents == "none":
            return of_players(record, outcome.returns)
        points = points_of(self, record, outcome)
        assert points is not None
        return [points, 1.0 - points]

    def _compare(self, state: State, draws: Draws, policy: str) -> Iterator[Command]:
        """Let a member of the worst share copy one of the best share that has a better score."""
        noted = {name: member["noted"] for name, member in state["members"].items()}
        scores = {name: score for name, score in noted.items() if score is not None}
        if len(scores) < max(2, len(self.policies) / 2):
            return
        ranked = sorted(scores, key=scores.__getitem__)
        worst = ranked[: max(1, int(self.worst_share * len(ranked)))]
        best = ranked[-max(1, int(self.best_share * len(ranked))) :]
        source = best[draws.below(len(best))]
        if policy not in worst or scores[source] == scores[policy]:
            return
        member = state["members"][policy]
        found = self._explore(draws, state["members"][source]["hyperparameters"])
        member.update(hyperparameters=found, life=member["life"] + 1, **_new_record())
        yield Copy(policy, source, dict(found))

    def _explore(self, draws: Draws, parent: dict[str, float]) -> dict[str, float]:
        found = {}
        for name, allowed in self.hyperparameters.items():
            if draws.uniform() < self.resample:
                found[name] = allowed.draw(draws)
            else:
                found[name] = allowed.clip(parent[name] * self.factors[draws.below(len(self.factors))])
        return found


def _new_record() -> State:
    """Return the record of a member's games before the first one."""
    return {"env_steps": 0, "scores": [], "queue": []}
