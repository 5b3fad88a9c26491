"""Settings that are known to learn, for an algorithm and an environment: the rows of jsrl/experiment/configs/tuned.toml."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jsrl.experiment.configs
from jsrl.cli.command_line import last_texts, parse
from jsrl.cli.experiments import files, load
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment

SWITCH = "settings"


class Row(NamedTuple):
    """Settings of one environment: options of the command line, the score that they are known for, and who published it."""

    algorithm: str
    env: str
    options: str
    published: str
    source: str


def rows() -> Iterator[Row]:
    """Yield all rows, in the order of the file."""
    tables = tomllib.loads((Path(jsrl.experiment.configs.__path__[0]) / "tuned.toml").read_text())
    for algorithm, table in tables.items():
        for row in (table | own for own in table["rows"]):  # a row may have its own source and common options
            for env, published in row["published"].items():
                yield Row(algorithm, env, f"{row['common']} {row['options']}".strip(), published, row["source"])


def tuned(algorithm: str, env_id: str) -> Experiment:
    """Return the experiment that `jsrl run ALGORITHM --env.id ENV_ID` takes: tuned settings for this environment.

    Args:
      algorithm: ppo, sac, td3, dqn or pqn.

    Raises:
      ConfigError: there are no such settings; with those that there are.
    """
    found = {row.env: row for row in rows() if row.algorithm == algorithm}
    if env_id not in found:
        known = ", ".join(found) or f"none for {algorithm}"
        raise ConfigError(f"there are no tuned settings of {algorithm} for {env_id}; there are: {known}.")
    return applied(found[env_id], load(algorithm))


def applied(row: Row, default: Experiment) -> Experiment:
    """Return the experiment of an algorithm with a row's settings."""
    return parse(["--env.id", row.env, *shlex.split(row.options)], default).experiment


def with_settings(name: str, arguments: Sequence[str], default: Experiment) -> tuple[Experiment, str]:
    """Return the experiment that a command line begins with, and a line about its settings; empty: no row fits.

    A row is taken where it is of the run's environment, and the experiment is jsrl's own, unless the arguments say
    `--settings none`.
    """
    given = last_texts(arguments)
    if given.get(SWITCH) == "none" or not files()[name][0].startswith(jsrl.experiment.configs.__name__):
        return default, ""
    for row in rows():
        if (row.algorithm, row.env) == (name, given.get("env.id", default.env.id)):
            line = f"settings: those of {row.source} for {name} on {row.env} (score there {row.published}); --{SWITCH} none: "
            return applied(row, default), f"{line}the defaults of jsrl\n  {row.options}"
    return default, ""


def listing() -> str:
    """Return all rows as commands."""
    return "\n".join(
        f"{row.algorithm} {row.env}: {row.published} ({row.source})\n"
        f"  jsrl run {row.algorithm} --{SWITCH} none --env.id {row.env} {row.options}"
        for row in rows()
    )
