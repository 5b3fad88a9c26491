"""Policy files: a zip with the contract (policy.json), weights, StableHLO, and the player that reads them."""

from __future__ import annotations

import hashlib
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
from jsrl.export import onnx_file, parity, player
from jsrl.export.function import PolicyFunction, policy_function
from jsrl.export.program import Program, reached, trace, without_unused
from jsrl.types import Continuous, EnvSpec, named_leaves

STABLEHLO = "policy.stablehlo"
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
    _check_finite(params)
    function, program, why = traced(agent, spec, params)
    steps = parity.rows_of(function, params.moments)
    reference = parity.play(function, parity.of_agent(function), steps)
    if Path(path).suffix == ".onnx":
        if program is None:
            raise ExportError(f"the policy cannot be written as ONNX: {why}; export a .zip or .stablehlo file")
        content = onnx_file.model(function, program)
        played = parity.play(function, onnx_file.reference_player(function, content), steps)
        _write(path, content)
        return [parity.compare("ONNX", function, played, reference)]
    exported = _stablehlo(function)
    report = [parity.compare("StableHLO", function, parity.play(function, _of_exported(exported), steps), reference)]
    if Path(path).suffix == ".stablehlo":
        _write(path, exported.serialize())
        return report
    if program is None:
        report.append(f"numpy: not exported: {why}")
    else:
        played = parity.play(function, _of_program(program), steps)
        report.append(parity.compare("numpy", function, played, reference))
    _write(path, _packed(_contract(spec, function, origin, report, why), program, exported.serialize()))
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


def _check_finite(params: ActParams) -> None:
    for name, leaf in named_leaves(params):
        array = np.asarray(leaf)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ExportError(f"{name} holds numbers that are not finite; export another snapshot")


def traced(agent: Agent, spec: EnvSpec, params: ActParams) -> tuple[PolicyFunction, Program | None, str]:
    """Return the policy's function with the state that its outputs depend on, its program, or why there is none."""
    whole = policy_function(agent, spec, params)
    try:
        program = trace(whole)
        kept = _kept(whole, program)
        function = whole if len(kept) == len(whole.state) else policy_function(agent, spec, params, kept)
        return function, without_unused(trace(function)), ""
    except ExportError as error:
        return whole, None, str(error)


def _kept(function: PolicyFunction, program: Program) -> tuple[int, ...]:
    """Return the leaves of the core that affect the outputs, at once or through later states."""
    first_state = len(function.inputs) + 1
    num_outputs = len(function.outputs)
    kept: set[int] = set()
    while True:
        roots = (*program.outputs[:num_outputs], *(program.outputs[num_outputs + i] for i in kept))
        needed = reached(program, roots)
        found = {i for i in range(len(function.state)) if program.inputs[first_state + i] in needed}
        if found <= kept:
            return tuple(sorted(kept))
        kept |= found


def _stablehlo(function: PolicyFunction) -> Any:
    (batch,) = jax.export.symbolic_shape("b")
    try:
        return jax.export.export(jax.jit(function.call), platforms=PLATFORMS)(*function.arguments(batch))
    except Exception as error:
        raise ExportError(
            f"the policy cannot be traced for batches of any size: {error}. Its network must not depend on the batch size"
        ) from error


def _of_exported(exported: Any) -> parity.Player:
    compiled = jax.jit(exported.call)

    def call(arrays: list[np.ndarray]) -> list[np.ndarray]:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return [np.asarray(x) for x in compiled(*arrays)]

    return call


def _of_program(program: Program) -> parity.Player:
    operations = _as_json(program)
    return lambda arrays: player.run_program(operations, program.constants, arrays)


def _as_json(program: Program) -> dict[str, Any]:
    operations = [{"op": o.name, "in": o.inputs, "out": o.outputs, **o.options} for o in program.operations]
    return {"inputs": program.inputs, "outputs": program.outputs, "operations": operations}


def _contract(spec: EnvSpec, function: PolicyFunction, origin: str, report: list[str], why: str) -> dict[str, Any]:
    """Return what a policy file says about itself; report: its parity; why: the reason if it has no numpy program."""
    return {
        "format": player.FORMAT,
        "format_version": player.FORMAT_VERSION,
        "origin": origin,
        "action": _action(spec),
        "inputs": [port._asdict() for port in function.inputs],
        "state": [port._asdict() for port in function.state],
        "outputs": [port._asdict() for port in function.outputs],
        "parity": report,
        "no_program": why,
    }


def _action(spec: EnvSpec) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": type(spec.action).__name__}
    if isinstance(spec.action, Continuous):
        facts |= {"transform": spec.action.transform, "low": list(spec.action.low), "high": list(spec.action.high)}
    return facts


def _packed(contract: dict[str, Any], program: Program | None, stablehlo: bytes) -> bytes:
    constants = {} if program is None else program.constants
    little = {i: np.asarray(a, a.dtype.newbyteorder("<")) for i, a in sorted(constants.items())}
    contract["program"] = None if program is None else _as_json(program)
    contract["weights"] = [{"id": i, "shape": a.shape, "dtype": str(constants[i].dtype)} for i, a in little.items()]
    members = {
        "policy.json": json.dumps(contract, indent=1).encode(),
        "weights.bin": b"".join(a.tobytes() for a in little.values()),
        STABLEHLO: stablehlo,
        "player.py": Path(player.__file__).read_bytes(),
        "__main__.py": _MAIN.encode(),
    }
    return pack(members)


def _write(path: str | os.PathLike[str], content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error}; choose another place") from error


def pack(members: dict[str, bytes]) -> bytes:
    """Return a policy file's bytes: members stored uncompressed, and at the end the digest of everything before it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
        archive.comment = b"0" * 64
    written = packed.getvalue()[:-64]
    return written + hashlib.sha256(written).hexdigest().encode()
