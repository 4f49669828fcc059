"""From an order to a selection, held against a greedy choice in plain Python."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.policies.ranking.base import first_crossing, in_order, smallest_first, take
from scenes import state_of, table_of, view_of

# take


def greedy(workers: list[int], capacity: int, backfill: bool) -> tuple[list[int], int | None]:
    chosen, free = [], capacity
    for index, want in enumerate(workers):
        if want <= free:
            chosen.append(index)
            free -= want
        elif not backfill:
            return chosen, index
    return chosen, None


@given(st.lists(st.integers(1, 9), max_size=40), st.integers(0, 30), st.booleans())
@settings(max_examples=400)
def test_take_is_the_greedy_choice(workers, capacity, backfill):
    taken, head = take(np.array(workers, dtype=np.int64), capacity, backfill)
    assert (taken.tolist(), head) == greedy(workers, capacity, backfill)


def test_nothing_is_taken_where_nothing_is_free_and_the_first_is_the_head():
    wants = np.array([1, 1])
    assert take(wants, 0, True)[0].tolist() == []
    taken, head = take(wants, 0, False)
    assert (taken.tolist(), head) == ([], 0)
    assert take(np.empty(0, np.int64), 5, False)[1] is None


# smallest_first


@given(st.lists(st.integers(0, 6), min_size=1, max_size=200), st.integers(0, 210))
@settings(max_examples=200)
def test_the_smallest_first_are_a_stable_sorts_beginning(keys, enough):
    key = np.array(keys)
    order = smallest_first(key, enough)
    everything = np.argsort(key, kind="stable")
    assert len(order) >= min(enough, len(keys))
    assert order.tolist() == everything[: len(order)].tolist()
    if len(order) < len(keys):
        assert key[order[-1]] < key[everything[len(order)]], "half of a tie was left behind"


# crossing


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from([0.0, 0.0, 0.5, 1.0, 8.0])), min_size=1, max_size=30),
    st.floats(0, 1e7),
)
@settings(max_examples=300)
def test_nobody_has_crossed_before_the_second_that_was_named(pairs, now):
    key, growth = np.array([k for k, _ in pairs]), np.array([g for _, g in pairs])
    until = first_crossing(now, key, growth.nonzero()[0], growth[growth > 0])
    meetings = [
        now + (key[s] - key[m]) / growth[m]
        for m in np.flatnonzero(growth > 0)
        for s in np.flatnonzero(growth == 0)
        if key[s] >= key[m]
    ]
    if not meetings:
        assert until == math.inf
        return
    first = min(meetings)
    assert until <= first
    assert first - until <= 1e-6 * max(1.0, first), "so early that every round would be decided anew"


# One type.


@st.composite
def one_type(draw):
    """A node's worth of accelerators, jobs of which some run, and a key that has ties."""
    capacity = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
    free, running, at = capacity, {}, 0
    for number, size in enumerate(sizes):
        if size <= free and draw(st.booleans()):
            running[number] = list(range(at, at + size))
            at, free = at + size, free - size
    protected = [draw(st.booleans()) for _ in sizes]
    jobs = [
        Job(f"j{i}", steps=1e6, workers=size, min_run_s=100.0 if p else 0.0)
        for i, (size, p) in enumerate(zip(sizes, protected))
    ]
    keys = draw(st.none() | st.lists(st.integers(0, 4), min_size=len(sizes), max_size=len(sizes)))
    return capacity, jobs, running, keys


def plain_choice(capacity, jobs, first, keys, backfill):
    """Who goes first holds what it holds; the others share what is left, by key and then by number."""
    order = sorted((n for n in range(len(jobs)) if n not in first), key=lambda n: (0 if keys is None else keys[n], n))
    left = capacity - sum(jobs[n].workers for n in first)
    chosen, head = greedy([jobs[n].workers for n in order], left, backfill)
    return sorted([*first, *(order[i] for i in chosen)]), None if head is None else order[head]


@given(one_type(), st.booleans(), st.booleans())
@settings(max_examples=300)
def test_on_one_type_a_selection_is_the_greedy_choice_with_the_untouchable_in_front(case, backfill, preempt):
    capacity, jobs, running, keys = case
    state = state_of(Cluster.parse(f"{capacity}xv100:{capacity}"), jobs, running)
    view = view_of(state, 50.0)
    key = None if keys is None else np.array(keys, dtype=np.float64)
    selection = in_order(view, key, backfill=backfill, preempt=preempt, valid_until=math.inf)
    first = [n for n in running if not preempt or jobs[n].min_run_s > 50.0]
    expected, head = plain_choice(capacity, jobs, first, keys, backfill)
    assert sorted(selection.jobs.tolist()) == expected
    assert selection.head == head
    assert selection.workers.tolist() == [jobs[n].workers for n in selection.jobs.tolist()]
    assert set(selection.types.tolist()) <= {0}
    assert selection.valid_until == (100.0 if preempt and first else math.inf)


@given(one_type(), st.booleans())
@settings(max_examples=100)
def test_entries_stand_in_the_order_of_their_keys(case, backfill):
    capacity, jobs, running, keys = case
    jobs = [Job(job.name, steps=1e6, workers=job.workers) for job in jobs]
    keys = keys or [0] * len(jobs)
    view = view_of(state_of(Cluster.parse(f"{capacity}xv100:{capacity}"), jobs, running))
    chosen = in_order(view, np.array(keys), backfill=backfill).jobs.tolist()
    assert chosen == sorted(chosen, key=lambda n: (keys[n], n))


def test_a_small_job_far_behind_many_large_ones_is_found_by_backfilling():
    jobs = [Job(f"large-{i}", workers=4) for i in range(500)] + [Job("small", workers=1)]
    view = view_of(state_of(Cluster.parse("5xv100:5"), jobs))
    key = np.arange(501, dtype=np.float64)
    assert in_order(view, key).jobs.tolist() == [0, 500]
    strict = in_order(view, key, backfill=False)
    assert (strict.jobs.tolist(), strict.head) == ([0], 1)


def test_where_nobody_is_there_nobody_is_selected():
    selection = in_order(view_of(state_of(Cluster.parse("2xv100:2"), [])))
    assert (len(selection), selection.valid_until) == (0, math.inf)


# Several types.

TYPES = ("slow", "fast", "odd")
RATES = {
    ("plain", 1): (1.0, 3.0, 2.0),
    ("plain", 2): (1.8, 5.0, 3.0),
    ("plain", 4): (3.0, 9.0, 5.0),
    ("picky", 1): (0.0, 2.0, 0.0),
    ("picky", 2): (0.0, 3.0, 0.0),
    ("picky", 4): (0.0, 5.0, 0.0),
    ("odd", 1): (2.0, 1.0, 4.0),
    ("odd", 2): (3.0, 2.0, 7.0),
    ("odd", 4): (5.0, 3.0, 12.0),
}
TABLE = table_of(TYPES, RATES)


@st.composite
def several_types(draw):
    sizes = draw(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)))
    cluster = Cluster.parse(",".join(f"{size}x{name}:{size}" for name, size in zip(TYPES, sizes)))
    jobs, running, free = [], {}, [list(range(*bounds)) for bounds in cluster.bounds_of_node]
    for number in range(draw(st.integers(1, 10))):
        allowed = draw(st.sampled_from([(), (), (), ("slow",), ("odd", "slow")]))
        job = Job(f"j{number}", 0.0, 1e6, draw(st.sampled_from(["plain", "picky", "odd"])), draw(st.sampled_from([1, 1, 2, 4])))
        job = Job(
            job.name, 0.0, 1e6, job.kind, job.workers, allowed_types=allowed, min_run_s=draw(st.sampled_from([0.0, 100.0]))
        )
        jobs.append(job)
        where = draw(st.sampled_from([None, 0, 1, 2]))
        if where is not None and where in types_of(job, sizes) and len(free[where]) >= job.workers:
            running[number] = [free[where].pop() for _ in range(job.workers)]
    keys = draw(st.lists(st.integers(0, 4), min_size=len(jobs), max_size=len(jobs)))
    return cluster, jobs, running, keys


def types_of(job: Job, sizes) -> list[int]:
    """Where a job can run at all, fastest first."""
    rates = RATES[job.kind, job.workers]
    suits = [
        t
        for t, name in enumerate(TYPES)
        if rates[t] > 0 and job.workers <= sizes[t] and (not job.allowed_types or name in job.allowed_types)
    ]
    return sorted(suits, key=lambda t: -rates[t])


def hopeful(case):
    """The same without jobs that the door would have refused."""
    cluster, jobs, running, keys = case
    sizes = cluster.size_of_type.tolist()
    stay = [n for n, job in enumerate(jobs) if types_of(job, sizes)]
    place = {n: i for i, n in enumerate(stay)}
    return cluster, [jobs[n] for n in stay], {place[n]: running[n] for n in running}, [keys[n] for n in stay]


def chosen_types(case, **how):
    cluster, jobs, running, keys = case
    view = view_of(state_of(cluster, jobs, running), 50.0, TABLE)
    selection = in_order(view, np.array(keys, dtype=np.float64), **how)
    return selection, dict(zip(selection.jobs.tolist(), selection.types.tolist()))


def rank_of(case, preempt: bool) -> list[int]:
    _, jobs, running, keys = case
    first = {n for n in running if not preempt or jobs[n].min_run_s > 50.0}
    return sorted(range(len(jobs)), key=lambda n: (n not in first, 0 if n in first else keys[n], n))


@given(several_types().map(hopeful), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_on_several_types_a_selection_fits_everywhere_and_everyone(case, backfill, preempt):
    cluster, jobs, _, _ = case
    selection, given_ = chosen_types(case, backfill=backfill, preempt=preempt)
    sizes = cluster.size_of_type.tolist()
    assert len(given_) == len(selection)
    used = [0] * len(sizes)
    for number, kind in given_.items():
        assert kind in types_of(jobs[number], sizes)
        used[kind] += jobs[number].workers
    assert all(u <= size for u, size in zip(used, sizes))
    assert selection.workers.tolist() == [jobs[n].workers for n in selection.jobs.tolist()]


@given(several_types().map(hopeful), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_on_several_types_who_comes_first_is_served_first(case, backfill, preempt):
    cluster, jobs, running, _ = case
    selection, given_ = chosen_types(case, backfill=backfill, preempt=preempt)
    sizes, rank = cluster.size_of_type.tolist(), rank_of(case, preempt)
    free = sizes.copy()
    for number in rank:  # the plain greedy: the type one runs on, else the fastest with room
        now_on = int(cluster.type_of[running[number][0]]) if number in running else -1
        wishes = [now_on] if now_on >= 0 and free[now_on] >= jobs[number].workers else types_of(jobs[number], sizes)
        fits = [t for t in wishes if free[t] >= jobs[number].workers]
        if fits:
            assert number in given_, f"{jobs[number]} had room in its turn and was not selected"
            free[fits[0]] -= jobs[number].workers
        elif not backfill:
            break
    left = np.array(sizes) - np.bincount(selection.types, selection.workers, minlength=len(sizes)).astype(int)
    if selection.head is None:
        assert backfill or not left.any() or set(given_) == set(rank)
        return
    at = rank.index(selection.head)
    assert set(given_) == set(rank[:at]), "somebody behind the head was selected, or somebody before it was not"
    head = jobs[selection.head]
    assert not any(left[t] >= head.workers for t in types_of(head, sizes)), "it waits though there is room for it"


@given(several_types().map(hopeful))
@settings(max_examples=150)
def test_on_several_types_nothing_is_left_idle_that_somebody_could_use(case):
    cluster, jobs, _, _ = case
    _, given_ = chosen_types(case)
    sizes = cluster.size_of_type.tolist()
    free = [size - sum(jobs[n].workers for n, t in given_.items() if t == kind) for kind, size in enumerate(sizes)]
    for number, job in enumerate(jobs):
        could = [t for t in types_of(job, sizes) if free[t] >= job.workers]
        if number not in given_:
            assert not could, f"{job} waits although type {could} has room"
        elif not job.min_run_s:  # who is inside its minimum run stays where it is
            better = types_of(job, sizes)[: types_of(job, sizes).index(given_[number])]
            assert not set(better) & set(could), f"{job} stays on a slower type than it could have"


@given(several_types().map(hopeful), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_asked_again_once_it_has_been_carried_out_a_selection_is_as_it_promised(case, backfill, preempt):
    """Nothing has happened since, so nothing changes, unless it said that it would not hold."""
    cluster, jobs, running, keys = case
    jobs = [Job(job.name, 0.0, 1e6, job.kind, job.workers, allowed_types=job.allowed_types) for job in jobs]
    how = {"backfill": backfill, "preempt": preempt, "valid_until": math.inf}
    selection, chosen = chosen_types((cluster, jobs, running, keys), **how)
    free = [list(range(*bounds)) for bounds in cluster.bounds_of_node]
    then = {n: [free[kind].pop() for _ in range(jobs[n].workers)] for n, kind in sorted(chosen.items())}
    _, again = chosen_types((cluster, jobs, then, keys), **how)
    assert again == chosen or selection.valid_until <= 50.0


def test_who_runs_keeps_its_type_although_a_faster_one_is_taken_by_others():
    cluster = Cluster.parse("2xslow:2,2xfast:2,1xodd:1")
    jobs = [Job("first", 0.0, 1e6, "plain", 2), Job("second", 0.0, 1e6, "plain", 2)]
    case = (cluster, jobs, {0: [0, 1], 1: [2, 3]}, [0, 1])
    assert chosen_types(case)[1] == {0: 0, 1: 1}


def test_who_runs_moves_up_to_a_faster_type_that_would_be_idle():
    cluster = Cluster.parse("2xslow:2,2xfast:2,1xodd:1")
    case = (cluster, [Job("first", 0.0, 1e6, "plain", 2)], {0: [0, 1]}, [0])
    assert chosen_types(case)[1] == {0: 1}


def test_what_somebody_left_behind_by_moving_up_goes_to_who_was_passed_over():
    cluster = Cluster.parse("2xslow:2,2xfast:2,1xodd:1")
    jobs = [Job("mover", 0.0, 1e6, "plain", 2), Job("bound", 0.0, 1e6, "plain", 2, allowed_types=("slow",))]
    assert chosen_types((cluster, jobs, {0: [0, 1]}, [0, 1]))[1] == {0: 1, 1: 0}
