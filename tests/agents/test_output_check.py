"""What an update returns is checked once, whoever calls it: layout of the state, metrics, priorities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import UpdateOutput
from jsrl.agents.finite import PRIORITIES, STATE, describe_non_finite, with_output_check, with_state_check
from jsrl.errors import AgentFault, ConfigError
from tests.replay.learning import toy_agent
from tests.replay.streams import World

WINDOWS = World(4, 1).trajectory()._replace(sampling=np.ones(4, np.float32))
TOY = toy_agent()


def changed(change):
    """Return the toy agent's update, whose output a function (state, output) -> (state, output) changes."""

    def update(state, windows, key, *, axis_name=None):
        return change(*TOY.update(state, windows, key, axis_name=axis_name))

    return update


def output(**fields):
    return changed(lambda state, out: (state, out._replace(**fields)))


def extra(value):
    return changed(lambda state, out: (state._replace(extra=value(state.extra)), out))


def shapes_of(update, **given):
    state = jax.eval_shape(TOY.init, jax.random.key(0))
    return jax.eval_shape(with_output_check(update, ("update_share",), **given), state, WINDOWS, jax.random.key(0))


REFUSED = {
    r"\.extra\['log'\] was absent and is float32\[3\] now; keep names": extra(lambda e: e | {"log": jnp.zeros(3)}),
    r"\.extra\['seen'\] was float32\[\] and is bfloat16\[\] now": extra(
        lambda e: jax.tree.map(lambda x: x.astype(jnp.bfloat16), e)
    ),
    r"\.extra\['seen'\] was float32\[\] and is absent now": extra(lambda e: ()),
    r"\.params\.weights\['bias'\] was float32\[\] and is float32\[1\] now": changed(
        lambda s, out: (
            s._replace(params=s.params._replace(weights=s.params.weights | {"bias": s.params.weights["bias"][None]})),
            out,
        )
    ),
    r"metric 'losses' is dict, expected a scalar": output(metrics={"losses": {"policy": jnp.zeros(())}}),
    r"metric 'phase' is str, expected a scalar": output(metrics={"phase": "late"}),
    r"metric 'errors' has shape \(4,\), expected a scalar": output(metrics={"errors": jnp.zeros(4)}),
    r"metrics is list, expected a dict": output(metrics=[1.0]),
    r"metric 'update_share', but": output(metrics={"update_share": 1.0}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_update_that_breaks_the_contract_is_refused_before_it_runs(words) -> None:
    with pytest.raises(AgentFault, match=words):
        shapes_of(REFUSED[words])


def test_priorities_are_one_for_each_window_where_sampling_needs_them() -> None:
    shapes_of(TOY.update, prioritised=True)
    shapes_of(output(priorities=jnp.zeros(())))  # nobody uses them
    with pytest.raises(ConfigError, match="needs an agent that returns priorities"):
        shapes_of(output(priorities=None), prioritised=True)
    for wrong, shape in ((jnp.zeros(()), r"\[\]"), (jnp.zeros((4, 1)), r"\[4, 1\]")):
        with pytest.raises(AgentFault, match=rf"priorities of shape {shape}, expected \[4\]: one for each window"):
            shapes_of(output(priorities=wrong), prioritised=True)


def test_priorities_that_are_not_finite_are_found_and_named() -> None:
    state, key = jax.jit(TOY.init)(jax.random.key(0)), jax.random.key(0)
    bad, negative = (output(priorities=jnp.array([1.0, worst, 0.0, 2.0])) for worst in (jnp.nan, -1.0))
    for update, found in ((TOY.update, []), (negative, [PRIORITIES]), (bad, [PRIORITIES])):
        _, out = jax.jit(with_state_check(update, prioritised=True))(state, WINDOWS, key)
        metrics = {name: float(value) for name, value in out.metrics.items()}
        assert [name for name, value in metrics.items() if np.isnan(value)] == found and metrics[STATE] == 0.0
    assert describe_non_finite([PRIORITIES], metrics).startswith("priorities that are not all finite and 0 or more")
    _, out = with_state_check(bad)(state, WINDOWS, key)
    assert PRIORITIES not in out.metrics and isinstance(out, UpdateOutput)
