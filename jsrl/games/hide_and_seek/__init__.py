"""Hide-and-seek with rooms, boxes and ramps, on MuJoCo."""
