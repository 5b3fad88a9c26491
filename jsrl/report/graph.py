"""The dataflow of a run as a picture, with measured rates and waits on it."""

from __future__ import annotations

from jsrl.graph.drawing import draw
from jsrl.graph.graph import Graph
from jsrl.launch.graph_file import graph_of
from jsrl.launch.links import hop_of
from jsrl.report.run_report import RunReport
from jsrl.transport.ledger.hops import SAMPLES


def dataflow(report: RunReport) -> str:
    """Return the picture as SVG, with waits of workers and trajectories per second of streams; empty without a graph."""
    graph = graph_of(report.folder)
    return "" if graph is None else draw(graph, {**_waits(graph, report), **_rates(graph, report)})


def _waits(graph: Graph, report: RunReport) -> dict[str, str]:
    """Return family -> how much of their time its workers wait."""
    waits = {time.kind.name: f"waits {100 * time.phases['wait']:.0f}%" for time in report.workers}
    found = {worker.family: waits.get(graph.kind(worker.name).name, "") for worker in graph.workers}
    return {family: text for family, text in found.items() if text}


def _rates(graph: Graph, report: RunReport) -> dict[str, str]:
    """Return stream -> what went through it per second, over the whole run."""
    wall_s = float(report.result.get("wall_s") or 0.0)
    hops = {SAMPLES: report.ledger, **report.hops}
    found = {}
    for stream in graph.streams if wall_s > 0 else ():
        names = [hop_of(graph, stream, reader) for reader, _ in graph.sinks(stream.name)]
        counted = sum(hops[name].get("consumed", 0) for name in names if hops.get(name))
        if stream.sort == "samples" and not stream.feedback and counted:
            found[stream.name] = f"{counted / wall_s:,.3g}/s"
    return found
