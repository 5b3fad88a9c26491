"""The videos of a run: the best one and the newest, with their facts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from jsrl.services.runs.files import read_json, write_json
from jsrl.services.runs.runs import VIDEOS

INDEX = "videos.json"


@dataclass(frozen=True)
class Video:
    """One video.

    Attributes:
      file: its name in the folder. version_updates: updates of the params. env_steps: trained on until then.
      return_mean: of its episodes, raw. episodes: in it. frames, fps, width, height: of the file. best: the best so far.
      players: the policies in it, if there are several; the return is the first one's.
      score: of its policy; None: not known.
    """

    file: str
    version_updates: int
    env_steps: int
    return_mean: float
    episodes: int
    frames: int
    fps: float
    width: int
    height: int
    best: bool = False
    players: str = ""
    score: float | None = None

    def caption(self) -> str:
        tag = f"best, score {self.score:,.4g} · " if self.best else ""
        first = f" of {self.players.partition(',')[0]}" if self.players else ""
        prefix = f"{self.players} · " if self.players else ""
        prefix += f"version {self.version_updates:,} · {self.env_steps:,} env steps"
        return f"{tag}return{first} {self.return_mean:,.1f} · {prefix} · {self.frames / self.fps:.0f} s"


class VideoShelf:
    """A folder of videos that keeps the best and the newest.

    Args:
      folder: of the run's videos. keep_newest: how many, besides the best.
    """

    def __init__(self, folder: Path, keep_newest: int) -> None:
        self.folder, self._keep_newest = folder, keep_newest
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob("*.mp4.part"):  # of a killed video recorder
            part.unlink(missing_ok=True)
        self.videos = read_index(folder)

    def path(self, env_steps: int, updates: int) -> Path:
        return self.folder / f"steps-{env_steps:012d}-version-{updates:09d}.mp4"

    def add(self, video: Video) -> None:
        """Add a finished video, and delete those that are neither the best nor among the newest."""
        videos = [known for known in self.videos if known.file != video.file] + [video]
        scored = [one for one in reversed(videos) if one.score is not None]  # of equal scores the newest is the best
        best = max(scored, key=lambda one: one.score or 0.0, default=None)
        newest = videos[-self._keep_newest :]
        kept = [one for one in videos if one is best or one in newest]
        self.videos = [_tagged(one, one is best) for one in kept]
        write_json(self.folder / INDEX, {"videos": [asdict(one) for one in self.videos]}, durable=False)
        for dropped in (one for one in videos if one not in kept):
            (self.folder / dropped.file).unlink(missing_ok=True)


def _tagged(video: Video, best: bool) -> Video:
    values: dict[str, Any] = asdict(video) | {"best": best}
    return Video(**values)


def read_index(folder: Path) -> list[Video]:
    """Return the videos of a folder, oldest first; missing and unreadable ones are left out."""
    try:
        entries = read_json(folder / INDEX)["videos"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    names = {field.name for field in fields(Video)}
    entries = [entry for entry in entries if isinstance(entry, dict) and set(entry) == names]
    entries = [entry for entry in entries if str(entry["file"]).endswith(".mp4")]
    return [Video(**entry) for entry in entries if (folder / str(entry["file"])).is_file()]


def captions(run: Path) -> dict[str, str]:
    """Return path relative to the run's folder -> caption of each of its videos, the newest first.

    Videos of policies other than the first are in folders with their names, and come last.
    """
    found: dict[str, str] = {}
    for folder in (run / VIDEOS, *sorted(path for path in (run / VIDEOS).glob("*") if path.is_dir())):
        where = folder.relative_to(run).as_posix()
        prefix = "" if folder == run / VIDEOS else f"policy {folder.name} · "
        found |= {f"{where}/{one.file}": prefix + one.caption() for one in reversed(read_index(folder))}
        others = sorted(path.name for path in folder.glob("*.mp4"))
        found |= {f"{where}/{name}": prefix + name for name in others if f"{where}/{name}" not in found}
    return found
