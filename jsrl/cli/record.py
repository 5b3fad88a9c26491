"""Record a trained policy for behaviour cloning: `jsrl record RUN@TAG --to DIR --episodes 100`.

If several policies play, their first one is recorded. RUN@POLICY/TAG records another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from jsrl.cli.arguments import Parser, show_error, user_path
from jsrl.cli.experiments import use_working_directory
from jsrl.cli.record_policy import record_policy
from jsrl.errors import JsrlError, counted
from jsrl.runs.runs import split_tag


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, and print what was written."""
    parser = Parser(prog="jsrl record", description=__doc__)
    parser.add_argument("run", help="RUN or RUN@TAG: a path, EXPERIMENT/NAME, NAME, or EXPERIMENT; tag best by default")
    parser.add_argument(
        "--to",
        type=user_path,
        required=True,
        help="folder of the recording; an existing one of the same kind is extended",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=100,
        help="minimum number of episodes (default: 100); rows of unfinished ones are recorded too",
    )
    parser.add_argument("--num-envs", type=int, default=16, help="environments stepped together (default: 16)")
    parser.add_argument("--rollout-length", type=int, default=128, help="rows of a trajectory (default: 128)")
    parser.add_argument(
        "--seed", type=int, help="seed of episodes and actions (default: 1, or the next that DIR lacks)"
    )
    parser.add_argument("--sampled", action="store_true", help="sample actions instead of taking the most likely ones")
    parser.add_argument(
        "--limit-mb", type=int, default=10_000, help="maximum size of the recording in MiB (default: 10000)"
    )
    parser.add_runs_dir()
    options = vars(parser.parse_args(arguments))
    use_working_directory()
    run, tag = split_tag(options.pop("run"))
    try:
        recorded = record_policy(run, options.pop("to"), tag=tag or "best", **options)
    except JsrlError as error:
        return show_error(error)
    print(
        f"{counted(recorded.episodes, 'episode')}, return {recorded.return_mean:.1f}, "
        f"{recorded.env_steps:,} env steps, seed {recorded.seed}. {recorded.text}"
    )
    return 0
