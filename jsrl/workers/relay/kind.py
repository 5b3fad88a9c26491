"""Parameter servers: facts that the launcher needs without loading the worker."""

from __future__ import annotations

from jsrl.services.metrics.catalogue import Metric
from jsrl.services.metrics.phases import Activity
from jsrl.workers.kinds import Kind, Lifecycle, Port, Shown, Travel

ACTIVITIES = (
    Activity("publish", "publish", "share of time passing params on", "below 0.5"),
    Activity("wait", "wait", "share of time without new params", "above 0.5", waits_for="new params"),
    Activity("snapshot", "publish", "share of time copying params for a snapshot", "near 0"),
)

METRICS = (Metric("relayed", "versions of params passed on", "count", "rises with updates", "total"),)

KIND = Kind(
    name="parameter-server",
    plural="parameter servers",
    build="jsrl.workers.relay.worker:ParameterServer",
    ports=(Port("params", "params", "reads"), Port("relayed", "params", "writes")),
    lifecycle=Lifecycle(saves=True),
    shown=Shown(ACTIVITIES, METRICS),
    travel=Travel(needs_folder="it keeps numbered copies of params", relays=True),
)
