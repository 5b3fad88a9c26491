"""Worker processes on this host."""
