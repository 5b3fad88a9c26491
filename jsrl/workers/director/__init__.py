"""The director's worker: gives actors their assignments, and executes the director's commands."""
