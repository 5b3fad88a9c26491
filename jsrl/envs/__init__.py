"""Environments behind one vector protocol; numpy only."""
