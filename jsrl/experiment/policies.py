"""Which policy plays which seats of an environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jsrl.envs.seats import seats_named
from jsrl.errors import ConfigError
from jsrl.experiment.settings import ReplayConfig, Trained
from jsrl.fields import AUTO, Range, option, suggesting
from jsrl.types import EnvSpec, GameSpec

if TYPE_CHECKING:
    from jsrl.experiment import Experiment

SEED_STRIDE = 104_729  # distance of the seeds of policies in the same environments
Seed = Annotated[int, Range(ge=0, le=2**32 - 1)]  # the 32 bits that JAX uses
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@suggesting
@dataclass(frozen=True)
class PolicyConfig(Trained):
    """One of several policies that are trained in the same environments."""

    # fmt: off
    agent: Any = option(help="A config such as PPOConfig, or an AgentReference.", has_options=True)
    seats: str | tuple[str, ...] = option("*", "Its seats: names or patterns such as seeker_*.")
    seed: Seed | None = option(None, "Seed of its initial params, acting and updates; None: derived from the "
        "experiment's, different for each policy.")
    against: tuple[str, ...] = option((), "Opponents for its evaluation; its score is then a win rate; none: those of "
        "evaluator.against.")
    placement: Literal["as-run", "inline", "served"] = option("as-run", "Where it acts: in the actors (inline) or in "
        "inference servers (served), in runs with several processes.")
    stop_at_return: float | None = option(None, "The score that is the goal of this policy; None: the run's "
        "stop_at_return. The run stops when all goals are reached.")
    replay: ReplayConfig | Literal["auto"] | None = option(AUTO, "Its replay; auto: what its agent usually has, none: "
        "fresh trajectories.", decided="buffer")
    # fmt: on

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the names or patterns of its seats."""
        return (self.seats,) if isinstance(self.seats, str) else tuple(self.seats)


def opponents_of(experiment: Experiment, policy: str) -> tuple[str, ...]:
    """Return the opponents in the evaluation of a policy; none: its score is a mean return."""
    config = experiment.policies.get(policy)
    return (config.against if config is not None else ()) or experiment.evaluator.against


def all_opponents(experiment: Experiment) -> list[str]:
    """Return the opponents of all policies, each once."""
    return list(dict.fromkeys(name for one in ("", *experiment.policies) for name in opponents_of(experiment, one)))


def seed_of(policy: PolicyConfig, number: int, seed: int) -> int:
    return seed + SEED_STRIDE * number if policy.seed is None else policy.seed


def check_policies(experiment: Experiment) -> None:
    """Refuse invalid names and agents of policies, and equal seeds."""
    policies = experiment.policies
    if policies and experiment.agent is not None:
        raise ConfigError(
            f"the experiment has an agent ({type(experiment.agent).__name__}) beside its policies {', '.join(policies)}; "
            "leave it out, or give it to the policy that it is for: policies={NAME: PolicyConfig(agent, seats=...)}."
        )
    for name, policy in policies.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"a policy is called {name!r}; use lower-case letters, digits and underscores, a letter first."
            )
        if not isinstance(policy, PolicyConfig):
            raise ConfigError(f"the policy {name} is {policy!r}; give a PolicyConfig(agent, seats=...).")
    owner: dict[int, str] = {}
    for number, (name, policy) in enumerate(policies.items()):
        own = seed_of(policy, number, experiment.seed)
        if (other := owner.setdefault(own, name)) != name:
            raise ConfigError(
                f"the policies {other} and {name} have the same seed, {own}, so they would begin with the same params and "
                f"sample the same noise; set policies.{name}.seed to another number, or leave it out: it is then derived."
            )


def find_seats(
    policies: Mapping[str, PolicyConfig], spec: EnvSpec | GameSpec, *, shared: bool
) -> dict[str, dict[str, int]]:
    """Return policy -> its seats: name -> place in the order of all; {} for an environment without seats.

    Args:
      policies: of the experiment; {}: one policy plays all seats; its name here is "".
      shared: several policies may have the same seats, all of them or none: a director chooses which one plays.
    """
    if not isinstance(spec, GameSpec):
        if len(policies) > 1 and not shared:
            raise ConfigError(
                f"environment {spec.name!r} has one agent, but there are {len(policies)} policies ({', '.join(policies)}); "
                "let a director choose which of them plays (docs/populations.md), or use an environment with several seats. "
                "To train two policies on environments of their own, see with_policy in docs/dataflow.md."
            )
        return {name: {} for name in policies or ("",)}
    names = spec.names
    if not policies:
        return {"": {name: place for place, name in enumerate(names)}}
    found: dict[str, dict[str, int]] = {}
    owner: dict[str, str] = {}
    for policy, config in policies.items():
        mine = _matching(policy, config.patterns, spec)
        found[policy] = {name: place for place, name in enumerate(names) if name in mine}
        for name in found[policy]:
            other = owner.setdefault(name, policy)
            if other != policy and not (shared and found[other] == found[policy]):
                raise ConfigError(
                    f"the seat {name} of {spec.name!r} is played by both {other} and {policy}; give it to one"
                    + (
                        ", or both the same seats."
                        if shared
                        else ", or let a director choose who plays (docs/populations.md)."
                    )
                )
    if free := [name for name in names if name not in owner]:
        raise ConfigError(
            f"no policy plays seats {', '.join(free)} of {spec.name!r}; add them to the seats of a policy, or give them one."
        )
    return found


def check_team(policy: str, trained: Trained, seats: Mapping[str, int], spec: EnvSpec | GameSpec) -> None:
    """Refuse a policy that learns from the mean reward of its seats (`rewards` "team") if these are opposed.

    Args:
      policy: its name. trained: its agent. seats: name -> place.
    """
    if not isinstance(spec, GameSpec) or getattr(trained.agent, "rewards", "own") != "team":
        return
    own = [spec.seats[place] for place in seats.values()]
    sides = dict.fromkeys(seat.side or seat.name for seat in own)
    if len(sides) > 1 and (spec.zero_sum or len({seat.side for seat in own}) > 1):
        raise ConfigError(
            f"the policy {policy!r} plays the sides {' and '.join(sides)} of {spec.name!r}, but "
            f"{type(trained.agent).__name__} learns from the mean reward of its seats, in which one side's gain cancels the "
            "other's loss; give each side a policy of its own, policies={NAME: PolicyConfig(agent, seats=...)}, or use an "
            "agent that learns from own rewards, such as ppo."
        )


def _matching(policy: str, patterns: Sequence[str], spec: GameSpec) -> set[str]:
    mine: set[str] = set()
    for pattern in patterns:
        matching = seats_named(pattern, spec.names)
        if not matching:
            raise ConfigError(
                f"policies.{policy}.seats: {pattern!r} matches no seat of {spec.name!r}; it has: {', '.join(spec.names)}."
            )
        mine |= set(matching)
    return mine


def wants_scores(director: Any) -> bool:
    return bool(getattr(director, "wants_scores", False))


def explored_names(director: Any) -> tuple[str, ...]:
    """Return the hyperparameters that a director changes; most change none."""
    return tuple(getattr(director, "hyperparameters", ()))


def first_hyperparameters(director: Any, seed: int) -> dict[str, dict[str, float]]:
    """Return policy -> name -> first value of each explored hyperparameter, for policies that have some."""
    if not explored_names(director):
        return {}
    state = director.init(seed)
    return {policy: director.hyperparameters_of(state, policy) for policy in director.policies}
