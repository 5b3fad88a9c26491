"""Options of other libraries are refused with what they are called here; docs/coming_from.md says the same."""

import re
from pathlib import Path

import pytest

from jsrl.cli.command_line import parse
from jsrl.cli.experiments import load
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.options import RunOptions
from jsrl.field_names import TABLE, elsewhere
from jsrl.fields import offered_options

PAGE = Path(__file__).parents[2] / "docs/coming_from.md"


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        ("ppo --n_steps", "here it is called --rollout-length."),  # Stable-Baselines3 and its zoo
        ("ppo --learning-rate", "did you mean --agent.learning-rate?"),
        ("hide_and_seek --lr", "each policy has its own: --policies.hiders.agent.learning-rate or"),
        ("ppo --ent-coef", "--agent.entropy-coef."),
        ("sac --ent-coef", "--agent.temperature (fixed with --agent.no-learn-temperature)."),
        (
            "dqn --ent-coef",
            "it would be --agent.entropy-coef or --agent.temperature, which this experiment does not have.",
        ),
        ("sac --batch-size", "--replay.batch-size."),
        ("impala --batch-size", "--batch-envs (in environments)."),
        ("ppo --use-sde", "--agent.network.noise-period (rows between draws)."),
        ("ppo --device", "set JAX_PLATFORMS=cpu for none, CUDA_VISIBLE_DEVICES=0 for the first."),
        ("ppo --buffer-size", "it would be --replay.capacity, which this experiment does not have."),
        ("dqn --gradient-steps", "--replay.updates-per-env-step (gradient steps / env steps between them)."),
        ("ppo --track", "--wandb.enabled."),
        ("ppo --num-env-runners", "--num-actors."),
        ("ppo --use-rnn", "--agent.network.core (gru or lstm)."),
    ],
)
def test_the_option_of_another_library_is_refused_with_the_one_here(words, suggested):
    name, option = words.split()
    with pytest.raises(ConfigError, match=r"^there is no option --") as refused:
        parse([option, "1"], load(name))
    assert suggested in str(refused.value)


def test_the_table_names_existing_options_and_hides_none():
    names = ("ppo", "impala", "dqn", "sac", "ddpg", "mappo")
    options = {name for experiment in map(load, names) for name in offered_options(experiment, RunOptions())}
    assert not {entry.here for entry in TABLE if entry.here} - options
    assert not {name for entry in TABLE for name in entry.names.split()} & options


def test_the_page_about_other_libraries_agrees_with_the_table():
    section = PAGE.read_text().partition("## Options side by side")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4] for line in section.splitlines() if "| `" in line and "--" in line.split("|")[3]]
    assert len(rows) >= 15
    for sb3, cleanrl, here in rows:
        options = set(re.findall(r"--([a-z.-]+)", here))
        for name in re.findall(r"`([a-z_]+)", sb3 + cleanrl):
            tails = {option.rpartition(".")[2] for option in options}
            known = {entry.here for entry in elsewhere(name)} | ({name.replace("_", "-")} & tails)
            assert known & (options | tails) or any(o.startswith("wandb") for o in options), (name, options, known)


def test_a_field_of_another_library_suggests_the_field_here():
    with pytest.raises(TypeError, match=r"did you mean num_envs\?"):
        Experiment(n_envs=8)
