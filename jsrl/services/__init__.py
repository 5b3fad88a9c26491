"""Services of a run: its folder, names and control messages, metrics, snapshots, recordings."""
