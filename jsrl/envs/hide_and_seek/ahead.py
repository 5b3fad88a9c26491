"""Builds the next world of every slot in a thread, while the current episode is played."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError

from jsrl.envs.hide_and_seek.settings import Settings
from jsrl.envs.hide_and_seek.worlds import World, build_world
from jsrl.errors import EnvironmentFault

DEADLINE_S = 60.0


class WorldsAhead:
    """Supplies worlds. A world is a function of its slot's seed and its episode, so any thread builds the same one.

    The thread starts with the first world that is requested: an environment made only for its spec starts none.
    """

    def __init__(self, settings: Settings, seeds: list[int]):
        self._settings, self._seeds = settings, seeds
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="hide-and-seek")
        self._ahead: dict[tuple[int, int], Future[World]] = {}  # by slot and episode

    def take(self, slot: int, episode: int) -> World:
        """Return the world of a slot's episode, and start building that of the next one."""
        future = self._ahead.pop((slot, episode), None)
        if future is None or future.cancel():  # no thread has started to build it
            world = build_world(self._settings, self._seeds[slot], episode)
        else:
            try:
                world = future.result(DEADLINE_S)
            except TimeoutError:
                raise EnvironmentFault(
                    f"hide_and_seek: the world of slot {slot}, episode {episode} was not built within {DEADLINE_S:.0f} s. "
                    "The machine is overloaded: start fewer actors"
                ) from None
        following = self._builder.submit(build_world, self._settings, self._seeds[slot], episode + 1)
        self._ahead[slot, episode + 1] = following
        return world

    def close(self) -> None:
        self._builder.shutdown(wait=False, cancel_futures=True)
        self._ahead.clear()
