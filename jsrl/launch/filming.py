"""Checks of the recorder in the launching process, before the start."""

from __future__ import annotations

from jsrl.envs.rendering import check_rendered
from jsrl.experiment import Experiment
from jsrl.recordings.video import require_video


def check_filming(experiment: Experiment) -> None:
    """Check that videos can be written, and the environment rendered, as far as its declaration tells.

    Raises:
      MissingExtra: a package is missing. ConfigError: the environment has no pictures.
    """
    require_video()
    check_rendered(experiment.filmed_env)
