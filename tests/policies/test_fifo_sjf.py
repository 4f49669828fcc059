"""FIFO and shortest job first over types."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.allocation.fifo_sjf import FifoPerf, ShortestJobFirstPerf
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing.contracts import PolicyContract
from policies.per_job import cp, moment, solved
from scenes import state_of, table_of, view_of

TWO = Cluster.parse("1xv100:1,1xk80:1")
TABLE = table_of(("v100", "k80"), {("fast", 1): (4.0, 1.0), ("even", 1): (2.0, 2.0), ("fast", 2): (8.0, 2.0)})


class TestFifo(PolicyContract):
    make = lambda: Allocated(FifoPerf(), RoundMechanism())  # noqa: E731


class TestGreedy(PolicyContract):
    jobs = 14
    make = lambda: Allocated(FifoPerf(greedy=True), RoundMechanism())  # noqa: E731


class TestShortest(PolicyContract):
    make = lambda: Allocated(ShortestJobFirstPerf(), RoundMechanism())  # noqa: E731


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.usefixtures("all_digits")
def test_the_sum_weighted_by_arrival_is_the_largest_possible(seed):
    made = moment(seed, jobs=60)
    x, _ = FifoPerf().allocate(made.view, None)
    made.check(x)
    count = len(made.view.jobs)
    weight = (count - np.arange(count)) / made.rates.max(axis=1)
    _, throughput, allowed = made.program()
    expected = solved(cp.Problem(cp.Maximize(weight @ throughput), allowed))
    assert weight @ made.throughputs(x) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("all_digits")
def test_the_prices_to_start_from_do_not_matter(seed):
    made = moment(seed, jobs=200)
    count = len(made.view.jobs)
    weight = (count - np.arange(count)) / made.rates.max(axis=1)
    x, memo = FifoPerf().allocate(made.view, None)
    for prices in (memo["prices"], 0.0 * memo["prices"], 3.0 * memo["prices"] + 1.0):
        other, _ = FifoPerf().allocate(made.view, {"prices": prices})
        made.check(other)
        assert weight @ made.throughputs(other) == pytest.approx(weight @ made.throughputs(x), rel=1e-8)


def time_of(policy, jobs, cluster=TWO, memo=None):
    view = view_of(state_of(cluster, jobs), 0.0, TABLE)
    x, memo = policy.allocate(view, memo)
    return x.matrix(view.jobs.number, 2).tolist(), memo


def test_the_first_has_the_fastest_type():
    jobs = [Job("a", 0.0, 400.0, "fast"), Job("b", 0.0, 400.0, "fast"), Job("c", 0.0, 400.0, "fast")]
    for policy in (FifoPerf(), FifoPerf(greedy=True)):
        assert time_of(policy, jobs)[0] == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


def test_the_program_moves_the_first_aside_where_all_gain_and_the_line_does_not():
    jobs = [Job("a", 0.0, 400.0, "even"), Job("b", 0.0, 400.0, "fast")]
    assert time_of(FifoPerf(), jobs)[0] == [[0.0, 1.0], [1.0, 0.0]]
    assert time_of(FifoPerf(greedy=True), jobs)[0] == [[1.0, 0.0], [0.0, 1.0]]


def test_who_may_not_use_a_type_or_is_too_many_for_it_has_no_time_there():
    cluster = Cluster.parse("2xv100:2,1xk80:1")
    jobs = [Job("wide", 0.0, 400.0, "fast", workers=2), Job("picky", 0.0, 400.0, "fast", allowed_types=("k80",))]
    view = view_of(state_of(cluster, jobs), 0.0, TABLE)
    one_less = view.with_changes(capacity=np.array([1, 1]))
    got = [FifoPerf().allocate(one, None)[0].matrix(view.jobs.number, 2).tolist() for one in (view, one_less)]
    assert got == [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]]
    assert not len(FifoPerf().allocate(view.with_changes(capacity=np.array([1, 0])), None)[0])


def test_the_greedy_queue_starts_from_an_empty_cluster_at_each_recomputation():
    """As in Gavel's simulator: c moves to the fast type when a has gone, and does not keep the slow one."""
    three = [Job("a", 0.0, 400.0, "fast"), Job("b", 0.0, 400.0, "fast"), Job("c", 0.0, 400.0, "fast")]
    _, memo = time_of(FifoPerf(greedy=True), three)
    view = view_of(state_of(TWO, three, {1: [1]}, waiting=[2]), 0.0, TABLE)  # a has gone, b runs on the slow type
    x, _ = FifoPerf(greedy=True).allocate(view, memo)
    assert x.matrix(view.jobs.number, 2).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_sticky_is_the_former_name_of_greedy():
    assert SchedulerConfig(parse_part("fifo-perf:sticky=true")).build(TABLE).policy.allocator == FifoPerf(greedy=True)


def test_the_greedy_queue_stops_at_the_first_that_finds_no_room():
    cluster = Cluster.parse("2xv100:2,1xk80:1")
    jobs = [Job("a", 0.0, 400.0, "fast"), Job("wide", 0.0, 400.0, "fast", workers=2), Job("c", 0.0, 400.0, "fast")]
    assert time_of(FifoPerf(greedy=True), jobs, cluster)[0] == [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_the_shortest_comes_first_then_the_next():
    jobs = [Job("long", 0.0, 800.0, "fast"), Job("short", 0.0, 40.0, "fast"), Job("middle", 0.0, 400.0, "fast")]
    assert time_of(ShortestJobFirstPerf(), jobs)[0] == [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]


def test_a_gang_that_finds_no_room_does_not_stop_the_line():
    cluster = Cluster.parse("2xv100:2,1xk80:1")
    jobs = [Job("a", 0.0, 40.0, "fast"), Job("wide", 0.0, 200.0, "fast", workers=2), Job("c", 0.0, 400.0, "fast")]
    assert time_of(ShortestJobFirstPerf(), jobs, cluster)[0] == [[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("all_digits")
def test_no_allocation_ends_a_job_before_the_shortest_ends_here(seed):
    made = moment(seed)
    x, _ = ShortestJobFirstPerf().allocate(made.view, None)
    made.check(x)
    left = made.view.jobs.steps_left
    with np.errstate(divide="ignore"):
        got = (left / made.throughputs(x)).min()
    _, throughput, allowed = made.program()
    best = max(solved(cp.Problem(cp.Maximize(1e3 / left[m] * throughput[m]), allowed)) for m in range(len(left)))
    assert got == pytest.approx(1e3 / best, rel=1e-6)


def test_greedy_fifo_gives_the_completion_times_of_gavel_s_simulator(public_data, expected_results):
    """The published run: 36 of each type, jobs 50 to 150 measured."""
    folder = public_data / "gavel"
    expected = json.loads((expected_results / "gavel" / "a_single__fifo_perf.json").read_text())["average_jct_s"]
    turns = {"name": "gavel-rounds", "min_interval_s": 1920, "newcomers": "wait", "work_conserving": False, "types": "in-order"}
    policy = {"name": "fifo-perf", "greedy": True}
    scheduler = SchedulerConfig.from_data({"policy": policy, "mechanism": turns, "rounds": 360})
    table = read_table(folder / "simulation_throughputs.json")
    trace = TraceFile(folder / "continuous_single_seed0_lam900.trace").read(table)
    cluster = Cluster.parse("36xv100:1,36xp100:1,36xk80:1")
    record = run_simulation(Simulation(trace, cluster, scheduler, table, measure=(50, 150))).record
    times = (record.jobs.ended_s - record.jobs.submitted_s)[50:150]
    assert times.mean() == pytest.approx(expected, rel=0.03)


class TestPlacementSensitive(PolicyContract):
    jobs = 14
    make = lambda: Allocated(FifoPerf(placement_sensitive=True), RoundMechanism())  # noqa: E731


@pytest.mark.parametrize("policy", [FifoPerf, ShortestJobFirstPerf])
def test_a_gang_that_finds_no_room_together_goes_where_it_does_better(policy):
    """Two nodes of three V100 hold one pair each; a third pair would stand on both, at a fifth of its rate."""
    table = table_of(("v100", "k80"), {("pair", 2): (10.0, 4.0)}, spread=np.array([[1.0, 1.0], [2.0, 4.0]]))
    view = view_of(
        state_of(Cluster.parse("6xv100:3,2xk80:2"), [Job(f"j{i}", 0.0, 400.0, "pair", 2) for i in range(4)]), 0.0, table
    )

    def types(**options):
        return policy(**options).allocate(view, None)[0].matrix(view.jobs.number, 2).tolist()

    assert types(placement_sensitive=True) == [[1, 0], [1, 0], [0, 1], [1, 0]]
    one_by_one = {"greedy": True} if policy is FifoPerf else {}
    assert types(**one_by_one) == [[1, 0], [1, 0], [1, 0], [0, 1]]
