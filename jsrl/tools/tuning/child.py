"""One run of a trial: a separate process, followed through the files of its run folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from jsrl.control.result import is_intended
from jsrl.services.runs.limits import RUNS_AT_ONCE
from jsrl.services.runs.state import RESULT, ask_to_stop, read_identity, read_result, read_state

LEAVE_S = 20.0  # time for a clean end
AND = "--and"  # between the arguments of runs that share one process and compiled program
SCORE, WIN_RATE = "evaluator/return_mean", "evaluator/win_rate"  # the latter if opponents are named


def start_runs(
    command: Sequence[str],
    folders: Sequence[Path],
    output: Path | None,
    at_once: int = 1,
    *,
    variables: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> list[Child]:
    """Start a process in its own session, so that the caller handles Ctrl-C; return a child for each of its runs.

    Args:
      command: as arguments. folders: of the runs, which the command creates. output: file for its output; None: this
        process's own. at_once: how many such processes share this machine. variables: of the environment, besides this
        process's own. cwd: its working directory (None: this one).
    """
    if len(folders) > 1:
        for folder in folders:
            (folder / RESULT).unlink(missing_ok=True)  # of an earlier start
    with contextlib.nullcontext() if output is None else output.open("ab") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, RUNS_AT_ONCE: str(at_once), **(variables or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=None if file is None else subprocess.STDOUT,
            start_new_session=True,
        )
    if len(folders) == 1:
        return [Child(process, folders[0], output)]
    runs = list[Child]()
    runs += [Member(process, folder, output, runs) for folder in folders]
    return runs


class Child:
    """A run with a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, output: Path | None) -> None:
        """See `start_runs`."""
        self._process, self._folder, self._output = process, folder, output
        self._is_stopping = False
        self._metrics: IO[bytes] | None = None
        self._rest = b""

    @property
    def ended(self) -> bool:
        return self.status is not None

    @property
    def status(self) -> int | None:
        """Return its exit status; None: it is running."""
        return self._process.poll()

    @property
    def last_line(self) -> str:
        """Return the last line of its output file; empty: there is none."""
        output = self._output.read_text(errors="replace").strip() if self._output is not None else ""
        return output.splitlines()[-1] if output else ""

    @property
    def why(self) -> str:
        """Return why the ended run failed, in a line; empty: its files do not say.

        The last lines of its output only say where its logs are and how to continue.
        """
        error = read_result(self._folder).get("error") if self.status == 1 else None  # 2: refused, the result is older
        return str(error).partition("\n")[0] if error else self.last_line

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of metrics that were written since the last call."""
        if self._metrics is None:
            with contextlib.suppress(FileNotFoundError):
                self._metrics = (self._folder / "metrics.jsonl").open("rb")
        if self._metrics is None:
            return
        *lines, self._rest = (self._rest + self._metrics.read()).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # a full disk cut it off
                yield json.loads(line)

    def new_scores(self) -> Iterator[tuple[int, float]]:
        """Yield (env steps, mean return) of each new evaluation."""
        for row in self.new_lines():
            score = row.get(WIN_RATE, row.get(SCORE))
            if isinstance(score, int | float):
                yield int(row["env_steps"]), float(score)

    def outcome(self) -> tuple[float | None, str]:
        """Return (score of the ended run, error); the final score if there is one, else the last one."""
        status, result = self.status, read_result(self._folder)
        facts = result.get("final") or result.get("evaluation") or {}
        if (status == 0 or (status == 1 and result.get("unsaved"))) and "return_mean" in facts:
            return float(facts.get("win_rate", facts["return_mean"])), ""
        return None, (self.why if status else "") or f"it ended with status {status} and has no score"

    def stop(self) -> None:
        if not self._is_stopping and not self.ended:
            self._process.send_signal(signal.SIGTERM)  # SIGINT is ignored in background jobs
        self._is_stopping = True

    def end_now(self) -> None:
        """End it at once, without a snapshot, with a second signal."""
        self.stop()
        for number in (signal.SIGTERM, signal.SIGHUP):  # a second SIGTERM has no effect in a Slurm job
            if not self.ended:
                self._process.send_signal(number)

    def close(self) -> None:
        """Ask it to end and wait; kill it if it takes too long (its workers end with it)."""
        self.stop()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._metrics is not None:
            self._metrics.close()


class Member(Child):
    """One of several runs of a process (`jsrl.cli.run.together`), as if it had a process of its own."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, output: Path | None, runs: Sequence[Child]
    ) -> None:
        """`runs`: all of them."""
        super().__init__(process, folder, output)
        self._runs = runs

    @property
    def status(self) -> int | None:
        ended, result = super().status, read_result(self._folder)
        if not result or (ended is None and read_state(self._folder).is_running):  # its report is being written
            return ended
        return 1 if result.get("error") or result.get("unsaved") else 0 if is_intended(result["ended"]) else 130

    def stop(self) -> None:
        process = read_identity(self._folder)
        if process is None or self.ended:  # it has not begun
            super().stop()
        else:
            ask_to_stop(self._folder, process)
            self._is_stopping = True

    def close(self) -> None:
        if all(one.ended for one in self._runs) or not self.ended:
            super().close()
        elif self._metrics is not None:
            self._metrics.close()


def child_command(*runs: Sequence[str]) -> list[str]:
    """Return the command of a process that makes these runs, each given as the arguments of `jsrl run`."""
    words = [word for run in runs for word in (AND, *run)][1:]
    return [sys.executable, "-P", "-m", "jsrl.cli.child", str(os.getpid()), *words]


class Lines:
    """Events of several trials as lines, and on a terminal a last line that shows how far they are."""

    def __init__(self, stream: TextIO | None) -> None:
        """Write to a stream (None: nowhere)."""
        self._stream, self._text = stream, ""

    def notify(self, line: str) -> None:
        self._write(("\r\x1b[K" if self._text else "") + line + "\n")
        self._text = ""

    def show(self, text: str) -> None:
        """Replace the last line; empty: remove it."""
        text = text[: shutil.get_terminal_size().columns - 1]
        if self._stream is not None and self._stream.isatty() and text != self._text:
            self._write("\r\x1b[K" + text)
            self._text = text

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
