"""The report of a run, from the files in its folder alone: what happened, where time went, and what limited it.

`leave_report` writes report.txt and report.html at the end of a run; `jsrl report RUN` writes them again, even for
a run that was killed or is still running; `jsrl watch` shows the page.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from urllib.parse import quote

from jsrl.errors import counted
from jsrl.graph.addresses import leg_of
from jsrl.graph.drawing import Note, draw
from jsrl.graph.graph import Graph
from jsrl.graph.graph_file import kinds_of, plain_graph
from jsrl.graph.policies import folder_of
from jsrl.references.importing import import_target
from jsrl.services.metrics.display_state import games_text
from jsrl.services.metrics.phases import PHASES, TRACES, of_main_thread
from jsrl.services.runs.files import write_atomic
from jsrl.services.runs.runs import RunFolder, in_command
from jsrl.services.runs.standings import StandingsTable
from jsrl.services.runs.state import is_whole
from jsrl.tools.report.curves import FIRST, algorithm, learning, machine, own_workers, shares_of_time
from jsrl.tools.report.page import Html, Table, badge, folded, header, section, shell
from jsrl.tools.report.run_report import FILES, RunReport, WorkerTime, make_report
from jsrl.tools.report.text import (
    MOST_PLAYERS,
    document,
    failure,
    lag_text,
    number,
    origin_lines,
    outcome_lines,
    percent,
    rating,
    summary,
)
from jsrl.transport.ledger.legs import SAMPLES
from jsrl.transport.ledger.reconcile import LegLedger, leg_ledger
from jsrl.workers.kinds import phase_of

NOTE = "Bars: share of time that workers work. Red: the busiest of those that rows pass. Rates: trajectories of the whole run."


def leave_report(folder: RunFolder, warn: Callable[[str], None]) -> str:
    """Merge the run's traces, write its reports, and return the summary; failures are warnings, never errors.

    If the report fails, the outcome of the run stays the same. A folder that was deleted gets none.
    """
    try:
        if not is_whole(folder.path):
            return ""
        try:
            if (folder.path / TRACES).exists():
                import_target("jsrl.services.metrics.tracing:merge_traces")(
                    folder.path, phase_of(kinds_of(folder.path))
                )
        except OSError as error:
            warn(f"trace.json could not be written ({error}).")
        return write_report(folder)
    except Exception as error:  # a bug in a report must not fail a trained run
        warn(
            f"the report could not be made ({type(error).__name__}: {error}); try: jsrl report {in_command(folder.path)}"
        )
        return ""


def write_report(folder: RunFolder) -> str:
    """Write report.txt and report.html from a run's files; return the summary for the end of the run."""
    report = make_report(folder)
    write_atomic(folder.path / "report.txt", document(report).encode(), durable=False)
    write_atomic(folder.report, shell(report.name, body(report)).encode(), durable=False)
    return summary(report)


def body(report: RunReport) -> str:
    sections = [
        _header(report),
        _figures(report),
        section("What it learned", "".join(f"<p>{escape(text)}</p>" for text in report.signs.values())),
        _verdicts(report),
        _warnings(report),
        section("Learning", "".join(learning(report)), "grid2"),
        section("Players", _players(report)),
        section("Algorithm", algorithm(report)),
        section("Your workers", own_workers(report)),
        section("Speed and machine", "".join(machine(report)), "grid2"),
        section("Where time went", _time(report) + shares_of_time(report)),
        section("Dataflow", _picture(report), "scroll"),
        section("Trajectories", _ledgers(report)),
        section("Videos", _videos(report), "grid2"),
        section("Where it comes from", _pairs(origin_lines(report))),
        section("Options", _options(report)),
        section("Files", _files(report)),
    ]
    return "\n".join(one for one in sections if one)


def _players(report: RunReport) -> str:
    games = games_text(report.last)
    table = standings_page(report.standings) if report.standings is not None else ""
    return (f"<p>{escape(games)}</p>" if games else "") + table


def standings_page(table: StandingsTable) -> str:
    """Return ratings and payoff table as HTML: each cell is the share of points that the row won against the column."""
    shown = table.best(MOST_PLAYERS)
    places = range(len(shown.players))
    rows = [
        (shown.players[i], rating(shown, i), *(_cell(shown.points[i, j], shown.games[i, j]) for j in places))
        for i in places
    ]
    players = counted(len(table.players), "player")
    note = f"<p>{players}; recent games weigh more. Ratings cannot show cycles: look at the cells.</p>"
    return note + Table(("row against column", "Elo", *shown.players), rows, "numbers").html()


def _cell(points: float, games: float) -> str:
    if games <= 0:
        return ""
    share = points / games
    shade = f"rgba({'46,160,67' if share >= 0.5 else '218,54,51'},{abs(share - 0.5):.2f})"
    return Html(f'<div style="background:{shade}" title="{games:.0f} games">{100 * share:.0f}%</div>')


def _header(report: RunReport) -> str:
    error = _error(report.error) if report.error else ""
    rest = "".join(f"<p>{escape(name)}: {escape(value)}</p>" for name, value in outcome_lines(report)[1:])
    return header(report.name, badge=badge(report.ended), rest=error + rest)


def _error(error: str) -> str:
    sentence, rest = failure(error)
    below = folded("traceback", f"<pre>{escape(rest)}</pre>") if rest else ""
    return f'<div class="error"><b>{escape(sentence)}</b>{below}</div>'


def _verdicts(report: RunReport) -> str:
    limits: dict[str, str] = {}  # its text -> the first policy
    for policy, found in report.bottlenecks.items():
        limits.setdefault(found.text, policy or FIRST)
    names = {text: f"<b>{escape(policy)}:</b> " if len(limits) > 1 else "" for text, policy in limits.items()}
    texts = "".join(f"<p>{name}{escape(text)}</p>" for text, name in names.items())
    return f'<section class="verdict"><h2>What limits it</h2>{texts}</section>'


def _figures(report: RunReport) -> str:
    figures = [(f"{name} per second", number(value)) for name, value in report.rates.items()]
    for policy in report.policies:
        if lag := lag_text(report, policy):
            name = "policy lag, updates (p95)" + (f" of {policy}" if policy else "")
            figures.append((name, lag.split("p95 ")[1].split(",")[0]))
    if report.score is not None:
        title, mean, half = report.score
        figures.insert(0, (title, number(mean) + (f" ± {number(half)}" if half else "")))
    cards = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in figures
    )
    return f'<section class="cards">{cards}</section>' if cards else ""


def _warnings(report: RunReport) -> str:
    return section("Warnings", "".join(f'<pre class="warning">{escape(text)}</pre>' for text in report.warnings))


def _time(report: RunReport) -> str:
    if not report.workers:
        return ""
    used = [phase for phase in PHASES if any(worker.phases[phase] >= 0.0005 for worker in report.workers)]
    keys = "".join(f'<span class="key"><i class="{phase}"></i>{phase}</span>' for phase in used)
    rows = []
    for worker in report.workers:
        activities = sorted(of_main_thread(worker.kind.all_activities), key=lambda a: PHASES.index(a.phase))
        spent = [(a, worker.activities.get(a.name, 0.0)) for a in activities]
        spans = "".join(
            f'<i class="{a.phase}" style="width:{100 * share:.2f}%" title="{a.name} {percent(share)}"></i>'
            for a, share in spent
            if share > 0
        )
        shares = [percent(worker.phases[phase]) for phase in used]
        cores = "-" if worker.cpu is None else f"{worker.cpu:.2f}"
        rows.append((worker.name, Html(f'<div class="bar">{spans}</div>'), *shares, cores, number(worker.rss_mb)))
    table = Table(("worker", "of its time", *used, "cores", "MB"), rows, "numbers", words=(1,))
    return f'<p class="legend">{keys}</p>{table.html()}{_activities(report)}'


def _activities(report: RunReport) -> str:
    rows = [
        (f"{worker.prefix}/{a.name}", percent(worker.activities[a.name]), a.phase, a.meaning, a.healthy)
        for worker in report.workers
        for a in worker.kind.all_activities
        if a.name in worker.activities
    ]
    table = Table(("activity", "share", "phase", "meaning", "healthy"), rows, "numbers", words=(3, 4))
    return folded("every activity", table.html())


def _ledgers(report: RunReport) -> str:
    legs = {name: f"<h3>{escape(name)}</h3>{_ledger(leg_ledger(counts))}" for name, counts in report.legs.items()}
    return (_ledger(leg_ledger(report.ledger)) if report.ledger else "") + "".join(legs.values())


def _ledger(ledger: LegLedger) -> str:
    rows: list[tuple[str, int]] = [("produced", ledger.produced), ("consumed", ledger.consumed)]
    rows += [(f"dropped: {reason}", count) for reason, count in sorted(ledger.dropped.items())]
    rows.append(("in flight at the end", ledger.in_flight))
    rows += [("unknown", ledger.unknown)] if ledger.unknown else []
    rows += [("produced on top, at most", ledger.uncounted)] if ledger.uncounted else []
    table = Table((), [(name, number(count)) for name, count in rows], "numbers narrow")
    mood = "good" if ledger.balanced else "bad"
    return f'{table.html()}<p><span class="badge {mood}">{escape(ledger.verdict)}</span></p>'


def _videos(report: RunReport) -> str:
    return "".join(
        f'<figure><video controls preload="metadata" src="{quote(path)}"></video>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for path, caption in report.videos.items()
    )


def _pairs(pairs: list[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{rows}</dl>"


def _options(report: RunReport) -> str:
    rows = [(name, str(value)) for name, value in report.options.items()]
    return folded(f"{len(rows)} options", Table((), rows, words=(1,)).html()) if rows else ""


def _files(report: RunReport) -> str:
    files = [name for name in FILES if (report.folder / name).exists()]
    links = "".join(f'<li><a href="{quote(name)}">{escape(name)}</a></li>' for name in files)
    hint = "<p>Open trace.json in ui.perfetto.dev.</p>" if "trace.json" in files else ""
    return f'<ul class="files">{links}</ul>{hint}' if links else ""


# -- the dataflow of a run, with measured rates and waits on it ---------------------------------------------------------


def draw_run(folder: str | os.PathLike[str]) -> str:
    """Return the picture of a run's graph as SVG, with what was measured."""
    return _picture(make_report(RunFolder(Path(folder))))


def _picture(report: RunReport) -> str:
    """Return workers with their shares of work and waits, and streams with rates; empty without a graph."""
    graph = plain_graph(report.folder)
    if graph is None:
        return ""
    return draw(graph, _measured(graph, report), _rates(graph, report), NOTE)


def _measured(graph: Graph, report: RunReport) -> dict[str, Note]:
    """Return family -> its workers' share of work, and their main wait; the busiest on the way of the rows is marked."""
    times = {(time.kind.name, time.policy): time for time in report.workers}
    busy = {name: 1.0 - time.phases["wait"] for name, time in times.items()}
    passing = [name for name, time in times.items() if any(port.stream_type != "params" for port in time.kind.ports)]
    busiest = max(passing, key=lambda name: busy[name], default=None)
    found = {}
    for worker in graph.workers:
        name = graph.kind(worker.name).name, folder_of(graph, worker)
        if name in times:
            found[worker.family] = Note(_lines(times[name]), busy[name], name == busiest)
    return found


def _lines(time: WorkerTime) -> tuple[str, str]:
    waits = [a for a in of_main_thread(time.kind.shown.activities) if a.phase == "wait"]
    share, what = max(((time.activities.get(a.name, 0.0), a.waits_for) for a in waits), default=(0.0, ""))
    waiting = f"waits {share:.0%}{f': {what}' if what else ''}" if share >= 0.01 else ""
    return f"works {1.0 - time.phases['wait']:.0%}", waiting


def _rates(graph: Graph, report: RunReport) -> dict[tuple[str, str], str]:
    """Return (stream, reading family) -> trajectories per second, over the whole run."""
    wall_s = report.whole_s
    legs = {SAMPLES: report.ledger, **report.legs}
    found: dict[tuple[str, str], float] = {}
    for stream in graph.streams if wall_s > 0 else ():
        for reader, _ in graph.sinks(stream.name) if stream.type == "samples" and not stream.feedback else ():
            key = stream.name, reader.family
            consumed = (legs.get(leg_of(graph, stream, reader)) or {}).get("consumed", 0)
            found[key] = found.get(key, 0.0) + consumed
    return {key: f"{count / wall_s:,.3g}/s" for key, count in found.items() if count}
