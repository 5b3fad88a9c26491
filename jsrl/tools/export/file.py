"""Policy files: a zip with the contract (policy.json), weights, StableHLO, and the player that reads them."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jsrl.agents.base import ActParams, Agent
from jsrl.errors import ExportError
from jsrl.extras import import_extra
from jsrl.tools.export import parity, player
from jsrl.tools.export.function import PolicyFunction, any_batch, exported_function
from jsrl.tools.export.program import Program
from jsrl.types import Continuous, EnvSpec, named_leaves

STABLEHLO = "policy.stablehlo"
OPSET, IR_VERSION = 18, 9  # of ONNX
PLATFORMS = ("cpu", "cuda", "tpu")
_MAIN = "import sys\n\nimport player\n\nprint(player.describe(player.read_contract(sys.argv[0])))\n"


def save(
    path: str | os.PathLike[str],
    agent: Agent,
    spec: EnvSpec,
    params: ActParams,
    *,
    origin: str = "jsrl",
) -> list[str]:
    """Write a policy file and return its parity report, one line per player.

    Args:
      path: `.onnx` and `.stablehlo` are these files alone; any other name is a zip with StableHLO and the numpy player.
      agent, spec, params: of the policy. origin: where the policy comes from, for readers.

    Raises:
      ExportError: params are not finite, the policy cannot be traced for batches of any size, a player differs from the agent,
        ONNX is wanted and lacks an operation of the policy, or the file cannot be written.
      MissingExtra: ONNX is wanted, and the package onnx is not installed.
    """
    for name, leaf in named_leaves(params):
        array = np.asarray(leaf)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ExportError(f"{name} holds numbers that are not finite; export another snapshot")
    function, program = exported_function(agent, spec, params)
    steps = parity.rows_of(function, params.moments)
    reference = parity.play(function, parity.of_agent(function), steps)

    def compared(name: str, plays: parity.Player) -> str:
        return parity.compare(name, function, parity.play(function, plays, steps), reference)

    if Path(path).suffix == ".onnx":
        if program.refused:
            raise ExportError(
                f"the policy cannot be written as ONNX: {program.refused}; export a .zip or .stablehlo file"
            )
        content = _onnx(function, program)
        report = [compared("ONNX", _of_onnx(program, content))]
    else:
        exported = _stablehlo(function)
        content = exported.serialize()
        report = [compared("StableHLO", _of_exported(exported))]
        if Path(path).suffix != ".stablehlo":
            plays = f"numpy: not exported: {program.refused}"
            report.append(plays if program.refused else compared("numpy", _of_program(program)))
            content = _packed(_contract(spec, function, program, origin, report), program, content)
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error}; choose another place") from error
    return report


def load(path: str | os.PathLike[str]) -> player.Policy:
    """Return the policy of a file, as a numpy player.

    Raises:
      ExportError: there is no such file, it is broken or of another version, or it has no numpy program.
    """
    try:
        return player.load(path)
    except player.PolicyFileError as error:
        raise ExportError(str(error)) from error


def _stablehlo(function: PolicyFunction) -> Any:
    (batch,) = jax.export.symbolic_shape("b")
    with any_batch():
        return jax.export.export(jax.jit(function.call), platforms=PLATFORMS)(*function.arguments(batch))


def _of_exported(exported: Any) -> parity.Player:
    compiled = jax.jit(exported.call)

    def call(arrays: list[np.ndarray]) -> list[np.ndarray]:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return [np.asarray(x) for x in compiled(*arrays)]

    return call


def _of_program(program: Program) -> parity.Player:
    return lambda arrays: player.run_program(program._asdict(), program.constants, arrays)


def _onnx(function: PolicyFunction, program: Program) -> bytes:
    """Return the ONNX model of a function's program, as bytes, written with the package `onnx` alone, without torch.

    Inputs, state and outputs have the names of policy.json; is_first is an input if there is a state, and the new state's
    names start with `next_`. The batch size is free.

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


def _of_onnx(program: Program, written: bytes) -> parity.Player:
    """Return a model as a player, run by the reference implementation of the package onnx."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(written)
    return lambda arrays: list(evaluator.run(None, dict(zip(program.inputs, arrays, strict=True))))


def _contract(
    spec: EnvSpec, function: PolicyFunction, program: Program, origin: str, report: list[str]
) -> dict[str, Any]:
    """Return what a policy file says about itself; report: its parity."""
    action: dict[str, Any] = {"kind": type(spec.action).__name__}
    if isinstance(spec.action, Continuous):
        action |= {"transform": spec.action.transform, "low": list(spec.action.low), "high": list(spec.action.high)}
    nodes = {"inputs": program.inputs, "outputs": program.outputs, "nodes": program.nodes}
    return {
        "format": player.FORMAT,
        "format_version": player.FORMAT_VERSION,
        "origin": origin,
        "action": action,
        "inputs": [port._asdict() for port in function.inputs],
        "state": [port._asdict() for port in function.state],
        "outputs": [port._asdict() for port in function.outputs],
        "parity": report,
        "program": None if program.refused else nodes,
        "no_program": program.refused,
    }


def _packed(contract: dict[str, Any], program: Program, stablehlo: bytes) -> bytes:
    members = {
        "policy.json": json.dumps(contract, indent=1).encode(),
        STABLEHLO: stablehlo,
        "player.py": Path(player.__file__).read_bytes(),
        "__main__.py": _MAIN.encode(),
    }
    for name, array in program.constants.items() if not program.refused else ():
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        members[f"{player.WEIGHTS}{name}.npy"] = content.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, written in members.items():
            archive.writestr(zipfile.ZipInfo(name), written)
    return packed.getvalue()
