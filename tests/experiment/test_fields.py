"""Fields refuse values of another type or range, in the same sentence from Python and from the command line."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from jsrl.agents.dqn import DQNConfig
from jsrl.agents.mappo import MAPPOConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.agents.sac import SACConfig
from jsrl.cli.command_line import parse
from jsrl.envs.config import AtariConfig, EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import (
    ActorConfig,
    DeadlineConfig,
    EvaluatorConfig,
    Experiment,
    InferenceConfig,
    LearnerConfig,
    PolicyConfig,
    ReplayConfig,
    SnapshotConfig,
    SupervisionConfig,
    VideoConfig,
)
from jsrl.fields import decoding, options_of
from jsrl.networks.model import NetworkConfig
from jsrl.references.reference import from_json, to_json

WHOLE, NUMBER = "expected a whole number.", "expected a number."
RULES: list[tuple[type, str, Any, str]] = [  # the config, its field, a value, and what is expected
    (Experiment, "total_env_steps", "1e5x", WHOLE),
    (Experiment, "total_env_steps", math.inf, WHOLE),
    (Experiment, "total_env_steps", -5, "it must be at least 1."),
    (Experiment, "seed", 1.5, WHOLE),
    (Experiment, "seed", -1, "it must be from 0 to 4294967295."),
    (Experiment, "seed", 2**32, "it must be from 0 to 4294967295."),
    (Experiment, "max_minutes", "soon", "expected a number or none."),
    (Experiment, "max_minutes", 0, "it must be above 0, or none."),
    (Experiment, "stop_at_return", math.nan, "expected a number or none."),
    (Experiment, "num_envs", 2.5, "expected auto or a whole number."),
    (Experiment, "num_envs", 0, "it must be at least 1, or auto."),
    (Experiment, "num_actors", "many", "expected auto or a whole number."),
    (Experiment, "num_actors", 0, "it must be at least 1, or auto."),
    (Experiment, "num_groups", 0, "it must be at least 1, or none."),
    (Experiment, "batch_envs", 0, "it must be at least 1, or none."),
    (Experiment, "rollout_length", 0, "it must be at least 1."),
    (Experiment, "max_policy_lag", -1, "it must be at least 0, or none."),
    (Experiment, "restart", -1, "it must be at least 0."),
    (
        Experiment,
        "placement",
        "seved",
        "expected one of auto, serial, inline, served, apart, fused, fused-serial; did you mean served?",
    ),
    (Experiment, "transport", "tcp", "expected one of shared-memory, zeromq."),
    (Experiment, "replay", "many", "expected replay=ReplayConfig(...), or none, or auto."),
    (ActorConfig, "blocks_per_group", 0, "it must be at least 1."),
    (ActorConfig, "step_deadline_s", 0, "it must be above 0."),
    (InferenceConfig, "max_rows", 0, "it must be at least 1."),
    (InferenceConfig, "frozen_mb", -1, "it must be at least 0."),
    (InferenceConfig, "device", "tpu", "use auto, cpu, or an index such as gpu:1."),
    (LearnerConfig, "num_devices", 0, "it must be at least 1, or none."),
    (LearnerConfig, "num_ranks", 0, "it must be at least 1."),
    (LearnerConfig, "split", "critic", "expected one of none, actor-critic; did you mean actor-critic?"),
    (ReplayConfig, "capacity", 0, "it must be at least 1."),
    (ReplayConfig, "alpha", 1.5, "it must be from 0 to 1."),
    (ReplayConfig, "epsilon", math.nan, NUMBER),
    (ReplayConfig, "updates_per_env_step", math.inf, "it must be above 0 and finite, or none."),
    (ReplayConfig, "kind", "Host", "expected one of device, host; did you mean host?"),
    (ReplayConfig, "prioritised", "yes", "expected true or false."),
    (EvaluatorConfig, "episodes", 0, "it must be at least 1."),
    (EvaluatorConfig, "sampled_episodes", -1, "it must be at least 0."),
    (EvaluatorConfig, "period_env_steps", -5, "it must be at least 1, or none."),
    (VideoConfig, "niceness", 20, "it must be from 0 to 19."),
    (VideoConfig, "fps", math.inf, "it must be above 0 and finite, or none."),
    (VideoConfig, "max_seconds", 0, "it must be above 0."),
    (SnapshotConfig, "period_s", -1, "it must be at least 0."),
    (SnapshotConfig, "keep", 0, "it must be at least 1."),
    (DeadlineConfig, "silence_s", 0, "it must be above 0."),
    (DeadlineConfig, "hooks_s", math.inf, "it must be above 0 and finite."),
    (SupervisionConfig, "window_s", 0, "it must be above 0."),
    (SupervisionConfig, "restarts.actor", "many", WHOLE),
    (SupervisionConfig, "restarts.actor", -1, "it must be at least 0."),
    (EnvConfig, "fault_limit", 0, "it must be at least 1."),
    (EnvConfig, "reward_scale", math.nan, "expected running or a number."),
    (EnvConfig, "reward_scale", math.inf, "it must be finite, or running."),
    (EnvConfig, "reward_clip", 0, "it must be above 0, or none."),
    (EnvConfig, "max_episode_steps", 0, "it must be at least 1, or none."),
    (EnvConfig, "backend", "slow", "expected one of auto, sync, native, jax."),
    (EnvConfig, "on_fault", "ignore", "expected one of auto, stop, restart-env, restart-actor."),
    (AtariConfig, "frame_skip", 0, "it must be at least 1."),
    (AtariConfig, "noop_max", -1, "it must be at least 0."),
    (AtariConfig, "repeat_action_probability", 1, "it must be at least 0 and below 1."),
    (PPOConfig, "learning_rate", "3e-4x", NUMBER),
    (PPOConfig, "learning_rate", 0.0, "it must be above 0 and finite."),
    (PPOConfig, "learning_rate", math.inf, "it must be above 0 and finite."),
    (PPOConfig, "gamma", 1.5, "it must be from 0 to 1."),
    (PPOConfig, "returns", "mc", "expected one of gae, vtrace."),
    (PPOConfig, "total_updates", 0, "it must be at least 1, or none."),
    (PPOConfig, "max_grad_norm", 0.0, "it must be above 0, or none."),
    (PPOConfig, "dual_clip", 0.5, "it must be at least 1, or none."),
    (PPOConfig, "value_coef", -1.0, "it must be at least 0 and finite."),
    (PPOConfig, "entropy_coef", math.nan, NUMBER),
    (PPOConfig, "entropy_coef", math.inf, "it must be finite."),
    (PPOConfig, "num_epochs", 0, "it must be at least 1."),
    (PPOConfig, "num_minibatches", 0, "it must be at least 1."),
    (PPOConfig, "chunk_length", 0, "it must be at least 1, or none."),
    (MAPPOConfig, "critic", "both", "expected one of central, own."),
    (DQNConfig, "tau", 0.0, "it must be above 0 and at most 1."),
    (DQNConfig, "value_max", math.inf, "it must be finite."),
    (SACConfig, "critic_learning_rate", math.inf, "it must be above 0 and finite, or none."),
    (SACConfig, "target_entropy", math.inf, "it must be finite, or none."),
    (NetworkConfig, "hidden", (64, 0), "each must be at least 1."),
    (NetworkConfig, "core", "xyz", "expected one of none, gru, lstm."),
    (NetworkConfig, "log_std_init", math.nan, NUMBER),
]
PARTS = {"env.": EnvConfig, "env.atari.": AtariConfig, "agent.network.": NetworkConfig}
PARTS |= {f"{name}.": type(part) for name, part in vars(Experiment()).items() if type(part).__name__.endswith("Config")}
PARTS |= {"replay.": ReplayConfig, "": Experiment}


@pytest.mark.parametrize(("config", "field", "value", "wanted"), RULES)
def test_a_wrong_value_gives_the_same_sentence_in_python_and_on_the_command_line(config, field, value, wanted) -> None:
    name, _, key = field.partition(".")
    with pytest.raises(ConfigError) as in_python:
        config(**{name: {key: value} if key else value})
    assert str(in_python.value) == f"{config.__name__}.{field} is {value!r}; {wanted}"
    agent = config() if hasattr(config, "factory") else DQNConfig() if config is ReplayConfig else PPOConfig()
    default = Experiment(agent)
    parts = PARTS | {"agent.": type(agent)}
    option = next(prefix for prefix, part in parts.items() if part is config) + field.replace("_", "-")
    known = options_of(default).get(option.removesuffix(f".{key}") if key else option)
    if known is None or not known.offered or known.kind is bool:  # a switch has a sentence of its own
        return
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    with pytest.raises(ConfigError) as by_option:
        parse([f"--{option}", text], default)
    shown = repr(text) if isinstance(value, str | tuple) else value
    assert str(by_option.value).replace("'nan'", "nan") == f"--{option} is {shown}; {wanted}"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"env": "Acrobot-v1"}, "Experiment.env is 'Acrobot-v1'; expected env=EnvConfig('Acrobot-v1')."),
        ({"evaluator": None}, "Experiment.evaluator is None; expected evaluator=EvaluatorConfig(enabled=False)."),
        ({"evaluator": 3}, "Experiment.evaluator is 3; expected evaluator=EvaluatorConfig(...)."),
        ({"replay": True}, "Experiment.replay is True; expected replay=ReplayConfig(...), or none, or auto."),
        ({"seed": {1}}, "Experiment.seed is {1}; expected a whole number."),
        ({"max_minutes": [1.0]}, "Experiment.max_minutes is [1.0]; expected a number or none."),
    ],
)
def test_a_part_of_another_type_is_refused_with_the_right_one(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Experiment(**values)
    assert str(refused.value) == sentence


def test_a_text_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"EnvConfig.wrappers is 'a:B'; expected a list such as"):
        EnvConfig(wrappers="a:B")  # type: ignore[arg-type]


def test_whole_numbers_of_other_types_become_ints() -> None:
    e = Experiment(total_env_steps=1e6, num_envs=np.int64(8), seed=np.uint8(3), learner=LearnerConfig(num_devices=2.0))
    numbers = (e.total_env_steps, e.num_envs, e.seed, e.learner.num_devices)
    assert [repr(number) for number in numbers] == ["1000000", "8", "3", "2"]


def test_children_of_a_run_only_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values were checked before they were sent; files of a run, which may be damaged, are checked when they are read."""
    experiment = Experiment(PPOConfig(), policies={}, replay=None)
    tree = json.loads(json.dumps(to_json(experiment)))
    with decoding():
        assert from_json(tree) == experiment
    tree["fields"]["seed"] = -1
    with decoding():
        assert from_json(tree).seed == -1
    with pytest.raises(ConfigError, match=r"Experiment.seed is -1"):
        from_json(tree)


def test_policies_have_fields_of_their_own() -> None:
    with pytest.raises(ConfigError, match=r"PolicyConfig.seed is -1; it must be from 0 to 4294967295, or none"):
        PolicyConfig(PPOConfig(), seed=-1)
    with pytest.raises(
        ConfigError, match=r"PolicyConfig.replay is 'yes'; expected replay=ReplayConfig\(...\), or none"
    ):
        PolicyConfig(PPOConfig(), replay="yes")  # type: ignore[arg-type]


def test_help_of_a_config_names_its_fields() -> None:
    assert ReplayConfig.__doc__.startswith("How an off-policy agent's rows are kept")
    assert "\n  alpha: Exponent of priorities: 0 is uniform." in ReplayConfig.__doc__
