"""`python -m jsrl.workers KIND`: how every worker process starts. Imports only what its kind needs."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
from pathlib import Path

from jsrl.workers.base import Reporter, Worker, die_with_parent, run


def main(arguments: list[str] | None = None) -> int:
    """Run the worker that a job file describes; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m jsrl.workers", description=__doc__)
    parser.add_argument("kind", help="actor, inference, learner, evaluator or parameter-server")
    parser.add_argument("--job", required=True, type=Path, help="JSON file that the controller wrote")
    parser.add_argument("--control", required=True, help="address of the controller")
    parser.add_argument("--name", required=True, help="such as actor-0")
    parser.add_argument("--incarnation", type=int, default=0)
    parser.add_argument("--parent", type=int, required=True, help="process that this one must not outlive")
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    from jsrl.services.control import ControlClient

    control = ControlClient(options.control, options.name, options.incarnation, parent_pid=options.parent)
    signal.signal(signal.SIGTERM, lambda *_: control.stop.set())
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def build_from_file(reporter: Reporter) -> Worker:
        from jsrl.reference import from_json
        from jsrl.workers.jobs import build

        job = from_json(json.loads(options.job.read_text()))
        worker = build(job, reporter)
        if job.kind == "actor" and job.experiment.placement != "inline":
            return _TellOfJax(worker, reporter)
        return worker

    return run(build_from_file, control)


class _TellOfJax:
    """An actor that says so when the user's environment made it load jax (about 150 MB and 15 threads more)."""

    def __init__(self, worker: Worker, reporter: Reporter) -> None:
        self._worker, self._reporter = worker, reporter
        self.step, self.report = worker.step, worker.report
        self.command, self.close, self.name = worker.command, worker.close, worker.name

    def setup(self) -> None:
        """Set the actor up, then look."""
        self._worker.setup()
        if "jax" in sys.modules:
            self._reporter.event(
                "warning",
                f"{self.name}: the environment imported jax, which costs each actor about 150 MB and slows its start; "
                "keep jax out of the modules that environments import.",
            )


if __name__ == "__main__":
    sys.exit(main())
