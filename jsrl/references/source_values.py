"""Values of a script's or notebook's global variables, written as Python expressions."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import math
import pathlib
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jsrl.references.importing import importable_target, init_fields, refuse
from jsrl.references.reference import MAX_ARRAY_VALUES, MAX_DEPTH

_TYPING = typing.TypeVar | typing.NewType | typing.ParamSpec | types.GenericAlias | types.UnionType


_SPACES = {  # of Gymnasium: arguments of the constructor, and the attributes that hold them
    "Box": {"low": "low", "high": "high", "shape": "shape", "dtype": "dtype"},
    "Discrete": {"n": "n", "start": "start"},
    "MultiDiscrete": {"nvec": "nvec", "dtype": "dtype", "start": "start"},
    "MultiBinary": {"n": "n"},
    "Dict": {"spaces": "spaces"},
    "Tuple": {"spaces": "spaces"},
}


class ValueWriter:
    """Write one value as an expression, and collect its dependencies.

    Attributes:
      imports: import statements that the expression needs (private aliases, to avoid the user's names).
      names: names of the user's own definitions that the expression needs.
    """

    def __init__(self, path: str, take: Callable[[Any, str], str]) -> None:
        """Create a writer; `take(thing, path)` captures one of the user's definitions and returns its dotted name."""
        self._path = path
        self._take = take
        self.imports: set[str] = set()
        self.names: set[str] = set()

    def write(self, value: Any, depth: int = 0) -> str:
        """Return an expression that makes a value equal to `value`.

        Raises:
          ConfigError: there is none.
        """
        if depth > MAX_DEPTH:
            raise refuse(self._path, value, f"is nested deeper than {MAX_DEPTH} levels", "a tree that contains itself?")
        if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes, complex, range):
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if type(value) is object:
            return "object()"  # a sentinel
        if isinstance(value, enum.Enum):
            return f"{self._named(type(value))}[{value.name!r}]"
        if isinstance(value, np.generic | np.ndarray | np.dtype):
            return self._numpy(value)
        return self._container(value, depth + 1)

    def _container(self, value: Any, depth: int) -> str:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._call(type(value), dict(zip(value._fields, value, strict=True)), depth)
        if type(value) in (list, tuple, set, frozenset):
            return self._sequence(value, depth)
        if type(value) is dict or (isinstance(value, Mapping) and type(value).__name__ == "FrozenDict"):
            return f"{{{', '.join(f'{self.write(k, depth)}: {self.write(v, depth)}' for k, v in value.items())}}}"
        if isinstance(value, pathlib.PurePath):
            return f"{self._module('pathlib')}.{type(value).__name__}({str(value)!r})"
        if isinstance(value, re.Pattern):
            return f"{self._module('re')}.compile({value.pattern!r}, {value.flags})"
        if isinstance(value, logging.Logger):
            return f"{self._module('logging')}.getLogger({value.name!r})"
        if isinstance(value, functools.partial):
            parts = [self.write(value.func, depth), *(self.write(arg, depth) for arg in value.args)]
            parts += [f"{name}={self.write(arg, depth)}" for name, arg in value.keywords.items()]
            return f"{self._module('functools')}.partial({', '.join(parts)})"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._call(type(value), init_fields(value, self._path), depth)
        if type(value).__module__.startswith("gymnasium.spaces.") and type(value).__name__ in _SPACES:
            return self._call(type(value), _space_arguments(value), depth)
        return self._named(value)

    def _sequence(self, value: Any, depth: int) -> str:
        parts = [self.write(part, depth) for part in value]
        if type(value) is list:
            return f"[{', '.join(parts)}]"
        if type(value) is tuple:
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        return f"{type(value).__name__}([{', '.join(sorted(parts))}])"

    def _numpy(self, value: Any) -> str:
        numpy = self._module("numpy")
        if isinstance(value, np.dtype):
            return f"{numpy}.dtype({str(value)!r})"
        if value.dtype.kind not in "biufU":
            raise refuse(self._path, value, f"is of dtype {value.dtype}", "use numbers, bools or strings")
        if isinstance(value, np.generic):
            return f"{numpy}.dtype({str(value.dtype)!r}).type({self.write(value.item())})"
        if value.size > MAX_ARRAY_VALUES:
            reason = f"is an array of {value.size} values, more than {MAX_ARRAY_VALUES}"
            raise refuse(self._path, value, reason, "load it from a file inside your function")
        return f"{numpy}.array({self.write(value.tolist())}, {str(value.dtype)!r}).reshape({value.shape})"

    def _call(self, cls: type, fields: dict[str, Any], depth: int) -> str:
        arguments = ", ".join(f"{name}={self.write(value, depth)}" for name, value in fields.items())
        return f"{self._named(cls)}({arguments})"

    def _named(self, thing: Any) -> str:
        target = importable_target(thing)
        if target is not None:
            module, _, qualname = target.partition(":")
            return qualname if module == "builtins" else f"{self._module(module)}.{qualname}"
        dotted = self._take(thing, self._path)
        self.names.add(dotted.split(".")[0])
        return dotted

    def _module(self, module: str) -> str:
        alias = "_" + module.replace(".", "_")
        self.imports.add(f"import {module} as {alias}")
        return alias


def _space_arguments(space: Any) -> dict[str, Any]:
    """Return the arguments that make an equal space of Gymnasium; a bound that all entries share is one number."""
    arguments = {name: getattr(space, attribute) for name, attribute in _SPACES[type(space).__name__].items()}
    for name in {"low", "high"} & set(arguments):
        bound = arguments[name]
        if bound.size and (bound == bound.flat[0]).all():
            arguments[name] = bound.flat[0].item()
    return arguments


def is_type_expression(value: Any) -> bool:
    """Return whether a value only describes types (TypeVar, NewType, list[int], X | Y): its source may run again.

    The same holds for classes made by a call, such as namedtuple("Point", "x y").
    """
    return isinstance(value, _TYPING | type) or type(value).__module__ == "typing"
