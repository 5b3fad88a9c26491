"""How many minibatches `auto` makes."""

import jax
import jax.numpy as jnp
import pytest

from jsrl.agents.minibatches import minibatches_of


@pytest.mark.parametrize(
    ("columns", "rows", "count"),
    [(2048, 1, 32), (16, 128, 16), (30, 1, 1), (2047, 1, 23), (128, 1, 2), (1, 5000, 1)],
)
def test_auto_keeps_64_rows_in_each_and_divides_the_columns(columns: int, rows: int, count: int) -> None:
    assert minibatches_of("auto", columns, rows, None) == count
    assert minibatches_of(7, columns, rows, None) == 7


def test_auto_counts_the_rows_of_all_devices() -> None:
    """Two devices with half of the columns each make the gradient steps of one device with all."""
    counts = jax.vmap(lambda _: jnp.asarray(minibatches_of("auto", 1024, 1, "devices")), axis_name="devices")(
        jnp.zeros(2)
    )
    assert counts.tolist() == [32, 32]
