"""When who waits will run: what is foreseen where nobody else comes is what happens, and how sure it is where others do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from crowds import crowd

from fairlead.config.registry import Registry
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster, Node
from fairlead.core.events import JournalOpened, NodeAdded, NodeDrained, NodeRemoved, NodeRepaired
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.forecast_quality import NOT_WIDENED
from fairlead.experiments.lookahead import (
    HORIZON_S,
    ForecastOptions,
    JobForecast,
    JobTimes,
    Scenarios,
    StartingPoint,
    _simulations,
    counted_runs,
    forecast,
    simulate_forward,
)
from fairlead.experiments.scenarios import ArrivalForecast
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.testing import cluster, random_jobs, random_table
from fairlead.workloads.throughput_tables import ThroughputTable

TIMED = ThroughputTable.timed(("v100",))


def begun(
    jobs: list[Job], scheduler: SchedulerConfig, table: ThroughputTable, machine: str, costs: Costs | None = None
) -> Loop:
    on = cluster(machine)
    loop = Loop(State(on), SimulatedBackend(on, table, jobs, costs=costs), scheduler.build(table))
    loop.record(JournalOpened(0.0, on, scheduler.to_data()))
    return loop


@pytest.mark.parametrize("policy", [entry.name for entry in Registry.installed().of("policy")])
@pytest.mark.parametrize(
    ("costs", "second"), [(Costs(), 1000.0), (Costs(20.0, 90.0, 60.0, 1500.0), 899.7)], ids=["free", "costly"]
)
def test_what_is_foreseen_comes_true_where_nobody_else_comes(policy: str, costs: Costs, second: float):
    table = random_table(1, ("v100", "k80"))
    jobs = [replace(job, submitted_s=min(job.submitted_s, second)) for job in random_jobs(1, 14, table=table, largest=4)]
    loop = begun(jobs, SchedulerConfig(Part(policy)), table, "v100:4,k80:4", costs)
    loop.run(until=second)
    view = loop.state.snapshot(loop.backend.now)
    numbers = [*view.jobs.number.tolist(), *view.queued.number.tolist()]
    foreseen = simulate_forward(
        StartingPoint(view.detached(), SchedulerConfig(Part(policy)), loop.state.memo, costs=costs), table, numbers
    )
    began = dict.fromkeys(view.jobs.number[view.jobs.running].tolist(), view.time)

    def note(plan: RoundPlan) -> None:
        for number in plan.launches.jobs.tolist():
            began.setdefault(number, plan.time)

    loop.on_decision = note
    loop.run()
    ended = loop.state.columns["ended_s"]
    assert len(numbers) > len(view.jobs.number[view.jobs.running]) > 0, "somebody runs, and somebody waits"
    for number, turn in zip(numbers, foreseen.times):
        assert turn.starts_s + view.time == pytest.approx(began[number])
        assert turn.ends_s + view.time == pytest.approx(ended[number])


def waiting(second: float = 15_000.0, policy: str = "fifo") -> State:
    """A crowd on four accelerators."""
    loop = begun(crowd(), SchedulerConfig(Part(policy), round_s=300.0), TIMED, "v100:4")
    loop.run(until=second)
    loop.state.time = second
    return loop.state


def forecast_jobs(
    state: State,
    table: ThroughputTable,
    options: ForecastOptions,
    *,
    horizon_s: float = HORIZON_S,
    start_another: Callable[[], bool] = lambda: True,
    keep_running: Callable[[float], bool] = lambda simulated_s: True,
) -> tuple[JobForecast, ...]:
    """Of all jobs that have not ended, by number. What is broken off counts only where it is the first."""
    scenarios = Scenarios(state, table, options, horizon_s)
    return scenarios.forecasts(counted_runs(_simulations(scenarios, start_another, keep_running)), NOT_WIDENED)


def test_others_that_may_come_make_it_later_and_less_sure_under_srtf_and_not_under_fifo():
    def looked(policy: str) -> list[JobForecast]:
        state = waiting()
        state.scheduler = SchedulerConfig(Part(policy), round_s=300.0).to_data()
        return [one for one in forecast_jobs(state, TIMED, ForecastOptions(simulations=4)) if not one.running]

    first_come = looked("fifo")
    assert len(first_come) > 5
    assert all({turn.starts_s for turn in one.with_arrivals} == {one.without_arrivals.starts_s} for one in first_come)
    shortest = looked("srtf")
    later = [one.range(lambda turn: turn.starts_s)[1] - one.without_arrivals.starts_s for one in shortest]
    assert max(later) > 3600
    assert np.mean(later) > 0
    least, _, most = max(shortest, key=lambda one: one.without_arrivals.starts_s).range(lambda turn: turn.starts_s)
    assert least < most
    assert looked("srtf") == shortest, "the same moment, the same answer"


@pytest.mark.long
@pytest.mark.parametrize("policy", ["fifo", "las"])
def test_of_one_the_same_is_foreseen_as_among_all(policy: str):
    """Also of one that runs, and that will be preempted under `las`."""

    def looked(options: ForecastOptions) -> tuple[JobForecast, ...]:
        return forecast_jobs(waiting(policy=policy), TIMED, options)

    found = looked(ForecastOptions(simulations=2))
    assert any(one.running for one in found)
    for one in found:
        assert looked(ForecastOptions(simulations=2, jobs=frozenset({one.number}))) == (one,)
    assert forecast_jobs(waiting(), TIMED, ForecastOptions(jobs=frozenset({10**6}))) == ()


def test_nobody_is_made_to_come_in_looks_that_are_not_made(monkeypatch):
    """A hundred looks of a busy cluster would take longer to prepare than the first takes to be made."""
    seeds: list[int] = []
    draw = ArrivalForecast.draw
    monkeypatch.setattr(ArrivalForecast, "draw", lambda self, *past: seeds.append(self.seed) or draw(self, *past))
    left = iter((True, True, False))
    (one, *_) = forecast_jobs(waiting(), TIMED, ForecastOptions(simulations=100), start_another=lambda: next(left))
    assert len(one.with_arrivals) == 2
    assert seeds == [0, 1]


def test_a_look_ends_and_who_has_not_begun_by_then_has_no_time():
    found = forecast_jobs(waiting(), TIMED, ForecastOptions(simulations=0), horizon_s=3600.0)
    assert any(one.without_arrivals.starts_s == math.inf for one in found)
    assert all(one.without_arrivals.starts_s < 3600 for one in found if one.without_arrivals.starts_s < math.inf)
    assert all(one.range(lambda turn: turn.starts_s)[1] == one.without_arrivals.starts_s for one in found)


def test_on_a_cluster_that_everybody_left_nobody_begins():
    state = waiting()
    apply_event(state, NodeDrained(state.time, 0))
    found = forecast_jobs(state, TIMED, ForecastOptions(simulations=1))
    assert {one.without_arrivals.starts_s for one in found if not one.running} == {math.inf}


def test_a_drain_that_ends_by_itself_also_ends_in_a_forecast():
    state = waiting()
    apply_event(state, NodeDrained(state.time, 0, until_s=state.time + 5000.0))
    found = forecast_jobs(state, TIMED, ForecastOptions(simulations=0))
    starts = [one.without_arrivals.starts_s for one in found if not one.running]
    assert starts
    assert all(5000.0 <= start < math.inf for start in starts)


def test_a_forecast_knows_drains_that_are_announced():
    calm, announced = waiting(), waiting()
    apply_event(announced, NodeDrained(announced.time, 0, until_s=announced.time + 90_000.0, from_s=announced.time + 1.0))
    ends = [
        max(one.without_arrivals.ends_s for one in forecast_jobs(state, TIMED, ForecastOptions(simulations=0)))
        for state in (calm, announced)
    ]
    assert ends[0] + 80_000.0 < ends[1] < math.inf


def test_a_forecast_knows_added_and_removed_nodes():
    state = waiting()
    late = len(state.cluster.nodes)
    apply_event(state, NodeAdded(state.time, late, Node("new", "h100", 4)))
    apply_event(state, NodeRepaired(state.time, late))
    apply_event(state, NodeAdded(state.time, late + 1, Node("gone", "h100", 4)))
    apply_event(state, NodeRemoved(state.time, late + 1))
    sooner = forecast(state, {"rates": []}, ForecastOptions(simulations=0))
    assert {one.without_arrivals.starts_s for one in sooner.jobs if not one.running} != {math.inf}
    assert sooner.jobs
    for scheduler in ({"policy": "las"}, {"preset": "horus"}):
        empty = replay_events([JournalOpened(0.0, Cluster(()), scheduler)])
        assert forecast(empty, {"rates": []}, ForecastOptions(simulations=1)).jobs == ()


def test_who_will_be_refused_never_begins_and_that_has_an_end():
    jobs = [Job("long", steps=1000.0, workers=4), Job("wide", 90.0, 10.0, workers=8), Job("behind", 91.0, 10.0, after=(1,))]
    loop = begun(jobs, SchedulerConfig(Part("fifo"), round_s=60.0), TIMED, "v100:4")
    loop.run(until=100.0)
    loop.state.time = 100.0
    long, wide, behind = forecast_jobs(loop.state, TIMED, ForecastOptions(simulations=1))
    assert (wide.without_arrivals, behind.without_arrivals) == (JobTimes(math.inf, 20.0), JobTimes(math.inf, 20.0)), (
        "at the next round"
    )
    assert wide.without_arrivals.never_starts
    assert not long.without_arrivals.never_starts
    assert not JobTimes(math.inf, math.inf).never_starts, "not within the look is not never"


def test_a_look_in_which_nobody_gets_any_further_is_over(monkeypatch):
    monkeypatch.setattr("fairlead.engine.loop.STALLED_AFTER", 2000)
    state = waiting()
    state.scheduler = SchedulerConfig(Part("las"), round_s=300.0).to_data()
    found = forecast_jobs(state, TIMED, ForecastOptions(simulations=0, costs=Costs(launch_s=1000.0, restart_s=1000.0)))
    assert any(one.without_arrivals.ends_s == math.inf for one in found), "starts cost more than a round"


def test_who_came_lately_and_cannot_be_simulated_does_not_come_again():
    table = random_table(1, ("v100",))
    loop = begun([Job("old", steps=1.0), Job("waits", 20.0, 1e6)], SchedulerConfig(Part("fifo")), table, "v100:1")
    loop.run(until=100.0)
    state = loop.state
    state.job_of[0] = replace(state.job_of[0], kind="strange")
    (one,) = forecast_jobs(state, table, ForecastOptions(simulations=3))
    assert {turn.starts_s for turn in one.with_arrivals} == {one.without_arrivals.starts_s}


def test_the_middle_of_an_even_number_of_looks_is_one_that_was_seen():
    one = JobForecast(0, "j", False, JobTimes(1.0, 2.0), (JobTimes(3.0, 9.0), JobTimes(math.inf, math.inf)))
    assert one.range(lambda turn: turn.starts_s) == (3.0, math.inf, math.inf)


def test_looks_end_when_no_other_is_wanted():
    left = iter([True, False])
    (one, *_) = forecast_jobs(waiting(), TIMED, ForecastOptions(simulations=4), start_another=lambda: next(left))
    assert len(one.with_arrivals) == 1


def test_a_look_that_is_broken_off_tells_what_it_saw_and_how_far_it_went():
    whole = forecast_jobs(waiting(), TIMED, ForecastOptions(simulations=0))
    ends = sorted(one.without_arrivals.ends_s for one in whole)
    middle_s = ends[len(ends) // 2]
    told: list[float] = []

    def keep_running(ahead_s: float) -> bool:
        told.append(ahead_s)
        return ahead_s <= middle_s

    found = forecast_jobs(waiting(), TIMED, ForecastOptions(simulations=3), keep_running=keep_running)
    (horizon_s,) = {one.horizon_s for one in found}
    assert middle_s < horizon_s < ends[-1]
    assert told == sorted(told)
    assert not any(one.with_arrivals for one in found), "nothing that others come to is looked at after it"
    for cut, full in zip(found, whole):
        assert full.horizon_s > horizon_s
        for seen, true in (
            (cut.without_arrivals.starts_s, full.without_arrivals.starts_s),
            (cut.without_arrivals.ends_s, full.without_arrivals.ends_s),
        ):
            assert seen == (true if true <= horizon_s else math.inf)


def test_a_look_with_others_that_is_broken_off_does_not_count():
    made = 0

    def another() -> bool:
        nonlocal made
        made += 1
        return True

    found = forecast_jobs(
        waiting(),
        TIMED,
        ForecastOptions(simulations=4),
        start_another=another,
        keep_running=lambda ahead_s: made < 2 or ahead_s < 3600.0,
    )
    assert {len(one.with_arrivals) for one in found} == {1}
    assert made == 2
    assert found == forecast_jobs(waiting(), TIMED, ForecastOptions(simulations=1)), (
        "what was seen in whole looks stays what it was"
    )
