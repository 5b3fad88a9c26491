"""The fused worker: environments, acting and updates in one compiled program."""
