"""The recorder as the launching process sees it: refused before the start where it cannot work, never the end of a run."""

from __future__ import annotations

from jsrl.envs.rendering import check_rendered
from jsrl.experiment import Experiment
from jsrl.services.control import Crash
from jsrl.services.video import require_video

EXPECTED = ("ConfigError", "MissingExtra", "VideoError")  # errors whose own sentence says everything


def check_filming(experiment: Experiment) -> None:
    """See that videos can be written, and the environment drawn as far as its declaration tells.

    Raises:
      MissingExtra: a package is missing. ConfigError: the environment draws no pictures.
    """
    require_video()
    check_rendered(experiment.filmed_env)


def players(experiment: Experiment) -> list[str]:
    """Return who plays params beside the actors."""
    return ["evaluator"] * experiment.evaluator.enabled + ["recorder"] * experiment.recorder.enabled


def loss_notice(notice: str, crash: Crash | None) -> str:
    """Return why a recorder ended, for people: a sentence where it was expected to be able to, else all that is known."""
    return f"recorder: {crash.error}: {crash.text}" if crash is not None and crash.error in EXPECTED else notice
