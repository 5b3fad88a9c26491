"""The graph of a run as a file: written at the start, compared on a resume; also graphs given as `module:function`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeAlias

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.graph import Graph, WorkerNode
from jsrl.graph.placements import make_graph
from jsrl.graph.policies import policies_of
from jsrl.references.importing import import_named, module_of
from jsrl.references.reference import from_json, is_equal
from jsrl.services.runs.files import read_json, write_json
from jsrl.services.runs.runs import RunFolder
from jsrl.transport.stream import Stream
from jsrl.workers.kinds import Described, Kind, description, find_kind, named_kinds

FILE = "graph.json"  # of a run
KINDS = "kinds"  # its entry for what reports show of users' kinds
OWN = "own"  # in place of a function: the experiment's own graph
Edit: TypeAlias = Graph | Callable[[Graph], Graph] | str


def resolve(experiment: Experiment, graph: Edit | None) -> tuple[Graph, bool]:
    """Return (the graph to run, whether it differs from the experiment's own).

    Args:
      experiment: to run. graph: a graph; a function that gets the experiment's own graph and returns one; such a function as
        `module:function`; None or `own`: the experiment's own.
    """
    own = make_graph(experiment)
    graph = None if graph == OWN else graph
    edit = _imported(graph) if isinstance(graph, str) else graph
    if edit is None or isinstance(edit, Graph):
        return edit or own, edit is not None and edit != own
    name = graph if isinstance(graph, str) else getattr(edit, "__name__", repr(edit))
    try:
        found = edit(own)
    except ConfigError as error:
        raise ConfigError(f"graph {name} cannot change this graph: {error}") from error
    if not isinstance(found, Graph):
        raise ConfigError(
            f"graph {name} returned {_a(found)}, expected a Graph; end the function with `return graph`, where graph is what "
            "the last change returned (no method changes a graph in place)."
        )
    return found, found != own


def _imported(reference: str) -> Graph | Callable[[Graph], Graph]:
    module, _, name = reference.rpartition(":")
    if not module or not name:
        raise ConfigError(f"graph is {reference!r}, expected module:function, such as my_graphs:with_augmentation.")
    module = module_of(module) if module.endswith(".py") else module
    imported = import_named(module, reference)
    found = getattr(imported, name, None)
    if isinstance(found, Graph) or (callable(found) and not isinstance(found, type)):
        return found
    what = f"has no {name!r}" if found is None else f"has {name!r}, but it is {_a(found)}"
    there = [n for n, value in vars(imported).items() if isfunction(value) and value.__module__ == module]
    raise ConfigError(
        f"graph {reference}: the module {module} {what}; expected a function that is given a Graph and returns one, or a "
        f"Graph. Functions there: {', '.join(there) or 'none'}."
    )


def _a(value: object) -> str:
    if value is None or isinstance(value, type):
        return "None" if value is None else "a class"
    return f"a value of type {type(value).__name__}"


def stored_graph(folder: RunFolder) -> Graph | None:
    """Return the graph of a run that differs from its experiment's own; None: it ran that."""
    try:
        saved = read_graph(folder.path)
    except ConfigError as error:
        raise ConfigError(
            f"{str(error).removesuffix('.')}. A resume continues with the workers in this file: put it back. Without it, "
            f"--graph {OWN} continues with the experiment's own workers, and --graph MODULE:FUNCTION changes them again."
        ) from error
    return saved if saved.to_json() != make_graph(saved_experiment(folder)).to_json() else None


def read_graph(folder: Path) -> Graph:
    try:
        return Graph.from_json(_read(folder)[0])
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(f"{folder / FILE} cannot be read: {error}") from error


def write_graph(folder: RunFolder, graph: Graph) -> None:
    """Write a run's graph, with what reports show of a user's kinds of workers."""
    kinds = {worker.kind: description(graph.kind(worker.name)) for worker in graph.workers if ":" in worker.kind}
    write_json(folder.path / FILE, graph.to_json() | {KINDS: kinds})


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON form of a run's graph, and of its users' kinds."""
    tree = read_json(folder / FILE)
    kinds = tree.pop(KINDS, {}) if isinstance(tree, dict) else {}
    return tree, kinds if isinstance(kinds, dict) else {}


def saved_experiment(folder: RunFolder) -> Experiment:
    folder.use_source()
    config = folder.config
    try:
        value = from_json(config)
    except ConfigError as error:
        raise ConfigError(f"{folder.config_path} cannot be used: {error}") from error
    if not isinstance(value, Experiment):
        raise ConfigError(f"{folder.config_path} has no Experiment; the folder is not a complete run.")
    return value


def differences(old: Graph, new: Graph) -> list[str]:
    """Return the differences of two graphs, a line for each worker and stream."""
    lines = []
    for what, before, after in (("worker", old.workers, new.workers), ("stream", old.streams, new.streams)):
        was, now = {entry.name: entry for entry in before}, {entry.name: entry for entry in after}
        lines += [f"graph: the {what} {name} is gone" for name in was if name not in now]
        lines += [f"graph: the {what} {name} is new" for name in now if name not in was]
        lines += [
            f"graph: the {what} {name} has other {_fields(was[name], now[name])}"
            for name in now
            if name in was and not is_equal(was[name], now[name])
        ]
    return lines


def _fields(old: WorkerNode | Stream, new: WorkerNode | Stream) -> str:
    """Return the fields in which two workers, or two streams, differ; with short values."""
    lines = []
    for field in dataclasses.fields(old):
        was, now = getattr(old, field.name), getattr(new, field.name)
        values = f" ({was!r} -> {now!r})"
        if not is_equal(was, now):
            lines.append(field.name + (values if len(values) < 60 else ""))
    return ", ".join(lines)


def graph_of(folder: Path) -> Graph | None:
    """Return the graph of a run; None: it left none, or it cannot be read (a user's kind is missing)."""
    try:
        graph = read_graph(folder)
        return graph if graph.kinds else None
    except ConfigError:
        return None


def plain_graph(folder: Path) -> Graph | None:
    """Return the graph of a run for a report; None: it left none, or it cannot be read.

    Nothing that the file names is imported: users' kinds are as the file describes them, settings stay JSON values.
    """
    try:
        tree, kinds = _read(folder)
        graph = Graph.from_json(tree, decode=lambda settings, _: settings)
        described = {reference: Described.read(reference, facts) for reference, facts in kinds.items()}
        workers = [dataclasses.replace(w, kind=described.get(w.kind, w.kind.partition(":")[0])) for w in graph.workers]
        graph = dataclasses.replace(graph, workers=tuple(workers))
        return graph if graph.kinds else None
    except (OSError, ValueError, ConfigError):
        return None


def experiment_of(folder: RunFolder, policy: str = "") -> Experiment:
    """Return the experiment of a run's policy, with its learner's settings and the environments whose rows reach it.

    Args:
      folder: the run's. policy: its name; empty: the first one's.
    """
    experiment = saved_experiment(folder)
    if (folder.path / FILE).exists():
        read_graph(folder.path)  # a policy with other settings than the learner's would be another one
    graph = graph_of(folder.path)
    parts = {} if graph is None else {part.folder: part for part in policies_of(graph, experiment).values()}
    if policy in parts:
        return parts[policy].experiment
    if policy:
        others = ", ".join(name for name in parts if name) or "none"
        raise ConfigError(f"{folder.name} has no policy {policy!r} other than the first; it has: {others}.")
    return experiment


def workers_of(folder: Path) -> list[WorkerNode]:
    """Return the workers of a run along the data flow, for a report; none if its graph is unknown."""
    graph = plain_graph(folder)
    return [] if graph is None else graph.flow


def kinds_of(folder: Path) -> tuple[Kind, ...]:
    """Return the kinds of a run's workers along the data flow, for a report; jsrl's own if that is unknown."""
    found: dict[str, Kind] = {}
    for worker in workers_of(folder):
        found.setdefault(worker.kind, find_kind(worker.kind))
    return tuple(found.values()) or named_kinds()
