"""Optional dependencies, and the command that installs them into this very environment."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from jsrl.errors import MissingExtra

DISTRIBUTION = "jsrl-jax"  # what pip calls jsrl; the name jsrl on the package index is another project's
# extra -> (modules that it brings, what they are for)
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "atari": (("ale_py",), "Atari environments"),
    "mujoco": (("mujoco",), "MuJoCo environments"),
    "hide-and-seek": (("mujoco",), "hide-and-seek"),
    "envpool": (("envpool",), "EnvPool environments"),
    "games": (("pettingzoo", "mpe2", "lbforaging"), "environments with several agents"),
    "minigrid": (("minigrid",), "MiniGrid environments"),
    "gymnax": (("gymnax",), "gymnax's environments in JAX"),
    "brax": (("brax",), "Brax's environments in JAX"),
    "jaxmarl": (("jaxmarl",), "JaxMARL's environments in JAX, with several agents"),
    "craftax": (("craftax",), "Craftax in JAX"),
    "openspiel": (("pyspiel",), "OpenSpiel games"),
    "vizdoom": (("vizdoom",), "ViZDoom environments"),
    "tensorboard": (("tensorboardX",), "TensorBoard events"),
    "wandb": (("wandb",), "Weights & Biases"),
    "video": (("imageio_ffmpeg", "PIL", "pygame"), "videos"),
    "search": (("optuna",), "hyperparameter search"),
    "ray": (("ray",), "runs on a Ray cluster"),
    "onnx": (("onnx",), "export to ONNX"),
    "lz4": (("lz4",), "compression between hosts"),
    "notebook": (("ipykernel", "matplotlib"), "notebooks"),
    "docs": (("mkdocs", "material", "mkdocstrings"), "documentation pages"),
}


def import_extra(module: str, extra: str, user: str) -> Any:
    """Return a module of an extra; `user` needs it, such as "environment 'ALE/Pong-v5'"."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(f"{user} needs the package {package} ({error}): {install_command(extra)}") from error


def require_extra(extra: str, user: str, *modules: str) -> None:
    """Refuse unless the modules of an extra, or these of them, are installed; imports nothing."""
    missing = [module for module in modules or EXTRAS[extra][0] if find_spec(module) is None]
    if missing:
        packages = " and ".join(missing)
        raise MissingExtra(f"{user} needs the package {packages}, not installed here: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that adds an extra (empty: none) to this environment, from where jsrl was installed."""
    wanted = f"[{extra}]" if extra else ""
    return f"{pip_command()} install {_source(wanted)}"


def install_module(module: str) -> str:
    """Return the command that installs a missing module: the extra that brings it, or else the package of its name."""
    extra = next((name for name, (modules, _) in EXTRAS.items() if module in modules), None)
    return f"{pip_command()} install {module}" if extra is None else install_command(extra)


def pip_command() -> str:
    """Return the command of this environment's pip."""
    return f"{shlex.quote(sys.executable)} -m pip"


def _source(extra: str) -> str:
    """Return the requirement for pip: the checkout, the wheel, or the name on an index."""
    installed = importlib.metadata.distributions(name=DISTRIBUTION)  # a checkout's egg-info may be among them
    texts = [text for found in installed if (text := found.read_text("direct_url.json"))]
    if texts:
        facts = json.loads(texts[0])
        if "dir_info" not in facts:
            return f"'{DISTRIBUTION}{extra} @ {_address(facts)}'"
        editable = "-e " if facts["dir_info"].get("editable") else ""
        return f"{editable}'{unquote(urlparse(facts['url']).path)}{extra}'"
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").exists():  # not installed, only on sys.path
        return f"-e '{checkout}{extra}'"
    return f"'{DISTRIBUTION}{extra}'"


def _address(facts: dict[str, Any]) -> str:
    """Return the address for pip of a wheel or archive, or of a repository at the commit that is installed."""
    repository = facts.get("vcs_info")
    if repository is None:
        return facts["url"]
    return f"{repository['vcs']}+{facts['url']}@{repository['commit_id']}"
