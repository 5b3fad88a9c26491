"""Adapters: environments of other packages."""
