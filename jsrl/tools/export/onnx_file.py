"""A policy's program as an ONNX model, written with the package `onnx` (the extra of that name), without torch.

Inputs, state and outputs have the names of policy.json; is_first is an input if there is a state, and the new state's
names start with `next_`. The batch size is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jsrl.errors import ExportError
from jsrl.extras import import_extra
from jsrl.tools.export.function import PolicyFunction
from jsrl.tools.export.program import Program

OPSET, IR_VERSION = 18, 9


def model(function: PolicyFunction, program: Program) -> bytes:
    """Return the ONNX model of a function's program, as bytes.

    Raises:
      MissingExtra: onnx is not installed. ExportError: the model is not valid.
    """
    onnx = import_extra("onnx", "onnx", "an ONNX file")

    def kind(dtype: str) -> int:
        return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def value(name: str, row: Any) -> Any:
        return onnx.helper.make_tensor_value_info(name, kind(row.dtype), ["batch", *row.shape[1:]])

    nodes = [
        onnx.helper.make_node(op, read, made, **{k: kind(v) if k == "to" else v for k, v in attributes.items()})
        for op, read, made, attributes in program.nodes
    ]
    rows = [port.zeros(1) for port in (*function.outputs, *function.state)]
    graph = onnx.helper.make_graph(
        nodes,
        "policy",
        [value(name, row) for name, row in zip(program.inputs, function.arguments(1), strict=True)],
        [value(name, row) for name, row in zip(program.outputs, rows, strict=True)],
        [onnx.numpy_helper.from_array(array, name) for name, array in program.constants.items()],
    )
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    made = onnx.helper.make_model(graph, producer_name="jsrl", opset_imports=opsets, ir_version=IR_VERSION)
    try:
        onnx.checker.check_model(made, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the ONNX model is not valid: {error}; export without it, and report this") from error
    return made.SerializeToString()


def reference_player(program: Program, written: bytes) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """Return a model as a player, run by the reference implementation of the package onnx."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(written)
    return lambda arrays: list(evaluator.run(None, dict(zip(program.inputs, arrays, strict=True))))
