"""Arrays as bytes: schemas, frames, pieces."""
