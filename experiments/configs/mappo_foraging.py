"""MAPPO on level-based foraging (10x10, 3 agents, 3 foods): agents learn from their team's reward"""

import dataclasses

from jsrl.configs import mappo
from jsrl.envs.config import EnvConfig
from jsrl.experiment import Experiment


def config() -> Experiment:
    """Return the experiment `mappo` with the team's reward and less entropy; scores with sampled actions are shown as well.

    Agents that block each other stay so if they choose the most likely actions, because they see the same again.
    """
    base = mappo.config()
    return dataclasses.replace(
        base,
        name="mappo_foraging",
        env=EnvConfig("foraging:10x10-3p-3f"),
        agent=dataclasses.replace(base.agent, rewards="team", entropy_coef=0.001),
        evaluator=dataclasses.replace(base.evaluator, sampled_episodes=100),
    )
