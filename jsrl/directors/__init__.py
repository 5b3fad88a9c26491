"""Directors: they assign players and tasks to games, and freeze, reset and copy policies. Pure functions, NumPy only."""
