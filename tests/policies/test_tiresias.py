"""Tiresias: queues by attained service, first come first served inside, promotion of the starved; and the Gittins index."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import Scheduler, simulate
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.rng import stream
from fairlead.engine.apply import apply_event
from fairlead.policies.ranking.tiresias import Gittins, Tiresias, gittins_index
from fairlead.testing import Harness, job
from scenes import state_of, view_of

TWO = Cluster.parse("2xv100:2")
ONE = Cluster.parse("1xv100:1")


def state_with_service(cluster: Cluster, jobs: list[Job], ran: dict[int, float]):
    """All have run for so long from second 0 on, and wait since; nobody runs."""
    state = state_of(cluster, jobs, {number: list(range(jobs[number].workers)) for number in ran})
    for number, seconds in sorted(ran.items(), key=lambda item: item[1]):
        apply_event(state, ev.RoundPlanned(RoundPlan(seconds, suspended=np.array([number]))))
    return state


def order(policy, state, time, memo=None):
    selection, memo = policy.select(view_of(state, time), memo)
    return selection.jobs.tolist(), selection.valid_until, memo


def test_lower_queues_go_first_whatever_they_attained_inside():
    jobs = [Job(f"j{i}", steps=1e6) for i in range(3)]
    state = state_with_service(ONE, jobs, {0: 150.0, 1: 90.0})
    policy = Tiresias(thresholds=(100.0, 1000.0))
    assert order(policy, state, 500.0)[0] == [1], "0 is in the second queue; 1 started before 2"


def test_inside_a_queue_who_started_earlier_goes_first_then_who_was_submitted_earlier():
    jobs = [Job(f"j{i}", steps=1e6) for i in range(3)]
    state = state_of(ONE, jobs, {2: [0]}, started_s=5.0)
    apply_event(state, ev.RoundPlanned(RoundPlan(50.0, suspended=np.array([2]))))
    policy = Tiresias(thresholds=(100.0,))
    assert order(policy, state, 60.0)[0] == [2]
    nobody_started = state_of(ONE, jobs)
    assert order(policy, nobody_started, 60.0)[0] == [0]


def test_of_a_queue_a_running_job_goes_first_only_where_that_is_wanted():
    jobs = [Job(f"j{i}", steps=1e6) for i in range(3)]
    for first, expected in (("started", 0), ("running", 1), ("submitted", 0)):
        state, policy = state_of(ONE, jobs, {0: [0]}, started_s=5.0), Tiresias(thresholds=(100.0,), first=first)
        known = order(policy, state, 20.0)[2]
        apply_event(state, ev.RoundPlanned(RoundPlan(50.0, suspended=np.array([0]))))
        apply_event(state, ev.RoundPlanned(RoundPlan(50.0, launches=Launches(*map(np.array, ([1], [0], [0, 1], [0]))))))
        chosen, _, after = order(policy, state, 60.0, known)
        assert chosen == [expected]
        assert order(policy, state, 70.0, after)[2] is after, "what did not change is not written again"


Line = tuple[str, int, float, float]


def two_dimensional_las(jobs: list[Line], gpus: int, thresholds: tuple[float, ...]) -> dict[str, float]:
    """The seconds at which jobs (name, GPUs, submission, duration) end by the rules of Tiresias' simulator: a job enters a
    queue at its end, queues are served in their order, and after each decision running jobs move ahead of waiting ones."""
    coming, queues = sorted(jobs, key=lambda one: one[2]), [[] for _ in range(len(thresholds) + 1)]
    wide, needs = {one[0]: one[1] for one in jobs}, {one[0]: one[3] for one in jobs}
    ran, level, running, ended, now = dict[str, float](), dict[str, int](), set[str](), dict[str, float](), 0.0
    while coming or ran:
        demotions = [thresholds[level[n]] / wide[n] - ran[n] for n in running if level[n] < len(thresholds)]
        passed = min([*demotions, *(needs[n] - ran[n] for n in running), *(one[2] - now for one in coming[:1])])
        now += passed
        for name in running:
            ran[name] += passed
        for name in [name for name in running if ran[name] > needs[name] - 1e-6]:
            ended[name] = now
            running.discard(name)
            queues[level.pop(name)].remove(name)
            del ran[name]
        while coming and coming[0][2] < now + 1e-6:
            name = coming.pop(0)[0]
            ran[name], level[name] = 0.0, 0
            queues[0].append(name)
        for name in ran:
            if name in running and level[name] < len(thresholds) and wide[name] * ran[name] > thresholds[level[name]] - 1e-6:
                queues[level[name]].remove(name)
                level[name] += 1
                queues[level[name]].append(name)
        free, running = gpus, set[str]()
        for name in [name for queue in queues for name in queue]:
            if wide[name] <= free:
                free -= wide[name]
                running.add(name)
        for queue in queues:
            queue.sort(key=lambda name: name not in running)
    return ended


@pytest.mark.parametrize("seed", range(6))
def test_with_running_jobs_first_every_job_ends_as_by_the_rules_of_tiresias_simulator(seed):
    chance = stream(seed, "2D-LAS")
    sizes = (1, 2, 4, 8) if seed % 2 else (1,)
    lines = [
        (f"job-{n}", int(chance.choice(sizes)), sizes[-1] * (20 * n + chance.random()), chance.uniform(60, 1500))
        for n in range(80)
    ]
    jobs = [Job(name, at, duration, workers=gpus) for name, gpus, at, duration in lines]
    run = simulate(jobs, "8xv100:4", Scheduler("tiresias:thresholds=[600,2400]:first=running", round_s=0.0))
    ended = two_dimensional_las(lines, 8, (600.0, 2400.0))
    assert run.jobs["ended_s"].to_pylist() == pytest.approx([ended[job.name] for job in jobs], abs=2.0), (
        "of two things in one second, either may come first"
    )
    assert run.summary["preemptions"] > 20


def test_service_is_accelerator_time():
    jobs = [Job("gang", steps=1e6, workers=2), Job("other", steps=1e6)]
    state = state_with_service(TWO, jobs, {0: 60.0})
    assert order(Tiresias(thresholds=(100.0,), backfill=False), state, 100.0)[0] == [1]
    assert order(Tiresias(thresholds=(121.0,), backfill=False), state, 100.0)[0] == [0]


def test_a_threshold_is_crossed_when_it_is_reached():
    jobs = [Job("at", steps=1e6), Job("fresh", steps=1e6)]
    assert order(Tiresias(thresholds=(100.0,)), state_with_service(ONE, jobs, {0: 100.0}), 100.0)[0] == [1]


def test_a_selection_holds_until_the_next_demotion():
    jobs = [Job("runs", steps=1e6, workers=2), Job("waits", steps=1e6, workers=2)]
    state = state_of(TWO, jobs, {0: [0, 1]})
    chosen, holds, _ = order(Tiresias(thresholds=(100.0,)), state, 20.0)
    assert chosen == [0]
    assert holds == pytest.approx(50.0)
    assert holds <= 50.0


def test_where_nobody_waits_demotions_do_not_matter():
    assert order(Tiresias(thresholds=(100.0,)), state_of(ONE, [Job("a", steps=1e6)], {0: [0]}), 20.0)[1] == math.inf


def test_two_long_jobs_take_turns_only_when_they_change_their_queue():
    made = Harness(SchedulerConfig(Part("tiresias", {"thresholds": [100.0]}), round_s=10.0)).cluster("v100:1")
    made.submit(job("a").lasting(300.0), job("b").lasting(300.0)).run()
    # a: 0–100, demoted; b: 100–200, demoted; a started first, so 200–400; then b.
    assert (made.ended_s("a"), made.ended_s("b")) == (400.0, 600.0)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"thresholds": (100.0, 50.0)}, "ascending numbers above 0"),
        ({"thresholds": (100.0, 100.0)}, "ascending numbers above 0"),
        ({"thresholds": (0.0,)}, "ascending numbers above 0"),
        ({"promote_after": 0.0}, "a number above 0"),
        ({"promote_after": math.nan}, "a number above 0"),
        ({"promote_after": math.inf}, "omit it to turn promotion off"),
    ],
)
@pytest.mark.parametrize("policy", [Tiresias, Gittins])
def test_parameters_that_make_no_sense_are_refused(policy, parameters, said):
    with pytest.raises(InputError, match=said):
        policy(**parameters)


def test_without_thresholds_there_is_one_queue():
    jobs = [Job("a", steps=1e6), Job("b", steps=1e6)]
    assert order(Tiresias(thresholds=()), state_with_service(ONE, jobs, {0: 1e5}), 2e5)[0] == [0]


# Promotion.


def test_who_has_waited_long_enough_starts_over_in_the_first_queue():
    jobs = [Job("starved", steps=1e6), Job("young", steps=1e6)]
    policy = Tiresias(thresholds=(100.0,), promote_after=2.0)
    state = state_with_service(ONE, jobs, {0: 150.0})
    chosen, holds, memo = order(policy, state, 449.0)
    assert (chosen, memo) == ([1], None)
    assert holds <= 450.0
    chosen, _, memo = order(policy, state, 450.0)
    assert chosen == [0], "promoted, and started before the young one"
    assert {name: list(values) for name, values in memo.items()} == {"jobs": [0], "service": [150.0], "run": [150.0]}


def test_a_promoted_job_is_demoted_by_what_it_gets_from_then_on():
    jobs = [Job("starved", steps=1e6), Job("young", steps=1e6)]
    policy = Tiresias(thresholds=(100.0,), promote_after=2.0)
    state = state_with_service(ONE, jobs, {0: 150.0})
    _, _, memo = order(policy, state, 450.0)
    assert order(policy, state, 460.0, memo)[0] == [0]
    later = state_with_service(ONE, jobs, {0: 260.0})  # 110 more than when it was promoted
    assert order(policy, later, 300.0, memo)[0] == [1]


def test_a_memo_that_went_through_a_journal_is_as_good():
    jobs = [Job("starved", steps=1e6), Job("young", steps=1e6)]
    policy = Tiresias(thresholds=(100.0,), promote_after=2.0)
    state = state_with_service(ONE, jobs, {0: 150.0})
    _, _, memo = order(policy, state, 450.0)
    plain = {name: np.asarray(values).tolist() for name, values in memo.items()}
    assert order(policy, state, 460.0, plain)[:2] == order(policy, state, 460.0, memo)[:2]


def test_a_memo_may_know_jobs_that_are_gone():
    jobs = [Job("a", steps=1e6), Job("b", steps=1e6)]
    memo = {"jobs": [7, 0], "service": [10.0, 150.0], "run": [10.0, 150.0]}
    state = state_with_service(ONE, jobs, {0: 150.0})
    assert order(Tiresias(thresholds=(100.0,), promote_after=2.0), state, 200.0, memo)[0] == [0]


def test_who_is_in_the_first_queue_is_never_promoted():
    state = state_with_service(ONE, [Job("a", steps=1e6), Job("b", steps=1e6)], {0: 50.0})
    assert order(Tiresias(thresholds=(100.0,), promote_after=0.1), state, 1e6)[2] is None


def test_promotion_lets_a_starved_job_run_beside_a_stream_of_short_ones():
    def started_again(promote_after):
        policy = Part("tiresias", {"thresholds": [100.0], "promote_after": promote_after})
        made = Harness(SchedulerConfig(policy, round_s=50.0)).cluster("v100:1").submit(job("long").lasting(400.0))
        made.submit(*(job(f"s{i}").lasting(50.0).at(60.0 + 50.0 * i) for i in range(40))).run()
        return made.ended_s("long")

    assert started_again(1.0) < started_again(None)


# Gittins.


def index_by_definition(age: float, services: list[float], steps: list[float]) -> float:
    """G(a) = max over Δ of P(S ≤ a + Δ | S > a) / E[min(S − a, Δ) | S > a]."""
    alive = [service for service in services if service > age]
    best = 0.0
    for step in steps:
        finish = sum(service <= age + step for service in alive)
        spent = sum(min(service - age, step) for service in alive)
        if alive and spent > 0:
            best = max(best, finish / spent)
    return best


def sixty_fourths(least: int, most: int) -> st.SearchStrategy[float]:
    """Seconds whose sums are exact: of an age a last digit below a service, the index is the rounding of a sum."""
    return st.integers(64 * least, 64 * most).map(lambda parts: parts / 64)


@given(
    st.lists(sixty_fourths(1, 100_000), min_size=1, max_size=60),
    st.lists(sixty_fourths(0, 200_000), min_size=1, max_size=8),
)
@settings(max_examples=150)
def test_the_index_is_the_one_of_the_formula(services, ages):
    known = np.sort(np.array(services))
    grid = np.unique(np.quantile(known, np.linspace(0.05, 1.0, 20))).tolist()
    found = gittins_index(np.array(ages), known)
    expected = [index_by_definition(age, services, grid) for age in ages]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_beyond_the_longest_service_seen_the_index_is_nothing():
    assert gittins_index(np.array([100.0, 200.0]), np.array([10.0, 100.0])).tolist() == [0.0, 0.0]


def with_history(services: list[float], jobs: list[Job], ran: dict[int, float]):
    """As above, after jobs of these services have finished."""
    early = [Job(f"past-{i}", steps=service) for i, service in enumerate(services)]
    cluster = Cluster.parse(f"{len(early)}xv100:{len(early)}")
    state = state_of(cluster, early, {i: [i] for i in range(len(early))})
    for number in np.argsort(services).tolist():
        at = services[number]
        apply_event(state, ev.JobsFinished(at, np.array([number]), np.array([at])))
    begin = max(services)
    first = len(early)
    for number, described in enumerate(jobs, first):
        apply_event(state, ev.JobSubmitted(begin, number, described))
    numbers = np.arange(first, first + len(jobs))
    launched = np.array([first + n for n in ran])
    launches = Launches(launched, launched * 0, np.arange(len(launched) + 1), np.arange(len(launched)))
    apply_event(state, ev.RoundPlanned(RoundPlan(begin, admitted=numbers, launches=launches)))
    for number, seconds in sorted(ran.items(), key=lambda item: item[1]):
        apply_event(state, ev.RoundPlanned(RoundPlan(begin + seconds, suspended=np.array([first + number]))))
    return state, first


def test_inside_a_queue_who_is_likely_to_end_soon_goes_first():
    """Most jobs end at 100, few at 10,000: at 95 the end is near, at 150 it is far."""
    services = [100.0] * 9 + [10_000.0]
    jobs = [Job("far", steps=1e6), Job("near", steps=1e6)]
    state, first = with_history(services, jobs, {0: 150.0, 1: 95.0})
    policy = Gittins(thresholds=(1e6,), min_history=5)
    selection, _ = policy.select(view_of(state, 20_000.0), None)
    assert selection.jobs.tolist() == [first + 1, first]


def test_until_enough_jobs_have_finished_the_order_is_that_of_tiresias():
    services = [100.0] * 9 + [10_000.0]
    state, first = with_history(services, [Job("far", steps=1e6), Job("near", steps=1e6)], {0: 150.0, 1: 95.0})
    view = view_of(state, 20_000.0)
    for thresholds in ((1e6,), (120.0,)):
        gittins, _ = Gittins(thresholds=thresholds, min_history=11).select(view, None)
        tiresias, _ = Tiresias(thresholds=thresholds).select(view, None)
        assert gittins.jobs.tolist() == tiresias.jobs.tolist()
    assert first == len(services)


def test_a_lower_queue_goes_before_a_better_index():
    services = [100.0] * 9 + [10_000.0]
    state, first = with_history(services, [Job("near", steps=1e6), Job("fresh", steps=1e6)], {0: 95.0})
    selection, _ = Gittins(thresholds=(90.0,), min_history=5).select(view_of(state, 20_000.0), None)
    assert selection.jobs.tolist() == [first + 1, first]
