"""Create virtual environments of other libraries for `bench.py --against`: `python benchmarks/peers/install.py sb3 sbx`.

One folder per library under ~/.cache/jsrl/peers (or --peers-dir), from registry packages of pinned versions, about 1.3 to
2 GB each with a CPU build of torch. Without a local CPU build, pip installs the registry's, with several GB of CUDA packages:
point pip at one with --pip-option=--find-links=FOLDER or --pip-option=--extra-index-url=ADDRESS.
A failed installation leaves NAME.failed with the reason, and bench.py continues without that library.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TORCH = "torch==2.13.0"
PUFFERLIB = "pufferlib==3.0.0"
GAMES = ("mujoco==4.0.0", "imageio==2.38.1", "packaging", "ale-py==0.12.1")
BASE = ("numpy==2.4.6", "opencv-python-headless==5.0.0.93", *GAMES)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to install one library.

    Attributes:
      packages: of each call of pip, in order. check: the module that must be importable in the end.
    """

    packages: tuple[tuple[str, ...], ...]
    check: str


RECIPES = {
    "sb3": Recipe(((TORCH, "stable-baselines3==2.9.2", "gymnasium==1.3.0", *BASE),), "stable_baselines3"),
    "sbx": Recipe(
        ((TORCH, "sbx-rl==0.28.0", "stable-baselines3==2.9.2", "gymnasium==1.3.0", "jax==0.10.2", *BASE),), "sbx"
    ),
    "rllib": Recipe(
        ((TORCH, "ray[rllib]==2.60.0", "pettingzoo==1.27.0", "mpe2==1.1.1", "lbforaging==2.0.0", *BASE),), "ray.rllib"
    ),
    "benchmarl": Recipe(
        (
            ("torch==2.14.1", "torchrl==0.11.1", "benchmarl==1.5.2"),
            ("pettingzoo==1.27.0", "mpe2==1.1.1", "vmas==1.5.2", "lbforaging==2.0.0"),
        ),
        "benchmarl.experiment",
    ),
    "sample-factory": Recipe(
        (
            (TORCH, "numpy==1.26.4", "gymnasium==0.29.1", "setuptools<81", "wheel", "Cython"),
            ("sample-factory==2.1.1", "opencv-python-headless==4.11.0.86", *GAMES),
        ),
        "sample_factory",
    ),
    "pufferlib": Recipe(
        (
            (TORCH, "gymnasium==1.4.0", "setuptools<81", "wheel", "Cython", "pybind11", *BASE),
            ("gym==0.26.2", "pyro-ppl==1.9.2", "psutil", "rich", "rich-argparse"),
        ),
        "pufferlib.pufferl",
    ),
}


def build_pufferlib(python: Path, folder: Path, options: list[str]) -> None:
    """Build PufferLib from its source archive without its own games, whose libraries are not in package registries.

    Its set-up script always fetches them over the network, so only its Python files and its one extension for training
    (advantages, on CPU) are built, with our own set-up script.
    """
    scratch = folder / "sources"
    scratch.mkdir(exist_ok=True)
    # pip unpacks the archive and then fails on the package's own set-up: --no-clean keeps the unpacked files.
    words = ["download", "--no-clean", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    run([str(python), "-m", "pip", *words, *options, "-d", str(scratch), PUFFERLIB], scratch)
    found = sorted(scratch.glob("**/pufferlib/pufferl.py"))
    if not found:
        raise Failed("pip unpacked no source archive of pufferlib")
    source = found[0].parents[1]
    (source / "setup.py").write_text(PUFFERLIB_SETUP)
    (source / "pyproject.toml").unlink(missing_ok=True)
    ran = run(
        [str(python), "-m", "pip", "install", "--no-deps", "--no-build-isolation", *options, str(source)], scratch
    )
    shutil.rmtree(scratch)
    if ran.returncode:
        raise Failed(last_line(ran))


PUFFERLIB_SETUP = """
from setuptools import find_namespace_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="pufferlib",
    version="3.0.0",
    packages=find_namespace_packages(include=["pufferlib", "pufferlib.*"]),
    package_data={"pufferlib": ["config/*.ini"]},
    ext_modules=[CppExtension("pufferlib._C", ["pufferlib/extensions/pufferlib.cpp"], extra_compile_args=["-O3"])],
    cmdclass={"build_ext": BuildExtension},
)
"""


class Failed(Exception):
    """A library could not be installed; the message is one line."""


def run(words: list[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with its temporary files in our folder."""
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=scratch, env={**os.environ, "TMPDIR": str(scratch)}
    )


def last_line(ran: subprocess.CompletedProcess[str]) -> str:
    """Return the most informative line of a failed command's output."""
    lines = [line.strip() for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line and not line.startswith("note:")]
    return (errors or lines or ["no output"])[-1][:300]


def install(name: str, folder: Path, options: list[str]) -> dict[str, str]:
    """Create one library's environment and return its versions.

    Raises:
      Failed: pip, a build or the final import failed.
    """
    home = folder / name
    shutil.rmtree(home, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(home)], capture_output=True, text=True, check=False)
    if made.returncode:
        raise Failed(last_line(made))
    python = home / "bin" / "python"
    recipe = RECIPES[name]
    for packages in recipe.packages:
        ran = run([str(python), "-m", "pip", "install", *options, *packages], home)
        if ran.returncode:
            raise Failed(last_line(ran))
    if name == "pufferlib":
        build_pufferlib(python, home, options)
    seen = run([str(python), "-c", f"import {recipe.check}"], home)
    if seen.returncode:
        raise Failed(f"import {recipe.check}: {last_line(seen)}")
    listed = run([str(python), "-m", "pip", "list", "--format", "json"], home)
    return {package["name"]: package["version"] for package in json.loads(listed.stdout)}


def main() -> int:
    """Install every given library; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="+", choices=[*RECIPES, "all"], metavar="NAME", help=f"{', '.join(RECIPES)}, all"
    )
    parser.add_argument("--peers-dir", help="where to (default: ~/.cache/jsrl/peers)")
    parser.add_argument("--again", action="store_true", help="reinstall existing ones")
    parser.add_argument("--pip-option", action="append", default=[], help="passed on to pip; may be repeated")
    given = parser.parse_args()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(given.peers_dir).expanduser().absolute() if given.peers_dir else base / "jsrl" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name in RECIPES if "all" in given.names else given.names:
        if (folder / name / "installed.json").is_file() and not given.again:
            print(f"{name}: is installed; --again reinstalls it")
            continue
        failed = folder / f"{name}.failed"
        failed.unlink(missing_ok=True)
        print(f"{name}: installing into {folder / name}", flush=True)
        try:
            versions = install(name, folder, given.pip_option)
        except Failed as error:
            failed.write_text(f"{error}\n")
            print(f"{name}: FAILED: {error}", file=sys.stderr)
            failures += 1
            continue
        (folder / name / "installed.json").write_text(json.dumps(versions, indent=1) + "\n")
        print(f"{name}: installed, {len(versions)} packages")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
