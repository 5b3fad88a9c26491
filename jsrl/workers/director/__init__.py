"""The director's worker: gives actors their assignments, and carries out what the director commands."""
