"""The evaluator plays an exact number of episodes per slot; the learner counts, publishes and refuses."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, Update, UpdateOutput
from jsrl.agents.finite import with_output_check, with_state_check
from jsrl.envs.base import EnvStep, Episode
from jsrl.errors import AgentFault, NonFiniteUpdate
from jsrl.experiment import EvaluatorConfig
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.base import ProducerId
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_trajectory_spec, make_version, map_tree
from jsrl.workers.evaluator.worker import Evaluator
from jsrl.workers.learner.batching import Batcher, BatchPlan
from jsrl.workers.learner.checks import CountsItself, FiniteCheck
from jsrl.workers.learner.kind import RESERVED
from jsrl.workers.learner.outlet import Outlet
from jsrl.workers.learner.seams import Gate, Skip
from jsrl.workers.learner.updaters import OwnUpdate
from jsrl.workers.learner.worker import Learner, LearnerSettings
from jsrl.workers.play import PlayedPolicy, PlayerSettings
from tests.workers.event_recorder import EventRecorder, taken

ENV = EnvSpec(ArraySpec((2,), "float32"), Discrete(2))
T, B = 3, 2
SPEC = make_trajectory_spec(ENV, (), (), num_rows=T, num_envs=B)
numbers = itertools.count()


def init(key) -> AgentState:
    return AgentState(ActParams({"w": jnp.zeros(2)}), (), (), (), jnp.int32(0))


def act(params, key, observation, is_first, core, *, greedy=False):
    rows = observation.shape[0]
    return ActOutput(jnp.full(rows, 1 if greedy else 0, jnp.int32), jnp.zeros(rows)), core


def update(state, trajectory, key, *, axis_name=None):
    mean = trajectory.reward[:-1].mean()
    params = ActParams({"w": state.params.weights["w"] + mean})
    return state._replace(params=params, updates=state.updates + 1), UpdateOutput({"loss": mean, "entropy": mean * 0})


def remembering_act(params, key, observation, is_first, core, *, greedy=False):
    """Act 1 in the first five steps since the reset."""
    seen = jnp.where(is_first, 0, core)
    return ActOutput((seen < 5).astype(jnp.int32), jnp.zeros(len(seen))), seen + 1


def act_by_weights(params, key, observation, is_first, core, *, greedy=False):
    """Act by the weights: every episode's return is their value higher."""
    rows = observation.shape[0]
    return ActOutput(jnp.full(rows, params.weights["w"][0], jnp.int32), jnp.zeros(rows)), core


AGENT = Agent(init, lambda rows: (), act, update)
BY_WEIGHTS = Agent(init, lambda rows: (), act_by_weights, update)
REMEMBERING = Agent(init, lambda rows: jnp.zeros(rows, jnp.int32), remembering_act, update)


class Uneven:
    """Slot b ends an episode every 1 + 3 b steps, with return b + (1 where actions are greedy): short ones end often."""

    spec = ENV

    def __init__(self, num_envs: int, seed: int) -> None:
        self.num_envs, self.seed, self.closed = num_envs, seed, False

    def _step(self, episodes: list[Episode], is_first) -> EnvStep:
        ones = np.ones(self.num_envs, np.float32)
        return EnvStep(np.zeros((self.num_envs, 2), np.float32), is_first, ones, ones, ones.astype(np.uint8), episodes)

    def reset(self) -> EnvStep:
        self.clock = 0
        return self._step([], np.ones(self.num_envs, bool))

    def step(self, action) -> EnvStep:
        self.clock += 1
        over = [b for b in range(self.num_envs) if self.clock % (1 + 3 * b) == 0]
        episodes = [Episode(b, float(b + action[b]), 1 + 3 * b, True) for b in over]
        return self._step(episodes, np.zeros(self.num_envs, bool))

    def close(self) -> None:
        self.closed = True


class Params:
    def __init__(self) -> None:
        self.newest = None

    def publish(self, updates: int, value: float = 0.0) -> None:
        self.newest = (make_version(0, updates), [np.full(2, value, np.float32)])

    def poll(self, policy: int = 0):
        newest, self.newest = self.newest, None
        return newest

    def close(self) -> None: ...


class EvaluatorRig:
    def __init__(self, folder: Path, agent: Agent = AGENT, **changes) -> None:
        values = {"seed": 7, "period_updates": 5, "env_steps_per_batch": 100, "episodes": 10, "final_episodes": 6,
                  "num_envs": 4} | changes  # fmt: skip
        self.envs: list[Uneven] = []
        self.params, self.heard = Params(), EventRecorder()
        settings = PlayerSettings(**taken(values, PlayerSettings))
        config = EvaluatorConfig(**taken(values, EvaluatorConfig))

        def make_env(num_envs: int, seed: int) -> Uneven:
            self.envs.append(Uneven(num_envs, seed))
            return self.envs[-1]

        self.store = SnapshotStore(folder / "params")
        played = PlayedPolicy(agent, ENV, lambda: self.params, settings.seed + 1)
        self.evaluator = Evaluator([played], settings, config, make_env, self.store, self.heard, **values)
        self.evaluator.setup()

    def play(self) -> None:
        for _ in range(200):
            if not self.evaluator.due:
                return
            self.evaluator.step()


class Opposed(Uneven):
    """What one of two seats gains, the other loses; in `shift` of the slots both gain 1 more."""

    shift = 0

    def step(self, action) -> EnvStep:
        step = super().step(action)
        both = [float(episode.slot < self.shift) for episode in step.episodes]
        told = [
            replace(episode, return_=more, returns=(more + 2.0, more - 2.0))
            for episode, more in zip(step.episodes, both, strict=True)
        ]
        return step._replace(episodes=told)


@pytest.mark.parametrize(("joins", "shift", "warned"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_a_team_whose_seats_returns_cancel_is_warned(tmp_path, monkeypatch, joins, shift, warned):
    monkeypatch.setattr(sys.modules[__name__], "Uneven", Opposed)
    monkeypatch.setattr(Opposed, "shift", shift)
    rig = EvaluatorRig(tmp_path, joins_rewards=joins)
    rig.params.publish(5)
    rig.play()
    told = [event["text"] for event in rig.heard.named("warning")]
    assert len(rig.heard.named("evaluated")) == 1 and bool(told) == warned
    assert not warned or "returns of the policy's seats sum to 0 in each of 10 episodes" in told[0]


def test_environments_of_the_evaluator_share_the_time_to_make_them(tmp_path, monkeypatch):
    limits = []
    monkeypatch.setattr(EventRecorder, "entering", lambda heard, call, steps: limits.append(steps))
    EvaluatorRig(tmp_path, num_envs=4)
    assert limits == [4]


def test_the_evaluator_lowers_its_priority_unless_it_shares_its_process(tmp_path, monkeypatch):
    lowered = []
    monkeypatch.setattr("jsrl.workers.play.lower_priority", lowered.append)
    EvaluatorRig(tmp_path)
    assert lowered == []
    EvaluatorRig(tmp_path, niceness=5)
    assert lowered == [5]


def test_calls_of_the_evaluators_environment_name_the_slot(tmp_path, monkeypatch):
    rig, calls = EvaluatorRig(tmp_path), []
    monkeypatch.setattr(Uneven, "where", lambda env: f"slot {env.clock}", raising=False)
    monkeypatch.setattr(rig.heard, "entering", lambda call, steps: calls.append(call))
    rig.params.publish(5)
    rig.play()
    assert calls and str(calls[-1]).endswith(f"(slot {rig.envs[0].clock})")


def test_every_slot_plays_its_share_of_episodes(tmp_path):
    """10 episodes on 4 slots: 3, 3, 2, 2; the mean is not biased towards the slot with short episodes."""
    rig = EvaluatorRig(tmp_path)
    rig.params.publish(3)
    rig.play()
    (told,) = rig.heard.named("evaluated")
    assert told["episodes"] == 10
    returns = [1.0] * 3 + [2.0] * 3 + [3.0] * 2 + [4.0] * 2  # greedy: b + 1
    assert told["return_mean"] == pytest.approx(np.mean(returns))
    assert told["return_ci95"] == pytest.approx(2.262 * np.std(returns, ddof=1) / np.sqrt(10), rel=1e-3)
    assert (told["updates"], told["env_steps"]) == (3, 300)
    assert told["metrics"]["evaluator/return_mean"] == told["return_mean"]
    rig.evaluator.close()


def endless(env, action):
    """Step an environment whose first slot never ends an episode; the others end one at every step."""
    env.clock += 1
    episodes = [Episode(slot, 1.0, 1, True) for slot in range(1, env.num_envs)]
    return env._step(episodes, np.arange(env.num_envs) > 0)


@pytest.mark.parametrize("final", [False, True])
def test_an_evaluation_whose_episode_has_no_end_is_cut(tmp_path, monkeypatch, final):
    """Otherwise a serial run stopped at its first evaluation for ever, and a run in processes at the final one."""
    rig = EvaluatorRig(tmp_path, max_steps=50)
    monkeypatch.setattr(Uneven, "step", endless)
    rig.params.publish(8)
    rig.evaluator.begin_final("latest") if final else None
    rig.play()
    assert not rig.evaluator.due and max(getattr(env, "clock", 0) for env in rig.envs) == 50
    (warning,) = rig.heard.named("warning")
    assert "did not end within 50 steps" in warning["text"] and "--env.max-episode-steps" in warning["text"]
    assert not rig.heard.named("evaluated") and len(rig.heard.named("skipped finally")) == final
    assert rig.evaluator.report()[0]["evaluator/cut"] == 1
    rig.evaluator.close()


def test_an_evaluation_that_takes_too_long_is_cut(tmp_path):
    rig = EvaluatorRig(tmp_path, max_s=0.0, max_steps=10**9)
    rig.params.publish(8)
    Uneven.step, step = endless, Uneven.step
    try:
        rig.evaluator.step()
    finally:
        Uneven.step = step
    assert "longer than 0 s (deadlines.evaluation_s)" in rig.heard.named("warning")[0]["text"]
    rig.evaluator.close()


def test_evaluations_of_a_serial_run_play_a_tenth_of_the_env_steps(tmp_path):
    """An evaluation is 10 episodes on 4 slots: 22 steps of each slot; an update has 100 env steps."""
    rig = EvaluatorRig(tmp_path, max_share=0.1, period_updates=1)
    for updates in range(40):
        rig.params.publish(updates)
        rig.play()
    scored = [told["updates"] for told in rig.heard.named("evaluated")]
    played = rig.evaluator._played
    assert scored[0] == 0 and len(scored) >= 3
    assert played - played // len(scored) <= 0.1 * 100 * scored[-1], "all but the last"
    rig.evaluator.close()


def test_each_evaluation_starts_with_a_fresh_core(tmp_path):
    rig = EvaluatorRig(tmp_path, REMEMBERING, sampled_episodes=10)
    for updates in (0, 5, 10):
        rig.params.publish(updates)
        rig.play()
    rig.evaluator.begin_final("latest")
    rig.play()
    first, *later = rig.heard.named("evaluated")
    # slots end every 1, 4, 7, 10 steps: 0 + 1 three times, 1 + 1 and twice 1 + 0, and so on
    assert first["return_mean"] == pytest.approx((3 * 1.0 + 2.0 + 2 * 1.0 + 2 * 2.0 + 2 * 3.0) / 10)
    assert [told["return_mean"] for told in later] == [first["return_mean"]] * 2
    assert len(rig.heard.named("evaluated finally")) == 1
    rig.evaluator.close()


def test_evaluations_run_once_per_period_and_the_best_is_kept(tmp_path):
    rig = EvaluatorRig(tmp_path)
    for updates in (0, 2, 4, 5, 9, 12):
        rig.params.publish(updates)
        rig.play()
    assert [told["updates"] for told in rig.heard.named("evaluated")] == [0, 5, 12]
    rig.evaluator.close()
    best = SnapshotStore(tmp_path / "params").load_snapshot("best")
    assert best.version == make_version(0, 12), "of equal scores the newest: in self-play all are 0"
    assert best.meta["env_steps"] == 1200


@pytest.mark.parametrize(("goal", "seconds"), [(None, 0), (2.5, 0), (2.0, 2)])
def test_goal_score_is_confirmed_with_other_seeds(tmp_path, goal, seconds):
    """Each slot's return is its number + 1, so that 10 episodes on 4 slots average 2.3."""
    rig = EvaluatorRig(tmp_path, goal=goal)
    for updates in (0, 5):
        rig.params.publish(updates)
        rig.play()
    assert len(rig.heard.named("evaluated")) == 2
    told = rig.heard.named("confirmed")
    assert [one["updates"] for one in told] == [0, 5][:seconds]
    assert all(one["episodes"] == 10 for one in told)
    assert len(rig.evaluator._envs) == 1 + (seconds > 0)  # its own environments
    rig.evaluator.close()


def test_sampled_episodes_are_reported_separately(tmp_path):
    rig = EvaluatorRig(tmp_path, sampled_episodes=4)
    for updates in (0, 5):
        rig.params.publish(updates)
        rig.play()
    told = rig.heard.named("evaluated")
    assert [one["updates"] for one in told] == [0, 5]
    for one in told:  # each with the sampled episodes of the same params
        assert one["metrics"]["evaluator/sampled_return_mean"] == pytest.approx(1.5)  # sampled: b
        assert one["metrics"]["evaluator/return_mean"] > 2
    rig.evaluator.close()


def test_final_evaluation_has_its_own_seeds_and_episode_number(tmp_path):
    rig = EvaluatorRig(tmp_path)
    rig.params.publish(3)
    rig.play()
    rig.evaluator.command(Command("final", {"which": "best"}))
    rig.play()
    (told,) = rig.heard.named("evaluated finally")
    assert told["episodes"] == 6
    assert told["version_updates"] == 3
    assert rig.evaluator.report()[1] == {"evaluated finally": {k: v for k, v in told.items() if k != "text"}}
    seeds = [env.seed for env in rig.envs]
    assert len(seeds) == len(set(seeds)) == 2
    assert 7 not in seeds  # those of the training environments
    rig.evaluator.close()
    assert all(env.closed for env in rig.envs)


def test_final_evaluation_waits_for_the_last_params(tmp_path):
    rig = EvaluatorRig(tmp_path)
    rig.params.publish(3)
    rig.play()
    rig.evaluator.command(Command("final", {"which": "latest", "updates": {"": 9}}))
    for updates in (None, 8, 9):
        assert rig.heard.named("evaluated finally") == []
        for _ in range(3):
            rig.evaluator.step()
        if updates is not None:
            rig.params.publish(updates)
    rig.play()
    (told,) = rig.heard.named("evaluated finally")
    assert told["version_updates"] == 9 and not rig.heard.named("warning")
    rig.params.publish(20)
    assert not rig.evaluator.due  # nothing is scored after the end
    rig.evaluator.close()


@pytest.mark.parametrize("updates", [3, None])
def test_final_evaluation_plays_older_params_if_the_last_ones_do_not_arrive(updates, tmp_path):
    rig = EvaluatorRig(tmp_path, last_params_s=0.0)
    if updates is not None:
        rig.params.publish(updates)
    rig.evaluator.command(Command("final", {"which": "latest", "updates": {"": 9}}))
    rig.play()
    (warning,) = rig.heard.named("warning")
    if updates is None:
        assert warning["text"].startswith("no params arrived within 0 s") and rig.heard.named("skipped finally")
        return
    assert "version 9, did not arrive" in warning["text"] and warning["text"].endswith("plays version 3")
    assert [told["version_updates"] for told in rig.heard.named("evaluated finally")] == [3]


def test_final_evaluation_waits_for_the_first_params(tmp_path):
    rig = EvaluatorRig(tmp_path)
    rig.evaluator.command(Command("final", {"which": "latest"}))
    rig.evaluator.step()
    rig.params.publish(3)
    rig.play()
    (told,) = rig.heard.named("evaluated finally")
    assert (told["version_updates"], told["episodes"]) == (3, 6)


@pytest.mark.parametrize(("better", "played"), [(False, 3), (True, 8)])
def test_final_evaluation_after_a_resume_plays_the_best_params_of_all_sessions(better, played, tmp_path):
    rig = EvaluatorRig(tmp_path, BY_WEIGHTS)
    rig.params.publish(3, value=1.0)
    rig.play()
    rig.evaluator.close()
    rig = EvaluatorRig(tmp_path, BY_WEIGHTS)
    rig.params.publish(8, value=2.0 if better else 0.0)
    rig.play()
    rig.params.publish(9, value=0.0)
    rig.evaluator.begin_final("best")
    rig.play()
    (told,) = rig.heard.named("evaluated finally")
    assert told["version_updates"] == played
    assert told["return_mean"] == pytest.approx((2 * 0 + 2 * 1 + 2 + 3) / 6 + (2.0 if better else 1.0))
    rig.evaluator.close()


def test_a_broken_best_snapshot_is_named_and_replaced(tmp_path):
    rig = EvaluatorRig(tmp_path)
    rig.params.publish(3)
    rig.play()
    rig.evaluator.close()
    folder = tmp_path / "params" / str(make_version(0, 3))
    (folder / "manifest.json").write_text("{")
    rig = EvaluatorRig(tmp_path)
    (warning,) = rig.heard.named("warning")
    assert str(folder) in warning["text"]
    rig.params.publish(8)
    rig.play()
    rig.evaluator.begin_final("best")
    rig.play()
    (told,) = rig.heard.named("evaluated finally")
    assert told["version_updates"] == 8
    rig.evaluator.close()
    assert rig.store.load_snapshot("best").version == make_version(0, 8)


# -- the learner ------------------------------------------------------------------------------------------------------


class Published:
    address = "nowhere"

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.values: list[np.ndarray] = []

    def publish(self, policy, version, values) -> None:
        self.versions.append(version)
        self.values.append(np.array(values[0]))

    def close(self) -> None: ...


class LearnerRig:
    def __init__(
        self,
        folder: Path,
        *,
        total: int = 4,
        reuse: int = 1,
        start: int = 0,
        generation: int = 0,
        change: Update = update,
    ) -> None:
        self.consumer = bind_samples(f"local:learner-{next(numbers)}", SPEC, blocks_per_producer=8)
        self.producer = connect_samples(self.consumer.address, SPEC, ProducerId("actor-0", 0), 1, 1.0)
        steps, plan = (
            total // reuse * T * B,
            BatchPlan(
                "fifo",
                (0,),
                B,
                B,
                T,
                env_steps=T * B,
                max_lag=None,
                reuse=reuse,
                start_updates=start,
                generation=generation,
            ),
        )
        settings = LearnerSettings(steps, generation, start_updates=start, calls_per_batch=reuse, poll_s=0.0)
        self.published, self.heard, self.folder = Published(), EventRecorder(), folder
        source = Batcher(self.consumer, SPEC, plan)
        updater = OwnUpdate(AGENT._replace(update=change), jax.local_devices()[:1], jax.random.key(0), donate=False)
        store = SnapshotStore(folder / "state")
        outlet = Outlet(lambda: self.published, store, self.heard, Meter("learner"))
        gates = [FiniteCheck(updater, folder), CountsItself(1)]
        begin = lambda: updater.make(jax.random.key(0))  # noqa: E731
        self.learner = Learner(updater, begin, lambda: source, outlet, settings, self.heard, gates)
        self.learner.setup()

    def put(self, reward: float, version: int = 0) -> None:
        trajectory = map_tree(lambda leaf: leaf.zeros(), SPEC)
        trajectory.reward[:] = reward
        trajectory.version[:] = version
        self.producer.put(trajectory, 0, 1.0)


def test_versions_metrics_and_ledger_of_a_few_updates(tmp_path):
    rig = LearnerRig(tmp_path)
    assert rig.learner.step() == 0  # nothing arrived
    assert rig.learner.report()[1]["finished"] is False
    for reward in (1.0, 2.0, 3.0, 4.0):
        rig.put(reward, make_version(0, 0))
        assert rig.learner.step() == 1
    assert rig.published.versions == [make_version(0, n) for n in range(5)]
    np.testing.assert_allclose([v[0] for v in rig.published.values], [0, 1, 3, 6, 10])
    metrics, facts = rig.learner.report()
    assert metrics["learner/loss"] == pytest.approx(2.5)  # the mean of the updates since the last report
    assert facts["updates"] == 4
    assert facts["env_steps"] == 4 * T * B
    assert facts["ledger"] == {"received": 4, "consumed": 4, "in_flight": 0, "dropped": {}}
    assert [e["updates"] for e in rig.heard.named("finished")] == [4] and facts["finished"] is True
    rig.put(9.0)
    assert rig.learner.step() == 0  # all are made
    assert len(rig.published.versions) == 5
    facts = rig.learner.close()
    assert facts["ledger"]["received"] == 5
    assert facts["ledger"]["dropped"] == {"closed": 1}
    final = SnapshotStore(tmp_path / "state").load_snapshot("final")
    assert final.meta["updates"] == 4
    np.testing.assert_allclose(final.tree["state"]["params"]["weights"]["w"], 10.0)


def test_final_snapshot_that_fails_is_reported_even_if_earlier_ones_failed(tmp_path, monkeypatch):
    def full(self, job):
        raise OSError("No space left on device")

    monkeypatch.setattr(SnapshotStore, "_write", full)
    rig = LearnerRig(tmp_path, total=1)
    rig.put(1.0)
    rig.learner.step()
    rig.learner.save(wait=True)
    facts = rig.learner.close()
    shown = {facts["once"]: facts["text"] for facts in reversed(rig.heard.named("warning"))}
    assert set(shown) == {"snapshots", "final snapshot"}
    assert shown["final snapshot"].startswith("the final snapshot of update 1 failed: snapshot 1 was not written")
    assert facts["unsaved"] == shown["final snapshot"].partition(". ")[0]


def test_finished_learner_saves_once_while_others_continue(tmp_path, monkeypatch):
    rig, saved = LearnerRig(tmp_path, total=1), []
    rig.put(1.0)
    assert rig.learner.step() == 1
    monkeypatch.setattr(rig.learner, "save", lambda **given: saved.append(rig.learner.updates))
    rig.learner.step()
    assert saved == []  # not due yet
    monkeypatch.setattr(rig.learner, "_snapshot_at", 0.0)
    for _ in range(3):
        rig.learner.step()
    assert saved == [1]


def test_finished_learner_waits_for_the_other_learners(tmp_path):
    rig = LearnerRig(tmp_path, total=1)
    rig.put(1.0)
    rig.learner.step()
    rig.learner.meter.begin()
    for _ in range(3):
        rig.learner.step()
    shares = rig.learner.report()[0]
    assert shares["learner/wait_others_share"] > 0 and not shares.get("learner/wait_batch_share")
    rig.learner.close()


def test_a_batch_may_be_used_for_several_updates_and_counts_its_rows_once(tmp_path):
    rig = LearnerRig(tmp_path, total=4, reuse=2)
    rig.put(1.0)
    assert rig.learner.step() == 2
    assert (rig.learner.updates, rig.learner.env_steps) == (2, T * B)
    np.testing.assert_allclose(rig.published.values[-1], 2.0)
    rig.learner.close()


class SkipsOnce(Gate):
    """A gate that replaces the state once, and trains nothing on that batch."""

    skipped = False

    def before(self, now, batch):
        skips, self.skipped = not self.skipped, True
        return Skip(now.state._replace(params=ActParams({"w": jnp.full(2, 10.0)}))) if skips else now.state


def test_a_gate_may_replace_the_state_and_skip_the_update(tmp_path):
    rig = LearnerRig(tmp_path)
    rig.learner._gates = [SkipsOnce(), *rig.learner._gates]
    for _ in range(2):
        rig.put(1.0)
        rig.learner.step()
    np.testing.assert_allclose([v[0] for v in rig.published.values], [0, 10, 11])
    assert (rig.learner.number, rig.learner.updates) == (2, 1) and rig.published.versions == [0, 1, 2]
    rig.learner.close()


def test_a_batch_that_others_count_on_is_trained_on_before_the_last_snapshot(tmp_path):
    rig = LearnerRig(tmp_path)
    rig.put(1.0)
    promised = [rig.learner._source.next(1.0), None]
    rig.learner._lifecycle.last = lambda: promised.pop(0)
    assert rig.learner.close()["updates"] == 1
    assert SnapshotStore(tmp_path / "state").load_snapshot("final").meta["updates"] == 1


def update_with_noise(state, trajectory, key, *, axis_name=None):
    params = ActParams({"w": jax.random.normal(key, (2,))})
    return state._replace(params=params, updates=state.updates + 1), UpdateOutput({"loss": jnp.float32(0)})


def test_heartbeats_during_an_update_say_so(tmp_path, monkeypatch):
    rig, calls = LearnerRig(tmp_path), []
    monkeypatch.setattr(rig.heard, "entering", calls.append)
    monkeypatch.setattr(rig.heard, "left", lambda: calls.append("left"))
    rig.put(1.0)
    rig.learner.step()
    assert calls == ["an update", "left"]
    rig.learner.close()


@pytest.mark.parametrize("rise", [0, 2])
def test_an_update_that_does_not_count_itself_is_refused_and_not_published(rise, tmp_path):
    def update(state, trajectory, key, *, axis_name=None):
        new, output = update_with_noise(state, trajectory, key)
        return new._replace(updates=state.updates + rise), output

    rig = LearnerRig(tmp_path, change=update)
    rig.put(1.0)
    with pytest.raises(
        AgentFault, match=rf"a state with updates={rise}, expected 1: return updates=state.updates \+ 1"
    ):
        rig.learner.step()
    assert rig.published.versions == [make_version(0, 0)]


def test_every_update_has_its_own_key(tmp_path):
    rig = LearnerRig(tmp_path, change=update_with_noise)
    for _ in range(3):
        rig.put(1.0)
        rig.learner.step()
    assert len({values.tobytes() for values in rig.published.values[1:]}) == 3
    rig.learner.close()


def test_resumed_learner_continues_counting_in_a_new_generation(tmp_path):
    rig = LearnerRig(tmp_path, total=12, start=10, generation=3)
    rig.put(1.0, make_version(3, 10))
    rig.learner.step()
    assert rig.published.versions == [make_version(3, 10), make_version(3, 11)]
    rig.learner.close()


def test_non_finite_update_is_not_published_and_can_be_replayed(tmp_path):
    rig = LearnerRig(tmp_path)
    rig.put(1.0)
    rig.learner.step()
    rig.put(float("nan"))
    with pytest.raises(
        NonFiniteUpdate, match=r"update 2 made (loss|entropy) = nan .*nothing of it was published"
    ) as caught:
        rig.learner.step()
    assert "jsrl dev replay-update" in str(caught.value)
    assert rig.published.versions == [make_version(0, 0), make_version(0, 1)]
    store = SnapshotStore(tmp_path / "failed-update")
    saved = store.load_snapshot("latest")
    np.testing.assert_allclose(saved.tree["state"]["params"]["weights"]["w"], 1.0)  # the state before it
    assert np.isnan(saved.tree["batch"]["reward"]).any()
    assert rig.learner.updates == 1


def update_by_gradient(state, trajectory, key, *, axis_name=None):
    """Descend on sqrt(mean(reward)) + sum(w): at a reward of 0 the loss is finite, but its gradient is not."""

    def loss(w):
        return jnp.sqrt(trajectory.reward[:-1].mean() * w[0] ** 2) + w.sum()

    value, gradient = jax.value_and_grad(loss)(state.params.weights["w"])
    params = ActParams({"w": state.params.weights["w"] + gradient})
    return state._replace(params=params, updates=state.updates + 1), UpdateOutput({"loss": value})


def test_a_gradient_that_is_not_finite_is_neither_published_nor_saved(tmp_path):
    rig = LearnerRig(tmp_path, change=with_state_check(update_by_gradient))
    rig.put(0.0)
    with pytest.raises(NonFiniteUpdate, match=r"update 1 made a state with NaN .* nothing of it was published"):
        rig.learner.step()
    assert rig.published.versions == [make_version(0, 0)]
    saved = SnapshotStore(tmp_path / "state").load_snapshot("latest")
    assert saved.meta["updates"] == 0
    np.testing.assert_allclose(saved.tree["state"]["params"]["weights"]["w"], 0.0)


def test_update_without_an_update_output_is_refused():
    for returned, name in ((((), {"loss": 1.0}), r"\(tuple, dict\)"), ({"loss": 1.0}, "dict"), (None, "NoneType")):
        plain = with_output_check(lambda state, trajectory, key, *, axis_name=None, returned=returned: returned, ())
        with pytest.raises(AgentFault, match=rf"update returned {name}, expected \(AgentState, UpdateOutput\)"):
            plain(None, None, None)


@pytest.mark.parametrize("name", ["evaluator/return_mean", "update_share", "policy_lag_max", "state_finite"])
def test_metrics_of_an_agent_cannot_have_names_of_jsrl(name):
    """Otherwise they replaced jsrl's own: a score of the evaluator, the learner's shares of time."""

    def named(state, trajectory, key, *, axis_name=None):
        return state, UpdateOutput({"loss": 0.0, name: 12345.0})

    short = name.rpartition("/")[2].removesuffix("_share")
    with pytest.raises(AgentFault, match=rf"returned the metric '{name}', but .* learner/NAME: .* 'agent_{short}'"):
        with_output_check(named, RESERVED)(None, None, None)


def test_state_check_is_not_a_metric(tmp_path):
    rig = LearnerRig(tmp_path, change=with_state_check(update))
    rig.put(1.0)
    assert rig.learner.step() == 1
    assert [name for name in rig.learner.report()[0] if "finite" in name] == []


@pytest.mark.parametrize("place", ["params", "learner_params", "extra"])
@pytest.mark.parametrize("size", [3, 50_000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_state_check_covers_every_leaf(place, size, bad):
    def spoil(state, trajectory, key, *, axis_name=None):
        leaf = jnp.ones(size).at[size // 2].set(key)
        tree = {"a": jnp.ones(4, jnp.bfloat16), "b": leaf, "c": jnp.int32(3)}
        return state._replace(**{place: ActParams(tree) if place == "params" else tree}), UpdateOutput({})

    checked = jax.jit(with_state_check(spoil))
    good = checked(init(None), None, jnp.float32(-3.0))[1].metrics
    assert {name: float(value) for name, value in good.items()} == {"state_finite": 0.0}
    assert np.isnan(checked(init(None), None, jnp.float32(bad))[1].metrics["state_finite"])
