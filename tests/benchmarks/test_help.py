"""Scripts of benchmarks and experiments run as printed in docs, with no path set by hand: their help, and short forms."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "world" / "all_helps.py"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHORT_FORMS = (  # of printed commands that no other test runs
    "actor_start.py --actors 1 --rounds 1",
    "games/populations.py kuhn --sizes 3 --rules nash",
    "hide_and_seek.py --rounds 1 --decisions 2 --num-envs 1",
    "inference_stream.py --rounds 1",
    "particle.py --rounds 1 --seconds 0.02 --num-envs 4",
    "random_play.py plr_maze --episodes 2 --num-envs 2",
    "replay.py tree --seconds 0.05",
)


@pytest.mark.slow
def test_every_command_of_benchmarks_and_experiments_prints_its_help() -> None:
    ended = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr[-2000:]


@pytest.mark.slow
def test_short_forms_of_printed_commands_run(tmp_path: Path) -> None:
    for form in SHORT_FORMS:
        script, *words = form.split()
        ended = subprocess.run(
            [sys.executable, str(BENCHMARKS / script), *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ended.returncode == 0, form + ended.stdout[-2000:] + ended.stderr[-2000:]
        assert ended.stdout.strip(), form
