"""Hide-and-seek with the network of the paper, one policy for both seats, PPO in self-play; films it"""

from jsrl import EntityConfig, EnvConfig, EvaluatorConfig, Experiment, NetworkConfig, PPOConfig, VideoConfig
from jsrl.experiment.configs.hide_and_seek import STATISTICS

SEEN = ("agent_qpos_qvel:mask_aa_obs", "box_obs:mask_ab_obs", "ramp_obs:mask_ar_obs")
THERE = ("agent_qpos_qvel:mask_aa_obs_spoof", "box_obs:mask_ab_obs_spoof", "ramp_obs:mask_ar_obs_spoof")
NETWORK = NetworkConfig(  # the value function also sees what is hidden from the agent
    torso="entities",
    entities=EntityConfig(leaves=SEEN, value_leaves=THERE, rays=("lidar",)),
    hidden=(128, 256),
    activation="relu",
    core="lstm",
    core_size=256,
    core_norm=True,
    shared=False,
)


def config() -> Experiment:
    """Return the paper's settings where they suit a small machine and an empty room in which seekers should come near."""
    agent = PPOConfig(
        learning_rate=5e-4,  # with the paper's 3e-4 and 8 minibatches one seed of three stays too far from hiders
        gamma=0.97,  # with the paper's 0.998 the value function learns little but the number of steps left
        entropy_coef=0.01,
        max_grad_norm=5.0,
        num_epochs=4,
        num_minibatches=16,
        chunk_length=10,
        normalize_observations=True,
        normalize_values=True,
        network=NETWORK,
    )
    return Experiment(
        name="hide_and_seek_srl",
        agent=agent,
        env=EnvConfig(
            "hide_and_seek:empty",
            kwargs={
                "n_hiders": 1,
                "n_seekers": 1,
                "reward_range": 6.0,
                "reward_falls": True,
                "relative": True,
                "seekers_wait": True,
            },
            episode_metrics=STATISTICS,
        ),
        num_envs=32,
        rollout_length=80,
        total_env_steps=260_000,
        evaluator=EvaluatorConfig(against=("initial",), period_env_steps=130_000),  # returns of the two sides cancel
        video=VideoConfig(enabled=True, period_env_steps=130_000, episodes=3),
    )
