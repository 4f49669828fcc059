"""Successive halving and HyperBand: who of a group is out at which rung."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import decode, encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.termination.successive_halving import HyperBand, Rung, SuccessiveHalving, rungs
from fairlead.workloads.dynamics import LossCurve
from fairlead.workloads.trace import Trace
from scenes import state_of, view_of


def trials(count: int, group: str = "search", steps: float = 2700.0) -> list[Job]:
    return [Job(f"{group}-{i}", 0.0, steps, group=group, group_order=i) for i in range(count)]


def at(second: float, losses: list[float], jobs: list[Job], *, waiting: int = 0):
    """All run at a step a second, except for the last ones, which wait at the door."""
    running = {n: [n] for n in range(len(jobs) - waiting)}
    state = state_of(Cluster.parse(f"{len(jobs)}xv100:1"), jobs, running, waiting=[])
    told = np.arange(len(losses))
    apply_event(state, ev.MetricsReported(second, "loss", told, np.array(losses)))
    return state


def test_the_rungs_of_27_trials_are_those_of_the_paper():
    assert rungs(27, 3, 3) == [Rung(1 / 27, 9), Rung(1 / 9, 3), Rung(1 / 3, 1)]


def test_at_a_rung_the_best_third_goes_on():
    losses = [float((7 * i) % 9) for i in range(9)]
    state = at(300.0, losses, trials(9))
    halving = SuccessiveHalving()
    assert halving.finished_early(view_of(state, 299.0)).tolist() == []
    out = halving.finished_early(view_of(state, 300.0)).tolist()  # a ninth of the steps
    assert out == [i for i in range(9) if losses[i] >= 3]
    assert SuccessiveHalving(best="highest").finished_early(view_of(state, 300.0)).tolist() == [
        i for i in range(9) if losses[i] < 6
    ]


def test_who_is_out_stays_counted_so_that_the_next_rung_keeps_one():
    state = at(300.0, [float(i) for i in range(9)], trials(9))
    halving = SuccessiveHalving()
    apply_event(state, ev.JobsFinished(300.0, np.arange(3, 9), np.full(6, 300.0)))
    assert halving.finished_early(view_of(state, 899.0)).tolist() == []
    for view in (view_of(state, 900.0), view_of(state, 900.0).detached(), view_of(load(save(state)), 900.0)):
        assert halving.finished_early(view).tolist() == [1, 2]
    fork = State.from_snapshot(state.snapshot(900.0).detached())
    assert halving.finished_early(view_of(fork, 900.0)).tolist() == [1, 2]


def test_nobody_is_judged_before_everybody_is_there():
    waiting = at(900.0, [1.0] * 8, trials(9), waiting=1)
    assert SuccessiveHalving().finished_early(view_of(waiting, 900.0)).tolist() == []


def test_who_comes_after_others_is_waited_for_too():
    jobs = [Job("first", 0.0, 4000.0), *trials(3)]
    jobs[3] = replace(jobs[3], after=(0,))
    losses = {job.name: LossCurve(10.0, 0.1 + 0.1 * i, 0.05) for i, job in enumerate(jobs)}
    scheduler = SchedulerConfig(Part("fifo"), termination=Part("successive-halving"), round_s=100.0)
    run = run_simulation(Simulation(Trace.of(jobs, losses=losses), Cluster.parse("4xv100:4"), scheduler))
    ended = run.state.columns["ended_s"][:4].tolist()
    assert ended == [4000.0, 2700.0, 2700.0, 4900.0]  # the last is worse than one that got through meanwhile


def test_who_reported_nothing_is_worst_once_as_many_as_may_stay_have_reported():
    losses = [float(i) for i in range(8, 0, -1)]
    few = at(300.0, losses[:2], trials(9))
    assert SuccessiveHalving().finished_early(view_of(few, 300.0)).tolist() == []
    for best, out in (("lowest", [0, 1, 2, 3, 4, 8]), ("highest", [3, 4, 5, 6, 7, 8])):
        assert SuccessiveHalving(best=best).finished_early(view_of(at(300.0, losses, trials(9)), 300.0)).tolist() == out


@pytest.mark.parametrize("best", ["lowest", "highest"])
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_who_diverged_is_worst_whatever_it_reported_before_and_whichever_way_is_best(best, loss):
    state = at(200.0, [1.0] * 9, trials(9))
    last = ev.MetricsReported(250.0, "loss", np.array([0]), np.array([loss]))
    apply_event(state, decode(encode(last)))
    assert SuccessiveHalving(best=best).finished_early(view_of(state, 300.0)).tolist() == [0, 4, 5, 6, 7, 8]
    assert SuccessiveHalving(best=best).finished_early(view_of(load(save(state)), 300.0)).tolist() == [0, 4, 5, 6, 7, 8]
    apply_event(state, ev.MetricsReported(250.0, "loss", np.arange(9), np.full(9, loss)))  # all of them
    assert len(SuccessiveHalving(best=best).finished_early(view_of(state, 300.0))) == 6


def test_who_got_through_takes_a_place_if_it_is_among_the_best():
    for winner, out in ((0.5, [1, 2]), (9.0, [2])):
        state = at(850.0, [winner, 1.0, 2.0], trials(3))
        apply_event(state, ev.JobsFinished(860.0, np.array([0]), np.array([860.0])))
        fork = State.from_snapshot(state.snapshot(900.0).detached())
        for view in (view_of(state, 900.0).detached(), *(view_of(each, 900.0) for each in (state, load(save(state)), fork))):
            assert SuccessiveHalving().finished_early(view).tolist() == out


def test_who_was_out_at_a_rung_takes_no_place_at_the_next():
    state = at(300.0, [1.0, 2.0, 3.0, *[0.1] * 6], trials(9))
    apply_event(state, ev.RoundPlanned(RoundPlan(300.0, ended=np.arange(3, 9))))
    assert SuccessiveHalving().finished_early(view_of(state, 900.0)).tolist() == [1, 2]


def again(earlier: int) -> State:
    """Nine trials that run, after others of the same name have ended in several ways."""
    jobs = [*trials(earlier, steps=50.0), *trials(9)]
    state = State(Cluster.parse("9xv100:1"))
    old, new = np.arange(earlier), np.arange(earlier, earlier + 9)
    for number, job in enumerate(jobs[:earlier]):
        apply_event(state, ev.JobSubmitted(0.0, number, job))
    for numbers, end in (
        (old[:3], lambda these: ev.JobsFinished(50.0, these, np.full(3, 50.0))),
        (old[3:6], lambda these: ev.JobsFailed(60.0, these, np.full(3, 60.0), "broken")),
        (old[6:], lambda these: ev.RoundPlanned(RoundPlan(70.0, ended=these))),
    ):
        if len(numbers):
            apply_event(state, runs(numbers, state.time))
            apply_event(state, end(numbers))
    for number, job in enumerate(jobs[earlier:], earlier):
        apply_event(state, ev.JobSubmitted(100.0, number, job))
    apply_event(state, runs(new, 100.0))
    apply_event(state, ev.ProgressReported(100.0, new, np.zeros(9), np.ones(9), np.full(9, 100.0)))
    apply_event(state, ev.MetricsReported(100.0, "loss", new, np.arange(9.0)))
    return state


def runs(numbers: np.ndarray, second: float) -> ev.RoundPlanned:
    count = len(numbers)
    launches = Launches(numbers, np.zeros(count, dtype=np.int64), np.arange(count + 1), np.arange(count))
    return ev.RoundPlanned(RoundPlan(second, admitted=numbers, launches=launches))


@pytest.mark.parametrize("earlier", [0, 9])
def test_a_name_used_again_when_nobody_of_it_is_left_is_another_group(earlier):
    state = again(earlier)
    assert dict(state.snapshot().group_sizes) == {0: 9}
    fork = State.from_snapshot(state.snapshot(400.0).detached())
    for each in (state, load(save(state)), fork):
        assert (SuccessiveHalving().finished_early(view_of(each, 400.0)) - earlier).tolist() == [3, 4, 5, 6, 7, 8]
    loaded = load(save(state))
    assert loaded.digest() == state.digest()
    assert loaded.groups == state.groups


def test_while_somebody_is_left_who_comes_joins_the_group():
    state = again(0)
    apply_event(state, ev.JobsFinished(200.0, np.arange(8), np.full(8, 200.0)))
    apply_event(state, ev.JobSubmitted(200.0, 9, trials(1)[0]))
    assert dict(state.snapshot().group_sizes) == {0: 10}
    apply_event(state, ev.JobCancelled(200.0, 8))
    apply_event(state, ev.JobCancelled(200.0, 9))
    assert not state.groups.completed_trials
    apply_event(state, ev.JobSubmitted(200.0, 10, trials(1)[0]))
    assert dict(state.snapshot().group_sizes) == {0: 1}


def test_groups_do_not_compete_with_each_other_nor_with_jobs_of_none():
    jobs = [*trials(3, "a"), *trials(3, "b"), Job("c", 0.0, 2700.0)]
    state = at(900.0, [1.0, 2.0, 3.0, 9.0, 8.0, 7.0, 99.0], jobs)
    assert SuccessiveHalving().finished_early(view_of(state, 900.0)).tolist() == [1, 2, 3, 4]


def test_hyperbands_brackets_have_their_own_trials_and_rungs():
    # Two brackets with eta 3: three trials with one rung at a third, then two that run through; then it begins again.
    jobs = trials(8)
    state = at(900.0, [float(i) for i in range(8)], jobs)
    assert HyperBand(brackets=2).finished_early(view_of(state, 900.0)).tolist() == [2, 5, 6, 7]
    assert HyperBand(brackets=2).finished_early(view_of(state, 899.0)).tolist() == []


def test_hyperbands_four_brackets_are_those_of_the_paper():
    assert [(len(b), [r.stay for r in ladder]) for b, ladder in HyperBand()._brackets(view_of(whole()).jobs, 49)] == [
        (27, [9, 3, 1]),
        (12, [4, 1]),
        (6, [2]),
        (4, []),
    ]


def whole() -> State:
    return state_of(Cluster.parse("49xv100:1"), trials(49))


@pytest.mark.parametrize("name", ["successive-halving", "hyperband"])
@pytest.mark.parametrize("policy", ["las", "fifo"])
def test_a_search_leaves_the_best_and_skipping_rounds_changes_nothing(name, policy):
    jobs = [*trials(9, steps=9000.0), Job("other", 500.0, 4000.0)]
    floors = [0.1 + 0.1 * ((4 * i) % 9) for i in range(9)]
    losses = {job.name: LossCurve(10 * floor, floor, 0.05) for job, floor in zip(jobs, floors)}
    options = {"brackets": 3} if name == "hyperband" else {}
    logs = []
    for skip in (True, False):
        journal = MemoryJournal()
        scheduler = SchedulerConfig(Part(policy), termination=Part(name, options), round_s=100.0)
        given = Simulation(Trace.of(jobs, losses=losses), Cluster.parse("12xv100:4"), scheduler, skip_quiet_rounds=skip)
        run = run_simulation(given, journal=journal)
        logs.append([encode(event) for event in journal.events])
    assert logs[0] == logs[1]
    done = run.state.columns["base_steps"][:10] / run.state.columns["steps"][:10]
    assert done[9] == 1.0
    assert done[int(np.argmin(floors))] == 1.0
    if name == "successive-halving":
        assert sorted(np.round(done[:9], 2).tolist()) == pytest.approx([0.11] * 6 + [0.33] * 2 + [1.0], abs=0.02)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SuccessiveHalving(eta=1), "eta"),
        (lambda: SuccessiveHalving(eta=10**400), "eta"),
        (lambda: HyperBand(eta=1001), "eta"),
        (lambda: HyperBand(brackets=0), "brackets"),
        (lambda: HyperBand(eta=1000, brackets=20), "brackets"),
    ],
)
def test_a_search_that_cannot_be_is_refused(make, field):
    with pytest.raises(InputError, match=f"field '{field}' is .*: expected"):
        make()
