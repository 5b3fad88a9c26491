"""An inference server that a test steps by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jsrl.services.metrics.metrics import Meter
from jsrl.transport.base import InferenceServer, ParamsSubscriber
from jsrl.workers.acting import Engine
from jsrl.workers.base import NullReporter, Refusals
from jsrl.workers.inference.worker import InferenceSettings, InferenceWorker, ServedPolicy

Connect = Callable[[], tuple[InferenceServer, ParamsSubscriber]]


def make_server(settings: InferenceSettings, policies: Sequence[tuple[Engine, Connect]]) -> InferenceWorker:
    """Return a server of some policies, each with an engine and a function that binds its streams."""
    meter, refusals = Meter("inference"), Refusals("inference-0", NullReporter())
    served = [ServedPolicy("inference-0", engine, settings, connect, refusals, meter) for engine, connect in policies]
    return InferenceWorker("inference-0", served, settings, NullReporter(), meter, refusals)
