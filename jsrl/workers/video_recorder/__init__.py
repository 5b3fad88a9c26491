"""Video recorders: film episodes of the newest params."""
