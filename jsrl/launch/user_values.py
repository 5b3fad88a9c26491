"""Hooks and sinks of a user: objects, or `module:name` of their factories."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from jsrl.errors import ConfigError
from jsrl.references.importing import import_target


def load_values(what: str, given: Sequence[Any], methods: Iterable[str]) -> list[Any]:
    """Return the values of a list, those given as `module:name` imported and made.

    Args:
      what: `hook` or `sink`. given: objects; or `module:name` of a function or class without arguments that makes one or
        several. methods: each value has at least one of them.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"{what}s is a value of type {type(given).__name__}, expected a list of {what}s.")
    methods, found = tuple(methods), list[Any]()
    for value in given:
        found += made_by(what, value, methods) if isinstance(value, str) else [value]
    for value in found:
        if inspect.isclass(value):
            name = value.__name__
            raise ConfigError(f"{what} {name} is a class, expected an instance of it; write {name}().")
        if not has_any(value, methods):
            known = ", ".join(methods)
            raise ConfigError(
                f"a value of type {type(value).__name__} is no {what}: it has none of the methods {known}."
            )
    return found


def made_by(what: str, reference: str, methods: Sequence[str]) -> list[Any]:
    """Return the values that `module:name` makes, or its value."""
    found = import_target(reference)
    if callable(found) and (inspect.isclass(found) or not has_any(found, methods)):
        try:
            found = found()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{what}s {reference}: calling it raised {type(error).__name__}: {error}. Expected a function or class "
                f"without arguments that makes a {what}, or a list of {what}s."
            ) from error
    return list(found) if isinstance(found, list | tuple) else [found]


def has_any(value: Any, methods: Iterable[str]) -> bool:
    return any(callable(getattr(value, name, None)) for name in methods)
