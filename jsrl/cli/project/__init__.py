"""Files of `jsrl new`, copied unchanged, as starting points."""
