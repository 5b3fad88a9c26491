"""Reports from the files of a run: a finished one, a killed one, and one with special characters of HTML."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from jsrl.cli.main import main
from jsrl.control.result import Result, fitted
from jsrl.control.status_writer import player_rows
from jsrl.errors import ConfigError
from jsrl.experiment import AgentReference, Experiment, PolicyConfig
from jsrl.graph.graph import node
from jsrl.graph.graph_file import write_graph
from jsrl.graph.placements import make_graph
from jsrl.references.reference import to_json
from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.display_state import short
from jsrl.services.metrics.phases import Activity
from jsrl.services.runs.runs import Run, RunFolder
from jsrl.services.runs.standings import read_standings
from jsrl.services.runs.state import RunState
from jsrl.tools.report import run_report
from jsrl.tools.report.charts import Series, chart, ticks
from jsrl.tools.report.comparison import compare_runs
from jsrl.tools.report.curves import algorithm, machine, own_workers, shares_of_time
from jsrl.tools.report.report import body, draw_run, leave_report, standings_page, write_report
from jsrl.tools.report.run_report import make_report, steady
from jsrl.tools.report.text import document, standings_lines
from jsrl.workers.kinds import Kind, Shown, own_kinds

ROOT = Path(__file__).parents[3]
EVIL = '<script>alert("1")</script>&\'"'
SHARES = {
    "actor/env_share": 0.7,
    "actor/wait_inference_share": 0.2,
    "actor/transport_share": 0.06,
    "actor/other_share": 0.04,
    "inference/act_share": 0.3,
    "inference/wait_share": 0.7,
    "learner/update_share": 0.4,
    "learner/wait_batch_share": 0.55,
    "learner/publish_share": 0.05,
    "learner/prefetch_wait_batch_share": 1.0,
    "system/actor_cpu_share": 0.9,
    "system/learner_cpu_share": 0.4,
    "system/actor_rss_mb": 51.0,
}


def lines(count: int, first_update: int = 0) -> list[dict]:
    """Metrics of a run: 100 env steps and 2 updates a second; the first and the last line have odd shares."""
    found = []
    for index in range(count):
        line = {
            "env_steps": 100 * (first_update + index + 1),
            "updates": 2 * (first_update + index + 1),
            "wall_s": index + 1.0,
        }
        shares = dict.fromkeys(SHARES, 0.99) if index in (0, count - 1) else SHARES
        line |= shares | {
            "learner/trained_s": 5000.0 + index,
            "actor/env_steps_per_s": 120.0,
            "actor/return_mean": index,
        }
        line |= {"learner/policy_lag_p50": 1.0, "learner/policy_lag_p95": 2.0, "learner/policy_lag_max": 3.0}
        line |= {"ledger/received": 10.0, "ledger/consumed": 7.0, "ledger/dropped": 1.0, "ledger/in_flight": 2.0}
        found.append(line)
    return found


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    config = to_json(Experiment(agent=None, name="tried", num_envs=16, max_policy_lag=1, placement="served"))
    folder = RunFolder.create(tmp_path, "tried", "one", config=config)
    environment = folder.environment | {
        "command": f"python run.py {EVIL}",
        "commit": "abc",
        "uncommitted_changes": True,
    }
    environment["hardware"] |= {"cores": 8, "accelerators": []}
    (folder.path / "environment.json").write_text(json.dumps(environment))
    return folder


def write_lines(folder: RunFolder, entries: list[dict]) -> None:
    folder.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in entries))


def end(folder: RunFolder, **changes) -> None:
    ledger = {"produced": 10, "consumed": 7, "in_flight": 2, "dropped": {"stale": 1}}
    score = {"return_mean": 12.5, "return_ci95": 0.5, "episodes": 20, "env_steps": 800}
    best = score | {"return_mean": 14.0, "env_steps": 600}
    result = Result(folder.path, "total_env_steps", 1000, 20, 10.0, ledger=ledger, evaluation=score, best=best)
    facts = dataclasses.asdict(dataclasses.replace(result, **changes)) | {"folder": str(folder.path)}
    (folder.path / "result.json").write_text(json.dumps(facts))


class Page(HTMLParser):
    """A page: its tags, the addresses that it refers to, and whether every tag is closed."""

    VOID = ("meta", "circle", "line", "polyline", "polygon")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "srcset", "data")]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


def test_report_of_a_finished_run(run_folder: RunFolder):
    write_lines(run_folder, lines(10))
    end(run_folder)
    summary = write_report(run_folder)
    assert "rates while training: 100 env steps trained/s, 2 updates/s, 120 env steps taken/s" in summary
    assert re.search(r"actor +simulate 70%, wait 20% \(actions\), transport 6%, other 4%; 0.90 cores, 51 MB", summary)
    assert "policy lag: p50 1, p95 2, largest 3 updates" in summary
    assert "bottleneck: Environments limit this run: actors spend 70%" in summary
    assert "--num-actors" in summary
    text = (run_folder.path / "report.txt").read_text()
    assert fitted(summary) in text
    assert "produced 10 = consumed 7 + dropped (stale 1) + in flight 2: balanced" in text
    assert f"command: python run.py {EVIL}" in text and "abc with uncommitted changes" in text
    assert "return 12.5 ± 0.5 (95% CI, 20 greedy episodes) at 800 env steps" in text
    assert (
        "\nbest: return 14.0 ± 0.5 (95% CI, 20 greedy episodes) at 600 env steps, the highest of its evaluations"
        in text
    )


def test_the_closing_lines_fit_the_terminal(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    write_lines(run_folder, lines(10))
    end(run_folder)
    result = Result(run_folder.path, "total_env_steps", 1_000, 10, 1.0, summary=write_report(run_folder))
    monkeypatch.setenv("COLUMNS", "60")
    narrow = str(result)
    assert all(len(line) <= 60 or str(run_folder.path) in line for line in narrow.splitlines())
    assert narrow.split()[-2:] == ["report:", str(run_folder.report)]
    monkeypatch.setenv("COLUMNS", "10000")
    wide = str(result)
    assert max(len(line) for line in wide.splitlines() if str(run_folder.path) not in line) in range(100, 121)
    assert wide.split() == narrow.split()


def test_page_is_self_contained_and_runs_no_script(run_folder: RunFolder):
    write_lines(run_folder, lines(10))
    end(run_folder, ended="failed")
    facts = json.loads((run_folder.path / "result.json").read_text())
    (run_folder.path / "result.json").write_text(json.dumps(facts | {"error": f"{EVIL}\n{EVIL}"}))
    log = (
        f"2026-01-01 00:00:00 fine\n2026-01-01 00:00:01 warning: {EVIL}\n  more of it\n2026-01-01 00:00:02 fine again\n"
    )
    (run_folder.logs / "controller.log").write_text(log)
    (run_folder.path / "videos").mkdir()
    video = 'a "b" <c>.mp4'
    (run_folder.path / "videos" / video).write_bytes(b"")
    write_report(run_folder)
    text = run_folder.report.read_text()
    page = Page(text)
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert not re.search(r"https?:|url\(|@import", text.replace("ui.perfetto.dev", ""))
    assert "<script" not in text and "&lt;script&gt;" in text and "more of it" in text and "fine again" not in text
    assert page.tags.count("svg") == 8 and page.tags.count("pre") == 2
    assert "videos/a%20%22b%22%20%3Cc%3E.mp4" in page.links
    assert all((run_folder.path / link).exists() for link in page.links if not link.startswith("videos/"))


def test_a_run_that_learned_nothing_says_so_at_its_end(run_folder: RunFolder):
    score = {"evaluator/return_mean": -200.0, "evaluator/return_ci95": 0.0, "learner/entropy": float(np.log(3))}
    write_lines(run_folder, [line | score for line in lines(10)])
    end(run_folder)
    said = "learning: No evaluation is clearly above the first (-200; the last is -200)"
    assert write_report(run_folder).startswith(said)
    assert "learner/entropy stays at its maximum" in run_folder.report.read_text()


@pytest.mark.parametrize(("seats", "said"), [(("hider_*", "seeker_*"), False), (("*", "*"), True)])
def test_policies_that_share_games_are_not_judged_by_their_returns(tmp_path: Path, seats: tuple[str, str], said: bool):
    agent = AgentReference("m:f")
    policies = {name: PolicyConfig(agent, seats=own) for name, own in zip("ab", seats, strict=True)}
    config = to_json(Experiment(policies=policies, name="tried", num_envs=4, total_env_steps=1000))
    folder = RunFolder.create(tmp_path, "tried", "one", config=config)
    score = {"evaluator/return_mean": 0.0, "evaluator/return_ci95": 0.0}
    write_lines(folder, [line | score for line in lines(10)])
    assert ("learned nothing yet" in write_report(folder)) == said


def test_a_metric_called_env_steps_is_no_policy(run_folder: RunFolder):
    write_lines(run_folder, [line | {"watch/env_steps": 3.0} for line in lines(10)])
    end(run_folder)
    assert make_report(run_folder).policies == [""]
    assert make_report(run_folder).rates["updates"] == pytest.approx(2)


def test_the_games_of_a_director_are_in_text_and_page(run_folder: RunFolder):
    entries = lines(4)
    for index, line in enumerate(entries):
        line |= {"director/finished": 1000.0 * index, "director/discarded": 12.0, "director/open": 32.0}
    write_lines(run_folder, entries)
    report = make_report(run_folder)
    assert "\ngames: 3,000 finished, 12 discarded, 32 open" in document(report)
    assert "<p>games: 3,000 finished, 12 discarded, 32 open</p>" in body(report)


def test_a_killed_run_has_a_report_from_its_metrics(run_folder: RunFolder):
    write_lines(run_folder, lines(5))
    with run_folder.metrics_path.open("a") as file:
        file.write('{"env_steps": 60')  # it died here
    write_report(run_folder)
    text = (run_folder.path / "report.txt").read_text()
    assert "ended: killed (it left no result)" in text and "reached: 500 env steps, 10 updates in 5 s" in text
    assert "ledger: none was written" in text and "Environments limit" in text


def test_running_run_shows_its_newest_score(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_report, "read_state", lambda path: RunState("running"))
    write_lines(run_folder, lines(5))
    text = body(make_report(run_folder))
    assert '<span class="badge live">running</span>' in text
    assert "<b>4</b><span>return in training</span>" in text
    score = {"evaluator/return_mean": 20.5, "evaluator/return_ci95": 1.5}
    write_lines(run_folder, [*lines(5), lines(6)[-1] | score])
    assert "<b>20.5 ± 1.5</b><span>return, newest evaluation</span>" in body(make_report(run_folder))


def test_time_of_a_resumed_run_covers_all_sessions(run_folder: RunFolder):
    write_lines(run_folder, lines(30))
    end(run_folder, wall_s=8.0)
    assert "20 updates in 30 s (8 s since it was resumed)" in document(make_report(run_folder))
    end(run_folder, wall_s=30.5)
    assert "20 updates in 30.5 s\n" in document(make_report(run_folder))


def test_rates_in_the_picture_of_a_resumed_run_cover_all_sessions(run_folder: RunFolder):
    write_graph(run_folder, make_graph(Experiment(agent=None, placement="served")))
    write_lines(run_folder, lines(35))
    end(run_folder, wall_s=1.0)  # 7 trajectories were consumed, in all sessions
    assert "0.2/s" in draw_run(run_folder)


def test_a_long_final_evaluation_is_not_a_resume(run_folder: RunFolder):
    late = [*lines(10), {"env_steps": 1000, "updates": 20, "wall_s": 90.0, "evaluator/final_return_mean": 1.0}]
    write_lines(run_folder, late)
    end(run_folder, wall_s=10.0)
    assert "20 updates in 10 s\n" in document(make_report(run_folder))


def test_a_run_that_never_trained_has_a_report(run_folder: RunFolder):
    write_report(run_folder)
    assert "too few measurements" in (run_folder.path / "report.txt").read_text()
    assert "svg" not in Page(run_folder.report.read_text()).tags


def test_only_the_last_session_counts(run_folder: RunFolder):
    before = [line | {"actor/env_share": 0.1} for line in lines(8)]
    write_lines(run_folder, [*before, *lines(5, first_update=3)])
    report = make_report(run_folder)
    assert report.steady["actor/env_share"] == pytest.approx(0.7)
    assert report.rates["env steps trained"] == pytest.approx(100)


@pytest.mark.parametrize("later", [10, 2])
def test_the_time_between_two_sessions_counts_in_no_rate(run_folder: RunFolder, later: int):
    """After a clean end the updates go on where they were; the clock of the learner went on all night."""
    second = [line | {"wall_s": line["wall_s"] + 10.0} for line in lines(later, first_update=10)]
    for line in second:
        line["learner/trained_s"] += 30_000.0
    second[0]["system/resumed"] = 1.0
    write_lines(run_folder, [*(line | {"actor/env_share": 0.1} for line in lines(10)), *second])
    report = make_report(run_folder)
    assert report.rates["env steps trained"] == pytest.approx(100)
    assert report.steady["learner/wait_batch_share"] == pytest.approx(0.55 if later > 2 else 0.99)


def test_means_count_seconds_not_lines_where_the_learner_reports_rarely(run_folder: RunFolder):
    """Each update takes 9 s, without a report, in which the actors wait; then they step for 1 s."""
    found = []
    for number, line in enumerate(lines(100)):
        line |= {"wall_s": float(number), "actor/env_steps_per_s": 1000.0 if number % 10 == 1 else 0.0}
        shares = {0: 1.0, 1: 0.0}  # of the update: from 1 to 10, and from 0 to 1
        line["learner/update_share"] = shares.get(number % 10)
        found.append({name: value for name, value in line.items() if value is not None})
    write_lines(run_folder, found)
    report = make_report(run_folder)
    assert report.rates["env steps taken"] == pytest.approx(100, rel=0.15)
    assert report.steady["learner/update_share"] == pytest.approx(0.9, abs=0.02)


def test_rates_count_the_time_between_updates_not_between_lines(run_folder: RunFolder):
    write_lines(run_folder, [line | {"learner/trained_s": 2.0 * line["wall_s"]} for line in lines(10)])
    assert make_report(run_folder).rates["env steps trained"] == pytest.approx(50)


def test_the_first_value_of_a_late_metric_counts_for_the_time_since_the_line_before(run_folder: RunFolder):
    late = {5: 0.0} | dict.fromkeys(range(6, 10), 1.0)
    found = [line | ({"learner/late": late[i]} if i in late else {}) for i, line in enumerate(lines(10))]
    write_lines(run_folder, found)
    assert make_report(run_folder).steady["learner/late"] == pytest.approx(3 / 4)  # lines 5 to 8, a second each


def test_shares_of_a_worker_add_up_to_1_with_an_activity_that_begins_late(run_folder: RunFolder):
    found = lines(10)
    for line in found:
        del line["learner/prefetch_wait_batch_share"]
    found[8] |= {"learner/update_share": 0.1, "learner/wait_batch_share": 0.0, "learner/snapshot_share": 0.85}
    write_lines(run_folder, found)
    report = make_report(run_folder)
    (learner,) = (worker for worker in report.workers if worker.name == "learner")
    assert sum(learner.activities.values()) == pytest.approx(1.0)
    assert learner.activities["snapshot"] == pytest.approx(0.85 / 8)


def test_shares_of_a_worker_add_up_to_1_with_an_activity_that_is_new_since_a_resume(run_folder: RunFolder):
    second = [line | {"wall_s": line["wall_s"] + 60.0} for line in lines(4, first_update=10)[1:3]]
    begin = {"env_steps": 1000, "updates": 20, "wall_s": second[0]["wall_s"] - 0.5, "system/resumed": 1.0}
    second[1] |= {"learner/update_share": 0.2, "learner/wait_batch_share": 0.3, "learner/wait_others_share": 0.45}
    write_lines(run_folder, [*lines(10), begin, *second])
    (learner,) = (worker for worker in make_report(run_folder).workers if worker.name == "learner")
    assert sum(learner.phases.values()) == pytest.approx(1.0)


def test_steady_lines_exclude_the_first_and_the_last():
    updates = {"updates": np.arange(5.0), "learner/update_share": np.array([0.5, np.nan, 0.5, 0.5, 0.5])}
    assert steady(updates).tolist() == [False, False, True, True, False]
    two = {"updates": np.arange(2.0), "learner/update_share": np.ones(2)}
    assert steady(two).tolist() == [True, True]
    assert steady({}).tolist() == []


def test_report_failures_are_warnings(run_folder: RunFolder):
    warnings: list[str] = []
    (run_folder.path / "environment.json").write_text("{")
    assert leave_report(run_folder, warnings.append) == ""
    assert (
        len(warnings) == 1
        and "environment.json" in warnings[0]
        and f"try: jsrl report {run_folder.path}" in warnings[0]
    )


def test_compared_rates_are_those_of_the_reports(run_folder: RunFolder):
    last = {**lines(10)[-1], "learner/updates_per_s": 0.5, "actor/env_steps_per_s": 3.0}  # the end of the run
    write_lines(run_folder, [*lines(10)[:-1], last])
    rates = make_report(run_folder).rates
    (row,) = (line.split() for line in compare_runs([Run(run_folder)]).splitlines() if line.startswith("tried/one"))
    assert row[-3:] == [short(rates["env steps trained"]), short(rates["updates"]), "9"]


def test_scores_of_several_policies_name_their_policies(run_folder: RunFolder):
    score = {"return_mean": 2.5, "return_ci95": 0.1, "episodes": 20, "env_steps": 100}
    other = {"env_steps": 100, "updates": 1, "evaluation": score, "final": score}
    best = score | {"return_mean": 500.0, "env_steps": 41_216, "load": "RUN@best"}
    result = Result(run_folder.path, "total_env_steps", 100, 1, 1.0, evaluation=score, final=score, best=best)
    assert "\nevaluation: return 2.50" in str(result)
    flat = " ".join(str(result).split())  # lines fit the terminal
    assert "best: return 500.0 ± 0.1 (95% CI, 20 greedy episodes) at 41,216 env steps, the highest of its " in flat
    assert "\nto play the best: jsrl evaluate RUN@best" in str(result)
    text = str(dataclasses.replace(result, first_policy="hider", others={"seeker": other}))
    assert "\nevaluation of hider: return 2.50" in text and "\nfinal evaluation of hider, fresh seeds: return" in text
    assert "\npolicy seeker: 100 env steps" in text


def test_only_a_run_with_a_snapshot_is_said_to_continue(run_folder: RunFolder):
    result, tags = Result(run_folder.path, "interrupted", 1_000, 10, 1.0), run_folder.snapshots / "state" / "tags"
    tags.mkdir(parents=True)  # the folder is there, but a second Ctrl-C came before the snapshot
    assert str(result).splitlines()[-1].startswith("it cannot be continued: ")
    (tags / "latest.json").touch()
    assert str(result).splitlines()[-1] == f"to continue: jsrl run --resume {run_folder.path}"


def test_experiment_of_another_version_drops_only_the_advice(run_folder: RunFolder):
    write_lines(run_folder, lines(10))
    config = run_folder.config
    config["fields"]["num_envs"] = "many"
    run_folder.write_config(config)
    assert "Environments limit" in write_report(run_folder)
    config["fields"]["placement"] = "serial"
    run_folder.write_config(config)
    assert "This run is serial" in write_report(run_folder)


def test_the_command(run_folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_lines(run_folder, lines(10))
    assert main(["report", "one", "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "bottleneck: " in shown and str(run_folder.report) in shown and run_folder.report.exists()
    assert main(["report", "two", "--runs-dir", str(tmp_path)]) == 2
    assert "there is no run two" in capsys.readouterr().err


def test_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"experiment\.json cannot be read"):
        write_report(RunFolder(tmp_path))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 7.9), (0, 1e9), (1e-6, 2e-6), (499.9, 500.1)])
def test_ticks_are_few_round_and_inside(low: float, high: float):
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-9 * abs(high) <= tick <= high * (1 + 1e-9) for tick in found)
    steps = np.diff(found)
    assert np.allclose(steps, steps[0]) and f"{steps[0]:.0e}"[0] in "125"


def test_ticks_of_nearly_constant_values_fit_beside_the_chart():
    steps = np.linspace(0.0, 2e5, 20)
    drawn = chart("learning rate", "env steps", [Series("", steps, 0.003 - 3e-12 * steps)])
    texts = re.findall(r'text-anchor="end">([^<]*)<', drawn)
    assert len(texts) >= 2 and max(map(len, texts)) <= 7, texts


def test_charts_draw_only_finite_values():
    x, y = np.arange(2000.0), np.sin(np.arange(2000.0))
    y[5] = np.nan
    text = chart("A & B", "steps", [Series("<one>", x, y, y - 1, y + 1), Series("flat", x, np.full(2000, 3.0))])
    assert "nan" not in text and "&lt;one&gt;" in text and "A &amp; B" in text
    points = re.findall(r'polyline class="line\d" points="([^"]*)"', text)
    assert [len(p.split()) for p in points] == [400, 400]
    assert chart("one point", "steps", [Series("a", x[:1], y[:1])]) == ""
    assert chart("none", "steps", []) == ""


def test_every_metric_of_the_algorithm_has_a_chart_and_only_those(run_folder: RunFolder):
    own = {"learner/loss_value": 0.5, "learner/my_own_number": 1.0, "learner/refused": 0.0, "actor/wins_mean": 0.5}
    write_lines(run_folder, [line | own for line in lines(6)])
    titles = re.findall(r"<figcaption><span>(.*?)</span>", algorithm(make_report(run_folder)))
    assert sorted(titles) == ["My own number", "Value loss, reward²", "Wins mean"]


def test_metrics_of_a_users_workers_have_charts(run_folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    scored = Metric("score_mean", "mean score", "reward", "rises")
    exam = Kind("exam", "exams", "nowhere:build", shown=Shown((Activity("play", "simulate", "", ""),), (scored,)))
    monkeypatch.setattr("jsrl.tools.report.curves.kinds_of", lambda folder: (*own_kinds(), exam))
    own = {"exam/score_mean": 0.5, "b/exam/score_mean": 0.6, "exam/won_share": 0.3, "exam/play_share": 0.4}
    write_lines(run_folder, [line | own | {"b/env_steps": 1.0, "b/updates": 1.0} for line in lines(6)])
    text = own_workers(make_report(run_folder))
    assert re.findall(r"<figcaption><span>(.*?)</span>", text) == ["exam: Score mean, reward", "exam: Won share"]
    assert text.count("<polyline") == 3 and "mean score; healthy: rises" in text


def test_a_users_workers_are_shown_without_their_module(
    run_folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shown = "shown=Shown((Activity('play', 'simulate', 'of its time', ''),))"
    kind = f"Kind('exam', 'exams', 'exam_here:Exam', ports=(Port('params', 'params', 'reads'),), {shown})"
    source = tmp_path / "exam_here.py"
    source.write_text(f"from jsrl.extend import Activity, Kind, Port, Shown\n\nEXAM = {kind}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    graph = make_graph(Experiment(AgentReference("nowhere:make"))).add(node("exam", "exam_here:EXAM", params="params"))
    write_graph(run_folder, graph)
    source.unlink()
    monkeypatch.delitem(sys.modules, "exam_here")
    write_lines(run_folder, [line | {"exam/seen": 2.0, "exam/play_share": 0.7} for line in lines(6)])
    report = make_report(run_folder)
    assert "exam: Seen" in body(report)
    (time,) = (worker for worker in report.workers if worker.name == "exam")
    assert time.phases["simulate"] == pytest.approx(0.7)


def test_every_policy_has_its_curves_its_lag_and_its_bottleneck(run_folder: RunFolder):
    entries = [line | {"learner/loss": 1.0} for line in lines(10)]
    for line in entries:
        line |= {f"b/{name}": value for name, value in line.items() if not name.startswith(("system/", "wall_s"))}
        line |= {"b/learner/wait_batch_share": 0.0, "b/learner/update_share": 0.9, "b/learner/policy_lag_p95": 7.0}
    write_lines(run_folder, entries)
    report = make_report(run_folder)
    assert {policy: found.kind for policy, found in report.bottlenecks.items()} == {"": "environments", "b": "updates"}
    assert report.rates["env steps trained of b"] == pytest.approx(100)
    text = algorithm(report)
    assert text.count("<figure") == 1 and text.count("<polyline") == 2
    summary = write_report(run_folder)
    assert "policy lag of b: p50 1, p95 7" in summary and "bottleneck of b: Updates limit this run" in summary


def test_policies_that_share_actors_have_a_bottleneck_of_their_own(run_folder: RunFolder):
    own = {"b/learner/update_share": 0.9, "b/learner/wait_batch_share": 0.05, "b/env_steps": 1.0, "b/updates": 1.0}
    write_lines(run_folder, [line | own for line in lines(10)])
    kinds = {policy: found.kind for policy, found in make_report(run_folder).bottlenecks.items()}
    assert kinds == {"": "environments", "b": "updates"}


def test_shares_of_a_serial_run_are_those_of_its_one_process(tmp_path: Path):
    """Its workers take turns: two actors, and the learners and evaluators of two policies."""
    policies = {name: PolicyConfig(AgentReference("m:f"), seats=name) for name in "ab"}
    e = Experiment(policies=policies, placement="serial", num_envs=4, total_env_steps=1000)
    graph = make_graph(dataclasses.replace(e, placement="inline", num_actors=2))
    folder = RunFolder.create(tmp_path, "serial", "one", config=to_json(e))
    write_graph(folder, graph)
    own = {"actor/env_share": 0.2, "actor/wait_turn_share": 0.8, "wall_s": 1.0}
    each = {"learner/update_share": 0.15, "learner/wait_turn_share": 0.85, "env_steps": 1.0, "updates": 1.0}
    each |= {"evaluator/env_share": 0.1, "evaluator/wait_turn_share": 0.9}
    line = own | each | {f"b/{name}": value for name, value in each.items()}
    write_lines(folder, [line | {"wall_s": float(second)} for second in range(10)])
    summary = document(make_report(folder))
    text = " ".join(summary.split())
    assert "in turn: stepping environments 40%, updates 30%, evaluating 20%, other 10%." in text
    assert text.count("in turn: ") == 1


def test_machine_load_is_shown_for_the_time_of_the_run(run_folder: RunFolder):
    """The last line of an ended run was written after its end; a lag that was always 0 needs no panel."""
    entries = [line | {f"learner/policy_lag_{what}": 0.0 for what in ("p50", "p95", "max")} for line in lines(9)]
    entries[-1] |= {"wall_s": 5000.0}
    write_lines(run_folder, entries)
    assert "Policy lag" not in "".join(machine(make_report(run_folder)))
    assert ">5k<" in "".join(machine(make_report(run_folder)))
    end(run_folder)
    assert ">5k<" not in "".join(machine(make_report(run_folder)))
    assert ">5k<" not in shares_of_time(make_report(run_folder))


def test_many_curves_differ_in_colour_or_dashes():
    x = np.arange(5.0)
    text = chart("many", "steps", [Series(str(index), x, x + index) for index in range(20)])
    assert len(set(re.findall(r'polyline class="([^"]*)"', text))) == 20


def write(folder: Path, players: list[str]) -> None:
    n = len(players)
    games = [[0.0 if i == j else 10.0 for j in range(n)] for i in range(n)]
    points = [[0.0 if i == j else 7.5 if i > j else 2.5 for j in range(n)] for i in range(n)]
    (folder / "director").mkdir()
    ratings = {"elo": [10.0 * i for i in range(n)], "half": [30.0 + i for i in range(n)]}
    table = {"players": players, "points": points, "games": games} | ratings
    (folder / "director" / "standings.json").write_text(json.dumps(table))


def test_players_are_ranked_with_their_cells(tmp_path: Path) -> None:
    write(tmp_path, ["main@frozen-1", "main@latest", "main@<b>"])
    table = read_standings(tmp_path)
    assert table is not None and table.players == ("main@<b>", "main@latest", "main@frozen-1")
    assert table.points[0].tolist() == [0.0, 7.5, 7.5]
    (line,) = standings_lines(table)
    assert line.endswith("intervals, mean 0): main@<b> +20 ± 32, main@latest +10 ± 31, main@frozen-1 +0 ± 30")
    page = standings_page(table)
    assert "<b>" not in page and page.count(">75%<") == 3 and page.count(">25%<") == 3


def test_large_tables_show_the_best_and_the_learning_players(tmp_path: Path) -> None:
    write(tmp_path, ["main@latest", *(f"main@frozen-{i}" for i in range(40))])
    table = read_standings(tmp_path)
    assert table is not None
    (line,) = standings_lines(table)
    assert "main@latest +0" in line and "main@frozen-39 +400" in line and line.endswith("and 29 others")
    first, *_, last = player_rows(table.best(4))
    assert (first.name, first.elo, first.half, first.shares) == (
        "main@frozen-39",
        400.0,
        70.0,
        (None, 0.75, 0.75, 0.75),
    )
    assert (last.name, last.shares) == ("main@latest", (0.25, 0.25, 0.25, None))


@pytest.mark.parametrize(
    "content", ["", "[]", '{"players": ["a"]}', '{"players": ["a", "b"], "elo": [1], "points": [], "games": []}']
)
def test_broken_file_drops_only_its_section(content: str, tmp_path: Path) -> None:
    (tmp_path / "director").mkdir()
    (tmp_path / "director" / "standings.json").write_text(content)
    assert read_standings(tmp_path) is None
    assert read_standings(tmp_path / "elsewhere") is None
