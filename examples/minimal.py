"""jsrl in one file: an actor, an inference server and a learner, three processes joined by three streams.

`python examples/minimal.py` trains CartPole-v1 by PPO until the mean return of 100 episodes is 475.

    actor      --- observations, actions back --->  inference server
    actor      --- trajectories ----------------->  learner
    learner    --- newest params ---------------->  inference server

`jsrl run ppo_cartpole --placement served` starts the same three workers. What a run adds: supervision and restarts, snapshots,
evaluation, metrics, a report, several hosts. The algorithm (jsrl/agents/ppo.py), the environments (jsrl/envs) and the streams
(jsrl/transport) are those of a run.
"""

import argparse
import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import jsrl
from jsrl import extend

ENV = jsrl.EnvConfig("CartPole-v1")
NUM_GROUPS, GROUP_SIZE, NUM_ROWS = 2, 8, 64  # one group is stepped while the other waits for its actions
NUM_UPDATES = 150
EPISODES = 100  # whose mean return is to reach the goal
CONNECT_S, END_S = 120.0, 60.0  # for all processes to start, and for each to end

# The two ends of a stream compare their schemas: shapes and types of what is sent. Only such arrays travel, never objects.
SPEC = extend.make_spec(ENV)
ACTS = extend.InferenceSpec(SPEC.observation, SPEC.action.array, extend.ArraySpec((), "float32"), extras=(), core=())
ROWS = extend.make_trajectory_spec(SPEC, extras=(), core=(), num_rows=NUM_ROWS, num_envs=GROUP_SIZE)


def make_agent():
    """Return the algorithm: four pure functions, init, initial_core, act and update. It loads JAX, which actors need not."""
    schedule = {"learning_rate": 3e-3, "schedule": "linear", "total_updates": NUM_UPDATES}
    return extend.build_agent(jsrl.PPOConfig(**schedule, gamma=0.98, gae_lambda=0.9, num_epochs=8), SPEC)


# -- the actor: steps environments, and writes what happens into trajectories -----------------------------------------


def run_actor(run):
    """Step all groups of environments, in the order in which their actions arrive."""
    me = extend.ProducerId("actor-0", incarnation=0)
    samples = extend.connect_samples(run.address("samples"), ROWS, me, NUM_GROUPS, CONNECT_S, check=run.check)
    sizes = dict.fromkeys(range(NUM_GROUPS), GROUP_SIZE)
    server = extend.connect_inference(run.address("inference"), ACTS, me, sizes, CONNECT_S, check=run.check)
    returns = collections.deque(maxlen=EPISODES)
    groups = [play(group, run, samples, returns) for group in range(NUM_GROUPS)]
    for group, requests in enumerate(groups):
        server.send(group, next(requests))
    while len(returns) < EPISODES or np.mean(returns) < run.goal:
        group, reply = run.patiently(server.receive)
        server.send(group, groups[group].send(reply))
    print(f"solved: the last {EPISODES} episodes have the mean return {np.mean(returns):.1f}")


def play(group, run, samples, returns):
    """Yield the requests of one group of environments, one for each step, and get the reply to each.

    The rows of a trajectory are written in place: with shared memory the learner reads the same bytes.
    """
    env = jsrl.make_env(ENV, GROUP_SIZE, seed=0, group=group)
    now, trajectory = env.reset(), 0
    while True:
        block = run.patiently(samples.reserve)  # waits while the learner is behind
        rows = block.trajectory
        for t in range(NUM_ROWS):
            rows.observation[t], rows.is_first[t], rows.acts[t] = now.observation, now.is_first, now.acts
            # Synchronous: all rows of trajectory k are played with the params after k updates, or later ones.
            step = trajectory * NUM_ROWS + t
            reply = yield extend.Request(now.observation, now.is_first, min_updates=trajectory, step=step)
            rows.action[t], rows.log_prob[t], rows.version[t] = reply.action, reply.log_prob, reply.version
            now = env.step(reply.action)
            rows.reward[t], rows.discount[t] = now.reward, now.discount
            returns.extend(episode.return_ for episode in now.episodes)
        # The bootstrap row, which is row 0 of the next trajectory, too.
        rows.observation[-1], rows.is_first[-1], rows.acts[-1] = now.observation, now.is_first, now.acts
        block.commit(group)
        trajectory += 1
        if group == 0 and trajectory % 10 == 0:
            print(f"{trajectory * NUM_ROWS * GROUP_SIZE * NUM_GROUPS} env steps: return {np.mean(returns):.1f}")


# -- the inference server: chooses actions for all groups that wait, with the newest params ---------------------------


def run_inference(run):
    """Answer requests."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # waking a thread takes longer than this network
    agent = make_agent()
    server = extend.bind_inference(run.address("inference"), ACTS)
    params = extend.connect_params(run.address("params"))
    structure = jax.tree.structure(jax.eval_shape(agent.init, jax.random.key(0)).params)

    @jax.jit
    def act(weights, number, observation, is_first):
        key = jax.random.fold_in(jax.random.key(1), number)
        output, _ = agent.act(weights, key, observation, is_first, core=())
        return output.action, output.log_prob

    weights, version, waiting, batches = None, -1, [], 0
    while not run.is_over:
        if (newer := params.poll()) is not None:
            version, leaves = newer
            weights = jax.device_put(jax.tree.unflatten(structure, leaves))
        # Those that wait here ask for newer params: look for these again soon.
        waiting += server.collect(max_rows=NUM_GROUPS * GROUP_SIZE, max_wait_s=0.002 if waiting else 0.1)
        updates = -1 if weights is None else extend.version_updates(version)
        ready = [one for one in waiting if one.request.min_updates <= updates]
        waiting = [one for one in waiting if one.request.min_updates > updates]
        if not ready:
            continue
        seen = np.concatenate([one.request.observation for one in ready])
        is_first = np.concatenate([one.request.is_first for one in ready])
        actions, log_probs = (np.split(np.asarray(x), len(ready)) for x in act(weights, batches, seen, is_first))
        batches += 1
        for one, action, log_prob in zip(ready, actions, log_probs, strict=True):
            server.reply(one, extend.Reply(action, log_prob, (), version))


# -- the learner: turns trajectories into params ----------------------------------------------------------------------


def run_learner(run):
    """Make an update of each batch, one trajectory of every group, and publish its params."""
    import jax

    agent = make_agent()
    samples, params = extend.bind_samples(run.address("samples"), ROWS), extend.bind_params(run.address("params"))
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    for updates in range(NUM_UPDATES):
        params.publish(0, extend.make_version(0, updates), [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)])
        # No group begins its next trajectory before this update, so the next ones are one of each group.
        leases = [run.patiently(samples.get) for _ in range(NUM_GROUPS)]
        batch = extend.map_tree(lambda *parts: np.concatenate(parts, axis=1), *(lease.trajectory for lease in leases))
        for lease in leases:
            samples.release(lease)  # its memory may be written again
        state, _ = update(state, batch, jax.random.fold_in(jax.random.key(2), updates))
    print(f"{NUM_UPDATES} updates are made; trajectories: {samples.ledger.counts}")


# -- the processes ----------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """What all processes know. folder: for the memory of the streams, and the file `over` once the processes are to end."""

    main_pid: int
    folder: str
    transport: str
    goal: float

    def address(self, stream):
        """Return the address of a stream; its beginning chooses the transport."""
        return f"shm:{self.folder}/{stream}" if self.transport == "shm" else f"ipc://{self.folder}/{stream}"

    @property
    def is_over(self):
        """Whether this process is to end: it was asked to, or the main process was killed."""
        return Path(self.folder, "over").exists() or self.main_pid not in (os.getpid(), os.getppid())

    def end(self):
        """Ask all processes to end."""
        Path(self.folder, "over").touch()

    def check(self):
        """End this process if it is to end."""
        if self.is_over:
            sys.exit()

    def patiently(self, wait):
        """Return what `wait(timeout_s)` returns. All waits of streams have a deadline: look now and then whether to end."""
        while True:
            self.check()
            with contextlib.suppress(extend.StreamTimeout):
                return wait(0.2)


ROLES = {"actor": run_actor, "inference-server": run_inference, "learner": run_learner}


def run_role(name, run):
    """Run one of the processes; the first that is done ends all."""
    try:
        run.check()
        ROLES[name](run)
    except extend.StreamClosed:  # the process at the other end has ended: let the main process say which
        time.sleep(2.0)
        run.check()
        raise
    run.end()


def run_all(run):
    """Start the processes, wait for the first that ends, and end the others; return the exit code."""
    codes = []  # why it ends before its goal: 130 for Ctrl-C, 1 for a process that died
    signal.signal(signal.SIGINT, lambda *_: codes.append(130))
    command = [sys.executable, __file__, "--role"]  # in groups of their own, so that Ctrl-C reaches this process alone
    processes = {name: subprocess.Popen([*command, json.dumps([name, *run])], process_group=0) for name in ROLES}
    while not (codes or run.is_over):
        time.sleep(0.1)
        for name, process in processes.items():
            if process.poll():
                print(f"the {name} died with exit code {process.returncode}")
                codes.append(1)
    if 130 in codes:
        print("interrupted")
    run.end()
    for name, process in processes.items():
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            print(f"the {name} did not end within {END_S:g} s, and is killed")
            process.kill()
            process.wait()
    print("all processes have ended")
    return codes[0] if codes else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transport", choices=("shm", "ipc"), default="shm", help="shared memory, or Unix sockets")
    parser.add_argument("--goal", type=float, default=475.0, help=f"mean return of {EPISODES} episodes")
    parser.add_argument("--role", type=json.loads, help=argparse.SUPPRESS)  # of a process that the main process starts
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    if options.role:
        sys.exit(run_role(options.role[0], Run(*options.role[1:])))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # two processes cannot both reserve the memory of one GPU
    with tempfile.TemporaryDirectory(prefix="jsrl-minimal-", dir="/dev/shm") as folder:
        code = run_all(Run(os.getpid(), folder, options.transport, options.goal))
    sys.exit(code)
