"""The dataflow of a run as a picture, with measured rates and waits on it."""

from __future__ import annotations

import os
from pathlib import Path

from jsrl.graph.drawing import Note, draw
from jsrl.graph.graph import Graph
from jsrl.graph.graph_file import plain_graph
from jsrl.graph.links import hop_of
from jsrl.graph.policies import folder_of
from jsrl.services.metrics.phases import of_main_thread
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.report.run_report import RunReport, WorkerTime, make_report
from jsrl.transport.ledger.hops import SAMPLES

NOTE = "Bars: share of time that workers work. Red: the busiest of those that rows pass. Rates: trajectories of the whole run."


def draw_run(folder: str | os.PathLike[str]) -> str:
    """Return the picture of a run's graph as SVG, with what was measured."""
    return dataflow(make_report(RunFolder(Path(folder))))


def dataflow(report: RunReport) -> str:
    """Return the picture as SVG: workers with their shares of work and waits, streams with rates; empty without a graph."""
    graph = plain_graph(report.folder)
    if graph is None:
        return ""
    return draw(graph, _measured(graph, report), _rates(graph, report), NOTE)


def _measured(graph: Graph, report: RunReport) -> dict[str, Note]:
    """Return family -> its workers' share of work, and their main wait; the busiest on the way of the rows is marked."""
    times = {(time.kind.name, time.policy): time for time in report.workers}
    busy = {name: 1.0 - time.phases["wait"] for name, time in times.items()}
    passing = [name for name, time in times.items() if any(port.stream_type != "params" for port in time.kind.ports)]
    busiest = max(passing, key=lambda name: busy[name], default=None)
    found = {}
    for worker in graph.workers:
        name = graph.kind(worker.name).name, folder_of(graph, worker)
        if name in times:
            found[worker.family] = Note(_lines(times[name]), busy[name], name == busiest)
    return found


def _lines(time: WorkerTime) -> tuple[str, str]:
    waits = [a for a in of_main_thread(time.kind.shown.activities) if a.phase == "wait"]
    share, what = max(((time.activities.get(a.name, 0.0), a.waits_for) for a in waits), default=(0.0, ""))
    waiting = f"waits {share:.0%}{f': {what}' if what else ''}" if share >= 0.01 else ""
    return f"works {1.0 - time.phases['wait']:.0%}", waiting


def _rates(graph: Graph, report: RunReport) -> dict[tuple[str, str], str]:
    """Return (stream, reading family) -> trajectories per second, over the whole run."""
    wall_s = report.whole_s
    hops = {SAMPLES: report.ledger, **report.hops}
    counted: dict[tuple[str, str], float] = {}
    for stream in graph.streams if wall_s > 0 else ():
        for reader, _ in graph.sinks(stream.name) if stream.type == "samples" and not stream.feedback else ():
            key = stream.name, reader.family
            consumed = (hops.get(hop_of(graph, stream, reader)) or {}).get("consumed", 0)
            counted[key] = counted.get(key, 0.0) + consumed
    return {key: f"{count / wall_s:,.3g}/s" for key, count in counted.items() if count}
