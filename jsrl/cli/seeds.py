"""`jsrl run NAME --seeds 0-9`: a run for each seed, `--jobs` of them at once, and one table.

Each run has processes of its own; in placement `fused-serial` those that run at once share one, and one compiled program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jsrl.cli import command_line as cli
from jsrl.control.hooks import RunLog, redirect
from jsrl.control.result import is_finished, missing
from jsrl.control.resume import claimed, with_paths
from jsrl.control.start_points import check_kept
from jsrl.errors import ConfigError
from jsrl.interrupts import interrupts
from jsrl.intervals import score_text
from jsrl.services.runs.files import write_json
from jsrl.services.runs.groups import COMPARISON, Group, read_group
from jsrl.services.runs.logs import CONTROLLER
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.runs import Run, RunFolder, check_run_name, in_command, new_run_name, to_resume
from jsrl.services.runs.state import (
    RESULT,
    STOP,
    has_snapshot,
    held_by,
    is_asked_to_stop,
    is_whole,
    read_result,
    read_state,
)
from jsrl.tools.report.comparison_page import write_comparison
from jsrl.tools.tuning.child import Child, child_command, start_runs

# Options that the command of each run sets itself, or that were used before.
OWN = (
    *("seeds", "jobs", "run-name", "runs-dir", "overwrite", "detach", "display"),
    *("tune", "tune-minutes", "launcher", "slurm", "ray", "print"),
)
ON_RESUME = {"resume", "jobs", "display", "runs-dir", "detach"}
POLL_S, STOP_LOOK_S, LEAVE_S = 0.1, 1.0, 5.0


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of `0-4` or `1,5,9`."""
    try:
        if "-" in text:
            first, last = map(int, text.split("-"))
            if first > last:
                raise ValueError
            return tuple(range(first, last + 1))
        seeds = tuple(int(arg) for arg in text.split(","))
    except ValueError:
        raise ConfigError(f"--seeds is {text!r}, expected a range such as 0-4 or a list such as 1,5,9.") from None
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds is {text!r}, which names a seed twice; name each once.")
    return seeds


def check(asked: cli.CommandLine) -> None:
    options = asked.run
    parse_seeds(options.seeds)
    if options.listen or options.hosts:
        raise ConfigError("other hosts serve one run and leave with it; give one seed, or start a run for each.")
    if options.launcher == "ray":
        raise ConfigError("--launcher ray gives hosts to one run; give one seed, or start a run for each.")
    if options.resume:
        raise ConfigError("--resume continues all seeds of a group; leave out --seeds.")
    if "seed" in asked.given:
        raise ConfigError("--seed and --seeds are given; leave one of them out.")


def new_group(name: str, args: Sequence[str], asked: cli.CommandLine, more: Callable[[], Sequence[str]]) -> Group:
    """Return the group for a command line; nothing is written yet.

    Args:
      name: of the experiment. args: the rest of the command line. asked: the parsed command line.
      more: returns further options of every run; called once nothing else is wrong.
    """
    options, seeds = asked.run, parse_seeds(asked.run.seeds)
    path = group_path(asked)
    group = Group(path, name, (), seeds)
    taken = [one for one in (path, *map(group.folder, seeds)) if one.exists()]
    if taken and not options.overwrite:
        raise ConfigError(
            f"{taken[0]} exists. Continue a group with --resume {group.name}, delete it first with --overwrite, or choose "
            "another name with --run-name."
        )
    for one in taken:
        if not is_whole(one) and read_group(one) is None:
            raise ConfigError(f"{one} exists and is neither a run nor a group of runs; it is not overwritten.")
        if running := held_by(one):
            raise ConfigError(f"{one} is running (process {running}); stop it before it is overwritten.")
    begin = ("--init-from", with_paths(options.init_from, options.runs_dir)) if options.init_from else ()
    if taken and options.init_from:
        check_kept(options.init_from, options.runs_dir, taken)
    return dataclasses.replace(group, args=(*cli.without(args, (*OWN, "init-from")), *more()), begin=begin)


def group_path(asked: cli.CommandLine) -> Path:
    options, name = asked.run, asked.run.run_name or new_run_name()
    check_run_name(f"{name}-seed{max(parse_seeds(options.seeds))}")
    return Path(options.runs_dir).expanduser().absolute() / asked.experiment.name / name


def remove(group: Group) -> None:
    for path in (group.path, *map(group.folder, group.seeds)):
        if path.exists():
            shutil.rmtree(path)


def begin_args(group: Group, seed: int) -> list[str]:
    """Return the arguments of `jsrl run` that start a seed's run, or continue it if it has a snapshot."""
    folder = group.folder(seed)
    if has_snapshot(folder):
        return ["--resume", str(folder), *group.args]
    own = ["--seed", str(seed), "--run-name", folder.name, *(["--overwrite"] if folder.exists() else [])]
    return [group.experiment, *own, *group.begin, *group.args]


def at_once(group: Group, asked: cli.CommandLine) -> int:
    """Return how many seeds run at once: by default all, if they share a program."""
    return len(group.seeds) if group.together and "jobs" not in asked.given else asked.run.jobs


class Seeds:
    """Runs the seeds of a group that have not ended as intended.

    Args:
      group: on disk. at_once: how many run at once. display: of a single run; several runs write to the group's logs.
      hidden: this process has no terminal, so all runs write to logs.
    """

    def __init__(self, group: Group, at_once: int, display: str, *, hidden: bool) -> None:
        self._group, self._display = group, display
        self._alone, self._hidden = at_once == 1 and not hidden, hidden
        self._log = RunLog(group.path / "logs" / f"{CONTROLLER}.log")
        self._waiting = [seed for seed in group.seeds if not is_finished(group.folder(seed))]
        self._at_once = max(1, min(at_once, len(self._waiting)))
        self._together = group.together and self._at_once > 1
        self._running: dict[int, Child] = {}
        self._interrupted = False
        self._look_s = 0.0
        self.refused = False

    def run(self) -> bool:
        """Run them; return whether all were started without an interruption. Ctrl-C ends the running ones cleanly."""
        with claimed(RunFolder(self._group.path)), interrupts(self._interrupt):
            for name in (RESULT, STOP):
                (self._group.path / name).unlink(missing_ok=True)
            try:
                while self._running or (self._waiting and not (self._interrupted or self.refused)):
                    self._turn()
            except KeyboardInterrupt:  # the second one
                self._interrupted = True
                for child in self._running.values():
                    child.end_now()
                self._leave()
            finally:
                for child in self._running.values():
                    child.close()
                ended = "interrupted" if self._interrupted else "failed" if missing(self._group) else "finished"
                write_json(self._group.path / RESULT, {"ended": ended})
        return not self._interrupted

    def _turn(self) -> None:
        while self._may_start:
            count = self._at_once if self._together else 1
            seeds, self._waiting = self._waiting[:count], self._waiting[count:]
            self._start(seeds)
        for seed, child in list(self._running.items()):
            if child.ended:
                self._ended(seed, child)
                child.close()
                del self._running[seed]
        if time.monotonic() >= self._look_s:
            self._look_s = time.monotonic() + STOP_LOOK_S
            if is_asked_to_stop(self._group.path, ProcessIdentity.own()) and not self._interrupted:
                self._interrupt()
            if self._hidden and any(read_state(self._group.folder(seed)).status for seed in self._running):
                self._hidden = False
                redirect(self._group.path / "logs" / "output.log")
        time.sleep(POLL_S)

    @property
    def _may_start(self) -> bool:
        """Return whether there is room for a run, or for all runs of a program."""
        most = 1 if self._together else self._at_once
        return bool(self._waiting) and len(self._running) < most and not (self._interrupted or self.refused)

    def _start(self, seeds: Sequence[int]) -> None:
        """Start the runs of some seeds in one process."""
        group, runs = self._group, []
        display = self._display if self._alone else "log-only"
        for seed in seeds:
            args = [*begin_args(group, seed), "--runs-dir", str(group.runs_dir), "--display", display]
            begins = "continues" if args[0] == "--resume" else "starts"
            follow = "" if self._alone else f" (jsrl logs {in_command(group.folder(seed))} --follow shows it)"
            self._notify(f"seed {seed} {begins}: {RunFolder(group.folder(seed)).name}{follow}")
            runs.append(args)
        name = "seeds.log" if self._together else f"seed{seeds[0]}.log"
        output = None if self._alone else group.path / "logs" / name
        folders, at_once = [group.folder(seed) for seed in seeds], 1 if self._together else self._at_once
        self._running |= zip(seeds, start_runs(child_command(*runs), folders, output, at_once), strict=True)

    def _ended(self, seed: int, child: Child) -> None:
        result = read_result(self._group.folder(seed))
        scores = [result[name] for name in ("final", "evaluation") if result.get(name)]
        score = f", {score_text(scores[0])}" if scores else ""
        steps = f"{result.get('ended', 'no result')}, {result.get('env_steps', 0):,} env steps{score}"
        failed = f"seed {seed} failed: {child.why or 'see its output'}"
        line = f"seed {seed} ended: {steps}" if child.status in (0, 130) else failed
        self._notify(line, always=child.status == 2 and not self._alone)  # else nobody would see why it was refused
        self.refused = self.refused or child.status == 2

    def _interrupt(self) -> None:
        self._interrupted = True
        for child in self._running.values():
            child.stop()

    def _leave(self) -> None:
        until = time.monotonic() + LEAVE_S
        while time.monotonic() < until and not all(child.ended for child in self._running.values()):
            time.sleep(POLL_S)

    def _notify(self, line: str, *, always: bool = False) -> None:
        self._log(line)
        if always or self._display not in ("quiet", "log-only"):
            print(line, file=sys.stderr, flush=True)


def run_group(group: Group, at_once: int, display: str, *, hidden: bool) -> int:
    """Run the missing runs of a group, and print its table; return the exit status."""
    new = not group.path.exists()
    made = [path for path in (group.path.parent, group.runs_dir) if not path.exists()]
    try:
        group.write()
    except OSError as error:
        raise ConfigError(
            f"the group {group.path} cannot be written ({error.strerror or error}); choose another place with --runs-dir."
        ) from error
    seeds = Seeds(group, at_once, display, hidden=hidden)
    whole = seeds.run()
    if seeds.refused and new and not group.runs:
        shutil.rmtree(group.path)
        with contextlib.suppress(OSError):  # another run is there
            for path in made:
                path.rmdir()
        return 2
    print(table(group))
    left = missing(group)
    if left:
        text = "interrupted" if not whole else f"seed{'s' if len(left) > 1 else ''} {', '.join(map(str, left))} failed"
        print(f"{text}; to continue: {to_resume(group.path)}")
    return 0 if not left else 130 if not whole else 1


def table(group: Group) -> str:
    """Return the scores of the runs that have ended as intended, and write the page that compares them."""
    ended = [Run(RunFolder(path)) for path in group.runs if is_finished(path)]
    if not ended:
        return f"no run of {group.name} has ended"
    page = group.path / COMPARISON
    part = f"{len(ended)} of {len(group.seeds)} seeds\n" if len(ended) < len(group.seeds) else ""
    return f"{part}{write_comparison(ended, page)}\nreport: {page}"
