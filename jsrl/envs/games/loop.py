"""A vector of single environments with seats, stepped in a loop that writes into preallocated arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from jsrl.envs.base import GameStep, options_of_task
from jsrl.envs.config import EnvConfig
from jsrl.envs.faults import ADVICE_SPACE, advice_raised, describe, fault, in_making
from jsrl.envs.games.groups import SeatGroups
from jsrl.envs.games.played import EnvState, PlayedGame, SeatSpaces
from jsrl.envs.games.rows import GameRows
from jsrl.envs.repair import SingleEnvs
from jsrl.envs.rows import metric_value
from jsrl.envs.spaces import MASK_KEY, BadValue, ObservationLayout, action_layout, allowed_choices, choice_starts
from jsrl.errors import ConfigError, EnvironmentFault, JsrlError
from jsrl.types import ACTING, Array, GameSpec, Seat, Tree, map_tree


class SeatReader:
    """Converts one seat's observations and actions.

    Attributes:
      seat: its spec. wants_mask: action masks are in the environment's `info`. notes: as in EnvSpec.
    """

    def __init__(self, spaces: SeatSpaces, config: EnvConfig, masked: bool):
        actions = action_layout(spaces.action, config.id, config.action_transform)
        size = actions.num_choices if masked and not _has_mask(spaces) else None
        self.layout = ObservationLayout(spaces.observation, config.id, size, actions.num_choices)
        self.convert, self.wants_mask = actions.convert, self.layout.mask_in_info
        self.notes = (*actions.notes, *self.layout.notes)
        self.seat = Seat(spaces.name, self.layout.spec, actions.spec, spaces.side)
        self.has_mask = isinstance(self.layout.spec, dict) and MASK_KEY in self.layout.spec
        self._choices = choice_starts(actions.spec)

    def bind(self, tree: Tree, index: int) -> None:
        """Use the columns at `index` of a group's tree [B, N_g, ...] as output."""
        self._tree = map_tree(lambda leaf: leaf[:, index], tree)
        self._arrays: list[np.ndarray] = []
        for leaf in self.layout.leaves:
            node = self._tree
            for name in leaf.names:
                node = node[name]
            self._arrays.append(node)
        # leaves copied unchanged, once their shape and dtype have been checked
        copied = all(leaf.offsets is None and len(leaf.path) <= 1 for leaf in self.layout.leaves)
        self._copied = list(zip(self.layout.leaves, self._arrays, strict=True)) if copied else []
        if self.wants_mask:
            self._arrays.append(self._tree[MASK_KEY])

    def write(self, slot: int, observation: Any, info: Mapping[str, Any]) -> None:
        """Write an observation, with its mask if `info` has masks. Raises BadValue."""
        if not self._copy(slot, observation):
            self.layout.write(self._arrays, slot, observation)
        if self.wants_mask and MASK_KEY in info:
            self.layout.write_mask(self._arrays, slot, info[MASK_KEY])
        elif self.wants_mask:
            self._arrays[-1][slot] = 1

    def _copy(self, slot: int, observation: Any) -> bool:
        """Write arrays that match the declaration; return False if something must be checked closely."""
        for leaf, array in self._copied:
            value = (
                observation if not leaf.path else observation.get(leaf.path[0]) if type(observation) is dict else None
            )
            if type(value) is not np.ndarray or value.shape != leaf.shape or value.dtype != leaf.dtype:
                return False
            array[slot] = value
        return bool(self._copied)

    def blank(self, slot: int) -> None:
        for array in self._arrays:
            array[slot] = 0

    def open_mask(self, slots: np.ndarray) -> None:
        """Allow all actions in some slots (bool [B]), where there is nothing to choose."""
        if self.has_mask:
            self._tree[MASK_KEY][slots] = 1

    def shut(self, slots: np.ndarray) -> np.ndarray:
        """Return which of some slots (bool [B]) allow no action."""
        if not self.has_mask:
            return slots & False
        return slots & ~allowed_choices(self._tree[MASK_KEY], self._choices).all(axis=1)


class SyncVectorGame(SingleEnvs):
    """B single environments with seats behind the vector protocol; each has its own seed.

    Args:
      factory: makes one environment. num_envs: B. seed, group, groups: see jsrl.envs.make.make_game.
      death: as in GameSpec.
    """

    def __init__(
        self,
        factory: Callable[[], PlayedGame],
        config: EnvConfig,
        num_envs: int,
        seed: int | tuple[int, ...],
        group: int = 0,
        groups: Mapping[str, tuple[str, ...]] | None = None,
        *,
        death: Literal["ends", "team"] = "ends",
    ):
        super().__init__(partial(_made, factory, config), num_envs, seed, group)
        self._config = config
        try:
            self._read_spaces(death)
            self._groups = SeatGroups(self.spec, groups)
        except BaseException:
            self.close()
            raise
        self.groups: Mapping[str, tuple[str, ...]] = self._groups.names
        self._rows = GameRows(self.spec, config, num_envs, self._seeds)
        self._tree = {
            name: map_tree(lambda leaf: leaf.batched(num_envs).zeros(), self.spec.view(seats).observation)
            for name, seats in self.groups.items()
        }
        for reader, (name, index) in zip(self._readers, self._groups.places, strict=True):
            reader.bind(self._tree[name], index)
        shape = (num_envs, len(self._readers))
        self._reward = np.zeros(shape, np.float64)
        self._ended: tuple[np.ndarray, np.ndarray] = (np.zeros(shape, bool), np.zeros(shape, bool))
        self._present, self._turns = np.zeros(shape, bool), np.zeros(shape, bool)

    def _read_spaces(self, death: Literal["ends", "team"]) -> None:
        env, config = self._envs[0], self._config
        # only a reset shows whether `info` has masks; slot 0's first one is made now and kept
        seed = self._seeds[0]
        try:
            opening = env.reset(seed)
        except (Exception, SystemExit) as error:
            raise fault(config.id, *_told("reset", error), slot=0, seed=seed, episode=0, step=0) from error
        self._opening: EnvState | None = opening
        masked = any(MASK_KEY in seat_info for seat_info in opening.info.values())
        self._readers = [SeatReader(seat, config, masked) for seat in env.seats]
        self._order = {seat.name: i for i, seat in enumerate(env.seats)}
        self._state_layout: ObservationLayout | None = None
        self._state: Tree = ()
        state = None
        if env.state_space is not None:
            self._state_layout = ObservationLayout(env.state_space, config.id)
            state = self._state_layout.spec
            self._state, self._state_arrays = self._state_layout.buffers(self.num_envs)
        seats = tuple(reader.seat for reader in self._readers)
        opposed = bool(getattr(env, "zero_sum", False))
        notes = tuple(dict.fromkeys(note for reader in self._readers for note in reader.notes))
        self.spec = GameSpec(
            seats, config.id, state, symmetric=env.symmetric, death=death, zero_sum=opposed, notes=notes
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        return getattr(self._envs[0], "metadata", None) or {}

    def render(self, slot: int = 0) -> Any:
        draw = getattr(self._envs[slot], "render", None)
        if draw is None:
            raise NotImplementedError
        return draw()

    def reset(self) -> GameStep:
        step = self._visited(self._open_slots, self._opened)
        self._started = True
        return self._masked(step)

    def _opened(self) -> GameStep:
        return self._rows.opened(self._tree, state=self._state, present=self._present, turns=self._turns)

    def step(self, action: Mapping[str, Array]) -> GameStep:
        chosen = self._groups.actions(action)
        converted = [reader.convert(own) for reader, own in zip(self._readers, chosen, strict=True)]
        self._reward[:] = 0.0
        for flags in self._ended:
            flags[:] = False
        first = self._rows.first.tolist()
        return self._masked(self._visited(partial(self._step_slots, converted, first), self._stepped))

    def _step_slots(self, converted: list[Any], first: list[bool], begin: int) -> None:
        """Step the slots from `begin` on; slots that are `first` start an episode instead."""
        for slot in range(begin, self.num_envs):
            if first[slot]:
                self._open(slot)
            else:
                self._step(slot, converted)

    def _stepped(self) -> GameStep:
        terminated, truncated = self._ended
        return self._rows.step(
            self._tree,
            self._reward,
            terminated,
            truncated,
            state=self._state,
            present=self._present,
            turns=self._turns,
        )

    def set_tasks(self, tasks: Mapping[int, Any]) -> None:
        given = {slot: options_of_task(task) for slot, task in tasks.items() if task is not None}
        if given and not getattr(self._envs[0], "takes_options", False):
            raise ConfigError(f"environment {describe(self._config.id)} takes no tasks: its reset has no options.")
        self._tasks |= given

    def _open(self, slot: int, seed: int | None = None) -> None:
        """Reset one environment (a replaced one with its new seed) and write its first observations."""
        self._at = slot
        opening, options = self._opening if slot == 0 else None, self._options(slot, replaced=seed is not None)
        seed = self._seed_of(slot, seed)
        if opening is not None:
            self._opening = None
        if opening is not None and options is None:
            moment = opening
        else:
            given = () if options is None else (options,)
            moment = self._called(slot, "reset", lambda: self._envs[slot].reset(seed, *given))
        here = moment.observation.keys()
        self._require(slot, moment.acting, moment)
        self._present[slot] = [name in here for name in self._order]
        self._take(slot, moment, here)

    def _step(self, slot: int, converted: list[Any]) -> None:
        self._at = slot
        given = {name: converted[i][slot] for name, i in self._order.items() if self._turns[slot, i]}
        moment = self._called(slot, "step", lambda: self._envs[slot].step(given))
        for name in moment.revived:
            raise self._rows.fault(
                slot,
                f"has seat {name!r} in the game after it had ended, or joined late",
                "Seats take part from the beginning of an episode, and a seat that has ended stays out until the next one",
            )
        for name, reward in moment.reward.items():
            self._reward[slot, self._order[name]] = reward
        for flags, names in zip(self._ended, (moment.terminated, moment.truncated), strict=True):
            for name in names:
                flags[slot, self._order[name]] = True
        alive = self._rows.alive[slot]
        living = [name for name, i in self._order.items() if alive[i] and name not in moment.terminated]
        self._require(slot, living, moment)
        # when the last living seats die, the episode has terminated: they see its last observation
        self._take(slot, moment, [name for name in moment.observation if not living or name not in moment.terminated])
        if self._rows.metrics.entries:
            self._rows.metrics.add(slot, _mean_info(moment.info, self._rows.metrics.keys))

    def _require(self, slot: int, names: Collection[str], moment: EnvState) -> None:
        """Raise unless each of these living seats has an observation."""
        for name in names:
            if name not in moment.observation:
                raise self._rows.fault(
                    slot,
                    f"returned no observation of seat {name!r}, which lives",
                    "Return one of each agent that has not terminated, also in the step that truncates the episode: values "
                    "bootstrap from it",
                )

    def _take(self, slot: int, moment: EnvState, seen: Collection[str]) -> None:
        """Write the observations of a moment, zeros for the seats that are not `seen`."""
        self._turns[slot] = [name in moment.acting for name in self._order]
        try:
            for reader in self._readers:
                name = reader.seat.name
                what = f"(seat {name!r})"
                if name in seen:
                    reader.write(slot, moment.observation[name], moment.info.get(name, {}))
                else:
                    reader.blank(slot)
            if self._state_layout is not None:
                what = "(global state)"
                self._state_layout.write(self._state_arrays, slot, moment.state)
        except BadValue as error:
            raise self._rows.fault(slot, f"{what} {error}", ADVICE_SPACE) from None

    def _called(self, slot: int, where: str, call: Callable[[], EnvState]) -> EnvState:
        try:
            return call()
        except (Exception, SystemExit) as error:
            raise self._rows.fault(slot, *_told(where, error)) from error

    def _masked(self, step: GameStep) -> GameStep:
        """Allow all actions to seats that do not act, and at the end of an episode to those that could do nothing.

        Other masks of a last observation stay: after a time limit, targets are values of legal actions.
        """
        over = self._rows.first
        for i, reader in enumerate(self._readers):
            reader.open_mask(step.acts[:, i] != ACTING)
            shut = reader.shut(np.ones_like(over))
            reader.open_mask(shut & over)
            if (shut & ~over).any():
                slot, name = int(np.flatnonzero(shut & ~over)[0]), reader.seat.name
                raise self._rows.fault(slot, f"lets seat {name!r} act but allows no action", "Expected a 1 in its mask")
        return step

    def __repr__(self) -> str:
        return f"SyncVectorGame({describe(self._config.id)}, num_envs={self.num_envs})"


def _made(factory: Callable[[], PlayedGame], config: EnvConfig) -> PlayedGame:
    try:
        return factory()
    except JsrlError:
        raise
    except (Exception, SystemExit) as error:
        raise in_making(config.id, config.kwargs, error) from error


def _told(where: str, error: BaseException) -> tuple[str, str]:
    """Return what an environment did wrong when it raised an error, and advice."""
    if isinstance(error, EnvironmentFault):
        return str(error), "Correct what the environment returns"
    return f"raised {type(error).__name__} in {where}: {error}", advice_raised(error)


def _has_mask(seat: SeatSpaces) -> bool:
    return MASK_KEY in getattr(seat.observation, "spaces", {})


def _mean_info(info: Mapping[str, Mapping[str, Any]], keys: set[str]) -> dict[str, float]:
    """Return the mean over the seats that report a key."""
    found = {
        key: [metric_value(key, seat_info[key]) for seat_info in info.values() if key in seat_info] for key in keys
    }
    return {key: sum(values) / len(values) for key, values in found.items() if values}
