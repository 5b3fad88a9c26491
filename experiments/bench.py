"""Measure an experiment on this machine: `python experiments/bench.py ppo_cartpole`.

Prints one table: environment, inference and update alone, the physical limit that follows from them, and for each placement
the trained env steps per second and per CPU-second, share of the limit, policy lag, inference batch, idle shares, bytes and
copies per row, memory of all processes, and the time to the first update. Every end-to-end figure is a whole run in fresh
processes, measured after its warm-up; repetitions alternate between all arms.

`--against sb3,sbx` runs other libraries on the same work in between and prints ratios. For a library that is missing the
table has the command that installs it. The options of the comparison then come from benchmarks/peers/works.py.

`sac_halfcheetah` and `td3` are measured as off-policy learning: updates alone by batch size (update frame rate, CPU time,
share of the matrix-product rate), and sampling with updating, compared with sb3, sbx and torch-loop (a plain loop in torch).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu import measure as gpu
from benchmarks.peers.replay_works import PEERS as REPLAY_PEERS
from benchmarks.peers.works import PEERS
from benchmarks.throughput import alone, session, tables
from benchmarks.updates import session as replay_session
from benchmarks.updates import tables as replay_tables
from jsrl.cli.main import Parser
from jsrl.cli.report import check_folder
from jsrl.errors import ConfigError, JsrlError


def parser() -> Parser:
    """Return the command line."""
    line = Parser(
        prog="python experiments/bench.py",
        description=__doc__,
        usage="%(prog)s NAME [options] [-- options of jsrl run for every arm of jsrl's]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("name", nargs="?", help="an experiment, as for jsrl run")
    line.add_argument(
        "--placements", default=",".join(session.PLACEMENTS), help="placements to run (default: %(default)s)"
    )
    line.add_argument("--seconds", type=float, default=8.0, help="seconds of each window (default: %(default)s)")
    line.add_argument(
        "--warm-up-s",
        type=float,
        default=2.0,
        help="seconds after the first update that do not count (default: %(default)s)",
    )
    line.add_argument(
        "--repetitions", type=int, default=3, help="of all arms, alternating; 0: only a search (default: 3)"
    )
    line.add_argument("--starts", type=int, default=1, help="how often to measure starts; 0: never (default: 1)")
    line.add_argument(
        "--batch", default="256,8192", help="off-policy: batch sizes of updates alone (default: %(default)s)"
    )
    line.add_argument("--envs", default="1,8,16", help="off-policy: environments of learning (default: %(default)s)")
    line.add_argument(
        "--num-envs",
        type=int,
        help="with --against: environments of every system; an update keeps its number of rows (default: 16)",
    )
    line.add_argument("--parts", default="updates,learning", help="off-policy: parts to run (default: %(default)s)")
    peers = f"other libraries: {','.join(PEERS)}; NAME:1 takes part in the first repetition only. Off-policy: "
    peers += ",".join(REPLAY_PEERS)
    line.add_argument("--against", default="", metavar="PEERS", help=peers)
    line.add_argument("--peers-dir", help="folder of their virtual environments (default: ~/.cache/jsrl/peers)")
    line.add_argument("--peer-search", action="store_true", help="first try every setting of the peers, keep the best")
    line.add_argument("--json", metavar="FILE", help="write the raw numbers")
    line.add_argument(
        "--gpu", action="store_true", help="measure accelerators instead, ten minutes at most: see --gpu --help"
    )
    line.add_argument("--show", metavar="FILE", help="print the table of raw numbers written earlier, and end")
    return line


def main() -> int:
    """Measure, print the table, write the raw numbers."""
    if "--gpu" in sys.argv:
        return gpu.main([word for word in sys.argv[1:] if word != "--gpu"])
    words, options = alone.split_options(sys.argv[1:])
    given = parser().parse_args(words)
    if given.name is None and not given.show:
        parser().error("give the name of an experiment; `jsrl list` shows them")
    try:
        check(given)
        check_folder(given.json, "--json")
        if given.show:
            show(read(Path(given.show)))
            return 0
        raw = (replay_session if replay_session.is_compared(given.name) else session).measure(given, options)
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written.", file=sys.stderr)
        return 130
    show(raw)
    if given.json:
        Path(given.json).write_text(json.dumps(raw, indent=1, default=str) + "\n")
    return 0


def check(given: argparse.Namespace) -> None:
    """Check the numbers before anything is measured.

    Raises:
      ConfigError: one cannot work; the message names its option.
    """
    if not 0 < given.seconds < math.inf:
        raise ConfigError(f"--seconds is {given.seconds:g}, expected above 0.")
    for name in ("warm_up_s", "repetitions", "starts"):
        if not 0 <= getattr(given, name) < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(given, name):g}, expected 0 or more.")
    if given.num_envs is not None and given.num_envs < 1:
        raise ConfigError(f"--num-envs is {given.num_envs}, expected at least 1.")


def read(path: Path) -> dict[str, Any]:
    """Return raw numbers written with --json.

    Raises:
      ConfigError: the file is not there, or is no JSON object.
    """
    try:
        raw = json.loads(path.read_text())
        return dict(raw)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as raw numbers ({error}); give a file written with --json."
        ) from error


def show(raw: dict[str, Any]) -> None:
    """Print the tables of raw numbers, of either kind.

    Raises:
      ConfigError: they are of neither.
    """
    (replay_tables if raw.get("kind") == replay_tables.KIND else tables).show(raw)


if __name__ == "__main__":
    sys.exit(main())
