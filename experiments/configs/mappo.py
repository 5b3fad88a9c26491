"""MAPPO on cooperative navigation (simple_spread, 3 seats); choose another environment: --env.id"""

from jsrl.agents.mappo import MAPPOConfig
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.networks.model import NetworkConfig


def config() -> Experiment:
    """Return MAPPO with the paper's settings for particle worlds: 128 environments, 10 passes, no minibatches."""
    network = NetworkConfig(hidden=(64, 64), activation="relu")
    return Experiment(
        name="mappo",
        env=EnvConfig("particle:simple_spread_v3"),
        agent=MAPPOConfig(network=network, critic_network=network),
        num_envs=128,
        rollout_length=26,  # an episode of 25 actions and the row of its last observation
        num_actors=1,  # its steps are cheap
        total_env_steps=4_000_000,
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, final_episodes=500),
    )
