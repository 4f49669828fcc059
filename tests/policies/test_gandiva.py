"""Gandiva's packing: pairs at random, kept if they help, undone if they do not, and no knowledge of what was not tried."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.events import MemoChanged
from fairlead.core.job import Job
from fairlead.core.stages import Allocated
from fairlead.policies.allocation.max_min import MaxMinFairness
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.policies.colocation.gandiva_packing import GandivaPacking
from fairlead.testing import Harness, PolicyContract, check_events
from scenes import state_of, table_of, view_of

KINDS = {("good", 1): (4.0, 2.0), ("bad", 1): (4.0, 2.0), ("good", 2): (7.0, 3.0), ("alone", 1): (4.0, 2.0)}


def table(types=("fast", "slow")):
    """Two good ones run at 0.9 each, beside a bad one at 0.4; 'alone' fits beside nobody."""
    made = table_of(("fast", "slow"), KINDS)
    factor = np.array([[{"good": 0.9, "bad": 0.4}.get(b, 0.0) for b, _ in made.keys] for _ in made.keys])
    for row, (kind, workers) in enumerate(made.keys):
        if kind not in ("good", "bad"):
            factor[row] = factor[:, row] = 0.0
        for column, (_, others) in enumerate(made.keys):
            if workers != others:
                factor[row, column] = 0.0
    return table_of(("fast", "slow"), KINDS, paired=made.alone[:, None, :] * factor[:, :, None]).for_types(types)


def moment(jobs: list[Job], where: str, running=None, time: float = 0.0):
    machine = Cluster.parse(where)
    return view_of(state_of(machine, jobs, running), time, table(machine.type_names))


def of_kind(kind: str, count: int, workers: int = 1) -> list[Job]:
    return [Job(f"{kind}-{i}", 0.0, 1e6, kind, workers) for i in range(count)]


def pairs_of(allocation) -> set[tuple[int, int]]:
    both = allocation.second >= 0
    return set(zip(allocation.first[both].tolist(), allocation.second[both].tolist()))


def test_no_job_is_colocated_where_all_fit():
    view = moment(of_kind("good", 4), "2xfast:2,2xslow:2")
    x, _ = GandivaPacking().allocate(view, None)
    plain, _ = MaxMinFairness().allocate(view, None)
    assert not pairs_of(x)
    assert np.array_equal(x.matrix(view.jobs.number, 2), plain.matrix(view.jobs.number, 2))


def test_jobs_are_paired_until_all_have_a_place():
    view = moment(of_kind("good", 7), "4xfast:4")
    x, _ = GandivaPacking().allocate(view, None)
    assert len(pairs_of(x)) == 3
    assert x.matrix(view.jobs.number, 1).tolist() == [[1.0]] * 7


def test_time_is_shared_equally_where_pairs_do_not_suffice():
    view = moment(of_kind("good", 12), "2xfast:2,1xslow:1")
    x, _ = GandivaPacking().allocate(view, None)
    assert len(pairs_of(x)) == 6
    time = x.matrix(view.jobs.number, 2)
    assert time.sum(axis=1) == pytest.approx(0.5)
    used = np.bincount(x.types, x.share)
    assert used == pytest.approx([2.0, 1.0])


def test_only_jobs_of_one_size_that_fit_are_paired():
    jobs = [*of_kind("good", 3), *of_kind("good", 3, 2), *of_kind("alone", 3)]
    view = moment(jobs, "2xfast:2")
    for seed in range(20):
        x, _ = GandivaPacking(seed=seed).allocate(view, None)
        for a, b in pairs_of(x):
            assert jobs[a].workers == jobs[b].workers
            assert "alone" not in (jobs[a].kind, jobs[b].kind)


def test_pairs_are_drawn_by_the_seed_and_differ_between_seeds():
    view = moment(of_kind("good", 20), "4xfast:4")
    drawn = [frozenset(pairs_of(GandivaPacking(seed=seed).allocate(view, None)[0])) for seed in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def together(kind: str, **others):
    memo = {"first": np.array([0]), "second": np.array([1]), "ran": np.zeros(1), "also_ran": np.zeros(1)}
    memo |= {"bad_first": np.array([], np.int64), "bad_second": np.array([], np.int64), "draws": 1, **others}
    return of_kind(kind, 2), memo


def test_a_pair_that_helps_is_kept():
    jobs, memo = together("good")
    x, after = GandivaPacking().allocate(moment(jobs, "1xfast:1", {0: [0], 1: [0]}, 300.0), memo)
    assert pairs_of(x) == {(0, 1)}
    assert len(after["bad_first"]) == 0


def test_a_pair_that_does_not_help_is_undone_and_not_tried_again():
    jobs, memo = together("bad")
    view = moment(jobs, "1xfast:1", {0: [0], 1: [0]}, 300.0)
    x, after = GandivaPacking().allocate(view, memo)
    assert not pairs_of(x)
    assert (after["bad_first"].tolist(), after["bad_second"].tolist()) == ([0], [1])
    assert not pairs_of(GandivaPacking().allocate(view, after)[0])


def test_a_pair_that_has_not_run_is_not_evaluated():
    jobs, memo = together("bad")
    assert pairs_of(GandivaPacking().allocate(moment(jobs, "1xfast:1"), memo)[0]) == {(0, 1)}
    apart = moment([*jobs, *of_kind("good", 2)], "2xfast:2", {0: [0], 1: [1]}, 300.0)
    assert (0, 1) in pairs_of(GandivaPacking().allocate(apart, memo)[0])


def test_the_minimum_gain_decides():
    jobs, memo = together("good")
    view = moment(jobs, "1xfast:1", {0: [0], 1: [0]}, 300.0)
    assert not pairs_of(GandivaPacking(min_gain=1.9).allocate(view, memo)[0])
    with pytest.raises(InputError, match="min_gain"):
        GandivaPacking(min_gain=-1.0)


def test_when_one_job_ends_the_other_can_be_paired_again():
    _, memo = together("good", first=np.array([0]), second=np.array([9]))
    x, after = GandivaPacking().allocate(moment(of_kind("good", 2), "1xfast:1"), memo)
    assert pairs_of(x) == {(0, 1)}
    assert after["second"].tolist() == [1]


def test_a_run_tries_pairs_undoes_bad_ones_and_ends_sooner_than_without_packing():
    jobs = [Job(f"j{i}", 30.0 * i, 4000.0, "good" if i % 2 else "bad") for i in range(12)]

    def run(policy):
        made = Harness(SchedulerConfig(round_s=300.0), table=table(("fast",)), residents=2)
        made.cluster(Cluster.parse("2xfast:2")).policy(policy).submit(*jobs).run()
        check_events(made.journal.events, residents=2)
        return made

    packed = run(Allocated(GandivaPacking(), RoundMechanism()))
    own = [e.memo["own"] for e in packed.journal.events if isinstance(e, MemoChanged) and e.memo is not None]
    assert any(len(memo["first"]) for memo in own)
    assert any(len(memo["bad_first"]) for memo in own), "some pairs were bad, and it was noticed"


class TestGandivaPacking(PolicyContract):
    make = staticmethod(lambda: Allocated(GandivaPacking(), RoundMechanism()))
    residents = 2


class TestGandivaPackingThatUndoes(PolicyContract):
    make = staticmethod(lambda: Allocated(GandivaPacking(min_gain=1.5, seed=3), RoundMechanism()))
    residents = 2


@pytest.mark.parametrize(("interval", "hours"), [({}, 20.15), ({"max_interval_s": 0.0}, 25.0)])
def test_a_losing_pair_is_separated_although_no_job_comes_or_goes(interval, hours):
    turns = Part("gavel-rounds", interval)
    made = Harness(
        SchedulerConfig(Part("gandiva-packing"), mechanism=turns, round_s=360.0), table=table(("fast",)), residents=2
    )
    made.cluster("fast:1").submit(*(Job(f"j{i}", 0.0, 4.0 * 36_000.0, "bad") for i in range(2))).run()
    ends = [made.ended_s(f"j{i}") / 3600.0 for i in range(2)]
    assert hours - 0.2 < max(ends) <= hours
    check_events(made.journal.events, residents=2)
