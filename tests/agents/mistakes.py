"""Two small agents, each right or with one named mistake, as authors make them: what check_agent has to notice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput, row_mask
from jsrl.agents.devices import masked_mean, normal_columns, psum
from jsrl.agents.off_policy import transition
from jsrl.types import ArraySpec, Continuous, Discrete, EnvSpec, map_trajectory

GAMMA, RATE, SIZE = 0.9, 0.05, 4
DISCRETE = EnvSpec(ArraySpec((3,), "float32"), Discrete(3))
REAL = EnvSpec(ArraySpec((3,), "float32"), Continuous((-1.0,) * 2, (1.0,) * 2))

# mistake -> what check_agent says of it
ON_POLICY = {
    "init is random": "init is another function when it is called again",
    "updates is a float": "updates is .* expected an int32 scalar 0",
    "core without rows": r"initial_core\(8\): leaf it has shape \(4,\), expected the batch axis",
    "float action": r"act: action is float32\[8\], expected int32\[8\]",
    "wide log_prob": r"act: log_prob is float32\[8, 1\], expected float32\[8\]",
    "action out of range": r"act: actions .* are not all in 0..\[2\]",
    "draws at another temperature": "act: actions are not as frequent as log_prob says: one is",
    "log_prob of another draw": "log_prob of one action in one state differs",
    "ignores the key": "act: actions are not as frequent as log_prob says",
    "greedy with a little noise": r"act\(greedy=True\) with two keys",
    "mixes rows": "act: greedy log_prob of the first row alone and in a batch|with other observations in the other rows",
    "mixes rows when it draws": r"act\(greedy=False\) with other observations in the other rows",
    "act does not reset": "act: the core after is_first, from two different cores",
    "act forgets": "act: the core that comes in changes nothing without is_first",
    "counts in a closure": "act is another function when it is called again",
    "writes to params": "act writes to params",
    "NaN after updates": "act: log_prob has NaN or infinity in 8 of 8",
    "update does not reset": "other rows of the episode before, which are masked",
    "update resets late": "other rows of the episode before|another core before a row 0 that begins",
    "ignores the stored core": "the core before row 0 changes nothing",
    "no mask": "other actions, log_probs and rewards in rows before is_first|columns that are masked",
    "value of the next episode": "other rows of the next episode, which are masked",
    "auxiliary loss without mask": "columns that are masked",
    "reads row T": "another action, log_prob, reward and discount in row T",
    "values pass terminations": "update: discount changes nothing, so values pass terminations",
    "time limits terminate": "an episode that ends by a time limit .* is treated like one that terminates",
    "divides by the count": "update with mask 0 everywhere has NaN",
    "no sum over devices": "update on 2 devices: what device 0 and device 1 hold",
    "own statistics on each device": "update on 2 devices: what device 0 and device 1 hold: leaf .*extra",
    "mean over devices": "update on 2 devices, the second without a row to learn from, and on one",
    "mean of local means": "update on 2 devices, the second without a row to learn from, and on one",
    "advantages around a local mean": "update on 2 devices with unlike columns, and on one with all of them",
    "updates stay": "update: updates is 0 after the first update, expected 1",
    "learns nothing": "no number of the state but counters changed",
    "policy stays": "params.weights are what they were after 64 updates",
    "metric of rows": r"metric 'loss' has shape \(8, 8\), expected a scalar",
    "nested metric": "metric 'loss' is dict, expected a scalar",
    "metric with a slash": "metric 'aux/loss'.* a slash",
    "NaN as a metric": "update: metrics has NaN or infinity in 1 of 1 numbers of leaf .*loss",
    "state of another dtype": r"update: the new state: .*extra was float32\[\] and is int32\[\] now",
    "raises": r"update_traces: the agent raised ValueError at .*mistakes.py:\d+, 'raise ValueError\(mistake\)': raises",
}
OFF_POLICY = {
    "log_prob at another width": "densities exp.log_prob. are",
    "log_prob of another draw": "act: actions are not as frequent as log_prob|that of nearly equal actions differs",
    "ignores the key": "with other keys the sampled action is the same",
    "policy without mask": "other rows in columns that are masked",
    "ignores importance weights": "importance weights, changes nothing",
    "one priority": r"update: priorities is float32\[\], expected float32\[8\]",
    "weights by the share's largest": "update on 2 devices with unlike columns, and on one with all of them",
    "weights by the share's mean": "update on 2 devices with unlike columns, and on one with all of them",
    "weights by the largest of all columns": "other rows in columns that are masked.*or columns mix: a mean over",
    "critic stays": "learner_params are what they were after 64 updates; store them in the new state",
    "NaN priorities": "update: priorities has NaN or infinity in 8 of 8 numbers; return absolute errors",
    "signed priorities": "update: priorities has numbers below 0, such as -",
    "the same noise": "update on 2 devices: both draw the same noise for their columns",
}


def on_policy(mistake: str = "") -> Agent:
    """Return a recurrent actor-critic with one-step targets, for DISCRETE."""
    calls: list[None] = []

    def initial_core(batch_size: int) -> Any:
        return jnp.zeros(SIZE) if mistake == "core without rows" else jnp.zeros((batch_size, SIZE))

    def init(key):
        if mistake == "init is random":
            key = jax.random.key(np.random.default_rng().integers(1 << 30))
        keys = jax.random.split(key, 3)
        shapes = {"input": (3, SIZE), "policy": (SIZE, 3), "value": (SIZE, 1)}
        weights = {name: jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}
        updates = jnp.zeros((), jnp.float32 if mistake == "updates is a float" else jnp.int32)
        params = ActParams(weights | {"updates": jnp.zeros((), jnp.int32)})
        return AgentState(params, (), jax.tree.map(jnp.zeros_like, weights), jnp.zeros(()), updates)

    def heads(weights, observation, is_first, core):
        def step(core, row):
            x, first = row
            core = jnp.tanh(x @ weights["input"] + jnp.where(first[:, None], 0.0, 0.5 * core))
            return core, core

        core, hidden = jax.lax.scan(step, core, (observation, is_first))
        return hidden @ weights["policy"], (hidden @ weights["value"])[..., 0], core

    def act(params, key, observation, is_first, core, *, greedy=False):
        weights, first = params.weights, is_first
        if mistake == "counts in a closure":
            calls.append(None)
            observation = observation + 0.01 * len(calls)
        if mistake == "writes to params":
            params.weights["updates"] = params.weights["updates"] + 1
        if mistake in ("act does not reset", "act forgets"):
            first = jnp.full_like(is_first, mistake == "act forgets")
        logits, _, core = heads(weights, observation[None], first[None], core)
        logits = logits[0]
        if mistake == "mixes rows" or (mistake == "mixes rows when it draws" and not greedy):
            logits = logits - logits.mean(0)
        if mistake == "NaN after updates":
            logits = jnp.where(weights["updates"] > 0, jnp.nan, logits)
        drawn = logits / 0.5 if mistake == "draws at another temperature" else logits
        action = jax.random.categorical(jax.random.key(1) if mistake == "ignores the key" else key, drawn)
        if greedy:
            noise = 1e-3 * jax.random.normal(key, logits.shape) if mistake == "greedy with a little noise" else 0.0
            action = jnp.argmax(logits + noise, -1)
        other = jax.random.categorical(jax.random.fold_in(key, 1), logits)
        log_prob = log_prob_of(logits, other if mistake == "log_prob of another draw" else action)
        action = action + 3 if mistake == "action out of range" else action
        action = action.astype(jnp.float32 if mistake == "float action" else jnp.int32)
        return ActOutput(action, log_prob[:, None] if mistake == "wide log_prob" else log_prob), core

    def update(state, trajectory, key, *, axis_name=None):
        if mistake == "raises":
            raise ValueError(mistake)
        t = trajectory
        first, core = t.is_first, jnp.zeros_like(t.core) if mistake == "ignores the stored core" else t.core
        if mistake == "update does not reset":
            first = jnp.zeros_like(first)
        if mistake == "update resets late":
            first = jnp.concatenate([jnp.zeros_like(first[:1]), first[:-1]])
        mask = jnp.ones(t.reward[1:].shape) if mistake == "no mask" else row_mask(t)
        local = mistake in ("mean of local means", "no sum over devices")
        count = mask.sum() if local else psum(mask.sum(), axis_name)
        count = count if mistake == "divides by the count" else jnp.maximum(count, 1.0)
        reward, discount = t.reward[:-1], t.discount[:-1]
        if mistake == "reads row T":
            discount = t.discount[1:]
        if mistake == "values pass terminations":
            discount = jnp.ones_like(discount)
        if mistake == "time limits terminate":  # the last observation is the one before is_first
            ends = jnp.concatenate([t.is_first[2:], jnp.zeros_like(t.is_first[:1])])
            discount = jnp.where(ends, 0.0, discount)
        own = axis_name if mistake != "own statistics on each device" else None
        scale = masked_mean(jnp.abs(reward), mask, own)
        weights = {name: leaf for name, leaf in state.params.weights.items() if name != "updates"}

        def loss(weights):
            logits, value, _ = heads(weights, t.observation, first, core)
            following = value[1:]
            if mistake == "value of the next episode":
                cut = jnp.concatenate([t.is_first[2:], jnp.zeros_like(t.is_first[:1])])
                following = jnp.where(cut, jnp.roll(value, -2, 0)[:-1], following)
            error = reward + GAMMA * discount * jax.lax.stop_gradient(following) - value[:-1]
            advantage = jax.lax.stop_gradient(error)
            if mistake == "advantages around a local mean":
                advantage -= masked_mean(advantage, mask, None)
            policy = log_prob_of(logits[:-1], t.action[:-1]) * advantage
            total = jnp.sum((error**2 - policy) * mask) / count
            if mistake == "auxiliary loss without mask":
                total += jnp.mean(value[:-1] ** 2) / psum(1, axis_name)
            return total

        value, gradients = jax.value_and_grad(loss)(weights)
        if axis_name is not None and mistake in ("mean over devices", "mean of local means"):
            gradients, value = jax.lax.pmean((gradients, value), axis_name)
        elif mistake != "no sum over devices":
            gradients, value = psum((gradients, value), axis_name)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state.opt_state, gradients)
        new = jax.tree.map(lambda w, m: w - RATE * m, weights, momentum)
        new = weights if mistake in ("learns nothing", "policy stays") else new
        opt_state = state.opt_state if mistake == "learns nothing" else momentum
        extra = state.extra if mistake == "learns nothing" else scale
        extra = extra.astype(jnp.int32) if mistake == "state of another dtype" else extra
        updates = state.updates if mistake == "updates stay" else state.updates + 1
        named = {
            "metric of rows": {"loss": reward},
            "nested metric": {"loss": {"value": value}},
            "metric with a slash": {"aux/loss": value},
            "NaN as a metric": {"loss": value * jnp.nan},
        }
        params = ActParams(new | {"updates": state.params.weights["updates"] + 1})
        return AgentState(params, (), opt_state, extra, updates), UpdateOutput(named.get(mistake, {"loss": value}))

    return Agent(init, initial_core, act, update)


def in_minibatches(agent: Agent) -> Agent:
    """Return the agent with two steps in each update, each with half of the columns, in an order of each device's own."""

    def update(state, trajectory, key, *, axis_name=None):
        own = key if axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        updates = state.updates + 1
        for half in jnp.split(jax.random.permutation(own, trajectory.is_first.shape[1]), 2):
            part = map_trajectory(lambda x, h=half: x[:, h], lambda x, h=half: x[h], trajectory)
            state, output = agent.update(state, part, key, axis_name=axis_name)
        return state._replace(updates=updates), output

    return agent._replace(update=update)


def log_prob_of(logits, action):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def off_policy(mistake: str = "") -> Agent:
    """Return an actor-critic with a critic of both, for REAL; with "policy later" the policy learns in every third update."""
    width = 0.5

    def init(key):
        first, second = jax.random.split(key)
        policy = ActParams({"mean": 0.3 * jax.random.normal(first, (3, 2))})
        return AgentState(policy, jax.random.normal(second, (5, 1)), (), (), jnp.zeros((), jnp.int32))

    def density(noise, width):
        return jnp.sum(-0.5 * noise**2 - jnp.log(width) - 0.5 * jnp.log(2 * jnp.pi), -1)

    def act(params, key, observation, is_first, core, *, greedy=False):
        mean = observation @ params.weights["mean"]
        noise = jax.random.normal(jax.random.key(1) if mistake == "ignores the key" else key, mean.shape)
        noise = jnp.zeros_like(noise) if greedy else noise
        other = jax.random.normal(jax.random.fold_in(key, 1), mean.shape)
        shown = other if mistake == "log_prob of another draw" else noise
        log_prob = density(shown, 2 * width if mistake == "log_prob at another width" else width)
        return ActOutput(mean + width * noise, log_prob), core

    def update(state, trajectory, key, *, axis_name=None):
        batch = transition(trajectory, GAMMA, axis_name)
        count = jnp.maximum(psum(batch.mask.sum(), axis_name), 1.0)
        policy, critic = state.params.weights["mean"], state.learner_params
        noise = normal_columns(key, batch.action.shape, None if mistake == "the same noise" else axis_name)
        weight = batch.mask if mistake == "ignores importance weights" else batch.weight
        if mistake == "weights by the share's largest":
            weight = weight / jnp.maximum(weight.max(), 1e-3)
        if mistake == "weights by the share's mean":
            weight = weight / jnp.maximum(weight.mean(), 1e-3)
        if mistake == "weights by the largest of all columns" and not isinstance(trajectory.sampling, tuple):
            largest = trajectory.sampling.max()
            weight = weight / (largest if axis_name is None else jax.lax.pmax(largest, axis_name))
        acting = jnp.ones_like(batch.mask) if mistake == "policy without mask" else batch.acting

        def value(critic, observation, action):
            return jnp.tanh(jnp.concatenate([observation, action], -1) @ critic)[..., 0]

        following = value(critic, batch.next_observation, batch.next_observation @ policy + width * noise)
        target = batch.reward + batch.discount * following

        def critic_loss(critic):
            error = value(critic, batch.observation, batch.action) - target
            return jnp.sum(error**2 * weight) / count, jnp.abs(error)

        def policy_loss(policy):
            return -jnp.sum(value(critic, batch.observation, batch.observation @ policy) * acting) / count

        slope, error = jax.grad(critic_loss, has_aux=True)(critic)
        slope, of_policy = psum((slope, jax.grad(policy_loss)(policy)), axis_name)
        learns = (state.updates + 1) % 3 == 0 if mistake == "policy later" else True
        policy = jnp.where(learns, policy - RATE * of_policy, policy)
        priorities = error * batch.mask
        priorities = {
            "one priority": error.mean(),
            "NaN priorities": error * jnp.nan,
            "signed priorities": error - 1.0,
        }.get(mistake, priorities)
        metrics = {"error": masked_mean(error, batch.mask, axis_name)}
        critic = critic if mistake == "critic stays" else critic - RATE * slope
        new = AgentState(ActParams({"mean": policy}), critic, (), (), state.updates + 1)
        return new, UpdateOutput(metrics, priorities)

    return Agent(init, lambda batch_size: (), act, update)
