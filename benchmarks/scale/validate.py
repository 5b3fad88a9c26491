"""Predict held-out layouts of the real system from a calibration with 1 to 4 actors, and compare with measurements.

    python benchmarks/scale/validate.py all DATA.json                          # everything below, and the table: 40 minutes
    python benchmarks/scale/validate.py calibrate DATA.json [--budget-s 450]   # service times of each work
    python benchmarks/scale/validate.py measure DATA.json [--budget-s 450]     # three runs of each layout, within the budget
    python benchmarks/scale/validate.py compare DATA.json                      # predict, and print every error

`calibrate` and `measure` need a machine on which nothing else runs, and go on where they stopped. If other programs ran all
the same, the model is told how much of the cores they used during a layout's runs (`others`). It is also told the speed of the
cores around the middle run, measured by a fixed loop (`core_speed`); nothing else of these runs is used. A layout whose runs
differ by more than 10% is named and left out. Two rivals are compared: linear extrapolation of the largest calibrating run of
the same placement and transport by the number of environments, and, for the bottleneck, `always cores`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.scale.layouts import LAYOUTS, WORKS, Layout, experiment, experiment_of, hosts_of, place
from jsrl.tools.simulation.calibration import (
    INLINE,
    SERVED,
    Measured,
    Variant,
    acting_sizes,
    fitted,
    measured,
    updating_sizes,
    variants,
)
from jsrl.tools.simulation.outcome import CORES, Outcome, name_bottleneck, simulate
from jsrl.tools.simulation.speed import beside_loop
from jsrl.tools.simulation.system import lay_out_on
from jsrl.tools.simulation.times import EnvTimes, ParamsTimes, ServiceTimes, Updates
from jsrl.tools.simulation.timing import time_acting, time_environments, time_params, time_updates
from jsrl.tools.tuning.trial import Limits
from jsrl.tools.tuning.trial import measure as try_out

RUNS, SPREAD = 3, 0.10
TRIES = 5  # simulations of a layout, until other programs use as many cores in it as they did


class Data:
    """The measurements so far, in a file that is written after each one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {
            "env": {},
            "calibration": {},
            "layouts": {},
            "machine": {"cores": os.cpu_count(), "tree": True},  # host agents pass on params in a tree
        }
        if path.exists():
            self.content = json.loads(path.read_text())

    def save(self) -> None:
        """Write it."""
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")


def runs_of(work: str) -> list[Variant]:
    """Return the calibrating runs of a work."""
    return variants(experiment(work), (INLINE, SERVED))


def calibrate(data: Data, until_s: float) -> bool:
    """Measure missing times; return whether none is missing."""
    for work in WORKS:
        runs = runs_of(work)
        if work not in data.content["env"]:
            sizes = [run.experiment.group_size for run in runs]
            data.content["env"][work] = msgspec.to_builtins(time_environments(experiment(work), sizes))
            data.save()
        if work not in data.content.setdefault("acting", {}):
            data.content["acting"][work] = time_acting(experiment(work), acting_sizes(experiment(work)))
            data.save()
        if work not in data.content.setdefault("updates", {}):
            data.content["updates"][work] = time_updates(experiment(work), updating_sizes(experiment(work)))
            data.save()
        if work not in data.content.setdefault("params", {}):
            data.content["params"][work] = msgspec.to_builtins(time_params(experiment(work)))
            data.save()
        found = data.content["calibration"].setdefault(work, [])
        for run in runs[len(found) :]:
            if time.monotonic() > until_s:
                return False
            limits = Limits(seconds=5.0, warm_s=1.5, longest_s=20.0)
            speed, loop_s = beside_loop(functools.partial(try_out, run.experiment, limits))
            if speed.error:
                raise SystemExit(f"{work}, {run.text}: {speed.error}")
            found.append(msgspec.to_builtins(msgspec.structs.replace(measured(run, speed), loop_s=loop_s)))
            print(f"  {work}: {run.text}: {speed.env_steps_per_s:,.0f} env steps/s", flush=True)
            data.save()
    return True


def measure(data: Data, until_s: float) -> bool:
    """Run layouts that lack runs, those with the fewest first; return whether none lacks any."""
    if not calibrate(data, until_s):
        return False
    while missing := [one for one in LAYOUTS if len(data.content["layouts"].get(one.name, [])) < RUNS]:
        layout = min(missing, key=lambda one: len(data.content["layouts"].get(one.name, [])))
        if time.monotonic() > until_s:
            return False
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "one.json"
            words = [sys.executable, str(Path(__file__).parent / "layouts.py"), layout.name, str(path)]
            begin_s = time.monotonic()
            run = functools.partial(subprocess.run, words, check=True, timeout=120, stdout=subprocess.DEVNULL)
            _, loop_s = beside_loop(run)
            found = json.loads(path.read_text()) | {"loop_s": loop_s}
        data.content["layouts"].setdefault(layout.name, []).append(found)
        took_s = time.monotonic() - begin_s
        print(f"  {layout.name}: {found['env_steps_per_s']:,.0f} env steps/s ({took_s:.0f} s)", flush=True)
        data.save()
    return True


def times_of(data: Data, work: str) -> ServiceTimes:
    """Return the service times of a work."""
    env, acting = msgspec.convert(data.content["env"][work], EnvTimes), data.content["acting"][work]
    updates = msgspec.convert(data.content.get("updates", {}).get(work, []), list[Updates])
    params = msgspec.convert(data.content.get("params", {}).get(work, {}), ParamsTimes)
    return fitted(calibration_of(data, work), env, [(rows, seconds) for rows, seconds in acting], updates, params)


def calibration_of(data: Data, work: str) -> list[Measured]:
    """Return the calibrating runs of a work."""
    return msgspec.convert(data.content["calibration"][work], list[Measured])


def predict(data: Data, layout: Layout, others: float = 0.0, speed: float = 1.0) -> Outcome:
    """Return what the model says of a layout, beside other programs that used `others` cores, on cores of a `speed`."""
    times, busy = times_of(data, layout.work), others
    for _ in range(TRIES):  # programs that share cores with a run use fewer than they would alone
        hosts = [msgspec.structs.replace(host, busy_cores=busy, core_speed=speed) for host in hosts_of(layout)]
        _, system = lay_out_on(experiment_of(layout), hosts, place)
        if not data.content["machine"].get("tree"):
            system = dataclasses.replace(system, fan_out=0)  # these runs are older than the tree
        outcome = simulate(system, times, seconds=4.0, warm_s=1.0)
        if abs(outcome.others_cores - others) <= 0.02:
            break
        busy *= others / outcome.others_cores
    return outcome


def others_of(runs: list[dict[str, Any]]) -> float:
    """Return the cores that other programs used during runs, where that was measured; 0: it was not."""
    seen = [run.get("others_cores", run["means"].get("system/others_cpu_share")) for run in runs]
    return statistics.fmean(cores for cores in seen if cores is not None) if any(seen) else 0.0


def speed_of(data: Data, layout: Layout, run: dict[str, Any]) -> float:
    """Return the speed of the cores during a run over that in the calibration; 1: it was not measured."""
    loops = [one.loop_s for one in calibration_of(data, layout.work)]
    return statistics.median(loops) / run["loop_s"] if all(loops) and "loop_s" in run else 1.0


def linear(data: Data, layout: Layout) -> float:
    """Return the largest calibrating run of the same placement and transport, times the number of environments."""
    far = layout.keys or bool(layout.far)
    runs = [run for run in calibration_of(data, layout.work) if (run.placement, run.far) == (layout.placement, far)]
    largest = max(runs, key=lambda run: run.actors)
    return largest.env_steps_per_s * layout.actors / largest.actors


def key(text: str) -> tuple[str, str]:
    """Return (what, where) of a name such as `network out host-0`."""
    for what in ("cores", "network out", "network into"):
        if text.startswith(what):
            return what, text[len(what) + 1 :]
    return text, ""


def compare(data: Data) -> dict[str, Any]:
    """Return the prediction and measurement of each layout, and the summary."""
    rows, left_out = [], {}
    for layout in LAYOUTS:
        runs = data.content["layouts"].get(layout.name, [])
        if not runs:
            continue
        rates = sorted(run["env_steps_per_s"] for run in runs)
        truth = statistics.median(rates)
        if (rates[-1] - rates[0]) / truth > SPREAD:
            left_out[layout.name] = rates
            continue
        middle = min(runs, key=lambda run: abs(run["env_steps_per_s"] - truth))
        others = others_of(runs)
        speed = speed_of(data, layout, middle)
        outcome, guess = predict(data, layout, others, speed), linear(data, layout)
        seen = name_bottleneck({key(name): share for name, share in middle["used"].items()})
        rows.append(
            {
                "layout": layout.name,
                "measured": rates,
                "others": round(others, 2),
                "core_speed": round(speed, 3),
                "predicted": round(outcome.env_steps_per_s, 1),
                "error": round(outcome.env_steps_per_s / truth - 1, 4),
                "linear_error": round(guess / truth - 1, 4),
                "bottleneck": " ".join(seen).strip(),
                "predicted_bottleneck": " ".join(outcome.bottleneck).strip(),
                "used": middle["used"],
                "predicted_used": {" ".join(k).strip(): round(v, 4) for k, v in outcome.used.items()},
            }
        )
    return {"rows": rows, "left_out": left_out, "summary": summary(rows)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors over all layouts, of the model and the baselines."""
    kinds = Counter(row["bottleneck"].split(" host")[0] for row in rows)
    absolute = {name: [abs(row[name]) for row in rows] for name in ("error", "linear_error")}
    right = [row["bottleneck"].split(" host")[0] == row["predicted_bottleneck"].split(" host")[0] for row in rows]
    cores = [row["bottleneck"].startswith(CORES) for row in rows]
    found = {f"median_{name}": round(statistics.median(values), 4) for name, values in absolute.items()}
    found |= {f"worst_{name}": round(max(values), 4) for name, values in absolute.items()}
    return found | {
        "layouts": len(rows),
        "bottleneck_right": round(sum(right) / len(rows), 3),
        "always_cores_right": round(sum(cores) / len(rows), 3),
        "kinds": dict(kinds),
        "largest_share": round(max(kinds.values()) / len(rows), 3),
    }


def show(found: dict[str, Any]) -> str:
    """Return a comparison as a table."""
    titles = f"{'layout':<26}{'others':>7}{'measured':>10}{'predicted':>10}{'error':>8}{'linear':>8}"
    lines = [f"{titles}  bottleneck (predicted)"]
    for row in found["rows"]:
        middle = statistics.median(row["measured"])
        said = row["predicted_bottleneck"]
        named = row["bottleneck"] + ("" if row["bottleneck"] == said else f" ({said})")
        errors = f"{row['error']:>+8.1%}{row['linear_error']:>+8.1%}"
        lines.append(
            f"{row['layout']:<26}{row['others']:>7.2f}{middle:>10,.0f}{row['predicted']:>10,.0f}{errors}  {named}"
        )
    lines += [f"left out, runs differ by more than 10%: {name} {rates}" for name, rates in found["left_out"].items()]
    return "\n".join([*lines, json.dumps(found["summary"])])


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["all", "calibrate", "measure", "compare"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--budget-s", type=float, default=3600.0, help="start no run after this time")
    given = parser.parse_args()
    data, until_s = Data(given.data), time.monotonic() + given.budget_s
    if given.part != "compare":
        whole = (calibrate if given.part == "calibrate" else measure)(data, until_s)
        print("complete" if whole else "there is more to do: call it again")
        if given.part != "all" or not whole:
            return 0 if whole else 3
    found = compare(data)
    print(show(found))
    data.content["comparison"] = found
    data.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
