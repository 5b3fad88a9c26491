"""Which policies can play the sides of an environment: every assignment of a director is checked against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jsrl.directors.messages import Assignment
from jsrl.errors import ConfigError
from jsrl.types import EnvSpec, GameSpec


@dataclass(frozen=True)
class Sides:
    """The sides of an environment.

    Attributes:
      environment: its name. seats: names of the seats of each side; none with one agent.
      policies: that can play all seats of each side.
    """

    environment: str
    seats: tuple[tuple[str, ...], ...]
    policies: tuple[tuple[str, ...], ...]

    def check(self, one: Assignment) -> None:
        if sorted(one.sides) != list(range(len(self.policies))):
            raise ConfigError(
                f"the director assigns players to {len(one.sides)} sides, but environment {self.environment!r} has "
                f"{len(self.policies)}; set the director's sides (num_sides, or one policy for each), or give the seats of a "
                "team one side."
            )
        if one.greedy:
            raise ConfigError(
                "the director requests greedy games, which actors do not play; evaluate the players instead."
            )
        for player, side in zip(one.players, one.sides, strict=True):
            if player.policy not in self.policies[side]:
                raise ConfigError(
                    f"the director lets {player.policy!r} play side {side} ({', '.join(self.seats[side])}), whose seats it "
                    f"does not all have; policies that have: {', '.join(self.policies[side]) or 'none'}. See "
                    f"policies.{player.policy}.seats."
                )


def sides_of(spec: EnvSpec | GameSpec, seats: Mapping[str, Mapping[str, int]]) -> Sides:
    """Return the sides of an environment; seats: policy -> its seats: name -> place."""
    if not isinstance(spec, GameSpec):
        return Sides(spec.name, ((),), (tuple(sorted(seats)),))
    names, policies = [], []
    for side in range(max(spec.sides) + 1):
        places = [place for place, number in enumerate(spec.sides) if number == side]
        names.append(tuple(spec.names[place] for place in places))
        policies.append(tuple(sorted(policy for policy, own in seats.items() if set(places) <= set(own.values()))))
    return Sides(spec.name, tuple(names), tuple(policies))
