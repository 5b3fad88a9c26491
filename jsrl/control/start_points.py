"""Where a policy of a run or a replaced learner starts: with new params, those of another run, or its newest snapshot."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from jsrl.control.result import is_finished
from jsrl.control.resume import (
    common_batches,
    continue_exactly,
    environment_obstacle,
    init_points,
    may_be_exact,
    next_start_point,
    remove_incomplete_snapshots,
    start_after,
)
from jsrl.errors import ConfigError, counted
from jsrl.experiment import Experiment
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.graph.addresses import learner_leg
from jsrl.graph.graph_file import saved_experiment
from jsrl.graph.plan import Plan
from jsrl.graph.policies import PolicyPart
from jsrl.graph.schemas import trace_agent
from jsrl.services.runs.runs import RunFolder, in_command, last_values
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.legs import ledger_path
from jsrl.types import ArraySpec, changed_leaves, named_leaves, spec_of
from jsrl.workers.jobs import Job, StartPoint, check_params
from jsrl.workers.kinds import find_kind

REPLAY_ROWS = "replay/*/rows"  # of a run: the saved rows of its replay workers
PARTS = ("params", "learner_params", "opt_state")  # of a state; a replay and a director add to the rest


def find_start_points(
    resumed: RunFolder | None, init_from: str | None, runs_dir: str | os.PathLike[str]
) -> tuple[dict[str, StartPoint], list[str]]:
    """Return the start points of policies ("" is the first one), and messages."""
    if resumed is not None and init_from is not None:
        raise ConfigError(
            "--resume continues with a run's own params; leave out --init-from, or start a new run with it."
        )
    if resumed is not None:
        remove_incomplete_snapshots(resumed)
        start, messages = next_start_point(resumed)
        return {"": start}, messages
    return {} if init_from is None else init_points(init_from, runs_dir), []


def check_kept(init_from: str, runs_dir: str | os.PathLike[str], deleted: Collection[Path]) -> None:
    """Check, before `--overwrite` deletes folders, that the params to begin with exist and are in none of them."""
    for point in init_points(init_from, runs_dir).values():
        source = Path(str(point.restore)).resolve()
        for folder in deleted:
            if source.is_relative_to(folder.expanduser().resolve()):
                raise ConfigError(
                    f"--init-from {init_from} begins with params of {folder}, which --overwrite deletes; choose another "
                    "--run-name."
                )


def begin_policies(
    plan: Plan, folder: RunFolder, starts: Mapping[str, StartPoint], *, resumed: bool, show: Callable[[str], None]
) -> dict[str, StartPoint]:
    """Return the start point of each policy of a plan, by name.

    Args:
      starts: of policies that take something from before; "" is the first policy.
    """
    first, *others = plan.policies
    unknown = sorted(set(starts) - {"", *others})
    if unknown:
        names = ", ".join(others) or "none"
        raise ConfigError(
            f"--init-from names the policy {unknown[0]!r}; the first policy takes RUN@TAG without a name, and the run's other "
            f"policies are: {names}."
        )
    start_points: dict[str, StartPoint] = {}
    together = resumed and len(plan.experiment.policies) > 1 and may_be_exact(plan.experiment)
    batches = _same_batch(plan, folder) if together else None
    obstacle = environment_obstacle(folder, plan.experiment) if resumed and may_be_exact(plan.experiment) else None
    total_before = saved_experiment(folder).total_env_steps if resumed else 0
    for policy in plan.policies.values():
        is_first, messages = policy.name == first, list[str]()
        updates = None if batches is None else batches * policy.experiment.updates_per_batch
        if is_first and updates is not None and updates != starts[""].updates:
            starts = {**starts, "": next_start_point(folder, updates=updates)[0]}
        start_point = starts.get("" if is_first else policy.name, StartPoint())
        if resumed and not is_first:
            page = ledger_path(folder.path, learner_leg(plan.graph, policy.learner))
            start_point, messages = next_start_point(folder, policy.folder, page, updates)
        if resumed and start_point.restore is not None and (updates is not None or not together):
            start_point, line = continue_exactly(policy.experiment, folder, start_point, policy.groups, obstacle)
            messages += [line] if line else []
        if resumed and (line := _rate_line(policy.experiment, start_point, total_before)):
            messages.append(line)
        if resumed and start_point.restore is not None:
            messages += what_is_lost(folder, policy, start_point)
        if starts and not resumed and start_point.restore is None:
            option = "RUN@TAG" if is_first else f"{policy.name}=RUN@TAG"
            messages.append(
                f"{'the first policy has ' if is_first else ''}new params; with --init-from {option} it takes a run's"
            )
        if start_point.params_only:
            messages.append(
                f"begins with the params of {start_point.restore}; its optimizer, counts and what else a learner learns, "
                "such as critics and temperatures, begin anew"
            )
        for line in messages:
            show(line if is_first else f"policy {policy.name}: {line}")
        start_points[policy.name] = start_point
    if resumed:
        _check_totals(plan, folder, start_points)
    return start_points


def _rate_line(e: Experiment, start: StartPoint, total_before: int) -> str:
    """Return how a resume with another total changes the learning rate of a linear schedule; empty: it does not."""
    agent, before = e.agent, dataclasses.replace(e, total_env_steps=total_before).total_updates
    follows = getattr(agent, "schedule", "") == "linear" and agent.total_updates == e.total_updates
    if not follows or before == e.total_updates:
        return ""
    old, new = (agent.learning_rate * max(0.0, 1.0 - start.made / total) for total in (before, e.total_updates))
    return (
        f"the learning rate jumps from {old:.3g} to {new:.3g}: its schedule ends with the run, after "
        f"{e.total_updates:,} updates instead of {before:,}"
    )


def what_is_lost(folder: RunFolder, policy: PolicyPart, start: StartPoint) -> list[str]:
    """Return sentences about what a policy of a resumed run had beyond its snapshot."""
    lines, replay = [], policy.experiment.buffer
    last = last_values(folder.metrics_path)[0].get(policy.named("env_steps"), 0)
    if last > start.env_steps:
        lines.append(f"goes back from {last:,.0f} to {start.env_steps:,} env steps, to its newest snapshot")
    if replay is not None and not replay.save:
        lines.append("its replay begins empty, because snapshots leave it out (--replay.save keeps it)")
    elif policy.experiment.has_replay_workers and not any(folder.path.glob(REPLAY_ROWS)):
        lines.append(f"its replay begins empty, because its rows are missing: {folder.path / REPLAY_ROWS}")
    return lines


def check_snapshots(plan: Plan) -> None:
    """Check, before workers start, that the snapshots that the policies begin with fit their agents, by their shapes."""
    for policy in plan.policies.values():
        start, env = plan.job(policy.learner).start_point, plan.schemas_of[policy.name].env
        if start.restore is None:
            continue
        folder, _, selector = start.restore.rpartition("@")
        given = SnapshotStore(folder).specs(selector)
        state, _ = trace_agent(build_agent(resolved_agent(policy.experiment), env), env)
        if start.params_only:
            check_params(start, _specs("", state.params), _below("params/", given) or _below("state/params/", given))
            continue
        wanted = {name: spec for part in PARTS for name, spec in _specs(f"state/{part}/", getattr(state, part)).items()}
        kept = {
            name: spec for name, spec in given.items() if name.startswith(tuple(f"state/{part}/" for part in PARTS))
        }
        if changed := changed_leaves(kept, wanted):
            raise ConfigError(
                f"the state in {start.restore} does not fit: {changed}. The environment's spaces, the agent's options or its "
                "code have changed; put them back, or begin a new run with --init-from."
            )


def _specs(prefix: str, tree: Any) -> dict[str, ArraySpec]:
    return {f"{prefix}{name}": spec for name, spec in named_leaves(spec_of(tree))}


def _below(prefix: str, specs: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    return {name.removeprefix(prefix): spec for name, spec in specs.items() if name.startswith(prefix)}


def replacement_job(job: Job, incarnation: int, folder: Path) -> tuple[Job, list[str]]:
    """Return the job that replaces a dead worker, and warnings; its state is the last good snapshot, or the run's start."""
    job = dataclasses.replace(job, incarnation=incarnation)
    if find_kind(job.kind).lifecycle.state != "snapshot":
        return job, []
    store = SnapshotStore(job.snapshots / "state")
    start, broken = start_after(store, ledger_path(folder, job.input_leg), job.start_point)
    used = [f"{job.name} continues from update {start.made:,} instead"] if broken else []
    return dataclasses.replace(job, start_point=start), broken + used


def lost_text(job: Job, updates: int) -> str:
    """Return how many updates a learner's replacement makes again, as text; empty: none.

    Args:
      job: of the replacement. updates: of the dead learner, when it last reported them.
    """
    start, lost = job.start_point.made, updates - job.start_point.made
    if not find_kind(job.kind).lifecycle.must_finish or lost <= 0:
        return ""
    why = "" if job.start_point.restore and not job.start_point.params_only else ", as there is no snapshot yet"
    return f"{job.name} continues from update {start:,}{why}; at least {counted(lost, 'update')} are lost"


def _check_totals(plan: Plan, folder: RunFolder, starts: Mapping[str, StartPoint]) -> None:
    """Refuse a resume that has nothing to train: it would only replace the report of what was trained."""
    ended = is_finished(folder.path)
    if all(_has_all(policy.experiment, starts[policy.name], ended) for policy in plan.policies.values()):
        e, first = plan.experiment, starts[next(iter(plan.policies))]
        reached = first.env_steps or int(first.updates * e.env_steps_per_batch // e.updates_per_batch)
        raise ConfigError(
            f"{folder.name} has trained {reached:,} env steps of --total-env-steps {e.total_env_steps:,}; give a larger "
            f"number to train on, or score it with jsrl evaluate {in_command(folder.path)}."
        )


def _has_all(e: Experiment, start: StartPoint, ended: bool) -> bool:
    """Return whether a policy has trained all that it is to train; if its run has not `ended` as intended, a batch more."""
    if e.has_replay_workers:
        return start.env_steps >= e.total_env_steps + (0 if ended else e.rows_per_update)
    return start.updates >= e.last_number + (0 if ended else e.updates_per_batch)


def _same_batch(plan: Plan, folder: RunFolder) -> int | None:
    """Return the batch after which all policies of shared environments continue exactly; None: there is none, in serial runs.

    Each learner writes its snapshots by its own clock.
    """
    policies = plan.policies.values()
    batches = common_batches(folder, {policy.folder: policy.experiment.updates_per_batch for policy in policies})
    if batches is None and plan.experiment.deterministic:
        raise ConfigError(
            f"{folder.name} cannot be continued exactly, as --deterministic promises: its policies "
            f"{', '.join(plan.policies)} have no snapshots of the same batch. Continue it with new episodes: "
            "--snapshots.exact false."
        )
    return batches
