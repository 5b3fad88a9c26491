"""Hosts of a run compare their sources of jsrl."""

from __future__ import annotations

from pathlib import Path

from jsrl.cluster.this_host import code_digest


def test_digest_is_of_all_sources(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ppo.py").write_text("seed = 0\n")
    before = code_digest(tmp_path)
    (tmp_path / "configs" / "ppo.py").write_text("seed = 1\n")
    code_digest.cache_clear()
    assert code_digest(tmp_path) != before
