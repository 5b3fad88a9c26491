"""What attaches to the loops of actors and learners: features that not every run has."""
