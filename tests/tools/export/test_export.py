"""Exported policies: their outputs, and which files are refused."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import threading
import types
import zipfile

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jsrl.agents.base import ActOutput, ActParams, Agent
from jsrl.agents.normalization import ACTION_MASK
from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.agents.r2d2 import R2D2Config, r2d2
from jsrl.agents.sac import SACConfig, sac
from jsrl.cli import export
from jsrl.control.run import run
from jsrl.envs.spaces import action_layout, checked
from jsrl.errors import ExportError, MissingExtra, SnapshotError, SpecMismatch
from jsrl.experiment import Experiment
from jsrl.networks.model import NetworkConfig
from jsrl.references.reference import from_json, to_json
from jsrl.tools.export import file, parity, player
from jsrl.tools.export.function import PolicyFunction, Port, exported_function, policy_function
from jsrl.tools.policy import Policy, check_leaves, load_policy
from jsrl.types import (
    ArraySpec,
    Continuous,
    Discrete,
    EnvSpec,
    GameSpec,
    MultiDiscrete,
    Seat,
    to_environment,
)
from tests.marks import marked

VECTOR, IMAGE = ArraySpec((5,), "float32"), ArraySpec((36, 36, 4), "uint8")
SMALL = NetworkConfig(hidden=(8,))
CASES = {
    "mlp": lambda: (ppo(PPOConfig(network=SMALL), of := EnvSpec(VECTOR, Discrete(3))), of),
    "cnn": lambda: (ppo(PPOConfig(), of := EnvSpec(IMAGE, Discrete(3))), of),
    "lstm": lambda: (ppo(recurrent("lstm"), of := EnvSpec(VECTOR, Discrete(3))), of),
    "gru": lambda: (ppo(recurrent("gru"), of := EnvSpec(VECTOR, Discrete(3))), of),
    "masked": lambda: (ppo(PPOConfig(network=SMALL), of := EnvSpec(masked(), Discrete(4))), of),
    "gaussian": lambda: (ppo(PPOConfig(network=SMALL), of := EnvSpec(VECTOR, box("clip"))), of),
    "tanh": lambda: (
        sac(SACConfig(normalize_observations=True, network=SMALL), of := EnvSpec(VECTOR, box("squash"))),
        of,
    ),
    "r2d2": lambda: (r2d2(R2D2Config(network=recurrent("lstm").network), of := EnvSpec(VECTOR, Discrete(3))), of),
}
QUICK, NIGHTLY = {"mlp"}, {"cnn", "gru"}


def recurrent(core: str) -> PPOConfig:
    return PPOConfig(network=NetworkConfig(hidden=(8,), core=core, core_size=8))


def masked() -> dict:
    return {"x": VECTOR, ACTION_MASK: ArraySpec((4,), "bool")}


def box(transform: str) -> Continuous:
    return Continuous((-2.0, -1.0), (2.0, 3.0), transform)


@functools.cache
def exported(name: str, folder: str) -> tuple:
    """Return (path, agent, spec, params, report) of a case, its params and moments changed from their initial values."""
    agent, spec = CASES[name]()
    params = jax.device_get(jax.jit(agent.init)(jax.random.key(1))).params
    weights = jax.tree.map(
        lambda x: x * np.float32(1.5) + np.float32(1e-3) if x.dtype == np.float32 else x, params.weights
    )
    params = params._replace(weights=weights, moments=jax.tree.map(lambda x: x + np.float32(0.5), params.moments))
    path = f"{folder}/{name}.zip"
    return path, agent, spec, params, file.save(path, agent, spec, params, origin=name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("exported"))


@pytest.mark.parametrize(
    ("of_output", "of_state", "passes"), [(5e-6, 5e-5, True), (2e-5, 0.0, False), (0.0, 2e-4, False)]
)
def test_a_recurrent_state_may_differ_more_than_outputs(of_output: float, of_state: float, passes: bool) -> None:
    action, logits, state = Port("action", (), "int32"), Port("logits", (2,), "float32"), Port("core", (2,), "float32")
    function = PolicyFunction(lambda *_: (), (), (state,), (action, logits))
    true = [np.zeros(3, np.int32), np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)]
    found = [true[0], true[1] + np.float32(of_output), true[2] + np.float32(of_state)]
    with contextlib.nullcontext() if passes else pytest.raises(ExportError, match=r"0\.0001 in a recurrent state"):
        parity.compare("numpy", function, [found], [true])


def observations(spec: EnvSpec, rng: np.random.Generator, rows: int):
    def draw(leaf: ArraySpec) -> np.ndarray:
        scale = 255 if leaf.dtype == "uint8" else 1
        return (scale * rng.random((rows, *leaf.shape))).astype(leaf.dtype)

    if not isinstance(spec.observation, dict):
        return draw(spec.observation)
    mask = rng.random((rows, 4)) < 0.4
    mask[:, 2] = True
    return {"x": draw(VECTOR), ACTION_MASK: mask}


@pytest.mark.parametrize("name", marked(CASES, slow=CASES.keys() - QUICK - NIGHTLY, nightly=NIGHTLY))
def test_exported_policy_equals_the_agent(name, folder):
    path, agent, spec, params, report = exported(name, folder)
    assert [line.partition(":")[0] for line in report] == ["StableHLO", "numpy"]
    policy, rng = file.load(path), np.random.default_rng(3)
    assert policy.contract["parity"] == report
    act = jax.jit(functools.partial(agent.act, greedy=True))
    core = agent.initial_core(7)
    for step in range(3):
        seen, first = observations(spec, rng, 7), np.arange(7) % 3 == step
        if step == 0:
            first[:] = True
        output, core = act(params, jax.random.key(0), seen, first, core)
        wanted = to_environment(spec.action, np.asarray(output.action))
        np.testing.assert_allclose(policy(seen, first), wanted, atol=1e-5, rtol=0)
    assert [port["name"] for port in policy.contract["state"]] == {
        "lstm": ["state/0", "state/1"],
        "gru": ["state"],
        "r2d2": ["state/network/0", "state/network/1"],  # not the epsilon of its episode
    }.get(name, [])


@pytest.mark.parametrize("name", marked(CASES, slow={"lstm", "masked", "gaussian"}, nightly=NIGHTLY | {"tanh", "r2d2"}))
def test_onnxruntime_equals_the_exported_policy(name, folder):
    import onnxruntime

    path, agent, spec, params, _ = exported(name, folder)
    policy, rng = file.load(path), np.random.default_rng(4)
    (line,) = file.save(f"{folder}/{name}.onnx", agent, spec, params)
    assert line.startswith("ONNX: ")
    session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx", providers=["CPUExecutionProvider"])
    kept = policy.contract["state"]
    state = {port["name"]: rng.standard_normal((6, *port["shape"])).astype(port["dtype"]) for port in kept}
    seen, first = observations(spec, rng, 6), np.arange(6) == 2
    outputs, new_state = policy.step(seen, state, first)
    wanted = {**outputs, **{f"next_{key}": value for key, value in new_state.items()}}
    arrays = {port["name"]: seen[port["path"][0]] if port["path"] else seen for port in policy.contract["inputs"]}
    given = {**arrays, **({"is_first": first} if kept else {}), **state}
    assert [x.name for x in session.get_inputs()] == list(given)
    for got, (key, true) in zip(session.run(None, given), wanted.items(), strict=True):
        np.testing.assert_allclose(got, true, atol=1e-5, rtol=1e-5, err_msg=key)


def test_recurrent_state_is_passed_between_steps(folder, monkeypatch):
    policy = file.load(exported("lstm", folder)[0])
    rows = [np.full((2, 5), float(n), np.float32) for n in (1, 2)]
    firsts, run_program = [], player.run_program
    monkeypatch.setattr(player, "run_program", lambda *given: (firsts.append(given[2][1]), run_program(*given))[1])
    for _ in range(2):
        policy(rows[0])
    assert [first.tolist() for first in firsts] == [[True, True], [False, False]]  # where the caller does not say
    _, state = policy.step(rows[0])
    carried, _ = policy.step(rows[1], state, np.array([False, True]))
    fresh, _ = policy.step(rows[1])
    assert np.allclose(carried["logits"][1], fresh["logits"][1])
    assert not np.allclose(carried["logits"][0], fresh["logits"][0])


def loaded(name: str, folder: str) -> Policy:
    """The policy of a case, as `load_policy` returns it."""
    _, agent, spec, params, _ = exported(name, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jsrl.tools.policy.build_agent", lambda config, spec: agent)
        return Policy(Experiment(agent=PPOConfig()), spec, params, 0, {})


def test_greedy_and_sampled_calls_share_one_history(folder):
    policy, oracle = loaded("lstm", folder), file.load(exported("lstm", folder)[0])
    rows = 3 * np.random.default_rng(5).standard_normal((4, 64, 5)).astype(np.float32)
    for number, row in enumerate(rows):
        action, wanted = policy(row, greedy=number in (0, 3)), oracle(row)
    np.testing.assert_array_equal(action, wanted)
    assert not np.array_equal(oracle.step(rows[3])[0]["action"], wanted)  # the history counts


def test_a_player_plays_the_file_that_it_is_given():
    """An imported module stays the first file's, so that no other file may be its own without a word."""
    with pytest.raises(TypeError, match="path"):
        player.load()  # type: ignore[call-arg]


def in_a_thread(call) -> BaseException | None:
    """Return what a call raised in another thread."""
    raised = []

    def target():
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(60)
    return raised[0] if raised else None


def test_two_threads_do_not_mix_the_histories_of_a_recurrent_policy(folder):
    row = np.ones((2, 5), np.float32)
    for policy in (loaded("lstm", folder), file.load(exported("lstm", folder)[0])):
        policy(row)
        assert "mix their histories" in str(in_a_thread(lambda own=policy: own(row)))
        policy.reset()
        assert in_a_thread(lambda own=policy: own(row)) is None
    for policy in (loaded("mlp", folder), file.load(exported("mlp", folder)[0])):
        policy(row)
        assert in_a_thread(lambda own=policy: own(row)) is None


def test_a_mask_forbids_actions(folder):
    policy = file.load(exported("masked", folder)[0])
    for allowed in range(4):
        mask = np.arange(4)[None] == allowed
        outputs, _ = policy.step({"x": np.ones((1, 5), np.float32), ACTION_MASK: mask})
        assert outputs["action"].tolist() == [allowed]
        assert (outputs["logits"][0] == -1e9).tolist() == (~mask[0]).tolist()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (np.ones((1, 4), np.float32), "observation has shape \\(1, 4\\); expected \\(B, 5\\)"),
        (np.full((1, 5), "x"), "dtype <U1; expected float32"),
        (None, "observation is missing"),
        (np.full((1, 5), np.nan), "observation holds NaN or infinity"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(given, told, folder):
    with pytest.raises(player.PolicyInputError, match=told):
        file.load(exported("mlp", folder)[0])(given)


class Sorted(nn.Module):
    """A torso with an operation that the numpy player does not support."""

    @nn.compact
    def __call__(self, x):
        """Encode."""
        return jnp.sort(nn.Dense(8)(x))


def test_an_unknown_operation_goes_to_stablehlo_only(tmp_path):
    spec = EnvSpec(VECTOR, Discrete(3))
    agent = ppo(PPOConfig(network=NetworkConfig(torso=Sorted())), spec)
    report = file.save(tmp_path / "own.zip", agent, spec, jax.jit(agent.init)(jax.random.key(0)).params)
    assert report[1] == "numpy: not exported: the policy uses an operation that is exported to StableHLO only: sort"
    with pytest.raises(ExportError, match=r"cannot be written as ONNX: .*: sort"):
        file.save(tmp_path / "none.onnx", agent, spec, jax.jit(agent.init)(jax.random.key(0)).params)
    with pytest.raises(ExportError, match=r"by its policy.stablehlo only, with JAX: .*: sort"):
        file.load(tmp_path / "own.zip")


class Attends(nn.Module):
    """A torso with a product of matrices for each row of the batch."""

    @nn.compact
    def __call__(self, x):
        """Encode."""
        x = nn.Dense(8)(x).reshape(*x.shape[:-1], 4, 2)
        return jnp.einsum("...ij,...kj->...ik", x, x).reshape(*x.shape[:-2], 16)


def test_attention_is_played_with_numpy(tmp_path):
    spec = EnvSpec(VECTOR, Discrete(3))
    agent = ppo(PPOConfig(network=NetworkConfig(torso=Attends())), spec)
    report = file.save(tmp_path / "own.zip", agent, spec, jax.jit(agent.init)(jax.random.key(0)).params)
    assert report[1].startswith("numpy: 1000 rows, largest difference ")


def test_a_policy_that_depends_on_the_batch_size_is_refused(tmp_path):
    def act(params, key, seen, is_first, core, *, greedy):
        return ActOutput(jnp.zeros(len(range(seen.shape[0])), jnp.int32), seen), core

    agent = Agent(lambda key: None, lambda batch_size: (), act, None)
    for name in ("own.zip", "own.stablehlo"):
        with pytest.raises(ExportError, match=r"traced for batches of any size.* must not depend on the batch size"):
            file.save(tmp_path / name, agent, EnvSpec(VECTOR, Discrete(3)), ActParams((), ()))
    assert not list(tmp_path.iterdir())


def test_params_that_are_not_finite_are_refused(tmp_path):
    agent, spec = CASES["mlp"]()
    params = jax.tree.map(lambda x: x * jnp.nan, jax.jit(agent.init)(jax.random.key(0)).params)
    with pytest.raises(ExportError, match=r"weights/.* holds numbers that are not finite"):
        file.save(tmp_path / "policy.zip", agent, spec, params)
    assert not (tmp_path / "policy.zip").exists()


def test_the_suffix_stablehlo_is_the_bare_function(tmp_path, folder):
    path, agent, spec, params, _ = exported("mlp", folder)
    (line,) = file.save(tmp_path / "policy.stablehlo", agent, spec, params)
    assert line.startswith("StableHLO: ")
    assert "flatbuffers" in sys.modules  # jax.export needs it: once it does not, it can leave our dependencies
    function = jax.export.deserialize(bytearray((tmp_path / "policy.stablehlo").read_bytes()))
    rows = np.random.default_rng(0).standard_normal((5, *spec.observation.shape)).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(function.call)(rows)[0], file.load(path)(rows))


def test_a_file_names_the_version_of_its_policy(monkeypatch):
    monkeypatch.setattr("jsrl.tools.policy.save", lambda path, *given, origin, **options: [origin])
    spec = types.SimpleNamespace(name="CartPole-v1")
    resumed = types.SimpleNamespace(agent=None, spec=spec, params=None, updates=227)
    assert Policy.save(resumed, "policy.zip") == ["CartPole-v1, version 227"]


def test_missing_onnx_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    agent, spec = CASES["mlp"]()
    with pytest.raises(MissingExtra, match=r"pip install .*\[onnx\]"):
        file.save(tmp_path / "policy.onnx", agent, spec, jax.jit(agent.init)(jax.random.key(0)).params)


# -- broken files ------------------------------------------------------------------------------------------------------


def changed(tmp_path, folder: str, **contract) -> str:
    """Return the path of a file with another contract."""
    with zipfile.ZipFile(exported("mlp", folder)[0]) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    members["policy.json"] = json.dumps(json.loads(members["policy.json"]) | contract).encode()
    with zipfile.ZipFile(tmp_path / "changed.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return str(tmp_path / "changed.zip")


def test_a_file_of_another_version_is_refused(tmp_path, folder):
    with pytest.raises(player.PolicyFileError, match="version 99; this player reads"):
        player.load(changed(tmp_path, folder, format_version=99))
    for written in (b"", b"no policy"):
        (tmp_path / "broken.zip").write_bytes(written)
        with pytest.raises(player.PolicyFileError, match="cannot be read as a policy"):
            player.load(tmp_path / "broken.zip")
    with pytest.raises(ExportError, match=r"absent\.zip cannot be read as a policy"):
        file.load(tmp_path / "absent.zip")


def test_a_broken_file_is_refused_or_plays_as_the_whole_one(tmp_path, folder):
    """Checksums cover all that the player reads, but not the names and times of the zip."""
    with open(exported("mlp", folder)[0], "rb") as whole:
        written = whole.read()
    rng, rows = np.random.default_rng(0), np.ones((2, 5), np.float32)
    wanted, path, refused = player.load(exported("mlp", folder)[0]).step(rows)[0], tmp_path / "broken.zip", 0
    for _ in range(200):
        at = int(rng.integers(len(written)))
        path.write_bytes(written[:at])
        with pytest.raises(player.PolicyFileError):
            player.load(path)
        path.write_bytes(written[:at] + bytes([written[at] ^ (1 << rng.integers(8))]) + written[at + 1 :])
        try:
            played = player.load(path).step(rows)[0]
        except (player.PolicyFileError, KeyError):  # KeyError: another name of a weight
            refused += 1
        else:
            assert all(np.array_equal(played[name], wanted[name]) for name in wanted)
    assert refused > 10


# -- another process ---------------------------------------------------------------------------------------------------

ALONE = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {banned}:
            raise ImportError(name)
sys.meta_path.insert(0, Nowhere())
import zipfile
import numpy as np
for path in sys.argv[1:]:
    with np.load(path + ".npz") as rows:
        rows = dict(rows)
{play}
    np.savez(path + ".played.npz", *results)
"""
NUMPY = """
    sys.path.insert(0, path)
    import player  # that of the first file plays the others, too
    observation = rows["observation"] if "observation" in rows else {k.split("/")[1]: rows[k] for k in rows if "/" in k}
    state = {k: rows[k] for k in rows if k.startswith("state")}
    outputs, state = player.load(path).step(observation, state or None, rows["is_first"])
    results = [*outputs.values(), *state.values()]
"""
JAX = """
    import jax
    exported = jax.export.deserialize(zipfile.ZipFile(path).read("policy.stablehlo"))
    if not any(k.startswith("state") for k in rows):
        del rows["is_first"]
    results = jax.jit(exported.call)(*rows.values())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("play", "banned"), [(NUMPY, {"jsrl", "jax", "jaxlib", "flax"}), (JAX, {"jsrl", "flax"})])
def test_plays_in_a_process_without_jsrl(play, banned, tmp_path, folder):
    rng, wanted = np.random.default_rng(0), {}
    for name in (
        "mlp",
        "masked",
        "lstm",
        "tanh",
    ):  # all others differ in what the numbers are, not in how they are read
        path, agent, spec, params, _ = exported(name, folder)
        function, _ = exported_function(agent, spec, params)
        rows = parity.rows_of(function, params.moments)[1]
        state = [rng.standard_normal((len(rows[0]), *port.shape)).astype(port.dtype) for port in function.state]
        names = [
            *(port.name for port in function.inputs),
            *(["is_first"] if state else []),
            *(p.name for p in function.state),
        ]
        given = dict(zip(names, [*rows, *state], strict=True))
        np.savez(f"{path}.npz", **{"is_first": np.zeros(len(rows[0]), bool), **given} if not state else given)
        wanted[path] = jax.jit(function.call)(*rows, *state)
    program = ALONE.format(banned=banned, play=play)
    subprocess.run([sys.executable, "-c", program, *wanted], check=True, cwd=tmp_path, timeout=240)
    for path, results in wanted.items():
        with np.load(f"{path}.played.npz") as played:
            for got, true in zip(played.values(), results, strict=True):
                np.testing.assert_allclose(got, true, atol=1e-5 if play == NUMPY else 0, rtol=0, err_msg=path)


def test_actions_of_a_policy_are_numbers_of_the_environments_space():
    several = spaces.MultiDiscrete([2, 3], start=np.array([10, 20]))
    for space, action in (spaces.Discrete(3, start=-1), np.arange(3)), (several, np.array([[1, 2]])):
        layout = action_layout(space, "numbered", "clip")
        assert to_environment(layout.spec, action).tolist() == layout.convert(action).tolist()

    def act(params, key, seen, is_first, core, *, greedy):
        return ActOutput(seen, seen), core

    for actions, stored, sent in (
        ((Discrete(3), Discrete(3, 7)), [[0, 1]], [[0, 8]]),
        ((MultiDiscrete((2, 2), (1, 5)), MultiDiscrete((2, 2))), [[[0, 1], [0, 1]]], [[[1, 6], [0, 1]]]),
    ):
        seats = tuple(Seat(str(number), VECTOR, action) for number, action in enumerate(actions))
        view = from_json(to_json(GameSpec(seats).view(("0", "1"))))
        assert to_environment(view.action, np.array(stored)).tolist() == sent

    agent = Agent(lambda key: None, lambda batch_size: (), act, None)
    spec = EnvSpec(ArraySpec((), "int32"), Discrete(3, start=-1))
    assert policy_function(agent, spec, ()).call(np.arange(3))[0].tolist() == [-1, 0, 1]


def test_a_refusal_names_the_script_of_its_environment(tmp_path, monkeypatch):
    (tmp_path / "jsrl_captured_of_export.py").write_text('"""Definitions.\n\nFrom /home/me/train.py.\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    spec = EnvSpec(ArraySpec((3,), "float32"), Discrete(2), "jsrl_captured_of_export:Maze")
    with pytest.raises(SpecMismatch, match=r"^train\.py:Maze: observation is int64 \[3\]"):
        checked(np.zeros(3, np.int64), spec)


def test_a_policy_refuses_observations_that_it_does_not_read():
    spec = EnvSpec({"place": ArraySpec((3,), "float32"), "screen": ArraySpec((2, 2), "uint8")}, Discrete(2))
    place, screen = np.zeros((4, 3)), np.zeros((4, 2, 2), np.int64)
    seen = checked({"place": place.tolist(), "screen": screen}, spec)
    assert [(seen[name].dtype, seen[name].shape) for name in seen] == [("float32", (4, 3)), ("uint8", (4, 2, 2))]
    for wrong, told in {
        (
            "place",
            ((1,), "float32"),
        ): r"place is float32 \[1\]; expected float32 \[B, 3\]\..* jsrl\.extend\.encode\(env\.",
        ("screen", ((3, 2, 2), "uint8")): r"screen is uint8 \[3, 2, 2\]; expected uint8 \[4, 2, 2\]",
        ("screen", ((4, 2, 2), "float32")): "screen is float32",
    }.items():
        name, (shape, dtype) = wrong
        with pytest.raises(SpecMismatch, match=told):
            checked({"place": place, "screen": screen, name: np.zeros(shape, dtype)}, spec)
    with pytest.raises(SpecMismatch, match="observation/screen is missing"):
        checked({"place": place}, spec)
    with pytest.raises(SpecMismatch, match="observation/place is missing"):
        checked(place, spec)
    place[2, 1] = np.nan
    with pytest.raises(SpecMismatch, match=r"observation/place has nan in row 2, at \[1\]"):
        checked({"place": place, "screen": screen}, spec)


def test_params_that_do_not_fit_the_agent_are_refused():
    saved = {"weights/bias": np.zeros(3, np.float32), "weights/kernel": np.zeros((2, 3), np.float32)}
    check_leaves(saved, saved, "mine@best")
    for built, told in (
        (
            saved | {"weights/bias": np.zeros(4, np.float32)},
            r"weights/bias was float32\[3\] and is float32\[4\] now\. The environment's spaces",
        ),
        (saved | {"weights/more": np.zeros(4, np.float32)}, r"weights/more was absent and is float32\[4\] now"),
        ({"weights/bias": saved["weights/bias"]}, r"weights/kernel was float32\[2, 3\] and is absent now"),
    ):
        with pytest.raises(SnapshotError, match=told):
            check_leaves(saved, built, "mine@best")


@pytest.mark.slow
def test_file_describes_its_inputs_and_outputs(folder):
    path = exported("tanh", folder)[0]
    told = subprocess.run([sys.executable, path], check=True, capture_output=True, text=True, timeout=240).stdout
    assert "input   observation: float32 [B, 5]" in told
    assert "output  action: float32 [B, 2]" in told


@pytest.mark.slow
def test_command_exports_the_policy_of_a_run(tmp_path, capsys, monkeypatch):
    experiment = Experiment(agent=PPOConfig(network=SMALL, normalize_observations=True), total_env_steps=2000)
    run(experiment, placement="serial", runs_dir=str(tmp_path), name="short", display="quiet")
    at, written = ["--runs-dir", str(tmp_path)], str(tmp_path / "policy.zip")
    assert export.main(["short@latest", written, *at]) == 0
    assert capsys.readouterr().out.count("1000 of 1000 actions equal") == 2
    assert export.main(["short@latest", str(tmp_path / "policy.onnx"), *at]) == 0
    assert capsys.readouterr().out.count("1000 of 1000 actions equal") == 1
    rows = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    trained = load_policy("short", "latest", runs_dir=str(tmp_path))
    assert file.load(written)(rows).tolist() == trained(rows).tolist()
    assert export.main(["short@nothing", written, *at]) == 2
    changed = ppo(PPOConfig(network=NetworkConfig(hidden=(9,)), normalize_observations=True), trained.spec)
    monkeypatch.setattr("jsrl.tools.policy.build_agent", lambda agent, spec: changed)  # its code has changed
    capsys.readouterr()
    assert export.main(["short@latest", written, *at]) == 2
    assert "do not fit: weights/" in capsys.readouterr().err
