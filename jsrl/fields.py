"""Fields of configs: what values they take, their help, and their options on the command line.

A config is a frozen dataclass below `@suggesting`, which checks the type and range of each field. Rules across fields are in
its `__post_init__`. Python and the command line refuse a wrong value alike.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from jsrl.errors import ConfigError
from jsrl.references.reference import is_equal


class Range(NamedTuple):
    """The limits of a number: at least `ge`, above `gt`, at most `le`, below `lt`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def holds(self, number: Any) -> bool:
        """Return whether a number is within the limits."""
        return (
            (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
        )

    def __str__(self) -> str:
        if self.ge is not None and self.le is not None:
            return f"from {self.ge} to {self.le}"
        texts = {"at least": self.ge, "above": self.gt, "at most": self.le, "below": self.lt}
        given = [f"{text} {limit}" for text, limit in texts.items() if limit is not None and math.isfinite(limit)]
        return " and ".join([*given, *(["finite"] if self.lt == math.inf else [])])


PositiveInt = Annotated[int, Range(ge=1)]
NonNegativeInt = Annotated[int, Range(ge=0)]
PositiveFloat = Annotated[float, Range(gt=0)]
PositiveFinite = Annotated[float, Range(gt=0, lt=math.inf)]
NonNegativeFloat = Annotated[float, Range(ge=0)]
NonNegativeFinite = Annotated[float, Range(ge=0, lt=math.inf)]
FiniteFloat = Annotated[float, Range(gt=-math.inf, lt=math.inf)]
UnitFloat = Annotated[float, Range(ge=0, le=1)]
PositiveUnitFloat = Annotated[float, Range(gt=0, le=1)]

NAMES = "jsrl.field_names"  # imported for an unknown name
AUTO: Final = "auto"
T = TypeVar("T")
UNREADABLE = "a value that only a config in Python can give"
CHECKED: set[type] = set()  # classes of configs that check their fields themselves
_DECODING = contextvars.ContextVar("decoding", default=False)


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    factory: Any = dataclasses.MISSING,
    in_python: bool = False,
    needs: tuple[str, ...] = (),
    instead_of: str = "",
    has_options: bool = False,
    decided: str = "",
) -> Any:
    """Return a dataclass field with a help text.

    Args:
      default: its default. help: about it, one or more sentences. factory: makes the default.
      in_python: few change it: a config in Python sets it, the command line has no option for it.
      needs: it has an effect only with one of these options, such as `--hosts`, `--launcher ray`, or without dashes one
        beside it: `prioritised`. A part with needs has them for each of its options.
      instead_of: the field that has no effect unless this one is None.
      has_options: only Python gives its value, a config or a dict of configs; the fields of these are options.
      decided: the property that has its value with `auto` decided.
    """
    metadata = {"help": help, "in_python": in_python, "needs": needs, "has_options": has_options, "decided": decided}
    metadata["instead_of"] = instead_of
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)


class InvalidValue(ConfigError):
    """A value that a field cannot have. owner: the class. field: its name. wanted: the end of the sentence."""

    def __init__(self, owner: type, field: str, value: Any, wanted: str) -> None:
        super().__init__(f"{owner.__name__}.{field} is {value!r}; {wanted}")
        self.owner, self.field, self.wanted = owner, field, wanted

    def as_option(self, owner: type, prefix: str, texts: Mapping[str, str]) -> ConfigError:
        """Return the error as one about an option of the command line, which begins with `prefix`, and as it was given.

        Args:
          owner: the class of the config that was made. texts: of the given options, by name.
        """
        option = prefix + self.field.replace("_", "-")
        if self.owner is not owner or option not in texts:
            return self
        text = texts[option]
        try:
            float(text)
            shown = text if "nan" not in text.lower() else repr(text)
        except ValueError:
            shown = repr(text)
        return ConfigError(f"--{option} is {shown}; {self.wanted}")


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Make configs without checks inside the `with` block: their values were checked before they were sent here."""
    before = _DECODING.set(True)
    try:
        yield
    finally:
        _DECODING.reset(before)


def filled(config: T, **values: Any) -> T:
    """Return a config with values that follow from its own; both were checked."""
    with decoding():
        return dataclasses.replace(config, **values)  # type: ignore[type-var]


def is_decoding() -> bool:
    """Return whether configs are made of values that were checked before."""
    return _DECODING.get()


@functools.lru_cache(256)
def type_hints(cls: Any, include_extras: bool = False) -> dict[str, Any]:
    """Return the types of a class's fields; evaluates each annotation as code, which takes milliseconds."""
    return typing.get_type_hints(cls, include_extras=include_extras)


def suggesting(cls: type[T]) -> type[T]:
    """Check the fields of a config, then its rules across fields (`__post_init__`). Write it above `@dataclass`.

    The error about an unknown field names the right one, and `help` of the class has the fields' help texts.
    """
    make, rules = cls.__init__, getattr(cls, "__post_init__", None)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = [field.name for field in fields if field.init]
    helps = [f"  {field.name}: {field.metadata['help']}" for field in fields if field.metadata.get("help")]
    cls.__doc__ = "\n".join([cls.__doc__ or "", "", "Fields:", *helps])

    def check(self: Any) -> None:
        if not is_decoding():
            check_fields(self)
            if rules is not None:
                rules(self)

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs.keys() - names:
            raise TypeError(f"{cls.__name__} has no field {name!r}; {import_module(NAMES).suggestion(name, names)}")
        make(self, *args, **kwargs)
        if rules is None:  # else the dataclass has called it
            check(self)

    cls.__init__ = init  # type: ignore[method-assign]
    CHECKED.add(cls)
    if rules is not None:
        cls.__post_init__ = check  # type: ignore[attr-defined]
    return cls


def check_fields(config: Any) -> None:
    """Refuse values of another type or range than the fields have; numbers such as 1e6 become ints where these are expected.

    Raises:
      InvalidValue: the message names the field, its value, and what is expected.
    """
    cls: Any = type(config)
    hints = type_hints(cls, include_extras=True)
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if value is field.default:
            continue
        kind = hints[name]
        check_value(cls, name, value, kind)
        if (
            isinstance(value, numbers.Real)
            and not isinstance(value, int)
            and _takes(int, kind)
            and not _takes(float, kind)
        ):
            object.__setattr__(config, name, int(value))  # type: ignore[call-overload]


def check_value(owner: type, name: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not of a type, which may have a range."""
    if not any(_is(value, each) for each in alternatives(kind)):
        raise InvalidValue(owner, name, value, f"expected {_expected(value, kind, name)}")
    for each in alternatives(kind):
        members = typing.get_args(each)
        if _is_mapping(each) and isinstance(value, Mapping) and members:
            for key, member in value.items():
                check_value(owner, f"{name}.{key}", member, members[1])
        limits, checked = _range(each), value if is_sequence(each) and isinstance(value, Iterable) else (value,)
        if limits is not None and not all(limits.holds(number) for number in checked if _is_number(number)):
            others = [type_text(other) for other in alternatives(kind) if other is not each]
            text = ", or ".join([str(limits), *others])
            raise InvalidValue(owner, name, value, f"{'each' if is_sequence(each) else 'it'} must be {text}.")


def _is(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type; types that only Python code gives are not judged."""
    kind = _plain(kind)
    if typing.get_origin(kind) is Literal:
        return isinstance(value, str | int | None) and value in typing.get_args(kind)
    if is_sequence(kind):
        members = value if isinstance(value, tuple | list) else ()  # others may give their members only once
        return (
            isinstance(value, Iterable)
            and not isinstance(value, str | Mapping)
            and all(_is(member, typing.get_args(kind)[0]) for member in members)
        )
    if _is_mapping(kind):
        return isinstance(value, Mapping)
    if kind is type(None):
        return value is None
    if kind is bool:
        return isinstance(value, bool | numbers.Integral) or type(value).__name__ == "bool"  # NumPy's
    if kind is int:
        return isinstance(value, numbers.Integral) or (isinstance(value, numbers.Real) and float(value).is_integer())
    if kind is float:
        return _is_number(value) and not math.isnan(value)
    return not _is_part(kind) or isinstance(value, kind)


def _is_part(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _is_number(value: Any) -> bool:
    return not isinstance(value, str) and hasattr(value, "__float__")


@functools.lru_cache(512)
def _takes(number: type, kind: Any) -> bool:
    return any(_plain(each) is number for each in alternatives(kind))


@functools.lru_cache(512)
def _plain(kind: Any) -> Any:
    """Return a type without its range."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


@functools.lru_cache(512)
def _range(kind: Any) -> Range | None:
    """Return the range of a type's numbers, or of each member's; None: it has none."""
    given = typing.get_args(typing.get_args(kind)[0] if is_sequence(kind) else kind)[1:]
    return next((limits for limits in given if isinstance(limits, Range)), None)


@functools.lru_cache(512)
def is_sequence(kind: Any) -> bool:
    """Return whether a type holds several values."""
    return typing.get_origin(kind) in (tuple, list)


@functools.lru_cache(512)
def _is_mapping(kind: Any) -> bool:
    return isinstance(origin := typing.get_origin(kind) or kind, type) and issubclass(origin, Mapping)


@functools.lru_cache(512)
def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union type (None first, so that `none` is never a string), or the type itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(sorted(typing.get_args(kind), key=lambda member: member is not type(None)))
    return (kind,)


def type_text(kind: Any) -> str:
    """Return a type for messages and help texts."""
    kind = _plain(kind)
    simple = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "none"}
    if typing.get_origin(kind) is Literal:
        names = [str(choice) for choice in typing.get_args(kind)]
        return names[0] if len(names) == 1 else "one of " + ", ".join(names)
    if len(members := alternatives(kind)) > 1:
        return " or ".join(type_text(member) for member in reversed(members))
    if is_sequence(kind):
        example = {str: "a,b", Any: '["module:Class"]'}.get(_plain(typing.get_args(kind)[0]), "64,64")
        return f"a list such as {example}"
    if _is_mapping(kind):
        return "a JSON object, or in Python a dict"
    return f"{kind.__name__}(...)" if _is_part(kind) else simple.get(kind, UNREADABLE)


def _expected(value: Any, kind: Any, name: str) -> str:
    """Return what a field takes, with the choice or the part that the value may stand for."""
    choices = [str(c) for k in alternatives(kind) if typing.get_origin(k) is Literal for c in typing.get_args(k)]
    near = difflib.get_close_matches(value, choices, n=1, cutoff=0.4) if isinstance(value, str) else []
    part = next((each for each in alternatives(kind) if _is_part(each)), None)
    if part is None:
        return f"{type_text(kind)}; did you mean {near[0]}?" if near else f"{type_text(kind)}."
    given = "..."
    if isinstance(value, str) and type_hints(part)[dataclasses.fields(part)[0].name] is str:
        given = repr(value)
    elif not value and "enabled" in type_hints(part):
        given = "enabled=False"
    others = [type_text(each) for each in alternatives(kind) if each is not part]
    return ", or ".join([f"{name}={part.__name__}({given})", *others]) + "."


# -- options: the names and help texts of fields on the command line ---------------------------------------------------

ABSENT = "(absent)"  # an option that one of two experiments does not have


@dataclass(frozen=True)
class Option:
    """One option: its name without dashes, type, default, help text, whether the command line offers it, and what it needs.

    Attributes:
      needs: it has an effect only with one of these options, such as `--hosts` or `--launcher ray`.
      usual: the default of its field.
      instead_of: the option that has no effect unless this one is None.
    """

    name: str
    kind: Any
    default: Any
    text: str
    offered: bool = True
    needs: tuple[str, ...] = ()
    usual: Any = None
    instead_of: str = ""

    def has(self, value: str) -> bool:
        """Return whether it has a value that begins with this; empty: whether it is on, or changed."""
        if value:
            return str(self.default).startswith(value)
        return self.default is True or (bool(self.default) and self.default != self.usual)


def offered_options(*values: Any) -> dict[str, Option]:
    """Return the options of config values that the command line offers, by name."""
    return {name: option for value in values for name, option in options_of(value).items() if option.offered}


def options_of(value: Any, prefix: str = "", offered: bool = True, needs: tuple[str, ...] = ()) -> dict[str, Option]:
    """Return every option of a config value (a dataclass instance), by name.

    `offered`: the command line has those that it can read, and that are not `in_python`.
    """
    options: dict[str, Option] = {}
    cls: type = type(value)
    texts, hints = field_texts(cls), type_hints(cls)
    for field in dataclasses.fields(value):
        name, kind, text = f"{prefix}{field.name.replace('_', '-')}", hints[field.name], texts.get(field.name, "")
        own = (one if one.startswith("--") else f"--{prefix}{one}" for one in field.metadata.get("needs", ()))
        needed, has_options = tuple(own) or needs, field.metadata.get("has_options")
        default, here = decided(value, field.name), offered and not field.metadata.get("in_python")
        if field.metadata.get("decided"):  # the option itself says whether there is one; those of its fields follow
            options[name] = Option(name, Literal["auto"] | None, None if default is None else AUTO, text, here)
            if default is None:
                continue
        if dataclasses.is_dataclass(default) and not isinstance(default, type) and (has_options or kind is not Any):
            options |= options_of(default, f"{name}.", here, needed)
        elif has_options and isinstance(default, dict) and default:
            for key, config in default.items():
                options |= options_of(config, f"{name}.{key.replace('_', '-')}.", here)
        else:
            other = f"{prefix}{other.replace('_', '-')}" if (other := field.metadata.get("instead_of")) else ""
            options[name] = Option(name, kind, default, text, here and not has_options, needed, field.default, other)
    return options


def decided(config: Any, name: str) -> Any:
    """Return the value of a config's field; `auto` as what it stands for."""
    return getattr(config, type(config).__dataclass_fields__[name].metadata.get("decided") or name)


def field_texts(cls: type) -> dict[str, str]:
    """Return the help text of each field; one that a subclass gives another default keeps its text."""
    bases = [base for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base)]
    return {f.name: f.metadata["help"] for base in bases for f in dataclasses.fields(base) if "help" in f.metadata}


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Return option name -> (old, new) for every option that differs."""
    before, after = options_of(old), options_of(new)
    names = list(dict.fromkeys([*before, *after]))
    missing = Option("", None, ABSENT, "")
    pairs = {n: (before.get(n, missing).default, after.get(n, missing).default) for n in names}
    return {name: pair for name, pair in pairs.items() if not is_equal(*pair)}


def either(names: Sequence[str]) -> str:
    """Return names as text: `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
