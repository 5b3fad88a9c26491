"""What `jsrl new` writes: files that are copied as they are, each a place to begin."""
