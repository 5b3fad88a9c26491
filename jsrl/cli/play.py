"""`jsrl evaluate RUN@TAG --show`: a run's policies in a window."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from jsrl.envs.rendering import RenderedEnv, Returns, make_rendered
from jsrl.errors import ConfigError
from jsrl.extras import require_extra
from jsrl.services.runs.runs import RunFolder, split_tag
from jsrl.tools.policy import Policy, act_together, load_players, stream_of

SLOWEST, FASTEST = 1 / 16, 16.0
UNSEEN = ("offscreen", "dummy")  # drivers of SDL that show nothing
SMALL = 400  # pixels: smaller pictures are enlarged


class Window:
    """A window of pictures; `handle_keys` processes the user's keys.

    Attributes:
      ended: the user closed it. paused: nothing is stepped. skipped: the user wants the next episode. speed: factor.

    Raises:
      ConfigError: the display cannot be opened.
    """

    def __init__(self, fps: float, speed: float) -> None:
        import pygame

        self._pygame: Any = pygame
        try:
            pygame.display.init()
            driver = pygame.display.get_driver()
            if driver in UNSEEN and os.environ.get("SDL_VIDEODRIVER") != driver:  # SDL found no display and took this
                pygame.display.quit()
                raise pygame.error(f"the display {os.environ.get('DISPLAY', '')!r} does not answer")
        except pygame.error as error:
            raise ConfigError(
                f"no window can be opened: {error}; film the policy with --video.enabled while it trains."
            ) from error
        self._fps, self.speed = fps, speed
        self._clock = pygame.time.Clock()
        self._screen: Any = None
        self.ended = self.paused = self.skipped = False

    def show(self, picture: np.ndarray, title: str) -> None:
        """Show a picture, uint8 [height, width, 3], then wait until the next one is due."""
        pygame = self._pygame
        height, width = picture.shape[:2]
        scale = max(1, -(-SMALL // height))
        if self._screen is None:
            self._screen = pygame.display.set_mode((width * scale, height * scale), pygame.RESIZABLE)
        surface = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
        self._screen.blit(pygame.transform.scale(surface, self._screen.get_size()), (0, 0))
        pygame.display.set_caption(title)
        pygame.display.flip()
        self._clock.tick(self._fps * self.speed)

    def handle_keys(self) -> None:
        """Process the keys pressed since the last call."""
        pygame = self._pygame
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                self.ended = True
            elif event.type == pygame.KEYDOWN:
                self._press(event.key)

    def _press(self, key: int) -> None:
        pygame = self._pygame
        if key == pygame.K_ESCAPE:
            self.ended = True
        elif key == pygame.K_SPACE:
            self.paused = not self.paused
        elif key == pygame.K_n:
            self.skipped = True
        elif key in (pygame.K_PLUS, pygame.K_EQUALS, pygame.K_KP_PLUS):
            self.speed = min(FASTEST, self.speed * 2)
        elif key in (pygame.K_MINUS, pygame.K_KP_MINUS):
            self.speed = max(SLOWEST, self.speed / 2)

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()


def check_display() -> None:
    """Check, before anything is loaded, that a window can be opened here."""
    require_extra("video", "a window", "pygame")
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if not named and sys.platform not in ("darwin", "win32"):
        raise ConfigError(
            "there is no display (DISPLAY is not set); run this on a machine that has one, or film the policy with "
            "--video.enabled while it trains."
        )


def play(
    policies: Sequence[Policy], env: RenderedEnv, window: Window, name: str, episodes: int | None, greedy: bool
) -> list[float]:
    """Play until the user stops or `episodes` are complete (None: no limit); return the return of each complete one.

    Args:
      policies: of all seats; returns are the first one's.
    """
    returns: list[float] = []
    so_far = Returns(env.spec, [(policy.view.group if policy.view else "", policy.view) for policy in policies])
    step, length = env.reset(), 0
    so_far.see(step)
    while True:
        number = len(returns) + bool(step.is_first[0] or not step.episodes)
        paused = "   paused" if window.paused else ""
        progress = f"{so_far}   step {length:,}   x{window.speed:g}{paused}"
        window.show(env.picture(), f"{name}   episode {number}   {progress}")
        window.handle_keys()
        if window.ended or len(returns) == episodes:
            return returns
        if window.skipped:
            window.skipped, length = False, 0
            for policy in policies:
                policy.reset()
            step = env.reset()
            so_far.see(step)
        elif not window.paused:
            step = env.step(act_together(policies, step, greedy=greedy))
            so_far.see(step)
            length = 0 if step.is_first[0] else length + 1
            for episode in step.episodes:
                view = policies[0].view
                returns.append(episode.return_ if view is None else view.return_of(episode))
                print(f"episode {len(returns)}: {so_far}, length {episode.length:,}")


def show(options: argparse.Namespace) -> int:
    """Play a policy in a window, with the options of `jsrl evaluate`; return the exit status."""
    if not SLOWEST <= options.speed <= FASTEST:
        raise ConfigError(f"--speed is {options.speed:g}, expected {SLOWEST:g} to {FASTEST:g}.")
    run, tag = split_tag(options.run)
    RunFolder.open(run, options.runs_dir)  # a wrong name is reported on a machine without a display as well
    check_display()
    policies = load_players(run, tag or "best", runs_dir=options.runs_dir, stream=stream_of(options.seed))
    groups = {policy.view.group: policy.seats for policy in policies if policy.view is not None}
    env = make_rendered(policies[0].experiment.filmed_env, options.seed, groups or None)
    try:
        env.reset()
        window = Window(env.fps, options.speed)
        try:
            play(policies, env, window, options.run, options.episodes, not options.sampled)
        finally:
            window.close()
    finally:
        env.close()
    return 0
