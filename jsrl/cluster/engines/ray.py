"""A run's request to Ray: a bundle for each host, each on a separate node; and messages if that is impossible.

Pure functions; jsrl.cluster.engines.ray_driver talks to Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jsrl.errors import ConfigError, counted
from jsrl.experiment.options import RayOptions

LOCAL = "local"  # as an address: the run's own local Ray
MB = 1 << 20


@dataclass(frozen=True)
class RayRequest:
    """A request to Ray.

    Attributes:
      num_hosts: for workers. address: of Ray's head, LOCAL, or empty: the Ray of this host, else a local one.
      cpus: of each host; 0: those of its node. gpus, memory_mb: of each host; memory_mb 0: any.
      place_s: how long to wait for the nodes. python: interpreter there that has jsrl; empty: Ray's own.
    """

    num_hosts: int
    address: str = ""
    cpus: int = 0
    gpus: int = 0
    memory_mb: int = 0
    place_s: float = 60.0
    python: str = ""

    def __post_init__(self) -> None:
        check_address(self.address)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of the hosts; a name stays when another node replaces a lost one."""
        return tuple(f"ray-{number}" for number in range(1, self.num_hosts + 1))

    @property
    def entry(self) -> dict[str, Any]:
        return asdict(self)


def request_of(options: RayOptions, num_hosts: int, python: str | None, environment: Mapping[str, str]) -> RayRequest:
    """Return the request of the options; without an address it uses RAY_ADDRESS."""
    address = options.address or environment.get("RAY_ADDRESS", "")
    given = {name: getattr(options, name) or 0 for name in ("cpus", "gpus", "memory_mb")}
    return RayRequest(
        num_hosts, "" if address == "auto" else address, place_s=options.place_s, python=python or "", **given
    )


def check_address(address: str) -> None:
    if address in ("", LOCAL):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"Ray's address is {address!r}; expected HOST:PORT of the head node, such as 10.0.0.5:6379, as `ray start --head` "
            "prints it, or local (--ray.address or RAY_ADDRESS). From outside of the cluster submit the run: "
            "`ray job submit -- jsrl run NAME --launcher ray`."
        )


def lacks_token(error: BaseException) -> bool:
    """Return whether Ray refused a connection for want of its token; its own last error does not say so."""
    cause = error.__cause__ or error.__context__
    return "InvalidAuthToken" in str(error) or (cause is not None and lacks_token(cause))


def unusable(address: str, error: Exception) -> str:
    """Return the message for a Ray to which no connection can be made."""
    if lacks_token(error):
        why = (
            "it requires its token: set RAY_AUTH_MODE=token, and have the token in ~/.ray/auth_token or RAY_AUTH_TOKEN."
        )
    else:
        why = str(error)
    return f"Ray at {address or 'this host'} cannot be used: {why}"


@dataclass(frozen=True)
class RayNode:
    """A living node of a cluster: its IP address and its resources, used or not."""

    address: str
    cpus: int
    gpus: int
    memory_mb: int

    def __str__(self) -> str:
        return f"{self.address} ({self.cpus} CPUs, {self.gpus} GPUs, {self.memory_mb:,} MB)"


def node_of(entry: Mapping[str, Any]) -> RayNode:
    has = entry["Resources"]
    return RayNode(
        entry["NodeManagerAddress"], int(has.get("CPU", 0)), int(has.get("GPU", 0)), int(has.get("memory", 0)) // MB
    )


def cpus_of(request: RayRequest, nodes: Sequence[RayNode]) -> int:
    """Return the CPUs of each bundle: as requested, else all of a node, among the largest nodes that have the rest."""
    if request.cpus:
        return request.cpus
    fit = [node for node in nodes if node.gpus >= request.gpus and node.memory_mb >= request.memory_mb] or list(nodes)
    most = sorted((node.cpus for node in fit), reverse=True)[: request.num_hosts]
    return max(1, min(most, default=1))


def bundle_of(request: RayRequest, cpus: int) -> dict[str, int]:
    more = {"GPU": request.gpus, "memory": request.memory_mb * MB}
    return {"CPU": cpus} | {name: amount for name, amount in more.items() if amount}


def shortage(request: RayRequest, cpus: int, nodes: Sequence[RayNode]) -> str:
    """Return why the nodes cannot hold the hosts even when they are idle, as text; empty: they can."""
    fit = [
        n for n in nodes if n.cpus >= cpus and n.gpus >= request.gpus and n.memory_mb >= request.memory_mb
    ]  # fmt: skip
    return "" if len(fit) >= request.num_hosts else f"only {len(fit)} of its nodes have as much"


def hosts_text(request: RayRequest, cpus: int) -> str:
    each = f"{cpus} CPUs" + (f", {request.gpus} GPUs" if request.gpus else "")
    each += f", {request.memory_mb:,} MB" if request.memory_mb else ""
    return f"{counted(request.num_hosts, 'host')} with {each} each"


def refusal(
    request: RayRequest, cpus: int, nodes: Sequence[RayNode], free: Mapping[str, float], waited_s: float
) -> str:
    """Return the message for hosts that could not be placed. free: resources that are unused now."""
    why = shortage(request, cpus, nodes) or "others use them"
    return (
        f"Ray could not place {hosts_text(request, cpus)}, on a node of its own each, within "
        f"{waited_s:g} s: {why}. The cluster has {counted(len(nodes), 'node')}: {', '.join(map(str, nodes)) or 'none'}; "
        f"free now: {free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs. Ask for less with --num-hosts, --ray.cpus, "
        "--ray.gpus or --ray.memory-mb, add nodes with `ray start --address HEAD:PORT`, or wait longer with --ray.place-s."
    )
