"""Measure one lever of SRL, on against off, in alternating blocks: `python benchmarks/levers.py ring`.

  ring           environments of one actor, 1 to 16, on an emulated accelerator that answers after t_inf without any CPU
  ring-real      the same on the real inference server and environment
  batching       latency and rows/s of one inference server under 1 to 16 clients, batching on and off
  inline-served  acting in the actor against acting in a server, by network width: where the curves cross
  placements     whole runs: inline (as IMPALA does it), served (as SEED), apart (decoupled)
  transports     whole runs: shared memory against sockets
  slots          environments per group, 1 to 64

Arms alternate (A B, B A, ...); every block's figures, the machine's load and medians go to benchmarks/results/lever-NAME.json.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "experiments")]

from benchmarks.srl import batching, ring, system
from benchmarks.srl.blocks import Arm, Record, alternate, paired_ratio, ratio_text
from benchmarks.throughput.alone import split_options

RINGS = (1, 2, 3, 4, 6, 8, 10, 12, 16)
CLIENTS = (1, 2, 4, 8, 16)


def measure_ring(given: argparse.Namespace, record: Record, folder: Path) -> list[str]:
    """Emulated: speed relative to a ring of 1, for each t_inf / t_env, against min(R, 1 + t_inf / t_env)."""
    step_s, seconds = given.t_env_ms / 1000, given.seconds or 0.8
    lines = [f"  t_env {given.t_env_ms:g} ms; speed relative to a ring of 1 (expected)"]
    for t_ratio in ring.PUBLISHED:
        with ring.EmulatedAccelerator(folder, t_ratio * step_s) as accelerator:

            def block(size: int, to: ring.EmulatedAccelerator = accelerator) -> Callable[[], dict[str, float]]:
                return lambda: ring.measure_ring(to, size, step_s, seconds, spins=given.spin)

            sizes = [size for size in RINGS if size <= given.largest]
            alternate(record, [Arm(f"{t_ratio}: ring {size}", block(size)) for size in sizes], given.rounds or 1)
        one = record.median(f"{t_ratio}: ring 1")
        speedup = {size: record.median(f"{t_ratio}: ring {size}") / one for size in sizes}
        reached = record.median(f"{t_ratio}: ring {max(sizes)}") * step_s  # share of an actor that never waits
        expected = ring.plateau(t_ratio, max(sizes))
        largest = speedup[max(sizes)]
        record.summary[str(t_ratio)] = {
            "speedup": {str(size): round(value, 3) for size, value in speedup.items()},
            "plateau": round(largest, 3),
            "expected_plateau": expected,
            "off_by": round(largest / expected - 1, 4),
            "share_of_never_waiting": round(reached, 3),
        }
        curve = ", ".join(f"{n}: {v:.2f} ({ring.plateau(t_ratio, n):.2f})" for n, v in speedup.items())
        lines.append(
            f"  t_inf/t_env {t_ratio}: plateau {largest:.2f} ({expected:.2f}, {largest / expected - 1:+.1%}); {curve}"
        )
    return lines


def measure_batching(given: argparse.Namespace, record: Record, folder: Path) -> list[str]:
    """Latency and rows/s by number of clients, batching on and off."""
    seconds, rows = given.seconds or 1.0, given.rows
    wanted = [n for n in CLIENTS if n <= given.largest]
    experiments = batching.servers(chosen(given, "ppo_cartpole"), max(wanted), rows)
    with system.contextlib.ExitStack() as stack:
        systems = [stack.enter_context(system.ActingSystem(e, folder, actors=False)) for e in experiments.values()]
        crowd = stack.enter_context(batching.Crowd(systems, max(wanted), rows))
        for server in range(2):
            crowd.measure(server, max(wanted), 0.3)
        for number in wanted:
            arms = [
                Arm(
                    f"{name}, {number} clients",
                    partial(crowd.measure, server, number, seconds, systems[server].cpu_s),
                )
                for server, name in enumerate(experiments)
            ]
            alternate(record, arms, given.rounds or 2)
    lines = [f"  clients of {rows} rows each: rows/s, latency p50 / p95 (us) with batching; without; ratio of rows/s"]
    for number in wanted:
        texts = []
        for name in ("on", "off"):
            arm = f"{name}, {number} clients"
            p50, p95 = record.median(arm, "p50_us"), record.median(arm, "p95_us")
            texts.append(f"{record.median(arm):>9,.0f} {p50:>8,.0f} / {p95:<8,.0f}")
        ratio = paired_ratio(record, f"on, {number} clients", f"off, {number} clients")
        record.summary[f"{number} clients"] = ratio
        lines.append(f"  {number:>3}  {texts[0]}  {texts[1]}  {ratio_text(ratio)}")
    return lines


def measure_inline_served(given: argparse.Namespace, record: Record, folder: Path) -> list[str]:
    """Env steps/s of acting alone, inline and served, by the width of the network."""
    seconds = given.seconds or 1.5
    base = chosen(given, "ppo_cartpole")
    lines = ["  width: env steps/s inline, served; served / inline, per second and per CPU-second"]
    crossed = None
    for width in [w for w in system.WIDTHS if w <= given.widest]:
        wide = system.with_width(base, width)
        named = {f"{kind}, {width}": e for kind, e in system.placements(wide, False).items()}
        with system.acting(named, seconds, folder) as arms:
            alternate(record, arms, given.rounds or 2)
        ratio = paired_ratio(record, f"served, {width}", f"inline, {width}")
        cpu = paired_ratio(record, f"served, {width}", f"inline, {width}", "env_steps_per_cpu_s")
        record.summary[str(width)] = {"per_s": ratio, "per_cpu_s": cpu}
        crossed = width if crossed is None and ratio["median"] >= 1 else crossed
        inline, served = record.median(f"inline, {width}"), record.median(f"served, {width}")
        lines.append(f"  {width:>5}  {inline:>9,.0f} {served:>9,.0f}  {ratio_text(ratio)}; {cpu['median']:.2f}x")
    record.summary["crossover_width"] = crossed
    return [
        *lines,
        f"  served is first as fast as inline at width {crossed}" if crossed else "  served is slower at every width",
    ]


def measure_acting(given: argparse.Namespace, record: Record, folder: Path) -> list[str]:
    """Levers of the acting half: all arms exist at once and are measured in alternation."""
    if record.lever == "ring-real":
        base = chosen(given, "ppo_cartpole")
        experiments = system.rings(base, [n for n in (1, 2, 4, 8, 16) if n <= given.largest])
    else:
        experiments = system.slots(
            chosen(given, "ppo_cartpole"), [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= given.widest]
        )
    with system.acting(experiments, given.seconds or 2.0, folder) as arms:
        alternate(record, arms, given.rounds or 3)
    return compared(record, list(experiments))


def measure_runs(given: argparse.Namespace, record: Record, folder: Path) -> list[str]:
    """Levers of whole runs: every block is a run in new processes."""
    from jsrl.graph.machine import accelerators

    notes = []
    if record.lever == "placements":
        base, gpus = chosen(given, "ppo_cartpole"), accelerators()
        experiments = system.placements(base, bool(gpus))
        if not gpus:
            notes.append("without an accelerator, apart equals served: both act in a separate process on CPU")
    else:
        base = chosen(given, "ppo_pong")
        experiments = system.switch(base, "transport", "shared-memory", "zeromq", ("shared memory", "sockets"))
    record.notes += notes
    arms = [system.whole_run(name, e, given.seconds or 4.0) for name, e in experiments.items()]
    alternate(record, arms, given.rounds or 2)
    return compared(record, list(experiments)) + [f"  {note}" for note in notes]


def compared(record: Record, names: list[str]) -> list[str]:
    """Return a line per arm: its median, and its ratio to the first one."""
    lines = []
    for name in names:
        ratio = paired_ratio(record, name, names[0])
        cpu = paired_ratio(record, name, names[0], "env_steps_per_cpu_s")
        record.summary[name] = {"median": record.median(name), "per_s": ratio, "per_cpu_s": cpu}
        text = f"  {name:<16} {record.median(name):>10,.0f} env steps/s  {ratio_text(ratio)} of {names[0]}"
        lines.append(text + (f"; {cpu['median']:.2f}x per CPU-second" if cpu["pairs"] else ""))
    return lines


LEVERS = {
    "ring": measure_ring,
    "ring-real": measure_acting,
    "batching": measure_batching,
    "inline-served": measure_inline_served,
    "placements": measure_runs,
    "transports": measure_runs,
    "slots": measure_acting,
}
MAIN = {"batching": "rows_per_s"}


def chosen(given: argparse.Namespace, usual: str):
    """Return the experiment to measure, with the options given after `--`."""
    from jsrl.cli.command_line import parse
    from jsrl.cli.experiments import load

    return parse(given.options, load(given.experiment or usual)).experiment


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(
        usage="%(prog)s LEVER [options] [-- options of jsrl run for every arm]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("lever", choices=LEVERS)
    made.add_argument("--seconds", type=float, help="of one block (default: by lever)")
    made.add_argument("--rounds", type=int, help="blocks of each arm (default: by lever)")
    made.add_argument(
        "--experiment", help="an experiment of run.py (default: ppo_cartpole, or ppo_pong where rows are large)"
    )
    made.add_argument("--t-env-ms", type=float, default=20.0, help="ring: time of one environment step")
    made.add_argument(
        "--spin", action="store_true", help="ring: the environment spins instead of sleeping (needs a free core)"
    )
    made.add_argument("--rows", type=int, default=8, help="batching: rows of one request")
    made.add_argument(
        "--largest", type=int, default=16, help="ring, ring-real, batching: largest ring or number of clients"
    )
    made.add_argument("--widest", type=int, default=2048, help="inline-served: widest network; slots: most per group")
    made.add_argument("--output", type=Path, help="file (default: benchmarks/results/lever-NAME.json)")
    return made


def main() -> int:
    """Measure, print, and write the file."""
    from jsrl.cli.experiments import use_working_directory
    from jsrl.errors import JsrlError

    use_working_directory()
    words, further = split_options(sys.argv[1:])
    given = parser().parse_args(words, argparse.Namespace(options=further))
    options = {name: value for name, value in vars(given).items() if name not in ("lever", "output")}
    record = Record(given.lever, MAIN.get(given.lever, "env_steps_per_s"), options)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="jsrl-levers-", dir=memory))
    try:
        lines = LEVERS[given.lever](given, record, folder)
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    path = given.output or Path(__file__).parent / "results" / f"lever-{given.lever}.json"
    record.save(path)
    print("\n".join([f"{given.lever} (load {record.blocks[-1].load})", *lines, f"  raw numbers: {path}"]))
    return 0


def child(words: list[str]) -> bool:
    """Run one of the processes that a lever needs, if the arguments request one; return whether they did."""
    if words[:1] == ["--serve"]:
        ring.serve(words[1], float(words[2]))
    elif words[:1] == ["--client"]:
        batching.client(words[1], words[2:])
    else:
        return False
    return True


if __name__ == "__main__":
    if child(sys.argv[1:]):
        sys.exit(0)
    sys.exit(main())
