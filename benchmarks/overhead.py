"""Steady-state cost of supervision, accounting and metrics: `python benchmarks/overhead.py ppo_cartpole`.

  on, off                      whole runs with heartbeats, deadlines, phases, metrics and the ledger's page, and without all
                               of them (benchmarks/without removes them from every process)
  journals on, journals off    deterministic whole runs with and without the journals of actions for an exact resume
  parts                        of each of them: calls per row in a real run x nanoseconds per call, and CPU of control

Arms alternate (A B, B A, ...) in fresh process trees, watched from outside after a warm-up. The figure is CPU microseconds of
all processes per trained row, which depends less on other load than wall time. Ratios are medians over rounds with a
bootstrap interval of 95%. Results go to benchmarks/results/overhead-NAME-PLACEMENT.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.srl.blocks import Arm, Figures, Record, alternate, paired_ratio, ratio_text
from benchmarks.throughput.alone import split_options
from benchmarks.throughput.arithmetic import rates
from benchmarks.throughput.end_to_end import ENDLESS, Watched, command, watch

WITHOUT = Path(__file__).with_name("without")
PARTS = "heartbeats,deadlines,phases,metrics,ledger"
LIMIT = 0.03
CALLS = 100_000
IDLE_S = 3.0
NO_SILENCE = ("--deadlines.silence-s", "1e9")  # without heartbeats no worker may count as silent
EXACT = ("--deterministic", "true", "--snapshots.exact")


def whole_run(given: argparse.Namespace, name: str, options: list[str], without: str = "") -> Arm:
    """Return the arm that measures a run in its steady state."""
    path = os.pathsep.join(filter(None, [str(WITHOUT), str(ROOT), os.environ.get("PYTHONPATH", "")]))

    def block() -> Figures:
        with tempfile.TemporaryDirectory(prefix="jsrl-overhead-") as folder:
            words = command(given.experiment, given.placement, Path(folder), ENDLESS, [*NO_SILENCE, *options])
            with Watched(words, PYTHONPATH=path, JSRL_WITHOUT=without) as run:
                samples, _ = watch(run, Path(folder), given.seconds, given.warm_up_s)
                run.leave(30.0)
        found = rates(samples)
        return {
            "cpu_us_per_row": 1e6 / found["env_steps_per_cpu_s"],
            "env_steps_per_s": found["env_steps_per_s"],
            "cores_used": found["cores_used"],
        }

    return Arm(name, block)


# -- parts ------------------------------------------------------------------------------------------------------------


def counted_parts() -> list[tuple[str, type, tuple[str, ...]]]:
    """Return (part, class, methods) that are called while rows are made."""
    from jsrl.control.serial import SerialReporter
    from jsrl.services.metrics.metrics import Meter
    from jsrl.services.metrics.phases import Phases
    from jsrl.transport.ledger.leg_page import LegPage
    from jsrl.transport.ledger.page import PersistedLedger

    return [
        ("phases", Phases, ("enter",)),
        ("metrics", Meter, ("rate", "count", "mean", "spread")),
        ("deadlines", SerialReporter, ("entering", "left")),
        ("ledger", PersistedLedger, ("arrive", "finish", "mark", "hold")),
        ("pages", LegPage, ("begin", "commit", "receive")),
    ]


@contextlib.contextmanager
def counting(calls: Counter[str]) -> Iterator[None]:
    """Count the calls of each method while the block lasts."""
    undo: list[Callable[[], None]] = []

    def count(part: str, kind: type, method: str) -> None:
        original = vars(kind)[method]

        def counted(*arguments: Any, **named: Any) -> Any:
            calls[f"{part}.{method}"] += 1
            return original(*arguments, **named)

        setattr(kind, method, counted)
        undo.append(lambda: setattr(kind, method, original))

    for part, kind, methods in counted_parts():
        for method in methods:
            count(part, kind, method)
    try:
        yield
    finally:
        for restore in undo:
            restore()


def calls_per_row(given: argparse.Namespace) -> dict[str, float]:
    """Return how often each method is called per trained row, in a serial run of the experiment in this process."""
    from jsrl.cli.experiments import experiments
    from jsrl.control.run import run

    e = experiments()[given.experiment]()
    e = dataclasses.replace(
        e, placement="serial", stop_at_return=None, total_env_steps=4 * e.rows_per_update,
        evaluator=dataclasses.replace(e.evaluator, enabled=False, final_episodes=0),
    )  # fmt: skip
    calls: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="jsrl-overhead-") as folder, counting(calls):
        result = run(e, runs_dir=folder, display="quiet")
    if not result.env_steps:
        raise SystemExit(f"the serial run that counts calls trained nothing: {result.ended}")
    return {name: number / result.env_steps for name, number in sorted(calls.items())}


def ns_per_call(folder: Path) -> dict[str, float]:
    """Return the CPU nanoseconds of one call of each method, by a loop around it."""
    from jsrl.services.metrics.metrics import Meter
    from jsrl.services.runs.control import ControlClient, ControlServer
    from jsrl.transport.base import Ledger, ProducerId
    from jsrl.transport.ledger.leg_page import LOCAL, LegPage
    from jsrl.transport.ledger.page import open_ledger

    page = LegPage.create(folder, ProducerId("actor-0", 0), 0, blocks=2, transport=LOCAL)
    meter, plain = Meter("actor"), Ledger(dropped={})
    phases = meter.phases
    _, kept = open_ledger(folder / "ledger", 0, None)
    server = ControlServer(f"ipc://{folder}/control")
    control = ControlClient(server.address, "actor-0", 0)
    text = "actor-0: step of environment 'CartPole-v1', group 0,"
    found = {
        "phases.enter": timed(lambda: phases.enter("env")),
        "metrics.rate": timed(lambda: meter.rate("env_steps", 16)),
        "metrics.count": timed(lambda: meter.count("episodes")),
        "metrics.mean": timed(lambda: meter.mean("batch_rows_mean", 16)),
        "metrics.spread": timed(lambda: meter.spread("policy_lag", [1, 1])),
        "deadlines.entering": timed(lambda: control.entering(text, 1)),
        "deadlines.left": timed(control.left),
        "ledger.arrive": timed(kept.arrive) - timed(plain.arrive),  # the page alone
        "ledger.finish": timed(lambda: kept.finish("consumed")) - timed(lambda: plain.finish("consumed")),
        "ledger.mark": timed(lambda: kept.mark(True)),
        "ledger.hold": timed(lambda: kept.hold(3)),
        "pages.begin": timed(lambda: page.begin(1)),
        "pages.commit": timed(page.commit),
        "pages.receive": timed(page.receive),
    }
    control.close()
    server.close()
    return found


def timed(call: Callable[[], Any]) -> float:
    """Return CPU nanoseconds per call, loop overhead included: the smallest of five."""
    best = float("inf")
    for _ in range(5):
        begin = time.thread_time_ns()
        for _ in range(CALLS // 5):
            call()
        best = min(best, (time.thread_time_ns() - begin) / (CALLS // 5))
    return best


def control_share(folder: Path) -> float:
    """Return the CPU share (of one core) of one idle worker's control connection, the controller's end of it included."""
    from jsrl.services.runs.control import ControlClient, ControlServer

    server = ControlServer(f"ipc://{folder}/control-idle")
    client = ControlClient(server.address, "actor-0", 0)
    begin_s, cpu_s = time.monotonic(), time.process_time()
    while time.monotonic() - begin_s < IDLE_S:
        server.poll(0.05)
    share = (time.process_time() - cpu_s) / (time.monotonic() - begin_s)
    client.close()
    server.close()
    return share


def measure_parts(given: argparse.Namespace, record: Record) -> list[str]:
    """Return a line per part: calls per row, nanoseconds each, share of a row's CPU time."""
    per_row = calls_per_row(given)
    with tempfile.TemporaryDirectory(prefix="jsrl-overhead-") as folder:
        ns, control = ns_per_call(Path(folder)), control_share(Path(folder))
    row_us = record.median("on")
    lines, total_us = [f"  {'part':<22}{'calls/row':>12}{'ns/call':>10}{'us/row':>10}"], 0.0
    for name, calls in per_row.items():
        us = calls * ns[name] / 1e3
        total_us += us
        lines.append(f"  {name:<22}{calls:>12.4f}{ns[name]:>10.0f}{us:>10.4f}")
    speed = record.median("on", "env_steps_per_s")
    workers = given.workers
    control_us = 1e6 * control * workers / speed if speed else float("nan")
    record.summary["parts"] = {
        "calls_per_row": per_row,
        "cpu_ns_per_call": ns,
        "cpu_us_per_row": total_us,
        "control_connection_cores_per_worker": control,
        "control_connection_us_per_row": control_us,
        "share": (total_us + control_us) / row_us,
    }
    lines.append(f"  control connection: {control:.4f} cores a worker, with {workers} workers {control_us:.3f} us/row")
    share = (total_us + control_us) / row_us
    return [*lines, f"  parts together: {total_us + control_us:.3f} of {row_us:.2f} us CPU per row ({share:.2%})"]


# -- the command ------------------------------------------------------------------------------------------------------


def compared(record: Record, on: str, off: str) -> list[str]:
    """Return lines of two arms, and the cost of the first over the second."""
    lines = []
    for name in (on, off):
        values = record.values(name)
        low, high = min(values), max(values)
        lines.append(f"  {name:<14} {record.median(name):>9.2f} us CPU per row ({low:.2f} - {high:.2f})")
    ratio = paired_ratio(record, on, off)
    cost = ratio["median"] - 1
    record.summary[f"{on} / {off}"] = ratio | {"cost": cost}
    verdict = "within" if cost <= LIMIT else "ABOVE"
    return [*lines, f"  {on} over {off}: {ratio_text(ratio)}: {cost:+.1%}, {verdict} the limit of {LIMIT:.0%}"]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("experiment", nargs="?", default="ppo_cartpole", help="of run.py")
    made.add_argument("--placement", default="served", choices=("served", "inline", "apart"))
    made.add_argument("--rounds", type=int, default=7, help="runs of each arm")
    made.add_argument("--seconds", type=float, default=15.0, help="of each window")
    made.add_argument("--warm-up-s", type=float, default=4.0, help="after the first update, before the window")
    made.add_argument("--workers", type=int, default=3, help="of the run, for the control connection's share")
    made.add_argument("--journals", action=argparse.BooleanOptionalAction, default=True, help="measure these as well")
    made.add_argument("--json", type=Path, help="file (default: benchmarks/results/overhead-NAME-PLACEMENT.json)")
    return made


def parse(words: list[str]) -> argparse.Namespace:
    """Return the command's options; `options` are those of run.py, after `--`."""
    own, options = split_options(words)
    return parser().parse_args(own, argparse.Namespace(options=options))


def main() -> int:
    """Measure, print, write the file; return 1 if a cost is above the limit."""
    given = parse(sys.argv[1:])
    options = {name: value for name, value in vars(given).items() if name != "json"}
    record = Record("overhead", "cpu_us_per_row", options)
    pairs = [("on", "off")] + [("journals on", "journals off")] * given.journals
    arms = [whole_run(given, "on", given.options), whole_run(given, "off", given.options, PARTS)]
    if given.journals:
        arms += [
            whole_run(given, f"journals {'on' if on else 'off'}", [*given.options, *EXACT, str(on).lower()])
            for on in (True, False)
        ]
    alternate(record, arms, given.rounds)
    lines = [line for on, off in pairs for line in compared(record, on, off)] + measure_parts(given, record)
    path = given.json or Path(__file__).parent / "results" / f"overhead-{given.experiment}-{given.placement}.json"
    record.save(path)
    print(
        "\n".join([f"{given.experiment}, {given.placement} (load {record.blocks[-1].load})", *lines, f"  raw: {path}"])
    )
    return int(any(record.summary[f"{on} / {off}"]["cost"] > LIMIT for on, off in pairs))


if __name__ == "__main__":
    sys.exit(main())
