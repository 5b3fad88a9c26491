"""The environments of works, built for other libraries from gymnasium and ale-py: the same ones that jsrl steps."""

from __future__ import annotations

from typing import Any


def make_one(request: dict[str, Any]) -> Any:
    """Return one gymnasium environment; Atari with ale-py's games, skip 4, 84x84 grey, 4 frames."""
    import gymnasium

    if not request["env"].startswith("ALE/"):
        return gymnasium.make(known(request["env"]))
    import ale_py
    from gymnasium.wrappers import AtariPreprocessing

    if hasattr(gymnasium, "register_envs"):  # before 1.0 the import registers them
        gymnasium.register_envs(ale_py)
    env = gymnasium.make(request["env"], frameskip=1, repeat_action_probability=0.0)
    return stack(AtariPreprocessing(env, noop_max=30, frame_skip=request["frames_per_step"], screen_size=84), 4)


def known(name: str) -> str:
    """Return an environment's id, or the previous version's if this gymnasium does not have it yet."""
    import gymnasium

    return name if name in gymnasium.registry else name.replace("-v5", "-v4")


def notes(request: dict[str, Any]) -> list[str]:
    """Return the differences of the environments that `make_one` builds."""
    name = request["env"]
    return [] if name.startswith("ALE/") or known(name) == name else [f"{known(name)} for {name}"]


def stack(env: Any, frames: int) -> Any:
    """Return an environment whose observation is the last frames [frames, H, W], with either name of the wrapper."""
    from gymnasium import wrappers

    if hasattr(wrappers, "FrameStackObservation"):
        return wrappers.FrameStackObservation(env, frames)
    return wrappers.FrameStack(env, frames)


def make_ale_vector(request: dict[str, Any], threads: int) -> Any:
    """Return ale-py's vector of games, which steps and preprocesses in C++; episodes restart in the same step."""
    import gymnasium
    from ale_py.vector_env import AtariVectorEnv

    game = request["env"].removeprefix("ALE/").removesuffix("-v5")
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in game).lstrip("_")
    return AtariVectorEnv(
        name,
        num_envs=request["num_envs"],
        frameskip=request["frames_per_step"],
        stack_num=4,
        img_height=84,
        img_width=84,
        grayscale=True,
        repeat_action_probability=0.0,
        num_threads=threads,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
