"""Hosts of a run compare their sources of jsrl."""

from __future__ import annotations

import shutil
from pathlib import Path

from jsrl.launch.hosts.versions import code_digest


def test_a_wheel_has_the_digest_of_its_checkout(tmp_path: Path) -> None:
    """A checkout has links to folders where a wheel has their files; of `scripts` the wheel has only some."""
    checkout, wheel, configs = tmp_path / "checkout", tmp_path / "wheel", tmp_path / "experiments" / "configs"
    for folder in (checkout / "agents", configs):
        folder.mkdir(parents=True)
    (checkout / "agents" / "ppo.py").write_text("clip = 0.2\n")
    (configs / "ppo.py").write_text("seed = 0\n")
    (checkout / "configs").symlink_to(configs)
    (checkout / "scripts").symlink_to(configs)
    shutil.copytree(checkout, wheel)
    (wheel / "scripts" / "ppo.py").unlink()
    assert not (wheel / "configs").is_symlink() and code_digest(checkout) == code_digest(wheel)
    (wheel / "configs" / "ppo.py").write_text("seed = 1\n")
    code_digest.cache_clear()
    assert code_digest(checkout) != code_digest(wheel)
