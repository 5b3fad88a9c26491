"""Play a run's snapshot: `jsrl evaluate RUN@TAG --episodes 100`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jsrl.cli.experiments import use_working_directory
from jsrl.cli.main import program
from jsrl.envs.make import make
from jsrl.errors import JsrlError
from jsrl.launch.result import score
from jsrl.policy import act_together, load_players
from jsrl.workers.play import Tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate and print the score."""
    parser = argparse.ArgumentParser(prog=program("evaluate"), description=__doc__)
    parser.add_argument("run", help="RUN or RUN@TAG: a path, EXPERIMENT/NAME, NAME, or EXPERIMENT; tag best by default")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--num-envs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=12345)
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.add_argument("--runs-dir", default="runs")
    options = parser.parse_args(arguments)
    for name, value, least in (
        ("episodes", options.episodes, 1),
        ("num-envs", options.num_envs, 1),
        ("seed", options.seed, 0),
    ):
        if value < least:
            parser.error(f"argument --{name}: {value}, expected at least {least}")
    use_working_directory()
    run, _, tag = options.run.partition("@")
    try:
        policies = load_players(run, tag or "best", runs_dir=options.runs_dir)
        first, slots = policies[0], min(options.num_envs, options.episodes)
        groups = {policy.view.group: policy.seats for policy in policies if policy.view is not None}
        env = make(first.experiment.evaluation_env, slots, options.seed, group=0, groups=groups or None)
        tally, step = Tally(first.version, options.episodes, slots, first.view), env.reset()
        while not tally.complete:
            step = env.step(act_together(policies, step, greedy=not options.sampled))
            tally.count(step.episodes)
        env.close()
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    facts = tally.score.facts()
    print(f"{options.run}: {score(facts)}, mean length {facts['length_mean']:.0f}")
    return 0
