"""Space sharing and placement sensitivity, for every policy that has them, against the textbook's program for each job and each
pair of jobs."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.allocation.fifo_sjf import ShortestJobFirstPerf
from fairlead.policies.allocation.finish_time_fairness import FinishTimeFairness, FinishTimeFairnessPerf, isolated_rates
from fairlead.policies.allocation.hierarchical import HierarchicalPerf
from fairlead.policies.allocation.lp.colocation_columns import columns_of
from fairlead.policies.allocation.lp.job_classes import classes_of
from fairlead.policies.allocation.makespan import MinTotalDuration, MinTotalDurationPerf
from fairlead.policies.allocation.max_min import MaxMinFairnessPerf, MaxMinFairnessWaterFilling, MaxMinFairnessWaterFillingPerf
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.policies.allocation.sum_objectives import MaxSumThroughputPerf, MinCost, MinCostSlo
from fairlead.testing.contracts import PolicyContract
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.generate import Generator
from lifting import Textbook, fairly, in_order
from policies.per_job import Moment, Together, cp, moment, solved
from scenes import state_of, table_of, view_of

PACKING = (
    MaxMinFairnessPerf,
    MaxMinFairnessWaterFillingPerf,
    HierarchicalPerf,
    FinishTimeFairnessPerf,
    MinTotalDurationPerf,
    MaxSumThroughputPerf,
    MinCost,
    MinCostSlo,
    ShortestJobFirstPerf,
)


class TestFinishTimes(PolicyContract):
    jobs = 14
    make = lambda: Allocated(FinishTimeFairnessPerf(space_sharing=True, placement_sensitive=True), RoundMechanism())  # noqa: E731
    residents = 2


class TestHierarchy(PolicyContract):
    jobs = 14
    make = lambda: Allocated(HierarchicalPerf(inside="fifo", space_sharing=True), RoundMechanism())  # noqa: E731
    residents = 2


class TestCost(PolicyContract):
    jobs = 14
    make = lambda: Allocated(MinCostSlo(space_sharing=True), RoundMechanism())  # noqa: E731
    residents = 2


class TestShortest(PolicyContract):
    jobs = 14
    make = lambda: Allocated(ShortestJobFirstPerf(space_sharing=True), RoundMechanism())  # noqa: E731
    residents = 2


@pytest.mark.parametrize("policy", PACKING)
class TestEvery:
    """What all have in common, on moments of which some are so crowded that most jobs get no time."""

    @pytest.mark.parametrize("seed", range(6))
    def test_time_and_accelerators_suffice_and_who_meets_is_of_one_size(self, policy, seed):
        made = moment(seed, jobs=60, kinds=4, deadlines=True, weighted=True)
        allocation, _ = policy(space_sharing=True).allocate(made.view, None)
        made.check_shared(allocation)
        assert len({*zip(allocation.first.tolist(), allocation.second.tolist(), allocation.types.tolist())}) == len(allocation)

    def test_company_that_does_not_pay_is_not_sought(self, policy):
        made = moment(3, jobs=40)
        rates = made.view.rates
        beside = 0.5 * np.repeat(rates.alone[:, None, :], len(rates.alone), axis=1)
        alone = made.view.with_changes(estimate=lambda view: type(rates)(rates.row, rates.alone, rates.spread, beside))
        allocation, _ = policy(space_sharing=True).allocate(alone, None)
        assert (allocation.second == -1).all()


OPTIONS = [{"space_sharing": True}, {"placement_sensitive": True}, {"space_sharing": True, "placement_sensitive": True}]


def crowded(
    seed: int,
    *,
    deadlines: bool = False,
    weighted: bool = False,
    space_sharing: bool = False,
    placement_sensitive: bool = False,
) -> Moment:
    """Few kinds, so that there are classes of several jobs; where placement counts, several nodes."""
    nodes = 2 if placement_sensitive else 1
    return moment(seed, jobs=14, kinds=4, nodes=nodes, deadlines=deadlines, weighted=weighted)


def each(*cases: dict[str, bool], seeds: int = 20):
    """A test for some of the options, each on so many moments, with shares as they were computed."""

    def decorate(test):
        test = pytest.mark.parametrize("options", cases or OPTIONS, ids=lambda options: "+".join(options))(test)
        test = pytest.mark.parametrize("seed", range(seeds))(test)
        return pytest.mark.usefixtures("all_digits")(test)

    return decorate


@each()
def test_the_longest_duration_is_the_least_possible(seed, options):
    made = crowded(seed, **options)
    left = made.view.jobs.steps_left
    allocation, _ = MinTotalDurationPerf(**options).allocate(made.view, None)
    book = Together.of(made, **options)
    x, throughput, keeps = book.program()
    speed = cp.Variable()
    problem = cp.Problem(cp.Maximize(speed), [*keeps, cp.multiply(1e3 / left, throughput) >= speed])
    assert book.as_dealt(x, allocation, problem) == pytest.approx(solved(problem), rel=1e-6)


@each(seeds=10)
def test_the_lowest_level_is_the_highest_possible(seed, options):
    made = crowded(seed, weighted=True, **options)
    allocation, _ = MaxMinFairnessPerf(**options).allocate(made.view, None)
    book = Together.of(made, **options)
    x, throughput, keeps = book.program()
    unit = made.workers / (made.rates @ (made.capacity / made.capacity.sum())) / made.view.jobs.weight
    level = cp.Variable()
    problem = cp.Problem(cp.Maximize(level), [*keeps, cp.multiply(unit, throughput) >= level])
    assert book.as_dealt(x, allocation, problem) == pytest.approx(solved(problem), rel=1e-6)


@each()
def test_nobody_finishes_later_relative_to_its_share_than_must_be(seed, options):
    """The least ρ by halves: at each, a linear program tells whether all can be done in time."""
    made = crowded(seed, **options)
    jobs = made.view.jobs
    allocation, memo = FinishTimeFairnessPerf(**options).allocate(made.view, None)
    alone = jobs.steps_left / isolated_rates(made.view, classes_of(made.view), type_agnostic=False)
    waited = made.view.time - jobs.submitted_s
    book = Together.of(made, **options)
    fastest = np.zeros(len(jobs))
    np.maximum.at(fastest, book.one[(book.two < 0) & (book.room < 1e6)], book.rate[(book.two < 0) & (book.room < 1e6), 0])
    x, throughput, keeps = book.program()
    part, need = cp.Variable(), cp.Parameter(len(jobs))
    problem = cp.Problem(cp.Maximize(part), [*keeps, throughput >= cp.multiply(need, part), part <= 2])

    def demand(rho: float) -> np.ndarray:
        time = rho * alone - waited
        return np.where(time > jobs.steps_left / fastest, jobs.steps_left / np.maximum(time, 1e-300), fastest)

    for rho, fits in ((memo["level"] * (1 + 1e-6), True), (memo["level"] * (1 - 1e-6), False)):
        need.value = demand(rho)
        if fits:
            assert book.as_dealt(x, allocation, problem) >= 1 - 1e-6
        elif (demand(rho) > demand(memo["level"])).any():  # else the level is the least of all
            problem.solve(solver=cp.HIGHS)
            assert problem.value < 1 + 1e-9


@each(seeds=8)
@pytest.mark.parametrize("normalized", [False, True])
def test_total_throughput_is_the_largest_possible(seed, options, normalized):
    made = crowded(seed, **options)
    allocation, _ = MaxSumThroughputPerf(normalized=normalized, **options).allocate(made.view, None)
    unit = made.rates.max(axis=1) if normalized else np.ones(len(made.rates))
    book = Together.of(made, **options)
    x, throughput, keeps = book.program()
    problem = cp.Problem(cp.Maximize(cp.sum(cp.multiply(1 / unit, throughput))), keeps)
    assert book.as_dealt(x, allocation, problem) == pytest.approx(solved(problem), rel=1e-6)


def maximize_ratio(made: Moment, book: Together, floor: np.ndarray, *, normalized: bool):
    """By Dinkelbach: the ratio at which max Σ (worth − ratio·price)·x is 0; and how much more than at this ratio is won by the
    best split of an allocation."""
    price = np.array([kind.price_per_hour for kind in made.view.cluster.types])
    unit = (made.rates / (made.workers[:, None] * price)).max(axis=1) if normalized else np.ones(len(made.rates))
    x, throughput, keeps = book.program()
    gain, pay = cp.sum(cp.multiply(1 / unit, throughput)), (made.workers[book.one] * price[book.types]) @ x
    value, ratio = 0.0, cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Maximize(gain - ratio * pay), [*keeps, throughput >= floor, pay >= 1e-3])
    for _ in range(50):
        ratio.value = value
        problem.solve(solver=cp.HIGHS)
        better = float(gain.value / pay.value)
        if abs(better - value) <= 1e-10 * better:
            return better, lambda allocation: book.as_dealt(x, allocation, problem) / pay.value
        value = better
    raise AssertionError("no ratio found")


@each(seeds=8)
@pytest.mark.parametrize("normalized", [False, True])
def test_the_throughput_per_cost_is_the_largest_possible(seed, options, normalized):
    made = crowded(seed, **options)
    allocation, _ = MinCost(normalized=normalized, **options).allocate(made.view, None)
    book = Together.of(made, **options)
    ratio, lost = maximize_ratio(made, book, np.zeros(len(made.rates)), normalized=normalized)
    assert lost(allocation) == pytest.approx(0.0, abs=1e-6 * ratio)


@each(seeds=8)
@pytest.mark.parametrize("normalized", [False, True])
def test_with_deadlines_kept_the_throughput_per_cost_is_the_largest_possible(seed, options, normalized):
    made = crowded(seed, deadlines=True, **options)
    allocation, _ = MinCostSlo(normalized=normalized, margin_s=0.0, **options).allocate(made.view, None)
    jobs = made.view.jobs
    floor = jobs.steps_left / (jobs.submitted_s + jobs.deadline_s - made.view.time)
    floor[[number in allocation.reasons for number in jobs.number.tolist()]] = 0.0
    book = Together.of(made, **options)
    ratio, lost = maximize_ratio(made, book, floor * (1 - 1e-7), normalized=normalized)
    assert lost(allocation) == pytest.approx(0.0, abs=1e-6 * ratio)


def lifting(made: Moment, options: dict[str, bool]) -> tuple[Textbook, Together, np.ndarray]:
    """The textbook's water filling over jobs and pairs of jobs, and what a unit of each job's throughput lifts it by."""
    book = Together.of(made, **options)
    takes, available = book.limits()
    unit = made.workers / (made.rates @ (made.capacity / made.capacity.sum()))
    level = book.matrix(book.rate[:, 0] * unit[book.one], book.rate[:, 1] * unit[book.two])
    return Textbook(level.toarray(), takes.toarray(), available), book, unit


def reaches(made: Moment, book: Together, unit: np.ndarray, allocation, levels: np.ndarray) -> float:
    """The part of these levels that an allocation reaches."""
    x, throughput, keeps = book.program()
    part = cp.Variable()
    problem = cp.Problem(cp.Maximize(part), [*keeps, cp.multiply(unit, throughput) >= part * levels, part <= 2])
    return book.as_dealt(x, allocation, problem)


@each(seeds=6)
def test_levels_by_water_filling_are_those_of_the_textbook(seed, options):
    made = crowded(seed, weighted=True, **options)
    allocation, _ = MaxMinFairnessWaterFillingPerf(**options).allocate(made.view, None)
    textbook, book, unit = lifting(made, options)
    everybody = (1.0, range(len(unit)), fairly(made.view.jobs.weight.tolist()))
    assert reaches(made, book, unit, allocation, textbook.fill([everybody])) >= 1 - 1e-6


@each(seeds=4)
@pytest.mark.parametrize("fifo", [(), ("entity-1",), ("entity-0", "entity-1", "entity-2")], ids=["fair", "mixed", "fifo"])
def test_levels_of_a_hierarchy_are_those_of_the_textbook(seed, options, fifo):
    made = crowded(seed, weighted=True, **options)
    weights = {"entity-0": 1.0, "entity-1": 2.0, "entity-2": 3.0}
    policy = HierarchicalPerf(weights, but=dict.fromkeys(fifo, "fifo"), **options)
    allocation, _ = policy.allocate(made.view, None)
    textbook, book, unit = lifting(made, options)
    share, accounts = fairly(made.view.jobs.weight.tolist()), []
    for code, name in enumerate(made.view.names.accounts):
        members = (made.view.jobs.account == code).nonzero()[0].tolist()
        accounts.append((weights.get(name, 1.0), members, in_order() if name in fifo else share))
    assert reaches(made, book, unit, allocation, textbook.fill(accounts)) >= 1 - 1e-6


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("policy", [FinishTimeFairnessPerf, MinTotalDurationPerf])
def test_colocation_never_delays_and_placement_never_speeds_up(seed, policy):
    made = crowded(seed, placement_sensitive=True)
    level = {}
    for space_sharing in (False, True):
        for placement_sensitive in (False, True):
            chosen = policy(space_sharing=space_sharing, placement_sensitive=placement_sensitive)
            level[space_sharing, placement_sensitive] = chosen.allocate(made.view, None)[1]["level"]
    for placement_sensitive in (False, True):
        assert level[True, placement_sensitive] <= level[False, placement_sensitive] * (1 + 1e-7)
    for space_sharing in (False, True):
        assert level[space_sharing, True] >= level[space_sharing, False] * (1 - 1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_with_company_there_is_never_less_throughput_nor_less_for_the_money(seed):
    made = crowded(seed)
    price = np.array([kind.price_per_hour for kind in made.view.cluster.types])

    def total(allocation) -> float:
        return float(allocation.throughputs(made.view.jobs, made.view.rates).sum())

    def per_cost(allocation) -> float:
        workers = made.workers[made.view.jobs.number.searchsorted(allocation.first)]
        return total(allocation) / float(workers * allocation.share @ price[allocation.types])

    for value, policy in ((total, MaxSumThroughputPerf), (per_cost, MinCost)):
        plain, _ = policy(normalized=False).allocate(made.view, None)
        shared, _ = policy(normalized=False, space_sharing=True).allocate(made.view, None)
        assert value(shared) >= value(plain) * (1 - 1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_with_company_the_lowest_level_is_never_lower(seed):
    made = crowded(seed, weighted=True)
    unit = made.workers / (made.rates @ (made.capacity / made.capacity.sum())) / made.view.jobs.weight
    lowest = []
    for space_sharing in (False, True):
        allocation, _ = MaxMinFairnessWaterFillingPerf(space_sharing=space_sharing).allocate(made.view, None)
        lowest.append((allocation.throughputs(made.view.jobs, made.view.rates) * unit).min())
    assert lowest[1] >= lowest[0] * (1 - 1e-5)


def test_nobody_comes_beside_the_job_that_is_done_first():
    made = moment(5, jobs=200)
    allocation, _ = ShortestJobFirstPerf(space_sharing=True).allocate(made.view, None)
    first = int((made.view.jobs.steps_left / made.rates.max(axis=1)).argmin())
    assert (allocation.second >= 0).any()
    assert allocation.second[allocation.first == made.view.jobs.number[first]].tolist() == [-1]


def test_a_job_beside_which_one_is_as_fast_as_alone_has_the_same_speed():
    """Rates have more digits than count. A last digit of difference between two columns would make programs ill-conditioned."""
    rates = np.random.default_rng(0).uniform(0.2, 5.0, (4, 3))
    alone = np.concatenate((np.ones((1, 3)), rates))
    paired = np.repeat(alone[:, None, :], 5, axis=1)
    kinds = {(f"kind-{row}", 1): rate for row, rate in enumerate(rates.tolist())}
    table = table_of(["v100", "p100", "k80"], kinds, paired=paired)
    jobs = [Job(f"job-{number}", 0.0, 1000.0, f"kind-{number % 4}") for number in range(12)]
    view = view_of(state_of(Cluster.parse("2xv100:2,2xp100:2,2xk80:2"), jobs), 0.0, table)
    columns = columns_of(classes_of(view), view, space_sharing=True, placement_sensitive=True)
    paired_up = columns.two >= 0
    assert paired_up.any()
    speeds = {(one, type_): speed for one, type_, speed in zip(columns.one, columns.types, columns.speed) if speed}
    assert [speeds[one, type_] for one, type_ in zip(columns.one, columns.types)] == columns.speed.tolist()
    assert {*columns.speed[columns.speed > 1 - 1e-6].tolist()} == {1.0}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "policy", [MinTotalDurationPerf, FinishTimeFairnessPerf, MinCostSlo, MaxSumThroughputPerf, MaxMinFairnessWaterFillingPerf]
)
def test_there_may_be_twelve_types(policy, seed):
    rng = np.random.default_rng(seed)
    types = [f"type-{j}" for j in range(12)]
    rates = {(f"kind-{k}", 1): tuple(rng.uniform(0.2, 5.0, 12)) for k in range(4)}
    jobs = [Job(f"job-{i}", 0.0, float(rng.uniform(100, 5000)), f"kind-{i % 4}", deadline_s=4000.0) for i in range(30)]
    cluster = Cluster.parse(",".join(f"2x{name}:2" for name in types))
    view = view_of(state_of(cluster, jobs), 0.0, table_of(types, rates))
    made = Moment(view, view.rates.of_jobs, view.jobs.workers, view.capacity)
    allocation, _ = policy().allocate(view, None)
    made.check(allocation)
    if policy is not MinCostSlo:  # nothing that is of use stays idle
        assert made.time(allocation).sum() == pytest.approx(24.0, abs=1e-4)
    if policy is MinTotalDurationPerf:
        _, throughput, allowed = made.program()
        speed = cp.Variable()
        best = solved(cp.Problem(cp.Maximize(speed), [*allowed, cp.multiply(1e3 / view.jobs.steps_left, throughput) >= speed]))
        assert (1e3 * made.throughputs(allocation) / view.jobs.steps_left).min() == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("policy", [MinTotalDuration, FinishTimeFairness, MaxMinFairnessWaterFilling])
def test_agnostic_policies_may_have_twelve_types_of_which_some_jobs_use_a_few(policy):
    types = [f"type-{j}" for j in range(12)]
    table = table_of(types, {("even", 1): (1.0,) * 12})
    jobs = [Job(f"job-{i}", 0.0, 1000.0 + i, "even", allowed_types=tuple(types[i % 5 : i % 5 + 4])) for i in range(30)]
    view = view_of(state_of(Cluster.parse(",".join(f"2x{name}:2" for name in types)), jobs), 0.0, table)
    fits = (view.jobs.fits[:, None] >> np.arange(12)) & 1
    made = Moment(view, view.rates.of_jobs * fits, view.jobs.workers, view.capacity)
    made.check(policy().allocate(view, None)[0])


def test_a_scaled_model_that_seems_infeasible_is_solved_as_it_is():
    """Everybody at its highest level leaves no slack: the solver's scaling found no way to it, in the middle of this run."""
    workload = Generator(jobs=36, jobs_per_hour=20.0, workers="multiple", users=12)
    cluster = Cluster.parse("8xv100:4,8xp100:4,8xk80:4")
    table = catalogue().for_types(cluster.type_names)
    scheduler = SchedulerConfig(parse_part("hierarchical-perf:space_sharing=true"))
    done = run_simulation(Simulation(workload.trace(0), cluster, scheduler, table, measure=(0, 10))).state.all_jobs()
    assert np.isfinite(done.ended_s[:10]).all()
