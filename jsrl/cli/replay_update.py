"""`jsrl dev replay-update RUN`: repeat the update whose result was not finite, and show why.

A run with such an update stops before it publishes the result, and keeps the state before the update and its batch in
RUN/failed-update. Here the agent is built from the run's own configuration and the update is repeated, alone, in this
process: metrics, which leaves of batch, old state and new state hold NaN or infinity, and, if batch and old state hold none,
the first operation that makes a NaN.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jsrl.cli.main import Parser, show_error
from jsrl.errors import AgentFault, ConfigError, JsrlError, SnapshotError, own_traceback
from jsrl.graph.graph_file import experiment_of
from jsrl.graph.schemas import make_schemas
from jsrl.services.runs.runs import RunFolder
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import ArraySpec, Trajectory, Tree, leaves, map_trajectory, named_leaves, unflatten
from jsrl.workers.jobs import FAILED_UPDATE


class Replay(NamedTuple):
    """A repeated update.

    Attributes:
      updates: made before it. state, batch: its inputs (batch [D, T+1, B/D, ...]). metrics: its metrics.
      new_state: its result, as host arrays. first_nan: searches for the first operation that makes a NaN; see that function.
    """

    updates: int
    state: Tree
    batch: Trajectory
    metrics: dict[str, float]
    new_state: Tree
    first_nan: Callable[[], str]


def replay_update(run: str, runs_dir: str = "runs", policy: str = "") -> Replay:
    """Repeat the failed update of a run; `policy`: name of a policy other than the first."""
    import jax

    from jsrl.agents.minibatches import several_updates, update_keys
    from jsrl.parallel import data_parallel
    from jsrl.workers.acting import INIT_STREAM, UPDATE_STREAM, stream_key
    from jsrl.workers.learner.build_updater import agent_of

    folder = RunFolder.open(run, runs_dir)
    store = SnapshotStore(folder.path / FAILED_UPDATE / policy)
    try:
        meta = store.meta("latest")
    except SnapshotError as error:
        raise ConfigError(f"no update of {folder.name} failed: there is nothing in {store.folder}.") from error
    sys.path[:0] = [path for path in meta.get("python_path", ()) if path not in sys.path and Path(path).is_dir()]
    folder.use_source()
    experiment = experiment_of(folder, policy)
    schemas = make_schemas(experiment)
    agent = agent_of(experiment, schemas.env)
    if experiment.has_replay_workers:
        agent = several_updates(agent, experiment.updates_per_call)
    shapes = jax.eval_shape(agent.init, stream_key(experiment.seed, INIT_STREAM))
    template = {"state": shapes, "batch": saved_schema(schemas.trajectory, store.specs("latest"))}
    tree = store.load("latest", template).tree
    devices = jax.local_devices()[: int(meta["devices"])]
    batch = tree["batch"] if len(devices) == int(meta["devices"]) else on_one_device(tree["batch"])
    update = data_parallel(agent.update, devices[: batch.is_first.shape[0]], donate=False)
    key = jax.random.fold_in(stream_key(experiment.seed, UPDATE_STREAM), int(meta["version_number"]))
    if meta.get("windows"):
        key = update_keys(key, int(meta["number"]))[1]
    new_state, output = update(update.place(tree["state"]), batch, key)
    fetched, metrics = update.fetch((new_state, output.metrics))
    values = {name: float(value) for name, value in metrics.items()}
    search = functools.partial(first_nan, agent.update, tree["state"], batch, key)
    return Replay(int(meta["updates"]), tree["state"], batch, values, fetched, search)


def first_nan(update: Callable[..., Any], state: Tree, batch: Trajectory, key: Any) -> str:
    """Return the first operation of an update that makes a NaN, with the line of it; empty: none does, such as for infinity.

    The update runs without compilation, operation by operation, with all devices' shares on one device: this may take minutes.
    """
    import jax

    from jsrl.parallel import AXIS_NAME

    on_each = jax.vmap(functools.partial(update, axis_name=AXIS_NAME), in_axes=(None, 0, None), axis_name=AXIS_NAME)
    try:
        with jax.debug_nans(True), jax.disable_jit():
            on_each(jax.tree.map(jax.numpy.asarray, state), batch, key)
    except (AgentFault, FloatingPointError) as error:
        found = error.__cause__ if isinstance(error, AgentFault) else error
        if not isinstance(found, FloatingPointError):
            raise
        last = traceback.extract_tb(own_traceback(found))[-1]
        operation = str(found).splitlines()[0].rpartition(" ")[2].rstrip(".")
        return f"{operation}, {last.filename}:{last.lineno} in {last.name}: {last.line}"
    return ""


def saved_schema(schema: Trajectory, specs: Mapping[str, ArraySpec]) -> Trajectory:
    """Return the schema of the batch in a snapshot, which has the structure of a trajectory; specs: of its leaves, by name."""
    found = {name.removeprefix("batch/"): spec for name, spec in specs.items() if name.startswith("batch/")}
    schema = schema._replace(sampling=found.get("sampling", ()))
    return unflatten(schema, [found[name] for name, _ in named_leaves(schema)])


def on_one_device(batch: Trajectory) -> Trajectory:
    """Return a batch of several devices as a batch of one (equal except for rounding and noise)."""

    def rows(x: np.ndarray) -> np.ndarray:
        return np.concatenate(list(x), axis=1)[None]

    def columns(x: np.ndarray) -> np.ndarray:
        return np.concatenate(list(x), axis=0)[None]

    return map_trajectory(rows, columns, batch)


def non_finite(tree: Tree) -> list[str]:
    """Return a line for every leaf with NaN or infinity: its name, and the number of such values."""
    lines = []
    for name, leaf in named_leaves(tree):
        values = np.asarray(leaf)
        bad = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros((), bool)
        if bad.any():
            first = [int(i) for i in np.argwhere(bad)[0]]
            lines.append(
                f"{name}: {int(bad.sum())} of {values.size} values, the first at {first}: {values[tuple(first)]}"
            )
    return lines


def report(replay: Replay) -> str:
    """Return the result of a replay as text."""
    lines = [f"update {replay.updates + 1}, repeated:"]
    for name, value in replay.metrics.items():
        lines.append(f"  {name:<24} {value:<14.6g}{'' if np.isfinite(value) else ' <- not finite'}")
    given = {"the batch": replay.batch, "the state before": replay.state, "the state after": replay.new_state}
    for what, tree in given.items():
        bad = non_finite(tree)
        lines.append(f"{what}: {'all values are finite' if not bad else f'{len(bad)} of {len(leaves(tree))} leaves:'}")
        lines += [f"  {line}" for line in bad]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="jsrl dev replay-update", description=__doc__)
    parser.add_argument("run", help="a run folder, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run")
    parser.add_runs_dir()
    parser.add_argument("--policy", default="", help="name of a policy other than the first")
    options = parser.parse_args(arguments)
    try:
        replay = replay_update(options.run, options.runs_dir, options.policy)
        print(report(replay), flush=True)
        if not (non_finite(replay.batch) or non_finite(replay.state)):
            print("looking for the first NaN, operation by operation (minutes; Ctrl-C ends the search) ...", flush=True)
            print(f"first operation that makes a NaN: {replay.first_nan() or 'none found'}")
    except JsrlError as error:
        return show_error(error, 2 if isinstance(error, ConfigError) else 1)
    return 0
