"""Run an experiment: `jsrl run ppo_cartpole --placement serial`, or `python experiments/run.py ppo_cartpole ...`.

The path through the system begins here: parse -> Experiment -> jsrl.control.run -> a controller or serial mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from jsrl.cli import command_line as cli
from jsrl.cli.command_line import check_needs, last_texts, take_name
from jsrl.cli.experiments import listing, load, summaries, use_working_directory
from jsrl.cli.main import LOADING, show_error, shown
from jsrl.errors import ConfigError, JsrlError, RecordingError, SpecMismatch, users_traceback
from jsrl.experiment import Experiment
from jsrl.experiment.options import RunOptions
from jsrl.experiment.placements import TOGETHER
from jsrl.interrupts import Stopped, remembered
from jsrl.linux import SHM
from jsrl.services.runs.groups import Group, find_group
from jsrl.tools.tuning.child import AND

if TYPE_CHECKING:
    from jsrl.graph.launcher import Launcher


USAGE = "usage: jsrl run NAME [--option value ...]"


def resume_target(arguments: Sequence[str]) -> tuple[str, str] | None:
    """Return (the run of --resume, the folder of all runs); None: there is no --resume."""
    texts = last_texts(arguments)
    if texts.get("resume") == "":
        raise ConfigError("--resume needs a run: a path, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run.")
    return (texts["resume"], texts.get("runs-dir") or "runs") if "resume" in texts else None


def resumed(arguments: Sequence[str]) -> Experiment | None:
    """Return the experiment of the run that --resume names, if it names a run."""
    from jsrl.graph.graph_file import saved_experiment
    from jsrl.services.runs.runs import RunFolder

    target = resume_target(arguments)
    return None if target is None else saved_experiment(RunFolder.open(*target))


def run_missing(group: Group, args: Sequence[str], hooks: Sequence[Any]) -> int:
    """Run the missing runs of a group."""
    from jsrl.cli.seeds import ON_RESUME, at_once, run_group

    asked = cli.parse(args, load(group.experiment))
    if more := sorted(asked.given - ON_RESUME):
        raise ConfigError(
            f"--{more[0]} cannot change when a group of runs is continued; only --jobs and --display can."
        )
    if asked.run.detach:
        from jsrl.cli.background import detach

        return detach(None, args, asked)
    return run_group(group, at_once(group, asked), asked.run.display, hidden=bool(hooks))


def main(arguments: Sequence[str] | None = None, hooks: Sequence[Any] = ()) -> int:
    """Run the command line; return the exit status (0: ended as intended). `hooks`: in addition to its options."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    use_working_directory()
    try:
        with remembered():
            return command(args, hooks)
    except JsrlError as error:
        sys.stderr.write(users_traceback(error))
        return show_error(error, 2 if isinstance(error, ConfigError | RecordingError | SpecMismatch) else 1)
    except KeyboardInterrupt as end:
        print("interrupted before the run had begun.", file=sys.stderr)
        return 0 if isinstance(end, Stopped) else 130


def command(args: list[str], hooks: Sequence[Any] = ()) -> int:
    """Execute a command line; `hooks`: in addition to its options."""
    if AND in args:
        return together(args, hooks)
    wants_help = [w for w in args if w in ("-h", "--help", "--help-all")]
    args = [w for w in args if w not in wants_help]
    name = take_name(args)
    target = None if wants_help else resume_target(args)
    if name is not None and target is not None:
        raise ConfigError(
            f"--resume continues a run with the run's own options; leave out the name {name}: "
            f"`jsrl run --resume {target[0]}`."
        )
    if target is not None and (group := find_group(*target)) is not None:
        return run_missing(group, args, hooks)
    stored = resumed(args) if name is None else None
    if name is None and stored is None and not wants_help:
        if args:
            raise ConfigError(f"give the name of an experiment before {args[0]}; `jsrl list` shows the names.")
        print(f"{USAGE}\n\nexperiments:\n{listing()}\n\n`jsrl run NAME --help` shows the options of one.")
        return 0
    loading = f"loading {name or 'the run'} ..."
    with shown(loading):
        default, settings = default_of(name, args, stored)
    if wants_help:
        from jsrl.cli.option_help import full_help, short_help

        every = "--help-all" in wants_help and (name is not None or stored is not None)
        print(full_help(default) if every else short_help(default, USAGE, summaries()))
        return 0
    with shown(loading):
        asked = cli.parse(args, default)
    options: RunOptions = asked.run
    if settings and options.display != "quiet":
        print(settings, file=sys.stderr)  # the standard output is a script with --print
    check_needs(asked)
    if options.detach:
        from jsrl.cli.background import detach

        return detach(name, args, asked)
    if options.launcher == "slurm":
        from jsrl.cli.slurm import is_allocated, submit

        if not is_allocated(asked):
            return submit(name, args, asked)
    if options.seeds is not None:
        from jsrl.cli.seeds import at_once, check, new_group, remove, run_group

        check(asked)
        if options.plan:
            return execute(asked)
        assert name is not None  # else --resume is given, which excludes --seeds
        group = new_group(name, args, asked, lambda: settled_args(asked))
        remove(group)
        return run_group(group, at_once(group, asked), options.display, hidden=bool(hooks))
    return execute(asked, hooks)


def default_of(name: str | None, args: Sequence[str], stored: Experiment | None) -> tuple[Experiment, str]:
    """Return the experiment that a command line changes, and a line about its settings; `stored`: of a run to resume."""
    default = stored or load(name or "ppo")
    if name is None:
        return default, ""
    from jsrl.cli.tuned import with_settings

    return with_settings(name, args, default)


def together(args: list[str], hooks: Sequence[Any]) -> int:
    """Execute several command lines, separated by AND: their runs share one compiled program."""
    from jsrl.control.together import run_together

    ends = [place for place, word in enumerate([*args, AND]) if word == AND]
    runs = []
    for begin, end in zip([0, *(place + 1 for place in ends)], ends, strict=False):
        words = args[begin:end]
        name = take_name(words)
        asked = cli.parse(words, default_of(name, words, None if name else resumed(words))[0])
        check_needs(asked)
        runs.append({"given": tuned_if_asked(asked), "sinks": sinks_of(asked.run), **run_options(asked.run, hooks)})
    errors = [outcome for outcome in run_together(runs) if isinstance(outcome, BaseException)]
    for error in errors:
        sys.stderr.write(users_traceback(error))
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1 if errors else 0


def run_options(options: RunOptions, hooks: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of `jsrl.run` that the options of a command line give."""
    names = ("runs_dir", "overwrite", "resume", "init_from", "graph", "display")
    found = {name: getattr(options, name) for name in names}
    return found | {"name": options.run_name, "hooks": [*options.hooks, *hooks]}


def execute(asked: cli.CommandLine, hooks: Sequence[Any] = ()) -> int:
    with shown(LOADING):
        from jsrl.control.run import run
        from jsrl.services.runs.process import ProcessIdentity
        from jsrl.services.runs.state import is_asked_to_stop

    options: RunOptions = asked.run
    if asked.followed and options.display != "quiet":
        print(asked.followed)
    sinks = sinks_of(options)
    tuned = tuned_if_asked(asked) if options.seeds is None else settled(asked)
    if options.plan:
        from jsrl.cli.plan import show_plan

        return show_plan(tuned, options)
    with launcher_of(options, tuned) as launcher:
        result = run(tuned, launcher=launcher, sinks=sinks, **run_options(options, hooks))
    if options.display != "quiet":
        print(result)
    if result.unsaved:
        print(f"SnapshotError: the result is complete, but the last params are lost: {result.unsaved}", file=sys.stderr)
        return 1
    stopped = is_asked_to_stop(result.folder, ProcessIdentity.own())
    return 0 if result.as_intended or stopped else 130


def launcher_of(options: RunOptions, experiment: Experiment) -> AbstractContextManager[Launcher | None]:
    """Return the launcher of workers on other hosts, if the options allow them; None: processes of this host."""
    if options.listen is None and options.hosts is None and options.launcher == "local":
        return contextlib.nullcontext()
    from jsrl.cli.hosts import other_hosts

    return other_hosts(options, experiment)


def settled(asked: cli.CommandLine) -> Experiment:
    """Return the experiment of each of several seeds, with the settings of a tuning and the placement of a shared program."""
    from jsrl.graph.plan import decided

    experiment = tuned_if_asked(asked)
    together = in_one_program(asked, decided(experiment)[0])
    return dataclasses.replace(experiment, placement=TOGETHER) if together else experiment


def settled_args(asked: cli.CommandLine) -> list[str]:
    """Return the options that make a seed's experiment of the command line's, after planning one of the runs."""
    from jsrl.graph.plan import decided, make_plan

    experiment = settled(asked)
    make_plan(decided(experiment)[0], "(not run)", SHM / "jsrl", edit=asked.run.graph)
    return cli.spelled(experiment, asked.experiment)


def in_one_program(asked: cli.CommandLine, experiment: Experiment) -> bool:
    """Return whether the runs of several seeds share a program: where it has the environments, and several run at once."""
    alone = "jobs" in asked.given and asked.run.jobs == 1
    return experiment.where.trains == "fused" and not alone and asked.run.graph is None


def sinks_of(options: RunOptions) -> list[Any]:
    """Return the sinks of the options, and Weights & Biases if the run to resume was sent there.

    Those given as `module:function` are made for each run.
    """
    wandb = options.wandb
    if not wandb.enabled and options.resume is None:
        return list(options.sinks)
    from jsrl.services.metrics.wandb_sink import WandbSink, kept_names
    from jsrl.services.runs.runs import RunFolder

    names = kept_names(RunFolder.open(options.resume, options.runs_dir).path) if options.resume is not None else {}
    if not wandb.enabled and not names:
        return list(options.sinks)
    for field in dataclasses.fields(wandb)[1:]:
        if field.name not in names or getattr(wandb, field.name) != field.default:
            names[field.name] = getattr(wandb, field.name)
    return [WandbSink(**names), *options.sinks]


def tuned_if_asked(asked: cli.CommandLine) -> Experiment:
    """Return the experiment, with this machine's fastest settings if the options say so."""
    options, experiment = asked.run, asked.experiment
    if not options.tune:
        return experiment
    if options.graph is not None:
        raise ConfigError(
            "--tune measures the experiment's own dataflow, not a changed one; leave --graph or --tune out."
        )
    if options.resume is not None:
        raise ConfigError(
            "--tune finds settings for a new run, and --resume continues with a run's own; give one of them."
        )
    from jsrl.tools.tuning.tune import tune

    return tune(experiment, given=asked.given, minutes=options.tune_minutes).experiment
