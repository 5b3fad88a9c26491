"""Results of a simulated run: throughput, use of resources, lags, and the bottleneck, as text."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from jsrl.errors import ConfigError
from jsrl.tools.simulation.model import Model
from jsrl.tools.simulation.system import System
from jsrl.tools.simulation.times import ServiceTimes

CORES, OUT, INTO, GPU = "cores", "network out", "network into", "accelerators"
UPDATES, INFERENCE, ENVIRONMENTS = "updates", "inference", "environments"
ROUND_TRIPS = "round trips"
FULL = 0.9  # above this use a resource limits a run, whatever else waits
BUSY = 0.6  # below this use the latency of messages is the limit
MOST_S = 3600.0
_MOST_UPDATES = 40


@dataclass(frozen=True)
class Outcome:
    """The results of a simulated run, over its steady part.

    Attributes:
      seconds: simulated. env_steps_per_s: trained. updates_per_s.
      used: (what, host or worker) -> its use, 0-1.
      shares: activity of actors (`env`), or of others after a slash (`updates/wait_batch`) -> share of their time.
      lags: of trained trajectories, in updates -> their number. dropped: share of trajectories that were too old.
      batch_rows: mean rows of a server's batch; 0 without servers. deaths: of actors.
      others_cores: that other programs used, see HostFacts.busy_cores; of all machines.
      rate: env steps/s trained, in ten parts of the time.
    """

    seconds: float
    env_steps_per_s: float
    updates_per_s: float
    used: Mapping[tuple[str, str], float]
    shares: Mapping[str, float]
    lags: Mapping[int, int] = field(default_factory=dict)
    dropped: float = 0.0
    batch_rows: float = 0.0
    deaths: int = 0
    rate: tuple[float, ...] = ()
    others_cores: float = 0.0

    @property
    def bottleneck(self) -> tuple[str, str]:
        return name_bottleneck(self.used)


def name_bottleneck(used: Mapping[tuple[str, str], float]) -> tuple[str, str]:
    """Return what limits a run, from measured or simulated use of its resources.

    A full core or link slows everything that uses it, so it comes before the workers that seem busy because of it.
    """
    for what in (CORES, OUT, INTO, GPU):
        full = {key: share for key, share in used.items() if key[0] == what and share >= FULL}
        if full:
            return max(full, key=lambda key: full[key])
    best = max(used, key=lambda key: used[key])
    return best if used[best] >= BUSY else (ROUND_TRIPS, "")


def simulate(
    system: System, times: ServiceTimes, *, seconds: float = 10.0, warm_s: float = 2.0, seed: int = 0
) -> Outcome:
    """Return the results of a simulated run.

    Args:
      system: the run on its hosts. times: costs of its parts. seconds: of the steady part, at least; longer if
        updates are rare. warm_s: before that. seed: of the draws.
    """
    model = Model(system, times, seed)
    at = warm_s
    model.clock.run(at)
    while model.counts["updates"] < 4 * system.updates:
        at *= 1.5
        if at > MOST_S:
            raise ConfigError(
                f"the simulated run makes no update within {MOST_S:g} s: a batch is {system.batch_rows:,} env steps; make it "
                "smaller (--batch-envs, --rollout-length), or look whether the service times are right."
            )
        model.clock.run(at)
    seconds = max(seconds, _MOST_UPDATES / 2 * at / max(model.counts["updates"] / system.updates, 1))
    before, busy_before, spent_before = Counter(model.counts), _busy(model), _spent(model)
    lags_before, others_before = Counter(model.lags), _others_s(model)
    rate, trained = [], model.counts["env_steps"]
    for part in range(1, 11):
        model.clock.run(at + seconds * part / 10)
        rate.append((model.counts["env_steps"] - trained) / seconds * 10)
        trained = model.counts["env_steps"]
    counts = Counter(model.counts)
    counts.subtract(before)
    spent = {name: total - spent_before.get(name, 0.0) for name, total in _spent(model).items()}
    used = {key: (now - busy_before[key]) / seconds for key, now in _busy(model).items()}
    return Outcome(
        seconds=seconds,
        env_steps_per_s=counts["env_steps"] / seconds,
        updates_per_s=counts["updates"] / seconds,
        used=_with_reports(model, used) | _workers(model, spent, seconds),
        shares=_shares(model, spent, seconds),
        lags=dict(sorted((model.lags - lags_before).items())),
        dropped=counts["dropped"] / max(counts["dropped"] + counts["taken"], 1),
        batch_rows=counts["rows"] / counts["calls"] if counts["calls"] else 0.0,
        deaths=counts["deaths"],
        rate=tuple(rate),
        others_cores=(_others_s(model) - others_before) / seconds,
    )


def _others_s(model: Model) -> float:
    """Return the core seconds that other programs have used so far."""
    return sum(m.cores.used_by_others_at(model.clock.now) / m.speed for m in model.resources.machines)


def _busy(model: Model) -> dict[tuple[str, str], float]:
    """Return the use of cores, links and accelerators so far, over their capacity per second."""
    now, hosts = model.clock.now, model.system.hosts
    found = {(CORES, m.name): m.cores.used_at(now) / m.capacity for m in model.resources.machines}
    for (host, way), (link, rate) in model.resources.links.items():
        found[OUT if way == "out" else INTO, hosts[host].name] = link.used_at(now) / rate
    for host, gpus in model.resources.gpus.items():
        if gpus:
            found[GPU, hosts[host].name] = max(gpu.used_at(now) for gpu in gpus)
    return found


def _with_reports(model: Model, used: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return used | {(CORES, m.name): used[CORES, m.name] + m.reports / m.capacity for m in model.resources.machines}


def _spent(model: Model) -> dict[str, float]:
    """Return seconds by activity: of all actors, of all servers after `inference/`, of the learner after `updates/`."""
    total: defaultdict[str, float] = defaultdict(float)
    for prefix, workers in (("", model.actors), (f"{INFERENCE}/", model.servers)):
        for worker in workers:
            for activity, seconds in worker.activities.totals().items():
                total[prefix + activity] += seconds
    for activity, seconds in model.learner.totals().items():
        total[f"{UPDATES}/{activity}"] += seconds
    return dict(total)


def _workers(model: Model, spent: Mapping[str, float], seconds: float) -> dict[tuple[str, str], float]:
    shares = _shares(model, spent, seconds)
    waits = sum(share for name, share in shares.items() if name.startswith("wait_"))
    found = {(ENVIRONMENTS, ""): 1.0 - waits, (UPDATES, ""): 1.0 - shares.get(f"{UPDATES}/wait_batch", 0.0)}
    if model.servers:
        idle = sum(shares.get(f"{INFERENCE}/{activity}", 0.0) for activity in ("wait", "wait_params"))
        found[INFERENCE, ""] = 1.0 - idle
    return found


def _shares(model: Model, spent: Mapping[str, float], seconds: float) -> dict[str, float]:
    many = {INFERENCE: len(model.servers), UPDATES: 1}
    return {
        name: total / seconds / (many[name.partition("/")[0]] if "/" in name else len(model.actors))
        for name, total in spent.items()
    }


def lag_quantile(lags: Mapping[int, int], share: float) -> int:
    """Return the lag that this share of the trajectories does not exceed; 0 without any."""
    left = math.ceil(share * sum(lags.values()))
    for lag, count in sorted(lags.items()):
        left -= count
        if left <= 0:
            return lag
    return 0
