"""Runs over several hosts: the hosts' resources, and the assignment of workers to hosts."""
