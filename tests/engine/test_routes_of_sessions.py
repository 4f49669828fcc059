"""Routes of sessions in the engine: they are kept, written down, overtaken and looked at like the rest of a plan."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.errors import InvalidPlan, JournalError
from fairlead.core.job import ELASTIC, Job
from fairlead.core.plan import Launches, RoundPlan, Selection
from fairlead.core.routes import Route
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import decode, encode
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.engine.validate import revalidate_plan, validate_plan
from fairlead.placement.basic import Consolidated
from fairlead.placement.resource_aware import ResourceAware
from fairlead.placement.synergy import Synergy
from fairlead.testing import cluster
from fairlead.testing.invariants import InvariantBroken, check_state

FIRST, SECOND = Route((0, 1), (0.6, 0.4), 16, 300.0), Route((1, 2), (0.0, 1.0), 8, 50.5)


def starts(places: dict[int, tuple[int, ...]]) -> Launches:
    jobs = np.array(list(places), dtype=np.int64)
    ends = np.cumsum([0, *(len(mine) for mine in places.values())])
    flat = np.array([place for mine in places.values() for place in mine], dtype=np.int64)
    return Launches(jobs, np.zeros_like(jobs), ends, flat)


def serving() -> State:
    """Sessions 0 and 1 share an accelerator, 2 trains on the fourth, 3 waits."""
    machine = cluster("v100:4")
    state = State(machine)
    modes = (ELASTIC, ELASTIC, "static", "static")
    submitted = [ev.JobSubmitted(0.0, number, Job(f"j{number}", steps=1e6, mode=mode)) for number, mode in enumerate(modes)]
    routes = {0: FIRST, 1: SECOND}
    plan = RoundPlan(0.0, admitted=np.arange(4), launches=starts({0: (0, 1), 1: (1, 2), 2: (3,)}), routes=routes)
    for event in (ev.JournalOpened(0.0, machine, {}), *submitted, ev.RoundPlanned(plan)):
        apply_event(state, decode(encode(event)))
    check_state(state)
    return state


def test_a_route_is_there_as_long_as_its_session_runs():
    state = serving()
    assert state.routes == state.snapshot(0.0).routes == load(save(state)).routes == {0: FIRST, 1: SECOND}
    assert load(save(state)).digest() == state.digest()
    before = state.digest()
    other = Route((0, 1), (0.5, 0.5), 32, 400.0)
    apply_event(state, ev.RoundPlanned(RoundPlan(5.0, routes={0: other})))
    assert (state.routes[0], state.device_map.of(0).tolist()) == (other, [0, 1])
    assert state.digest() != before
    apply_event(state, ev.JobsInterrupted(6.0, np.array([0]), np.zeros(1)))
    assert state.routes == {1: SECOND}
    apply_event(state, ev.SchedulerSwitched(7.0, {"policy": "fifo"}))
    assert state.routes == {1: SECOND}  # who serves goes on serving, until somebody moves it
    apply_event(state, ev.RoundPlanned(RoundPlan(8.0, suspended=np.array([1]), launches=starts({1: (0, 1)}))))
    assert state.routes == {}
    check_state(state)


def test_a_plan_that_only_routes_changes_something():
    assert RoundPlan(0.0, routes={0: FIRST}).changes
    assert not RoundPlan(0.0).changes


@pytest.mark.parametrize(
    ("route", "field"),
    [
        ('[0,[1],[1.0],"many",3]', "batch"),
        ("[0,[1],[1.0],0,3]", "batch is 0"),
        ("[0,[1],[1.0],1.5,3]", "batch is 1.5"),
        ("[0,[1],[1.0],8,-4]", "rate is -4"),
        ("[0,[1],[-3.0],8,3]", "part is -3"),
        ("[0,[1],[1.0,1.0],8,3]", "2 parts for 1 GPUs"),
        ("[0,[-1],[1.0],8,3]", "accelerator is -1"),
    ],
)
def test_damaged_routes_are_told(route, field):
    with pytest.raises(JournalError, match=f"damaged 'round_planned' .*{field}"):
        decode(f'{{"event":"round_planned","time":0,"routes":[{route}]}}')


@pytest.mark.parametrize(("number", "places"), [(0, (0, 99)), (3, (0,)), (99, (0, 1))])
def test_a_route_leads_to_where_its_session_stands(number, places):
    state, wrong = serving(), RoundPlan(1.0, routes={number: Route(places, (1.0,) * len(places), 8, 9.0)})
    with pytest.raises(InvalidPlan, match="rout"):
        validate_plan(wrong, None, state.snapshot(1.0))
    with pytest.raises(InvalidPlan, match="rout"):
        apply_event(state, ev.RoundPlanned(wrong))


def test_a_plan_with_a_route_that_a_journal_would_refuse_is_not_sound():
    with pytest.raises(JournalError, match=r"part is -0\.5"):
        validate_plan(RoundPlan(1.0, routes={0: Route((0, 1), (1.5, -0.5), 8, 9.0)}), None, serving().snapshot(1.0))


@pytest.mark.parametrize("sessions", [1, 2, 3, 4])
def test_nobody_trains_where_somebody_serves_however_many_do(sessions):
    machine, jobs = cluster("v100:4"), np.arange(sessions + 1)
    state = State(machine)
    apply_event(state, ev.JournalOpened(0.0, machine, {}))
    for number in jobs.tolist():
        apply_event(state, ev.JobSubmitted(0.0, number, Job(f"j{number}", steps=1e6)))
    routes = {number: Route((0,), (1.0,), 8, 1.0) for number in range(sessions)}
    launches = Launches(jobs, jobs * 0, np.arange(sessions + 2), jobs * 0)
    apply_event(state, ev.RoundPlanned(RoundPlan(0.0, admitted=jobs, launches=launches, routes=routes)))
    with pytest.raises(InvariantBroken, match="that serves"):
        check_state(state, residents=2)


def test_of_an_overtaken_plan_the_routes_of_who_is_left_are():
    state = serving()
    plan = RoundPlan(
        1.0, suspended=np.array([1]), launches=starts({1: (1,)}), routes={0: FIRST, 1: Route((1,), (1.0,), 8, 9.0)}
    )
    apply_event(state, ev.JobCancelled(2.0, 0))
    left = revalidate_plan(plan, state.snapshot(3.0))
    assert set(left.routes) == {1}
    apply_event(state, ev.NodeLost(4.0, 0))
    apply_event(state, ev.JobsInterrupted(4.0, np.array([1, 2]), np.zeros(2)))
    assert revalidate_plan(plan, state.snapshot(5.0)).routes == {}


def test_sessions_may_stand_beside_each_other_and_beside_nobody_else():
    view = serving().snapshot(1.0)
    more = {1: Route((0, 1, 2), (0.2, 0.3, 0.5), 8, 90.0)}
    validate_plan(RoundPlan(1.0, suspended=np.array([1]), launches=starts({1: (0, 1, 2)}), routes=more), None, view)
    with pytest.raises(InvalidPlan, match="did not combine them"):
        validate_plan(RoundPlan(1.0, launches=starts({3: (2,)})), None, view)
    routes = {1: Route((2, 3), (0.5, 0.5), 8, 90.0)}
    with pytest.raises(InvalidPlan, match="did not combine them"):
        validate_plan(RoundPlan(1.0, suspended=np.array([1]), launches=starts({1: (2, 3)}), routes=routes), None, view)


def test_after_a_switch_another_scheduler_may_combine_who_still_has_a_route():
    state = serving()
    apply_event(state, ev.JobsFinished(1.0, np.array([1]), np.array([1.0])))
    apply_event(state, ev.SchedulerSwitched(2.0, {"policy": "gandiva-packing"}))
    together = np.array([0, 3]), np.array([7, 7])
    validate_plan(RoundPlan(3.0, launches=starts({3: (1,)}), combinations=together), None, state.snapshot(3.0))


@pytest.mark.parametrize("placement", [Consolidated(), ResourceAware(), Synergy(), Synergy("proportional")], ids=str)
def test_training_leaves_accelerators_that_are_to_serve(placement):
    view = serving().snapshot(1.0)
    routes = {0: FIRST, 1: Route((1, 3), (0.5, 0.5), 8, 90.0)}
    ints = np.array
    placed = placement.place(Selection(ints([0, 1, 2, 3]), ints([0] * 4), ints([2, 2, 1, 1]), routes=routes), view)
    assert placed.kept.tolist() == [0]
    at = dict(zip(placed.launches.jobs.tolist(), np.split(placed.launches.accelerators, placed.launches.offsets[1:-1])))
    assert at[1].tolist() == [1, 3]
    assert [places.tolist() for job, places in at.items() if job != 1] == [[2]]
    assert len(placed.unplaced) == 1


def test_a_session_whose_accelerators_are_gone_waits_and_says_why():
    state = serving()
    apply_event(state, ev.NodeLost(1.0, 0))
    apply_event(state, ev.JobsInterrupted(1.0, np.array([0, 1, 2]), np.zeros(3)))
    one = np.array([0])
    placed = Consolidated().place(Selection(one, one * 0, one + 2, routes={0: FIRST}), state.snapshot(2.0))
    assert not len(placed.launches)
    assert "route" in str(placed.unplaced[0])
