"""A single-file loop in torch, as commonly written for SAC and TD3: `python run_torch_replay.py JSON`; it needs torch.

No library besides modules, Adam, a replay of numpy arrays and gymnasium's vector environment. Gradients are computed only
for trained parameters (those of the critics are off while the policy learns), and no value leaves torch during an update.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from environments import make_one
from measuring import Meter, command, count_steps, read_request, versions_of
from replay_works import seen

SETTINGS = [{"threads": 1}, {"threads": 2}]
LOG_STD = (-20.0, 2.0)


class Replay:
    """Rows in preallocated arrays; the oldest are overwritten."""

    def __init__(self, rows: int, observation: int, action: int) -> None:
        self.leaves = [np.zeros((rows, size), np.float32) for size in (observation, action, 1, 1, observation)]
        self.held, self._next, self._rng = 0, 0, np.random.default_rng(0)

    def fill(self) -> None:
        """Fill it with random rows."""
        for leaf in self.leaves:
            leaf[...] = np.tanh(self._rng.normal(size=leaf.shape))
        self.held = len(self.leaves[0])

    def add(self, *rows: np.ndarray) -> None:
        """Add observation, action, reward, discount and next observation of some rows."""
        count, size = len(rows[0]), len(self.leaves[0])
        places = (self._next + np.arange(count)) % size
        for leaf, values in zip(self.leaves, rows, strict=True):
            leaf[places] = values.reshape(count, -1)
        self._next, self.held = (self._next + count) % size, min(size, self.held + count)

    def draw(self, batch: int) -> list[Any]:
        """Return tensors of uniformly drawn rows."""
        import torch

        places = self._rng.integers(0, self.held, batch)
        return [torch.from_numpy(leaf[places]) for leaf in self.leaves]


class Learner:
    """Policy, two critics, their targets and their optimizers; `update` is one gradient step of everything."""

    def __init__(self, request: dict[str, Any], observation: int, action: int) -> None:
        import torch

        self.torch, self.request, self.sac = torch, request, request["algorithm"] == "sac"
        width, rate = request["width"], request["learning_rate"]

        def network(inputs: int, outputs: int) -> Any:
            n = torch.nn
            return n.Sequential(
                n.Linear(inputs, width), n.ReLU(), n.Linear(width, width), n.ReLU(), n.Linear(width, outputs)
            )

        self.policy = network(observation, 2 * action if self.sac else action)
        self.critics = torch.nn.ModuleList([network(observation + action, 1) for _ in range(2)])
        self.targets, self.policy_target = copy.deepcopy(self.critics), copy.deepcopy(self.policy)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), rate)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), rate)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], rate)
        self.action_size, self.updates = action, 0

    def sample(self, observation: Any) -> tuple[Any, Any]:
        """Return actions in [-1, 1] and their log-probabilities (0 for TD3)."""
        torch = self.torch
        if not self.sac:
            return torch.tanh(self.policy(observation)), 0.0
        mean, log_std = self.policy(observation).chunk(2, dim=-1)
        log_std = LOG_STD[0] + 0.5 * (LOG_STD[1] - LOG_STD[0]) * (torch.tanh(log_std) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)

    def judge(self, critics: Any, observation: Any, action: Any) -> list[Any]:
        """Return every critic's values [B, 1]."""
        joined = self.torch.cat([observation, action], 1)
        return [critic(joined) for critic in critics]

    def update(self, rows: list[Any]) -> None:
        """Make one gradient step of the critics and, when due, of policy and temperature; targets follow."""
        torch, request = self.torch, self.request
        observation, action, reward, discount, following = rows
        with torch.no_grad():
            if self.sac:
                next_action, log_prob = self.sample(following)
                entropy = self.log_alpha.exp() * log_prob
            else:
                noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
                next_action, entropy = (torch.tanh(self.policy_target(following)) + noise).clamp(-1, 1), 0.0
            value = torch.min(*self.judge(self.targets, following, next_action)) - entropy
            wanted = reward + request["gamma"] * discount * value
        mse = torch.nn.functional.mse_loss
        loss = sum(mse(value, wanted) for value in self.judge(self.critics, observation, action))
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        if self.updates % request["policy_delay"] == 0:
            self.improve(observation)
            self.follow(self.critics, self.targets)
            if not self.sac:
                self.follow(self.policy, self.policy_target)
        self.updates += 1

    def improve(self, observation: Any) -> None:
        """Make one gradient step of the policy, and of SAC's temperature."""
        self.critics.requires_grad_(False)
        action, log_prob = self.sample(observation)
        if self.sac:
            values = self.judge(self.critics, observation, action)
            loss = (self.log_alpha.detach().exp() * log_prob - self.torch.min(*values)).mean()
        else:
            loss = -self.judge(self.critics[:1], observation, action)[0].mean()
        self.policy_optimizer.zero_grad()
        loss.backward()
        self.policy_optimizer.step()
        self.critics.requires_grad_(True)
        if self.sac:
            self.alpha_optimizer.zero_grad()
            (-self.log_alpha.exp() * (log_prob.detach() - self.action_size).mean()).backward()
            self.alpha_optimizer.step()

    def follow(self, online: Any, target: Any) -> None:
        """Move a target towards the trained network, all tensors in one call."""
        torch = self.torch
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), self.request["tau"])


def learn(learner: Learner, replay: Replay, request: dict[str, Any], meter: Meter) -> None:
    """Step gymnasium's vector and learn until the window is full."""
    import gymnasium

    torch, number = learner.torch, request["num_envs"]
    same = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv([lambda: make_one(request)] * number, autoreset_mode=same)
    observation, rng, env_steps, full = envs.reset(seed=0)[0], np.random.default_rng(1), 0, False
    while not full:
        if env_steps < request["learning_starts"]:
            action = rng.uniform(-1, 1, (number, learner.action_size)).astype(np.float32)
        else:
            with torch.no_grad():
                action = learner.sample(torch.from_numpy(observation.astype(np.float32)))[0].numpy()
            if not learner.sac:
                action = np.clip(action + rng.normal(0, 0.1, action.shape), -1, 1).astype(np.float32)
        following, reward, terminated, truncated, more = envs.step(action)
        last = following
        if np.any(terminated | truncated):
            last = following.copy()
            for i in np.flatnonzero(terminated | truncated):
                last[i] = more["final_obs"][i]
        replay.add(observation, action, reward, 1.0 - terminated, last)
        observation, env_steps = following, env_steps + number
        if env_steps > request["learning_starts"]:
            for _ in range(number * request["updates_per_step"]):
                learner.update(replay.draw(request["batch"]))
            full = meter.update(env_steps)
    envs.close()


def main() -> None:
    """Train until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    import torch

    torch.set_num_threads(request["setting"].get("threads", 1))
    one = make_one(request)
    observation, action = one.observation_space.shape[0], one.action_space.shape[0]
    learner, replay, full = Learner(request, observation, action), Replay(request["rows"], observation, action), False
    steps = count_steps(learner.critic_optimizer)
    if request["part"] == "learning":
        learn(learner, replay, request, meter)
    else:
        replay.fill()
        while not full:
            for _ in range(request["updates_per_call"]):
                learner.update(replay.draw(request["batch"]))
            full = meter.update(learner.updates)
    if steps() != learner.updates:
        raise SystemExit(f"{steps()} steps of the critics' optimizer in {learner.updates} updates")
    parameters = sum(p.numel() for part in (learner.policy, learner.critics) for p in part.parameters())
    packages = versions_of("torch", "gymnasium", "numpy")
    meter.report("torch-loop", seen(request, parameters=parameters), request["setting"], packages)


if __name__ == "__main__":
    command(SETTINGS, main)
