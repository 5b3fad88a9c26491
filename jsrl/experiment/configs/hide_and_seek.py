"""Hide-and-seek: hiders and seekers, MAPPO for each; other scenarios: --env.id hide_and_seek:quadrant"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, MAPPOConfig, NetworkConfig, PolicyConfig

STATISTICS = (
    "seen_share",  # the first is on the line of progress
    *("max_box_move_prep", "max_box_move", "num_box_lock_prep", "num_box_lock"),
    *("max_ramp_move_prep", "max_ramp_move", "num_ramp_lock_prep", "num_ramp_lock"),
    *("hider_return", "seeker_return", "nearest_distance"),
    *("out_of_bounds_share", "grab_share", "discard_episode"),
)


def config() -> Experiment:
    """Return one hider and one seeker in an empty room; both value functions read the state of the whole world."""
    network = NetworkConfig(hidden=(128, 128))
    agent = MAPPOConfig(
        learning_rate=5e-4,
        gamma=0.99,
        num_epochs=4,
        num_minibatches=8,
        normalize_observations=True,
        network=network,
        critic_network=network,
    )
    return Experiment(
        name="hide_and_seek",
        env=EnvConfig(
            "hide_and_seek:empty",
            kwargs={"n_hiders": 1, "n_seekers": 1, "relative": True, "hide_unseen": True, "seekers_wait": True},
            episode_metrics=STATISTICS,
        ),
        policies={"hiders": PolicyConfig(agent, seats="hider_*"), "seekers": PolicyConfig(agent, seats="seeker_*")},
        num_envs=32,
        rollout_length=81,  # an episode of 80 actions and the row of its last observation
        total_env_steps=400_000,
        evaluator=EvaluatorConfig(episodes=64, num_envs=32, final_episodes=200),
    )
