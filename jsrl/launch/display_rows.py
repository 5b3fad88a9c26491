"""What the display shows of a run's policies and rated players."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jsrl.envs.config import EnvConfig
from jsrl.launch.progress import Progress
from jsrl.metrics.display_state import OtherPolicy, PlayerRow
from jsrl.metrics.scores import score_title
from jsrl.runs.standings import FILE as STANDINGS
from jsrl.runs.standings import StandingsTable, read_standings

MOST_PLAYERS = 6  # in the display


def frames_per_step(env: EnvConfig) -> int:
    """Return the game frames per env step: Atari games repeat each action."""
    return env.atari.frame_skip if env.is_atari else 1


def other_policy(progress: Progress) -> OtherPolicy:
    other = OtherPolicy(progress.policy.name, progress.env_steps, progress.updates)
    if not progress.curve:
        return other
    return dataclasses.replace(other, score=progress.curve[-1][1], title=score_title(progress.evaluation))


class RatedPlayers:
    """The rows of the players that a run's director rates, read again when it has written them anew."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._written_ns = folder, 0
        self._rows: tuple[PlayerRow, ...] = ()

    def rows(self) -> tuple[PlayerRow, ...]:
        """Return the newest rows; () before there are any."""
        try:
            written_ns = (self._folder / STANDINGS).stat().st_mtime_ns
        except OSError:
            return ()
        if written_ns != self._written_ns and (table := read_standings(self._folder)) is not None:
            self._written_ns, self._rows = written_ns, player_rows(table.best(MOST_PLAYERS))
        return self._rows


def player_rows(table: StandingsTable) -> tuple[PlayerRow, ...]:
    every = range(len(table.players))
    return tuple(
        PlayerRow(table.players[i], float(table.elo[i]), float(table.half[i]), tuple(table.share(i, j) for j in every))
        for i in every
    )
