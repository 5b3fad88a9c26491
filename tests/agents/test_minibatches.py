"""How many minibatches a size makes."""

import jax
import jax.numpy as jnp
import pytest

from jsrl.agents.minibatches import minibatches_of


@pytest.mark.parametrize(
    ("columns", "rows", "count"),
    [(2048, 1, 32), (16, 128, 16), (30, 1, 1), (2047, 1, 23), (128, 1, 2), (1, 5000, 1)],
)
def test_at_least_64_rows_are_in_each_and_they_divide_the_columns(columns: int, rows: int, count: int) -> None:
    assert minibatches_of(64, columns, rows, None) == count


def test_size_counts_the_rows_of_all_devices() -> None:
    """Two devices with half of the columns each make the gradient steps of one device with all."""
    counts = jax.vmap(lambda _: jnp.asarray(minibatches_of(64, 1024, 1, "devices")), axis_name="devices")(jnp.zeros(2))
    assert counts.tolist() == [32, 32]
