"""Faults that the suite must catch: each is a wrong line that looks right, with the tests that should fail.

`plant.py` inserts them one at a time. `old` occurs exactly once below `jsrl/`, so files may move freely.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One replacement of text. tests: the tests to run with it; one of them must fail."""

    name: str
    old: str
    new: str
    tests: tuple[str, ...]


UPDATE, RETURNS = "tests/agents/test_update.py", "tests/agents/test_returns.py"
NORMALIZATION = "tests/agents/test_normalization.py"
OFF_POLICY, MASKS = "tests/agents/test_off_policy.py", "tests/agents/test_masks.py"
ORACLES, HAPPO = "tests/agents/test_update_oracles.py", "tests/agents/test_happo.py"
ROWS, BATCHING = "tests/envs/test_rows.py", "tests/workers/test_batching.py"
ACTOR, ACTING = "tests/workers/test_actor.py", "tests/workers/test_acting.py"
PEERS = "tests/workers/test_peers.py"
DEVICE, HOST = "tests/replay/test_device.py", "tests/replay/test_host.py"
SAMPLES, PARAMS = "tests/transport/test_samples.py", "tests/transport/test_params.py"
LEDGER, SNAPSHOTS = "tests/transport/test_ledger_page.py", "tests/services/snapshots/test_snapshots.py"
SUPERVISION, RESTARTS = "tests/control/test_supervision.py", "tests/control/test_restarts.py"

FAULTS = (
    # -- agents
    Fault(
        "advantages flow across the start of an episode",
        "    cut = is_first[1:].astype(bool)\n",
        "    cut = jnp.zeros_like(is_first[1:], bool)\n",
        (RETURNS,),
    ),
    Fault(
        "the bootstrap value is that of the last played row",
        "    return parts, value[-1]\n",
        "    return parts, value[-2]\n",
        (RETURNS,),
    ),
    Fault(
        "the one-step error is not discounted",
        "delta_t = r_t + gamma * d_t * w_next - v_t",
        "delta_t = r_t + d_t * w_next - v_t",
        (RETURNS,),
    ),
    Fault(
        "V-trace forgets lambda",
        "lambda_ * jnp.minimum(rho, c_clip)",
        "jnp.minimum(rho, c_clip)",
        (RETURNS,),
    ),
    Fault(
        "PPO's importance ratio is detached from the gradient",
        "    ratio = jnp.exp(log_ratio)\n",
        "    ratio = jnp.exp(jax.lax.stop_gradient(log_ratio))\n",
        (f"{UPDATE}::test_update_is_pure_and_changes_the_expected_state[ppo]",),
    ),
    Fault(
        "acting ignores the action mask",
        "outputs = mask_outputs(jax.tree.map(lambda x: x[0], outputs), observation)",
        "outputs = jax.tree.map(lambda x: x[0], outputs)",
        (MASKS,),
    ),
    Fault(
        "PPO's loss ignores the action mask",
        "    outputs = ac.mask_outputs(outputs, batch.observation)\n    value = network.value(",
        "    value = network.value(",
        (MASKS,),
    ),
    Fault(
        "IMPALA's loss ignores the action mask",
        "    outputs = ac.mask_outputs(outputs, played_observation)\n",
        "",
        (MASKS,),
    ),
    Fault(
        "the observation normaliser is never moved by PPO",
        "new = pack(parts, weights, moments, opt_state,",
        "new = pack(parts, weights, state.params.moments, opt_state,",
        (f"{UPDATE}::test_update_is_pure_and_changes_the_expected_state[ppo]",),
    ),
    Fault(
        "merged variance counts the distance of means twice",
        "spread = jnp.square(distance) * share * (1.0 - share)",
        "spread = jnp.square(distance) * share",
        (NORMALIZATION,),
    ),
    Fault(
        "PopArt moves the bias to the wrong units",
        '"bias": (old.std * weights["bias"] + (old.mean - new.mean)) / new.std,',
        '"bias": (old.std * weights["bias"] + old.mean) / new.std,',
        (NORMALIZATION,),
    ),
    Fault(
        "R2D2 throws the burnt-in cores away",
        "        online, fixed = jax.lax.stop_gradient(tuple(cores))\n",
        "        jax.lax.stop_gradient(tuple(cores))\n",
        ("tests/agents/test_action_values.py::test_sequence_loss_equals_a_loop_over_rows",),
    ),
    Fault(
        "target networks move one update late",
        "    due = (updates + 1) % period == 0\n",
        "    due = updates % period == 0\n",
        (f"{OFF_POLICY}::test_targets_move_by_tau_every_period",),
    ),
    Fault(
        "PPO weighs V-trace's advantages by the ratio twice",
        "vtrace(rows, log_rho, weight_advantage=False, **options)",
        "vtrace(rows, log_rho, **options)",
        (f"{ORACLES}::test_ppo_with_vtrace_leaves_the_ratio_of_the_advantage_to_its_loss",),
    ),
    Fault(
        "SAC's critics step towards themselves",
        "fixed = (target, state.params.weights.network, state.extra.log_temperature)",
        "fixed = (online, state.params.weights.network, state.extra.log_temperature)",
        (f"{ORACLES}::test_critics_step_towards_every_target[sac]",),
    ),
    Fault(
        "SAC's temperature moves away from its target entropy",
        "            parts.optimizer, excess, temperature_opt",
        "            parts.optimizer, -excess, temperature_opt",
        (f"{ORACLES}::test_sacs_temperature_weighs_entropy_in_both_steps_and_rises_where_there_is_too_little[50.0]",),
    ),
    Fault(
        "R2D2 learns from observations that are not normalised",
        "burn_in(parts, weights, target, state.params.moments, trajectory, axis_name)",
        "burn_in(parts, weights, target, (), trajectory, axis_name)",
        (f"{ORACLES}::test_an_update_reads_observations_in_units_of_the_moments[r2d2]",),
    ),
    Fault(
        "HAPPO's loss ignores the action mask",
        "    return ac.mask_outputs(outputs, batch.observation)\n",
        "    return outputs\n",
        (f"{HAPPO}::test_one_allowed_action_gives_no_policy_gradient",),
    ),
    # -- directors
    Fault(
        "PSRO draws the rival's versions by the policy's own mixture",
        '        members = state["members"][rival]\n',
        '        members = state["members"][home.policy]\n',
        ("tests/directors/test_psro.py",),
    ),
    Fault(
        "pools offer versions of the policy's own pool",
        'for name in state["pools"][rival]["frozen"]]',
        'for name in state["pools"][home.policy]["frozen"]]',
        ("tests/directors/test_pools.py::test_opponents_come_from_the_rivals_pool",),
    ),
    # -- environments
    Fault(
        "a truncation is treated as a termination",
        "np.where(ended & terminated, np.float32(0.0)",
        "np.where(ended, np.float32(0.0)",
        (ROWS,),
    ),
    Fault(
        "two groups of environments share their seeds",
        "key = (group, slot) if attempt == 0 else (group, slot, attempt)",
        "key = (slot,) if attempt == 0 else (slot, attempt)",
        (ROWS,),
    ),
    Fault(
        "an episode's return goes on into the next episode",
        "            self._return[first] = 0.0\n            self._opened_at[first] = self._time\n        self._return +=",
        "            self._opened_at[first] = self._time\n        self._return +=",
        (ROWS,),
    ),
    Fault(
        "the snapshot of open episodes loses who starts over",
        '            "first": self.first.copy(),\n',
        '            "first": np.zeros_like(self.first),\n',
        (ROWS,),
    ),
    # -- replay
    Fault(
        "priorities go to the next window",
        "set_weights(ring.tree, ids, weights.astype(jnp.float32))",
        "set_weights(ring.tree, ids + 1, weights.astype(jnp.float32))",
        (f"{DEVICE}::test_priorities_set_probability_and_weight_of_a_window",),
    ),
    Fault(
        "windows reach one row past what was written",
        "(ring.written - shape.window - oldest) // shape.stride + 1",
        "(ring.written - shape.window - oldest) // shape.stride + 2",
        (f"{DEVICE}::test_windows_hold_the_written_rows_and_every_window_is_drawn",),
    ),
    Fault(
        "late priorities change windows that were overwritten",
        "(self._ids(places, times) == ids)",
        "(ids >= 0)",
        (HOST,),
    ),
    Fault(
        "replay joins by who sent a trajectory, not by who made it",
        "(entry.origin.producer.incarnation, entry.origin.sequence)",
        "(entry.producer.incarnation, entry.sequence)",
        ("tests/workers/test_transform.py",),
    ),
    Fault(
        "a trajectory that an actor gave up leaves no gap",
        "        self.progress.sequence += 1\n        if self.block is not None:\n",
        "        if self.block is not None:\n",
        (ACTOR,),
    ),
    Fault(
        "the second reader of a broadcast gets room without rows",
        "for block in self._blocks[1:]:\n",
        "for block in self._blocks[2:]:\n",
        (SAMPLES,),
    ),
    Fault(
        "the gap between two trajectories is not marked",
        "        marks[0] = after_gap\n",
        "",
        (HOST,),
    ),
    Fault(
        "a restored limiter forgets what was inserted for free",
        '        self.free, self.until = int(state["free"]), int(state["until"])\n',
        "",
        (HOST,),
    ),
    # -- transport
    Fault(
        "an incarnation is let in twice",
        "        if sender.incarnation <= latest:\n",
        "        if sender.incarnation < latest:\n",
        (f"{SAMPLES}::test_incarnation_is_admitted_once_and_only_rises[shm]",),
    ),
    Fault(
        "a producer that waits for room is not woken",
        "                peer.freed.append(block)\n                self._give_back(peer)\n",
        "                peer.freed.append(block)\n",
        (f"{SAMPLES}::test_room_made_while_a_producer_waits_wakes_it[shm]",),
    ),
    Fault(
        "closing counts one of many trajectories in flight",
        'self._ledger.finish("closed", held)',
        'self._ledger.finish("closed", 1)',
        (
            f"{SAMPLES}::test_closing_drops_what_is_in_flight[local]",
            f"{SAMPLES}::test_closing_drops_what_is_in_flight[shm]",
        ),
    ),
    Fault(
        "commits are read one place off",
        "                trajectory = peer.blocks[commit.block]\n",
        "                trajectory = peer.blocks[commit.block - 1]\n",
        (f"{SAMPLES}::test_trajectories_arrive_as_they_were_written[shm]",),
    ),
    Fault(
        "commits of a producer that died with unread messages are lost",
        "            except ConnectionResetError:  # it closed before it read everything; its own messages follow\n"
        "                continue\n",
        "            except ConnectionResetError:\n                break\n",
        (f"{SAMPLES}::test_commit_is_received_from_a_producer_that_died_with_unread_messages",),
    ),
    Fault(
        "a commit that fails is counted as one that was sent",
        "        except OSError:\n            self._page.begin(self._committed)\n",
        "        except OSError:\n",
        (
            "tests/transport/test_legs.py::test_producer_of_a_dead_consumer_commits_nothing_that_the_next_one_does_not_count",
        ),
    ),
    Fault(
        "a released block is announced with the next message only",
        "            self._unacknowledged[peer.route] = peer\n        self._thread.wake()\n",
        "            self._unacknowledged[peer.route] = peer\n",
        (f"{SAMPLES}::test_block_that_zeromq_gives_back_late_is_found_soon",),
    ),
    Fault(
        "a sample that is sent again is taken as a new one",
        "        if sample.index < peer.received:\n            return",
        "        if sample.index < peer.received:\n            pass",
        ("tests/transport/test_faults.py::test_every_trajectory_arrives_once_under_message_faults[duplicates]",),
    ),
    Fault(
        "params are not asked for again after the connection was lost",
        "            self._asked.clear()  # a request",
        "            pass  # a request",
        (f"{PARAMS}::test_subscriber_follows_a_restarted_publisher[ipc]",),
    ),
    Fault(
        "a client waits on though its connection to the server broke",
        "        return self._link.watch.broken\n",
        "        return False\n",
        ("tests/workers/test_peers.py::test_actor_whose_connection_to_a_living_server_broke_connects_again",),
    ),
    Fault(
        "the key of a host may use any worker's name",
        "        if not speaks_for(sender.name):\n",
        "        if not sender.name:\n",
        ("tests/transport/test_curve.py::test_key_of_a_host_takes_no_name_of_a_worker_elsewhere",),
    ),
    Fault(
        "a message is decoded before the size of its header is known",
        "    if size > header_bytes or end > first.nbytes",
        "    if end > first.nbytes",
        ("tests/transport/test_message.py",),
    ),
    Fault(
        "new params ring nobody's bell",
        "        self._wake_readers()\n",
        "",
        (f"{PARAMS}::test_publish_wakes_a_waiting_reader",),
    ),
    Fault(
        "the kept ledger is one behind",
        "            self._words[_CONSUMED] = self.consumed\n",
        "            self._words[_CONSUMED] = self.consumed - 1\n",
        (LEDGER,),
    ),
    # -- workers
    Fault(
        "the lag check is off by one",
        "lag + plan.reuse - 1 > plan.max_lag",
        "lag + plan.reuse - 2 > plan.max_lag",
        (BATCHING,),
    ),
    Fault(
        "rows of updates that were rolled back are trained on",
        "undone = (generations < plan.generation) & (made > plan.start_updates)",
        "undone = (generations < plan.generation - 1) & (made > plan.start_updates)",
        (BATCHING,),
    ),
    Fault(
        "actors drop the reset flag",
        "        self.block.trajectory.is_first[row] = self.latest.is_first\n",
        "        self.block.trajectory.is_first[row] = False\n",
        (ACTOR,),
    ),
    Fault(
        "a trajectory does not begin with the row that ended the last",
        "        self._write_observation(0)\n        return True\n",
        "        return True\n",
        (ACTOR,),
    ),
    Fault(
        "actors act with params one update too old",
        "batch * self.updates_per_batch - self.max_lag, self.total_updates)",
        "batch * self.updates_per_batch - self.max_lag - 1, self.total_updates)",
        (ACTOR,),
    ),
    Fault(
        "a session begins in the middle of the episodes of the one before",
        "            group.reset()\n            self._lineup.begin_again(",
        "            self._lineup.begin_again(",
        (ACTOR,),
    ),
    Fault(
        "a tap sees a trajectory after its memory was given away",
        "            tap.before_commit(self.block.trajectory)\n        entry = self.block.commit(self._group, "
        "Origin(maker, self.progress.sequence))\n        for tap in self.policy.taps:\n",
        "            pass\n        entry = self.block.commit(self._group, "
        "Origin(maker, self.progress.sequence))\n        for tap in self.policy.taps:\n"
        "            tap.before_commit(self.block.trajectory)\n",
        (ACTOR,),
    ),
    Fault(
        "an actor does not tell a new learner from a new server",
        "known not in (None, self._learner)",
        "False",
        (PEERS,),
    ),
    Fault(
        "a reader that has closed its stream counts as connected",
        "            reader.pause(error, CLOSED_S)\n            return False\n",
        "            reader.pause(error, CLOSED_S)\n            return True\n",
        (PEERS,),
    ),
    Fault(
        "a distant peer never has the time to answer",
        "                self._connect_s = min(2 * self._connect_s, MAX_CONNECT_S)\n",
        "",
        (PEERS,),
    ),
    Fault(
        "an actor that stood in makes one trajectory too few",
        "batch = max(batch, self.batch_of(trajectory) + 1)",
        "pass",
        ("tests/workers/test_standing_in.py",),
    ),
    Fault(
        "padding writes into the core of a living slot",
        "is_first[at:], index[at:] = True, self._num_slots",
        "is_first[at:], index[at:] = True, 0",
        (
            f"{ACTING}::test_padding_and_other_rows_do_not_change_greedy_actions",
            f"{ACTING}::test_cores_are_kept_by_slot_reset_on_is_first_and_returned_as_they_were_before",
        ),
    ),
    Fault(
        "every update draws with the same key",
        "agent.update(state, batch, jax.random.fold_in(key, number), axis_name=axis_name)",
        "agent.update(state, batch, jax.random.fold_in(key, 0), axis_name=axis_name)",
        ("tests/workers/test_evaluator_and_learner.py::test_every_update_has_its_own_key",),
    ),
    Fault(
        "a gate that skips an update keeps the old state",
        "                self._state = state.state\n                return self._skip()\n",
        "                return self._skip()\n",
        ("tests/workers/test_evaluator_and_learner.py::test_a_gate_may_replace_the_state_and_skip_the_update",),
    ),
    Fault(
        "a skipped update counts as made",
        "        self._count(0)\n",
        "        self._count(self._settings.updates_per_call)\n",
        ("tests/workers/test_evaluator_and_learner.py::test_a_gate_may_replace_the_state_and_skip_the_update",),
    ),
    Fault(
        "a learner leaves without the update that others count on",
        "        while (batch := self._lifecycle.last()) is not None:\n",
        "        while self._lifecycle.last() is None and (batch := None) is not None:\n",
        (
            "tests/workers/test_evaluator_and_learner.py"
            "::test_a_batch_that_others_count_on_is_trained_on_before_the_last_snapshot",
        ),
    ),
    Fault(
        "a rank makes an update that others do not make",
        "return self._lend() if self._group.agree(self._waiting is not None, left_s) else None",
        "return self._lend() if self._group.agree(self._waiting is not None, left_s) or self._waiting else None",
        ("tests/workers/test_ranks.py::test_batch_of_a_rank_is_lent_once_all_have_one",),
    ),
    Fault(
        "a rank drops the batch with which it waited for others",
        "        if self._waiting is None:\n            self._waiting = self._source.next(timeout_s)\n",
        "        self._waiting = self._source.next(timeout_s)\n",
        ("tests/workers/test_ranks.py::test_batch_of_a_rank_is_lent_once_all_have_one",),
    ),
    Fault(
        "a rank counts the updates of a resumed run by itself",
        "StartPoint(begins.generation, begins.updates, env_steps=begins.env_steps, unmade=begins.unmade)",
        "StartPoint(begins.generation, begins.updates)",
        ("tests/workers/test_ranks.py::test_rank_of_a_resumed_run_counts_the_updates_of_its_learner",),
    ),
    Fault(
        "a replay worker closes a stream into which a thread writes",
        "            if not self._drawing:  # else a thread",
        "            if True:  # else a thread",
        (
            "tests/workers/test_replay_worker.py"
            "::test_replay_worker_without_a_learner_inserts_and_connects_again_once_no_thread_writes",
        ),
    ),
    Fault(
        "params of another run replace the ring of rows",
        "        own = adopt(agent, state._replace(extra=kept.agent), params)\n",
        "        own = adopt(agent, state, params)\n",
        ("tests/replay/test_on_device.py::test_an_explored_agent_with_replay_begins_with_the_params_of_another_run",),
    ),
    Fault(
        "a flood of refused messages holds a worker a minute longer",
        "return take(max(0.0, deadline_s - time.monotonic()))",
        "return take(max(0.0, deadline_s - time.monotonic()) + 60.0)",
        ("tests/workers/test_refusals.py",),
    ),
    # -- services
    Fault(
        "tagged snapshots are swept away with old ones",
        "keep = {*self.versions()[-self._keep_last :], *(tag.version for tag in self.tags().values())}",
        "keep = {*self.versions()[-self._keep_last :]}",
        (SNAPSHOTS,),
    ),
    Fault(
        "a snapshot's digest is not checked",
        "            if fmt.arrays_digest(arrays) != manifest.digest:\n",
        "            if False:\n",
        (SNAPSHOTS,),
    ),
    # -- launch
    Fault(
        "one restart more than allowed",
        "allowed = self.used(now_s) < self.limit",
        "allowed = self.used(now_s) <= self.limit",
        (SUPERVISION,),
    ),
    Fault(
        "a replaced worker keeps its incarnation",
        "max(rank.incarnation for rank in ranks) + 1, list[Action]()",
        "max(rank.incarnation for rank in ranks), list[Action]()",
        (SUPERVISION,),
    ),
    Fault(
        "a restarted learner keeps its generation",
        "    generation = max(last, content.generation if content is not None else last) + 1\n",
        "    generation = max(last, content.generation if content is not None else last)\n",
        (RESTARTS,),
    ),
)
