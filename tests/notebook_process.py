"""Runs a notebook, or interrupts one of its cells, in a separate process, because nbclient leaves event loops open.

`python notebook_process.py execute NOTEBOOK [OLD NEW]` prints the notebook's output, with OLD in its source replaced by NEW.
`python notebook_process.py interrupt NOTEBOOK` starts its endless run, interrupts it, and prints its findings as JSON.
Both use the working directory as the kernel's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import nbformat
from jupyter_client import KernelManager
from nbclient import NotebookClient

CELL_LIMIT_S = 240
ENDLESS = """
import dataclasses
from jsrl.control.run import run
forever = dataclasses.replace(experiment, stop_at_return=None, total_env_steps=10**9)
result = run(forever, placement="served", num_actors=1, display="quiet")
"""


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run all cells; an error in one of them ends this process with its traceback."""
    NotebookClient(notebook, timeout=CELL_LIMIT_S, resources={"metadata": {"path": os.getcwd()}}).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            sys.stdout.write(output.get("text", ""))


def interrupt(notebook: nbformat.NotebookNode) -> None:
    """Interrupt the run once its workers train, and report the state before and after."""
    seen = {}
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"][:1]
    manager = KernelManager()
    manager.start_kernel(cwd=os.getcwd())
    client = manager.client()
    client.start_channels()

    def interrupt_when_training() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until and not lines_of_metrics():
            time.sleep(0.2)
        seen["workers"] = len(workers())
        seen["interrupted_s"] = time.monotonic()
        manager.interrupt_kernel()

    try:
        client.wait_for_ready(timeout=60)
        for cell in cells:
            assert client.execute_interactive(cell, timeout=90)["content"]["status"] == "ok"
        watcher = threading.Thread(target=interrupt_when_training)
        watcher.start()
        client.execute_interactive(ENDLESS, timeout=CELL_LIMIT_S)
        watcher.join()
        seen["ending_s"] = time.monotonic() - seen.pop("interrupted_s")
        seen["left"] = workers()
        reply = client.execute_interactive("print(result.ended)", timeout=30, output_hook=lambda _: None)
        seen["kernel"] = reply["content"]["status"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    (run,) = Path("runs").glob("*/*")
    seen["ended"] = json.loads((run / "result.json").read_text())["ended"]
    sys.stdout.write(json.dumps(seen) + "\n")


def lines_of_metrics() -> int:
    """Return how many lines of metrics the run has written."""
    return sum(len(path.read_text().splitlines()) for path in Path("runs").glob("*/*/metrics.jsonl"))


def workers() -> list[str]:
    """Return the command lines of living worker processes whose run is in the working directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            working_directory = os.readlink(path.parent / "cwd")
        except OSError:
            continue  # it has just ended, or belongs to another user
        if "jsrl" in command and working_directory == os.getcwd() and "ipykernel" not in command:
            found.append(command)
    return [command for command in found if "notebook_process" not in command]


if __name__ == "__main__":
    what, path, *changed = sys.argv[1:]
    notebook = nbformat.read(path, 4)
    if changed:
        cells = [cell for cell in notebook.cells if cell.cell_type == "code" and changed[0] in cell.source]
        assert cells, f"{path} does not contain {changed[0]!r}"
        for cell in cells:
            cell.source = cell.source.replace(*changed)
    {"execute": execute, "interrupt": interrupt}[what](notebook)
