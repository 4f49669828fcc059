"""Gandiva-Fair: parts by tickets, trades at the second price, and that nobody is worse off by trading."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.gandiva_fair import GandivaFair, equal_parts, traded
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing import PolicyContract
from scenes import state_of, table_of, view_of

TYPES = ("fast", "slow")
RATES = {("five", 1): (5.0, 1.0), ("two", 1): (2.0, 1.0), ("one", 1): (1.2, 1.0), ("five", 4): (20.0, 4.0)}


def time_of(policy: GandivaFair, jobs: list[Job], where: str) -> np.ndarray:
    """Jobs × types."""
    machine = Cluster.parse(where)
    view = view_of(state_of(machine, jobs), 0.0, table_of(TYPES, RATES).for_types(machine.type_names))
    x, _ = policy.allocate(view, None)
    used = np.bincount(x.types, x.share * view.jobs.workers[x.first], minlength=len(machine.types))
    assert (used <= view.capacity + 1e-6).all()
    time = x.matrix(view.jobs.number, len(machine.types))
    assert (time.sum(axis=1) <= 1 + 1e-6).all()
    return time


def jobs_of(user: str, kind: str, count: int, **fields) -> list[Job]:
    return [Job(f"{user}-{i}", 0.0, 1e6, kind, user=user, **fields) for i in range(count)]


def test_without_trading_everybody_has_the_same_part_of_every_type():
    jobs = [*jobs_of("a", "five", 4), *jobs_of("b", "one", 4)]
    time = time_of(GandivaFair(trade=False), jobs, "2xfast:2,2xslow:2")
    assert time == pytest.approx(np.full((8, 2), 0.25))


def test_two_users_trade_at_the_sellers_speed_up():
    # Each has 1 fast and 1 slow. a buys of b at 1.2 slow for 1 fast: its 1 slow buys 1/1.2 fast.
    jobs = [*jobs_of("a", "five", 4), *jobs_of("b", "one", 4)]
    time = time_of(GandivaFair(), jobs, "2xfast:2,2xslow:2")
    assert time[:4].sum(axis=0) == pytest.approx([1 + 1 / 1.2, 0.0], abs=1e-6)
    assert time[4:].sum(axis=0) == pytest.approx([1 - 1 / 1.2, 2.0], abs=1e-6)


def test_of_three_the_second_highest_speed_up_is_the_price():
    quota = equal_parts(np.ones(3), np.full(3, 100.0), np.array([30, 60]))
    gain = np.array([5.0, 2.0, 1.2])
    speedup = np.ones((3, 2, 2))
    speedup[:, 0, 1], speedup[:, 1, 0] = gain, 1 / gain
    after = traded(quota, speedup, np.full(3, 100.0))
    # a pays 2 slow for 1 fast: its 20 slow buy 10 fast, which is all that c has.
    assert after == pytest.approx(np.array([[20.0, 0.0], [10.0, 20.0], [0.0, 40.0]]))


def test_users_of_one_speed_up_do_not_trade():
    jobs = [*jobs_of("a", "two", 4), *jobs_of("b", "two", 4)]
    assert time_of(GandivaFair(), jobs, "2xfast:2,2xslow:2") == pytest.approx(np.full((8, 2), 0.25))


def test_nobody_is_paid_with_more_than_it_can_use():
    jobs = [*jobs_of("a", "five", 8), *jobs_of("b", "one", 1)]  # b's only job: 1 accelerator at any time, and it has that
    time = time_of(GandivaFair(), jobs, "2xfast:2,2xslow:2")
    assert time[8] == pytest.approx([0.5, 0.5])


def test_tickets_count_and_what_one_cannot_use_goes_to_the_others():
    jobs = [*jobs_of("a", "two", 9), *jobs_of("b", "two", 9)]
    time = time_of(GandivaFair(tickets={"a": 2.0}), jobs, "3xfast:3,3xslow:3")
    assert time[:9].sum() == pytest.approx(4.0)
    few = [*jobs_of("a", "two", 1), *jobs_of("b", "two", 9)]
    time = time_of(GandivaFair(), few, "3xfast:3,3xslow:3")
    assert (time[0].sum(), time[1:].sum()) == (pytest.approx(1.0), pytest.approx(5.0))


def test_a_users_part_is_split_over_its_jobs_by_weight_and_a_gang_has_it_in_accelerators():
    jobs = [*jobs_of("a", "two", 1, weight=3.0), *jobs_of("a", "two", 3), *jobs_of("b", "two", 4)]
    time = time_of(GandivaFair(), jobs, "2xfast:2,2xslow:2").sum(axis=1)
    assert time[:4] == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3], abs=1e-6)
    gang = [Job("g", 0.0, 1e6, "five", 4, user="a"), *jobs_of("b", "five", 8)]
    time = time_of(GandivaFair(), gang, "4xfast:4,4xslow:4").sum(axis=1)
    assert time[0] == pytest.approx(1.0)
    assert time[1:].sum() == pytest.approx(4.0)


def test_entities_can_be_the_users():
    jobs = [Job(f"j{i}", 0.0, 1e6, "two", user=f"u{i}", account="x" if i else "y") for i in range(6)]
    time = time_of(GandivaFair(by="account"), jobs, "1xfast:1").sum(axis=1)
    assert time == pytest.approx([0.5, *[0.1] * 5])


def test_wrong_tickets_are_told():
    for count in (0.0, 1e308):
        with pytest.raises(InputError, match=r"tickets above 0 for each, at most 1e\+09"):
            GandivaFair(tickets={"a": count})


@given(st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
def test_trading_makes_nobody_worse_off_and_keeps_every_accelerator(seed):
    rng = stream(seed, "gandiva-fair")
    users, types = int(rng.integers(2, 7)), int(rng.integers(2, 5))
    capacity = rng.integers(1, 20, types)
    demand = rng.integers(1, 30, users).astype(float)
    rates = rng.uniform(0.5, 5.0, (users, types))  # of users whose jobs are all of one kind
    quota = equal_parts(rng.choice([1.0, 2.0], users), demand, capacity)
    assert quota.sum() == pytest.approx(min(demand.sum(), capacity.sum()))
    after = traded(quota, rates[:, :, None] / rates[:, None, :], demand)
    assert after.min() >= 0
    assert after.sum(axis=0) == pytest.approx(quota.sum(axis=0))
    assert ((after * rates).sum(axis=1) >= (quota * rates).sum(axis=1) * (1 - 1e-9)).all()
    assert (after.sum(axis=1) <= np.maximum(demand, quota.sum(axis=1)) + 1e-6).all()


class TestGandivaFair(PolicyContract):
    make = staticmethod(lambda: Allocated(GandivaFair(), RoundMechanism()))


class TestGandivaFairWithTickets(PolicyContract):
    make = staticmethod(lambda: Allocated(GandivaFair(tickets={"user-1": 3.0}, trade=False), RoundMechanism()))
