"""Play an exported policy: this one file, numpy, and nothing else.

It is part of every policy file, so that it plays without jsrl and without JAX:

    import sys; sys.path.insert(0, "policy.zip")
    import player
    policy = player.load("policy.zip")
    action = policy(observation, is_first)  # batches [B, ...]

`python policy.zip` prints what the policy reads and returns.

A policy is a program: nodes in execution order, each an operator of ONNX that reads and makes named values. The attribute
`to` of Cast is the name of a dtype.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import threading
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

FORMAT, FORMAT_VERSION = "jsrl policy", 3
WEIGHTS = "weights/"  # begins the names of the members with constants, NAME.npy


class PolicyFileError(Exception):
    """A file that is no policy, is broken, or is of another version; the message says what to do."""


class PolicyInputError(ValueError):
    """An observation or a state that the policy cannot read; the message says which, and what was expected."""


# -- operators: (values, attributes) -> value --------------------------------------------------------------------------


def _expand(values: list, attributes: dict) -> np.ndarray:
    x, sizes = values
    return np.broadcast_to(x, [own if size == 1 else size for own, size in zip(x.shape, sizes.tolist(), strict=True)])


def _slice(values: list, attributes: dict) -> np.ndarray:
    x, starts, ends, axes, steps = values
    taken = dict(zip(axes.tolist(), map(slice, starts.tolist(), ends.tolist(), steps.tolist()), strict=True))
    return x[tuple(taken.get(axis, slice(None)) for axis in range(x.ndim))]


def _pad(values: list, attributes: dict) -> np.ndarray:
    x, edges, fill = values
    return np.pad(x, list(zip(edges[: x.ndim], edges[x.ndim :], strict=True)), constant_values=fill)


def _windows(x: np.ndarray, size: tuple, attributes: dict, fill: float) -> np.ndarray:
    """Return the windows of images [N, C, H, W]: [N, C, h, w, window height, window width]."""
    top, left, bottom, right = attributes["pads"]
    if any(attributes["pads"]):
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    rows, columns = attributes["strides"]
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=(2, 3))[:, :, ::rows, ::columns]


def _convolution(values: list, attributes: dict) -> np.ndarray:
    images, kernel = values
    windows = _windows(images, kernel.shape[2:], attributes, 0.0)
    # features last, as JAX keeps them in memory: the copy into a matrix is then one of whole pixels
    return np.tensordot(windows, kernel, ((4, 5, 1), (2, 3, 1))).transpose(0, 3, 1, 2)


def _max_pool(values: list, attributes: dict) -> np.ndarray:
    return _windows(values[0], tuple(attributes["kernel_shape"]), attributes, -np.inf).max(axis=(4, 5))


def _split(values: list, attributes: dict) -> list:
    return np.split(values[0], np.cumsum(values[1])[:-1].tolist(), axis=attributes["axis"])


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray([math.erf(value) for value in x.ravel().tolist()], x.dtype).reshape(x.shape)


def _plain(fn: Any) -> Any:
    return lambda values, attributes: fn(*values)


OPERATORS: dict[str, Any] = {
    **{name: _plain(fn) for name, fn in {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
        "Neg": np.negative, "Abs": np.abs, "Sign": np.sign, "Floor": np.floor, "Ceil": np.ceil, "Exp": np.exp, "Log": np.log,
        "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Tanh": np.tanh, "Atanh": np.arctanh, "Sin": np.sin, "Cos": np.cos,
        "Pow": np.power, "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not, "Equal": np.equal, "Less": np.less,
        "LessOrEqual": np.less_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Where": np.where,
        "Sigmoid": lambda x: 0.5 * (np.tanh(0.5 * x) + 1.0), "Erf": _erf, "Identity": lambda x: x, "MatMul": np.matmul,
        "Reshape": lambda x, shape: x.reshape(shape.tolist()), "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes)),
        "ReduceSum": lambda x, axes: x.sum(tuple(axes)), "ReduceMax": lambda x, axes: x.max(tuple(axes)),
        "ReduceMin": lambda x, axes: x.min(tuple(axes)),
    }.items()},
    "Cast": lambda values, attributes: values[0].astype(attributes["to"]),
    "Transpose": lambda values, attributes: values[0].transpose(attributes["perm"]),
    "Concat": lambda values, attributes: np.concatenate(values, axis=attributes["axis"]),
    "Shape": lambda values, attributes: np.array(values[0].shape[attributes["start"] : attributes["end"]]),
    "Gather": lambda values, attributes: values[0].take(values[1], axis=attributes["axis"]),
    "ArgMax": lambda values, attributes: np.argmax(values[0], axis=attributes["axis"]),
    "Einsum": lambda values, attributes: np.einsum(attributes["equation"], *values, optimize=True),
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Conv": _convolution,
    "MaxPool": _max_pool,
}  # fmt: skip


def run_program(program: dict, constants: dict[str, np.ndarray], arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of a program for its inputs, batches [B, ...]."""
    values = {**constants, **dict(zip(program["inputs"], arrays, strict=True))}
    with np.errstate(all="ignore"):
        for op, read, made, attributes in program["nodes"]:
            out = OPERATORS[op]([values[name] for name in read], attributes)
            values.update(zip(made, out if isinstance(out, list) else [out], strict=True))
    return [values[name] for name in program["outputs"]]


# -- the policy --------------------------------------------------------------------------------------------------------


class Policy:
    """An exported policy. It keeps the recurrent state of its last batch.

    Attributes:
      contract: policy.json as it is: inputs, state and outputs (name, dtype, shape of one row), action, parity, origin.
    """

    def __init__(self, contract: dict, constants: dict[str, np.ndarray]) -> None:
        self.contract, self._constants = contract, constants
        self._state: dict[str, np.ndarray] | None = None
        self._thread: int | None = None  # whose history the state is

    def __call__(self, observation: Any, is_first: Any = None) -> np.ndarray:
        """Return the greedy actions for a batch of observations, as the environment takes them; of several dimensions, flat.

        Args:
          observation: array [B, ...], or a dict of them, as `contract` describes them (docs/export.md).
          is_first: bool [B], True where an episode begins; None: True on the first call and after `reset`, then False.

        Raises:
          PolicyInputError: as for `step`, or another thread plays this recurrent policy.
        """
        caller = threading.get_ident()
        if self.contract["state"] and caller != (self._thread or caller):
            raise PolicyInputError(
                "two threads call one recurrent policy, which would mix their histories; load a policy for each thread, or "
                "give each its own state with `step`"
            )
        self._thread = caller
        outputs, self._state = self.step(observation, self._state, is_first)
        return outputs["action"]

    def reset(self) -> None:
        """Forget the recurrent state: the next call begins new episodes."""
        self._state = self._thread = None

    def step(self, observation: Any, state: dict | None = None, is_first: Any = None) -> tuple[dict, dict]:
        """Return (outputs, new state); changes nothing in the policy.

        Args:
          observation: as for a call. state: result of the last step; None: new episodes begin. is_first: as for a call.

        Returns:
          outputs: `action` as for a call, and the distribution's parameters by name.

        Raises:
          PolicyInputError: an array is missing, has another shape or kind than the policy reads, or holds NaN or infinity.
        """
        inputs = [self._read(port, _leaf(observation, port)) for port in self.contract["inputs"]]
        batch = inputs[0].shape[0]
        if any(x.shape[0] != batch for x in inputs):
            raise PolicyInputError(
                f"the observation's arrays have {[x.shape[0] for x in inputs]} rows; expected the same"
            )
        if self.contract["state"]:
            first = np.full(batch, state is None) if is_first is None else np.asarray(is_first, bool)
            if first.shape != (batch,):
                raise PolicyInputError(
                    f"is_first has shape {first.shape}; expected ({batch},), a value per observation"
                )
            inputs.append(first)
        for port in self.contract["state"]:
            old = np.zeros((batch, *port["shape"]), port["dtype"]) if state is None else state.get(port["name"])
            inputs.append(self._read(port, old, batch))
        results = run_program(self.contract["program"], self._constants, inputs)
        names = [port["name"] for port in self.contract["outputs"]]
        kept = [port["name"] for port in self.contract["state"]]
        return dict(zip(names, results, strict=False)), dict(zip(kept, results[len(names) :], strict=True))

    @staticmethod
    def _read(port: dict, given: Any, batch: int | None = None) -> np.ndarray:
        name, shape = port["name"], tuple(port["shape"])
        if given is None:
            raise PolicyInputError(f"{name} is missing; expected an array [B{''.join(f', {n}' for n in shape)}]")
        array = np.asarray(given)
        if array.ndim != len(shape) + 1 or array.shape[1:] != shape or batch not in (None, array.shape[0]):
            rows = "B" if batch is None else batch
            raise PolicyInputError(f"{name} has shape {array.shape}; expected ({rows}, {', '.join(map(str, shape))})")
        kinds = array.dtype.kind, np.dtype(port["dtype"]).kind
        if kinds[0] != kinds[1] and not (kinds[1] == "f" and kinds[0] in "iub"):
            raise PolicyInputError(f"{name} has dtype {array.dtype}; expected {port['dtype']}")
        array = array.astype(port["dtype"], copy=False)
        if kinds[1] == "f" and not np.isfinite(array).all():
            raise PolicyInputError(f"{name} holds NaN or infinity, which a state would keep; give finite numbers")
        return array


def _leaf(observation: Any, port: dict) -> Any:
    for key in port["path"]:
        if not isinstance(observation, dict):
            raise PolicyInputError(f"the observation is not a dict; expected one with {port['name']!r}")
        observation = observation.get(key)
    return observation


# -- the file ----------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Policy:
    """Return the policy of a file; this module plays other policy files than its own, too.

    Raises:
      PolicyFileError: there is no such file, it is broken, of another version, or without a numpy program.
    """
    contract = read_contract(path)
    if contract["program"] is None:
        raise PolicyFileError(
            f"this policy can be played by its policy.stablehlo only, with JAX: {contract['no_program']}"
        )
    with _opened(path) as file:
        names = [name for name in file.namelist() if name.startswith(WEIGHTS)]
        arrays = [np.load(io.BytesIO(file.read(name)), allow_pickle=False) for name in names]
    keys = [name.removeprefix(WEIGHTS).removesuffix(".npy") for name in names]
    return Policy(contract, dict(zip(keys, arrays, strict=True)))


def read_contract(path: str | os.PathLike[str]) -> dict:
    """Return policy.json of a file.

    Raises:
      PolicyFileError: as for `load`.
    """
    with _opened(path) as file:
        contract = json.loads(file.read("policy.json"))
    found = contract["format"], contract["format_version"]
    if found != (FORMAT, FORMAT_VERSION):
        raise PolicyFileError(
            f"the file is {found[0]!r} of version {found[1]!r}; this player reads {FORMAT!r} of version {FORMAT_VERSION}: "
            "play it with the player.py in the file"
        )
    return contract


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """Open a policy file, whose members have checksums; whatever is wrong with it is a PolicyFileError."""
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except PolicyFileError:
        raise
    except Exception as error:  # zipfile, json and numpy raise many kinds of errors for broken files
        raise PolicyFileError(
            f"{path} cannot be read as a policy ({error!r}); expected a file that `jsrl export` wrote, copied whole"
        ) from error


def describe(contract: dict) -> str:
    lines = [f"{contract['format']} {contract['format_version']}, from {contract['origin']}"]
    for kind, title in (("inputs", "input"), ("state", "state"), ("outputs", "output")):
        for port in contract[kind]:
            shape = ", ".join(["B", *map(str, port["shape"])])
            lines.append(f"  {title:<7} {port['name']}: {port['dtype']} [{shape}]")
    return "\n".join([*lines, *(f"  {line}" for line in contract["parity"])])
