"""IPPO on level-based foraging (10x10, 3 agents, 3 foods) with networks that read distances"""

import dataclasses

from jsrl import EnvConfig, Experiment
from jsrl.experiment.configs import ippo


def config() -> Experiment:
    """Return the experiment `ippo` with the team's reward, less entropy and networks that read distances.

    Each seat sees the whole grid, so a central value function would know no more. Scores with sampled actions are shown as
    well: agents that block each other stay so if they choose the most likely actions, because they see the same again.
    """
    base = ippo.config()
    torso = "jsrl.networks.distances:Distances"
    agent = dataclasses.replace(
        base.agent,
        rewards="team",
        entropy_coef=0.001,
        network=dataclasses.replace(base.agent.network, torso=torso),
        critic_network=dataclasses.replace(base.agent.critic_network, torso=torso),
    )
    return dataclasses.replace(
        base,
        name="ippo_foraging",
        env=EnvConfig("foraging:10x10-3p-3f"),
        agent=agent,
        evaluator=dataclasses.replace(base.evaluator, sampled_episodes=100),
    )
