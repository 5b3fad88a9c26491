from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys

import pytest
from rich.console import Console

from jsrl.control.status_writer import row_of
from jsrl.errors import ConfigError, counted
from jsrl.services.metrics.display import LineDisplay, make_display, plain_line
from jsrl.services.metrics.display_state import DisplayState, PlayerRow, Waiting, clock, percent, short, sparkline
from jsrl.services.metrics.live_display import LiveDisplay, picture
from jsrl.workers.kinds import own_kinds


def make_state(**changes):
    state = DisplayState(
        run="ppo_cartpole/20260101-seed0",
        elapsed_s=65,
        env_steps=250_000,
        updates=122,
        total_env_steps=1_000_000,
        start_s=0.0,
        workers={"actor": 4, "inference": 1, "learner": 1, "evaluator": 1},
        rows={kind.name: row_of(kind) for kind in own_kinds()},
        metrics={
            "actor/env_steps_per_s": 3846.2,
            "actor/wait_inference_share": 0.31,
            "actor/wait_block_share": 0.02,
            "inference/rows_per_s": 3900.0,
            "inference/wait_share": 0.4,
            "learner/updates_per_s": 1.88,
            "learner/queue_depth": 3,
            "learner/wait_batch_share": 0.12,
            "learner/policy_lag_mean": 1.25,
            "learner/policy_lag_p95": 3,
            "learner/policy_lag_max": 4,
            "learner/loss": 0.4321,
            "learner/entropy": 0.61,
            "evaluator/return_ci95": 4.2,
        },
        evaluations=[(50_000, 20.0), (100_000, 80.0), (200_000, 475.5)],
    )
    for name, value in changes.items():
        setattr(state, name, value)
    return state


def render(state, messages=(), width=120):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)
    console.print(picture(state, state.env_steps_per_s, list(messages)))
    return console.file.getvalue()


def test_players_are_shown_with_ratings_and_payoffs():
    players = (
        PlayerRow("main@latest", 81.6, 33.2, (None, 0.75)),
        PlayerRow("main@frozen-1", -81.6, 33.2, (0.25, None)),
    )
    shown = render(make_state(players=players)).splitlines()
    at = next(i for i, line in enumerate(shown) if "player" in line and "Elo" in line)
    assert shown[at].split() == ["player", "Elo", "1", "2"]
    assert shown[at + 1].split() == ["1", "main@latest", "+82", "±", "33", "-", "75%"]
    assert shown[at + 2].split() == ["2", "main@frozen-1", "-82", "±", "33", "25%", "-"]
    line = plain_line(make_state(metrics={"director/elo_latest": 81.6}), None)
    assert "Elo +82" in line


def test_the_games_of_a_director_are_shown():
    games = {"director/finished": 4605.0, "director/discarded": 212.0, "director/open": 223.0}
    assert "games: 4,605 finished, 212 discarded, 223 open\n" in render(make_state(metrics=games))
    population = games | {"director/copies": 5.0, "director/score_worst": 22.5, "director/score_best": 480.0}
    assert "223 open, 5 copies, scores 22.5 to 480\n" in render(make_state(metrics=population))
    assert "games:" not in render(make_state())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0, "0"),
        (7, "7"),
        (950.4, "950"),
        (1234, "1234"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (9_996, "10.0k"),
        (99_960, "100k"),
        (999_900, "1.00M"),
        (1_000_000, "1.00M"),
        (-2_500_000, "-2.50M"),
        (3e9, "3.00G"),
        (0.0123, "0.0123"),
        (1.25, "1.25"),
        (3e-4, "3e-04"),
        (-21, "-21"),
    ],
)
def test_short_numbers(value, text):
    assert short(value) == text


def test_durations_and_shares():
    assert [clock(s) for s in (None, 0, 59.4, 59.6, 187, 7387)] == ["-", "0s", "59s", "1:00", "3:07", "2:03:07"]
    assert [percent(p) for p in (None, 0.126, 1)] == ["-", "13%", "100%"]


def test_rates_and_remaining_time_are_of_this_session_of_the_run():
    state = make_state(start_env_steps=200_000, start_s=40)
    assert state.env_steps_per_s == 2000
    assert state.to_go_s() == 375
    assert make_state(total_env_steps=None).to_go_s() is None
    assert make_state(total_env_steps=None).share is None
    assert make_state(elapsed_s=0, env_steps=0).to_go_s() is None
    assert make_state(start_s=None).env_steps_per_s is None


def test_the_share_of_the_time_limit_counts_from_the_first_update():
    assert make_state(total_s=70).to_go_s() == 5
    assert make_state(total_s=70).share == pytest.approx(65 / 70)
    late = make_state(total_s=100, start_s=40)
    assert (late.time_share, late.steps_share, late.share, late.to_go_s()) == (0.25, 0.25, 0.25, 75)
    starting = make_state(total_s=100, start_s=None, env_steps=0)
    assert (starting.time_share, starting.to_go_s()) == (0, None)
    assert make_state(total_s=100, elapsed_s=500).time_share == 1
    assert "250k / 1.00M (25%)  65% of 1.67 minutes" in plain_line(make_state(total_s=100), 1)
    assert "250k / 1.00M env steps (25%)  65% of 1 minute  " in render(make_state(total_s=60, elapsed_s=39), width=160)


def test_the_line_shows_the_sampled_return_beside_the_greedy_one_and_the_first_metric_of_the_environment():
    metrics = {
        "learner/loss": 1.0,
        "actor/return_mean": -32.0,
        "actor/episode_seen_share_mean": 0.46,
        "actor/episode_other_mean": 1.0,
    }
    state = make_state(metrics=metrics, evaluations=[(100, -1338.0)], episode_metric="seen_share")
    assert "  return -1338 (eval)  -32 (train)  seen_share 0.46" in plain_line(state, None)
    wins = make_state(metrics=metrics | {"evaluator/win_rate": 0.5}, evaluations=[(100, 0.5)])
    assert "  win rate 0.5 (eval)  return -32 (train)" in plain_line(wins, None)
    assert "training return -32  seen_share 0.46" in render(state)


def test_plain_line_has_the_main_numbers():
    line = plain_line(make_state(), 4000.0)
    assert line.split("  ")[-8:] == [
        "steps 250k / 1.00M (25%)",
        "4000 steps/s",
        "updates 122",
        "return 476 (eval)",
        "loss 0.432",
        "entropy 0.61",
        "lag 1.25",
        "3:08 to go",
    ]
    assert "[1.00M frames]" in plain_line(make_state(action_repeat=4), 1)
    early = plain_line(make_state(evaluations=[], metrics={"actor/return_mean": -20.5}), 1)
    assert "return -20.5 (train)" in early
    against = make_state(evaluations=[(100, 0.75)], metrics={"evaluator/win_rate": 0.75, "evaluator/return_ci95": 1.0})
    assert "win rate 0.75 (eval)" in plain_line(against, 1)
    assert "evaluation: win rate 0.75 at 100 env steps" in render(against)
    waiting = tuple(Waiting(f"actor-{n}", "making environments") for n in range(9))
    starting = plain_line(DisplayState(run="x", waiting=(*waiting, Waiting("learner", "compiling the update"))), None)
    assert starting.endswith("actor-0, actor-1 and 7 more: making environments; learner: compiling the update")
    assert "steps/s" not in starting
    waits = plain_line(make_state(waiting=(Waiting("evaluator", "final evaluation", 12.4),)), None)
    assert "evaluator: final evaluation for 12s" in waits


def test_live_display_has_header_workers_curve_and_messages():
    text = render(make_state(), [("info", "actor-1 restarted"), ("warning", "lag is high [really]")])
    lines = text.splitlines()
    assert re.search(
        r"ppo_cartpole/20260101-seed0  1:05  250k / 1.00M env steps \(25%\)  3846 steps/s  122 updates  3:15 to go",
        lines[0],
    )
    assert any(re.match(r"actor +4 +3846 steps/s +actions 31%, room 2%", line) for line in lines)
    assert any(re.match(r"learner +1 +1.88 updates/s +3 +batch 12%", line) for line in lines)
    assert any("evaluation: return 476 ± 4.2 at 200k env steps  best 476  ▁▂█" in line for line in lines)
    assert any(line.strip() == "learning:  loss 0.432  entropy 0.61  lag mean/p95/max 1.25/3/4" for line in lines)
    assert "actor-1 restarted" in text
    assert "warning: lag is high [really]" in text
    long = render(make_state(), [("info", "word " * 100), ("warning", "much " * 100)], width=80)
    assert [long.count("word"), long.count("…"), long.count("much")] == [32, 1, 100]


def test_live_display_lists_pending_start_up_steps():
    waiting = tuple(Waiting(f"actor-{n}", "making environments", 3.0 + n) for n in range(2))
    waiting += (Waiting("learner", "compiling the update", 12.4),)
    starting = DisplayState(run="x", workers={"actor": 2, "learner": 1, "evaluator": 1}, waiting=waiting)
    text = render(starting)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1:] == [
        "starting: 1 of 4 workers are ready, waiting for",
        "actor-0, actor-1 making environments 4s",
        "learner compiling the update 12s",
    ]
    starting.waiting = ()
    assert "waiting for the first update" in render(starting)
    updating = make_state(long_calls=(Waiting("learner", "an update", 12.0),))
    assert "\nlearner: an update for 12s" in render(updating)
    assert plain_line(updating, None).endswith("learner: an update for 12s")
    restarting = render(make_state(waiting=(Waiting("actor-1", "restarting"),)))
    assert re.search(r"^waiting for *\n +actor-1 +restarting", restarting, re.M)


def test_live_display_without_data_and_in_a_narrow_terminal():
    assert "0 updates" in render(DisplayState(run="x"))
    several = DisplayState(run="x", updates=3, policy="chaser")
    assert "chaser: 3 updates" in render(several) and "chaser: updates 3" in plain_line(several, None)
    narrow = render(make_state(action_repeat=4), [("info", "m" * 300)], width=50)
    assert max(map(len, narrow.splitlines())) <= 50
    assert len(narrow.splitlines()) <= 20


def test_sparklines():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([]) == sparkline([float("nan")]) == ""
    assert sparkline([3, 3]) == "▄▄"
    assert len(sparkline(range(1000), 24)) == 24
    assert sparkline([0, float("nan"), float("inf"), 7]) == "▁█"


def test_auto_is_plain_when_not_on_a_terminal():
    stream, log = io.StringIO(), []
    display = make_display("auto", stream=stream, log=log.append, interval_s=0.001)
    assert isinstance(display, LineDisplay)
    display.update(make_state())
    display.message("actor-1 restarted")
    display.message("disk is full", "warning")
    display.close()
    lines = stream.getvalue().splitlines()
    assert lines == log
    assert "250k / 1.00M" in lines[0]
    assert lines[1:] == ["actor-1 restarted", "warning: disk is full"]
    assert "\x1b" not in stream.getvalue()


def test_plain_is_throttled_unless_now_and_close_prints_the_last_line():
    stream = io.StringIO()
    display = make_display("plain", stream=stream, interval_s=60)
    for env_steps in range(1000, 100_000, 1000):
        display.update(make_state(env_steps=env_steps), now=env_steps == 9000)
    display.close()
    display.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert "steps 1000 /" in lines[0]
    assert "steps 9000 /" in lines[1]
    assert "steps 99.0k /" in lines[2]


def test_the_rate_is_recent():
    stream = io.StringIO()
    display = make_display("plain", stream=stream, interval_s=1e-9)
    for second in range(100):
        display.update(
            make_state(elapsed_s=second, env_steps=100 * second if second < 50 else 5000 + 1000 * (second - 50))
        )
    assert "1000 steps/s" in stream.getvalue().splitlines()[-1]


def test_the_first_rate_after_a_resume_counts_only_new_steps():
    stream = io.StringIO()
    display = make_display("plain", stream=stream, interval_s=1e-9)
    resumed = {"env_steps": 900_000, "evaluations": [], "metrics": {}}
    display.update(make_state(elapsed_s=20, start_s=None, **resumed))
    for second in range(5):  # the first update was reported after 30 s
        resumed["env_steps"] = 900_100 + 100 * second
        display.update(make_state(elapsed_s=30 + second, start_s=30, start_env_steps=900_100, **resumed))
    lines = stream.getvalue().splitlines()
    assert ["steps/s" in line for line in lines] == [False, False, True, True, True, True]
    assert all("  100 steps/s" in line for line in lines[2:])


def test_live_shows_a_new_stage_at_once():
    console = Console(file=io.StringIO(), force_terminal=True, width=110, legacy_windows=False)
    display = LiveDisplay(console, None, interval_s=3600)
    for stage in ("making environments", "compiling act"):
        display.update(DisplayState(run="r", waiting=(Waiting("evaluator", stage),)))
        assert stage in console.file.getvalue()
    display.close()


def test_quiet_and_log_only():
    for mode, shown in (("quiet", ["warning: w", "error: e"]), ("log-only", [])):
        stream, log = io.StringIO(), []
        display = make_display(mode, stream=stream, log=log.append)
        display.update(make_state())
        for level, text in (("info", "i"), ("warning", "w"), ("error", "e")):
            display.message(text, level)
        display.close()
        assert stream.getvalue().splitlines() == shown
        assert log[1:] == ["i", "warning: w", "error: e"]


def test_unknown_mode():
    with pytest.raises(ConfigError, match=r"'fancy' is unknown; choose one of auto, live"):
        make_display("fancy")


def test_closed_output_pipe_does_not_end_the_run():
    read_end, write_end = os.pipe()
    os.close(read_end)
    log = []
    stream = os.fdopen(write_end, "w")
    display = make_display("plain", stream=stream, interval_s=1e-9, log=log.append)
    display.update(make_state())
    display.message("still here", "error")
    assert log[-1] == "error: still here"
    with pytest.raises(OSError):
        stream.close()


def test_live_redraws_in_place_and_ends_with_the_last_state():
    console = Console(file=io.StringIO(), force_terminal=True, width=110, legacy_windows=False)
    log = []
    display = make_display("auto", console=console, log=log.append, interval_s=1e-9)
    assert isinstance(display, LiveDisplay)
    display.update(make_state(env_steps=1000))
    display.message("actor-1 restarted", "warning")
    display.update(make_state(env_steps=990_000))
    display.close()
    display.close()
    text = console.file.getvalue()
    assert "\x1b[?25l" in text  # the cursor is hidden
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # and restored
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text[text.rindex("ppo_cartpole") :])
    assert "990k / 1.00M" in last
    assert "warning: actor-1 restarted" in last
    assert "warning: actor-1 restarted" in log


def test_in_a_real_terminal():
    program = """
from jsrl.control.status_writer import row_of
from jsrl.services.metrics.display import make_display
from jsrl.services.metrics.display_state import DisplayState
display = make_display("auto", interval_s=0.001)
print(type(display).__name__)
for i in range(5):
    state = DisplayState(run="r", elapsed_s=i + 1, env_steps=1000 * i, total_env_steps=4000, workers={"actor": 2})
    display.update(state)
display.message("the end", "warning")
display.close()
"""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(terminal)
    output = b""
    while select.select([controller], [], [], 30)[0]:
        try:
            chunk = os.read(controller, 65536)
        except OSError:
            break
        if not chunk:
            break
        output += chunk
    os.close(controller)
    assert process.wait(30) == 0, output.decode()
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode())
    assert "LiveDisplay" in text
    assert "4000 / 4000 env steps" in text
    assert "warning: the end" in text
    assert "\x1b[1A" in text  # the cursor moved up to redraw


def test_one_has_the_singular():
    assert counted(1, "trajectory") == "1 trajectory"
    assert [counted(n, "trial") for n in (0, 1, 2)] == ["0 trials", "1 trial", "2 trials"]
    assert counted(1_024, "trajectory") == "1,024 trajectories"
