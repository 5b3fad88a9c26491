"""Measure the tuner against an exhaustive small grid: `python benchmarks/tuning.py ppo_cartpole`.

Tunes several times, measures every setting of a grid (placements x actors x groups, other options at their defaults), then
measures the tuned settings, the default and the best of the grid again in alternating rounds, longer. Regret is how much
slower the tuned settings are than the best of the grid in these rounds; agreement, the slowest tuned setting over the fastest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from benchmarks.srl.blocks import Arm, Record, alternate, paired_ratio, ratio_text
from benchmarks.srl.system import whole_run
from jsrl.cli.command_line import CommandLine, parse
from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment import Experiment
from jsrl.graph.machine import this_machine
from jsrl.tools.tuning.tune import Setting, applied, options_for, setting_of, tune


def grid_of(experiment: Experiment, rings: tuple[int, ...]) -> list[Setting]:
    """Return the grid: every placement with actors in powers of 2 up to the number of cores, and these rings."""
    cores = this_machine().cores
    actors = [2**power for power in range(12) if 2**power <= cores]
    default = setting_of(experiment)
    grid = [Setting("serial")]
    grid += [
        Setting(name, n, r) for name in ("inline", "served") for n in actors for r in rings if n * r <= experiment.envs
    ]
    return list(dict.fromkeys([default, *grid]))


def arms_of(experiment: Experiment, names: dict[str, Setting], seconds: float) -> list[Arm]:
    """Return an arm per setting."""
    return [whole_run(name, applied(experiment, options_for(experiment, s)), seconds) for name, s in names.items()]


def name_of(setting: Setting) -> str:
    """Return a setting as text."""
    s = setting
    words = "" if s.placement == "serial" else f", {s.actors} actors, ring {s.ring}, {s.servers} servers"
    return s.placement + words + (f", {s.threads} threads" if s.threads else "")


def measure(given: argparse.Namespace, asked: CommandLine, record: Record) -> list[str]:
    """Tune, measure the grid, compare; return the printed lines."""
    experiment = asked.experiment
    grid = {name_of(s): s for s in grid_of(experiment, tuple(map(int, given.rings.split(","))))}
    tuned, seconds = [], []
    for number in range(given.tunings):
        print(f"tuning {number + 1} of {given.tunings}", file=sys.stderr)
        begun_s = time.monotonic()
        tuned.append(tune(experiment, given=asked.given, minutes=given.minutes))
        seconds.append(time.monotonic() - begun_s)
    print(f"grid of {len(grid)} settings", file=sys.stderr)
    alternate(record, arms_of(experiment, grid, given.seconds), given.grid_rounds)
    leaders = sorted(grid, key=lambda name: -record.median(name))[: given.leaders]
    chosen = [name_of(setting_of(found.experiment)) for found in tuned]
    default = name_of(setting_of(experiment))
    finalists = {name_of(s): s for s in (setting_of(found.experiment) for found in tuned)}
    finalists |= {name: grid[name] for name in (*leaders, default)}
    final = Record("final", record.main, {})
    print(f"{len(finalists)} finalists", file=sys.stderr)
    alternate(final, arms_of(experiment, finalists, 2 * given.seconds), given.rounds)
    record.summary |= {
        "tuning_s": [round(one, 1) for one in seconds],
        "trials": [sum(map(len, found.speeds.values())) for found in tuned],
    }
    return conclude(record, final, chosen, leaders, default)


def conclude(record: Record, final: Record, chosen: list[str], of_grid: list[str], default: str) -> list[str]:
    """Put regret and agreement into the record's summary; return the printed lines."""
    best = max(of_grid, key=final.median)
    speeds = [final.median(words) for words in chosen]
    regrets = [1 - speed / final.median(best) for speed in speeds]
    against_best = [paired_ratio(final, words, best) for words in chosen]
    against_default = [paired_ratio(final, words, default) for words in chosen]
    record.blocks += final.blocks
    record.summary |= {
        "best_of_grid": best,
        "chosen": chosen,
        "regret": [round(r, 4) for r in regrets],
        "regret_median": round(statistics.median(regrets), 4),
        "agreement": round(min(speeds) / max(speeds), 4),
        "over_best_of_grid": against_best,
        "over_default": against_default,
        "finals": {arm: final.median(arm) for arm in dict.fromkeys(b.arm for b in final.blocks)},
    }
    lines = [f"best of the grid: {best}, {final.median(best):,.0f} env steps/s"]
    for words, regret, ratio, over in zip(chosen, regrets, against_best, against_default, strict=True):
        lines.append(
            f"tuned: {words}: regret {regret:.1%}; {ratio_text(ratio)} of the best, {over['median']:.2f}x the default"
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
