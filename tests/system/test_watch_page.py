"""`jsrl watch` in a browser: the page of a run that goes on, in headless Chromium."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsrl.tools.report.watch import Server
from tests.browser import CHROMIUM, Browser
from tests.tools.report.served_pages import serving

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install it with `apt-get install chromium`"),
]
POINTS = """[...document.querySelectorAll("polyline, polygon")].filter(
  one => one.getAttribute("points").trim().split(/\\s+/).length > 1).length"""
STEPS = (
    """[...document.querySelectorAll(".card")].map(one => one.innerText).find(text => /env steps/.test(text)) || ''"""
)


@pytest.fixture
def runs_dir(tmp_path: Path) -> Iterator[Path]:
    """A folder with a run that goes on until the test has ended."""
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    words = [sys.executable, "-m", "jsrl", "run", "ppo_cartpole", "--placement", "serial", "--display", "quiet"]
    words += ["--runs-dir", str(runs_dir), "--run-name", "live", "--total-env-steps", str(10**9)]
    words += ["--stop-at-return", "none"]
    run = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield runs_dir
    finally:
        run.send_signal(signal.SIGTERM)
        try:
            run.wait(60)
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()


@pytest.fixture
def server(runs_dir: Path) -> Iterator[Server]:
    with serving(runs_dir) as server:
        yield server


@pytest.mark.timeout(600)
def test_page_of_a_run_shows_its_curves_and_changes_as_it_goes_on(server: Server, tmp_path: Path):
    """Without a reload: the list gains the run, the run's page gains curves, and its numbers grow."""
    with Browser(tmp_path / "profile") as browser:
        browser.resize(1280, 800)
        browser.open(server.url)
        browser.wait("document.querySelector('a[href=\"run/ppo_cartpole/live/\"]') !== null")
        assert browser.value("document.querySelector('.badge').innerText") == "running"
        browser.value("document.querySelector('a[href=\"run/ppo_cartpole/live/\"]').click()")
        browser.wait("document.querySelector('h1')?.innerText.startsWith('ppo_cartpole/live')")
        browser.value("window.openedOnce = true")
        curves = browser.wait(POINTS)
        before = browser.wait(STEPS)
        browser.wait(f"({STEPS}) != {before!r} && {POINTS} >= {curves}")
        assert browser.value("window.openedOnce") is True, "the page was loaded again"
        browser.resize(400, 800)
        assert browser.value("document.documentElement.scrollWidth") <= 400, "the page is wider than a phone"
        assert browser.errors == []
