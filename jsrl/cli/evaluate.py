"""Play a run's snapshot: `jsrl evaluate RUN@TAG --episodes 100`; against others: `--against RUN@frozen-3 OTHER@best`.

In another environment with the same spaces: `--env.OPTION VALUE ...`, as for jsrl run; RUN comes before these.
`jsrl evaluate --tournament A B C` plays all pairs, `--tournament RUN` the frozen players of a run.
`jsrl evaluate RUN@TAG --show` plays in a window: space pauses, N starts the next episode, + and - change the speed, Esc ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from jsrl.cli import command_line, play
from jsrl.cli.experiments import use_working_directory
from jsrl.cli.main import Parser, show_error, shown, user_path
from jsrl.cli.report import check_folder
from jsrl.control.result import score
from jsrl.envs.base import Episode
from jsrl.envs.config import EnvConfig
from jsrl.envs.episodes import Episodes
from jsrl.envs.faults import refuse_endless
from jsrl.envs.make import make
from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment import Experiment
from jsrl.references.importing import shown_target
from jsrl.services.runs.runs import RunFolder, split_tag
from jsrl.tools.contest import Arena, frozen_players, why_unfit
from jsrl.tools.policy import Policy, act_together, load_players, stream_of
from jsrl.tools.tuning.child import Lines
from jsrl.workers.play import Score

LINES_S = 30.0  # between two counts without a terminal


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    words, env_words = split_options(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(words)
    if options.episodes is None and not options.show:
        options.episodes = 100
    least = {"episodes": 1, "num_envs": 1, "seed": 0, "most": 2}
    for name, smallest in least.items():
        if (given := getattr(options, name)) is not None and given < smallest:
            parser.error(f"argument --{name.replace('_', '-')}: {given}, expected at least {smallest}")
    if (options.run is None) == (not options.tournament) or (options.against and options.tournament):
        before = f" before {env_words[0]}" if env_words else ""
        parser.error(f"expected RUN@TAG{before}, alone or with --against, or --tournament")
    if env_words and (options.against or options.tournament):
        parser.error(f"{env_words[0]} needs one RUN@TAG: matches are played in the environment of training")
    if options.show and (options.run is None or options.against or env_words or options.json):
        parser.error("argument --show: a window shows one RUN@TAG, without opponents, --env options and --json")
    use_working_directory()
    counting = Counting(sys.stderr)
    try:
        if options.show:
            return play.show(options)
        check_folder(options.json, "--json")
        facts = _tournament(options, counting) if options.tournament else _one(options, env_words, counting)
    except JsrlError as error:
        counting.show("")
        return show_error(error)
    except KeyboardInterrupt:
        counting.show("")
        what = "games" if options.against or options.tournament else "episodes"
        print(f"interrupted ({counting.counted or 'no'} {what} were finished)", file=sys.stderr)
        return 130
    try:
        if options.json:
            options.json.write_text(f"{json.dumps(facts, indent=2)}\n")
    except OSError as error:
        return show_error(error)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="jsrl evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    run = "RUN or RUN@TAG: a path, EXPERIMENT/NAME, NAME, or EXPERIMENT; tag best by default, or a frozen player"
    parser.add_argument("run", nargs="?", help=f"{run} such as frozen-3; RUN@POLICY/TAG is one of several policies")
    parser.add_argument("--against", nargs="+", action="extend", default=[], metavar="RUN@TAG", help="opponents")
    parser.add_argument(
        "--tournament",
        nargs="+",
        metavar="RUN@TAG",
        help="players; one RUN: its frozen players and latest (a league: of each policy)",
    )
    parser.add_argument(
        "--most",
        type=int,
        default=20,
        help="maximum number of frozen players; if there are more, evenly spaced ones play (default: 20)",
    )
    parser.add_argument(
        "--episodes", type=int, help="episodes, or games of each pair (default: 100; in a window until it is closed)"
    )
    parser.add_argument(
        "--num-envs",
        type=int,
        default=20,
        help="environments stepped together, each with a seed of its own: another number plays other episodes (default: 20)",
    )
    parser.add_argument(
        "--seed", type=int, default=12345, help="seed of environments and sampled actions (default: 12345)"
    )
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.add_argument(
        "--json", type=user_path, metavar="FILE", help="write everything, each episode's return too, to this file"
    )
    parser.add_argument("--show", action="store_true", help="play in a window, one environment at a time")
    parser.add_argument("--speed", type=float, default=1.0, help="with --show: multiple of the environment's own speed")
    parser.add_runs_dir()
    return parser


def split_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without the options of the environment (`--env.X`) and their values, and these."""
    words: list[str] = []
    of_env: list[str] = []
    part = words
    for word in arguments:
        if word.startswith("--"):
            part = of_env if word.startswith("--env.") else words
        part.append(word)
    return words, of_env


def environment_with(experiment: Experiment, words: Sequence[str]) -> EnvConfig:
    """Return the evaluation environment of an experiment with further options."""
    asked = command_line.parse(words, experiment)
    if wrong := asked.given & {"env.reward-scale", "env.reward-clip", "env.atari.episodic-life"}:
        raise ConfigError(f"--{min(wrong)} has no effect: evaluations play whole games and report raw rewards.")
    given = {name.split(".")[1].replace("-", "_") for name in asked.given}
    kept = {name: value for name, value in asked.experiment.evaluator.env.items() if name not in given}
    evaluator = dataclasses.replace(asked.experiment.evaluator, env=kept)
    return dataclasses.replace(asked.experiment, evaluator=evaluator).evaluation_env


def _one(options: argparse.Namespace, env_words: Sequence[str], counting: Counting) -> dict[str, Any]:
    """Evaluate one run, alone or against opponents; return the results."""
    if options.against:
        return _against(options, counting)
    run, tag = split_tag(options.run)
    name = RunFolder.open(run, options.runs_dir).name  # of an experiment's name: its newest run
    with shown(f"loading {options.run} ..."):
        policies = load_players(run, tag or "best", runs_dir=options.runs_dir, stream=stream_of(options.seed))
    first, slots = policies[0], min(options.num_envs, options.episodes)
    groups = {policy.view.group: policy.seats for policy in policies if policy.view is not None}
    config = environment_with(first.experiment, env_words)
    env = make(config, slots, options.seed, group=0, groups=groups or None)
    for policy in policies if env_words else ():
        if reason := why_unfit(policy, env.spec):
            env.close()
            raise ConfigError(f"{options.run} cannot play in {config.id}: {reason}.")
    limit = first.experiment.evaluator.max_steps
    played = _Evaluation(policies, env, options, counting, max_steps=limit)
    if not played.advance():
        refuse_endless(env.spec.name, limit)
    env.close()
    counting.show("")
    facts, actions = played.score.facts(), "sampled" if options.sampled else "greedy"
    player = shlex.join([f"{name}@{tag or 'best'}", *env_words])
    print(f"{player} on {shown_target(config.id)}: {score(facts, actions)}, mean length {facts['length_mean']:.0f}")
    facts |= {"seed": options.seed, "num_envs": slots, "returns": played.score.returns}
    return {"player": options.run, "greedy": not options.sampled, "env_options": env_words, **facts}


class _Evaluation(Episodes):
    """Episodes of loaded policies."""

    def __init__(
        self, policies: list[Policy], env: Any, options: argparse.Namespace, counting: Counting, *, max_steps: int
    ) -> None:
        super().__init__(env, options.episodes, max_steps=max_steps, rests=True)
        self._policies, self._options, self._counting = policies, options, counting
        self.score = Score(policies[0].version, policies[0].view)

    def act(self, latest: Any) -> Any:
        self._counting.count(self._options.run, len(self.score.returns), self._options.episodes)
        return act_together(self._policies, latest, greedy=not self._options.sampled)

    def count(self, episode: Episode) -> None:
        self.score.add(episode)


def _against(options: argparse.Namespace, counting: Counting) -> dict[str, Any]:
    arena = _arena([options.run, *options.against], options)
    found = []
    for opponent in range(1, len(arena.names)):
        found.append(arena.play(0, opponent, options.episodes, counting.count))
        counting.show("")
        print(found[-1])
    _hint(any(match.repeats_itself for match in found), options)
    facts = {"greedy": not options.sampled, "matches": [match.facts() for match in found]}
    if len(found) == 1 or max(arena.spec.sides) > 1:  # if a loss is not the opponent's win there is no table
        return facts
    standings = arena.table([(0, opponent) for opponent in range(1, len(arena.names))], found)
    print(standings)
    return facts | standings.facts()


def _tournament(options: argparse.Namespace, counting: Counting) -> dict[str, Any]:
    players = options.tournament
    if len(players) == 1:
        run = players[0]
        if split_tag(run)[1]:
            raise ConfigError(f"--tournament {run} is one player; name several, or a run without @TAG.")
        every = frozen_players(run, runs_dir=options.runs_dir)
        last = len(every) - 1
        players = (
            [every[round(i * last / (options.most - 1))] for i in range(options.most)]
            if last >= options.most
            else every
        )
        if len(players) < len(every):
            print(f"{len(players)} of {len(every)} players meet; --most {len(every)} takes all of them")
    arena = _arena(players, options)
    standings = arena.standings(options.episodes, progress=counting.count)
    counting.show("")
    print(standings)
    _hint(standings.repeats_itself, options)
    return {"greedy": not options.sampled, **standings.facts()}


def _arena(players: list[str], options: argparse.Namespace) -> Arena:
    shared = {"runs_dir": options.runs_dir, "num_envs": options.num_envs, "seed": options.seed}
    return Arena(players, greedy=not options.sampled, **shared)


def _hint(repeats: bool, options: argparse.Namespace) -> None:
    if repeats and not options.sampled:
        print(
            "all games with the same sides were equal (greedy players, no randomness), so intervals mean nothing; "
            "add --sampled"
        )


class Counting(Lines):
    """What is finished: the last line of a terminal, elsewhere a line now and then. counted: the newest count."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.counted, self._is_live = "", stream.isatty()
        self._next_s = time.monotonic() + LINES_S

    def count(self, what: str, number: int, of: int) -> None:
        """Show that `number` of `of` are finished."""
        self.counted = f"{what}: {number:,} of {of:,}"
        self.show(self.counted)
        if not self._is_live and time.monotonic() >= self._next_s:
            self.notify(self.counted)
            self._next_s = time.monotonic() + LINES_S
