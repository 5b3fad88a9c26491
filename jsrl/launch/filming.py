"""The recorder as the launching process sees it: refused before the start where it cannot work."""

from __future__ import annotations

from jsrl.envs.rendering import check_rendered
from jsrl.experiment import Experiment
from jsrl.recordings.video import require_video


def check_filming(experiment: Experiment) -> None:
    """See that videos can be written, and the environment drawn as far as its declaration tells.

    Raises:
      MissingExtra: a package is missing. ConfigError: the environment draws no pictures.
    """
    require_video()
    check_rendered(experiment.filmed_env)
