"""Weights & Biases as a sink: configuration, curves over env steps, videos and final scores."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

from jsrl.errors import ConfigError
from jsrl.extras import require_extra
from jsrl.services.metrics.sinks import Line
from jsrl.services.runs.files import read_object, write_json

PROCESS = [sys.executable, "-P", str(Path(__file__).with_name("wandb_process.py"))]
FOLDER, LOG = "wandb", "wandb.log"  # of a run
OPTIONS = "options.json"  # in FOLDER, for a resume


class WandbNames(TypedDict):
    """Where a run is in Weights & Biases, as for `WandbSink`."""

    project: str
    entity: str | None
    group: str | None
    name: str | None
    mode: str


def kept_names(run: Path) -> dict[str, Any]:
    """Return where the run in a folder was sent to; empty: it was not."""
    path = run / FOLDER / OPTIONS
    return read_object(path, WandbNames) if path.exists() else {}


class WandbSink:
    """Sends a run to Weights & Biases, through a separate process (jsrl.services.metrics.wandb_process)."""

    name = "Weights & Biases"

    def __init__(
        self,
        project: str = "jsrl",
        *,
        entity: str | None = None,
        group: str | None = None,
        name: str | None = None,
        mode: str = "online",
    ) -> None:
        """Check that a run can be sent; starts nothing.

        Args:
          project: of the run. entity: owner of the project. group: of runs. name: of the run there (None: EXPERIMENT/RUN).
          mode: `online`, or `offline`: everything is kept in RUN/wandb, for `wandb sync`.

        Raises:
          MissingExtra: the package is not installed. ConfigError: another mode; or no API key is found.
        """
        require_extra("wandb", "Weights & Biases")
        if mode not in ("online", "offline"):
            raise ConfigError(f"wandb.mode is {mode!r}, expected online or offline.")
        if mode == "online" and subprocess.run([*PROCESS, "--check"], capture_output=True, check=False).returncode:
            raise ConfigError(
                "Weights & Biases has no API key here; run `wandb login`, set WANDB_API_KEY, or use --wandb.mode offline."
            )
        self._options = {"project": project, "entity": entity, "group": group, "name": name, "mode": mode}
        self._process: subprocess.Popen[str] | None = None
        self._folder = ""

    def start(self, config: dict[str, Any]) -> str:
        """Start the process and the W&B run; return the line with its address.

        Raises:
          OSError: W&B could not begin; the message says why.
        """
        self._folder = config["folder"]
        log = Path(config["folder"], "logs", LOG)
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                PROCESS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        kept = Path(self._folder, FOLDER)
        kept.mkdir(exist_ok=True)
        write_json(kept / OPTIONS, self._options)
        named = self._options | {"name": self._options["name"] or config["run"]}
        self._send({key: config[key] for key in ("folder", "options", "end_s")} | named)
        try:
            url = self._answer()["url"]
        except OSError:
            self._close()
            self._process = None
            raise
        return f"{self.name}: {url or 'offline; to send it: ' + self._sync}"

    def write(self, row: Line) -> None:
        """Send the finite numbers of a line.

        Raises:
          OSError: the process has ended, or the files that W&B keeps here were deleted.
        """
        self._check_kept()
        numbers = {n: v for n, v in row.items() if isinstance(v, int | float) and math.isfinite(v)}
        self._send({"row": numbers})

    def video(self, path: Path) -> None:
        self._send({"video": str(path)})

    def end(self, summary: dict[str, Any]) -> None:
        """Send the outcome of the run, and wait until W&B has everything.

        Raises:
          OSError: W&B did not get everything.
        """
        if self._process is None:
            return
        self._send({"summary": summary})
        try:
            self._answer()
        finally:
            self._close()
        self._check_kept()

    def abandon(self) -> str:
        """End the process at once; return how to send the rest."""
        if self._process is not None:
            self._process.kill()
        return f"send the rest with: {self._sync}"

    def _check_kept(self) -> None:
        kept = Path(self._folder, FOLDER)
        if not any(kept.glob("*run-*")):
            raise OSError(f"{kept} was deleted during the run, with all that was not yet sent")

    @property
    def _sync(self) -> str:
        return f"wandb sync {self._folder}/{FOLDER}/*run-*"

    def _send(self, asked: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise OSError(f"its process has ended ({error}); see logs/{LOG}") from error

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError(f"its process has ended; see logs/{LOG}")
        answer = json.loads(line)
        if "error" in answer:
            raise OSError(f"{answer['error']}; to send what is kept: {self._sync}")
        return answer

    def _close(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what was not written is lost
                pipe.close() if pipe is not None else None
        self._process.wait()
