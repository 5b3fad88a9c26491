"""Groups of runs: one experiment with several seeds. Each run has a folder beside that of the group.

RUNS_DIR/<experiment>/<group>/            group.json   the experiment, options and seeds
                                          running      identity of the process that starts the runs, if it is on this system
                                          logs/        of that process, and the output of each run
                                          comparison.html
RUNS_DIR/<experiment>/<group>-seed<N>/    the runs
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from jsrl.experiment.placements import TOGETHER
from jsrl.services.runs.files import read_json, write_json
from jsrl.services.runs.state import is_whole

FILE, COMPARISON = "group.json", "comparison.html"


@dataclass(frozen=True)
class Group:
    """The runs of several seeds.

    Attributes:
      path: its folder. experiment: its name, as for `jsrl run`. args: the other options of every run.
      begin: options for the first start of a run only. seeds: of the runs. jobs: arrays of Slurm jobs that run them.
    """

    path: Path
    experiment: str
    args: tuple[str, ...]
    seeds: tuple[int, ...]
    begin: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return EXPERIMENT/NAME."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def runs_dir(self) -> Path:
        return self.path.parents[1]

    @property
    def together(self) -> bool:
        """Return whether the runs of several seeds can share one compiled program."""
        return TOGETHER in self.args

    def folder(self, seed: int) -> Path:
        return self.path.with_name(f"{self.path.name}-seed{seed}")

    @property
    def runs(self) -> list[Path]:
        """Return the folders of the runs that have started."""
        return [path for path in map(self.folder, self.seeds) if is_whole(path)]

    def write(self) -> None:
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        write_json(self.path / FILE, {name: value for name, value in asdict(self).items() if name != "path"})


def read_group(path: Path) -> Group | None:
    """Return the group in a folder; None: there is none."""
    try:
        return msgspec.convert(read_json(path / FILE) | {"path": str(path.absolute())}, Group, dec_hook=_path)
    except (OSError, ValueError, TypeError):
        return None


def _path(kind: type, value: object) -> object:
    return kind(value)


def find_group(name: str | os.PathLike[str], runs_dir: str | os.PathLike[str] = "runs") -> Group | None:
    """Return the group of a path, EXPERIMENT/NAME or NAME; None: there is none."""
    given, runs = Path(name).expanduser(), Path(runs_dir).expanduser()
    by_name = sorted(runs.glob(f"*/*/{FILE}"), key=lambda path: -path.stat().st_mtime)
    named = [path.parent for path in by_name if path.parent.name == os.fspath(name)]
    return next((group for path in (given, runs / given, *named) if (group := read_group(path)) is not None), None)
