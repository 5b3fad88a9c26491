"""The example of docs/populations.md runs and prints the documented output."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "populations.md"


def test_the_example_runs(capsys):
    source = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[-1]
    assert "PAYOFF" in source
    exec(compile(source, "populations.md", "exec"), {})
    rates = ast.literal_eval(capsys.readouterr().out)
    assert list(rates) == [f"main@frozen-{number}" for number in range(1, 6)]
    assert all(0.0 <= rate <= 1.0 for rate in rates.values()) and len(set(rates.values())) > 2
