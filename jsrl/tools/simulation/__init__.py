"""A discrete-event model of the capacity of a run: how fast a layout on hosts would train, and what would limit it."""
