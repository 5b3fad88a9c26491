"""`jsrl evaluate --against` and `--tournament`: frozen players of a run, whose params determine the winner."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jsrl.agents.ppo import PPOConfig
from jsrl.cli import evaluate, play
from jsrl.control.run import run
from jsrl.directors.league import League
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.envs.seats import view_of
from jsrl.errors import ConfigError, SnapshotError
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig
from jsrl.experiment.building import build_agent
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.runs import RunFolder
from jsrl.services.snapshots.players import PLAYERS_FOLDER, PlayerStore
from jsrl.tools.contest import Arena, LoadedPlayer
from jsrl.tools.policy import Policy, load_policy
from jsrl.types import ArraySpec, Continuous, EnvSpec, make_version
from tests.duel import Duel, MarkedConfig

pytestmark = pytest.mark.slow

DUEL = Experiment(
    env=EnvConfig("tests.duel:Duel"),
    name="duel",
    policies={"main": PolicyConfig(MarkedConfig())},
    num_envs=4,
    rollout_length=8,
    total_env_steps=20 * 32,
    placement="serial",
    evaluator=EvaluatorConfig(enabled=False),
)
ROLES = {"left_one": PolicyConfig(MarkedConfig(), "left"), "right_one": PolicyConfig(MarkedConfig(), "right")}


class Wide(Duel):
    """The duel with another observation."""

    def __init__(self, size):
        self.size = size

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (self.size,), np.float32)

    def _see(self):
        return {agent: np.zeros(self.size, np.float32) for agent in self.possible_agents}


class Trio(Duel):
    """The duel with three seats."""

    possible_agents = ("left", "middle", "right")


def freeze(folder):
    """Write frozen players of 0, 4, 8 and 12 updates into a run folder."""
    players = PlayerStore(folder / PLAYERS_FOLDER)
    for updates, name in enumerate(("initial", "frozen-1", "frozen-2", "frozen-3")):
        players.freeze(name, 4 * updates, [np.full(1, 4.0 * updates, np.float32)])


@pytest.fixture(name="runs", scope="module")
def runs_fixture(tmp_path_factory):
    """Return a folder of runs: a policy with frozen players, an unnamed policy, two roles, and another environment."""
    folder = tmp_path_factory.mktemp("runs")
    pool = run(DUEL, runs_dir=folder, name="pool", display="quiet")
    freeze(pool.folder)
    alone = dataclasses.replace(DUEL, total_env_steps=5 * 32)
    run(
        dataclasses.replace(alone, policies={}, agent=MarkedConfig(core=True)),
        runs_dir=folder,
        name="shared",
        display="quiet",
    )
    run(dataclasses.replace(alone, policies=ROLES), runs_dir=folder, name="roles", display="quiet")
    trio = dataclasses.replace(alone, env=EnvConfig("tests.cli.test_evaluate:Trio"))
    freeze(run(trio, runs_dir=folder, name="trio", display="quiet").folder)
    single = dataclasses.replace(alone, env=EnvConfig("probe:continuous"), policies={}, agent=MarkedConfig())
    run(single, runs_dir=folder, name="other", display="quiet")
    return folder


def evaluated(runs, capsys, *words):
    assert evaluate.main([*words, "--episodes", "8", "--runs-dir", str(runs), "--json", str(runs / "out.json")]) == 0
    return capsys.readouterr().out, json.loads((runs / "out.json").read_text())


def test_evaluates_a_run_against_its_own_past(runs, capsys):
    text, facts = evaluated(runs, capsys, "pool@latest", "--against", "pool@initial")
    (match,) = facts["matches"]
    assert (match["won"], match["drawn"], match["lost"]) == (8, 0, 0)
    assert {name: side["games"] for name, side in match["by_side"].items()} == {"left": 4, "right": 4}
    assert match["return_mean"] == pytest.approx(20 * match["length_mean"]) and match["opponent_return_mean"] == 0.0
    assert "pool@latest against pool@initial: 8 won, 0 drawn, 0 lost of 8 games; win rate 1.000 (95%: 0.676 to" in text


def test_progress_is_shown_without_a_terminal_now_and_then(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(evaluate, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    counting = evaluate.Counting(stream := io.StringIO())
    for episode in range(1, 66):
        now_s[0] += 1.0
        counting.count("shared@latest", episode, 100)
    assert stream.getvalue() == "shared@latest: 30 of 100\nshared@latest: 60 of 100\n"


@pytest.mark.parametrize(("words", "actions"), [((), "greedy"), (("--sampled",), "sampled")])
def test_score_of_a_run_names_how_actions_were_chosen(runs, capsys, words, actions):
    text, facts = evaluated(runs, capsys, "shared@latest", *words)
    folder = RunFolder.open("shared", runs)
    assert text.startswith(f"{folder.name}@latest on {folder.env_id}: return") and ":" in folder.env_id
    assert f"(95% CI, 8 {actions} episodes)" in text and facts["greedy"] == (actions == "greedy")


def test_runs_with_different_seat_groups_play_each_other(runs, capsys):
    """One policy for all seats with a core, two policies of one seat each, and one of these alone; each made 5 updates."""
    for opponent in ("roles@latest", "roles@right_one/latest"):
        text, facts = evaluated(runs, capsys, "shared@latest", "--against", opponent, "--sampled")
        (match,) = facts["matches"]
        assert (match["won"], match["drawn"], match["lost"]) == (0, 8, 0), text
        assert set(match["by_side"]) == ({"left"} if "right" in opponent else {"left", "right"})


def test_several_opponents_make_a_table(runs, capsys):
    text, facts = evaluated(runs, capsys, "shared@latest", "--against", "pool@initial", "pool@latest")
    assert facts["win_rates"][0] == [None, 1.0, 0.0]
    assert [line.split()[1] for line in text.splitlines()[-3:]] == ["pool@latest", "shared@latest", "pool@initial"]


def test_tournament_of_frozen_players(runs, capsys):
    text, facts = evaluated(runs, capsys, "--tournament", "pool", "--most", "3")
    assert (
        facts["players"][0] == "pool@initial" and facts["players"][-1] == "pool@latest" and len(facts["players"]) == 3
    )
    assert facts["win_rates"] == [[None, 0.0, 0.0], [1.0, None, 0.0], [1.0, 1.0, None]]
    assert facts["elo"] == sorted(facts["elo"])
    assert "3 of " in text and "--most" in text and "1  pool@latest" in text


def test_one_of_several_policies_is_loaded_by_its_name(runs):
    for name, seat in (("left_one", "left"), ("right_one", "right")):
        by_name, by_tag, as_in_commands = (
            load_policy("roles", "latest", policy=name, runs_dir=str(runs)),
            load_policy("roles", f"{name}/latest", runs_dir=str(runs)),
            load_policy(f"roles@{name}/latest", runs_dir=str(runs)),
        )
        for other in (by_tag, as_in_commands):
            assert by_name.seats == other.seats == (seat,) and by_name.version == other.version
        assert re.fullmatch(rf"Policy\(duel/roles@{name}/latest, [\d,]+ updates\)", repr(by_tag))
        by_tag.version = make_version(3, 7)
        assert by_tag.updates == 7
    with pytest.raises(ConfigError, match="the tag 'left_one/latest' names another policy than 'right_one'"):
        load_policy("roles", "left_one/latest", policy="right_one", runs_dir=str(runs))
    with pytest.raises(ConfigError, match="has no policy 'middle_one'"):
        load_policy("roles", "latest", policy="middle_one", runs_dir=str(runs))


def test_frozen_params_of_another_network_are_refused_with_the_leaf(runs):
    """Frozen players have no names of leaves: those of a network that was deeper are left over."""
    players = PlayerStore(runs / "duel" / "shared" / PLAYERS_FOLDER)
    players.freeze("deeper", 1, [np.ones(1, np.float32), np.ones((2, 3), np.float32)])
    players.freeze("shallower", 2, [])
    with pytest.raises(SnapshotError, match=r"shared@deeper do not fit: leaf 1 was float32\[2, 3\] and is absent"):
        load_policy("shared", "deeper", runs_dir=str(runs))
    with pytest.raises(SnapshotError, match=r"shared@shallower do not fit: .* was absent and is float32"):
        load_policy("shared", "shallower", runs_dir=str(runs))


def test_tournament_of_a_league_names_the_players_of_each_policy(tmp_path, capsys):
    league = League(main=("main",), main_exploiters=("rival",), league_exploiters=())
    both = {name: PolicyConfig(MarkedConfig()) for name in league.policies}
    short = dataclasses.replace(DUEL, policies=both, director=league, total_env_steps=5 * 32)
    folder = run(short, runs_dir=tmp_path, name="league", display="quiet").folder
    for updates, policy in ((4, ""), (8, "rival")):
        params = [np.full(1, float(updates), np.float32)]
        PlayerStore(folder / PLAYERS_FOLDER / policy).freeze("frozen-1", updates, params)
    names = ["main/initial", "rival/initial", "main/frozen-1", "rival/frozen-1", "rival/latest", "main/latest"]
    _, facts = evaluated(tmp_path, capsys, "--tournament", "league")
    assert facts["players"] == [f"league@{name}" for name in names]
    assert facts["win_rates"][2][3] == 0.0 and facts["win_rates"][3][2] == 1.0


def test_tournament_of_a_three_player_game(runs, capsys):
    """Five players, three at a table; at each step, each is paid the number of updates of its params."""
    text, facts = evaluated(runs, capsys, "--tournament", "trio")
    made = {"trio@initial": 0, "trio@frozen-1": 4, "trio@latest": 5, "trio@frozen-2": 8, "trio@frozen-3": 12}
    assert set(facts["players"]) == set(made) and np.array(facts["games"]).sum() == 10 * 8 * 6
    for i, one in enumerate(facts["players"]):
        expected = [None if one == other else float(made[one] > made[other]) for other in facts["players"]]
        assert facts["win_rates"][i] == expected
        assert facts["each"][i]["games"] == 6 * 8 and facts["elo_low"][i] < facts["elo"][i] < facts["elo_high"][i]
        assert facts["each"][i]["first_share"] == [0, 0, 1 / 6, 1 / 2, 1][sorted(made.values()).index(made[one])]
    assert [line.split()[1] for line in text.splitlines()[-5:]] == sorted(made, key=made.get, reverse=True)
    arena = Arena(["trio@initial", "trio@frozen-1"], runs_dir=runs)
    assert arena.standings(6).win_rates[1, 0] == 1.0
    with pytest.raises(ConfigError, match="has 3 sides"):
        arena.standings(6, pairs=[(0, 1)])


def test_an_arena_in_a_program(runs):
    with_progress = []
    arena = Arena(["pool@latest", "pool@initial"], runs_dir=runs)
    score = arena.play(0, 1, 4, lambda *told: with_progress.append(told))
    assert score.counts == (4, 0, 0) and arena.play(1, 0, 4).counts == (0, 0, 4)
    assert Arena(["pool@latest", "pool@latest"], runs_dir=runs).play(0, 1, 4).counts == (0, 4, 0)


def untrained(env):
    """Return an untrained player, held in memory."""
    experiment = dataclasses.replace(DUEL, env=env, policies={}, agent=MarkedConfig())
    game = make_spec(env)
    spec = game.view(game.names)
    params = build_agent(experiment.agent, spec).init(jax.random.key(0)).params
    return LoadedPlayer(str(env.kwargs), (Policy(experiment, spec, params, 0, {}, view_of("all", (0, 1)), game.names),))


def test_players_of_different_environments_are_refused():
    small, wide = (EnvConfig("tests.cli.test_evaluate:Wide", {"size": size}) for size in (2, 3))
    with pytest.raises(
        ConfigError, match=r"observation is .*shape=.2, 2.* there and .*shape=.2, 3.* in training.*env.kwargs"
    ):
        Arena([untrained(small), untrained(wide)])
    with pytest.raises(ConfigError, match=r"was trained in .*Duel.*in .*Wide.*needs equal environments"):
        Arena([untrained(EnvConfig("tests.duel:Duel")), untrained(wide)])
    assert Arena([untrained(small), untrained(small)]).play(0, 1, 2).counts == (0, 2, 0)


def test_another_environment_with_the_same_spaces(runs, capsys, tmp_path):
    page = tmp_path / "facts.json"
    words = ["other@final", "--episodes", "4", "--json", str(page), "--runs-dir", str(runs)]
    assert evaluate.main(["shared@final", *words[1:], "--env.max-episode-steps", "1"]) == 0
    assert "mean length 1" in capsys.readouterr().out
    facts = json.loads(page.read_text())
    assert facts["env_options"] == ["--env.max-episode-steps", "1"]
    assert len(facts["returns"]) == 4 and np.mean(facts["returns"]) == facts["return_mean"]
    assert (facts["seed"], facts["num_envs"]) == (12345, 4)
    assert evaluate.main([*words, "--env.id", "tests.duel:Duel"]) == 2
    assert "cannot play in tests.duel:Duel: it plays alone" in capsys.readouterr().err
    assert evaluate.main([*words, "--env.id", "MountainCar-v0"]) == 2
    assert "cannot play in MountainCar-v0: " in capsys.readouterr().err


def test_reset_forgets_the_recurrent_state():
    network = NetworkConfig(hidden=(4,), core="gru", core_size=4)
    experiment = dataclasses.replace(DUEL, policies={}, agent=PPOConfig(network=network))
    spec = EnvSpec(ArraySpec((2,), "float32"), Continuous((-9.0,), (9.0,)))
    params = build_agent(experiment.agent, spec).init(jax.random.key(0)).params
    policy = Policy(experiment, spec, params, 0, {})
    ones = np.ones((3, 2), np.float32)
    first, second = policy(ones), policy(ones)
    assert (first != second).all()
    policy.reset()
    assert (policy(ones, np.zeros(3, bool)) == first).all() and (policy(ones) == second).all()


def test_sampled_games_follow_the_seed_and_differ_between_players():
    env = EnvConfig("matrix:rps")
    experiment = dataclasses.replace(DUEL, env=env, policies={}, agent=PPOConfig(network=NetworkConfig(hidden=(4,))))
    game = make_spec(env)
    spec = game.view(game.names)
    params = build_agent(experiment.agent, spec).init(jax.random.key(0)).params
    policy = Policy(experiment, spec, params, 0, {}, view_of("all", (0, 1)), game.names)
    players = [LoadedPlayer("one", (policy,)), LoadedPlayer("two", (policy,))]
    games = {seed: Arena(players, seed=seed).play(0, 1, 60) for seed in (1, 2)}
    assert games[1].games == Arena(players, seed=1).play(0, 1, 60).games != games[2].games
    assert all(counts < 40 for score in games.values() for counts in score.counts)  # not only draws


@pytest.fixture(name="chanceless", scope="module")
def chanceless_fixture(tmp_path_factory):
    """Return the folder of a run in a game without chance: only sampled actions can differ."""
    agent = PPOConfig(network=NetworkConfig(hidden=(4,)))
    game = dataclasses.replace(DUEL, env=EnvConfig("matrix:climbing"), policies={}, agent=agent, total_env_steps=32)
    return run(game, runs_dir=tmp_path_factory.mktemp("chanceless"), name="climbing", display="quiet").folder


def test_the_seed_decides_sampled_actions(chanceless, capsys, tmp_path):
    def returns(seed):
        words = [f"{chanceless}@latest", "--sampled", "--episodes", "60", "--seed", str(seed)]
        assert evaluate.main([*words, "--json", str(tmp_path / "facts.json")]) == 0
        return json.loads((tmp_path / "facts.json").read_text())

    assert returns(1) == returns(1) != returns(2)


def test_the_seed_decides_sampled_actions_in_a_window(chanceless, monkeypatch):
    def act(policies, env, window, name, episodes, greedy):
        (policy,), size = policies, 30
        observation = jax.tree.map(lambda s: s.batched(size).zeros(), policy.spec.observation)
        actions.append(policy(observation, greedy=greedy).tolist())

    actions = []
    monkeypatch.setattr(play, "check_display", lambda: None)
    monkeypatch.setattr(play, "make_rendered", lambda *of_env: mock.MagicMock())
    monkeypatch.setattr(play, "Window", mock.MagicMock())
    monkeypatch.setattr(play, "play", act)
    for seed in (1, 1, 2):
        assert evaluate.main([f"{chanceless}@latest", "--show", "--sampled", "--seed", str(seed)]) == 0
    assert actions[0] == actions[1] != actions[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("pool@latest --against other@latest", "which has one agent"),
        ("pool@latest --against pool@frozen-999", "Frozen players: frozen-1"),
        ("roles@left_one/latest --against roles@left_one/latest", "left of 'tests.duel:Duel'"),
        ("--tournament roles", "has no frozen players"),
        ("--tournament pool@latest", "is one player"),
        ("pool --against pool@initial", "has no snapshot tagged 'best'"),
    ],
)
def test_invalid_commands_are_refused_in_one_sentence(runs, words, sentence, capsys):
    assert evaluate.main([*words.split(), "--runs-dir", str(runs)]) == 2
    said = capsys.readouterr().err
    assert sentence in said and "Traceback" not in said and said.count("\n") == 1
