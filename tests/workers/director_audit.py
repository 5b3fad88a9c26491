"""Checks of the games in a run folder: each ended once, payoffs agree with them, and frozen players are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsrl.errors import SnapshotError
from jsrl.services.runs.files import read_json
from jsrl.services.snapshots.players import PLAYERS_FOLDER, PlayerStore
from jsrl.workers.director.state_file import FOLDER, NEWEST


@dataclass(frozen=True)
class Games:
    """The games that a run's director has assigned so far.

    Attributes:
      assigned, finished, discarded, open: numbers of games. players: frozen players in the run folder.
      faults: sentences about what contradicts itself; (): nothing.
    """

    assigned: int = 0
    finished: int = 0
    discarded: int = 0
    open: int = 0
    players: int = 0
    faults: tuple[str, ...] = ()


def read_games(run: Path) -> Games | None:
    """Return the games of the director of a run; None: no director has written its state there."""
    try:
        content = read_json(run / FOLDER / NEWEST)
        state, leases = content["state"], content["leases"]
        counts = {name: int(state[name]) for name in ("assigned", "finished", "discarded")} | {
            "open": len(state["open"])
        }
        faults = [*_count_faults(counts), *_open_faults(state, leases)]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Games(faults=(f"the director's state cannot be read ({type(error).__name__}: {error})",))
    players, changed = _frozen_players(run / PLAYERS_FOLDER)
    return Games(**counts, players=players, faults=(*faults, *changed))


def _count_faults(counts: dict[str, int]) -> Iterator[str]:
    known = counts["finished"] + counts["discarded"] + counts["open"]
    if counts["assigned"] != known:
        yield f"{counts['assigned']:,} games were assigned, but {known:,} are finished, discarded or open"


def _open_faults(state: dict[str, Any], leases: list[Any]) -> Iterator[str]:
    """Compare the open games with the payoff table and with what actors hold."""
    is_open = set(map(int, state["open"]))
    for pair, cell in state.get("payoff", {}).items():
        playing = [game for game, ended, _ in cell["queue"] if not ended]
        left = cell["assigned"] - cell["finished"] - cell["discarded"]
        if len(playing) != left:
            yield f"payoff of {pair}: {left} games have not ended by its counts, {len(playing)} by its queue"
        if lost := len(set(playing).difference(is_open)):
            yield f"payoff of {pair}: it waits for {lost} games that are not open"
    if lost := [lease["id"] for _, _, lease in leases if lease["id"] not in is_open]:
        yield f"actors hold {len(lost)} games that are not open"


def _frozen_players(folder: Path) -> tuple[int, list[str]]:
    number, faults = 0, list[str]()
    for each in (folder, *sorted(path for path in folder.glob("*") if path.is_dir())):
        store = PlayerStore(each)
        try:
            store.check()
            number += len(store.names())
        except SnapshotError as error:
            faults.append(str(error))
    return number, faults
