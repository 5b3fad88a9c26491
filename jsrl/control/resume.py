"""The start point of a resumed run, and the changes that a resume allows."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jsrl.errors import ConfigError, SnapshotError
from jsrl.experiment import Experiment
from jsrl.fields import differences
from jsrl.graph.graph_file import saved_experiment
from jsrl.graph.machine import threads_obstacle
from jsrl.services.runs.runs import RunFolder, in_command, split_tag
from jsrl.services.runs.state import RUNNING, read_identity, write_identity
from jsrl.services.snapshots.format import remove_incomplete, version_damage
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.page import LEDGER, read_page
from jsrl.transport.shared.locks import lock_file
from jsrl.types import version_updates
from jsrl.workers.attached.journal import Journal, journal_path
from jsrl.workers.attached.journaled import exact_obstacle
from jsrl.workers.jobs import StartPoint

MAY_CHANGE = (
    "total-env-steps", "max-minutes", "stop-at-return", "placement", "num-actors", "num-inference-servers", "transport",
    "bind", "encrypt", "compress", "restart", "trace", "record", "record-limit-mb", "learner.num-devices",
    "learner.split", "learner.threads",
)  # fmt: skip
MAY_CHANGE_OF_POLICY = ("placement", "stop-at-return", "against")
MAY_CHANGE_GROUPS = ("actor.", "inference.", "evaluator.", "video.", "snapshots.", "deadlines.", "supervision.", "env.")
MAY_CHANGE_OF_REPLAY = (
    "capacity", "batch-size", "min-size", "updates-per-env-step", "updates-per-call", "tolerance", "prioritised", "alpha",
    "beta", "beta-end", "epsilon", "num-replays", "threads",
)  # fmt: skip

INFLUENCE_FAULTS = {"on-fault", "fault-limit"}  # of the environment's options: not its states
LONG_REPLAY = 100_000  # env steps: a minute or more, unless the environment is fast


def allowed_changes(old: Experiment, new: Experiment) -> list[str]:
    lines = []
    counts = [(e.env_steps_per_batch, e.updates_per_batch) for e in (old, new)]
    kept, given = old.buffer, new.buffer
    refills = kept is not None and given is not None and not kept.save and counts[0] == counts[1]
    for name, (before, after) in differences(old, new).items():
        of_replay = refills and name.removeprefix("replay.") in MAY_CHANGE_OF_REPLAY
        if not old.where.has_actors and name in ("placement", "learner.num-devices"):
            raise ConfigError(
                f"--{name} cannot change on resume ({before} -> {after}): snapshots of a fused run hold its environments, a "
                "group for each device. A new run with --init-from RUN@latest begins with the params of this one."
            )
        if not (_may_change(name) or of_replay or _is_coefficient(name, before, after)):
            why = ""
            if name.startswith("replay.") and counts[0] != counts[1]:
                why = ", because the run counts its updates per env step"
            raise ConfigError(
                f"--{name} cannot change on resume ({before} -> {after}){why}. Limits, placement, real "
                "numbers of the agent (learning rates, coefficients) and the environment's options may. A new run with "
                "--init-from RUN@latest begins with the params of this one; its optimizer and what else its learner has "
                "learned, such as critics and temperatures, begin anew."
            )
        lines.append(f"changed: --{name} {before} -> {after}")
    return lines


def _may_change(option: str) -> bool:
    first, *rest = option.split(".")
    of_policy = first == "policies" and len(rest) == 2 and rest[1] in MAY_CHANGE_OF_POLICY
    return of_policy or option in MAY_CHANGE or (option.startswith(MAY_CHANGE_GROUPS) and option != "env.id")


def _is_coefficient(option: str, before: object, after: object) -> bool:
    """Return whether an option is a real number of an agent, such as its learning rate; None: it is off."""
    parts = option.split(".")
    of_agent = parts[:-1] == ["agent"] or (parts[0] == "policies" and parts[2:-1] == ["agent"])
    return of_agent and {type(before), type(after)} <= {float, type(None)}


@contextlib.contextmanager
def claimed(folder: RunFolder) -> Iterator[None]:
    """Hold a run folder for this process, so that no second process continues it."""
    try:
        os.fspath(folder.path.absolute()).encode()
    except UnicodeEncodeError as error:
        place = ascii(os.fspath(folder.path.absolute()))
        raise ConfigError(f"the path {place} is not valid UTF-8; choose another place with --runs-dir.") from error
    path = folder.path / RUNNING
    fd = lock_file(path)
    if fd is None:
        process = read_identity(folder.path) or "?"
        raise ConfigError(
            f"{folder.name} is running (process {process}); stop it first (jsrl stop {in_command(folder.path)}), or start "
            "another run."
        )
    try:
        write_identity(path)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # the folder is read-only now, or gone: the lock ends with this process
                path.unlink()
    finally:
        os.close(fd)


def remove_incomplete_snapshots(folder: RunFolder) -> None:
    """Remove the snapshots of all policies that had not arrived completely from another host when the run ended."""
    for pattern in ("state", "params", "*/state", "*/params"):
        for store in folder.snapshots.glob(pattern):
            remove_incomplete(store)


def next_start_point(
    folder: RunFolder, policy: str = "", ledger: Path | None = None, updates: int | None = None
) -> tuple[StartPoint, list[str]]:
    """Return where a policy starts when its run is resumed, and messages; without snapshots the first one cannot.

    Args:
      folder: the run's. policy: its folder under that of the snapshots. ledger: the page of its learner's counts (default:
        the first learner's). updates: at which it must have its snapshot (None: the newest).
    """
    store, begun = SnapshotStore(folder.snapshots / policy / "state"), StartPoint(-1) if policy else None
    try:
        start, broken = start_after(store, ledger or folder.path / LEDGER, begun, updates)
    except SnapshotError as error:
        begin = "" if store.versions() else " It ended before its first snapshot; start it again as a new run."
        raise ConfigError(f"{folder.name} cannot be resumed: {error}{begin}") from error
    if start.restore is None:
        return start, [f"policy {policy} has no snapshot, so that it starts over"]
    version = start.restore.rpartition("@")[2]
    messages = [*broken, f"continuing from snapshot {version} instead, of update {start.made}"] if broken else []
    return start, messages


def start_after(
    store: SnapshotStore, ledger: Path, begun: StartPoint | None, updates: int | None = None
) -> tuple[StartPoint, list[str]]:
    """Return where a learner starts next, in a new generation, and what is wrong with its newer snapshots.

    Args:
      store: of its states. ledger: the page of its counts. updates: see newest_good.
      begun: its last start, which is repeated if it has no snapshot yet; None: it must have one.

    Raises:
      SnapshotError: it has snapshots, and all are damaged: from the start it would replace them.
    """
    content, last = read_page(ledger), -1 if begun is None else begun.generation
    generation = max(last, content.generation if content is not None else last) + 1
    if begun is not None and not store.versions():
        return dataclasses.replace(begun, generation=generation), []
    version, broken = newest_good(store, updates)
    meta = store.meta(version)
    try:
        made, generation, env_steps = (
            int(meta["updates"]),
            max(generation, int(meta["generation"]) + 1),
            int(meta.get("env_steps", 0)),
        )
    except (KeyError, TypeError, ValueError):
        raise SnapshotError(f"its snapshot {version} is not a learner's.") from None
    number, restore = version_updates(version), f"{store.folder}@{version}"
    return StartPoint(generation, number, restore, env_steps=env_steps, unmade=number - made), broken


def common_batches(folder: RunFolder, policies: Mapping[str, int]) -> int | None:
    """Return the largest number of batches after which each of some policies has a good snapshot; None: there is none.

    Args:
      policies: by their folders under that of the snapshots: the updates of one batch.
    """
    found = [
        {
            version_updates(version) // per_batch
            for version in SnapshotStore(folder.snapshots / policy / "state").versions()
            if version_damage(folder.snapshots / policy / "state" / str(version)) is None
        }
        for policy, per_batch in policies.items()
    ]
    return max(set.intersection(*found), default=None)


def newest_good(store: SnapshotStore, updates: int | None = None) -> tuple[int, list[str]]:
    """Return the version tagged `latest`, or if it is broken the newest good one, and what is wrong with the others.

    Args:
      updates: consider only versions of that many updates (None: all).
    """
    broken: list[str] = []
    candidates = store.versions()[::-1]
    try:
        tagged = store.resolve("latest")
        candidates = [tagged, *(version for version in candidates if version != tagged)]
    except SnapshotError as error:
        if not candidates:
            raise
        broken.append(str(error))
    for version in candidates if updates is None else [v for v in candidates if version_updates(v) == updates]:
        damage = version_damage(store.folder / str(version))
        if damage is None:
            return version, broken
        broken.append(damage)
    raise SnapshotError(" ".join(broken))


def may_be_exact(experiment: Experiment) -> bool:
    return experiment.is_deterministic and experiment.snapshots.exact and experiment.recording is None


def environment_obstacle(folder: RunFolder, experiment: Experiment) -> str | None:
    """Return why a run's journals do not lead to the states of its environments; None: they do."""
    changed = differences(saved_experiment(folder).env, experiment.env).keys() - INFLUENCE_FAULTS
    return f"its environment changed (--env.{min(changed)})" if changed else None


def continue_exactly(
    experiment: Experiment,
    folder: RunFolder,
    start_point: StartPoint,
    groups: Sequence[int] | None = None,
    obstacle: str | None = None,
) -> tuple[StartPoint, str]:
    """Return the start point of a deterministic run whose environments continue exactly, and a line about it.

    Args:
      experiment: of one policy. folder: the run's. start_point: of the policy. groups: of its environments (default: all).
      obstacle: why they cannot continue exactly; None: not known.

    If they cannot, a run that is deterministic without being asked to (serial placement) begins new episodes instead.

    Raises:
      ConfigError: `deterministic` is set, and they cannot; the message says why, and how to continue without.
    """
    if not may_be_exact(experiment) or groups == ():  # no groups: a worker of the user's own steps the environments
        return start_point, ""
    needed = start_point.updates // experiment.updates_per_batch
    reason, generations, played = obstacle or exact_obstacle(experiment) or threads_obstacle(experiment), set(), 0
    try:
        for group in (range(experiment.groups) if groups is None else groups) if reason is None else ():
            journal = Journal(journal_path(folder.path, group))
            played = needed - journal.header.first
            if played < 0:
                raise SnapshotError(f"{journal.path} begins after version {start_point.updates}")
            for _ in journal.records(played):
                pass  # every record is read and its checksum compared
            generations.add(journal.header.generation)
    except SnapshotError as error:
        reason = str(error)
    if reason is None and len(generations) > 1:
        reason = f"its journals come from different starts of the run (generations {sorted(generations)})"
    if reason is None:
        rows = played * experiment.rollout_length * experiment.envs
        line = f"continuing exactly: the environments replay {rows:,} env steps"
        line += "; --snapshots.exact false begins new episodes instead" if rows >= LONG_REPLAY else ""
        return dataclasses.replace(start_point, journal_generation=generations.pop()), line
    if experiment.deterministic:
        raise ConfigError(
            f"{folder.name} cannot be continued exactly, as --deterministic promises: {reason}. Continue it with new "
            "episodes: --snapshots.exact false."
        )
    return start_point, f"begins new episodes instead of continuing exactly: {reason}"


def init_points(init_from: str, runs_dir: str | os.PathLike[str]) -> dict[str, StartPoint]:
    """Return the start points of policies that take params of other runs, by name; "" is the first policy.

    Args:
      init_from: `RUN@TAG` for the first policy, `NAME=RUN@TAG` for another one; several with commas between them.
    """
    points: dict[str, StartPoint] = {}
    for policy, _, params in _named_sources(init_from, runs_dir):
        if policy in points:
            raise ConfigError(
                f"--init-from {init_from} names {policy or 'the first policy'} twice; name each policy once."
            )
        points[policy] = StartPoint(restore=params, params_only=True)
    return points


def with_paths(init_from: str, runs_dir: str | os.PathLike[str]) -> str:
    """Return the value of --init-from with the path of each run: the newest run of an EXPERIMENT changes."""
    found = []
    for policy, source, _ in _named_sources(init_from, runs_dir):
        run, tag = split_tag(source)
        path = RunFolder.open(run, runs_dir).path
        whole = f"{path}@{tag or 'latest'}" if "," not in str(path) else source  # commas separate the policies
        found.append(f"{policy}={whole}" if policy else whole)
    return ",".join(found)


def _named_sources(init_from: str, runs_dir: str | os.PathLike[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (policy, RUN@TAG, where its params are) of each part of --init-from; "" is the first policy."""
    for part in init_from.split(","):
        name, equals, rest = part.partition("=")
        try:
            found = "", part, params_source(part, runs_dir)  # a run's name may contain an = as well
        except ConfigError:
            if not equals:
                raise
            found = name, rest, params_source(rest, runs_dir)
        yield found


def params_source(init_from: str, runs_dir: str | os.PathLike[str]) -> str:
    """Return `store folder@selector` for RUN@TAG: of `latest` and `final` the learner's state, of other tags params.

    If that store does not have the tag, the other one is used.

    Tags of a policy other than the first are `NAME/TAG`.
    """
    name, selector = split_tag(init_from)
    folder = RunFolder.open(name, runs_dir)
    policy, _, tag = (selector or "latest").rpartition("/")
    parts = ("state", "params") if tag in ("latest", "final") else ("params", "state")
    stores = [SnapshotStore(folder.snapshots / policy / part) for part in parts]
    for store in stores:
        if tag in store.tags():
            return f"{store.folder}@{tag}"
    tags = {f"{policy}/{tag}" if policy else tag for store in stores for tag in store.tags()}
    raise ConfigError(
        f"{folder.name} has no snapshot tagged {selector or 'latest'!r}; it has: {', '.join(sorted(tags)) or 'none'}. "
        "`jsrl status` lists the runs; another one is named by its folder."
    )
