"""Suggestions for wrong names of config fields."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Collection
from typing import Any, TypeVar

T = TypeVar("T")

# Names that users of other libraries try first.
ELSEWHERE = {
    "n-steps": "rollout-length",
    "num-steps": "rollout-length",
    "n-envs": "num-envs",
    "nenvs": "num-envs",
    "total-timesteps": "total-env-steps",
    "timesteps": "total-env-steps",
    "road": "transport",
    "lr": "agent.learning-rate",
    "learning-rate": "agent.learning-rate",
    "ent-coef": "agent.entropy-coef",
    "vf-coef": "agent.value-coef",
    "gae-lambda": "agent.gae-lambda",
    "gamma": "agent.gamma",
    "clip-range": "agent.clip-ratio",
    "clip-coef": "agent.clip-ratio",
    "n-epochs": "agent.num-epochs",
    "update-epochs": "agent.num-epochs",
    "num-minibatches": "agent.num-minibatches",
    "max-grad-norm": "agent.max-grad-norm",
    "target-kl": "agent.target-kl",
    "env-id": "env.id",
    "env": "env.id",
    "num-workers": "num-actors",
    "num-rollout-workers": "num-actors",
    "workers": "num-actors",
    "device": "learner.num-devices",
    "normalize": "agent.normalize-observations",
    "track": "wandb.enabled",
    "wandb-project-name": "wandb.project",
    "wandb-entity": "wandb.entity",
    "record-video": "video.enabled",
    "capture-video": "video.enabled",
    "video": "video.enabled",
    "recorder": "video.enabled",
} | {
    f"recorder.{name}": f"video.{name}"
    for name in [
        "enabled",
        "period-env-steps",
        "episodes",
        "final",
        "keep-newest",
        "fps",
        "max-seconds",
        "niceness",
        "env",
    ]
}


def suggesting(cls: type[T]) -> type[T]:
    """Let the error of a config class about an unknown field name the right one. Write it above `@dataclass`."""
    make = cls.__init__
    names = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs.keys() - names:
            raise TypeError(f"{cls.__name__} has no field {name!r}; {suggestion(name, names)}")
        make(self, *args, **kwargs)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


def suggestion(name: str, names: Collection[str]) -> str:
    """Return which of a class's fields may be meant, as text."""
    usual = ELSEWHERE.get(name.replace("_", "-"), "").replace("-", "_")
    first, _, last = usual.rpartition(".")
    found = [usual] if first in names or usual in names else [last] if last in names else []
    near = found or difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"it has: {', '.join(names)}."
