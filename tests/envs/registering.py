"""Registers an environment with Gymnasium when imported, as packages do."""

import gymnasium

gymnasium.register("tests/Registered-v0", entry_point="tests.envs.test_rendering:Painted", max_episode_steps=7)
