"""Play an exported policy: this one file, numpy, and nothing else.

It is part of every policy file, so that it plays without jsrl and without JAX:

    import sys; sys.path.insert(0, "policy.zip")
    import player
    policy = player.load("policy.zip")
    action = policy(observation, is_first)  # batches [B, ...]

`python policy.zip` prints what the policy reads and returns.

A policy is a program: operations in execution order. Each reads values and makes new ones; a value is a number
in the program. An operation has the name and the meaning of its JAX primitive (jax.lax). In shapes, -k stands
for k times the batch size.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import threading
import zipfile
from typing import Any

import numpy as np

FORMAT, FORMAT_VERSION = "jsrl policy", 1
MAX_FILE_BYTES = 2**31
MAX_VALUES_PER_ROW = 2**26  # largest result of one operation
MEMBERS = ("policy.json", "weights.bin")
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "uint32", "int64", "float32", "float64")


class PolicyFileError(Exception):
    """A file that is no policy, is broken, or is of another version; the message says what to do."""


class PolicyInputError(ValueError):
    """An observation or a state that the policy cannot read; the message says which, and what was expected."""


# -- operations: (values, options, batch size) -> value ----------------------------------------------------------------


def _sizes(shape: list[int], batch: int) -> tuple[int, ...]:
    sizes = tuple(size if size >= 0 else -size * batch for size in shape)
    if math.prod(sizes) > MAX_VALUES_PER_ROW * max(batch, 1):
        raise PolicyFileError(f"an operation makes an array of shape {sizes}: too large; export the policy again")
    return sizes


def _broadcast(values: list, options: dict, batch: int) -> np.ndarray:
    shape = _sizes(options["shape"], batch)
    inner = [1] * len(shape)
    for axis, size in zip(options["dimensions"], values[0].shape, strict=True):
        inner[axis] = size
    return np.broadcast_to(values[0].reshape(inner), shape)


def _iota(values: list, options: dict, batch: int) -> np.ndarray:
    shape = _sizes(options["shape"], batch)
    counted = np.arange(shape[options["dimension"]], dtype=options["dtype"])
    return np.broadcast_to(counted.reshape([-1 if i == options["dimension"] else 1 for i in range(len(shape))]), shape)


def _slice(values: list, options: dict, batch: int) -> np.ndarray:
    ends = _sizes(options["stop"], batch)
    return values[0][tuple(map(slice, options["start"], ends, options["step"]))]


def _index(values: list, options: dict, batch: int) -> np.ndarray:
    at = dict(zip(options["axes"], options["at"], strict=True))
    return values[0][tuple(at.get(axis, slice(None)) for axis in range(values[0].ndim))]


def _pad(values: list, options: dict, batch: int) -> np.ndarray:
    x, fill = values
    shape = [size + low + high for size, (low, high) in zip(x.shape, options["edges"], strict=True)]
    padded = np.full(_sizes(shape, batch), fill, x.dtype)
    padded[tuple(slice(low, low + n) for n, (low, _) in zip(x.shape, options["edges"], strict=True))] = x
    return padded


def _dot(values: list, options: dict, batch: int) -> np.ndarray:
    x, y = values
    return np.tensordot(x, y, (options["x_axes"], options["y_axes"]))


def _windows(x: np.ndarray, size: list[int], step: list[int], edges: list, fill: float) -> np.ndarray:
    """Return the windows of images [N, H, W, C]: [N, h, w, C, window height, window width]."""
    if any(map(any, edges)):
        x = np.pad(x, ((0, 0), *map(tuple, edges), (0, 0)), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(x, tuple(size), axis=(1, 2))
    return windows[:, :: step[0], :: step[1]]


def _convolution(values: list, options: dict, batch: int) -> np.ndarray:
    """Convolve images with a kernel; their axes are moved to [N, H, W, C], [H, W, C, O], and back."""
    x, kernel = values[0].transpose(options["x_order"]), values[1].transpose(options["kernel_order"])
    windows = _windows(x, list(kernel.shape[:2]), options["step"], options["edges"], 0.0)
    out = np.tensordot(windows, kernel, ((4, 5, 3), (0, 1, 2)))
    return out.transpose(options["out_order"])


def _max_pool(values: list, options: dict, batch: int) -> np.ndarray:
    x = values[0].transpose(options["x_order"])
    windows = _windows(x, options["size"], options["step"], options["edges"], -np.inf)
    return windows.max(axis=(4, 5)).transpose(options["out_order"])


def _split(values: list, options: dict, batch: int) -> list:
    return np.split(values[0], np.cumsum(options["sizes"])[:-1].tolist(), axis=options["axis"])


def _erf(values: list, options: dict, batch: int) -> np.ndarray:
    flat = [math.erf(x) for x in values[0].ravel().tolist()]
    return np.asarray(flat, values[0].dtype).reshape(values[0].shape)


def _argmax(values: list, options: dict, batch: int) -> np.ndarray:
    return np.argmax(values[0], axis=options["axis"]).astype(options["dtype"])


def _plain(fn: Any) -> Any:
    return lambda values, options, batch: fn(*values)


def _reducing(fn: Any) -> Any:
    return lambda values, options, batch: fn(values[0], axis=tuple(options["axes"]))


ELEMENTWISE = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "exp": np.exp, "log": np.log,
    "expm1": np.expm1, "log1p": np.log1p, "sqrt": np.sqrt, "tanh": np.tanh, "atanh": np.arctanh, "sin": np.sin, "cos": np.cos,
    "pow": np.power, "square": np.square, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "eq": np.equal,
    "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "rsqrt": lambda x: np.asarray(1.0, x.dtype) / np.sqrt(x), "logistic": lambda x: 0.5 * (np.tanh(0.5 * x) + 1.0),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high), "select_n": lambda c, x, y: np.where(c, y, x),
}  # fmt: skip
OPERATIONS: dict[str, Any] = {
    **{name: _plain(fn) for name, fn in ELEMENTWISE.items()},
    "reduce_sum": _reducing(np.sum),
    "reduce_max": _reducing(np.max),
    "reduce_min": _reducing(np.min),
    "integer_pow": lambda values, options, batch: values[0] ** options["power"],
    "convert_element_type": lambda values, options, batch: values[0].astype(options["dtype"]),
    "reshape": lambda values, options, batch: values[0].reshape(_sizes(options["shape"], batch)),
    "transpose": lambda values, options, batch: values[0].transpose(options["order"]),
    "stack": lambda values, options, batch: np.stack(values, axis=options["axis"]),
    "concatenate": lambda values, options, batch: np.concatenate(values, axis=options["axis"]),
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "slice": _slice,
    "index": _index,
    "split": _split,
    "pad": _pad,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "reduce_window_max": _max_pool,
    "argmax": _argmax,
    "erf": _erf,
}


def run_program(program: dict, constants: dict[int, np.ndarray], arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of a program for its inputs, batches [B, ...]."""
    batch = arrays[0].shape[0]
    values = {**constants, **dict(zip(program["inputs"], arrays, strict=True))}
    with np.errstate(all="ignore"):
        for op in program["operations"]:
            out = OPERATIONS[op["op"]]([values[i] for i in op["in"]], op, batch)
            values.update(zip(op["out"], out if isinstance(out, list) else [out], strict=True))
    return [values[i] for i in program["outputs"]]


# -- the policy --------------------------------------------------------------------------------------------------------


class Policy:
    """An exported policy. It keeps the recurrent state of its last batch.

    Attributes:
      contract: policy.json as it is: inputs, state and outputs (name, dtype, shape of one row), action, parity, origin.
    """

    def __init__(self, contract: dict, constants: dict[int, np.ndarray]) -> None:
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
      PolicyFileError: there is no such file, it is broken, or it is of another version.
    """
    members = read_members(path)
    contract = _contract(members["policy.json"])
    program = contract["program"]
    if program is None:
        raise PolicyFileError(
            f"this policy can be played by its policy.stablehlo only, with JAX: {contract['no_program']}"
        )
    try:
        constants = _constants(contract["weights"], members["weights.bin"])
        policy = Policy(contract, constants)
        _check_operations(program)
        rows = [np.zeros((1, *port["shape"]), port["dtype"]) for port in _program_inputs(contract)]
        results = run_program(program, constants, rows)
        ports = [*contract["outputs"], *contract["state"]]
        expected = [((1, *port["shape"]), port["dtype"]) for port in ports]
    except PolicyFileError:
        raise
    except Exception as error:  # any error of a foreign program means that the file is wrong
        raise PolicyFileError(f"the program does not run: {error!r}; export the policy again") from error
    if [(x.shape, str(x.dtype)) for x in results] != expected:
        raise PolicyFileError("the program returns other arrays than the file says; export the policy again")
    return policy


def read_contract(path: str | os.PathLike[str]) -> dict:
    """Return policy.json of a file.

    Raises:
      PolicyFileError: as for `load`.
    """
    return _contract(read_members(path)["policy.json"])


def read_members(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the members of a policy file, name -> bytes, after checks of its size, digest and members.

    Raises:
      PolicyFileError: there is no such file, or it is broken or not a policy file.
    """
    try:
        if os.path.getsize(path) > MAX_FILE_BYTES:
            raise PolicyFileError(f"{path} has more than {MAX_FILE_BYTES} bytes; it is not a policy file")
        with open(path, "rb") as file:
            written = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise PolicyFileError(f"cannot read {path}: {error}; expected a file that `jsrl export` wrote") from error
    if hashlib.sha256(written[:-64]).hexdigest().encode() != written[-64:]:
        raise PolicyFileError(f"{path} is truncated, changed, or not a policy file; copy or export it again")
    try:
        with zipfile.ZipFile(io.BytesIO(written)) as opened:
            entries = opened.infolist()
            packed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED or e.flag_bits & 1]
            if packed or sum(e.file_size for e in entries) > len(written):
                raise PolicyFileError(f"{path} has compressed members {packed}; expected all to be stored as they are")
            members = {e.filename: opened.read(e) for e in entries}
    except PolicyFileError:
        raise
    except Exception as error:  # zipfile raises many kinds of errors for broken archives
        raise PolicyFileError(f"{path} is not a readable zip file: {error!r}; export the policy again") from error
    missing = [name for name in MEMBERS if name not in members]
    if missing or len(members) != len(entries):
        wrong = f"lacks {', '.join(missing)}" if missing else "has several members of the same name"
        raise PolicyFileError(f"{path} {wrong}; export the policy again")
    return members


def _contract(text: bytes) -> dict:
    try:
        contract = json.loads(text)
        found = contract.get("format"), contract.get("format_version")
    except (ValueError, AttributeError, RecursionError) as error:
        raise PolicyFileError(f"policy.json is not a JSON object: {error}; export the policy again") from error
    if found != (FORMAT, FORMAT_VERSION):
        raise PolicyFileError(
            f"the file is {found[0]!r} of version {found[1]!r}; this player reads {FORMAT!r} of version {FORMAT_VERSION}: "
            "play it with the player.py in the file"
        )
    lacking = {"inputs", "state", "outputs", "weights", "program", "no_program", "origin", "parity"} - set(contract)
    if lacking:
        raise PolicyFileError(f"policy.json lacks {sorted(lacking)}; export the policy again")
    return contract


def _constants(table: list[dict], raw: bytes) -> dict[int, np.ndarray]:
    constants, at = {}, 0
    for entry in table:
        if entry["dtype"] not in DTYPES or any(size < 0 for size in entry["shape"]):
            raise PolicyFileError(
                f"weights have dtype {entry['dtype']!r} and shape {entry['shape']}; expected {DTYPES}"
            )
        kind, count = np.dtype(entry["dtype"]).newbyteorder("<"), math.prod(entry["shape"])
        if at + count * kind.itemsize > len(raw):
            raise PolicyFileError(f"weights.bin has {len(raw)} bytes, fewer than policy.json says; export it again")
        array = np.frombuffer(raw, kind, count, at).reshape(entry["shape"]).astype(entry["dtype"], copy=False)
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise PolicyFileError(f"weights {entry['id']} hold NaN; export another snapshot")
        constants[entry["id"]] = array
        at += count * kind.itemsize
    if at != len(raw):
        raise PolicyFileError(f"weights.bin has {len(raw)} bytes, but policy.json declares {at}; export it again")
    return constants


def _program_inputs(contract: dict) -> list[dict]:
    first = [{"name": "is_first", "shape": [], "dtype": "bool"}] if contract["state"] else []
    return [*contract["inputs"], *first, *contract["state"]]


def _check_operations(program: dict) -> None:
    unknown = {op["op"] for op in program["operations"]} - set(OPERATIONS)
    if unknown:
        raise PolicyFileError(f"the program has operations that this player does not know: {sorted(unknown)}")


def describe(contract: dict) -> str:
    """Return what a policy reads and returns, one line each."""
    lines = [f"{contract['format']} {contract['format_version']}, from {contract['origin']}"]
    for kind, title in (("inputs", "input"), ("state", "state"), ("outputs", "output")):
        for port in contract[kind]:
            shape = ", ".join(["B", *map(str, port["shape"])])
            lines.append(f"  {title:<7} {port['name']}: {port['dtype']} [{shape}]")
    return "\n".join([*lines, *(f"  {line}" for line in contract["parity"])])
