"""The networks of works in torch, for libraries that accept user modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


def linear(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """Return a linear layer with orthogonal weights and zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def tower(inputs: int) -> nn.Sequential:
    """Return 64 and 64 units with tanh."""
    return nn.Sequential(linear(inputs, 64), nn.Tanh(), linear(64, 64), nn.Tanh())


def nature(channels: int) -> nn.Sequential:
    """Return the Nature CNN: images [N, C, 84, 84] to 512 features."""
    convolutions = (
        *(nn.Conv2d(channels, 32, 8, 4), nn.ReLU()),
        *(nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, 1), nn.ReLU()),
    )
    return nn.Sequential(*convolutions, nn.Flatten(), linear(64 * 7 * 7, 512), nn.ReLU())


class Policy(nn.Module):
    """Actor and critic: separate for vectors, one torso for images. Returns (logits or a Normal, values [N, 1])."""

    def __init__(self, network: str, observations: Any, actions: Any) -> None:
        super().__init__()
        self.images, self.discrete = network == "nature_cnn", hasattr(actions, "n")
        size = int(np.prod(observations.shape))
        width = 512 if self.images else 64
        self.actor = nature(observations.shape[0]) if self.images else tower(size)
        self.critic = None if self.images else tower(size)
        outputs = int(actions.n) if self.discrete else int(np.prod(actions.shape))
        self.policy_head, self.value_head = linear(width, outputs, 0.01), linear(width, 1, 1.0)
        self.log_std = None if self.discrete else nn.Parameter(torch.zeros(1, outputs))
        self.hidden_size = width

    def forward_eval(self, observations: torch.Tensor, state: Any = None) -> tuple[Any, torch.Tensor]:
        """Return action distribution and values."""
        x = observations.float() / 255.0 if self.images else observations.float()
        features = self.actor(x)
        values = self.value_head(features if self.critic is None else self.critic(x))
        outputs = self.policy_head(features)
        if self.discrete:
            return outputs, values
        return torch.distributions.Normal(outputs, torch.exp(self.log_std).expand_as(outputs)), values

    def forward(self, observations: torch.Tensor, state: Any = None) -> tuple[Any, torch.Tensor]:
        """Return the same while training."""
        return self.forward_eval(observations, state)


def policy(network: str, observations: Any, actions: Any) -> Policy:
    """Return a work's network for these spaces."""
    return Policy(network, observations, actions)
