"""`start(experiment)`: a run in the background of a script or notebook, as a process of its own.

The caller writes its request into a folder: the arguments of `run` as JSON, and the source of what a notebook defines. The
child (`python -m jsrl.tools.background FOLDER`) leaves there the path of the run folder once the run has begun, and at
the end its result or its error. The caller's end of the child's standard input closes when the caller ends, however it
ends: the child then ends the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import jsrl.errors
from jsrl.control.hooks import OUTPUT, LiveRun, OutputToFolder
from jsrl.control.result import Result, RunData
from jsrl.control.run import run, sent
from jsrl.errors import JsrlError, users_traceback
from jsrl.experiment import Experiment
from jsrl.graph.graph_file import Edit
from jsrl.graph.launcher import Launcher
from jsrl.interrupts import remembered
from jsrl.references.importing import spawn_environment
from jsrl.references.reference import from_json, to_json
from jsrl.services.runs.curves import Scores
from jsrl.services.runs.files import read_json, write_json
from jsrl.services.runs.runs import RunFolder, in_command
from jsrl.services.runs.state import ask_to_stop, has_snapshot, read_best, read_state

LOOK_S = 0.1  # between looks at a run that is starting
SNAPSHOT_S = 30.0  # a wait for the first snapshot
SCORES_S = 0.5  # between looks for new scores
SOURCE, REQUEST, BEGUN, OUTCOME = "source", "request.json", "begun.json", "outcome.json"


def start(
    experiment: Experiment | None = None,
    *,
    runs_dir: str | os.PathLike[str] = "runs",
    name: str | None = None,
    overwrite: bool = False,
    resume: str | os.PathLike[str] | None = None,
    init_from: str | None = None,
    graph: Edit | None = None,
    launcher: Launcher | None = None,
    sinks: Sequence[Any] = (),
    hooks: Sequence[Any] = (),
    **changes: Any,
) -> BackgroundRun:
    """Start a run in the background, and return it once its checks have passed, which takes seconds.

    It is a process of its own, so that the notebook stays free, and stopping or failing leaves nothing behind here. It
    ends when this process ends (a script that is over, a kernel that restarts): cleanly, with a snapshot, so that
    `resume` continues it. `jsrl run NAME --detach` starts a run that outlives its terminal.

    The arguments are those of `run`; `display` has no effect. What the run's process gets is rebuilt there: give sinks, hooks
    and a launcher as dataclasses, or sinks and hooks as `module:function`.

    Raises:
      ConfigError, EnvironmentFault, AgentFault: as `run`, before it begins.
    """
    options = {"runs_dir": os.fspath(runs_dir), "name": name, "overwrite": overwrite, "resume": resume} | changes
    options |= {"init_from": init_from, "graph": graph, "launcher": launcher, "sinks": sinks, "hooks": hooks}
    with contextlib.ExitStack() as until_end:
        place = Path(until_end.enter_context(tempfile.TemporaryDirectory(prefix="jsrl-start-")))
        request = to_json(options, place / SOURCE)
        request["experiment"] = sent(experiment, place / SOURCE)
        write_json(place / REQUEST, {"options": request, "command": sys.orig_argv})
        process = _begun(place, until_end)
        return BackgroundRun(process, place, until_end.pop_all())


def _begun(place: Path, until_end: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    """Return the process of the run that is asked for in a folder, once the run has begun."""
    variables, working_directory = spawn_environment()
    process, begun = start_process(
        [sys.executable, "-P", "-m", "jsrl.tools.background", str(place)],
        lambda _: (place / BEGUN).exists(),
        stdin=subprocess.PIPE,
        env=os.environ | variables,
        cwd=working_directory,
    )
    assert process.stdin is not None
    until_end.enter_context(process.stdin)
    if not begun:
        result_facts(place, f"the run ended before it had begun, with exit status {process.returncode}.")
    return process


def start_process(
    command: Sequence[str], has_begun: Callable[[int], bool], **options: Any
) -> tuple[subprocess.Popen[bytes], bool]:
    """Return a new process, and whether its run has begun; False: it has ended. Shows its output meanwhile.

    Args:
      has_begun: of the process id. options: of the process.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C and a notebook's interrupt are for this process alone
            **options,
        )
        try:
            return process, _await_begin(process, has_begun, output)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
            raise


def _await_begin(process: subprocess.Popen[bytes], has_begun: Callable[[int], bool], output: IO[bytes]) -> bool:
    shown = 0
    while True:
        ended, begun = process.poll() is not None, has_begun(process.pid)
        text = os.pread(output.fileno(), 1 << 20, shown)
        shown += len(text)
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()
        if begun or ended:
            return begun
        time.sleep(LOOK_S)


def result_facts(place: Path, unknown: str) -> dict[str, Any]:
    """Return the result that a run's process left, or raise its error; without either, a JsrlError with this text."""
    outcome: dict[str, Any] = {"error": "JsrlError", "text": unknown}
    if (place / OUTCOME).exists():
        outcome = read_json(place / OUTCOME)
    if "error" not in outcome:
        facts: dict[str, Any] = outcome["result"]
        return facts
    kind, text = getattr(jsrl.errors, outcome["error"], None), outcome["text"]
    error = JsrlError(f"{outcome['error']}: {text}") if kind is None else kind(text)
    if outcome.get("traceback"):
        error.add_note(outcome["traceback"])
    raise error


class BackgroundRun(RunData):
    """A run that goes on in the background; iterate over it for its scores: `for scores in run: ...`.

    Attributes:
      folder: the run's. process_id: of its process.
    """

    def __init__(self, process: subprocess.Popen[bytes], place: Path, until_end: contextlib.ExitStack) -> None:
        self.folder, self.process_id = Path(read_json(place / BEGUN)), process.pid
        self._process, self._place, self._until_end, self._ended = process, place, until_end, threading.Event()
        self._result: Result | JsrlError | None = None
        # The thread keeps this object, and with it the child's standard input, until the run has ended.
        threading.Thread(target=self._await_end, name=f"run {self.folder.name}", daemon=True).start()

    def _await_end(self) -> None:
        status = self._process.wait()
        unknown = f"the run {self.folder} ended without a result (exit status {status}).{self._way_on}"
        try:
            self._result = Result.from_facts(result_facts(self._place, unknown))
        except JsrlError as error:
            self._result = error
        self._until_end.close()
        self._ended.set()

    @property
    def _way_on(self) -> str:
        log = f" {self.folder / 'logs' / OUTPUT} has its output"
        return f"{log}; start(resume={str(self.folder)!r}) continues it." if has_snapshot(self.folder) else f"{log}."

    @property
    def is_running(self) -> bool:
        """Return whether the run goes on."""
        return not self._ended.is_set()

    def __iter__(self) -> Iterator[Scores]:
        """Yield all scores so far, each time an evaluation was added, until the run ends.

        Raises: as `wait`.
        """
        shown, running = 0, True
        while running:
            running = not self._pause(SCORES_S)
            scores = self.scores
            if len(scores.env_steps) != shown:
                shown = len(scores.env_steps)
                yield scores
        self._outcome()

    def wait(self, timeout: float | None = None) -> Result:
        """Return the result once the run has ended. An interrupt ends only the waiting.

        Args:
          timeout: seconds; None: as long as it takes.

        Raises:
          TimeoutError: it goes on. WorkerDied, ...: the run failed; see `run`.
        """
        if not self._pause(timeout):
            raise TimeoutError(f"the run goes on after {timeout:g} s: {self!r}")
        return self._outcome()

    def stop(self) -> Result:
        """End the run as `jsrl stop` does, with a snapshot of the last params, and return its result.

        Raises: as `wait`.
        """
        process = read_state(self.folder).process
        if self.is_running and process is not None and ask_to_stop(self.folder, process):
            process.interrupt()
        return self.wait()

    def policy(self, tag: str = "", policy: str = "") -> Any:
        """Return a policy of the run to act with: the best one so far, else the newest; see `load_policy`.

        It waits up to 30 s for the first snapshot.

        Raises:
          ConfigError: there is no such tag or policy, or no snapshot yet.
        """
        deadline = time.monotonic() + SNAPSHOT_S
        while not (best := read_best(self.folder)) and not has_snapshot(self.folder):
            if self._pause(LOOK_S) or time.monotonic() > deadline:
                break
        return super().policy(tag or ("best" if best else "latest"), policy)

    def _pause(self, timeout: float | None) -> bool:
        """Wait for the end of the run; return whether it has ended."""
        try:
            return self._ended.wait(timeout)
        except KeyboardInterrupt:
            sys.stderr.write(f"{RunFolder(self.folder).name} goes on in the background; stop() ends it\n")
            raise

    def _outcome(self) -> Result:
        if isinstance(self._result, Result):
            return self._result
        raise type(self._result)(*self._result.args) if self._result is not None else JsrlError("the run goes on.")

    def __repr__(self) -> str:
        state = read_state(self.folder)
        moment = state.status.moment if state.status is not None else {}
        steps = state.result.get("env_steps", moment.get("env_steps", 0))
        what = state.name if self.is_running else f"ended ({state.result.get('ended', 'killed')})"
        total = moment.get("total_env_steps") if self.is_running else None
        of = f" of {total:,}" if total else ""
        return f"BackgroundRun({in_command(self.folder)}: {what}, {steps:,}{of} env steps)"


# -- the child --------------------------------------------------------------------------------------------------------


class _Begin(OutputToFolder):
    """Also tells the caller that the run has begun."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def on_start(self, run: LiveRun) -> None:
        """Redirect the output, and write the path of the run folder."""
        super().on_start(run)
        write_json(self._place / BEGUN, str(run.folder))


def end_with_caller(place: Path) -> None:
    """End the run when the caller's end of standard input closes; a caller that was killed has left its request."""
    os.read(0, 1)
    shutil.rmtree(place, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


def main(place: Path) -> int:
    """Run what `start` asked for in this folder, and leave the outcome there; return the exit status."""
    threading.Thread(target=end_with_caller, args=(place,), daemon=True).start()
    request = read_json(place / REQUEST)
    sys.orig_argv[1:] = request["command"][1:]  # in environment.json: what starts the run again
    sys.path.insert(0, str(place / SOURCE))
    try:
        with remembered():
            options = from_json(request["options"])
            options["hooks"] = [*options["hooks"], _Begin(place)]
            outcome: dict[str, Any] = {"result": run(**options | {"display": "log-only"}).facts}
    except KeyboardInterrupt:
        outcome = {"error": "JsrlError", "text": "the run was interrupted before it had begun."}
    except Exception as error:
        outcome = {"error": type(error).__name__, "text": str(error), "traceback": users_traceback(error)}
        if (place / BEGUN).exists():  # the output of the run's folder; before, the caller shows the error
            sys.stderr.write(outcome["traceback"])
    with contextlib.suppress(FileNotFoundError):  # the caller has ended
        (place / OUTCOME).write_text(json.dumps(outcome, default=float))
    return int("error" in outcome)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
