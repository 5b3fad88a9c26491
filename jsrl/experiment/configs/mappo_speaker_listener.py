"""MAPPO with two different policies: a speaker that sees the goal, and a listener that moves"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, MAPPOConfig, NetworkConfig, PolicyConfig


def config() -> Experiment:
    """Return the experiment; both value functions read the state of the whole environment."""
    network = NetworkConfig(hidden=(64, 64), activation="relu")
    agent = MAPPOConfig(
        gamma=0.95,
        schedule="linear",
        num_minibatches=4,
        network=network,
        critic_network=network,
        agent_ids=False,
    )
    return Experiment(
        name="mappo_speaker_listener",
        env=EnvConfig("particle:simple_speaker_listener_v4"),
        policies={
            "speaker": PolicyConfig(agent, seats="speaker_*"),
            "listener": PolicyConfig(agent, seats="listener_*"),
        },
        num_envs=128,
        rollout_length=26,  # an episode of 25 actions and the row of its last observation
        num_actors=1,  # its steps are cheap
        total_env_steps=2_000_000,
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, final_episodes=500),
    )
