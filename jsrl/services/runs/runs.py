"""Run folders: the files of a run, and reading them. Imports no jax.

RUNS_DIR/<experiment>/<name>/
  experiment.json    the resolved configuration      environment.json   command, commit, versions, hardware
  metrics.jsonl      one flat JSON object a line     tensorboard/       the same as events
  logs/              one file per worker             snapshots/         see jsrl.services.snapshots.store
  names/             addresses of workers            report.html        written at the end
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import io
import logging
import math
import os
import re
import shlex
import shutil
import sys
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypedDict

import msgspec
import numpy as np

from jsrl.errors import ConfigError
from jsrl.plain_files import open_plain
from jsrl.services.runs.curves import Scores, curve_of, plot_scores, scores_of
from jsrl.services.runs.files import read_object, write_json
from jsrl.services.runs.groups import find_group
from jsrl.services.runs.provenance import environment_facts
from jsrl.services.runs.state import held_by

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=,-]{0,127}")
_decode = msgspec.json.Decoder().decode  # four times as fast as json.loads
TAIL_BYTES = 1 << 16  # of metrics.jsonl, for the last values
VIDEOS = "videos"  # see jsrl.services.recordings.video_shelf
REPLACED = ".replaced"  # folder beside runs, of those that are being overwritten
_logger = logging.getLogger("jsrl.services.runs")
_FOLDERS = ("logs", "tensorboard", "snapshots", "names")


class _Env(TypedDict, total=False):
    fields: dict[str, Any]


class _Experiment(TypedDict, total=False):
    env: _Env


class _Config(TypedDict, total=False):
    fields: _Experiment


class _Hardware(TypedDict, total=False):
    cores: int
    accelerators: list[str]


class _Environment(TypedDict, total=False):
    command: str
    commit: str | None
    packages: dict[str, str]
    hardware: _Hardware


def new_run_name(seed: int | None = None) -> str:
    """Return the default name of a run: the time, and the seed."""
    return time.strftime("%Y%m%d-%H%M%S") + (f"-seed{seed}" if seed is not None else "")


def check_run_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name a run: use letters, digits and _ . + = , - (no slashes), at most 128.")


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; see the list above."""

    path: Path

    def __fspath__(self) -> str:
        """Return the path, so that a run stands where its path does: `load_policy(run.folder)`."""
        return os.fspath(self.path)

    @classmethod
    def create(
        cls,
        runs_dir: str | os.PathLike[str],
        experiment: str,
        name: str | None = None,
        *,
        config: dict[str, Any] | None = None,
        seed: int | None = None,
        overwrite: bool = False,
        init_from: str | None = None,
    ) -> RunFolder:
        """Make a new run folder and write the configuration and the run's origin.

        Args:
          runs_dir: folder of all runs. experiment: the experiment's name.
          name: the run's name; default: the time, and the seed if given.
          config: the resolved configuration, JSON-like. overwrite: a run of the same name, which is put aside:
            call `delete_replaced` once this one has begun, or `undo`.
          init_from: whose params it begins with, as text.
        """
        chosen = new_run_name(seed) if name is None else name
        check_run_name(experiment)
        check_run_name(chosen)
        parent = Path(runs_dir).expanduser().absolute() / experiment
        try:
            made = cls(cls._claim(parent, chosen, overwrite=overwrite, may_number=name is None))
            try:
                for folder in _FOLDERS:
                    (made.path / folder).mkdir()
                write_json(made.path / "experiment.json", config or {})
                write_json(made.path / "environment.json", environment_facts() | {"init_from": init_from})
            except BaseException:  # also Ctrl-C: the name would stay taken
                made.undo()
                raise
        except OSError as error:
            raise ConfigError(
                f"the run folder {parent / chosen} cannot be written ({error.strerror or error}). "
                "Choose another place with --runs-dir DIR, or make this one writable."
            ) from error
        return made

    @staticmethod
    def _claim(parent: Path, name: str, *, overwrite: bool, may_number: bool) -> Path:
        path = parent / name
        if overwrite and path.exists():
            if not (path / "experiment.json").exists():
                raise ConfigError(f"{path} exists and is not a run (no experiment.json); it is not overwritten.")
            if running := held_by(path):
                raise ConfigError(f"{path} is running (process {running}); stop it before it is overwritten.")
            RunFolder(path)._put_aside()
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            try:
                path.mkdir()  # atomic: of two runs that start at once, one gets the name
            except FileExistsError:
                if not may_number:
                    break
                path = parent / f"{name}.{number}"
            else:
                return path
        raise ConfigError(
            f"the run {path} exists. Continue it with --resume {path.parent.name}/{path.name}, delete it first with "
            "--overwrite, or choose another name with --run-name (in Python: resume=, overwrite=True, name=)."
        )

    @property
    def _aside(self) -> Path:
        """Return where the run that this one replaces lies until this one begins."""
        return self.path.parent / REPLACED / self.path.name

    def _put_aside(self) -> None:
        if self._aside.exists():  # then this one has replaced it, and never began
            _delete(self.path, _bin(self.path))
        else:
            self._aside.parent.mkdir(exist_ok=True)
            self.path.rename(self._aside)

    def delete_replaced(self) -> None:
        """Delete the run that this one replaces, if there is one."""
        with contextlib.suppress(OSError):  # there is none, or another run has replaced one as well
            _delete(self._aside, _bin(self.path))
            self._aside.parent.rmdir()

    def undo(self) -> None:
        """Delete this run, and put the one that it replaces back."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # it replaces none
            self._aside.rename(self.path)
            self._aside.parent.rmdir()

    @classmethod
    def open(cls, run: str | os.PathLike[str], runs_dir: str | os.PathLike[str] = "runs") -> RunFolder:
        """Return an existing run, given by path, by EXPERIMENT/NAME, by NAME, or by EXPERIMENT (its newest run)."""
        given = Path(run).expanduser()
        runs_dir = Path(runs_dir).expanduser()
        for candidate in (given, runs_dir / given):
            if (candidate / "experiment.json").is_file():
                return cls(candidate.absolute())
        known = {path.parent: path.stat().st_mtime for path in runs_dir.glob("*/*/experiment.json")}
        matching = [path for path in known if os.fspath(run) in (path.name, path.parent.name)]
        if matching:
            return cls(max(matching, key=lambda path: known[path]).absolute())
        names = {f"{path.parent.name}/{path.name}": path for path in known}
        words = {**{name: name for name in names}, **{path.name: name for name, path in names.items()}}
        near = dict.fromkeys(words[word] for word in difflib.get_close_matches(os.fspath(run), words, n=5, cutoff=0.4))
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        held = f"it holds {', '.join(sorted(names)[-5:]) or 'no runs'}{more}"
        hint = f"nearest: {', '.join(near)}" if near else held
        raise ConfigError(f"there is no run {run} in {runs_dir.absolute()}; {hint}. Give a path, or --runs-dir DIR.")

    @property
    def name(self) -> str:
        """Return EXPERIMENT/NAME."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def config(self) -> dict[str, Any]:
        return read_object(self.config_path, _Config)

    @property
    def env_id(self) -> str:
        """Return the id of its environment, on one line; `-`: its file does not say, or is damaged."""
        try:
            env = self.config.get("fields", {}).get("env", {})
        except ConfigError:  # whatever else is known of the run is shown
            return "-"
        return " ".join(str(env.get("fields", {}).get("id", "-")).split())

    @property
    def config_path(self) -> Path:
        return self.path / "experiment.json"

    @property
    def environment(self) -> dict[str, Any]:
        return read_object(self.path / "environment.json", _Environment)

    def write_config(self, config: dict[str, Any]) -> None:
        """Replace the resolved configuration (a resume may change limits and placement)."""
        write_json(self.config_path, config)

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def source(self) -> Path:
        """Return the folder of captured modules (see jsrl.references.capture); it may not exist."""
        return self.path / "source"

    def use_source(self) -> None:
        """Let Python import the run's captured modules."""
        if self.source.is_dir() and str(self.source) not in sys.path:
            sys.path.insert(0, str(self.source))

    @property
    def videos(self) -> Path:
        return self.path / VIDEOS

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def names(self) -> Path:
        return self.path / "names"

    @property
    def report(self) -> Path:
        return self.path / "report.html"


def _bin(path: Path) -> Path:
    """Return where the folder of a run lies while it is deleted: no part of it may be taken for the whole."""
    return path.parent / REPLACED / f".{path.name}"


def _delete(path: Path, to: Path) -> None:
    """Delete a folder, under another name."""
    shutil.rmtree(to, ignore_errors=True)
    path.rename(to)
    shutil.rmtree(to, ignore_errors=True)


def in_command(folder: Path) -> str:
    """Return how a printed command names the run or group in a folder: EXPERIMENT/NAME if it is in ./runs, else the path."""
    usual = folder.absolute().parent.parent == Path("runs").absolute()
    return f"{folder.parent.name}/{folder.name}" if usual else shlex.quote(str(folder))


def to_resume(folder: Path) -> str:
    """Return the command that continues the run or group in a folder."""
    return f"jsrl run --resume {shlex.quote(str(folder))}"


def named(name: str | os.PathLike[str], runs_dir: str | os.PathLike[str] = "runs") -> RunFolder:
    """Return the folder of a group of runs (see `find_group`), else that of a run (see `RunFolder.open`)."""
    group = find_group(name, runs_dir)
    return RunFolder.open(name, runs_dir) if group is None else RunFolder(group.path)


class Run:
    """A finished or running run, read from its folder: `config`, `metrics` (columns), `curve`, `scores`, `plot`."""

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.name = folder.name

    def __fspath__(self) -> str:
        """Return the path of its folder: `load_policy(load_runs("ppo_cartpole")[0])`."""
        return os.fspath(self.folder)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.num_lines} lines, {len(self.metrics)} metrics)"

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return the resolved configuration."""
        return self.folder.config

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Return command, commit, versions and hardware."""
        return self.folder.environment

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """Return every metric as a column, float64 [lines], NaN where a line lacks it."""
        return read_metrics(self.folder.metrics_path)

    @property
    def num_lines(self) -> int:
        """Return the number of lines in metrics.jsonl."""
        return len(self.metrics.get("env_steps", ()))

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (env_steps, values) of a metric where it is finite; after a resume the older continuation is left out.

        Raises:
          ConfigError: the run has no such metric; the message has the nearest names.
        """
        if key not in self.metrics:
            near = difflib.get_close_matches(key, self.metrics, n=3, cutoff=0.3)
            hint = f"nearest: {', '.join(near)}" if near else f"it has {', '.join(sorted(self.metrics)) or 'none yet'}"
            raise ConfigError(f"run {self.name} has no metric {key}; {hint}.")
        return curve_of(self.metrics, key)

    @property
    def scores(self) -> Scores:
        """Return the evaluations as arrays, those of the first policy if there are several: `scores.return_mean`."""
        return scores_of(self.metrics)

    def plot(self, axes: Any = None) -> Any:
        """Draw the scores of every policy with their 95% intervals into matplotlib axes (None: new ones), and return these.

        Raises:
          MissingExtra: matplotlib is not installed.
        """
        return plot_scores(self.scores, next(iter(self.config.get("fields", {}).get("policies", {})), self.name), axes)


def split_tag(text: str | os.PathLike[str]) -> tuple[str, str]:
    """Return (RUN, TAG) of RUN@TAG; TAG is empty if there is none. Folders in the path of RUN may have an @ in their names."""
    whole = os.fspath(text)
    if Path(whole).expanduser().is_dir():
        return whole, ""
    run, at, tag = whole.rpartition("@")
    return (run, tag) if at else (whole, "")


def load_runs(
    runs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], runs_dir: str | os.PathLike[str] = "runs"
) -> list[Run]:
    """Return runs given by a glob pattern, one name or path, or a list of those (see RunFolder.open); all runs of a group.

    Raises:
      ConfigError: a pattern or name matches no run.
    """
    selectors = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    folders: dict[Path, RunFolder] = {}
    for selector in selectors:
        pattern = os.path.expanduser(os.fspath(selector))
        if glob.has_magic(pattern):
            roots = ("", runs_dir, os.path.join(runs_dir, "*"))  # a name alone is that of a run, of any experiment
            found = [Path(p).absolute() for root in roots for p in sorted(glob.glob(os.path.join(root, pattern)))]
            matching = [RunFolder(path) for path in found if (path / "experiment.json").is_file()]
            if not matching:
                raise ConfigError(
                    f"no run matches {pattern} (searched here and in {runs_dir}); a pattern: ppo_pong/*seed*."
                )
        elif (group := find_group(pattern, runs_dir)) is not None:
            matching = [RunFolder(path) for path in group.runs]
            if not matching:
                raise ConfigError(f"no run of the group {group.name} has started yet.")
        else:
            matching = [RunFolder.open(pattern, runs_dir)]
        folders.update({folder.path: folder for folder in matching})
    return [Run(folder) for folder in folders.values()]


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a metrics.jsonl; a line that a killed process left unfinished is skipped.

    Lines are read one after another, so a run of days needs memory for the columns only.
    """
    columns: dict[str, array[float]] = {}
    count = 0
    with _opened(path) as file:
        for text in file:
            try:
                line = _decode(text)
            except (msgspec.DecodeError, RecursionError):
                continue
            if not isinstance(line, dict):
                continue
            for name, value in line.items():
                number = value if type(value) is float else _number(value)
                if number is None:
                    continue
                column = columns.get(name)
                if column is None:
                    column = columns[name] = array("d")
                if len(column) < count:
                    _pad(column, count)
                column.append(number)
            count += 1
    for column in columns.values():
        _pad(column, count)
    return {name: np.array(column) for name, column in columns.items()}


def last_values(metrics: Path) -> tuple[dict[str, float], float]:
    """Return (name -> last value in the last lines of a metrics.jsonl, when it changed in seconds since 1970)."""
    try:
        with open_plain(metrics) as file:
            facts = os.fstat(file.fileno())
            file.seek(max(0, facts.st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except (FileNotFoundError, ValueError):
        return {}, 0.0
    found: dict[str, float] = {}
    for line in lines:
        try:
            values = _decode(line)
        except (msgspec.DecodeError, RecursionError):  # the first line is cut off, the last not yet complete
            continue
        if isinstance(values, dict):
            found |= {name: value for name, value in values.items() if isinstance(value, int | float)}
    return found, facts.st_mtime


def _opened(path: Path) -> IO[bytes]:
    try:
        return open_plain(path)
    except FileNotFoundError:
        return io.BytesIO()
    except ValueError as error:
        raise ConfigError(f"{error}; put the file back, or delete it.") from None


def _pad(column: array[float], length: int) -> None:
    if len(column) < length:
        column.extend([math.nan] * (length - len(column)))


def _number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    return float(value) if value in ("inf", "-inf") else None
