"""PPG (phasic policy gradient) with its usual settings; choose the environment: --env.id gymnax:Breakout-MinAtar"""

from jsrl import Experiment, PPGConfig


def config() -> Experiment:
    """Return PPG on CartPole; --env.id chooses another environment; an auxiliary phase comes after every 8 updates."""
    agent = PPGConfig(
        phase_rows=16_384, num_epochs=4, minibatch_size=256, normalize_observations=True, normalize_values=True
    )
    return Experiment(
        name="ppg", agent=agent, num_envs=16, rollout_length=128, total_env_steps=1_000_000, max_policy_lag=0
    )
