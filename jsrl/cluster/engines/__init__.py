"""Engines that start host agents: ssh, Slurm, Ray."""
