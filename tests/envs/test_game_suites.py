"""Environments with seats around their adapters: missing packages, failures and rebuilds, imports, training."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from jsrl.envs.adapters import pettingzoo
from jsrl.envs.check import random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import import_modules, make, make_game, make_spec
from jsrl.errors import EnvironmentFault, MissingExtra
from tests.envs.seat_games import ParallelGame
from tests.marks import nightly, slow

SUITES = [
    ("pettingzoo:mpe2.simple_spread_v3", "mpe2", "games"),
    ("lbf:Foraging-8x8-2p-2f-coop-v3", "lbforaging", "games"),
    ("openspiel:kuhn_poker", "pyspiel", "openspiel"),
]


SINGLE = [("MiniGrid-DoorKey-5x5-v0", "minigrid", "minigrid"), ("VizdoomBasic-v1", "vizdoom", "vizdoom")]


@pytest.mark.parametrize(("name", "module", "extra"), [*SUITES, *SINGLE])
def test_missing_suite_names_its_extra(name: str, module: str, extra: str, monkeypatch) -> None:
    for loaded in [key for key in sys.modules if key.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    build = make_game if ":" in name else make
    for call in (lambda: build(EnvConfig(name), 1, 0), lambda: import_modules(EnvConfig(name))):
        with pytest.raises(MissingExtra, match=rf"environment '{name}' needs .*pip install .*\[{extra}\]"):
            call()


@pytest.mark.parametrize(
    ("name", "module", "told"),
    [
        ("classic.leduc_holdem_v4", "rlcard", r"named 'rlcard'\): .* -m pip install rlcard\. Check the module's name"),
        ("classic.chess_v6", "chess", r"named 'chess'\): .* -m pip install chess\. Check the module's name"),
    ],
)
def test_what_a_game_needs_beside_the_extra_is_named(name: str, module: str, told: str, monkeypatch) -> None:
    def imported(target: str):
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    monkeypatch.setattr(pettingzoo, "import_module", imported)
    with pytest.raises(MissingExtra, match=told):
        make_game(EnvConfig(f"pettingzoo:pettingzoo.{name}"), 1, 0)


def test_imports_of_forked_actors_happen_before_the_fork() -> None:
    for name, module in (
        ("particle:simple_spread_v3", "jsrl.games.particle.game"),
        ("matrix:rps", "jsrl.games.matrix"),
        ("pettingzoo:tests.envs.seat_games:ParallelGame", "tests.envs.seat_games"),
    ):
        import_modules(EnvConfig(name))
        assert module in sys.modules


class FailingGame(ParallelGame):
    """Raises in its seventh step, unless it was rebuilt."""

    made = 0

    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.rebuilt, self.steps = type(self).made > 2, 0

    def step(self, actions):
        self.steps += 1
        if self.steps == 7 and not self.rebuilt:
            raise RuntimeError("the axle broke")
        return super().step(actions)


def play(config: EnvConfig, warn=None) -> list:
    """Return copies of (is_first, reward, discount) of 40 steps of two slots."""
    game = make(config, 2, 0, groups={"all": ("a_0", "a_1", "a_2", "a_3")}, warn=warn)
    rng, step, seen = np.random.default_rng(0), game.reset(), []
    for _ in range(40):
        step = game.step(random_actions(game, step.observation, rng))
        seen.append((step.is_first.copy(), step.reward.copy(), step.discount.copy()))
    game.close()
    return seen


def test_failed_game_is_rebuilt_if_configured() -> None:
    name, told = "pettingzoo:tests.envs.test_game_suites:FailingGame", list[str]()
    module = sys.modules.get("tests.envs.test_game_suites")
    frail = FailingGame if module is None else module.FailingGame
    frail.made = 0
    with pytest.raises(
        EnvironmentFault,
        match=r"slot 0, episode \d+, step \d+, first reset with seed \d+\) raised RuntimeError in step: the",
    ):
        play(EnvConfig(name))
    frail.made = 0
    seen = play(EnvConfig(name, on_fault="restart-env"), told.append)
    assert len(told) == 2 and all("the axle broke" in line for line in told)
    assert [slot for slot in (0, 1) if f"Slot {slot} is rebuilt" in told[slot]] == [0, 1] and seen[6][0].all()
    assert all(not reward[first].any() and (discount[first] == 1).all() for first, reward, discount in seen)


def test_position_of_a_game_that_may_be_rebuilt_is_known() -> None:
    """The message about an environment that hangs names it."""
    game = make_game(EnvConfig("pettingzoo:tests.envs.seat_games:ParallelGame", on_fault="restart-env"), 2, 0)
    game.reset()
    assert game.where().startswith("slot 1, episode 0, step 0, first reset with seed ")


class FailingSlot(ParallelGame):
    """The second of two slots raises in its seventh step, unless it was rebuilt; its episodes are longer than that."""

    made = 0

    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.raises, self.steps = type(self).made == 2, 0

    def step(self, actions):
        self.steps += 1
        if self.steps == 7 and self.raises:
            raise RuntimeError("the axle broke")
        return super().step(actions)


def test_one_game_of_a_vector_is_rebuilt_and_the_others_play_on() -> None:
    name, told = "pettingzoo:tests.envs.test_game_suites:FailingSlot", list[str]()
    module = sys.modules.get("tests.envs.test_game_suites")
    rash = FailingSlot if module is None else module.FailingSlot
    rash.made = 2  # nothing raises
    calm = play(EnvConfig(name))
    rash.made = 0
    seen = play(EnvConfig(name, on_fault="restart-env", fault_limit=1), told.append)
    assert len(told) == 1 and "Slot 1 is rebuilt" in told[0]
    for (first, reward, discount), (calm_first, calm_reward, calm_discount) in zip(seen, calm, strict=True):
        assert first[0] == calm_first[0] and (reward[0] == calm_reward[0]).all()
        assert (discount[0] == calm_discount[0]).all()
    cut = next(t for t in range(40) if seen[t][0][1] != calm[t][0][1])
    first, reward, discount = seen[cut]
    assert first[1] and not reward[1].any() and (discount[1] == 1).all()


def test_pettingzoo_class_is_given_by_reference() -> None:
    """Also for the class itself, as in notebooks."""
    base = pytest.importorskip("pettingzoo").ParallelEnv
    mine = type("Mine", (ParallelGame, base), {})
    game = make_game(EnvConfig(mine, kwargs={"symmetric": True}), 2, 0)
    assert game.spec.names == ("a_0", "a_1", "a_2", "a_3") and game.spec.symmetric
    assert game.reset().is_first.all()


def test_a_game_may_be_declared_symmetric() -> None:
    name = "pettingzoo:tests.envs.seat_games:ParallelGame"
    assert make_spec(EnvConfig(name, kwargs={"symmetric": True})).symmetric and not make_spec(EnvConfig(name)).symmetric


TAG = ("particle:simple_tag_v3", {"hunter": "adversary_*", "prey": "agent_*"})
TICTACTOE = ("pettingzoo:pettingzoo.classic.tictactoe_v3", {"crosses": "player_1", "noughts": "player_2"})


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "seats"),
    [slow(*TICTACTOE), nightly(*TAG)],
)
def test_two_policies_train_in_a_game_suite(name: str, seats: dict[str, str], tmp_path) -> None:
    from jsrl.agents.ppo import PPOConfig
    from jsrl.control.run import run
    from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig
    from jsrl.networks.model import NetworkConfig

    pytest.importorskip("pettingzoo")
    agent = PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1)
    experiment = Experiment(
        env=EnvConfig(name),
        name="game",
        policies={policy: PolicyConfig(agent, pattern) for policy, pattern in seats.items()},
        num_envs=4,
        rollout_length=16,
        total_env_steps=3 * 64,
        placement="serial",
        evaluator=EvaluatorConfig(enabled=False),
    )
    result = run(experiment, runs_dir=tmp_path, display="quiet")
    assert result.updates == 3
    losses = [values for key, values in result.metrics.items() if key.endswith("learner/loss")]
    assert len(losses) == 2 and all(np.isfinite(values[~np.isnan(values)]).all() for values in losses)
