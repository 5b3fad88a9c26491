"""Long-lived shared facts: names, snapshots, metrics."""
