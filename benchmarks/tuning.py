"""Measure the tuner against an exhaustive small grid: `python benchmarks/tuning.py ppo_cartpole`.

Tunes several times, measures every setting of a grid (placements x actors x groups, other options at their defaults), then
measures the tuned settings, the default and the best of the grid again in alternating rounds, longer. Regret is how much
slower the tuned settings are than the best of the grid in these rounds; agreement, the slowest tuned setting over the fastest.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.srl.blocks import Arm, Record, alternate, paired_ratio, ratio_text
from benchmarks.srl.system import whole_run
from jsrl.cli.command_line import CommandLine, parse
from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment import Experiment
from jsrl.tools.tuning.space import (
    Setting,
    Space,
    describe,
    key_of,
    make_knobs,
    make_space,
    with_setting,
)
from jsrl.tools.tuning.tune import this_machine, tune


def grid_of(space: Space, cores: int, rings: tuple[int, ...]) -> list[Setting]:
    """Return the grid: every placement with up to `cores` actors and these rings."""
    every = [setting for own in space.grid.values() for setting in own]
    return [s for s in every if s.get("num-actors", 1) <= cores and s.get("ring", 1) in rings]


def arms_of(experiment: Experiment, settings: list[Setting], seconds: float) -> list[Arm]:
    """Return an arm per setting, named by its text."""
    return [whole_run(describe(experiment, s), with_setting(experiment, s), seconds) for s in settings]


def unique(settings: list[Setting]) -> list[Setting]:
    """Return settings without repetitions, in order."""
    return list({key_of(s): s for s in settings}.values())


def measure(given: argparse.Namespace, asked: CommandLine, record: Record) -> list[str]:
    """Tune, measure the grid, compare; return the printed lines."""
    experiment = asked.experiment
    machine = this_machine()
    space = make_space(experiment, make_knobs(experiment, machine), asked.given)
    grid = grid_of(space, machine.cores, tuple(map(int, given.rings.split(","))))
    tuned = []
    folder = Path(tempfile.mkdtemp(prefix="jsrl-tuning-"))
    try:
        for number in range(given.tunings):
            print(f"tuning {number + 1} of {given.tunings}", file=sys.stderr)
            found = tune(
                experiment,
                given=asked.given,
                minutes=given.minutes,
                trial_seconds=given.trial_seconds,
                profiles_dir=str(folder),
                output=folder / f"{number}.json",
            )
            tuned.append(found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"grid of {len(grid)} settings", file=sys.stderr)
    alternate(record, arms_of(experiment, grid, given.seconds), given.grid_rounds)
    names = {describe(experiment, s): s for s in grid}
    best_of_grid = sorted(names, key=lambda name: -record.median(name))[: given.leaders]
    finalists = unique([f.advice.setting for f in tuned] + [names[n] for n in best_of_grid] + [space.default])
    final = Record("final", record.main, {})
    print(f"{len(finalists)} finalists", file=sys.stderr)
    alternate(final, arms_of(experiment, finalists, 2 * given.seconds), given.rounds)
    return conclude(
        record, final, [f.advice.words for f in tuned], best_of_grid, describe(experiment, space.default), tuned
    )


def conclude(
    record: Record, final: Record, chosen: list[str], of_grid: list[str], default: str, tuned: list
) -> list[str]:
    """Put regret and agreement into the record's summary; return the printed lines."""
    best = max(of_grid, key=final.median)
    speeds = [final.median(words) for words in chosen]
    regrets = [1 - speed / final.median(best) for speed in speeds]
    against_best = [paired_ratio(final, words, best) for words in chosen]
    against_default = [paired_ratio(final, words, default) for words in chosen]
    record.blocks += final.blocks
    record.summary = {
        "best_of_grid": best,
        "chosen": chosen,
        "regret": [round(r, 4) for r in regrets],
        "regret_median": round(statistics.median(regrets), 4),
        "agreement": round(min(speeds) / max(speeds), 4),
        "over_best_of_grid": against_best,
        "over_default": against_default,
        "tuning_s": [found.measurements.total_s for found in tuned],
        "trials": [len(found.measurements.trials) for found in tuned],
        "finals": {arm: final.median(arm) for arm in dict.fromkeys(b.arm for b in final.blocks)},
    }
    lines = [f"best of the grid: {best}, {final.median(best):,.0f} env steps/s"]
    for words, regret, ratio, over, found in zip(chosen, regrets, against_best, against_default, tuned, strict=True):
        lines.append(
            f"tuned in {found.measurements.total_s:.0f} s: {words}: regret {regret:.1%}; {ratio_text(ratio)} of the best, "
            f"{over['median']:.2f}x the default"
        )
    lines.append(f"the slowest tuned setting has {min(speeds) / max(speeds):.0%} of the fastest one's speed")
    return lines


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("name", help="an experiment of run.py")
    made.add_argument("--tunings", type=int, default=3)
    made.add_argument("--minutes", type=float, default=3.0, help="of each tuning")
    made.add_argument(
        "--trial-seconds", type=float, help="measured per trial of a tuning (default: by the time there is)"
    )
    made.add_argument(
        "--seconds", type=float, default=3.0, help="measured per setting of the grid; finals take twice as long"
    )
    made.add_argument("--grid-rounds", type=int, default=2)
    made.add_argument("--rounds", type=int, default=5, help="of the finals")
    made.add_argument("--leaders", type=int, default=3, help="of the grid, in the finals")
    made.add_argument("--rings", default="1,2,4", help="rings in the grid")
    made.add_argument("--output", type=Path, help="file (default: benchmarks/results/tuning-NAME.json)")
    made.add_argument("options", nargs="*", help="options of run.py that stay as given, after --")
    return made


def main() -> int:
    """Measure, print, and write the file."""
    from jsrl.cli.experiments import experiments

    given = parser().parse_args()
    options = {name: value for name, value in vars(given).items() if name != "output"}
    record = Record("tuning", "env_steps_per_s", options)
    try:
        if given.name not in experiments():
            raise ConfigError(f"there is no experiment {given.name!r}; there are: {', '.join(experiments())}.")
        lines = measure(given, parse(given.options, experiments()[given.name]()), record)
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    path = given.output or Path(__file__).parent / "results" / f"tuning-{given.name}.json"
    record.save(path)
    print("\n".join([*lines, f"raw numbers: {path}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
