"""HalfCheetah-v5 with SAC: 256x256 networks, one update of 256 rows per 4 env steps"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, ReplayConfig, SACConfig


def config() -> Experiment:
    """Return the experiment: one million env steps, as in published curves.

    Those make an update per env step (`--replay.updates-per-env-step 1`), which learns from fewer env steps and takes longer:
    an update costs as much as 50 env steps.
    """
    return Experiment(
        name="sac_halfcheetah",
        env=EnvConfig("HalfCheetah-v5"),
        agent=SACConfig(learning_rate=3e-4, critic_learning_rate=1e-3),
        num_envs=8,
        rollout_length=8,
        max_policy_lag=None,
        total_env_steps=1_000_000,
        replay=ReplayConfig(capacity=1_000_000, batch_size=256, min_size=10_000, updates_per_env_step=0.25),
        evaluator=EvaluatorConfig(episodes=10, num_envs=10, period_env_steps=20_000, final_episodes=20),
    )
