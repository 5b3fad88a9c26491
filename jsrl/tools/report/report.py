"""The report of a run, from the files in its folder alone: what happened, where time went, and what limited it.

`leave_report` writes report.txt and report.html at the end of a run; `jsrl report RUN` writes them again, even for
a run that was killed or is still running.
"""

from __future__ import annotations

from collections.abc import Callable

from jsrl.graph.graph_file import kinds_of
from jsrl.references.importing import import_target
from jsrl.services.metrics.phases import TRACES
from jsrl.services.runs.files import write_atomic
from jsrl.services.runs.runs import RunFolder, in_command
from jsrl.services.runs.state import is_whole
from jsrl.tools.report.html import page
from jsrl.tools.report.run_report import make_report
from jsrl.tools.report.text import document, summary
from jsrl.workers.kinds import phase_of


def leave_report(folder: RunFolder, warn: Callable[[str], None]) -> str:
    """Merge the run's traces, write its reports, and return the summary; failures are warnings, never errors.

    If the report fails, the outcome of the run stays the same. A folder that was deleted gets none.
    """
    try:
        if not is_whole(folder.path):
            return ""
        try:
            if (folder.path / TRACES).exists():
                import_target("jsrl.services.metrics.tracing:merge_traces")(
                    folder.path, phase_of(kinds_of(folder.path))
                )
        except OSError as error:
            warn(f"trace.json could not be written ({error}).")
        return write_report(folder)
    except Exception as error:  # a bug in a report must not fail a trained run
        warn(
            f"the report could not be made ({type(error).__name__}: {error}); try: jsrl report {in_command(folder.path)}"
        )
        return ""


def write_report(folder: RunFolder) -> str:
    """Write report.txt and report.html from a run's files; return the summary for the end of the run."""
    report = make_report(folder)
    write_atomic(folder.path / "report.txt", document(report).encode(), durable=False)
    write_atomic(folder.report, page(report).encode(), durable=False)
    return summary(report)
