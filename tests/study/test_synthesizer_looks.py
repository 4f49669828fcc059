"""The synthesizer: what it sees of candidates, when it looks, what it chooses, and that a switch is an event like any other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.config import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.events import SchedulerSwitched
from fairlead.core.job import Job
from fairlead.engine.journal import MemoryJournal, NoJournal
from fairlead.study.inputs import table_for
from fairlead.study.simulate import Simulation, begin, simulate
from fairlead.study.synthesizer import Advisor, Forecast, Wanted, combinations
from fairlead.study.synthesizer.outlook import Moment, look_ahead
from fairlead.study.synthesizer.run import synthesize
from fairlead.workloads.generate import Generator
from fairlead.workloads.trace import Trace

HOUR = 3600.0
PARTS = (Part("fifo"), Part("srtf"), Part("las"))
SIX = combinations(SchedulerConfig(), PARTS, (Part("accept-all"), Part("accept-up-to", {"factor": 1.2})))


def given(trace: Trace, cluster: str = "4xv100:4", candidates=SIX) -> tuple[Simulation, Advisor]:
    machine = Cluster.parse(cluster)
    table = table_for(trace, machine, None)
    return Simulation(trace, machine, candidates[0], table), Advisor(candidates, table)


def behind_long_ones() -> Trace:
    """Two long gangs run; short jobs and a third long one wait."""
    long = [Job(f"long-{n}", 0.0, 20 * HOUR, workers=2) for n in range(3)]
    return Trace.of([*long, *(Job(f"short-{n}", 60.0 + n, HOUR) for n in range(8))])


def generated(seed: int = 0) -> Trace:
    """More than eight accelerators can take, for a few days."""
    return Generator(24, 6.0, durations=(HOUR, 2 * HOUR, 5 * HOUR, 20 * HOUR), workers="multiple").trace(seed)


def average(run) -> float:
    jobs = run.record.jobs
    return float((jobs.ended_s - jobs.submitted_s).mean())


def test_it_leaves_first_come_first_served_where_short_jobs_wait_behind_long_ones():
    simulation, advisor = given(behind_long_ones())
    journal = MemoryJournal()
    found = synthesize(simulation, advisor, journal=journal)
    first = found.advice[0]
    assert first.running.label == "fifo"
    assert first.chosen.policy == Part("srtf")
    assert "srtf" in first.why
    (switch,) = [event for event in journal.events if isinstance(event, SchedulerSwitched)]
    assert switch.scheduler["policy"] == "srtf"
    alone = {one.label: average(simulate(replace(simulation, scheduler=one))) for one in SIX}
    assert average(found.run) < 0.7 * alone["fifo"]
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_an_outlook_is_what_comes_true_when_nobody_else_comes():
    simulation, advisor = given(behind_long_ones())
    found = synthesize(simulation, advisor)
    last = found.advice[-1]
    jobs = found.run.record.jobs
    there = jobs.ended_s > last.time
    foreseen = dict(last.outlooks)[last.chosen.label]
    assert (jobs.ended_s[there] - last.time).mean() == pytest.approx(foreseen.jct_s, rel=1e-6)


def test_it_is_hardly_worse_than_the_second_best_and_far_from_the_worst():
    simulation, advisor = given(generated(), "8xv100:4")
    alone = sorted(average(simulate(replace(simulation, scheduler=one))) for one in SIX)
    ours = average(synthesize(simulation, advisor).run)
    assert ours <= 1.02 * alone[1]
    assert ours <= 0.8 * alone[-1]


def test_the_same_with_several_processes():
    simulation, advisor = given(behind_long_ones())
    with Advisor(SIX, advisor.table, processes=2) as several:
        found = [synthesize(simulation, one) for one in (advisor, several)]
    choices = [[(one.time, one.chosen.label, one.gain) for one in each.advice] for each in found]
    assert choices[0] == choices[1]


def test_where_nobody_stands_at_the_door_and_nobody_comes_admission_makes_no_difference():
    simulation, advisor = given(behind_long_ones())
    loop = begin(simulation, NoJournal()).loop
    loop.run(until=HOUR)
    moment = Moment(loop.state.snapshot(loop.backend.now).detached(), SIX[0])
    for free, limited in zip(SIX[::2], SIX[1::2]):
        assert free.policy == limited.policy
        assert moment.fate_of(free) == moment.fate_of(limited)
        assert look_ahead(moment, free, advisor.table) == look_ahead(moment, limited, advisor.table)
    coming = replace(moment, arrivals=(Job("late", 2 * HOUR, HOUR),))
    assert len({coming.fate_of(one) for one in SIX}) == len(SIX)


def test_one_candidate_is_itself():
    one = SIX[:1]
    simulation, advisor = given(generated(2), "8xv100:4", one)
    found = synthesize(simulation, advisor)
    assert not any(advice.switch for advice in found.advice)
    assert average(found.run) == average(simulate(simulation))


def test_a_forecast_of_recent_arrivals_is_like_them_and_the_same_for_the_same_seed():
    past = [Job(f"j{n}", 600.0 * n, 100.0 + n) for n in range(60)][::-1]
    now = 36_000.0
    coming = Forecast("recent", 6 * HOUR, 3).coming(now, past)
    assert coming == Forecast("recent", 6 * HOUR, 3).coming(now, past)
    assert coming != Forecast("recent", 6 * HOUR, 4).coming(now, past)
    assert 15 < len(coming) < 60
    assert all(now <= job.submitted_s <= now + 6 * HOUR for job in coming)
    recent = {job.steps for job in past if job.submitted_s >= now - 6 * HOUR}
    assert {job.steps for job in coming} <= recent
    assert Forecast().coming(now, past) == ()


def test_it_looks_again_though_nobody_came():
    """What is best for who is left may be another one than what was best for all."""
    simulation, advisor = given(behind_long_ones(), candidates=SIX[:3:2])
    found = synthesize(simulation, advisor, every=30)
    gaps = {round(late.time - soon.time) for soon, late in zip(found.advice, found.advice[1:])}
    assert gaps == {30 * 300}


def test_weights_choose_between_ending_soon_and_beginning_soon():
    simulation, advisor = given(behind_long_ones())
    eager = Advisor(SIX, advisor.table, wanted=Wanted({"responsiveness": 1.0}))
    found = synthesize(simulation, eager)
    chosen = found.advice[0].chosen.label
    seen = dict(found.advice[0].outlooks)
    assert all(not other.complete or seen[chosen].responsiveness_s <= other.responsiveness_s for other in seen.values())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda s, a: synthesize(s, a, every=0), "every"),
        (lambda s, a: synthesize(replace(s, scheduler=s.scheduler.with_rounds(0.0)), a), "rounds"),
        (lambda s, a: Advisor((), a.table), "candidates"),
        (lambda s, a: Advisor(SIX, a.table, margin=-1.0), "margin"),
        (lambda s, a: Wanted({"jtc": 1.0}), "jct"),
        (lambda s, a: Wanted({"jct": 0.0}), "weight"),
        (lambda s, a: Forecast("tomorrow"), "nobody or recent"),
        (lambda s, a: Forecast("recent", 0.0), "window_s"),
        (lambda s, a: combinations(SchedulerConfig(), ()), "policies"),
        (lambda s, a: combinations(SchedulerConfig(), (Part("fifo"), Part("fifo"))), "once"),
    ],
)
def test_what_makes_no_sense_is_told(make, told):
    simulation, advisor = given(behind_long_ones())
    with pytest.raises(InputError, match=told):
        make(simulation, advisor)
