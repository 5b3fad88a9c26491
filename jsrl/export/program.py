"""A policy's function as a program: the operations after tracing by JAX, with calls inlined and constants folded.

Nothing here depends on layers: the program is what JAX traces. An operation unknown to the player is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from jsrl.errors import ExportError
from jsrl.export import player
from jsrl.export.function import PolicyFunction

MAX_FOLDED = 2**24  # largest constant that replaces an operation


class Operation(NamedTuple):
    """One step of a program.

    name: as in `player.OPERATIONS`. inputs, outputs: numbers of values. options: for the player.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: dict[str, Any]


class Program(NamedTuple):
    """Operations in execution order.

    inputs, outputs: numbers of values, in the order of the function's arguments and results. constants: number -> array.
    shapes: number -> (shape with -k for k batches, dtype), of every value.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operations: tuple[Operation, ...]
    constants: dict[int, np.ndarray]
    shapes: dict[int, tuple[tuple[int, ...], str]]


class Refused(NamedTuple):
    """Placeholder for the options of an operation that the player does not know; contains the reason."""

    why: str


def trace(function: PolicyFunction) -> Program:
    """Return the function's program, for batches of any size.

    Raises:
      ExportError: numpy cannot play an operation of the function; the message names it.
    """
    (batch,) = jax.export.symbolic_shape("b")
    return _Tracer(batch).program(jax.make_jaxpr(function.call)(*function.arguments(batch)))


def reached(program: Program, outputs: tuple[int, ...]) -> set[int]:
    """Return the numbers of the values that these outputs depend on."""
    needed = set(outputs)
    for op in reversed(program.operations):
        if needed & set(op.outputs):
            needed.update(op.inputs)
    return needed


def without_unused(program: Program) -> Program:
    """Return the program without operations and constants that no output depends on.

    Raises:
      ExportError: a remaining operation is unknown to the player.
    """
    needed = reached(program, program.outputs)
    operations = tuple(op for op in program.operations if needed & set(op.outputs))
    refused = sorted({op.options["refused"] for op in operations if "refused" in op.options})
    if refused:
        raise ExportError(f"the policy uses operations that the numpy player does not know: {'; '.join(refused)}")
    constants = {i: _as_numpy(array) for i, array in program.constants.items() if i in needed}
    return program._replace(operations=operations, constants=constants)


def _as_numpy(array: Any) -> np.ndarray:
    found = np.asarray(array)
    if str(found.dtype) not in player.DTYPES:
        raise ExportError(f"the policy computes in {found.dtype}, which the numpy player does not know")
    return found


class _Tracer:
    """Converts a jaxpr into a program."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._operations: list[Operation] = []
        self._constants: dict[int, Any] = {}
        self._shapes: dict[int, tuple[tuple[int, ...], str]] = {}

    def program(self, closed: Any) -> Program:
        """Return the program of a closed jaxpr."""
        inputs = [self._value(variable.aval) for variable in closed.jaxpr.invars]
        outputs = self._inline(closed.jaxpr, [self._constant(c) for c in closed.consts], inputs)
        program = Program(tuple(inputs), tuple(outputs), tuple(self._operations), self._constants, self._shapes)
        return program

    def _value(self, aval: Any) -> int:
        number = len(self._shapes)
        self._shapes[number] = tuple(map(self.size, aval.shape)), str(aval.dtype)
        return number

    def _constant(self, array: Any) -> int:
        array = array if hasattr(array, "aval") else np.asarray(array)
        number = self._value(array)
        self._constants[number] = array
        return number

    def size(self, size: Any) -> int:
        """Return a size as a number; -k for k batches."""
        if not jax.export.is_symbolic_dim(size):
            return int(size)
        times = size // self._batch
        if jax.export.is_symbolic_dim(times) or times * self._batch != size:
            raise ExportError(f"the policy makes arrays of {size} rows for b observations; expected a multiple of b")
        return -int(times)

    def _inline(self, jaxpr: Any, constants: list[int], inputs: list[int]) -> list[int]:
        """Append the operations of a jaxpr; return the numbers of its results."""
        numbers = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

        def number_of(atom: Any) -> int:
            if not isinstance(atom, Literal):
                return numbers[atom]
            aval: Any = atom.aval
            return self._constant(np.asarray(atom.val, aval.dtype))

        for eqn in jaxpr.eqns:
            read = [number_of(atom) for atom in eqn.invars]
            numbers.update(zip(eqn.outvars, self._equation(eqn, read), strict=True))
        return [number_of(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[int]) -> list[int]:
        name = eqn.primitive.name
        if name == "platform_index":
            return [self._constant(np.asarray(_default_platform(eqn.params["platforms"]), np.int32))]
        if name == "cond" and inputs[0] in self._constants:
            branch = eqn.params["branches"][int(self._constants[inputs[0]])]
            return self._inline(branch.jaxpr, [self._constant(c) for c in branch.consts], inputs[1:])
        inner = _inner(eqn)
        if inner is not None:
            return self._inline(inner.jaxpr, [self._constant(c) for c in inner.consts], inputs)
        if name in ("copy", "copy_p", "optimization_barrier", "stop_gradient"):
            return inputs
        if all(i in self._constants for i in inputs) and self._is_static(eqn):
            return self._fold(eqn, inputs)
        outputs = [self._value(variable.aval) for variable in eqn.outvars]
        self._append(eqn, inputs, outputs)
        return outputs

    def _is_static(self, eqn: Any) -> bool:
        shapes = [variable.aval.shape for variable in eqn.outvars]
        symbols = any(jax.export.is_symbolic_dim(size) for shape in shapes for size in shape)
        return not symbols and all(np.prod(shape) <= MAX_FOLDED for shape in shapes)

    def _fold(self, eqn: Any, inputs: list[int]) -> list[int]:
        values = [self._constants[i] for i in inputs]
        values = [jnp.asarray(v) if isinstance(v, np.ndarray) else v for v in values]
        made = eqn.primitive.bind(*values, **eqn.params)
        return [self._constant(value) for value in (made if eqn.primitive.multiple_results else [made])]

    def _append(self, eqn: Any, inputs: list[int], outputs: list[int]) -> None:
        name = eqn.primitive.name
        if name == "gather":
            index = self._constants.get(inputs[1])
            options, inputs = _index_options(eqn, index), inputs[:1]
            name = "index"
        elif name == "pad" and self._constants.get(inputs[1]) is None:
            options = Refused("a padding value that is computed")
        elif name in player.ELEMENTWISE:
            options = _elementwise_options(eqn)
        else:
            convert = OPTIONS.get(name)
            options = Refused(name) if convert is None else convert(eqn, self)
            name = SAME_AS_RESHAPE.get(name, name)
        if isinstance(options, Refused):
            options = {"refused": options.why}
        kinds = {str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars)}
        if not kinds <= set(player.DTYPES):
            options = {"refused": f"{eqn.primitive.name} of {', '.join(sorted(kinds - set(player.DTYPES)))}"}
        self._operations.append(Operation(name, tuple(inputs), tuple(outputs), options))


def _default_platform(platforms: Any) -> int:
    """Return which branch runs on an unnamed platform (not the branch for CPUs)."""
    return next(i for i, names in enumerate(platforms) if names is None)


def _inner(eqn: Any) -> Any:
    """Return the closed jaxpr of an equation that is only a call, or None."""
    if eqn.primitive.name not in (
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "remat",
        "checkpoint",
    ):
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = eqn.params.get(key)
        if found is not None:
            return found if hasattr(found, "consts") else ClosedJaxpr(found, ())
    return None


# -- options of operations, from those of JAX's primitives --------------------------------------------------------------


def _elementwise_options(eqn: Any) -> dict | Refused:
    whole = {"and", "or", "not"} & {eqn.primitive.name} and str(eqn.invars[0].aval.dtype) != "bool"
    whole = whole or (eqn.primitive.name == "div" and not jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.floating))
    if whole or (eqn.primitive.name == "select_n" and len(eqn.invars) != 3):
        return Refused(f"{eqn.primitive.name} of integers")
    return {}


def _index_options(eqn: Any, index: Any) -> dict | Refused:
    """Return x[..., i, ..., j] with constant i and j, the only form of `gather` that the player knows."""
    numbers, sizes, operand = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], eqn.invars[0].aval.shape
    axes = tuple(numbers.start_index_map)
    refused = Refused("gather (indexing by an array)")
    if index is None or np.shape(index) != (len(axes),) or sorted(numbers.collapsed_slice_dims) != sorted(axes):
        return refused
    at = [int(i) for i in np.asarray(index)]
    whole = all(sizes[i] == operand[i] for i in range(len(sizes)) if i not in axes)
    if not whole or any(not 0 <= i < operand[axis] for i, axis in zip(at, axes, strict=True)):
        return refused
    return {"axes": list(axes), "at": at}


def _dot_options(eqn: Any, tracer: _Tracer) -> dict | Refused:
    (x_axes, y_axes), batches = eqn.params["dimension_numbers"]
    if any(batches):
        return Refused("dot_general over batches of matrices")
    return {"x_axes": list(map(int, x_axes)), "y_axes": list(map(int, y_axes))}


def _convolution_options(eqn: Any, tracer: _Tracer) -> dict | Refused:
    p, numbers = eqn.params, eqn.params["dimension_numbers"]
    plain = p["feature_group_count"] == p["batch_group_count"] == 1 and len(numbers.lhs_spec) == 4
    if not plain or any(d != 1 for d in (*p["lhs_dilation"], *p["rhs_dilation"])):
        return Refused("conv_general_dilated with groups, dilation, or not two axes")
    x, kernel, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    # specs: (batch, feature, rows, columns) of images, (out, in, rows, columns) of kernels
    return {
        "x_order": [x[0], x[2], x[3], x[1]],
        "kernel_order": [kernel[2], kernel[3], kernel[1], kernel[0]],
        "out_order": [int(i) for i in np.argsort([out[0], out[2], out[3], out[1]])],
        "step": list(p["window_strides"]),
        "edges": [list(edge) for edge in p["padding"]],
    }


def _pool_options(eqn: Any, tracer: _Tracer) -> dict | Refused:
    p = eqn.params
    size, step, edges = p["window_dimensions"], p["window_strides"], p["padding"]
    axes = [i for i, n in enumerate(size) if n > 1]
    still = [i for i in range(len(size)) if i not in axes]
    idle = all(step[i] == 1 and tuple(edges[i]) == (0, 0) for i in still)
    if (
        len(size) != 4
        or len(axes) != 2
        or not idle
        or any(d != 1 for d in (*p["base_dilation"], *p["window_dilation"]))
    ):
        return Refused("reduce_window_max not over two of four axes, or with dilation")
    order = [still[0], *axes, still[1]]
    return {
        "x_order": order,
        "out_order": [int(i) for i in np.argsort(order)],
        "size": [size[i] for i in axes],
        "step": [step[i] for i in axes],
        "edges": [list(edges[i]) for i in axes],
    }


def _pad_options(eqn: Any, tracer: _Tracer) -> dict | Refused:
    edges = eqn.params["padding_config"]
    if any(inner or low < 0 or high < 0 for low, high, inner in edges):
        return Refused("pad inside or by less than nothing")
    return {"edges": [[low, high] for low, high, _ in edges]}


def _slice_options(eqn: Any, tracer: _Tracer) -> dict | Refused:
    start, stop = eqn.params["start_indices"], eqn.params["limit_indices"]
    step = eqn.params["strides"] or (1,) * len(start)
    return {"start": list(map(int, start)), "stop": [tracer.size(n) for n in stop], "step": list(map(int, step))}


def _shape(eqn: Any, tracer: _Tracer) -> list[int]:
    return [tracer.size(n) for n in eqn.outvars[0].aval.shape]


def _dtype(eqn: Any) -> str:
    return str(eqn.outvars[0].aval.dtype)


def _axes(eqn: Any, tracer: _Tracer) -> dict | Refused:
    return {"axes": list(map(int, eqn.params["axes"]))}


SAME_AS_RESHAPE = {"squeeze": "reshape", "expand_dims": "reshape"}
OPTIONS: dict[str, Callable[[Any, _Tracer], dict | Refused]] = {
    "reduce_sum": _axes,
    "reduce_max": _axes,
    "reduce_min": _axes,
    "integer_pow": lambda eqn, tracer: {"power": int(eqn.params["y"])},
    "convert_element_type": lambda eqn, tracer: {"dtype": _dtype(eqn)},
    "reshape": lambda eqn, tracer: {"shape": _shape(eqn, tracer)},
    "squeeze": lambda eqn, tracer: {"shape": _shape(eqn, tracer)},
    "expand_dims": lambda eqn, tracer: {"shape": _shape(eqn, tracer)},
    "transpose": lambda eqn, tracer: {"order": list(map(int, eqn.params["permutation"]))},
    "stack": lambda eqn, tracer: {"axis": int(eqn.params["axis"])},
    "concatenate": lambda eqn, tracer: {"axis": int(eqn.params["dimension"])},
    "broadcast_in_dim": lambda eqn, tracer: {
        "shape": _shape(eqn, tracer),
        "dimensions": list(map(int, eqn.params["broadcast_dimensions"])),
    },
    "iota": lambda eqn, tracer: {
        "shape": _shape(eqn, tracer),
        "dtype": _dtype(eqn),
        "dimension": int(eqn.params["dimension"]),
    },
    "slice": _slice_options,
    "split": lambda eqn, tracer: {"sizes": list(map(int, eqn.params["sizes"])), "axis": int(eqn.params["axis"])},
    "pad": _pad_options,
    "dot_general": _dot_options,
    "conv_general_dilated": _convolution_options,
    "reduce_window_max": _pool_options,
    "argmax": lambda eqn, tracer: {"axis": int(eqn.params["axes"][0]), "dtype": _dtype(eqn)},
    "erf": lambda eqn, tracer: {},
}
