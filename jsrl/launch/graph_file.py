"""The graph of a run as a file: written at the start, compared on a resume; and graphs given as `module:function`."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.graph import Graph, WorkerNode
from jsrl.graph.placements import make_graph
from jsrl.runs.files import write_atomic
from jsrl.runs.runs import RunFolder
from jsrl.workers.kinds import Kind, find_kind, own_kinds

FILE = "graph.json"  # of a run
Edit: TypeAlias = Graph | Callable[[Graph], Graph] | str


def resolve(experiment: Experiment, graph: Edit | None) -> Graph:
    """Return the graph to run: the experiment's own, as it is or changed, or another one.

    Args:
      experiment: what to run. graph: a graph; a function that is given the experiment's own and returns one; or where such a
        function is, as `module:function`; None: the experiment's own.

    Raises:
      ConfigError: there is no such function, or it does not return a graph.
    """
    own = make_graph(experiment)
    if graph is None:
        return own
    edit = _imported(graph) if isinstance(graph, str) else graph
    changed = edit if isinstance(edit, Graph) else edit(own)
    if not isinstance(changed, Graph):
        name = graph if isinstance(graph, str) else getattr(graph, "__name__", repr(graph))
        raise ConfigError(f"{name} returned {type(changed).__name__}; it is given a graph and must return the new one.")
    return changed


def _imported(reference: str) -> Callable[[Graph], Graph]:
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ConfigError(f"graph is {reference!r}, expected module:function, such as my_graphs:with_augmentation.")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"graph {reference}: {error} (modules of the working folder are found).") from error
    except AttributeError:
        raise ConfigError(f"graph {reference}: the module {module} has no {name!r}.") from None


def kept_graph(folder: RunFolder) -> tuple[Graph | None, str]:
    """Return the changed graph that a run was started with (None: it ran its experiment's own), and a line on it."""
    saved = _saved(folder.path)
    if saved is None or not saved["changed"]:
        return None, ""
    graph = Graph.from_json(saved["graph"])
    return graph, f"its changed graph goes on ({FILE}); to go on with another one, give --graph"


def write_graph(folder: RunFolder, experiment: Experiment, graph: Graph, *, resumed: bool) -> list[str]:
    """Write a run's graph; return what a resume changes of it, for people."""
    saved, changed, told = _saved(folder.path) if resumed else None, graph != make_graph(experiment), []
    if saved is not None and (changed or saved["changed"]):  # else the options that changed say it all
        told = differences(Graph.from_json(saved["graph"]), graph)
    tree = {"changed": changed, "graph": graph.to_json()}
    write_atomic(folder.path / FILE, f"{json.dumps(tree, indent=2)}\n".encode())
    return told


def _saved(folder: Path) -> dict | None:
    try:
        tree = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    return tree if isinstance(tree, dict) and {"changed", "graph"} <= tree.keys() else None


def differences(old: Graph, new: Graph) -> list[str]:
    """Return how two graphs differ, a line for each worker and stream."""
    lines = []
    for what, before, after in (("worker", old.workers, new.workers), ("stream", old.streams, new.streams)):
        was, now = {entry.name: entry for entry in before}, {entry.name: entry for entry in after}
        lines += [f"graph: the {what} {name} is gone" for name in was if name not in now]
        lines += [f"graph: the {what} {name} is new" for name in now if name not in was]
        lines += [f"graph: the {what} {name} has changed" for name in now if name in was and was[name] != now[name]]
    return lines


def graph_of(folder: Path) -> Graph | None:
    """Return the graph of a run; None where it left none, or one that cannot be read any more (a user's kind has gone)."""
    saved = _saved(folder)
    if saved is None:
        return None
    try:
        graph = Graph.from_json(saved["graph"])
        return graph if graph.kinds else None
    except ConfigError:
        return None


def workers_of(folder: Path) -> list[WorkerNode]:
    """Return the workers of a run along the flow of its data; none where its graph is not known."""
    graph = graph_of(folder)
    return [] if graph is None else graph.flow


def kinds_of(folder: Path) -> tuple[Kind, ...]:
    """Return the kinds of a run's workers along the flow of its data; jsrl's own where that is not known."""
    found: dict[str, Kind] = {}
    for worker in workers_of(folder):
        found.setdefault(worker.kind, find_kind(worker.kind))
    return tuple(found.values()) or own_kinds()
