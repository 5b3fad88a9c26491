"""Search hyperparameters: `jsrl search ppo_cartpole --vary agent.learning-rate=log:1e-5:1e-2 --trials 20`.

It starts short runs of the experiment, each in its own processes (in a compiled program those that run at once share it, where
only numbers of the agent are varied); Optuna proposes the values. Options of `jsrl run` apply to
every run, such as --total-env-steps 50000.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from jsrl.cli import command_line as cli
from jsrl.cli.experiments import load
from jsrl.cli.option_help import asked_of, execute, help_of
from jsrl.cli.slurm import need_sbatch, submitted
from jsrl.cluster.engines.slurm import SlurmSearch, search_script
from jsrl.errors import ConfigError, TrialsFailed, counted
from jsrl.experiment import Experiment
from jsrl.experiment.options import SlurmOptions
from jsrl.experiment.placements import TOGETHER
from jsrl.extras import require_extra
from jsrl.fields import Option, option, options_of, suggesting
from jsrl.graph.plan import decided
from jsrl.services.metrics.display_state import clock
from jsrl.services.runs.files import write_json
from jsrl.tools.tuning.child import Lines
from jsrl.tools.tuning.page import best_first, page, trials_table
from jsrl.tools.tuning.ranges import Range, parse_space
from jsrl.tools.tuning.search import RUNS, Search, SearchOptions, Setup, held

MOST_TRIALS = 20  # in the table
FILE, PAGE = "search.json", "search.html"  # in the folder of a search
ON_RESUME = {"resume", "trials", "parallel", "part", "launcher"}
WHERE = ("launcher", "slurm", "part")  # options of a command, which a search does not keep


@suggesting
@dataclasses.dataclass(frozen=True)
class SearchCommand(SearchOptions):
    """The options of `jsrl search`: those of a search, and where it runs."""

    launcher: Literal["local", "slurm"] = option(
        "local", "slurm: submit an array of --parallel jobs, which share the trials, and return."
    )
    slurm: SlurmOptions = dataclasses.field(default_factory=SlurmOptions)


def main(arguments: Sequence[str] | None = None) -> int:
    usage = "jsrl search NAME --vary OPTION=RANGE [--option value ...]"
    text = functools.partial(help_of, usage, __doc__, SearchCommand())
    return execute(arguments, begin, text, "interrupted before the search had begun.")


def begin(args: list[str]) -> int:
    """Begin or continue a search; return the exit status. The folder of a new one is deleted if Slurm refuses the jobs."""
    if (earlier := resumed(args)) is not None:
        return earlier.go()
    asked = begun(args)
    try:
        return asked.go()
    except ConfigError:
        shutil.rmtree(asked.folder)
        raise


@dataclasses.dataclass(frozen=True)
class ParsedSearch:
    """A parsed search: the experiment's name, its value, the varied options, the other options, and the folder."""

    name: str
    experiment: Experiment
    ranges: list[Range]
    options: SearchCommand
    folder: Path

    def go(self) -> int:
        if self.options.launcher == "slurm":
            return self.submit()
        e = self.experiment
        together, line = in_one_program(e, self.ranges, self.options.parallel)
        if line:
            print(line)
        words = functools.partial(self.words, together)
        setup = Setup(self.folder, e.name, self.ranges, e.total_env_steps, e.seed, words, together)
        lines, begun_s = Lines(sys.stdout), time.monotonic()
        search = Search(
            setup,
            self.options,
            lambda line: lines.notify(f"{time.strftime('%H:%M:%S')} {line}"),
            lambda text: lines.show(f"{clock(time.monotonic() - begun_s)}  {text}"),
        )
        try:
            search.run()
        except TrialsFailed:
            self.show(search.study)
            raise
        except KeyboardInterrupt:  # the second one
            search.interrupted = True
        lines.show("")
        self.show(search.study)
        if search.interrupted:
            print(f"interrupted; to continue: jsrl search --resume {shlex.quote(str(self.folder))}")
            return 130
        return 0 if self.best(search.study) else 1

    def submit(self) -> int:
        with held(self.folder):  # else the jobs that run it would be taken for dead
            search = SlurmSearch(self.folder, self.options.parallel, sys.executable, self.options.slurm)
        path = Path(f"{search.file}.sh")
        job = submitted(path, search_script(search), [search.submission(str(path))])[0].partition(";")[0]
        print(f"Submitted array job {job} of {counted(search.jobs, 'job')}; output: {search.file}-{job}_N.out here")
        print(f"the last job prints the whole table; to continue: jsrl search --resume {shlex.quote(str(self.folder))}")
        return 0

    def words(self, together: bool, values: dict[str, str], seed: int, run_name: str, runs: Path) -> list[str]:
        args = [*self.args(values), *(["--placement", TOGETHER] if together else [])]
        cli.parse(args[1:], load(self.name))
        return [*args, "--seed", str(seed), "--runs-dir", str(runs), "--run-name", run_name, "--display", "quiet"]

    def args(self, values: dict[str, str]) -> list[str]:
        varied = [arg for option, value in values.items() for arg in (f"--{option}", value)]
        return [self.name, "--settings", "none", *cli.spelled(self.experiment, load(self.name)), *varied]

    def best(self, study: Any) -> str:
        """Return the command of the best trial; empty: none has a score."""
        first = next(iter(best_first(study)), None)
        if first is None or first.value is None or first.state.name != "COMPLETE":
            return ""
        return "jsrl run " + shlex.join(self.args({r.option: r.text(first.params[r.option]) for r in self.ranges}))

    def show(self, study: Any) -> None:
        command = self.best(study)
        (self.folder / PAGE).write_text(page(f"{self.name}: {self.folder.name}", study, self.ranges, command))
        table = trials_table(study, self.ranges)
        print(f"\n{table.text(MOST_TRIALS)}" if table.rows else "\nno trial has ended yet")
        print(f"\npage: {self.folder / PAGE}")
        if command:
            print(f"to repeat the best trial: {command}")


def begun(args: list[str]) -> ParsedSearch:
    """Return the search for a command line; its folder is created last, when nothing is wrong."""
    name, asked = asked_of(vary_args(args), SearchCommand())
    options: SearchCommand = asked.run
    if wrong := sorted(asked.given & {"resume", "part"}):
        raise ConfigError(
            f"--{wrong[0]} is for a search that exists, with its experiment; leave the experiment's name out."
        )
    _check_launcher(asked)
    require_extra("search", "a search")
    ranges = checked_space(asked, load(name))
    cli.spelled(asked.experiment, load(name))
    folder = make_folder(Path(options.searches_dir), asked.experiment.name, options.search_name)
    varied = {r.option: range_text(r) for r in ranges}
    kept = {option: value for option, value in dataclasses.asdict(options).items() if option not in WHERE}
    stored = kept | {"vary": varied, "space": None}
    write_json(folder / FILE, {"name": name, "words": cli.spelled(asked.experiment, load(name)), "options": stored})
    return ParsedSearch(name, asked.experiment, ranges, options, folder)


def resumed(args: list[str]) -> ParsedSearch | None:
    """Return the search that --resume names; None: there is no --resume."""
    split = [part for arg in args for part in arg.split("=", 1)]
    if "--resume" not in split:
        return None
    folder = Path((split[split.index("--resume") + 1 :] or [""])[0]).absolute()
    try:
        stored = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        raise ConfigError(
            f"there is no search {folder}; expected its folder, such as searches/EXPERIMENT/NAME."
        ) from None
    default = load(stored["name"])
    asked = cli.parse(args, default, SearchCommand())
    if more := sorted(name for name in asked.given - ON_RESUME if not name.startswith("slurm.")):
        raise ConfigError(f"--{more[0]} cannot change when a search is continued; only --trials and --parallel can.")
    _check_launcher(asked)
    require_extra("search", "a search")
    now = {name: getattr(asked.run, name) for name in (*(asked.given & ON_RESUME), "slurm")}
    options = SearchCommand(**stored["options"] | now)
    experiment = cli.parse(stored["words"], default).experiment
    return ParsedSearch(stored["name"], experiment, parse_space(options.vary, None), options, folder)


def _check_launcher(asked: cli.CommandLine) -> None:
    """Refuse options of Slurm that have no effect, and a search that cannot be submitted here."""
    of_slurm = sorted(name for name in asked.given if name.startswith("slurm."))
    if asked.run.launcher == "slurm":
        wrong = [name for name in of_slurm if name.startswith("slurm.actor-")]
        if wrong or "part" in asked.given:
            raise ConfigError(f"--{[*wrong, 'part'][0]} has no effect on a search with --launcher slurm; leave it out.")
        need_sbatch()
    elif of_slurm:
        raise ConfigError(f"--{of_slurm[0]} is given, but it needs --launcher slurm; add that, or leave it out.")


def vary_args(args: Sequence[str]) -> list[str]:
    """Return the arguments with `--vary OPTION=RANGE` written as `--vary.OPTION RANGE`, for the parser."""
    found, varies = list[str](), False
    for arg in args:
        if arg.startswith("--vary="):
            varies, arg = True, arg.removeprefix("--vary=")
        elif arg.startswith("--"):
            varies = arg == "--vary"
            found += [] if varies else [arg]
            continue
        if not varies or arg.startswith("{"):
            found += ["--vary", arg] if varies else [arg]
            continue
        option, equals, text = arg.partition("=")
        if not equals or not text:
            raise ConfigError(f"--vary is {arg!r}, expected OPTION=RANGE, such as agent.learning-rate=log:1e-5:1e-2.")
        found += [f"--vary.{option.removeprefix('--')}", text]
    return found


def checked_space(asked: cli.CommandLine, default: Experiment) -> list[Range]:
    """Return the varied ranges; the option parser has read each of their values.

    Args:
      asked: the command line. default: the experiment without its options.
    """
    experiment, options = asked.experiment, asked.run
    if not experiment.evaluator.enabled:
        raise ConfigError("a search compares the scores of evaluations; leave evaluator.enabled on.")
    ranges = parse_space(options.vary, options.space)
    known, before = options_of(experiment), options_of(default)
    for r in ranges:
        option = cli.find_option(r.option, known)
        if r.option == "seed":
            raise ConfigError("the seed is not searched; --seeds-per-trial runs each trial with several.")
        if r.option in ("total-env-steps", "max-minutes", "stop-at-return"):
            raise ConfigError(f"--vary {r.option}: trials are compared at the same length; vary others.")
        if option.name in asked.given and not _is_other_key(r.option, option, before.get(option.name)):
            raise ConfigError(f"--{r.option} is given and varied; leave one of them out.")
        for text in r.samples:
            try:
                cli.parse([f"--{r.option}", text], experiment)
            except ConfigError as error:
                raise ConfigError(f"--vary {r.option}={range_text(r)}: {error}") from error
    return ranges


def in_one_program(experiment: Experiment, ranges: Sequence[Range], parallel: int) -> tuple[bool, str]:
    """Return whether trials at the same time share a compiled program, with their numbers as arrays; and a line about it.

    They do where the program has the environments, and only numbers are varied that their agent calls `explorable`.
    """
    if parallel == 1 or decided(experiment)[0].where.trains != "fused":
        return False, ""
    names = getattr(type(experiment.agent), "explorable", ())
    arrays = [f"agent.{name.replace('_', '-')}" for name in names]
    for r in ranges:
        if r.option not in arrays or not all(map(_is_number, r.samples)):
            can = f"; these can: {', '.join(arrays)}" if arrays else ""
            return False, f"each trial has a program of its own: --vary {r.option} cannot be an array of numbers{can}"
    varied = ", ".join(r.option for r in ranges)
    return True, f"{parallel} trials at a time share one compiled program, with {varied} as arrays"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_other_key(name: str, now: Option, before: Option | None) -> bool:
    """Return whether only other keys of a dict option than the varied one (`env.kwargs.size`) were given."""
    if name == now.name or not isinstance(now.default, dict):
        return False
    key = name.removeprefix(f"{now.name}.").replace("-", "_")
    own = before.default if before is not None and isinstance(before.default, dict) else {}
    return key not in now.default or now.default[key] == own.get(key)


def range_text(r: Range) -> str:
    """Return a range in the form of the command line."""
    if r.choices:
        return ("|" if any("," in choice for choice in r.choices) else ",").join(r.choices)
    return f"{r.kind}:{r.text(r.low)}:{r.text(r.high)}"


def make_folder(root: Path, experiment: str, name: str | None) -> Path:
    if name is not None and not re.fullmatch(r"[\w.+=,-]+", name):
        raise ConfigError(f"{name!r} cannot name a search: use letters, digits and _ . + = , - (no slashes).")
    folder = root / experiment / (name or time.strftime("%Y%m%d-%H%M%S"))
    try:
        folder.mkdir(parents=True)
        (folder / RUNS).mkdir()
    except FileExistsError:
        raise ConfigError(
            f"the search {folder} exists; continue it with --resume {folder}, or choose --search-name."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the search {folder} cannot be written ({error.strerror}); choose --searches-dir DIR."
        ) from None
    return folder.absolute()
