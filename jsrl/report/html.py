"""A run's report as one self-contained HTML page: no network, no scripts. All text from the run is escaped."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from jsrl.launch.result import is_intended
from jsrl.metrics.display_state import games_text
from jsrl.metrics.phases import PHASES, of_main_thread
from jsrl.report.bottleneck import Bottleneck
from jsrl.report.curves import FIRST, algorithm, learning, machine, own_workers, shares_of_time
from jsrl.report.graph import dataflow
from jsrl.report.run_report import RUNS, RunReport
from jsrl.report.standings import standings_page
from jsrl.report.style import STYLE
from jsrl.report.text import failure, lag_text, number, origin_lines, outcome_lines, percent
from jsrl.transport.ledger.reconcile import HopLedger, hop_ledger


def page(report: RunReport) -> str:
    """Return the whole page."""
    return shell(report.name, body(report))


def shell(title: str, content: str, script: str = "") -> str:
    """Return a page with the style sheet: its title as text, its content and script as HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n{content}\n</main>{script}</body></html>\n"
    )


def body(report: RunReport) -> str:
    """Return the content of the page."""
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
        section("Dataflow", _dataflow(report)),
        section("Trajectories", _ledgers(report)),
        section("Videos", _videos(report), "grid2"),
        section("Where it comes from", _pairs(origin_lines(report))),
        section("Options", _options(report)),
        section("Files", _files(report)),
    ]
    return "\n".join(one for one in sections if one)


def _players(report: RunReport) -> str:
    """Return how a director's games ended, and its players."""
    games = games_text(report.last)
    table = standings_page(report.standings) if report.standings is not None else ""
    return (f"<p>{escape(games)}</p>" if games else "") + table


def _dataflow(report: RunReport) -> str:
    picture = dataflow(report)
    return f'<div class="scroll">{picture}</div>' if picture else ""


def section(title: str, content: str, kind: str = "") -> str:
    """Return a part of a page under a heading, as HTML; an empty string without content."""
    if not content:
        return ""
    inner = f'<div class="{kind}">{content}</div>' if kind else content
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _header(report: RunReport) -> str:
    mood = badge_class_of(report.ended)
    lines = outcome_lines(report)
    badge = f'<span class="badge {mood}">{escape(report.ended)}</span>'
    error = _error(report.error) if report.error else ""
    rest = "".join(f"<p>{escape(name)}: {escape(value)}</p>" for name, value in lines[1:])
    return f"<header><h1>{escape(report.name)} {badge}</h1>{error}{rest}</header>"


def badge_class_of(ended: str) -> str:
    """Return the class of a badge that says how a run ended."""
    if is_intended(ended):
        return "good"
    if ended == RUNS:
        return "live"
    return "bad" if ended == "failed" or ended.startswith("killed") else "neutral"


def _error(error: str) -> str:
    """Return the error as a sentence, with the rest folded."""
    sentence, rest = failure(error)
    folded = f"<details><summary>traceback</summary><pre>{escape(rest)}</pre></details>" if rest else ""
    return f'<div class="error"><b>{escape(sentence)}</b>{folded}</div>'


def _verdicts(report: RunReport) -> str:
    """Return what limits each policy's training."""
    policies: dict[Bottleneck, str] = {}
    for policy, found in report.bottlenecks.items():
        policies.setdefault(found, policy or FIRST)
    names = {found: f"<b>{escape(policy)}:</b> " if len(policies) > 1 else "" for found, policy in policies.items()}
    texts = "".join(f"<p>{name}{escape(found.text)}</p>" for found, name in names.items())
    return f'<section class="verdict"><h2>What limits it</h2>{texts}</section>'


def _figures(report: RunReport) -> str:
    """Return the most important numbers."""
    figures = [(f"{name} per second", number(value)) for name, value in report.rates.items()]
    for policy in report.policies:
        if lag := lag_text(report, policy):
            name = "policy lag, updates (p95)" + (f" of {policy}" if policy else "")
            figures.append((name, lag.split("p95 ")[1].split(",")[0]))
    if report.score is not None:
        title, mean, half = report.score
        figures.insert(0, (title, number(mean) + ("" if half is None else f" ± {number(half)}")))
    cards = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in figures
    )
    return f'<section class="cards">{cards}</section>' if cards else ""


def _warnings(report: RunReport) -> str:
    return section("Warnings", "".join(f'<pre class="warning">{escape(text)}</pre>' for text in report.warnings))


def _time(report: RunReport) -> str:
    """Return a bar and a row of a table for each kind of worker."""
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
        cells = "".join(f"<td>{percent(worker.phases[phase])}</td>" for phase in used)
        cpu = "-" if worker.cpu is None else f"{worker.cpu:.2f}"
        rows.append(
            f'<tr><th>{escape(worker.name)}</th><td class="bar"><div>{spans}</div></td>{cells}<td>{cpu}</td>'
            f"<td>{number(worker.rss_mb)}</td></tr>"
        )
    head = "".join(f"<th>{phase}</th>" for phase in used)
    table = (
        f'<table class="numbers"><thead><tr><th>worker</th><th class="bar">of its time</th>{head}<th>cores</th>'
        f"<th>MB</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
    return f'<p class="legend">{keys}</p><div class="scroll">{table}</div>{_activities(report)}'


def _activities(report: RunReport) -> str:
    """Return every activity with its meaning, folded."""
    rows = "".join(
        f"<tr><th>{escape(f'{worker.prefix}/{a.name}')}</th><td>{percent(worker.activities[a.name])}</td><td>{a.phase}</td>"
        f'<td class="text">{escape(a.meaning)}</td><td class="text">{escape(a.healthy)}</td></tr>'
        for worker in report.workers
        for a in worker.kind.all_activities
        if a.name in worker.activities
    )
    head = "<tr><th>activity</th><th>share</th><th>phase</th><th>meaning</th><th>healthy</th></tr>"
    table = f'<table class="numbers"><thead>{head}</thead><tbody>{rows}</tbody></table>'
    return f'<details><summary>every activity</summary><div class="scroll">{table}</div></details>'


def _ledgers(report: RunReport) -> str:
    hops = {name: f"<h3>{escape(name)}</h3>{_ledger(hop_ledger(counts))}" for name, counts in report.hops.items()}
    return (_ledger(hop_ledger(report.ledger)) if report.ledger else "") + "".join(hops.values())


def _ledger(ledger: HopLedger) -> str:
    rows = [("produced", ledger.produced), ("consumed", ledger.consumed)]
    rows += [(f"dropped: {reason}", count) for reason, count in sorted(ledger.dropped.items())]
    rows.append(("in flight at the end", ledger.in_flight))
    rows += [("unknown", ledger.unknown)] if ledger.unknown else []
    rows += [("produced on top, at most", ledger.uncounted)] if ledger.uncounted else []
    body = "".join(f"<tr><th>{escape(name)}</th><td>{number(count)}</td></tr>" for name, count in rows)
    mood = "good" if ledger.balanced else "bad"
    verdict = f'<span class="badge {mood}">{escape(ledger.verdict)}</span>'
    return f'<table class="numbers narrow"><tbody>{body}</tbody></table><p>{verdict}</p>'


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
    if not report.options:
        return ""
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="text">{escape(str(value))}</td></tr>'
        for name, value in report.options.items()
    )
    table = f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'
    return f"<details><summary>{len(report.options)} options</summary>{table}</details>"


def _files(report: RunReport) -> str:
    links = "".join(f'<li><a href="{quote(name)}">{escape(name)}</a></li>' for name in report.files)
    hint = "<p>Open trace.json in ui.perfetto.dev.</p>" if "trace.json" in report.files else ""
    return f'<ul class="files">{links}</ul>{hint}' if links else ""
