"""A trained policy as a numpy function, with its normaliser and recurrent state, for your own loop."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActParams, Agent
from jsrl.envs.base import EnvStep, GameStep
from jsrl.envs.make import make_spec
from jsrl.envs.seats import SeatView, actions_of, finite_actions, part_of, view_of
from jsrl.envs.spaces import checked
from jsrl.errors import ConfigError, SnapshotError
from jsrl.experiment import Experiment, PolicyConfig
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.experiment.policies import find_seats
from jsrl.parallel import small_calls
from jsrl.references.importing import shown_target
from jsrl.services.runs.runs import RunFolder, split_tag
from jsrl.services.snapshots.players import PLAYERS_FOLDER, PlayerStore
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.tools.export.file import save
from jsrl.types import (
    EnvSpec,
    GameSpec,
    Tree,
    changed_leaves,
    leaves,
    named_leaves,
    to_environment,
    version_updates,
)
from jsrl.workers.acting import ACT_STREAM, stream_key

SEED_STRIDE = 1_009  # distance between the random streams of two seeds; policies that play together use those between


class Policy:
    """A policy with its own recurrent state.

    Attributes:
      experiment: the experiment that trained it. spec: its environment. version: of the params; `updates` is the number of
        updates in it. meta: the snapshot's metadata. source: RUN@TAG that it was loaded from.
      agent: the agent. params: its params.
      view: its part of an environment with several seats, seats: their names; None and (): the environment has one agent.
      stream: number of its random stream; policies that play each other with sampled actions need different ones.
    """

    def __init__(
        self,
        experiment: Experiment,
        spec: EnvSpec,
        params: ActParams,
        version: int,
        meta: dict[str, Any],
        view: SeatView | None = None,
        seats: tuple[str, ...] = (),
        stream: int = 0,
        source: str = "",
    ) -> None:
        self.source = source
        self.experiment, self.spec, self.version, self.meta = experiment, spec, version, meta
        self.view, self.seats, self.stream = view, seats, stream
        self.agent: Agent = build_agent(resolved_agent(experiment), spec)
        self.params = jax.tree.map(jnp.asarray, params)
        self._key = jax.random.fold_in(stream_key(experiment.seed, ACT_STREAM), stream)
        self._act = jax.jit(self._traced, static_argnames="greedy", compiler_options=small_calls())
        self._cores: dict[int, Tree] = {}  # batch size -> recurrent state since the last `reset`
        self._threads: dict[int, int] = {}  # batch size -> the thread whose history that is
        self._steps = itertools.count(1)

    @property
    def updates(self) -> int:
        """Return the number of updates that the params have had."""
        return int(version_updates(self.version))

    def __repr__(self) -> str:
        return f"Policy({self.source or self.experiment.name}, {self.updates:,} updates)"

    def __call__(self, observation: Any, is_first: Any = None, *, greedy: bool = True, raw: bool = False) -> np.ndarray:
        """Return actions for a batch of observations, as the environment takes them: clipped or scaled to its bounds.

        Those of several dimensions are flat: reshape them to the space's shape.

        Args:
          observation: tree of [B, ...], as in `spec.observation`: parts that the environment declares as Discrete are one-hot.
            Batches of one size share a recurrent state.
          is_first: bool [B], True where an episode begins (its recurrent state is reset); None: nowhere. The first
            call, and the first one after `reset`, begin an episode in every row.
          greedy: the most likely action instead of a sample. raw: actions as the agent stores them.

        Raises:
          SpecMismatch: an array is missing, has another shape or kind than the policy reads, or holds NaN or infinity.
          ConfigError: another thread plays this recurrent policy.
        """
        observation = checked(observation, self.spec)
        size = leaves(observation)[0].shape[0]
        first = np.zeros(size, bool) if is_first is None else np.asarray(is_first, bool)
        core = self._cores.get(size)
        if core is None:
            first, core = np.ones(size, bool), self.agent.initial_core(size)
        if jax.tree.leaves(core) and self._threads.setdefault(size, (caller := threading.get_ident())) != caller:
            raise ConfigError(
                "two threads call one recurrent policy, which would mix their histories; load a policy for each thread, or "
                "call `reset` before another thread goes on."
            )
        action, self._cores[size] = self._act(self.params, core, next(self._steps), observation, first, greedy=greedy)
        action = np.array(action)
        return action if raw else to_environment(self.spec.action, action)

    def _traced(self, params: ActParams, core: Tree, step: Any, observation: Tree, first: Any, *, greedy: bool) -> Any:
        key = jax.random.fold_in(self._key, step)
        output, core = self.agent.act(params, key, observation, first, core, greedy=greedy)
        return output.action, core

    def save(self, path: str | os.PathLike[str]) -> list[str]:
        """Write the policy to one file that plays without jsrl (docs/export.md); return its parity report, a line per player.

        It gives greedy actions and the distribution's parameters. Observation moments are inside; recurrent state is
        input and output.

        `.onnx` and `.stablehlo` are these files alone; any other name is a zip with StableHLO and a player for numpy.

        Raises:
          MissingExtra: onnx is wanted, and its package is not installed.
          ExportError: the params are not finite, the policy cannot be traced, or a player differs from it.
        """
        return save(
            path,
            self.agent,
            self.spec,
            self.params,
            origin=f"{shown_target(self.spec.name)}, version {self.updates}",
        )

    def reset(self) -> None:
        """Forget every recurrent state: the next call begins new episodes."""
        self._cores.clear()
        self._threads.clear()


def stream_of(seed: int) -> int:
    """Return the number of the first random stream of a seed for sampled actions."""
    return seed * SEED_STRIDE % 2**31


def load_policy(
    run: str | os.PathLike[str], tag: str = "best", *, policy: str = "", runs_dir: str = "runs", stream: int = 0
) -> Policy:
    """Return the policy of a run's snapshot.

    Args:
      run: a path, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run; RUN@TAG, as in commands, names the tag too.
      tag: best, latest, final, or the name of a frozen player such as frozen-3; `NAME/best` means the policy NAME of several.
      policy: its name, in place of `NAME/`; without both it is the first one. stream: of its sampled actions (see `Policy`).

    Raises:
      ConfigError: there is no such run, policy or tag. SnapshotError: a frozen player has changed, or the params do not fit
        the agent, whose code has changed since.
    """
    from jsrl.graph.graph_file import experiment_of

    run, named = split_tag(run)
    tag = named or tag
    folder = RunFolder.open(run, runs_dir)
    folder.use_source()
    several = policies_in(folder)
    name, _, plain = tag.rpartition("/")
    if policy and name not in ("", policy):
        raise ConfigError(f"the tag {tag!r} names another policy than {policy!r}; leave one of them out.")
    name, first = policy or name, next(iter(several), "")
    beside = "" if name == first else name  # files of the first policy are in no subfolder
    experiment = experiment_of(folder, beside)
    game = make_spec(experiment.env)
    seats = find_seats(several, game, shared=True)[(name or first) if several else ""]
    spec = game.view(list(seats)) if isinstance(game, GameSpec) else game
    agent = build_agent(resolved_agent(experiment), spec)
    shapes = jax.eval_shape(agent.init, jax.random.key(0)).params
    selector, wanted = f"{beside}/{plain}" if beside else plain, dict(named_leaves(shapes))
    version, found, meta = _params_of(folder, selector, runs_dir, list(wanted))
    source = f"{folder.name}@{name or first}/{plain}" if several else f"{folder.name}@{plain}"
    check_leaves(found, wanted, source)
    params = jax.tree.unflatten(jax.tree.structure(shapes), [found[leaf] for leaf in wanted])
    view = view_of(name or first or "all", tuple(seats.values()))
    return Policy(experiment, spec, params, version, meta, view, tuple(seats), stream, source)


def _params_of(
    folder: RunFolder, tag: str, runs_dir: str, leaf_names: Sequence[str]
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Return version, leaves by name and metadata of a snapshot, or of the frozen player with this tag."""
    from jsrl.control.resume import params_source

    policy, _, plain = tag.rpartition("/")
    players = PlayerStore(folder.path / PLAYERS_FOLDER / policy)
    names = players.names()
    try:
        source, _, selector = params_source(f"{folder.path}@{tag}", runs_dir).rpartition("@")
    except ConfigError as error:
        if plain in names:
            values = players.load(names[plain])
            more = {f"leaf {number}": leaf for number, leaf in enumerate(values) if number >= len(leaf_names)}
            return names[plain], {**dict(zip(leaf_names, values, strict=False)), **more}, {}
        if names:
            raise ConfigError(f"{error} Frozen players: {', '.join(names)}.") from error
        raise
    snapshot = SnapshotStore(source).load_snapshot(selector)
    tree = snapshot.tree["params"] if "params" in snapshot.tree else snapshot.tree["state"]["params"]
    # tuples were saved as dicts, whose leaves have another order
    return snapshot.version, dict(named_leaves(tree)), snapshot.meta


def check_leaves(found: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    """Check that params have the names, shapes and dtypes that an agent's `init` gives them."""
    if changed := changed_leaves(found, wanted):
        raise SnapshotError(
            f"the params of {where} do not fit: {changed}. The environment's spaces or the agent's code have changed; load it "
            "with those that trained it."
        )


def policies_in(folder: RunFolder) -> Mapping[str, PolicyConfig]:
    """Return the policies that play in the environments of a run; empty: there is one agent."""
    return whole_experiment(folder).policies


def whole_experiment(folder: RunFolder) -> Experiment:
    """Return the experiment of a run, with all its policies."""
    from jsrl.graph.graph_file import saved_experiment

    return saved_experiment(folder)


def has_rivals(whole: Experiment) -> bool:
    """Return whether several policies of an experiment play the same seats."""
    if len(whole.policies) < 2:
        return False
    seats = [tuple(own) for own in find_seats(whole.policies, make_spec(whole.env), shared=True).values()]
    return len(set(seats)) < len(seats)


def load_players(
    run: str | os.PathLike[str], tag: str = "best", *, runs_dir: str = "runs", stream: int = 0
) -> list[Policy]:
    """Return the policy of a run's snapshot, and the run's other policies, of the same tag.

    Args:
      run, tag, runs_dir: as for `load_policy`. stream: of the first one's sampled actions; the others take the next ones.

    Raises:
      ConfigError: as load_policy.
    """
    run, named = split_tag(run)
    folder, tag = (
        RunFolder.open(run, runs_dir),
        named or tag,
    )  # before an environment is made, which may change the directory
    run, several = folder.path, list(policies_in(folder))
    first = load_policy(run, tag, runs_dir=runs_dir, stream=stream)
    name, _, plain = tag.rpartition("/")
    played = [first]
    for other in several:
        if other != (name or several[0]):
            own = plain if other == several[0] else f"{other}/{plain}"
            policy = load_policy(run, own, runs_dir=runs_dir, stream=stream + len(played))
            if not any(policy.seats == one.seats for one in played):  # one policy for each group of seats
                played.append(policy)
    return played


def act_together(policies: Sequence[Policy], step: EnvStep | GameStep, *, greedy: bool = True) -> Any:
    """Return the policies' actions for an environment's step: [B, ...], or by group of seats."""

    def chosen(policy: Policy) -> np.ndarray:
        part = part_of(policy.view, step)
        return finite_actions(policy(part.observation, part.is_first, greedy=greedy, raw=True), part)

    return actions_of((policy.view, chosen(policy)) for policy in policies)
