"""The model of a run against hand calculations, one limit at a time, and against the published comparison."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import pytest

from benchmarks.scale.layouts import LAYOUTS
from benchmarks.scale.validate import Data, compare, others_of, predict
from jsrl.cluster.facts import HostFacts
from jsrl.errors import ConfigError
from jsrl.experiment import LearnerConfig
from jsrl.tools.simulation.outcome import (
    CORES,
    ENVIRONMENTS,
    INFERENCE,
    OUT,
    ROUND_TRIPS,
    UPDATES,
    lag_quantile,
    name_bottleneck,
)
from jsrl.tools.simulation.outcome import simulate as simulate_long
from jsrl.tools.simulation.system import ActorPart, Sizes, System, lay_out_on
from jsrl.tools.simulation.times import ActorTimes, Cost, EnvTimes, LearnerTimes, ParamsTimes, ServerTimes, ServiceTimes
from tests.tiny_agent import STILL
from tests.tools.simulation.test_times import EXPERIMENT

ROWS, SIZE = 10, 4
simulate = functools.partial(simulate_long, seconds=3.0, warm_s=1.0)  # enough for means within 2%
FREE = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010)), hop_s=0.0)  # 10 ms asleep, nothing else takes time


def inline(actors: int, cores: int = 64, **fields) -> System:
    hosts = fields.pop("hosts", (HostFacts("one", cores, 1000),))
    parts = tuple(ActorPart(fields.get("actor_host", 0), (number,)) for number in range(actors))
    fields.pop("actor_host", None)
    return System(hosts, parts, group_size=SIZE, rows=ROWS, batch_groups=actors, **fields)


def served(actors: int, ring: int = 1, servers: int = 1, cores: int = 64, **fields) -> System:
    groups = [tuple(range(ring * n, ring * (n + 1))) for n in range(actors)]
    parts = tuple(ActorPart(0, own, number % servers) for number, own in enumerate(groups))
    hosts = (HostFacts("one", cores, 1000),)
    return System(hosts, parts, (0,) * servers, group_size=SIZE, rows=ROWS, batch_groups=actors * ring, **fields)


def test_environments_that_sleep_add_up():
    outcome = simulate(inline(8), FREE)
    assert outcome.env_steps_per_s == pytest.approx(8 * SIZE / 0.010, rel=0.02)
    assert outcome.bottleneck == (ENVIRONMENTS, "") and outcome.shares["env"] == pytest.approx(1.0, abs=0.02)


def test_cores_that_are_too_few_limit_environments_that_compute():
    times = ServiceTimes(env=EnvTimes(step=Cost(0.001)), actor=ActorTimes(act=Cost(0.001)))
    outcome = simulate(inline(8, cores=2), times)
    assert outcome.env_steps_per_s == pytest.approx(2 * SIZE / 0.002, rel=0.02)
    assert outcome.bottleneck == (CORES, "one")
    shared = (HostFacts("a", 2, 1000, machine="box"), HostFacts("b", 2, 1000, machine="box"))
    outcome = simulate(inline(8, hosts=shared, actor_host=1), times)
    assert outcome.env_steps_per_s == pytest.approx(2 * SIZE / 0.002, rel=0.02)
    assert outcome.bottleneck == (CORES, "box")


def test_other_programs_slow_a_run_down_where_cores_are_too_few():
    times = ServiceTimes(env=EnvTimes(step=Cost(0.001)), actor=ActorTimes(act=Cost(0.001)))
    beside = (HostFacts("one", 2, 1000, busy_cores=2.0),)
    outcome = simulate(inline(6, hosts=beside), times)
    assert outcome.env_steps_per_s == pytest.approx(2 * 6 / 8 * SIZE / 0.002, rel=0.02)
    assert outcome.others_cores == pytest.approx(2 * 2 / 8, abs=0.02)
    assert simulate(inline(1, hosts=beside), times).env_steps_per_s == pytest.approx(2 / 3 * SIZE / 0.002, rel=0.02)
    assert simulate(inline(1, cores=4), times).others_cores == 0.0


def test_faster_cores_do_more_and_sleep_no_less():
    times = ServiceTimes(env=EnvTimes(step=Cost(0.001), step_idle=Cost(0.001)), actor=ActorTimes(act=Cost(0.001)))
    fast = (HostFacts("one", 2, 1000, core_speed=2.0),)
    full = simulate(inline(8, hosts=fast), times)
    assert full.env_steps_per_s == pytest.approx(2 * SIZE / 0.001, rel=0.02)
    assert full.used[CORES, "one"] == pytest.approx(1.0, abs=0.02)
    alone = simulate(inline(1, hosts=fast), times)
    assert alone.env_steps_per_s == pytest.approx(SIZE / 0.002, rel=0.02)
    assert alone.used[CORES, "one"] == pytest.approx(0.25, abs=0.02)


def test_slow_updates_hold_actors_back_by_their_credits():
    times = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010)), learner=LearnerTimes(update=Cost(0.5), threads=1.0))
    outcome = simulate_long(inline(4), times)
    assert outcome.env_steps_per_s == pytest.approx(4 * SIZE * ROWS / 0.5, rel=0.02)
    assert outcome.bottleneck == (UPDATES, "") and outcome.shares["wait_block"] > 0.7
    twice = simulate_long(inline(4, reuse=2, updates=2), times)
    assert twice.env_steps_per_s == pytest.approx(outcome.env_steps_per_s / 2, rel=0.06)  # whole batches


def test_readers_get_params_after_each_update_of_a_batch():
    """Eight readers and ten versions a second; over TCP each version arrives by itself, over shared memory only the newest."""
    times = ServiceTimes(
        env=EnvTimes(step_idle=Cost(0.010)),
        learner=LearnerTimes(update=Cost(0.1), threads=1.0),
        params=ParamsTimes(near=0.010, far=0.010),
    )
    once, often = (simulate(inline(8, reuse=n, updates=n, far_params=True), times) for n in (1, 4))
    for outcome in (once, often):
        assert outcome.updates_per_s == pytest.approx(10.0, rel=0.05)
        assert 64 * outcome.used[CORES, "one"] == pytest.approx(1.0 + 8 * 10 * 0.010, rel=0.06)
    near = simulate(inline(8, reuse=4, updates=4), times)  # actors mostly wait for blocks, and read nothing then
    assert 1.0 + 8 * 2.5 * 0.010 * 0.9 < 64 * near.used[CORES, "one"] < 1.0 + 8 * 6 * 0.010


def test_each_batch_costs_the_learner_more_than_its_updates():
    learner = LearnerTimes(update=Cost(0.1), threads=1.0, batch=Cost(0.2))
    outcome = simulate(inline(8, reuse=3), ServiceTimes(env=EnvTimes(step_idle=Cost(0.010)), learner=learner))
    assert outcome.env_steps_per_s == pytest.approx(8 * SIZE * ROWS / 0.5, rel=0.05)


def test_server_takes_the_requests_that_arrived_while_it_gathers_them():
    times = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010)), server=ServerTimes(act=Cost(0.001), gather=0.004))
    alone = simulate(served(1), times)
    assert alone.env_steps_per_s == pytest.approx(SIZE / 0.015, rel=0.03)
    small, large = (simulate(served(8, max_rows=rows), times) for rows in (SIZE, 1024))
    assert small.env_steps_per_s == pytest.approx(SIZE / 0.005, rel=0.03) and small.bottleneck == (INFERENCE, "")
    assert large.batch_rows > SIZE and large.env_steps_per_s > 1.5 * small.env_steps_per_s


def test_accelerators_of_a_learner_share_its_batches():
    times = ServiceTimes(
        env=EnvTimes(step_idle=Cost(0.001)), learner=LearnerTimes(update=Cost(0.01, 0.001), threads=0.0)
    )
    host = HostFacts("one", 64, 1000, gpus=4)
    one, four = (simulate(inline(8, hosts=(host,), devices=devices), times) for devices in (1, 4))
    rows = 8 * SIZE * ROWS
    assert one.updates_per_s == pytest.approx(1 / (0.01 + 0.001 * rows), rel=0.06)
    assert four.updates_per_s == pytest.approx(1 / (0.01 + 0.001 * rows / 4), rel=0.06)


@pytest.mark.parametrize(
    ("fields", "devices"),
    [({}, 4), ({"placement": "apart", "num_groups": 8}, 2), ({"learner": LearnerConfig(num_devices=2)}, 2)],
)
def test_learner_uses_the_accelerators_of_its_host(fields, devices: int):
    run = dataclasses.replace(EXPERIMENT, agent=STILL, **{"placement": "inline", "num_actors": 4} | fields)
    hosts = [HostFacts("one", 64, 64_000, gpus=4), HostFacts("two", 64, 64_000)]
    assert lay_out_on(run, hosts)[1].devices == devices  # apart: the server has one, and 32 environments are not 3 x n


def test_inference_server_batches_all_waiting_requests():
    """Of 8 actors that only send requests, one half is answered while the other half's requests arrive."""
    times = ServiceTimes(server=ServerTimes(act=Cost(0.002, 0.0001)), hop_s=1e-5)
    one, many = simulate(served(1), times), simulate(served(8), times)
    assert one.env_steps_per_s == pytest.approx(SIZE / (0.002 + SIZE * 0.0001 + 2e-5), rel=0.02)
    assert many.batch_rows == 4 * SIZE
    assert many.env_steps_per_s == pytest.approx(4 * SIZE / (0.002 + 4 * SIZE * 0.0001), rel=0.02)
    assert many.bottleneck == (INFERENCE, "")


def test_padding_costs_as_much_as_the_larger_batch():
    times = ServiceTimes(server=ServerTimes(act=Cost(0.0, 0.001)))
    exact, padded = simulate(served(1), times), simulate(served(1, sizes=(2 * SIZE,)), times)
    assert padded.env_steps_per_s == pytest.approx(exact.env_steps_per_s / 2, rel=0.02)


@pytest.mark.parametrize(("ring", "ratio"), [(1, 1.0), (2, 2.0), (4, 3.0), (8, 3.0)])
def test_a_ring_of_groups_hides_the_time_of_an_answer(ring: int, ratio: float):
    """The published rule: the speed grows with the ring up to 1 + t_response / t_env."""
    times = ServiceTimes(env=EnvTimes(step=Cost(0.005)), hop_s=0.005)  # 10 ms there and back
    alone = simulate(served(1, ring=1), times).env_steps_per_s
    assert simulate(served(1, ring=ring), times, seconds=30.0).env_steps_per_s / alone == pytest.approx(ratio, rel=0.03)


def test_waiting_only_for_replies_is_reported_as_round_trips():
    times = ServiceTimes(env=EnvTimes(step=Cost(0.001)), hop_s=0.005)
    assert simulate(served(1), times).bottleneck == (ROUND_TRIPS, "")


def test_link_bandwidth_limits_throughput():
    hosts = (HostFacts("home", 64, 1000), HostFacts("away", 64, 1000, out_mbit=8.0, in_mbit=8.0))
    system = inline(8, hosts=hosts, actor_host=1, bytes=Sizes(trajectory=100_000.0), far_rows=True, far_params=True)
    outcome = simulate_long(system, FREE)
    assert outcome.env_steps_per_s == pytest.approx(1e6 / 100_000 * ROWS * SIZE, rel=0.03)  # 8 Mbit/s are 1 MB/s
    assert outcome.bottleneck == (OUT, "away")


def test_synchronous_run_alternates_and_has_no_lag():
    times = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010)), learner=LearnerTimes(update=Cost(0.1)))
    outcome = simulate(inline(4, by_group=True, wait_lag=0, max_lag=0), times)
    assert outcome.env_steps_per_s == pytest.approx(4 * SIZE * ROWS / (ROWS * 0.010 + 0.1), rel=0.03)
    assert set(outcome.lags) == {0} and outcome.dropped == 0.0
    ahead = simulate(inline(4, by_group=True, wait_lag=1, max_lag=1), times)
    assert ahead.env_steps_per_s == pytest.approx(4 * SIZE * ROWS / 0.1, rel=0.05)
    assert max(ahead.lags) == 1


def test_rows_that_are_too_old_are_dropped():
    hosts = (HostFacts("home", 64, 1000), HostFacts("away", 64, 1000, in_mbit=0.8))
    slow = Sizes(params=50_000.0)  # half a second in transit
    system = inline(4, hosts=hosts, actor_host=1, bytes=slow, far_rows=True, far_params=True, max_lag=2)
    outcome = simulate(system, FREE)
    assert outcome.dropped > 0.2 and max(outcome.lags) <= 2


def test_waits_and_drops_count_every_update_of_a_batch():
    """With 2 updates per batch, rows of lag 0 are 1 update old in the second of them."""
    times = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010)), learner=LearnerTimes(update=Cost(0.1)))
    waiting = simulate(inline(4, by_group=True, wait_lag=0, max_lag=1, updates=2, reuse=2), times)
    assert set(waiting.lags) == {0} and waiting.dropped == 0.0
    free = simulate(inline(4, by_group=True, max_lag=2, updates=2, reuse=2), times)
    assert max(free.lags) <= 1 and free.dropped > 0.5  # a lag of 2 would become 3


def test_rows_from_another_host_cost_the_learner_more_to_take():
    learner = LearnerTimes(take=Cost(0.005), far_take=Cost(0.015))
    times = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010)), learner=learner)
    near, far = simulate(inline(8), times), simulate(inline(8, far_rows=True), times)
    assert near.env_steps_per_s == pytest.approx(SIZE * ROWS / 0.0125, rel=0.03)  # as fast as the 8 actors step
    assert far.env_steps_per_s == pytest.approx(SIZE * ROWS / 0.020, rel=0.03)


def test_a_tree_brings_params_to_many_hosts_sooner():
    """12 hosts, 1 MB of params, 100 Mbit/s out of the learner's host: 12 copies leave it directly, 3 with a tree."""
    hosts = tuple(HostFacts(f"h{n}", 64, 1000, out_mbit=100.0, in_mbit=100.0) for n in range(13))
    parts = tuple(ActorPart(1 + n, (n,)) for n in range(12))
    flat = System(
        hosts,
        parts,
        group_size=SIZE,
        rows=ROWS,
        batch_groups=12,
        bytes=Sizes(params=1e6),
        far_rows=True,
        far_params=True,
    )
    direct, tree = simulate(flat, FREE), simulate(dataclasses.replace(flat, fan_out=3), FREE)
    assert lag_quantile(direct.lags, 0.5) > 1.5 * lag_quantile(tree.lags, 0.5) > 0
    assert direct.used[OUT, "h0"] > 0.95 and tree.used[OUT, "h1"] > 0.3


@pytest.mark.slow
def test_deaths_cost_the_time_of_restarts():
    calm = simulate(inline(16), FREE, seconds=60.0)
    storm = simulate(inline(16, deaths_per_hour=360.0, restart_s=10.0), FREE, seconds=60.0)  # down for half of the time
    assert storm.deaths > 40
    assert 0.2 < storm.env_steps_per_s / calm.env_steps_per_s < 0.6


def test_resets_and_the_spread_of_steps_count():
    times = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010), reset_idle=Cost(0.0, 0.020), episode_steps=20.0))
    outcome = simulate(inline(8), times, seconds=12.0)
    assert outcome.env_steps_per_s == pytest.approx(8 * SIZE / (0.010 + SIZE / 20 * 0.020), rel=0.03)
    spread = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010), shape=(0.5, 1.5)))
    slowest_s = (
        0.1 + 1.42 * 0.005 * ROWS**0.5
    )  # the mean of the largest of 8 normal draws is 1.42 deviations above theirs
    together = simulate(inline(8, by_group=True, wait_lag=0, max_lag=0), spread, seconds=12.0)
    assert together.env_steps_per_s == pytest.approx(8 * SIZE * ROWS / slowest_s, rel=0.03)


def test_the_same_seed_gives_the_same_outcome():
    times = ServiceTimes(env=EnvTimes(step_idle=Cost(0.010), shape=(0.5, 1.5)), hop_s=1e-4)
    assert simulate(served(4, ring=2), times) == simulate(served(4, ring=2), times)


def test_a_run_without_an_update_in_an_hour_is_refused():
    with pytest.raises(ConfigError, match="no update within 3600 s"):
        simulate(inline(1), ServiceTimes(env=EnvTimes(step_idle=Cost(1000.0))))


def test_full_core_is_reported_before_the_workers_it_slows():
    assert name_bottleneck({(CORES, "a"): 0.95, (ENVIRONMENTS, ""): 1.0}) == (CORES, "a")
    assert name_bottleneck({(CORES, "a"): 0.5, (ENVIRONMENTS, ""): 0.9, (UPDATES, ""): 0.95}) == (UPDATES, "")


DATA = Path(__file__).parents[3] / "benchmarks" / "results" / "capacity-epyc.json"


@pytest.mark.slow
def test_published_predictions_follow_from_their_measurements() -> None:
    data = Data(DATA)
    row = next(row for row in data.content["comparison"]["rows"] if row["layout"] == "small-served-8")
    (layout,) = [layout for layout in LAYOUTS if layout.name == row["layout"]]
    others = others_of(data.content["layouts"][layout.name])
    assert predict(data, layout, others, row["core_speed"]).env_steps_per_s == pytest.approx(row["predicted"], abs=0.06)


@pytest.mark.nightly
def test_published_comparison_equals_its_measurements() -> None:
    published = json.loads(DATA.read_text())["comparison"]
    assert compare(Data(DATA)) == published
