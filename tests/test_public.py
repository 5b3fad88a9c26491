"""`import jsrl` and `jsrl.extend`: the public API, its names and what importing it costs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import jsrl
import jsrl.extend

API = (Path(__file__).parents[1] / "docs" / "api.md").read_text()


@pytest.mark.parametrize("module", [jsrl, jsrl.extend])
def test_names_exist_and_are_those_of_the_api_page(module) -> None:
    documented = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", API, re.MULTILINE)
    assert sorted(documented) == module.__all__ == sorted(dir(module))
    assert [name for name in module.__all__ if getattr(module, name) is None] == []


def test_no_name_is_in_both() -> None:
    assert not set(jsrl.__all__) & set(jsrl.extend.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'jsrl' has no attribute 'PPOConfg'"):
        _ = jsrl.PPOConfg


def test_configs_of_environments_load_no_jax() -> None:
    """An actor's environment may say `import jsrl`."""
    used = "jsrl.EnvConfig, jsrl.extend.Kind, jsrl.extend.EnvStep"
    code = f"import sys, jsrl, jsrl.extend; {used}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
