"""Notes for the user about how an environment is read: what may surprise, and is no fault. Runs and `check_env` show them."""

from __future__ import annotations

from typing import Any

from gymnasium import wrappers

from jsrl.envs.spaces import MASK_KEY, ActionLayout, ObservationLayout
from jsrl.types import EnvSpec, GameSpec, has_channels_first, is_image, named_leaves, own_leaves

_NORMALISERS = {
    (wrappers.NormalizeObservation, wrappers.vector.NormalizeObservation): (
        "the wrapper NormalizeObservation has statistics in each environment, which snapshots lack and evaluations begin "
        "anew: the policy would be scored on other observations; use agent.normalize_observations in its place"
    ),
    (wrappers.NormalizeReward, wrappers.vector.NormalizeReward): (
        "the wrapper NormalizeReward has statistics in each environment, and returns are reported in its rewards; use "
        "agent.normalize_values in its place"
    ),
}


def environment_notes(env: Any, actions: ActionLayout, layout: ObservationLayout) -> tuple[str, ...]:
    """Return notes about an environment of Gymnasium, or a vector of some, with its wrappers and spaces."""
    masked = isinstance(layout.spec, dict) and MASK_KEY in layout.spec
    notes = [*actions.notes, *layout.notes]
    while env is not None:
        if not masked and callable(getattr(env, "action_masks", None)):
            notes.append(f"the method action_masks() is not called; return the masks in info, as {MASK_KEY!r}")
        notes += [note for kinds, note in _NORMALISERS.items() if isinstance(env, kinds)]
        env = getattr(env, "env", None) or next(iter(getattr(env, "envs", ())), None)
    return tuple(notes)


def spec_notes(spec: EnvSpec | GameSpec) -> tuple[str, ...]:
    """Return sentences for the user about how an environment is read, each once."""
    if isinstance(spec, GameSpec):
        seen = [(path, leaf) for seat in spec.seats for path, leaf in named_leaves(seat.observation)]
    else:
        seen = own_leaves(spec)
    notes = list(spec.notes)
    for path, leaf in seen:
        name, shape = path or "observation", list(leaf.shape)
        if is_image(leaf) and has_channels_first(leaf.shape):
            notes.append(f"{name} {shape} is an image with the channels first, because its first axis is the shortest")
        elif leaf.dtype == "uint8" and not is_image(leaf) and path.rpartition("/")[2] != MASK_KEY:
            notes.append(
                f"{name} is uint8 {shape}: bytes, scaled by 1/255 or normalised (an image is uint8 [H, W, C], flags are bool)"
            )
    return tuple(dict.fromkeys(notes))
