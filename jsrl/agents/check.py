"""Checks of the agent contract: `check_agent(agent, spec)` raises the first broken rule within seconds, or returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from jsrl.agents import check_act as act
from jsrl.agents import check_devices as devices
from jsrl.agents import check_update as update
from jsrl.agents.base import Agent
from jsrl.agents.checking import Broken, Checked
from jsrl.errors import FOUND_BY_CHECK, AgentFault, ConfigError, JsrlError, described, own_traceback
from jsrl.types import EnvSpec, GameSpec


@dataclass(frozen=True)
class CheckReport:
    """Which checks passed, and how long act and update took.

    Attributes:
      checks: names of the checks that passed. skipped: name and reason of those that do not apply.
      act_compile_s, update_compile_s: first call. act_s, update_s: a later call (with the batch of `check_agent`).
    """

    checks: tuple[str, ...]
    skipped: tuple[str, ...]
    act_compile_s: float
    update_compile_s: float
    act_s: float
    update_s: float


class Check(NamedTuple):
    """One check: a function that raises Broken or returns why it does not apply, and what to do when it fails."""

    run: Callable[[Checked], str | None]
    remedy: str


MIXED = "or columns mix: a mean over the batch, or an axis of seats taken for B"
CHECKS = (
    Check(act.init, "init is a function of its key and returns an AgentState of arrays"),
    Check(act.initial_core, "return the same numbers for each of the rows"),
    Check(act.act_outputs, "keep to the shapes, dtypes and ranges of the spec, and draw from the key alone"),
    Check(act.act_keeps_nothing, "act is a pure function: return what changes as the core, or change it in update"),
    Check(update.update_traces, "update is a pure function from state to state; priorities are one number for each column"),
    Check(update.update_contract, "return a state like the old one, updates + 1, and finite scalars"),
    Check(update.update_learns, "put what act needs into params, and what nothing trains, like a fixed teacher, into extra"),
    Check(update.update_priorities, "return absolute errors, or other finite numbers of 0 or more"),
    Check(act.act_after_updates, "look at what act does with params after the first updates"),
    Check(act.act_batch_sizes, "rows must not mix, and any number of them comes"),
    Check(act.act_rows_apart, "rows must not mix: take no mean over the batch; batches are padded with other rows"),
    Check(act.act_greedy, "take the most probable action with greedy=True, and add no noise"),
    Check(act.act_resets_core, "start anew where is_first is set, else from the core that comes in"),
    Check(act.act_obeys_mask, "give forbidden actions the logit -1e9"),
    Check(act.act_log_prob, "return the log-probability of this action, under what it was drawn from with key"),
    Check(update.update_without_trained_rows, "divide by jnp.maximum(count, 1.0)"),
    Check(update.update_ignores_masked_rows, f"multiply losses by row_mask(trajectory), stop returns at is_first, {MIXED}"),
    Check(update.update_ignores_row_t, "row T is there to bootstrap from: take [:-1] of all but observation and is_first"),
    Check(update.update_ignores_masked_columns, f"multiply losses by row_mask(trajectory), the policy's too, {MIXED}"),
    Check(update.update_ignores_next_episode, "bootstrap from the last observation (before is_first), and mask all losses"),
    Check(update.update_ignores_episode_before, "reset the core in update where is_first is set, and mask all losses"),
    Check(update.update_resets_core, "start from trajectory.core, reset where is_first is set, or set store_core=False"),
    Check(update.update_bootstraps, "multiply the next value by trajectory.discount, 0 only at terminations"),
    Check(update.update_weighs_columns, "multiply each column's loss by its weight"),
    Check(devices.devices_agree, "sum gradients, moments and metrics over axis_name"),
    Check(devices.devices_sum, "divide local sums by the count of all devices, then psum gradients and metrics"),
    Check(devices.devices_equal_one, "take means by masked_mean(x, mask, axis_name), a largest weight by jax.lax.pmax"),
    Check(devices.devices_draw_apart, "all devices get one key: draw the noise of all columns and take this device's share"),
)  # fmt: skip


def check_agent(
    agent: Agent, spec: EnvSpec | GameSpec, *, num_rows: int = 8, num_envs: int = 8, seed: int = 0
) -> CheckReport:
    """Check an agent against the contract of jsrl.agents.base, with random trajectories of `spec`.

    Several devices are tried on one, as two shares of a batch.

    Args:
      agent: the agent.
      spec: the environment's spec that it was made for; of one with several seats, the agent plays all.
      num_rows: T. num_envs: B; divisible by the agent's minibatches.
      seed: of weights and rows.

    Raises:
      AgentFault: the first broken rule: what the agent did, what was expected, what to do next.
    """
    if not hasattr(agent, "update"):
        raise ConfigError(
            f"check_agent got {type(agent).__name__}, expected an Agent: give it build_agent(config, spec)."
        )
    if isinstance(spec, GameSpec):
        spec = spec.view(spec.names)
    checked = Checked(agent, spec, num_rows, num_envs, seed)
    passed, skipped = [], []
    try:
        for check in CHECKS:
            name, reason = check.run.__name__, _run(check, checked)
            if reason is None:
                passed.append(name)
            else:
                skipped.append(f"{name}: {reason}")
    finally:
        checked.forget()
    return CheckReport(tuple(passed), tuple(skipped), **checked.seconds)


def _run(check: Check, checked: Checked) -> str | None:
    try:
        return check.run(checked)
    except Broken as broken:
        raise AgentFault(f"{broken}; {check.remedy}") from None
    except AgentFault as own:  # of build_agent's functions
        raise AgentFault(str(own).removesuffix(FOUND_BY_CHECK)) from own.__cause__
    except JsrlError:
        raise
    except Exception as error:
        fault = AgentFault(f"{check.run.__name__}: the agent raised {described(error)}")
        raise fault from error.with_traceback(own_traceback(error))
