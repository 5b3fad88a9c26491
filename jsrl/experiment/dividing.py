"""One agent for an environment whose seats differ: a policy for each group of equal seats."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from jsrl.experiment.experiment import Experiment
from jsrl.experiment.policies import PolicyConfig
from jsrl.fields import AUTO
from jsrl.types import EnvSpec, GameSpec, Seat


def divided(
    experiment: Experiment, spec: EnvSpec | GameSpec, taken: Collection[str] = ()
) -> tuple[Experiment, str | None]:
    """Return an experiment with a policy for each group of equal seats, and a message; unchanged if all seats are equal.

    Args:
      taken: names that no policy may have.
    """
    groups = alike_seats(spec.seats, taken) if isinstance(spec, GameSpec) else {}
    if len(groups) < 2:
        return experiment, None
    e = experiment
    policies = {name: PolicyConfig(e.agent, seats=seats, replay=e.replay) for name, seats in groups.items()}
    listing = "; ".join(f"{name} plays {', '.join(seats)}" for name, seats in groups.items())
    line = f"the seats of {spec.name!r} differ, so there are {len(groups)} policies with the same options: {listing}"
    return dataclasses.replace(e, agent=None, replay=AUTO, policies=policies), line


def alike_seats(seats: tuple[Seat, ...], taken: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return name -> the names of seats with equal observations and actions, in the order of their first seats.

    A group is named after the common start of its seats' names: `adversary` for adversary_0 and adversary_1. Where that is
    no name for a policy, or `taken`, it is called by its number.
    """
    groups: list[list[Seat]] = []
    for seat in seats:
        alike = [own for own in groups if (own[0].observation, own[0].action) == (seat.observation, seat.action)]
        if alike:
            alike[0].append(seat)
        else:
            groups.append([seat])
    found: dict[str, tuple[str, ...]] = {}
    for number, group in enumerate(groups):
        names = tuple(seat.name for seat in group)
        length = next((n for n, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), None)
        common = re.sub(r"[^a-z0-9]+", "_", names[0][:length].lower())
        common = re.sub(r"[_0-9]+$", "", common)
        usable = re.match(r"[a-z]", common) and common not in (*found, *taken)
        name = common if usable else f"policy_{number}"
        found[name] = names
    return found
