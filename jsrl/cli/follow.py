"""`jsrl status RUN --follow`: show a run in the background as if it ran here. Ctrl-C ends the display, not the run."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from jsrl.cli.logs import follow, show
from jsrl.control.status_writer import moment_of
from jsrl.errors import ConfigError
from jsrl.services.metrics.display import LEVELS, Display, make_display
from jsrl.services.metrics.display_state import DisplayState
from jsrl.services.runs.groups import Group
from jsrl.services.runs.logs import CONTROLLER, LogReader, log_path
from jsrl.services.runs.runs import RunFolder, in_command, last_values
from jsrl.services.runs.state import RunState, read_state

LOOK_S = 0.25
MESSAGES, LINES = 6, 20  # earlier messages or lines to show: on a terminal, and elsewhere
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
END = "0000-00-00 00:00:00 0s  steps "  # a line of progress, which ends the message before it
PROGRESS = re.compile(r" *[\d:]+s?  steps ")  # start of a line that is not a message, see display.plain_line


def moment(folder: Path, state: RunState) -> DisplayState | None:
    """Return the display at the last status of a run; None: there is none. The counts of a killed run are of its last line."""
    try:
        seen = None if state.status is None else moment_of(state.status)
    except ValueError:  # of another version
        return None
    if seen is None or state.is_running:
        return seen
    last = last_values(folder / "metrics.jsonl")[0]
    counts = (int(last.get("env_steps", seen.env_steps)), int(last.get("updates", seen.updates)))
    return replace(seen, env_steps=counts[0], updates=counts[1])


def follow_run(folder: RunFolder) -> None:
    """Show a run until it ends: its live display on a terminal, elsewhere its log."""
    if not sys.stdout.isatty():
        follow(folder.path, LogReader(log_path(folder.path, CONTROLLER), LINES), show)
        return
    display = make_display("live", stream=sys.stdout)
    try:
        mirror(folder, display)
    finally:
        display.close()


def follow_group(group: Group) -> None:
    """Show the running runs of a group, one after another, until none is left."""
    shown = False
    while (folder := running_one(group)) is not None or read_state(group.path).is_running:
        if folder is not None:
            shown = True
            follow_run(RunFolder(folder))
        else:  # between two runs
            time.sleep(LOOK_S)
    if not shown:
        raise ConfigError(
            f"no run of the group {group.name} is running; `jsrl status {in_command(group.path)}` shows how they ended."
        )


def running_one(group: Group) -> Path | None:
    """Return the folder of a running run of a group; None: there is none."""
    return next((path for path in group.runs if read_state(path).is_running), None)


def mirror(folder: RunFolder, display: Display) -> None:
    """Show the display of a run's controller, until the run ends."""
    reader, first, is_running, told_s = LogReader(log_path(folder.path, CONTROLLER), 100), True, True, -1.0
    while is_running:
        state = read_state(folder.path)
        is_running = not state.is_over
        if (seen := moment(folder.path, state)) is not None and seen.elapsed_s != told_s:
            told_s = seen.elapsed_s
            display.update(seen)
        messages = list(messages_in(reader.new_lines()))
        for message, level in messages[-MESSAGES:] if first else messages:
            display.message(message, level)
        first = False
        time.sleep(LOOK_S if is_running else 0.0)


def messages_in(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (text, level) of the messages in lines of a controller's log; a message may have several lines."""
    message, level = list[str](), "info"
    for line in [*lines, END]:
        stamped = STAMP.match(line)
        if not stamped:
            message += [line] if message else []
            continue
        if message:
            yield "\n".join(message), level
        text, message, level = line[stamped.end() :], [], "info"
        if PROGRESS.match(text):
            continue
        prefix, colon, rest = text.partition(": ")
        level, text = (prefix, rest) if colon and prefix in LEVELS else ("info", text)
        message = [text]
