"""Directors: who plays whom, on which task, and when policies are frozen, reset and copied. Pure functions, NumPy only."""
