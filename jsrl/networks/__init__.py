"""Flax linen modules, wrapped as pure init / apply pairs."""
