"""Works of off-policy learning: what every library runs in a comparison of updates, as plain values. Standard library only.

Two parts: `updates` (only batches drawn from existing rows) and `learning` (environments are stepped as well, with a fixed
number of updates per env step). Networks, batch and their number agree; `differences` lists the deviations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

PEERS = ("sb3", "sbx", "torch-loop")
OBSERVATION, ACTION, WIDTH = 17, 6, 256  # HalfCheetah-v5, and the units of both hidden layers


def policy_parameters(algorithm: str) -> int:
    """Return the parameters of a policy: SAC's has a mean and a standard deviation per action."""
    outputs = 2 * ACTION if algorithm == "sac" else ACTION
    return OBSERVATION * WIDTH + WIDTH + WIDTH * WIDTH + WIDTH + WIDTH * outputs + outputs


def critic_parameters() -> int:
    """Return the parameters of one critic."""
    return (OBSERVATION + ACTION) * WIDTH + WIDTH + WIDTH * WIDTH + WIDTH + WIDTH + 1


@dataclass(frozen=True)
class ReplayWork:
    """One part of one algorithm at one batch size.

    Attributes:
      rows: in replay, for the part `updates`. updates_per_call: gradient steps per call of a library there.
      num_envs: stepped together in the part `learning`. updates_per_step: gradient steps per env step (row) there.
      parameters: of the policy and two critics, without targets.
    """

    algorithm: Literal["sac", "td3"]
    part: Literal["updates", "learning"]
    batch: int
    parameters: int
    num_envs: int = 8
    updates_per_step: float = 1
    updates_per_call: int = 32
    rows: int = 100_000
    env: str = "HalfCheetah-v5"
    width: int = WIDTH
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    policy_delay: int = 1
    learning_starts: int = 1_000

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"updates, batch {self.batch}" if self.part == "updates" else f"learning, {self.num_envs} environments"


ALGORITHMS = {"sac_halfcheetah": "sac", "td3": "td3"}  # experiment of run.py -> algorithm


def works(name: str, batches: tuple[int, ...], num_envs: tuple[int, ...]) -> list[ReplayWork]:
    """Return the works of an experiment: updates at each batch size, learning with each number of environments."""
    algorithm: Any = ALGORITHMS[name]
    common: Any = {
        "algorithm": algorithm,
        "parameters": policy_parameters(algorithm) + 2 * critic_parameters(),
        "policy_delay": 2 if algorithm == "td3" else 1,
    }
    alone = [
        ReplayWork(part="updates", batch=batch, updates_per_call=max(4, min(32, 8192 // batch)), **common)
        for batch in batches
    ]
    return alone + [ReplayWork(part="learning", batch=256, num_envs=number, **common) for number in num_envs]


COMPARED = ("env", "batch", "num_envs", "updates_per_step", "parameters", "learning_rate")


def seen(request: dict[str, Any], **found: Any) -> dict[str, Any]:
    """Return the field `work` of a driver's report: the requested one, overridden by the real model."""
    return {**{name: request[name] for name in COMPARED}, **found}


def differences(work: ReplayWork, done: dict[str, Any]) -> list[str]:
    """Return the differences between a system's run and this work, each in a few words."""
    from benchmarks.peers.works import same  # imported here: drivers import this file alone, without the package

    names = [name for name in COMPARED if work.part == "learning" or name not in ("num_envs", "updates_per_step")]
    expected = {name: getattr(work, name) for name in names}
    wrong = [name for name, value in expected.items() if not same(done.get(name), value)]
    return [f"{name} {done.get(name)} for {expected[name]}" for name in wrong] + list(done.get("notes", ()))
