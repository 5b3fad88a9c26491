"""Values of a script, written as expressions that make equal values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jsrl.errors import ConfigError
from jsrl.references.source_values import ValueWriter

SPACES = [
    spaces.Box(0, 255, (210, 160, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (4,), np.float64),
    spaces.Box(np.array([-1.5, 0.1], np.float32), np.array([np.inf, 1.0], np.float32), dtype=np.float32),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=np.array([[1, 0], [0, 1]])),
    spaces.MultiBinary((2, 3)),
    spaces.Dict({"pair": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(4))), "seen": spaces.Box(-1, 1, (2,))}),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_spaces_of_gymnasium_are_written_by_their_arguments(space):
    writer = ValueWriter("agent", lambda thing, path: pytest.fail(f"{thing} is no definition of the script"))
    text, names = writer.write(space), dict[str, Any]()
    exec("\n".join([*writer.imports, f"made = {text}"]), names)
    made: Any = names["made"]
    assert made == space and made.dtype == space.dtype and type(made) is type(space)
    assert len(text) < 600


def test_a_space_with_many_different_bounds_is_refused():
    high = np.arange(5000, dtype=np.float32)
    with pytest.raises(ConfigError, match=r"is an array of 5000 values, more than 4096"):
        ValueWriter("agent", lambda thing, path: "").write(spaces.Box(-1.0, high, dtype=np.float32))
