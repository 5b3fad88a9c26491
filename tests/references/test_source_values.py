"""Values that are made again by a call."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jsrl.errors import ConfigError
from jsrl.references.reference import from_json, to_json

SPACES = [
    spaces.Box(0, 255, (210, 160, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (4,), np.float64),
    spaces.Box(np.array([-1.5, 0.1], np.float32), np.array([np.inf, 1.0], np.float32), dtype=np.float32),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=np.array([[1, 0], [0, 1]])),
    spaces.MultiBinary((2, 3)),
    spaces.Dict({"pair": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(4))), "seen": spaces.Box(-1, 1, (2,))}),
]
OTHERS = [b"\x00\xffab", 1 - 2j, range(3, 9, 2), re.compile(r"\w+", re.IGNORECASE), logging.getLogger("jsrl.some")]


@pytest.mark.parametrize("value", [*SPACES, *OTHERS], ids=lambda value: type(value).__name__)
def test_spaces_of_gymnasium_and_others_are_made_by_their_arguments(value):
    text = json.dumps(to_json(value))
    made: Any = from_json(json.loads(text))
    assert made == value and getattr(made, "dtype", None) == getattr(value, "dtype", None) and type(made) is type(value)
    assert len(text) < 900


def test_a_space_with_many_different_bounds_is_refused():
    high = np.arange(5000, dtype=np.float32)
    with pytest.raises(ConfigError, match=r"is an array of 5000 values, shape \(5000,\); at most 4096"):
        to_json(spaces.Box(-1.0, high, dtype=np.float32))
