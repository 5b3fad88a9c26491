"""Environments with pictures: one slot with RGB pictures that otherwise behaves like the policy's training environment."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from jsrl.envs.adapters.atari import AtariVector, find_game, game_options
from jsrl.envs.base import EnvStep, GameStep, VectorEnv, VectorGame
from jsrl.envs.config import SUITES, EnvConfig, main_target
from jsrl.envs.make import make, register_suites, without_module
from jsrl.envs.seats import SeatView
from jsrl.errors import ConfigError, EnvironmentFault, JsrlError, MissingExtra
from jsrl.extras import install_command, require_extra
from jsrl.references.importing import import_target
from jsrl.types import EnvSpec, GameSpec

DEFAULT_FPS, CONSOLE_FPS = 30.0, 60.0
SCREEN = (210, 160)
DRAWN_SUITES = ("hide_and_seek", "pettingzoo")
# Part of an entry point -> its renderer: module, and how to install it.
DRAWN_WITH = {
    "classic_control": ("pygame", "video"),
    "toy_text": ("pygame", "video"),
    "box2d": ("pygame", "video"),
    "mujoco": ("imageio", "mujoco"),
}


class RenderedEnv:
    """One environment behind the vector protocol (num_envs 1) with pictures; `fps`: at the environment's own speed.

    Args:
      env: one slot with `render(slot)`. config: its config. fps: pictures per second of its own time.
    """

    def __init__(self, env: VectorEnv | VectorGame, config: EnvConfig, fps: float) -> None:
        self._env: Any = env
        self._config, self.fps = config, fps
        self.spec: Any = env.spec  # an EnvSpec, or a GameSpec
        self.num_envs = env.num_envs

    def reset(self) -> Any:
        return self._env.reset()

    def step(self, action: Any) -> Any:
        return self._env.step(action)

    def picture(self) -> np.ndarray:
        """Return the current picture: uint8 [height, width, 3].

        Raises:
          MissingExtra: its renderer is not installed. ConfigError: it has no pictures, or cannot render here.
        """
        name = self._config.id
        try:
            picture = self._env.render(0)
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise MissingExtra(f"environment {name!r} cannot be drawn ({error}): {_remedy(name)}") from error
        except NotImplementedError:
            picture = None
        except JsrlError:
            raise
        except Exception as error:
            raise ConfigError(
                f"environment {name!r} cannot be drawn: {type(error).__name__}: {error}. {_remedy(name)}"
            ) from error
        if isinstance(picture, list) and picture:
            picture = picture[-1]
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
            seen = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
            raise ConfigError(
                f"environment {name!r} shows {seen}; expected a picture, uint8 [height, width, 3], from render() under "
                "render_mode 'rgb_array'. Leave video.enabled off, or name one that draws: --video.env.id."
            )
        return picture

    def close(self) -> None:
        self._env.close()


def make_rendered(
    config: EnvConfig, seed: int | tuple[int, ...], groups: Mapping[str, tuple[str, ...]] | None = None
) -> RenderedEnv:
    """Build one environment with pictures.

    Observations are those of `make(config, ...)`. A Gymnasium id gives the single environment, even if training uses
    a vectorised one; Atari's pictures come from a second console with the same actions. `groups`: of seats, as in `make`.
    """
    check_rendered(config)
    prepare_headless()
    if is_console(config):
        return RenderedEnv(AtariWithScreen(without_module(config), seed), config, CONSOLE_FPS / config.atari.frame_skip)
    drawn = replace(_drawn(config), on_fault="auto")
    try:
        env: Any = make(drawn, 1, seed, groups=groups)
    except EnvironmentFault as error:
        if not _uses_opengl(config.id):
            raise
        raise ConfigError(f"{error}. {_remedy(config.id)}") from error
    fps = (getattr(env, "metadata", None) or {}).get("render_fps")
    if not hasattr(env, "render"):
        env.close()
        raise _draws_nothing(config, "it has no render()")
    return RenderedEnv(env, drawn, float(fps or DEFAULT_FPS))


def check_rendered(config: EnvConfig) -> None:
    """Check, without making it, that an environment can be rendered, as far as its declaration tells."""
    if config.in_jax:
        raise _draws_nothing(config, "environments in JAX draw no pictures")
    if callable(config.id):
        return
    scheme = config.id.partition(":")[0]
    if scheme == "probe":
        raise _draws_nothing(config, "probes have nothing to show")
    if scheme in SUITES and scheme not in DRAWN_SUITES:
        raise _draws_nothing(config, f"{scheme}'s environments draw no pictures")
    if is_console(config) or ":" in config.id:
        return
    register_suites(config.id)
    for part, (module, extra) in DRAWN_WITH.items():
        if f".{part}" in _entry(config.id):
            require_extra(extra, f"the picture of environment {config.id!r}", module)


def prepare_headless() -> None:
    """Make OpenGL and SDL render into memory without a display, unless the user's variables differ."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def is_console(config: EnvConfig) -> bool:
    """Return whether `make` uses ale-py's vector for an environment."""
    native = config.backend in ("auto", "native") and not config.wrappers
    return config.is_atari and native


def _drawn(config: EnvConfig) -> EnvConfig:
    """Return the config of the same environment with render_mode 'rgb_array', as a single one if possible."""
    kwargs = {**config.kwargs, "render_mode": "rgb_array"}
    scheme = config.id.partition(":")[0] if isinstance(config.id, str) else ""
    if scheme in SUITES and scheme != "pettingzoo":
        return config  # a renderer has render() already
    if scheme in ("envpool", "pettingzoo"):
        return replace(config, kwargs=kwargs)
    config = config if callable(config.id) else without_module(config)
    if callable(config.id) or ":" in config.id:
        factory = config.id if callable(config.id) else import_target(config.id)
        try:
            parameters = inspect.signature(factory).parameters.values()
        except (TypeError, ValueError):
            return config
        takes = any(p.name == "render_mode" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        target = main_target(config.id) if callable(config.id) else config.id
        return replace(config, id=target, kwargs=kwargs) if takes else config
    register_suites(config.id)
    spec = gymnasium.registry.get(config.id)
    if spec is None:
        return config  # `make` reports the error
    if isinstance(spec.entry_point, str):
        modes = getattr(_creator(spec.entry_point), "metadata", {}).get("render_modes", ["rgb_array"])
        if "rgb_array" not in modes:
            raise _draws_nothing(config, f"its render_modes are {modes}, without 'rgb_array'")
    backend = "sync" if spec.entry_point is not None else config.backend
    return replace(config, kwargs=kwargs, backend=backend)


def _creator(entry_point: str) -> Any:
    try:
        return gymnasium.envs.registration.load_env_creator(entry_point)
    except (ImportError, AttributeError):  # `make` reports what is missing
        return None


def _draws_nothing(config: EnvConfig, why: str) -> ConfigError:
    return ConfigError(
        f"environment {config.id!r} cannot be filmed: {why}. Leave video.enabled off, or name one with the same spaces "
        "that draws, such as --video.env.id with Gymnasium's (and --video.env.backend sync)."
    )


def _entry(name: str) -> str:
    spec = gymnasium.registry.get(name)
    return str(spec.entry_point) if spec is not None else ""


def _uses_opengl(name: str) -> bool:
    return ".mujoco" in _entry(name) or name.startswith("hide_and_seek:")


def _remedy(name: str) -> str:
    if _uses_opengl(name):
        return (
            f"MuJoCo draws with OpenGL, here MUJOCO_GL={os.environ.get('MUJOCO_GL', '')!r}: install libegl1 (egl) or "
            "libosmesa6 (osmesa) and set MUJOCO_GL to the one there is, or leave video.enabled off"
        )
    extra = next((extra for part, (_, extra) in DRAWN_WITH.items() if f".{part}" in _entry(name)), None)
    return install_command(extra) if extra else "its own render() says why, above; leave video.enabled off without it"


class AtariWithScreen(AtariVector):
    """One game as `make` builds it, and a second console with the same seed and actions whose screen is shown in colour.

    The policy's observations are those of the first, bit-equal to training.
    """

    def __init__(self, config: EnvConfig, seed: int | tuple[int, ...]) -> None:
        game = find_game(config)
        super().__init__(game, config, 1, seed, 0)
        from ale_py import AtariVectorEnv

        height, width = SCREEN
        shown = AtariVectorEnv(
            game, 1, img_height=height, img_width=width, stack_num=1, grayscale=False, **game_options(config)
        )
        self._env = _TwoConsoles(self._env, shown, config.id)

    def render(self, slot: int = 0) -> np.ndarray:
        """Return the screen: uint8 [210, 160, 3]."""
        return self._env.screen


class _TwoConsoles:
    """Two vectors of one game with the same inputs; the second one's newest frame is `screen`."""

    def __init__(self, played: Any, shown: Any, name: str) -> None:
        self._played, self._shown, self._name = played, shown, name
        self.ale = played.ale
        self.screen = np.zeros((*SCREEN, 3), np.uint8)

    def reset(self, *, seed: Any) -> tuple[Any, dict[str, Any]]:
        frames, info = self._played.reset(seed=seed)
        self.screen = self._shown.reset(seed=seed)[0][0, -1].copy()
        return frames, info

    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        stepped = self._played.step(action)
        frames, *rest = self._shown.step(action)
        if any((mine != its).any() for mine, its in zip(stepped[1:4], rest[:3], strict=True)):
            raise EnvironmentFault(
                f"environment {self._name!r}: two emulators with the same seed and actions diverged, so the film would "
                "not show the game that is played. Leave video.enabled off, or film with --video.env.backend sync."
            )
        self.screen = frames[0, -1].copy()
        return stepped

    def close(self) -> None:
        self._played.close()
        self._shown.close()


MOST_PARTS = 4  # returns in one line


class Returns:
    """The returns of the current episode of slot 0, by player: the policies, or the sides of one policy.

    Args:
      spec: of the environment. policies: (name, seats) of the players.
    """

    def __init__(self, spec: EnvSpec | GameSpec, policies: Sequence[tuple[str, SeatView | None]]) -> None:
        self._parts = _parts(spec, policies)
        self._total: np.ndarray = np.zeros(1)

    def see(self, step: EnvStep | GameStep) -> None:
        """Add a step, or start over."""
        reward = np.atleast_1d(step.reward[0])
        self._total = np.zeros(len(reward)) if step.is_first[0] else self._total + reward
        if step.episodes:
            episode = step.episodes[0]
            self._total = np.array(episode.returns or (episode.return_,))

    def __str__(self) -> str:
        """Return them in a line: `return 3.0`, or `hiders 3.0   seekers -3.0`; for several seats the mean."""
        return "   ".join(f"{name} {self._total[places].mean():,.1f}" for name, places in self._parts)


def _parts(
    spec: EnvSpec | GameSpec, policies: Sequence[tuple[str, SeatView | None]]
) -> list[tuple[str, list[int] | slice]]:
    if not isinstance(spec, GameSpec):
        return [("return", slice(None))]
    if len(policies) > 1:
        return [(name, list(view.places)) for name, view in policies if view is not None]
    sides = spec.sides
    if not 2 <= max(sides) + 1 <= MOST_PARTS:
        return [("return", slice(None))]
    found: list[tuple[str, list[int] | slice]] = []
    for side in range(max(sides) + 1):
        places = [place for place, own in enumerate(sides) if own == side]
        found.append((spec.seats[places[0]].side or spec.names[places[0]], places))
    return found
