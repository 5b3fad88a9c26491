"""Write a run's snapshot to a file that plays without jsrl: `jsrl export RUN@TAG policy.onnx`."""

from __future__ import annotations

from collections.abc import Sequence

from jsrl.cli.experiments import use_working_directory
from jsrl.cli.main import Parser, show_error, shown, user_path
from jsrl.errors import JsrlError
from jsrl.services.runs.runs import split_tag
from jsrl.tools.policy import load_policy


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="jsrl export", description=__doc__)
    parser.add_argument("run", help="RUN or RUN@TAG: a path, EXPERIMENT/NAME, NAME, or EXPERIMENT; tag best by default")
    parser.add_argument(
        "file", type=user_path, help="NAME.onnx, NAME.stablehlo, or a zip with StableHLO and a numpy player"
    )
    parser.add_runs_dir()
    options = parser.parse_args(arguments)
    use_working_directory()
    run, tag = split_tag(options.run)
    try:
        with shown(f"exporting {options.run} ..."):
            report = load_policy(run, tag or "best", runs_dir=options.runs_dir).save(options.file)
    except JsrlError as error:
        return show_error(error)
    print("\n".join([f"{options.file}: the greedy policy of {options.run}", *(f"  {line}" for line in report)]))
    return 0
