"""The round mechanism: what it realises of an allocation, who goes first, what it remembers, what is left over."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError
from fairlead.core.events import Memo, ObservationsRecorded, ProgressReported, RoundPlanned
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocated
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import decode, encode
from fairlead.estimators.oracle import Oracle
from fairlead.policies.allocation.mechanism.round_ledger import RoundLedger, among
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.testing.builders import job, random_table
from fairlead.testing.harness import Harness
from fairlead.workloads.throughput_tables import ThroughputTable


@dataclass(frozen=True)
class Fixed:
    """The same shares whatever happens, for the jobs that are there; and how often it was asked."""

    x: Floats
    asked: list[float] = field(default_factory=list)

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        self.asked.append(view.time)
        here = view.jobs.number[view.jobs.number < len(self.x)]
        return Allocation.alone(here, self.x[here]), memo


@dataclass(frozen=True)
class Pairs:
    """Jobs 0 and 1 always together, job 2 alone, half of the time each."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        return Allocation(np.array([0, 2]), np.array([1, -1]), np.array([0, 0]), np.array([0.5, 0.5])), memo


def received(harness: Harness, rounds: int, jobs: int, types: int) -> Floats:
    """The fraction of rounds that each job spent on each type."""
    time = np.zeros((jobs, types))
    for _ in range(rounds):
        harness.round()
        view = harness.state.snapshot()
        running = view.jobs.runners
        time[running.number, running.type] += 1
    harness.check()
    return time / rounds


X_EXAMPLE = np.array([[0.6, 0.4, 0.0], [0.2, 0.6, 0.2], [0.2, 0.0, 0.8]])


@pytest.mark.parametrize(
    "turns",
    [RoundMechanism(), RoundMechanism(prior_s=0.0), RoundMechanism(carried="priority")],
    ids=["default", "no prior", "carried"],
)
def test_the_papers_example_is_realised_within_a_percent_in_a_hundred_rounds(turns: RoundMechanism) -> None:
    types = ("v100", "p100", "k80")
    harness = Harness(table=random_table(0, types)).cluster("v100:1,p100:1,k80:1").policy(Allocated(Fixed(X_EXAMPLE), turns))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(3)))
    got = received(harness, 100, 3, 3)
    assert np.abs(got - X_EXAMPLE).max() <= 0.01 + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_random_shares_of_single_workers_are_realised(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.dirichlet(np.ones(3), 8) * 0.9
    x *= np.minimum(1.0, 2 / x.sum(axis=0))[None, :]
    harness = Harness(table=random_table(0, ("v100", "p100", "k80"))).cluster("v100:2,p100:2,k80:2")
    harness.policy(Allocated(Fixed(x), RoundMechanism(work_conserving=False)))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(8)))
    got = received(harness, 300, 8, 3)
    assert (got >= x - 0.05).all(), "everybody gets its share at least"


def test_a_job_that_is_alone_gets_its_share_of_every_type() -> None:
    harness = Harness(table=random_table(0, ("v100", "p100", "k80"))).cluster("v100:1,p100:2,k80:3")
    x = np.array([[1 / 6, 1 / 3, 1 / 2]])
    harness.policy(Allocated(Fixed(x), RoundMechanism())).submit(job("j0").of_kind("kind-0", 1e9))
    assert received(harness, 120, 1, 3) == pytest.approx(x, abs=0.02)


def test_a_job_runs_once_a_round_and_gangs_are_whole() -> None:
    x = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    table = random_table(0, ("v100", "k80"))
    harness = Harness(table=table).cluster("v100:4,k80:4").policy(Allocated(Fixed(x), RoundMechanism()))
    harness.submit(job("wide").of_kind("kind-0", 1e9).workers(4), *(job(f"j{i}").of_kind("kind-1", 1e9) for i in range(2)))
    for _ in range(20):
        harness.round()
    harness.check()


def test_a_pair_conflicts_with_its_members_and_both_run_together() -> None:
    table = random_table(0, ("v100",))
    harness = (
        Harness(table=table, residents=2).cluster("v100:1").policy(Allocated(Pairs(), RoundMechanism(work_conserving=False)))
    )
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(3)))
    seen = [harness.round().running for _ in range(10)]
    harness.check()
    assert set(seen) == {frozenset({"j0", "j1"}), frozenset({"j2"})}
    assert seen.count(frozenset({"j2"})) == 5


def test_whoever_has_no_share_uses_what_is_left_over() -> None:
    x = np.array([[1.0], [0.0]])
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:2").policy(Allocated(Fixed(x), RoundMechanism()))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    assert harness.round().running == {"j0", "j1"}
    strict = (
        Harness(table=random_table(0, ("v100",)))
        .cluster("v100:2")
        .policy(Allocated(Fixed(x), RoundMechanism(work_conserving=False)))
    )
    strict.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    assert strict.round().running == {"j0"}


@pytest.mark.parametrize(("types", "first"), [("together", [1, 0]), ("in-order", [0, 1])])
def test_what_is_left_of_a_type_goes_before_the_next_type_is_filled(types: str, first: list[int]) -> None:
    """Job 0 has a share of the second type only. Where types are filled in order it is among those who wait for the first."""
    harness = Harness(table=random_table(0, ("v100", "k80"))).cluster("v100:1,k80:1")
    harness.policy(Allocated(Fixed(np.array([[0.0, 1.0], [0.0, 0.0]])), RoundMechanism(types=types)))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    harness.round()
    assert harness.state.snapshot().jobs.type.tolist() == first


def test_what_is_left_over_goes_round() -> None:
    """Two without a share on one accelerator that is free: in the next round it is the other's turn."""
    x = np.array([[1.0], [0.0], [0.0]])
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:2").policy(Allocated(Fixed(x), RoundMechanism()))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(3)))
    assert [harness.round().running - {"j0"} for _ in range(4)] == [{"j1"}, {"j2"}, {"j1"}, {"j2"}]
    assert harness.round().plan.valid_until is None
    alone = Harness(table=random_table(0, ("v100",))).cluster("v100:2").policy(Allocated(Fixed(x), RoundMechanism()))
    alone.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    assert alone.round().plan.valid_until == np.inf, "nobody else could use it"


def test_what_is_left_over_goes_to_whom_it_is_enough_for_each_on_the_fastest_type_that_is_free() -> None:
    """Two v100 and a k80 are left. Who waits for four does not keep back those behind it, and who came last goes first in the
    next round, on a v100: then one more fits beside it, and nobody needs the k80."""
    harness = Harness(table=random_table(0, ("v100", "k80"))).cluster("v100:4,k80:1")
    harness.policy(Allocated(Fixed(np.array([[1.0, 0.0], *[[0.0, 0.0]] * 4])), RoundMechanism()))
    sizes = {"holder": 2, "wide": 4, "pair": 2, "one": 1, "last": 1}
    harness.submit(*(job(name).of_kind("kind-0", 1e9).workers(size) for name, size in sizes.items()))
    seen = []
    for _ in range(2):
        assert harness.round().plan.valid_until is None
        running = harness.state.snapshot().jobs.runners
        seen.append(dict(zip((list(sizes)[number] for number in running.number.tolist()), running.type.tolist())))
    assert seen == [{"holder": 0, "pair": 0, "one": 1}, {"holder": 0, "one": 0, "last": 0}]


def test_what_is_left_over_goes_round_over_recomputations() -> None:
    fixed = Fixed(np.zeros((9, 1)))
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:1").policy(Allocated(fixed, RoundMechanism()))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(3)))
    seen = []
    for late in range(3, 9):
        seen.append(harness.round().running)
        harness.submit(job(f"j{late}").of_kind("kind-0", 1e9).at(harness.state.time + 10.0))
    assert seen == [{f"j{i}"} for i in range(6)]
    assert len(fixed.asked) == 6


@pytest.mark.parametrize(("carried", "gets"), [("priority", 0.2), ("ties", 0.0)])
def test_a_gang_has_its_turns_where_every_round_is_computed_anew(carried: str, gets: float) -> None:
    """A gang of 4 has a small share, others a large one. Where shares are computed anew in every round, nobody ever waits long
    enough for a small share to go first, unless what it was owed before counts."""
    x = np.array([[0.2], *[[0.8]] * 4, *[[0.0]] * 60])
    turns = RoundMechanism(carried=carried, work_conserving=False)  # type: ignore[arg-type]
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:4").policy(Allocated(Fixed(x), turns))
    harness.submit(job("wide").of_kind("kind-0", 1e9).workers(4), *(job(f"j{i}").of_kind("kind-1", 1e9) for i in range(4)))
    had = 0
    for late in range(50):
        had += "wide" in harness.round().running
        harness.submit(job(f"late{late}").of_kind("kind-1", 1e9).at(harness.state.time + 10.0))
    harness.check()
    assert had / 50 == pytest.approx(gets, abs=0.03)


@pytest.mark.parametrize("newcomers", ["share", "leftovers"])
@pytest.mark.parametrize("types", ["together", "in-order"])
def test_a_newcomer_that_leaves_before_the_next_recomputation_leaves_nothing_behind(newcomers: str, types: str) -> None:
    turns = RoundMechanism(min_interval_s=10_000.0, newcomers=newcomers, types=types)  # type: ignore[arg-type]
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:3").policy(Allocated(Fixed(np.ones((2, 1))), turns))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    harness.round()
    harness.submit(job("short").of_kind("kind-0", 1.0))
    assert "short" in harness.round().running
    assert [harness.round().running for _ in range(2)] == [{"j0", "j1"}] * 2


@pytest.mark.parametrize(("newcomers", "runs"), [("share", True), ("leftovers", True), ("wait", False)])
def test_newcomers_before_the_next_recomputation(newcomers: str, runs: bool) -> None:
    fixed = Fixed(np.array([[1.0], [1.0]]))
    turns = RoundMechanism(min_interval_s=10_000.0, newcomers=newcomers)  # type: ignore[arg-type]
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:2").policy(Allocated(fixed, turns))
    harness.submit(job("j0").of_kind("kind-0", 1e9))
    harness.round()
    harness.submit(job("j1").of_kind("kind-0", 1e9))
    assert ("j1" in harness.round().running) == runs
    assert len(fixed.asked) == 1


def test_it_computes_anew_when_jobs_come_or_go_and_no_sooner_than_it_may() -> None:
    fixed = Fixed(np.ones((4, 1)))
    harness = (
        Harness(table=random_table(0, ("v100",)))
        .cluster("v100:4")
        .policy(Allocated(fixed, RoundMechanism(min_interval_s=700.0)))
    )
    harness.submit(job("j0").of_kind("kind-0", 1e9))
    for _ in range(5):
        harness.round()
    assert len(fixed.asked) == 1
    harness.submit(job("j1").of_kind("kind-0", 1e9))
    harness.round()
    assert len(fixed.asked) == 2
    harness.submit(job("j2").of_kind("kind-0", 1e9))
    for expected in (2, 2, 2, 3, 3):  # at once, after 300 and 600 seconds, then after 900
        harness.round()
        assert len(fixed.asked) == expected


def test_a_served_allocation_holds_and_an_open_one_is_asked_every_round() -> None:
    served = (
        Harness(table=random_table(0, ("v100",))).cluster("v100:2").policy(Allocated(Fixed(np.ones((2, 1))), RoundMechanism()))
    )
    served.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    assert served.round().plan.valid_until == np.inf
    shared = Harness(table=random_table(0, ("v100",))).cluster("v100:1")
    shared.policy(Allocated(Fixed(np.full((2, 1), 0.5)), RoundMechanism()))
    shared.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    assert shared.round().plan.valid_until is None


def test_what_it_remembers_survives_the_journal() -> None:
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:1")
    harness.policy(Allocated(Fixed(np.full((3, 1), 1 / 3)), RoundMechanism()))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(3)))
    for _ in range(6):
        harness.round()
    for event in harness.journal.events:
        assert encode(decode(encode(event))) == encode(event)
    assert any(isinstance(event, RoundPlanned) for event in harness.journal.events)


@dataclass(frozen=True)
class Forgetful:
    """The same mechanism, which knows at every decision no more than its memo."""

    x: Floats

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return Allocated(Fixed(self.x), RoundMechanism(carried="priority")).select(view, memo)


def test_what_it_keeps_beside_the_memo_changes_nothing() -> None:
    x = np.random.default_rng(0).dirichlet(np.ones(2), 12) * 0.5
    logs = []
    for policy in (Allocated(Fixed(x), RoundMechanism(carried="priority")), Forgetful(x)):
        harness = Harness(table=random_table(0, ("v100", "k80"))).cluster("v100:2,k80:2").policy(policy)
        for at in range(12):  # they come one by one, and some end on the way
            harness.submit(job(f"j{at}").of_kind("kind-0", 1e9 if at % 2 else 300.0).workers(1 + at % 2))
            for _ in range(3):
                harness.round()
        logs.append([encode(event) for event in harness.journal.events])
    assert logs[0] == logs[1]


def test_a_node_that_is_lost_takes_no_share_with_it() -> None:
    fixed = Fixed(np.ones((2, 1)))
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:1,v100:1").policy(Allocated(fixed, RoundMechanism()))
    harness.outage(0, 100.0, 1000.0).submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    running = [len(harness.round().running) for _ in range(6)]
    assert running == [2, 1, 1, 1, 2, 2]
    harness.check()


@pytest.mark.parametrize(("lease_s", "turns"), [(0.0, 5), (300.0, 6)])
def test_of_a_lease_only_whole_steps_count(lease_s: float, turns: int) -> None:
    """A step of 200 s is done once in a round of 300 s; by whole steps four turns of the other are as much as six of these."""
    alone = np.array([[1.0], [1 / 200]])
    table = ThroughputTable(("v100",), (("quick", 1), ("slow", 1)), alone, alone, np.zeros((2, 2, 1)), "made up")
    harness = (
        Harness(table=table).cluster("v100:1").policy(Allocated(Fixed(np.full((2, 1), 0.5)), RoundMechanism(lease_s=lease_s)))
    )
    harness.submit(job("quick").of_kind("quick", 1e9), job("slow").of_kind("slow", 1e9))
    assert [harness.round().running for _ in range(10)].count(frozenset({"slow"})) == turns


def test_of_who_has_told_no_speed_yet_a_whole_lease_counts() -> None:
    """On a real cluster a job may load for longer than a lease."""
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:1")
    policy = Allocated(Fixed(np.full((2, 1), 0.5)), RoundMechanism(lease_s=60.0, stickiness=0.0))
    harness.policy(policy).submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    harness.round()
    view = harness.state.snapshot()
    silent = view.jobs.number[view.jobs.running]
    done = view.jobs.steps_done[silent]
    apply_event(harness.state, ProgressReported(view.time, silent, done, np.zeros(1), np.full(1, view.time)))
    later = harness.state.snapshot(view.time + 120.0).with_changes(estimate=Oracle(random_table(0, ("v100",))).rates)
    selection, memo = policy.select(later, harness.state.memo)
    assert isinstance(memo, dict)
    assert memo["received"].tolist() == [120.0, 0.0]
    assert selection.jobs.tolist() == [1 - silent[0]]


def test_types_are_shuffled_by_the_seed() -> None:
    def types(seed: int) -> list[int]:
        harness = Harness(table=random_table(0, ("v100", "k80"))).cluster("v100:1,k80:1")
        harness.policy(Allocated(Fixed(np.full((1, 2), 0.5)), RoundMechanism(types="shuffled", seed=seed)))
        harness.submit(job("j0").of_kind("kind-0", 1e9))
        return [int(harness.round().plan.launches.types.sum()) for _ in range(20)]

    assert types(0) == types(0) != types(1)


def test_wrong_seconds_are_refused() -> None:
    with pytest.raises(InputError, match="prior_s"):
        RoundMechanism(prior_s=-1.0)
    for lease_s in (0.1, 0.5, 0.999):
        with pytest.raises(InputError, match="lease_s"):
            RoundMechanism(lease_s=lease_s)
    assert [RoundMechanism(lease_s=lease_s).lease_s for lease_s in (0.0, 1.0)] == [0.0, 1.0]


def test_a_periodic_recomputation_keeps_what_is_owed_beyond_a_smaller_share() -> None:
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:2")
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
    start, later = harness.state.snapshot(0.0), harness.state.snapshot(1000.0)
    numbers = np.arange(2)
    ledger = RoundLedger.opened(start, Allocation.alone(numbers, np.array([[0.5], [0.5]])), None)
    ledger = ledger.with_changes(received=np.array([0.0, 1000.0]))
    fresh = ledger.refreshed(later, Allocation.alone(numbers, np.array([[0.1], [0.9]])), None, 0.0)
    owed = fresh.deficit + fresh.allocation.share * (later.time - fresh.computed_s) - fresh.received
    assert owed == pytest.approx([500.0, -500.0])


def test_a_debt_stands_in_one_place_only() -> None:
    """Who uses what is left over again and again is owed once, not once more with every recomputation."""
    x = np.array([[1.0], [0.0], [0.0], [0.0], [0.0], [0.0]])
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:2").policy(Allocated(Fixed(x), RoundMechanism()))
    harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(3)))
    for late in range(3, 6):
        for _ in range(3):
            harness.round()
        harness.submit(job(f"j{late}").of_kind("kind-0", 1e9))
    harness.round()
    memo = harness.state.memo
    assert memo is not None
    keys = [*memo["debt_keys"].tolist(), *((memo["first"] << 35) | memo["types"]).tolist()]
    assert len(keys) == len(set(keys))


def test_what_is_learned_makes_it_compute_anew() -> None:
    fixed = Fixed(np.ones((1, 1)))
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:1").policy(Allocated(fixed, RoundMechanism()))
    harness.submit(job("j0").of_kind("kind-0", 1e9))
    harness.round()
    harness.loop.record(ObservationsRecorded(harness.state.time, {"fact": 1.0}))
    harness.round()
    assert len(fixed.asked) == 2


def test_guests_whose_leases_count_differently_are_asked_about_every_round() -> None:
    alone = np.array([[1.0, 0.5], [1 / 200, 1 / 250]])
    table = ThroughputTable(("v100", "k80"), (("quick", 1), ("slow", 1)), alone, alone, np.zeros((2, 2, 2)), "made up")
    ends = []
    for skip in (True, False):
        turns = Allocated(Fixed(np.zeros((2, 2))), RoundMechanism(lease_s=300.0))
        harness = Harness(table=table).cluster("v100:1,k80:1").policy(turns)
        harness.submit(job("quick").of_kind("quick", 1e4), job("slow").of_kind("slow", 50))
        harness.loop.skip_quiet_rounds = skip
        harness.run()
        ends.append((harness.ended_s("quick"), harness.ended_s("slow")))
    assert ends[0] == ends[1]


def test_what_a_pair_is_owed_is_owed_to_both_and_gone_with_either() -> None:
    harness = Harness(table=random_table(0, ("v100",))).cluster("v100:1")
    harness.submit(job("a"), job("b"), job("c"))
    harness.round()
    view = harness.state.snapshot(300.0)
    pair = Allocation(np.array([0]), np.array([1]), np.array([0]), np.array([1.0]))
    alone = Allocation(np.array([2]), np.array([-1]), np.array([0]), np.array([1.0]))
    opened = RoundLedger.opened(harness.state.snapshot(0.0), pair, None)
    everybody = np.arange(3)
    assert opened.owed(view, opened.received, everybody).tolist() == [300.0, 300.0, 0.0]
    assert opened.owed(view, opened.received, np.array([1, 2])).tolist() == [300.0, 0.0]
    after = opened.reopened(view, alone, None, 0.0)
    assert after.owed(view, after.received, everybody).tolist() == [300.0, 300.0, 0.0]
    gone = view.without(np.array([1]))
    assert not len(opened.reopened(gone, alone, None, 0.0).debts)


@pytest.mark.parametrize("close", [True, False], ids=["row of bits", "search"])
def test_a_job_that_left_is_not_among_those_present_wherever_its_number_is(close: bool) -> None:
    present = np.array([7, 8, 11, 12] if close else [7, 8, 11, 5000])
    wanted = np.arange(14)
    assert among(present, wanted).tolist() == [number in present for number in wanted]
    assert among(present, np.array([6])).tolist() == [False], "the job with the lowest number was the one that left"


@pytest.mark.parametrize("shares", [np.ones((2, 1)), np.array([[0.7], [0.3]])])
def test_a_periodic_recomputation_with_the_same_answer_changes_no_round(shares: np.ndarray) -> None:
    def run(interval: float) -> tuple[list[frozenset[str]], int]:
        fixed = Fixed(shares)
        harness = Harness(table=random_table(0, ("v100",))).cluster("v100:1")
        harness.policy(Allocated(fixed, RoundMechanism(max_interval_s=interval)))
        harness.submit(*(job(f"j{i}").of_kind("kind-0", 1e9) for i in range(2)))
        return [harness.round().running for _ in range(40)], len(fixed.asked)

    (plain, once), (periodic, often) = run(0.0), run(1000.0)
    assert plain == periodic
    assert (once, often) == (1, 1 + 39 * 300 // 1000)
