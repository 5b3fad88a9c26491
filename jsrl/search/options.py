"""Options of `jsrl search` besides those of the experiment."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from jsrl.field_names import suggesting
from jsrl.fields import PositiveInt, option


@suggesting
@dataclass(frozen=True)
class SearchOptions:
    """How a search runs."""

    # fmt: off
    vary: dict[str, str] = option(help="An option to vary: OPTION=log:LOW:HIGH, lin:LOW:HIGH, int:LOW:HIGH, "
        "log-int:LOW:HIGH, or values such as OPTION=0.5,1,10 (with | between values that have commas). Give it several "
        "times.", factory=dict)
    space: str | None = option(None, "JSON file with further options to vary: an object of option and range.")
    trials: PositiveInt = option(20, "Trials in total; a resumed search counts its finished ones.")
    parallel: PositiveInt = option(1, "Trials at the same time, each in its own processes.")
    seeds_per_trial: PositiveInt = option(1, "Runs of each trial, one after another; the first one has --seed, the next one "
        "--seed + 1. Their mean score counts.")
    prune: bool = option(True, "End a trial early if it scores less than the median of the others at the same time.")
    searches_dir: str = option("searches", "Folder of all searches; a search goes to SEARCHES_DIR/EXPERIMENT/SEARCH.")
    search_name: str | None = option(None, "Name of this search (default: the time).")
    resume: str | None = option(None, "Continue a search: its folder, SEARCHES_DIR/EXPERIMENT/SEARCH. Only --trials, "
        "--parallel and --launcher may be given with it.")
    part: int | None = option(None, "With --resume: number of this process in a search of several processes; a job "
        "array sets it.")
    # fmt: on

    def options_json(self) -> dict[str, object]:
        """Return every option and its value, JSON-like."""
        return dataclasses.asdict(self)
