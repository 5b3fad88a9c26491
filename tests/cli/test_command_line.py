"""The command line: every kind of option, and one clear sentence for every invalid command."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cli import command_line, evaluate
from jsrl.cli.command_line import parse
from jsrl.cli.experiments import experiments, load
from jsrl.cli.option_help import full_help, short_help
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import AgentReference, EvaluatorConfig, Experiment, PolicyConfig
from jsrl.experiment.options import RunOptions
from jsrl.fields import differences, offered_options, options_of


@dataclass(frozen=True)
class NetConfig:
    """Stands for the options of a network."""

    hidden: tuple[int, ...] = (64, 64)
    core: Literal["none", "gru", "lstm"] = "none"
    """Which recurrent core."""


@dataclass(frozen=True)
class AgentConfig:
    """Stands for the options of an algorithm.

    Attributes:
      learning_rate: of the optimizer. gamma: discount.
      target_kl: where the epochs stop; None: never.
    """

    factory: ClassVar[str] = "nowhere:agent"

    learning_rate: float = 3e-4
    gamma: float = 0.99
    num_epochs: int = 4
    normalize: bool = True
    target_kl: float | None = 0.1
    network: NetConfig = field(default_factory=NetConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma must be between 0 and 1, got {self.gamma}")


DEFAULT = Experiment(agent=AgentConfig(), name="tested")


def changed(*words: str, default: Experiment = DEFAULT) -> dict[str, Any]:
    """Return option name -> new value for everything that the arguments changed."""
    line = parse(words, default)
    new = differences(default, line.experiment) | differences(RunOptions(), line.run)
    return {name: after for name, (_, after) in new.items()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["--seed", "7"], {"seed": 7}),
        (["--seed=7"], {"seed": 7}),
        (["--total-env-steps", "2e6"], {"total-env-steps": 2_000_000}),
        (["--total_env_steps", "300_000"], {"total-env-steps": 300_000}),
        (["--agent.learning-rate", "1e-3"], {"agent.learning-rate": 1e-3}),
        (["--agent.learning_rate=0.5"], {"agent.learning-rate": 0.5}),
        (["--stop-at-return", "-150"], {"stop-at-return": -150.0}),
        (["--stop-at-return=-1.5e2"], {"stop-at-return": -150.0}),
        (["--stop-at-return", "475"], {"stop-at-return": 475.0}),
        (["--max-policy-lag", "none", "--batch-envs", "8"], {"max-policy-lag": None, "batch-envs": 8}),
        (["--agent.target-kl", "none"], {"agent.target-kl": None}),
        (["--agent.target-kl", "None"], {"agent.target-kl": None}),
        (["--agent.network.hidden", "32,16"], {"agent.network.hidden": (32, 16)}),
        (["--agent.network.hidden", "32", "16"], {"agent.network.hidden": (32, 16)}),
        (["--agent.network.hidden", "(32, 16)"], {"agent.network.hidden": (32, 16)}),
        (["--agent.network.hidden", "[32, 16]"], {"agent.network.hidden": (32, 16)}),
        (["--agent.network.hidden", "32"], {"agent.network.hidden": (32,)}),
        (["--agent.network.core", "gru"], {"agent.network.core": "gru"}),
        (["--deterministic"], {"deterministic": True}),
        (["--deterministic", "true"], {"deterministic": True}),
        (["--deterministic", "false"], {}),
        (["--deterministic", "--no-deterministic"], {}),
        (["--agent.no-normalize"], {"agent.normalize": False}),
        (["--no-agent.normalize"], {"agent.normalize": False}),
        (["--agent.normalize", "False"], {"agent.normalize": False}),
        (["--snapshots.no-exact"], {"snapshots.exact": False}),
        (["--env.id", "my_env:MyEnv", "--env.kwargs.size", "8"], {"env.id": "my_env:MyEnv", "env.kwargs": {"size": 8}}),
        (["--env.kwargs.a_b", "x", "--env.kwargs.flag=true"], {"env.kwargs": {"a_b": "x", "flag": True}}),
        (["--env.kwargs.low", "-3"], {"env.kwargs": {"low": -3}}),
        (["--env.kwargs", '{"size": 8}', "--env.kwargs.deep", "2"], {"env.kwargs": {"size": 8, "deep": 2}}),
        (["--env.wrappers", "a:B,c:D"], {"env.wrappers": ("a:B", "c:D")}),
        (["--env.wrappers", '[{"wrapper": "a:B"}]'], {"env.wrappers": ({"wrapper": "a:B"},)}),
        (["--evaluator.env.max_episode_steps", "9"], {"evaluator.env": {"max_episode_steps": 9}}),
        (["--env.atari.frame-skip", "2"], {"env.atari.frame-skip": 2}),
        (["--seeds", "0-4", "--plan"], {"seeds": "0-4", "plan": True}),
        (["--plan=graph.svg"], {"plan": True, "plan-file": "graph.svg"}),
        (["--runs-dir", "/tmp/with space"], {"runs-dir": "/tmp/with space"}),
        (["--num-envs", "8", "--num-envs", "32"], {"num-envs": 32}),  # the last argument wins
    ],
)
def test_arguments_become_values(words, expected):
    got = changed(*words)
    assert got == expected
    assert {name: type(value) for name, value in got.items()} == {n: type(v) for n, v in expected.items()}


def test_option_order_does_not_matter():
    words = [("--num-envs", "12"), ("--num-groups", "3"), ("--env.kwargs.size", "8"), ("--placement", "inline")]
    forward = parse([w for pair in words for w in pair], DEFAULT)
    backward = parse([w for pair in reversed(words) for w in pair], DEFAULT)
    assert forward == backward
    assert forward.experiment.group_size == 4


def test_another_environment_drops_options_of_the_default_one():
    env = EnvConfig("my:Corridor", kwargs={"size": 8}, wrappers=("my:Wrapper",), reward_scale=0.1)
    default = Experiment(env=env)
    other = parse(["--env.id=CartPole-v1", "--env.kwargs.length", "3"], default).experiment.env
    assert other == EnvConfig("CartPole-v1", kwargs={"length": 3}, reward_scale=0.1)
    same = parse(["--env.id", "my:Corridor", "--env.kwargs.length", "3"], default).experiment.env
    assert same == dataclasses.replace(env, kwargs={"size": 8, "length": 3})


def test_another_scenario_of_the_same_environment_reports_the_same_statistics():
    default = Experiment(
        env=EnvConfig("hide_and_seek:empty", kwargs={"n_hiders": 1}, episode_metrics=("num_box_lock",))
    )
    other = parse(["--env.id", "hide_and_seek:quadrant"], default).experiment.env
    assert other == EnvConfig("hide_and_seek:quadrant", episode_metrics=("num_box_lock",))
    none = parse(["--env.id", "particle:simple_spread_v3"], default).experiment.env
    assert none == EnvConfig("particle:simple_spread_v3")


def test_the_config_of_an_agent_need_not_be_frozen():
    @dataclass
    class Own:
        factory: ClassVar[str] = "nowhere:agent"
        learning_rate: float = 3e-4

    assert parse(["--agent.learning-rate", "1e-3"], Experiment(agent=Own())).experiment.agent == Own(1e-3)


def test_an_agent_by_reference_keeps_its_function():
    def mine(spec):
        return spec

    default = Experiment(agent=AgentReference(mine, {"width": 3}))
    line = parse(["--agent.kwargs.depth", "2", "--num-envs", "8"], default)
    assert line.experiment.agent == AgentReference(mine, {"width": 3, "depth": 2})
    assert line.experiment.num_envs == 8


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--agent.gamma", "2"], "gamma must be between 0 and 1, got 2.0"),  # __post_init__ of a nested config
        (["--num-envs", "1e400"], "--num-envs is 1e400; expected auto or a whole number."),
        (["--num-envs", ""], "--num-envs is ''; expected auto or a whole number."),
        (["--agent.network.hidden", '[64, "x"]'], "--agent.network.hidden is '[64, \"x\"]'; expected a list such "
         "as 64,64."),
        (["--env.wrappers", "[{"], "--env.wrappers is '[{'; expected a list such as [\"module:Class\"]."),
        (["--agent.network.hidden", "64,x"], "--agent.network.hidden is '64,x'; expected a list such as 64,64."),
        (["--deterministic", "maybe"], "--deterministic is a switch; give it alone, or --deterministic true or false."),
        (["--no-deterministic", "true"], "--no-deterministic is a switch; give it alone, or --deterministic true or "
         "false."),
        (["--seed"], "--seed needs a value (a whole number)."),
        (["--env.kwargs.size"], "--env.kwargs.size needs a value."),
        (["--seed", "1", "2"], "--seed takes one value, got '1 2'; options begin with --."),
        (["--env.kwargs", "x"], "--env.kwargs is 'x'; expected a JSON object, or keys one by one: --env.kwargs.KEY "
         "VALUE."),
        (["stray"], "'stray' is not an option; options begin with --; only NAME does not."),
        (["my_env:MyEnv"], "'my_env:MyEnv' is not an option; options begin with --; only NAME does not. An environment is "
         "given as --env.id my_env:MyEnv."),
        (["Pendulum-v1"], "'Pendulum-v1' is not an option; options begin with --; only NAME does not. An environment is "
         "given as --env.id Pendulum-v1."),
        # An unreadable value is reported before a conflict between options.
        (["--num-groups", "3", "--num-envs", "12", "--seed", "x"], "--seed is 'x'; expected a whole number."),
        (["--evaluator.env.max_steps", "9"], "evaluator.env has no option 'max_steps'; did you mean max_episode_steps?"),
    ],
)  # fmt: skip
def test_invalid_value_is_reported_in_one_sentence(words, sentence, capfd):
    with pytest.raises(ConfigError) as caught:
        parse(words, DEFAULT)
    assert str(caught.value) == sentence
    assert capfd.readouterr() == ("", "")  # and no other message


@pytest.mark.parametrize(
    ("word", "suggested"),
    [
        ("--num-env", "--num-envs"),
        ("--rollout-len", "--rollout-length"),
        ("--agent.lerning-rate", "--agent.learning-rate"),
        ("--gama", "--agent.gamma"),
        ("--hidden", "--agent.network.hidden"),
        ("--reuse", "--learner.reuse"),
    ],
)
def test_wrong_name_suggests_the_right_one(word, suggested):
    with pytest.raises(ConfigError, match=r"there is no option") as caught:
        parse([word, "1"], DEFAULT)
    assert f"{suggested}" in str(caught.value)


# -- help -------------------------------------------------------------------------------------------------------------


def real() -> Experiment:
    from jsrl.agents.ppo import PPOConfig

    return Experiment(agent=PPOConfig())


@pytest.mark.parametrize("name", experiments())
def test_help_shows_at_most_40_options_and_full_help_175(name):
    experiment = load(name)
    short, full = short_help(experiment, "usage: ...", {name: "text"}), full_help(experiment)
    shown = re.findall(r"^  --([^ ]+)", short, re.M)
    assert ("each policy has its own" in short) == bool(experiment.policies)
    assert 25 <= len(shown) <= 40 and max(map(len, short.splitlines())) <= 120
    assert set(shown) - {"env.kwargs.KEY"} <= set(offered_options(experiment, RunOptions()))
    every = re.findall(r"^  --([^ ]+)", full, re.M)
    assert sorted(every) == sorted(offered_options(experiment, RunOptions()))  # each is in one chapter
    assert len([one for one in every if not one.startswith("policies.")]) <= 175
    agents = {one.split(".")[1] for one in every if one.startswith("policies.")}
    assert all(len([one for one in every if one.startswith(f"policies.{agent}.")]) <= 60 for agent in agents)


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [("ppo", "minibatch-size", "num-minibatches"), ("dqn", "target-env-steps", "target-period")],
)
def test_an_option_clears_the_one_that_would_take_its_place(name, default, other):
    experiment = load(name)
    before = parse([f"--agent.{default}", "64"], experiment).experiment
    short = short_help(before, "usage: ...", {})
    assert f"--agent.{other} " not in short  # the help shows the one in force
    agent = parse([f"--agent.{other}", "8"], before).experiment.agent
    assert getattr(agent, default.replace("-", "_")) is None and getattr(agent, other.replace("-", "_")) == 8
    with pytest.raises(ConfigError, match=f"--agent.{default} and --agent.{other} say the same in two ways"):
        parse([f"--agent.{other}", "8", f"--agent.{default}", "64"], before)


def test_dependent_values_may_be_given_in_any_order():
    tasks, weights = ["--env.tasks", '[{"size": 5}, {"size": 9}]'], ["--env.task-weights", "3,1"]
    for words in ([*tasks, *weights], [*weights, *tasks]):
        env = parse(words, real()).experiment.env
        assert env.tasks == ({"size": 5}, {"size": 9}) and env.task_weights == (3.0, 1.0)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--deadlines.hooks-s 3", "set deadlines.hooks_s of the Experiment in a config in Python"),
        ("--director x", "set director of the Experiment in a config in Python"),
        ("--name x", "here it is called --run-name."),
        ("--agent.network.entities.heads 2", "set agent.network.entities.heads of the Experiment"),
    ],
)
def test_what_only_python_sets_is_refused_with_the_way(words, hint):
    with pytest.raises(ConfigError) as refused:
        parse(words.split(), real())
    assert str(refused.value).startswith(f"there is no option {words.split()[0]}") and hint in str(refused.value)


def test_every_option_is_explained():
    from jsrl.agents.sac import SACConfig
    from jsrl.experiment import ReplayConfig

    for each in (real(), Experiment(agent=SACConfig(), replay=ReplayConfig())):
        unexplained = {o.name for o in (options_of(each) | options_of(RunOptions())).values() if not o.text}
        assert not unexplained


def test_policy_options_use_policy_names() -> None:
    default = Experiment(
        policies={"seeker": PolicyConfig(AgentConfig(), "s_*"), "big_hider": PolicyConfig(AgentConfig())}
    )
    line = parse(
        ["--policies.seeker.agent.learning-rate", "0.1", "--policies.big-hider.seed", "7", "--num-envs", "8",
         "--policies.big_hider.agent.gamma=0.5"],
        default,
    )  # fmt: skip
    seeker, hider = line.experiment.policies["seeker"], line.experiment.policies["big_hider"]
    assert (seeker.agent, seeker.seats, seeker.seed) == (AgentConfig(learning_rate=0.1), "s_*", None)
    assert (hider.agent, hider.seed, line.experiment.num_envs) == (AgentConfig(gamma=0.5), 7, 8)
    assert type(seeker) is PolicyConfig and type(line.experiment.policies) is dict
    assert parse([], default).experiment == default
    with pytest.raises(ConfigError, match=r"--policies.seeker.agent.gama; did you mean --policies.seeker.agent.gamma"):
        parse(["--policies.seeker.agent.gama", "0.1"], default)
    with pytest.raises(
        ConfigError, match=r"each policy has its own: --policies.seeker.agent.gamma or --policies.big-h"
    ):
        parse(["--agent.gamma", "0.1"], default)


def test_the_experiment_is_made_once_for_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part that the options change is made once, and so checked once; the others are not made again."""
    made: list[str] = []

    def remember(value: Any, **changes: Any) -> Any:
        made.append(type(value).__name__)
        return dataclasses.replace(value, **changes)

    monkeypatch.setattr(command_line, "dataclasses", SimpleNamespace(**vars(dataclasses) | {"replace": remember}))
    assert parse([], DEFAULT) == command_line.CommandLine(DEFAULT, RunOptions()) and not made
    words = "--agent.gamma 0.5 --agent.network.core gru --learner.reuse 1 --num-actors 2 --resume one --runs-dir there"
    line = parse(words.split(), DEFAULT)
    assert sorted(made) == ["AgentConfig", "LearnerConfig", "NetConfig", "RunOptions"]
    assert line.experiment.agent.network.core == "gru" and line.experiment.num_actors == 2 and line.run.resume == "one"


def test_environment_options_of_an_evaluation():
    words, of_env = evaluate.split_options(["x@best", "--env.id", "A-v0", "--episodes", "3", "--env.kwargs.size=4"])
    assert (words, of_env) == (["x@best", "--episodes", "3"], ["--env.id", "A-v0", "--env.kwargs.size=4"])
    evaluator = EvaluatorConfig(env={"max_episode_steps": 9, "kwargs": {"evaluated": 1}})
    trained = Experiment(PPOConfig(), EnvConfig("B-v0", {"old": 1}), evaluator=evaluator)
    found = evaluate.environment_with(trained, of_env)
    assert (found.id, found.kwargs, found.max_episode_steps) == ("A-v0", {"size": 4}, 9)
    with pytest.raises(ConfigError, match=r"--env.reward-scale has no effect: evaluations .* raw rewards"):
        evaluate.environment_with(trained, ["--env.reward-scale", "3"])
    with pytest.raises(ConfigError, match=r"did you mean --env.max-episode-steps"):
        evaluate.environment_with(trained, ["--env.max-episode-step", "3"])


def test_wrappers_replace_those_with_arguments():
    default = Experiment(PPOConfig(), EnvConfig("A-v0", wrappers=({"wrapper": "a:B", "kwargs": {"k": 4}},)))
    assert parse(["--env.wrappers", "c:D", "e:F"], default).experiment.env.wrappers == ("c:D", "e:F")
    assert parse(["--env.wrappers", '["c:D"]'], default).experiment.env.wrappers == ("c:D",)
