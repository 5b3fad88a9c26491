"""Check for growth in half an hour of a run: `python benchmarks/soak.py ppo_cartpole --minutes 30`.

The experiment runs as a user starts it (real processes, `served` unless another placement is given), without an end. Every
few seconds each process's memory (RSS, PSS, USS), open descriptors, threads and mapped segments of shared memory are recorded,
and the run's files in /dev/shm. Each process also logs its compilations. Limits after the warm-up, for each process:

  RSS                             grows by less than 1 MB/min (Theil-Sen slope over all samples)
  descriptors, threads, segments  equal in the first and the last third (the lowest values)
  compilations                    none

All samples, slopes with their 95% intervals, commit and machine go to benchmarks/results/soak-NAME.json. The exit status is 1
if something grew. Options of run.py follow after `--`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

from benchmarks import process_tree
from benchmarks.endurance.holdings import Holdings, folder_usage, holdings, named_tree
from benchmarks.endurance.verdicts import Watched, judge, run_faults, table
from benchmarks.throughput.alone import split_options

RUN_NAME, ENDLESS, START_LIMIT_S, LEAVE_S = "soak", 10**12, 300.0, 180.0
CONTROLLER = "controller"
COMPILED = "Compiling "  # what jax logs for each program, with JAX_LOG_COMPILES


class Soak:
    """A run and its samples.

    Args:
      given: the command's options. runs_dir: where the run writes.
    """

    def __init__(self, given: argparse.Namespace, runs_dir: Path) -> None:
        self._given, self._runs_dir = given, runs_dir
        self._output = runs_dir / "output.txt"
        words = [sys.executable, str(ROOT / "experiments" / "run.py"), given.experiment, "--runs-dir", str(runs_dir)]
        words += ["--run-name", RUN_NAME, "--placement", given.placement, "--display", "quiet"]
        words += ["--total-env-steps", str(ENDLESS), "--stop-at-return", "none", "--evaluator.final-episodes", "0"]
        environment = {**os.environ, "JAX_LOG_COMPILES": "1"}
        with self._output.open("wb") as output:
            self._popen = subprocess.Popen(
                words + given.options, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self.watched: dict[str, Watched] = {}
        self.memory_folder: list[tuple[float, int, float]] = []  # seconds, files, megabytes
        self.ended_early = ""
        self._begin_s = time.monotonic()
        self._yielded: set[int] = set()

    @property
    def seconds(self) -> float:
        """Return the time since the first update."""
        return time.monotonic() - self._begin_s

    def await_training(self) -> None:
        """Wait for the first metrics that show updates.

        Raises:
          RuntimeError: the run ended, or did not train in time.
        """
        while not any(line.get("updates") for line in self.metrics()):
            self.lower_priority()
            if self._popen.poll() is not None or self.seconds > START_LIMIT_S:
                status = self._popen.poll()
                what = f"ended with status {status}" if status is not None else "made no update"
                raise RuntimeError(f"the run {what} within {self.seconds:.0f} s:\n{self._output.read_text()[-3000:]}")
            time.sleep(0.2)
        self._begin_s = time.monotonic()

    def lower_priority(self) -> None:
        """Lower the priority of the run's processes, if requested."""
        if not self._given.lower_priority:
            return
        for pid in named_tree(self._popen.pid, CONTROLLER).values():
            if pid not in self._yielded:
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, pid, 15)
                    (process_tree.PROC / str(pid) / "autogroup").write_text("15")
                self._yielded.add(pid)

    def sample(self) -> bool:
        """Record the resources of every process; return whether the run still runs."""
        now = self.seconds
        found = named_tree(self._popen.pid, CONTROLLER)
        for name, watched in self.watched.items():
            if found.get(name) != watched.pid and watched.ended_s is None:
                watched.ended_s = now
        if self._popen.poll() is not None:
            self.ended_early = f"the run ended with status {self._popen.poll()} after {now:.0f} s"
            return False
        for name, pid in found.items():
            held = holdings(pid)
            if held is None:
                continue
            known = self.watched.setdefault(name, Watched(name, pid))
            if known.pid == pid:
                known.add(now, held, self._compiled(name))
        files, megabytes = map(sum, zip(*(folder_usage(f) for f in self._folders()), strict=True))
        self.memory_folder.append((round(now, 2), int(files), round(megabytes, 3)))
        self.lower_priority()
        return True

    def _folders(self) -> list[Path]:
        root = Path(f"/dev/shm/jsrl-{os.getuid()}")
        return [*root.glob(f"{self._popen.pid}-*")] or [Path("/nonexistent")]

    def _compiled(self, name: str) -> int:
        log = self._output if name == CONTROLLER else self._runs_dir / "-" / "-"
        for folder in self._runs_dir.glob(f"*/{RUN_NAME}/logs/{name}.log"):
            log = folder
        try:
            return log.read_text(errors="replace").count(COMPILED)
        except OSError:
            return 0

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics so far."""
        lines = []
        for path in self._runs_dir.glob(f"*/{RUN_NAME}/metrics.jsonl"):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last one is being written
                    lines.append(json.loads(line))
        return lines

    def end(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Stop the run in order; return (its result, leftovers)."""
        pids = [watched.pid for watched in self.watched.values()]
        folders = [folder for folder in self._folders() if folder.exists()]
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)  # a background job inherits an ignored SIGINT
        try:
            self._popen.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.ended_early = f"the run did not stop within {LEAVE_S:g} s"
        left = [f"process {pid}" for pid in pids if holdings(pid) is not None]
        left += [str(folder) for folder in folders if folder.exists()]
        process_tree.end_tree(self._popen.pid)
        process_tree.end_all(pid for pid in pids if holdings(pid) is not None)
        self._popen.wait()
        for path in self._runs_dir.glob(f"*/{RUN_NAME}/result.json"):
            return json.loads(path.read_text()), left
        return None, left


def watch(soak: Soak, minutes: float, every_s: float) -> None:
    """Sample until the time is over, printing the state."""
    on_terminal, told_s = sys.stderr.isatty(), -60.0
    while soak.seconds < 60 * minutes and soak.sample():
        now = soak.seconds
        if on_terminal or now - told_s >= 60:
            told_s = now
            resident = ", ".join(f"{w.name} {w.held[-1].rss_mb:.0f}" for w in soak.watched.values() if w.held)
            text = f"[{now / 60:.1f}/{minutes:g} min] MB: {resident}"
            print(f"\r\033[K{text}" if on_terminal else text, end="" if on_terminal else "\n", file=sys.stderr)
        time.sleep(max(0.0, every_s - (soak.seconds - now)))
    print(file=sys.stderr)


def raw_numbers(soak: Soak, given: argparse.Namespace) -> dict[str, Any]:
    """End the run and return all samples."""
    from jsrl.services.runs.provenance import environment_facts

    lines = soak.metrics()
    result, left = soak.end()
    facts = environment_facts()
    facts.pop("working_directory", None)
    values = {name: value for line in lines for name, value in line.items()}
    return {
        "experiment": given.experiment,
        "placement": given.placement,
        "options": given.options,
        "minutes": given.minutes,
        "every_s": given.every_s,
        "warm_up_s": 60 * given.warm_up_minutes,
        "gave_way": given.lower_priority,
        "updates": values.get("updates", 0),
        "env_steps": values.get("env_steps", 0),
        "compilations_after_warmup": values.get("inference/compilations_after_warmup", 0.0),
        "result": result,
        "left": left,
        "ended_early": soak.ended_early,
        "memory_folder": soak.memory_folder,
        "fields": Holdings._fields,
        "processes": [
            {
                "name": w.name,
                "ended_s": w.ended_s,
                "seconds": w.seconds,
                "held": [[round(value, 3) for value in held] for held in w.held],
                "compiled": w.compiled,
            }
            for w in soak.watched.values()
        ],
        "environment": facts,
    }


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("experiment", help="of run.py, such as ppo_cartpole")
    made.add_argument("--minutes", type=float, default=30.0, help="from the first update on, the warm-up included")
    made.add_argument("--warm-up-minutes", type=float, default=3.0, help="that no slope counts")
    made.add_argument("--every-s", type=float, default=5.0, help="between samples")
    made.add_argument("--placement", default="served", choices=("served", "inline", "apart", "serial"))
    made.add_argument("--give-way", action="store_true", help="run at the lowest priority")
    made.add_argument("--json", type=Path, help="file (default: benchmarks/results/soak-NAME.json)")
    return made


def parse(words: list[str]) -> argparse.Namespace:
    """Return the command's options; `options` are those of run.py, after `--`."""
    own, options = split_options(words)
    return parser().parse_args(own, argparse.Namespace(options=options))


def main() -> int:
    """Watch, print, and write the file."""
    given = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="jsrl-soak-") as folder:
        soak = Soak(given, Path(folder))
        try:
            soak.await_training()
            watch(soak, given.minutes, given.every_s)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            soak.ended_early = f"stopped by hand after {soak.seconds / 60:.1f} of {given.minutes:g} minutes"
        finally:
            raw = raw_numbers(soak, given)
    verdicts = [judge(watched, raw["warm_up_s"]) for watched in soak.watched.values()]
    faults = run_faults(raw)
    raw["verdicts"] = [asdict(verdict) | {"rss": verdict.rss, "uss": verdict.uss} for verdict in verdicts]
    raw["faults"] = faults
    path = given.json or Path(__file__).parent / "results" / f"soak-{given.experiment}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw, separators=(",", ":")) + "\n")
    print(f"{given.experiment}, {given.placement}, {raw['updates']:,.0f} updates, {raw['env_steps']:,.0f} env steps")
    print(table(verdicts, faults), f"  raw numbers: {path}", sep="\n")
    return int(bool(faults) or any(verdict.faults for verdict in verdicts) or not verdicts)


if __name__ == "__main__":
    sys.exit(main())
