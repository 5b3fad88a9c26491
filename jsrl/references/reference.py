"""Send environments, agents and their arguments to another process as names and JSON, never pickled.

`to_json` and `from_json` convert whole experiment trees; functions and classes travel as `module:name`. Definitions in a
notebook or a script have no importable module: jsrl.references.capture writes one.

`from_json` imports and calls what its tags name: use it only for files that their owner trusts like code (a run's folder).
Snapshots and streams never use it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import logging
import math
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jsrl.errors import ConfigError
from jsrl.references.importing import (
    ITSELF,
    import_target,
    importable_target,
    nearest,
    refuse,
    why_not_importable,
)

if TYPE_CHECKING:
    from jsrl.references.capture import Capture

CAPTURE = "jsrl.references.capture:Capture"  # imported where a definition needs it
MAX_ARRAY_VALUES = 4096
MAX_DEPTH = 64


def to_json(value: Any, source: str | os.PathLike[str] | None = None, path: str = "") -> Any:
    """Return a tree of plain JSON values from which `from_json` makes an equal tree in another process.

    None, bool, int, float, str, list and dict with str keys stay as they are; everything else is a dict with one
    `$` tag: infinite floats, tuples, sets, numpy scalars, dtypes and small arrays, paths, enum members, functions and
    classes, functools.partial, NamedTuples, dataclass instances (their init fields; flax modules too), and `$call` for bytes,
    complex numbers, ranges, regular expressions, loggers and Gymnasium's spaces.

    Args:
      value: the tree.
      source: folder for the module with definitions of a notebook or script; without it they are refused. Convert
        related values in one call, so that they get into one module.
      path: name of the tree for messages, such as `agent`.
    """
    encoder = _Encoder(None, source)
    tree = encoder.encode(value, path, 0)
    return tree if encoder.capture is None else json.loads(json.dumps(tree).replace(ITSELF, encoder.capture.write()))


def encoded(value: Any, capture: Capture, path: str) -> Any:
    """Return a value as JSON; the module of captured definitions is ITSELF."""
    return _Encoder(capture).encode(value, path, 0)


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values have the same JSON form; for arrays `==` has no answer, for NaN and partials a wrong one."""
    try:
        return one is other or to_json(one) == to_json(other)
    except ConfigError:  # a value that cannot be sent
        return one == other


class _Encoder:
    """One walk over a tree; its first definition that cannot be imported makes the capture."""

    def __init__(self, capture: Capture | None, source: str | os.PathLike[str] | None = None) -> None:
        self.capture, self._source = capture, source

    def encode(self, value: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise refuse(path, value, f"is nested deeper than {MAX_DEPTH} levels", "does it contain itself?")
        if value is None or type(value) in (bool, str):
            return value
        if isinstance(value, enum.Enum):
            if value.name not in type(value).__members__:
                raise refuse(path, value, "is a combination of flags, which has no name", "pass the flags as a list")
            return {"$enum": self._name(type(value), path), "name": value.name}
        if isinstance(value, np.generic):
            return {"$scalar": str(value.dtype), "value": self._plain(value, path)}
        if type(value) is int:
            return value if -(2**63) <= value < 2**63 else {"$int": str(value)}
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        return self._container(value, path, depth + 1)

    def _container(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._instance(value, {name: getattr(value, name) for name in value._fields}, path, depth)
        if type(value) is list:
            return self._list(value, path, depth)
        if type(value) is tuple:
            return {"$tuple": self._list(value, path, depth)}
        if type(value) in (set, frozenset):
            return {f"${type(value).__name__}": self._list(sorted(value, key=repr), path, depth)}
        if type(value) is dict or (isinstance(value, Mapping) and type(value).__name__ == "FrozenDict"):
            return self._dict(value, path, depth)
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, np.dtype):
            return {"$dtype": str(value)}
        if isinstance(value, pathlib.PurePath):
            return {"$path": str(value)}
        if isinstance(value, functools.partial):
            return {
                "$partial": self.encode(value.func, f"{path}.func" if path else "func", depth),
                "args": self._list(value.args, f"{path}.args" if path else "args", depth),
                "kwargs": self._dict(value.keywords, path, depth),
            }
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._instance(value, init_fields(value, path), path, depth)
        if (call := _call(value)) is not None:
            target, args, kwargs = call
            return {"$call": target, "args": self._list(args, path, depth), "kwargs": self._dict(kwargs, path, depth)}
        return {"$function": self._name(value, path)}

    def _list(self, values: Any, path: str, depth: int) -> list[Any]:
        return [self.encode(value, f"{path}[{index}]", depth) for index, value in enumerate(values)]

    def _dict(self, values: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        if all(type(key) is str and not key.startswith("$") for key in values):
            return {key: self.encode(value, f"{path}.{key}" if path else key, depth) for key, value in values.items()}
        pairs = []
        for key, value in values.items():
            pairs.append([self.encode(key, f"{path}[{key!r}]", depth), self.encode(value, f"{path}[{key!r}]", depth)])
        return {"$dict": pairs}

    def _instance(self, value: Any, fields: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        return {"$type": self._name(type(value), path), "fields": self._dict(fields, path, depth)}

    def _plain(self, value: Any, path: str) -> Any:
        if value.dtype.kind in "biufU":
            listed = value.tolist()
            return self.encode(listed, path, 0) if not isinstance(listed, list) else self._list(listed, path, 0)
        raise refuse(path, value, f"is of dtype {value.dtype}, which has no JSON form", "use numbers or strings")

    def _array(self, value: np.ndarray, path: str) -> dict[str, Any]:
        if value.size > MAX_ARRAY_VALUES:
            reason = f"is an array of {value.size} values, shape {value.shape}; at most {MAX_ARRAY_VALUES} can be sent"
            raise refuse(
                path, value, reason, "save it to a file and pass the file's path, to be loaded by your function"
            )
        return {"$array": str(value.dtype), "shape": list(value.shape), "values": self._plain(value.reshape(-1), path)}

    def _name(self, thing: Any, path: str) -> str:
        target = importable_target(thing)
        if target is not None:
            return target
        if self.capture is None and self._source is None:
            home = f"is defined in {getattr(thing, '__module__', '')}, which no other process can import"
            reason = home, "move the definition to a module of its own and import it there"
            raise refuse(path, thing, *(why_not_importable(thing) or reason))
        if self.capture is None:
            self.capture = import_target(CAPTURE)(self._source)
        return self.capture.target(thing, path)


def init_fields(value: Any, path: str) -> dict[str, Any]:
    """Return a dataclass instance's init fields (of a flax module, without its parent).

    Fields with a default that has no name (a closure) are left out: the class makes them again.
    """
    cls = type(value)
    flax = any(base.__module__ == "flax.linen.module" and base.__name__ == "Module" for base in cls.__mro__)
    for name, described in cls.__dataclass_fields__.items():
        if getattr(described, "_field_type", None) is dataclasses._FIELD_INITVAR and (  # type: ignore[attr-defined]
            described.default is dataclasses.MISSING
        ):
            reason = f"has the init-only variable `{name}`, whose value it does not keep"
            raise refuse(path, value, reason, "make it a field, or give it a default")
    fields = {
        entry.name: getattr(value, entry.name)
        for entry in dataclasses.fields(value)
        if entry.init and not _is_nameless_default(entry, getattr(value, entry.name))
    }
    if flax:
        fields.pop("parent", None)
        if fields.get("name") is None:
            fields.pop("name", None)
    return fields


def _is_nameless_default(entry: dataclasses.Field[Any], value: Any) -> bool:
    """Return whether a field has a default that only its class can make, such as an initializer's closure."""
    return value is entry.default and callable(value) and importable_target(value) is None


_SPACES = {  # of Gymnasium: arguments of the constructor, which are attributes too
    "Box": ("low", "high", "shape", "dtype"),
    "Discrete": ("n", "start"),
    "MultiDiscrete": ("nvec", "dtype", "start"),
    "MultiBinary": ("n",),
    "Dict": ("spaces",),
    "Tuple": ("spaces",),
}


def _call(value: Any) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Return (target, args, kwargs) of a call that makes an equal value; None: no such call is known."""
    kind = type(value)
    if kind is bytes:
        return "builtins:bytes.fromhex", [value.hex()], {}
    if kind is complex:
        return "builtins:complex", [value.real, value.imag], {}
    if kind is range:
        return "builtins:range", [value.start, value.stop, value.step], {}
    if isinstance(value, re.Pattern):
        return "re:compile", [value.pattern, value.flags], {}
    if isinstance(value, logging.Logger):
        return "logging:getLogger", [value.name], {}
    if kind.__module__.startswith("gymnasium.spaces.") and kind.__name__ in _SPACES:
        given = {name: getattr(value, name) for name in _SPACES[kind.__name__]}
        for name in {"low", "high"} & set(given):
            bound = given[name]
            if bound.size and (bound == bound.flat[0]).all():  # a bound that all entries share is one number
                given[name] = bound.flat[0].item()
        return f"gymnasium.spaces:{kind.__name__}", [], given
    return None


def from_json(tree: Any, path: str = "") -> Any:
    """Return the tree given to `to_json`; imports and makes what its tags name.

    Only for JSON that is trusted like code: it decides what is imported and called.
    """
    level = [tree] if isinstance(tree, dict | list) else []
    for _ in range(4 * MAX_DEPTH):  # a container of a value is up to three in JSON
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        level = [inner for inner in level if isinstance(inner, dict | list)]
    if level:
        raise ConfigError(f"{path or 'tree'} is nested deeper than {MAX_DEPTH} levels.")
    return _decode(tree, path)


def _decode(tree: Any, path: str) -> Any:
    if isinstance(tree, list):
        return [_decode(value, f"{path}[{index}]") for index, value in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    tag = next((key for key in tree if key.startswith("$")), None)
    if tag is None:
        return {key: _decode(value, f"{path}.{key}" if path else key) for key, value in tree.items()}
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise ConfigError(
            f"{path or 'tree'}: unknown tag {tag!r}{nearest(tag, _DECODERS)}; expected one of {', '.join(_DECODERS)}. "
            "Was it written by a newer jsrl?"
        )
    try:
        return decoder(tree, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path or 'tree'}: {tag!r} is damaged ({type(error).__name__}: {error}).") from error


def _make_instance(tree: dict[str, Any], path: str) -> Any:
    cls = import_target(tree["$type"])
    if not isinstance(cls, type) or not (dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")):
        raise ConfigError(
            f"{path or 'tree'}: {tree['$type']!r} is not a dataclass or NamedTuple; only these are made from fields."
        )
    fields = _decode(tree["fields"], path)
    try:
        return cls(**fields)
    except TypeError as error:
        names = list(inspect.signature(cls).parameters)
        unknown = [name for name in fields if name not in names]
        hint = "".join(nearest(name, names) for name in unknown[:1])
        raise ConfigError(
            f"{path or 'tree'}: {tree['$type']!r} cannot be made from {', '.join(fields)}: {error}{hint}. It takes "
            f"{', '.join(names)}; was this written by another version of that class?"
        ) from error


def _make_partial(tree: dict[str, Any], path: str) -> Any:
    args, kwargs = _decode(tree["args"], path), _decode(tree["kwargs"], path)
    return functools.partial(_decode(tree["$partial"], path), *args, **kwargs)


def _make_member(tree: dict[str, Any], path: str) -> enum.Enum:
    members, name = import_target(tree["$enum"]).__members__, tree["name"]
    if name not in members:
        raise ConfigError(f"{path}: {tree['$enum']!r} has no member {name!r}; it has {', '.join(members)}.")
    return members[name]


_DECODERS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "$float": lambda tree, path: float(tree["$float"]),
    "$int": lambda tree, path: int(tree["$int"]),
    "$tuple": lambda tree, path: tuple(_decode(tree["$tuple"], path)),
    "$set": lambda tree, path: set(_decode(tree["$set"], path)),
    "$frozenset": lambda tree, path: frozenset(_decode(tree["$frozenset"], path)),
    "$dict": lambda tree, path: {_decode(k, path): _decode(v, path) for k, v in tree["$dict"]},
    "$scalar": lambda tree, path: np.dtype(tree["$scalar"]).type(_decode(tree["value"], path)),
    "$array": lambda tree, path: np.array(_decode(tree["values"], path), tree["$array"]).reshape(tree["shape"]),
    "$dtype": lambda tree, path: np.dtype(tree["$dtype"]),
    "$path": lambda tree, path: pathlib.Path(tree["$path"]),
    "$enum": _make_member,
    "$function": lambda tree, path: import_target(tree["$function"]),
    "$partial": _make_partial,
    "$type": _make_instance,
    "$call": lambda tree, path: import_target(tree["$call"])(
        *_decode(tree["args"], path), **_decode(tree["kwargs"], path)
    ),
}
