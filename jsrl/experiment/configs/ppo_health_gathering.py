"""ViZDoom's health gathering from pixels: survive on acid with medkits; needs the extra vizdoom"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, PPOConfig


def config() -> Experiment:
    """Return the experiment: four grey screens of 60x80 and the health; each tic of life pays 1, death costs 100."""
    return Experiment(
        name="ppo_health_gathering",
        env=EnvConfig(
            "VizdoomHealthGathering-v1",
            kwargs={"frame_skip": 4, "screen_resolution": "RES_160X120"},
            wrappers=("jsrl.envs.adapters.vizdoom:GreyScreens",),
            reward_scale=0.05,
        ),
        agent=PPOConfig(
            learning_rate=5e-4,
            num_epochs=2,
            num_minibatches=8,
            entropy_coef=0.01,
            normalize_observations=True,
        ),
        num_envs=16,
        rollout_length=64,
        max_policy_lag=1,
        total_env_steps=1_000_000,
        evaluator=EvaluatorConfig(episodes=20, num_envs=10, period_env_steps=100_000, final_episodes=50),
    )
