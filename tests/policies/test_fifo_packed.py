"""FIFO over types where jobs share accelerators or gangs stand apart: the paper's program, and the queue that `greedy` is."""

from __future__ import annotations

import numpy as np
import pytest
from instances import moment

from fairlead.core.allocation import Allocation
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.fifo_sjf import FifoPerf
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing.contracts import PolicyContract
from policies.per_job import Together, cp, solved
from policies.per_job import moment as random_moment


class TestPackedContract(PolicyContract):
    jobs = 14
    make = lambda: Allocated(FifoPerf(space_sharing=True), RoundMechanism())  # noqa: E731
    residents = 2


class TestGreedyContract(PolicyContract):
    jobs = 14
    make = lambda: Allocated(FifoPerf(greedy=True, space_sharing=True), RoundMechanism())  # noqa: E731
    residents = 2


OPTIONS = [{"space_sharing": True}, {"placement_sensitive": True}, {"space_sharing": True, "placement_sensitive": True}]


def textbook(made, options):
    """The largest sum, weighted by arrival, over a variable for each job and pair; and what an allocation comes to."""
    book = Together.of(made, **options)
    single = (book.two < 0) & (book.room < 1e6)
    fastest = np.zeros(len(made.rates))
    np.maximum.at(fastest, book.one[single], book.rate[single, 0])
    count = len(fastest)
    weight = np.divide((count - np.arange(count)) / count, fastest, out=np.zeros(count), where=fastest > 0)
    x, throughput, keeps = book.program()
    problem = cp.Problem(cp.Maximize(weight @ throughput), keeps)
    return solved(problem), lambda allocation: book.as_dealt(x, allocation, problem)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options))
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.usefixtures("all_digits")
def test_the_sum_weighted_by_arrival_is_the_largest_possible(seed, options):
    """Few kinds, so that there are classes whose members differ in nothing but their arrival."""
    made = random_moment(seed, jobs=(14, 30)[seed % 2], kinds=4, nodes=2 if "placement_sensitive" in options else 1)
    allocation, _ = FifoPerf(**options).allocate(made.view, None)
    made.check_shared(allocation)
    most, worth = textbook(made, options)
    assert worth(allocation) == pytest.approx(most, rel=1e-6)


def same(one: Allocation, two: Allocation) -> bool:
    columns = ("first", "second", "types")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in columns) and np.allclose(
        one.share, two.share, rtol=0, atol=2e-9
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_was_asked_before_does_not_matter(seed):
    """Bounds that are kept from another moment save time, and change nothing; nor does the sample of a large one."""
    kept = FifoPerf(space_sharing=True)
    for jobs in (40, 41, 300, 60):
        view = random_moment(seed, jobs=jobs).view
        assert same(kept.allocate(view, None)[0], FifoPerf(space_sharing=True).allocate(view, None)[0])


@pytest.mark.parametrize("space_sharing", [False, True])
def test_a_gang_that_has_no_place_any_more_is_forgotten(space_sharing):
    """Eight workers who do nothing apart, and the one node of eight is lost; two of four are left."""
    policy, workers = FifoPerf(space_sharing=space_sharing, placement_sensitive=True), [8] * 3 + [1] * 2
    nothing = {"spread": np.zeros((2, 2)), "paired": np.zeros((2, 2, 2))}
    view = moment([[0.0, 2.0]] * 3 + [[1.0, 0.0]] * 2, "p100:2,v100:8,v100:4,v100:4", workers=workers, **nothing).view
    assert policy.allocate(view, None)[0].first.tolist() == [0, 3, 4]
    left = view.with_changes(up=view.cluster.node_of != 1)
    assert policy.allocate(left, None)[0].first.tolist() == [3, 4]


def three(*, third_beside: tuple[float, float], alone: float = 1.0):
    """Two accelerators, three jobs; the third does so much beside the first, or the second, as they do beside it."""
    beside = np.zeros((3, 3, 1))
    for host, part in enumerate(third_beside):
        beside[host, 2, 0] = beside[2, host, 0] = part
    return moment([[alone], [alone + 1e-9], [alone + 2e-9]], "v100:1,v100:1", paired=beside).view


def pairs(allocation: Allocation) -> list[tuple[int, int]]:
    return list(zip(allocation.first.tolist(), allocation.second.tolist()))


def test_company_counts_by_arrival():
    """Weights 3, 2 and 1: beside the third, the second must keep more than half of its speed, and both do 2·0.8 + 0.8."""
    assert pairs(FifoPerf(space_sharing=True).allocate(three(third_beside=(0.6, 0.8)), None)[0]) == [(0, -1), (1, 2)]
    assert pairs(FifoPerf(space_sharing=True).allocate(three(third_beside=(0.6, 0.6)), None)[0]) == [(0, -1), (1, -1)]


def test_in_the_greedy_queue_a_job_without_room_goes_to_the_best_host_above_one_and_a_half():
    """The third goes to the second, with which both do 1.6 parts; with at most 1.5 parts it waits, as in Gavel's simulator."""
    for beside, expected in (((0.76, 0.8), [(0, -1), (1, 2)]), ((0.6, 0.75), [(0, -1), (1, -1)])):
        assert pairs(FifoPerf(greedy=True, space_sharing=True).allocate(three(third_beside=beside), None)[0]) == expected


def test_in_the_greedy_queue_no_job_passes_the_first_without_a_host():
    """The third shares with nobody, so the fourth, which could share with the first, waits too."""
    beside = np.zeros((4, 4, 1))
    beside[0, 3, 0] = beside[3, 0, 0] = 0.9
    view = moment([[1.0], [1.0 + 1e-9], [1.0 + 2e-9], [1.0 + 3e-9]], "v100:1,v100:1", paired=beside).view
    assert pairs(FifoPerf(greedy=True, space_sharing=True).allocate(view, None)[0]) == [(0, -1), (1, -1)]


@pytest.mark.parametrize("greedy", [False, True])
def test_colocation_that_does_not_pay_is_not_sought(greedy):
    given = moment([[1.0]] * 3, "v100:1,v100:1", paired=np.full((1, 1, 1), 0.5))
    allocation, _ = FifoPerf(greedy=greedy, space_sharing=True).allocate(given.view, None)
    assert allocation.second.tolist() == [-1, -1]
