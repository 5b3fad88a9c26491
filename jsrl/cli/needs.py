"""Options of `jsrl run` that have no effect alone, and the options that they need."""

from __future__ import annotations

from collections.abc import Collection

from jsrl.cli.command_line import RUN_OPTIONS, CommandLine
from jsrl.errors import ConfigError
from jsrl.experiment.checks import leaves_host
from jsrl.experiment.options import options_of

JOINED = ("--listen", "--hosts", "--launcher ray")
ANY_HOSTS = (*JOINED, "--launcher slurm without --seeds")
NEEDS = {  # option, or the first part of its name -> what it needs: one of these
    "inference.device": ("--placement served", "--placement apart"),
    "slurm": ("--launcher slurm",),
    "print": ("--launcher slurm",),
    "ray": ("--launcher ray",),
    "num-hosts": ("--listen", "--launcher ray", "--launcher slurm without --seeds"),
    "min-hosts": ("--listen", "--hosts", "--launcher slurm without --seeds"),
    "join-key": JOINED,
    "join-s": JOINED,
    "host-python": ("--hosts", "--launcher ray"),
    "keep-here": (*ANY_HOSTS, "--hosts-file"),
    "learner-on": (*ANY_HOSTS, "--hosts-file"),
    "compress": (*ANY_HOSTS, "--encrypt", "--bind"),
    "tune-minutes": ("--tune",),
    "hosts-file": ("--plan",),
    "jobs": ("--seeds",),
}


NEW = {"run-name", "overwrite"}  # options of a new run


def check_needs(asked: CommandLine) -> None:
    """Refuse options without those that they need, and those that another option makes void."""
    if "num-hosts" in asked.given and asked.run.hosts:
        raise ConfigError(
            f"--num-hosts is given, but --hosts {asked.run.hosts} names the hosts; leave out --num-hosts. --min-hosts N "
            "starts the run when N of them have joined."
        )
    if asked.run.resume and (wrong := sorted(asked.given & NEW)):
        raise ConfigError(
            f"--{wrong[0]} is for a new run, but --resume continues {asked.run.resume} in its own folder; leave one of "
            "them out. (--init-from RUN@TAG begins a new run with the params of another.)"
        )
    present = _present(asked)
    for option in sorted(asked.given):
        needs = NEEDS.get(option) or NEEDS.get(option.partition(".")[0], ())
        if needs and not present & set(needs):
            *others, last = needs
            text = f"{', '.join(others)} or {last}" if others else last
            raise ConfigError(f"--{option} is given, but it needs {text}; add that, or leave out --{option}.")


def check_used(asked: CommandLine, used: Collection[str], command: str) -> None:
    """Refuse options of `jsrl run` that another command does not use.

    Args:
      asked: its command line. used: those that it uses. command: its name.
    """
    of_run = options_of(RUN_OPTIONS).keys()
    if unused := sorted((asked.given & of_run) - set(used)):
        raise ConfigError(f"--{unused[0]} has no effect on jsrl {command}; leave it out.")


def _present(asked: CommandLine) -> set[str]:
    options, e = asked.run, asked.experiment
    switches = ("listen", "hosts", "hosts-file", "tune", "plan", "seeds")
    found = {f"--{name}" for name in switches if getattr(options, name.replace("-", "_"))}
    found.add(f"--launcher {options.launcher}")
    found |= {f"--placement {e.placement}"} | {f"--placement {policy.placement}" for policy in e.policies.values()}
    if e.placement == "auto" or options.tune:  # decided later
        found.add("--placement served")
    if options.launcher == "slurm" and not options.seeds:
        found.add("--launcher slurm without --seeds")
    return found | ({"--encrypt", "--bind"} if leaves_host(e) else set())
