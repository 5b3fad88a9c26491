"""Relays: pass params on between hosts."""
