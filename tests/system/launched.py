"""A run in separate processes, started like a user would: found, stopped, and checked for leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from jsrl.transport.ledger.reconcile import leg_ledger
from tests.patience import stretched

WORLD = Path(__file__).parent / "world"
DRIVE = WORLD / "drive.py"
FOREVER = ("--total-env-steps", "1000000000")


def assert_balanced(result: dict, *, unknown_allowed: bool = False) -> None:
    """Check that the consumers' ledgers of a run match the producers' counts, in every leg.

    unknown_allowed: a killed producer may have taken along messages that ZeroMQ had not sent yet; and the next start of any
    run, also of another test, removes the shared memory of a killed controller, with what nobody has counted in it.
    """
    for name, counts in {"samples": result["ledger"], **result["legs"]}.items():
        ledger = leg_ledger(counts)
        assert ledger.produced > 0 and ledger.holds, f"{name}: {ledger}"
        assert unknown_allowed or ledger.balanced, f"{name}: {ledger}"


class Launched:
    """`python drive.py tiny ...` in its own session.

    Attributes:
      text: its output, once it has ended.
    """

    def __init__(
        self,
        runs_dir: Path,
        *arguments: str,
        experiment: str = "tiny",
        script: Path = DRIVE,
        output_dir: Path | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """Start it; `within`: a command prefix that starts it elsewhere, such as in its own network."""
        self.runs_dir, self.words = runs_dir, list(arguments)
        words = [experiment, "--runs-dir", str(runs_dir), "--display", "plain", *arguments]
        self._output = (output_dir or runs_dir) / f"output-{time.monotonic_ns()}.txt"
        runs_dir.mkdir(parents=True, exist_ok=True)
        # as small as possible: one math thread, no accelerator
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        with self._output.open("wb") as output:
            self.popen = subprocess.Popen(
                [*within, sys.executable, str(script), *(w for w in words if w)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=runs_dir,
                start_new_session=True,
            )
        self._seen: dict[int, psutil.Process] = {}

    @property
    def text(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def folder(self) -> Path:
        """Return the newest run folder."""
        return max(self.runs_dir.glob("*/*/experiment.json"), key=lambda path: path.stat().st_mtime).parent

    def lines(self) -> list[dict]:
        """Return the lines of metrics.jsonl so far."""
        try:
            return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        except (ValueError, OSError):
            return []

    def result(self) -> dict:
        return json.loads((self.folder / "result.json").read_text())

    def workers(self) -> dict[str, psutil.Process]:
        """Return worker name -> its living process."""
        found: dict[str, psutil.Process] = {}
        try:
            children = psutil.Process(self.popen.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return found
        for child in children:
            try:
                words, name, status = child.cmdline(), child.name(), child.status()
            except psutil.Error:
                continue
            self._seen[child.pid] = child
            if status == psutil.STATUS_ZOMBIE:
                continue
            if "--name" in words:
                found[words[words.index("--name") + 1]] = child
            elif "jsrl.workers" in words:  # the host, or an actor that it forked
                found[name] = child
        return found

    def await_worker(self, name: str, timeout_s: float = 60.0) -> psutil.Process:
        return self.until(lambda: self.workers().get(name), f"{name} to exist", timeout_s)

    def await_another(self, name: str, old_pid: int, timeout_s: float = 60.0) -> psutil.Process:
        """Wait until a worker has another process than the given one; return it."""

        def another() -> psutil.Process | None:
            process = self.workers().get(name)
            return process if process is not None and process.pid != old_pid else None

        return self.until(another, f"another {name}", timeout_s)

    def await_updates(self, count: int = 1, timeout_s: float = 100.0) -> None:
        """Wait until metrics.jsonl shows `count` updates."""
        self.until(lambda: [x for x in self.lines() if x.get("updates", 0) >= count], f"{count} updates", timeout_s)
        self.workers()

    def until(self, ready: Callable, what: str, timeout_s: float = 60.0):
        """Return the value of `ready` once it is true."""
        begun_s = time.monotonic()
        while not (value := ready()):
            assert self.popen.poll() is None, f"the run ended while the test waited for {what}:\n{self.text}"
            assert time.monotonic() - begun_s < stretched(timeout_s), (
                f"{what} did not happen in {timeout_s} s:\n{self.text}"
            )
            time.sleep(0.02)
        return value

    def end(self, timeout_s: float) -> tuple[int, float]:
        """Wait for the launching process; return (exit status, seconds that it took)."""
        begun_s = time.monotonic()
        while (status := self.popen.poll()) is None:
            if time.monotonic() - begun_s > stretched(timeout_s):
                self.popen.send_signal(signal.SIGABRT)  # the stacks of its threads follow
                self.popen.wait(10.0)
                raise AssertionError(f"no end within {timeout_s} s:\n{self.text}")
            time.sleep(0.01)
        return status, time.monotonic() - begun_s

    def expect(self, status: int, timeout_s: float) -> str:
        """Wait for the end, check its status and that nothing is left; return the output."""
        found, _ = self.end(timeout_s)
        assert found == status, f"exit status {found}, expected {status}:\n{self.text}"
        self.assert_nothing_left()
        return self.text

    def expect_status(self, status: int, timeout_s: float) -> str:
        """Like `expect`, where other runs continue in the same folder."""
        found, _ = self.end(timeout_s)
        assert found == status, f"exit status {found}, expected {status}:\n{self.text}"
        return self.text

    def assert_nothing_left(self, timeout_s: float = 0.5) -> None:
        """Check that no process of the run lives, and that no shared memory or socket of it exists."""
        begun_s = time.monotonic()
        while left := self.left_processes():
            assert time.monotonic() - begun_s < stretched(timeout_s), f"left behind: {left}\n{self.text}"
            time.sleep(0.02)
        assert self.memory_folders() == []
        assert not list(self.runs_dir.glob("**/*.sock"))

    def left_processes(self) -> list[str]:
        """Return every living process that this run started, by its session or by its run folder."""
        left = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                mine = str(self.runs_dir) in " ".join(words) or process in self._seen.values()
                if mine and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                    left.append(f"{process.pid}: {' '.join(words)[-120:]}")
            except psutil.Error:
                continue
        return left

    def memory_folders(self) -> list[Path]:
        """Return the shared-memory folders of this run."""
        return list(Path(f"/dev/shm/jsrl-{os.getuid()}").glob(f"{self.popen.pid}-*"))

    def kill(self) -> None:
        """Clean up after a failed test."""
        for pid in [self.popen.pid, *self._seen]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.popen.wait()
