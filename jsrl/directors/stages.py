"""A curriculum of consecutive stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from jsrl.directors import in_order
from jsrl.directors.base import SelfPlayTasks, State, of_players
from jsrl.directors.draws import Draws
from jsrl.directors.messages import Assignment, Command, Outcome, Stop
from jsrl.errors import ConfigError
from jsrl.fields import NonNegativeInt, PositiveInt, option, suggesting


@suggesting
@dataclass(frozen=True)
class Stage:
    """One stage of a curriculum, and the conditions to pass it. Without a condition it never ends."""

    # fmt: off
    name: str = option(help="Name for messages and metrics.")
    tasks: tuple[Any, ...] = option(help="JSON values for the environment's reset, all equally likely.")
    at_least: float | None = option(None, "Mean score over the newest `games` games, in the order of their "
        "assignment, at which it is passed.")
    games: PositiveInt = option(100, "Games in that mean.")
    max_env_steps: PositiveInt | None = option(None, "Env steps after which it is passed in any case.")
    # fmt: on

    @property
    def passes(self) -> bool:
        """Return whether it has a condition."""
        return self.at_least is not None or self.max_env_steps is not None


@suggesting
@dataclass(frozen=True)
class Stages(SelfPlayTasks):
    """A staged curriculum: the tasks of one stage, until its condition holds; then those of the next.

    Games assigned in an earlier stage do not count for the current one.
    """

    # fmt: off
    stages: tuple[Stage, ...] = option((), "The stages in their order.")
    score: Literal["return", "length"] = option("return", "The averaged value: the return of side `side`, or the "
        "length of the game in env steps.")
    side: NonNegativeInt = option(0, "The side whose return counts.")
    stop: bool = option(False, "End the run when the last stage is passed; false: continue with the last stage.")
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"Stages has the stages {names}; give at least one, each with a unique name")
        for number, stage in enumerate(self.stages):
            if not stage.tasks:
                raise ConfigError(
                    f"stage {stage.name!r} has no tasks; give at least one, None for the environment's own"
                )
            if not stage.passes and (number + 1 < len(self.stages) or self.stop):
                raise ConfigError(f"stage {stage.name!r} has no condition; give it at_least or max_env_steps")
        if self.side >= (sides := max(len(self.policies), self.num_sides)):
            raise ConfigError(f"Stages has side={self.side}, and there are {sides}; count them from 0")

    def _start(self) -> State:
        return {"stage": 0, "env_steps": 0, "scores": [], "queue": [], "passed": False}

    def stage(self, state: State) -> Stage:
        return self.stages[state["stage"]]

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        tasks = self.stage(state).tasks
        game = self._assign_task(state, draws, tasks[draws.below(len(tasks))], stage=state["stage"])
        in_order.assign(state["queue"], game.id)
        return game

    def _ended(self, state: State, record: State, outcome: Outcome) -> Iterator[Command]:
        stage = self.stage(state)
        if record["stage"] != state["stage"] or state["passed"]:
            return
        score = None
        if not outcome.discarded:
            score = outcome.length if self.score == "length" else of_players(record, outcome.returns)[self.side]
            state["env_steps"] += outcome.length
        counted = in_order.end(state["queue"], outcome.assignment, score)
        state["scores"] = [*state["scores"], *counted][-stage.games :]
        scores = state["scores"]
        reached = (
            stage.at_least is not None and len(scores) >= stage.games and sum(scores) / len(scores) >= stage.at_least
        )
        if not reached and (stage.max_env_steps is None or state["env_steps"] < stage.max_env_steps):
            return
        if state["stage"] + 1 < len(self.stages):
            state.update(stage=state["stage"] + 1, env_steps=0, scores=[], queue=[])
        else:
            state["passed"] = True
            if self.stop:
                yield Stop(f"the last stage, {stage.name}, is passed")
