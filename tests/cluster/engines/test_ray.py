"""Requests to Ray, and refusals, without Ray."""

from __future__ import annotations

import importlib.util
import queue
import sys
from types import SimpleNamespace

import pytest

from jsrl.cli import run as command
from jsrl.cluster.engines.ray import (
    RayNode,
    RayRequest,
    bundle_of,
    cpus_of,
    node_of,
    refusal,
    request_of,
    shortage,
    unusable,
)
from jsrl.cluster.engines.ray_driver import Driver, Refused
from jsrl.errors import ConfigError
from jsrl.experiment.options import RayOptions

BIG, SMALL = RayNode("10.0.0.6", 64, 4, 256_000), RayNode("10.0.0.7", 8, 0, 32_000)


def test_options_become_a_ray_request() -> None:
    options = RayOptions(cpus=4, memory_mb=2_000)
    asked = request_of(options, 2, "/opt/python", {"RAY_ADDRESS": "10.0.0.5:6379"})
    assert asked == RayRequest(2, "10.0.0.5:6379", 4, 0, 2_000, 60.0, "/opt/python") and asked.hosts == (
        "ray-1",
        "ray-2",
    )
    assert request_of(RayOptions(address="local"), 1, None, {"RAY_ADDRESS": "10.0.0.5:6379"}).address == "local"
    assert request_of(RayOptions(), 1, None, {"RAY_ADDRESS": "auto"}).address == ""
    assert RayRequest(**asked.entry) == asked  # as sent to the driver


def test_bundle_has_the_resources_of_each_host() -> None:
    assert bundle_of(RayRequest(1), 8) == {"CPU": 8}
    assert bundle_of(RayRequest(1, gpus=2, memory_mb=100), 8) == {"CPU": 8, "GPU": 2, "memory": 100 << 20}


@pytest.mark.parametrize(
    ("request_", "cpus"),
    [
        (RayRequest(1), 64),
        (RayRequest(2), 8),  # of the smaller one, because all bundles are equal
        (RayRequest(1, gpus=1), 64),
        (RayRequest(2, cpus=3), 3),
        (RayRequest(3), 8),
    ],
)
def test_without_a_number_hosts_have_the_cpus_of_their_nodes(request_: RayRequest, cpus: int) -> None:
    assert cpus_of(request_, [SMALL, BIG]) == cpus
    assert cpus_of(RayRequest(1), []) == 1  # a cluster that can still grow


def test_missing_cluster_resources_are_reported() -> None:
    assert not shortage(RayRequest(2), 8, [BIG, SMALL]) and not shortage(RayRequest(1, gpus=4), 64, [BIG, SMALL])
    asked = RayRequest(2, gpus=1)
    assert shortage(asked, 8, [BIG, SMALL]) == "only 1 of its nodes have as much"
    told = refusal(asked, 8, [BIG, SMALL], {"CPU": 70.0}, 60.0)
    assert "could not place 2 hosts with 8 CPUs, 1 GPUs each" in told and "within 60 s: only 1 of its nodes" in told
    assert "10.0.0.6 (64 CPUs, 4 GPUs, 256,000 MB), 10.0.0.7 (8 CPUs" in told and "free now: 70 CPUs, 0 GPUs" in told
    assert "others use them" in refusal(RayRequest(1), 8, [BIG], {}, 60.0)


def test_node_fields_are_read_from_ray() -> None:
    entry = {
        "NodeManagerAddress": "10.0.0.9",
        "Alive": True,
        "Resources": {"CPU": 4.0, "memory": 5.5 * (1 << 20)},
    }
    assert node_of(entry) == RayNode("10.0.0.9", 4, 0, 5)


@pytest.mark.parametrize(
    "address", ["ray://10.0.0.5:10001", "http://10.0.0.5:8265", "10.0.0.5", "10.0.0.5:x", ":6379", "h:99999"]
)
def test_invalid_head_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT of the head node"):
        RayRequest(1, address)


def test_missing_token_of_ray_is_named() -> None:
    """Ray's last error does not name it, but the one before."""
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.5:6379")
    told = unusable("10.0.0.5:6379", error)
    assert told == "Ray at 10.0.0.5:6379 cannot be used: Failed to connect to Ray cluster at 10.0.0.5:6379"
    error.__cause__ = RuntimeError("Failed to connect to GCS. Last connection error: RPC error: InvalidAuthToken: ...")
    assert "this host cannot be used: it requires its token: set RAY_AUTH_MODE=token" in unusable("", error)


def test_invalid_commands_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.main(["ppo_cartpole", "--ray.cpus", "2"]) == 2
    assert "--ray.cpus is given, but it needs --launcher ray" in capsys.readouterr().err
    words = ["ppo_cartpole", "--launcher", "ray"]
    assert command.main([*words, "--hosts", "a"]) == 2
    assert "--hosts cannot be combined with --launcher ray" in capsys.readouterr().err
    assert command.main([*words, "--placement", "serial"]) == 2  # before Ray starts
    assert "a serial run starts no workers" in capsys.readouterr().err
    assert command.main(["ppo_cartpole", "--min-hosts", "1"]) == 2
    assert "it needs --listen, --hosts or --launcher slurm" in capsys.readouterr().err
    assert command.main([*words, "--print"]) == 2
    assert "--print is given, but it needs --launcher slurm" in capsys.readouterr().err
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    assert command.main(words) == 2
    told = capsys.readouterr().err
    assert "needs the package ray, not installed here: " in told and "-m pip install" in told and "[ray]" in told


def test_hosts_requested_before_ray_has_placed_them_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the end of a driver: the next one gets the requests at once, and waits for its nodes first."""
    group = SimpleNamespace(wait=lambda timeout_s: next(placed))
    util = SimpleNamespace(placement_group=lambda bundles, **options: group)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=list, util=util))
    placed, lines = iter([False, False, True]), queue.SimpleQueue[str | None]()
    driver = Driver(RayRequest(2, cpus=1), lines, lambda facts: None)
    requests = ['{"host": "ray-1"}', '{"host": "ray-2"}']
    for line in requests:
        lines.put(line)
    driver._place(is_local=False)
    assert [lines.get_nowait() for _ in requests] == requests
    placed = iter([False])
    lines.put(None)
    with pytest.raises(Refused, match="ended before Ray had placed"):
        driver._place(is_local=False)


def test_hosts_have_the_cpus_of_the_nodes_that_an_autoscaler_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less than a whole node, Ray's autoscaler would not replace it when it is lost."""
    nodes, asked, removed, told = [], [], [], []

    def placement_group(bundles: list[dict[str, int]], **options: str) -> SimpleNamespace:
        asked.append((options["name"], bundles))
        nodes[:] = [{"Alive": True, "NodeManagerAddress": "10.0.0.7", "Resources": {"CPU": 8.0}}] * 2
        return SimpleNamespace(wait=lambda timeout_s: True, number=len(asked))

    util = SimpleNamespace(
        placement_group=placement_group, remove_placement_group=lambda group: removed.append(group.number)
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(nodes=lambda: nodes, util=util))
    driver = Driver(RayRequest(2), queue.SimpleQueue(), told.append)
    driver._place(is_local=False)
    assert [bundles for _, bundles in asked] == [[{"CPU": 1}] * 2, [{"CPU": 8}] * 2] and removed == [1]
    assert len({name for name, _ in asked}) == 2
    driver._place(is_local=False)
    assert len(asked) == 3
