"""Floating-point operations of an off-policy update, by formula: only the products of the networks' layers."""

from __future__ import annotations


def operations_per_row(algorithm: str, *, observation: int, action: int, width: int) -> float:
    """Return the operations of one row of one update of SAC, TD3 or DDPG, averaged over TD3's delay of two.

    Networks have two hidden layers. A forward pass costs the layers' products; a gradient for the weights costs them
    again, and one for the inputs once more, without those of the first layer if its input gradient is not needed.
    """
    hidden = width * width
    outputs = 2 * action if algorithm == "sac" else action
    policy = observation * width + hidden + outputs * width
    critic_in = (observation + action) * width
    critic = critic_in + hidden + width
    ensemble, delay = {"sac": (2, 1), "td3": (2, 2), "ddpg": (1, 1)}[algorithm]
    judging = 1 if algorithm == "td3" else ensemble  # critics that the policy's gradient goes through
    critics_step = policy + ensemble * critic + ensemble * (3 * critic - critic_in)
    policy_step = 3 * policy - observation * width + judging * 2 * critic
    return 2.0 * (critics_step + policy_step / delay)
