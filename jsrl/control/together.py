"""`run_together`: several fused runs in this process, whose updates one compiled program makes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from jsrl.control.result import Result
from jsrl.control.run import ReadyRun, ready_run
from jsrl.control.run_record import RunRecord
from jsrl.control.serial import SerialRun, run_in_turn
from jsrl.interrupts import remembered
from jsrl.references.importing import import_target

TOGETHER = "jsrl.workers.fused.together:Together"  # loads jax


def run_together(runs: Sequence[Mapping[str, Any]]) -> list[Result | BaseException]:
    """Train several experiments of placement `fused-serial`; return their results, or why they failed.

    They may differ in their seeds, and in the `explorable` numbers of their agents. Each has its own folder.

    Args:
      runs: arguments of `ready_run` for each.

    Raises:
      ConfigError: one of them cannot run, or not in one program. Then none has begun.
    """
    with remembered(), contextlib.ExitStack() as stack:  # remembered once: the runs' own blocks end in any order
        each = [stack.enter_context(contextlib.ExitStack()) for _ in runs]
        ready = [own.enter_context(ready_run(**options)) for own, options in zip(each, runs, strict=True)]
        group = import_target(TOGETHER)([job for one in ready for job in one.plan.jobs if job.kind == "fused"])
        records = [one.begin() for one in ready]
        for record in records:
            record.begin()

        def ended(number: int) -> None:
            """Release the folder of a run."""
            with each[number]:
                _finish(ready[number], records[number])

        pairs = zip(ready, records, strict=True)
        return run_in_turn([SerialRun(one.plan, record, group.build) for one, record in pairs], ended)


def _finish(ready: ReadyRun, record: RunRecord) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # it ends the wait for hooks and sinks; the run has ended already
        record.finish()
    ready.report()
