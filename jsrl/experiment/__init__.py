"""Experiments: the configuration of a run, as frozen values. Import them from here."""

from jsrl.experiment.experiment import Experiment
from jsrl.experiment.policies import PolicyConfig
from jsrl.experiment.settings import (
    ActorConfig,
    AgentReference,
    DeadlineConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    ReplayConfig,
    SnapshotConfig,
    SupervisionConfig,
    VideoConfig,
)

__all__ = [
    "ActorConfig",
    "AgentReference",
    "DeadlineConfig",
    "EvaluatorConfig",
    "Experiment",
    "InferenceConfig",
    "LearnerConfig",
    "PolicyConfig",
    "ReplayConfig",
    "SnapshotConfig",
    "SupervisionConfig",
    "VideoConfig",
]
