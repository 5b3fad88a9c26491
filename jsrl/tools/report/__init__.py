"""Reports: what a run did and what limited it."""
