"""On several types: who gains most by a type is planned there, and who runs somewhere does not move for little."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.cluster import Cluster, Floats, Ints
from fairlead.core.job import Job
from fairlead.policies.ranking.base import in_order
from fairlead.policies.shockwave.planning.planner import _Offer, _price, choose_types
from fairlead.policies.shockwave.policy import Shockwave
from scenes import state_of, table_of, view_of

TABLE = table_of(["v100", "k80"], {("steep", 1): [4.0, 1.0], ("flat", 1): [1.1, 1.0], ("old", 1): [0.0, 1.0]})
CLUSTER = Cluster.parse("2xv100:2,2xk80:2")


def jobs_of(*kinds: str) -> list[Job]:
    return [Job(f"{kind}-{i}", steps=5000.0, kind=kind) for i, kind in enumerate(kinds)]


def worth_of(speed: Floats) -> list[Floats]:
    """Types × jobs: log of what ten rounds give, of jobs that have done a little."""
    return [np.log(0.1 + each[:, None] * np.arange(11)) for each in speed]


def test_who_gains_most_by_a_type_is_planned_there() -> None:
    speed = np.array([[4.0, 1.1], [1.0, 1.0]])
    found = choose_types(worth_of(speed), np.ones(2, dtype=np.int64), [10, 10], np.zeros((2, 2)))
    assert found.tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_no_other_choice_of_types_is_much_better_by_brute_force(seed: int) -> None:
    """Six jobs that each want all rounds of one accelerator, two types with room for three each: an assignment."""
    speed = np.random.default_rng(seed).uniform(0.5, 4.0, (2, 6))
    found = choose_types(worth_of(speed), np.ones(6, dtype=np.int64), [30, 30], np.zeros((2, 6)))
    gain = np.log(0.1 + 10 * speed)
    half = [bits for bits in range(64) if bits.bit_count() == 3]
    best = max(sum(gain[bits >> j & 1, j] for j in range(6)) for bits in half)
    assert 2 <= (found == 0).sum() <= 4
    assert gain[found, np.arange(6)].sum() >= best - 0.05


@pytest.mark.parametrize("near", [0.0, 1e-12, 1e-6, 1e-3, 0.04, 0.7, 30.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_price_of_a_type_is_that_of_a_plain_bisection_wherever_the_search_begins(
    seed: int, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    best = _Offer.best

    def counted(offer: _Offer, price: float) -> tuple[Floats, Ints]:
        steps.append(price)
        assert len(steps) < 100, "types of nearly the same speed begin at a tiny price"
        return best(offer, price)

    monkeypatch.setattr(_Offer, "best", counted)
    rng = np.random.default_rng(seed)
    worth, workers = rng.uniform(0, 3, (40, 1)) * np.log(0.1 + np.arange(11)), rng.integers(1, 9, 40)
    others, bonus, room = rng.uniform(0, 1, 40), rng.uniform(0, 0.1, 40), int(rng.integers(50, 900))

    def fits(price: float) -> bool:
        surplus = worth - price * workers[:, None] * np.arange(11)
        return int((surplus.argmax(axis=1) * workers)[surplus.max(axis=1) + bonus > others].sum()) <= room

    low, high = 0.0, 0.0 if fits(0.0) else 1.0
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    assert _price(_Offer.of(worth, workers), others, bonus, room, near) == high


def test_a_plan_has_each_job_on_its_type_and_the_round_follows_it() -> None:
    view = view_of(state_of(CLUSTER, jobs_of("flat", "flat", "steep", "steep")), table=TABLE)
    selection, memo = Shockwave(nodes=0).select(view, None)
    assert memo["type"].tolist() == [1, 1, 0, 0]
    assert dict(zip(selection.jobs.tolist(), selection.types.tolist())) == {0: 1, 1: 1, 2: 0, 3: 0}


def test_a_plan_on_several_types_has_a_price_for_each_and_a_bound() -> None:
    """Where a type is crowded it has a price. No plan with these types is better by more than the gap."""
    kinds = ("steep",) * 6 + ("old",)
    view = view_of(state_of(CLUSTER, jobs_of(*kinds)), 600.0, TABLE)
    policy = Shockwave(rounds=10, round_s=120.0)
    _, memo = policy.select(view, None)
    on = memo["type"]
    assert len({*zip(on.tolist(), memo["price"].tolist())}) == len({*on.tolist()}), "one price for each type"
    assert memo["price"][on == 0].min() > 0
    assert 0 <= memo["gap"] <= 1e-3
    used = policy.schedule(memo)
    assert (used[on == 0].sum(axis=0) == 2).all(), "nobody idles on what everybody wants"
    assert (used[on == 1].sum(axis=0) <= 2).all()


def test_who_can_run_on_one_type_only_is_planned_there() -> None:
    view = view_of(state_of(CLUSTER, jobs_of("old", "old", "old", "flat")), table=TABLE)
    _, memo = Shockwave(nodes=0).select(view, None)
    assert memo["type"].tolist() == [1, 1, 1, 0]


def test_who_runs_does_not_move_for_little() -> None:
    """Both are a tenth faster on the first type; whoever is on the second stays there."""
    jobs = jobs_of("flat", "flat")
    state = state_of(Cluster.parse("1xv100:1,1xk80:1"), jobs, {0: [1], 1: [0]}, done={0: 2000.0, 1: 2000.0})
    _, memo = Shockwave(nodes=0, stay=0.2).select(view_of(state, 10.0, TABLE), None)
    assert memo["type"].tolist() == [1, 0]


def test_types_that_are_down_are_not_planned_on() -> None:
    state = state_of(CLUSTER, jobs_of("steep", "flat"), down=[0])
    _, memo = Shockwave(nodes=0).select(view_of(state, table=TABLE), None)
    assert memo["type"].tolist() == [1, 1]


def test_a_preferred_type_comes_before_the_fastest_and_before_where_one_is() -> None:
    state = state_of(CLUSTER, jobs_of("steep", "flat", "steep"), {1: [0]})
    view = view_of(state, 1.0, TABLE)
    chosen = in_order(view, prefer=np.array([1, 1, -1]))
    assert dict(zip(chosen.jobs.tolist(), chosen.types.tolist()))[2] == 0
    crowded = in_order(view_of(state_of(CLUSTER, jobs_of(*["steep"] * 4)), table=TABLE), prefer=np.array([1, 1, -1, -1]))
    assert crowded.types.tolist() == [1, 1, 0, 0]
