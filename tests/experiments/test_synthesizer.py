"""The synthesizer's looks ahead: what it foresees comes true, what it gives up could not have won, and what it advises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from crowds import SIX, THREE, crowd

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.errors import FairleadError, InputError
from fairlead.core.job import Job
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.lookahead import StartingPoint
from fairlead.experiments.scenarios import ArrivalForecast
from fairlead.experiments.synthesize import (
    Advisor,
    CandidateForecast,
    Objective,
    ScoreLimit,
    combinations,
    equivalence_key,
    forecast_candidate,
)
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.testing import cluster, random_jobs, random_table
from fairlead.workloads.throughput_tables import ThroughputTable

ONE_TYPE = ThroughputTable.timed(("v100",))


def test_every_policy_with_every_admission_by_name():
    names = [one.label for one in SIX]
    assert names[:3] == ["fifo", "fifo + accept-up-to(factor=1.2)", "srtf"]
    assert len(set(names)) == 6
    both = combinations(SchedulerConfig(), THREE[:1], (), [Part("consolidated"), Part("spread")])
    assert [one.label for one in both] == ["fifo + consolidated", "fifo + spread"]


def test_candidates_that_differ_in_what_names_have_no_room_for_are_told_apart():
    served = {"slo_ms": 100, "batches": [1, 8], "latency_ms": {"v100": [6, 14]}}
    parts = [Part("nexus", {"sessions": {"photos": {"rate": rate, **served}}}) for rate in (70, 700)]
    some, more = combinations(SchedulerConfig(), parts)
    assert (some.label, more.label) == ("nexus(sessions: 1)", "nexus(sessions: 1) (2)")
    unnamed = Advisor([replace(some, name=""), replace(more, name="")], ONE_TYPE)
    advice = unnamed.advise(moment_of(1)[0].view, replace(more, name=""))
    assert [label for label, _ in advice.forecasts] == [more.label, some.label]


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "max-min-fairness"])
@pytest.mark.parametrize("costs", [Costs(), Costs(20.0, 90.0, 60.0, 1500.0)], ids=["free", "costly"])
@pytest.mark.parametrize("second", [899.7, 1000.0])
def test_what_is_foreseen_comes_true_where_nobody_else_comes(policy, costs, second):
    machine = cluster("v100:4,k80:4")
    table = random_table(1, machine.type_names)
    scheduler = SchedulerConfig(Part(policy))
    backend = SimulatedBackend(machine, table, random_jobs(1, 14, table=table, largest=4), costs=costs)
    loop = Loop(State(machine), backend, scheduler.build(table))
    loop.run(until=second)
    view = loop.state.snapshot(backend.now)
    assert len(view.jobs) or len(view.queued)
    numbers = np.concatenate((view.jobs.number, view.queued.number))
    arrivals = tuple(job for job in backend._arrivals if job.submitted_s > backend.now)
    outlook = forecast_candidate(StartingPoint(view.detached(), scheduler, loop.state.memo, arrivals, costs), scheduler, table)
    loop.run()
    everybody = loop.state.all_jobs()
    came = np.maximum(everybody.submitted_s, second)
    counted = np.isin(everybody.number, numbers) | (everybody.submitted_s > second)
    assert outlook.complete
    assert outlook.jct_s == pytest.approx(float((everybody.ended_s - came)[counted].mean()), rel=1e-12)
    fresh = counted & ((everybody.first_started_s > second) | (everybody.submitted_s > second))
    assert outlook.responsiveness_s == pytest.approx(float((everybody.first_started_s - came)[fresh].mean()), rel=1e-12)


def test_a_candidate_whose_rounds_are_shorter_than_starts_is_looked_at_as_it_would_be_run(monkeypatch):
    monkeypatch.setattr("fairlead.engine.loop.STALLED_AFTER", 2000)
    machine, short = cluster("v100:1"), SchedulerConfig(Part("las"), round_s=7.0)
    backend = SimulatedBackend(machine, ONE_TYPE, [Job("one", 0.0, 200.0), Job("two", 1.0, 200.0)])
    loop = Loop(State(machine), backend, short.build(ONE_TYPE))
    loop.run(until=10.0)
    moment = StartingPoint(loop.state.snapshot(backend.now).detached(), short, loop.state.memo, costs=Costs(restart_s=11.0))
    assert forecast_candidate(moment, short, ONE_TYPE).complete
    assert "first_step_s" in forecast_candidate(moment, replace(short, first_step_s=0.0), ONE_TYPE).problem


def moment_of(seed: int) -> tuple[StartingPoint, Loop]:
    machine = cluster("v100:4,v100:4")
    backend = SimulatedBackend(machine, ONE_TYPE, crowd(seed, 90))
    loop = Loop(State(machine), backend, SIX[0].build(ONE_TYPE))
    loop.run(until=12_000.0)
    return StartingPoint(loop.state.snapshot(backend.now).detached(), SIX[0], loop.state.memo), loop


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weights", [{"jct": 1.0}, {"jct": 1.0, "responsiveness": 2.0}])
def test_who_is_given_up_could_not_have_won(seed, weights):
    moment, _ = moment_of(seed)
    wanted = Objective(weights)
    whole = {one.label: forecast_candidate(moment, one, ONE_TYPE) for one in SIX}
    running = whole["fifo"]
    scores = {label: wanted.score(outlook, running) for label, outlook in whole.items()}
    best = min(scores.values())
    given_up = 0
    for one in SIX:
        seen = forecast_candidate(moment, one, ONE_TYPE, ScoreLimit(wanted, running, best))
        if seen.complete:
            assert seen == whole[one.label]
        else:
            given_up += 1
            assert scores[one.label] > best
            assert seen.jct_s <= whole[one.label].jct_s + 1e-6
            assert seen.responsiveness_s <= whole[one.label].responsiveness_s + 1e-6
    assert given_up, "else this shows nothing"
    advice = Advisor(SIX, ONE_TYPE, objective=wanted, margin=0.0).advise(moment.view, SIX[0])
    assert scores[advice.chosen.label] == pytest.approx(best)
    assert advice.gain == pytest.approx(1 - best)


def test_advice_does_not_depend_on_the_number_of_processes():
    moment, _ = moment_of(1)
    alone = Advisor(SIX, ONE_TYPE).advise(moment.view, SIX[0])
    with Advisor(SIX, ONE_TYPE, processes=2) as several:
        together = several.advise(moment.view, SIX[0])
    assert alone.switch
    assert (alone.chosen, alone.gain, alone.why) == (together.chosen, together.gain, together.why)


def test_nobody_switches_for_less_than_the_margin():
    moment, _ = moment_of(1)
    gain = Advisor(SIX, ONE_TYPE).advise(moment.view, SIX[0]).gain
    assert gain > 0.01
    assert not Advisor(SIX, ONE_TYPE, margin=gain + 0.01).advise(moment.view, SIX[0]).switch


class Broken:
    """Cannot decide."""

    def select(self, view, memo):
        raise FairleadError("no idea")


def test_a_candidate_that_fails_is_not_chosen_and_one_that_runs_and_fails_is_left(monkeypatch):
    moment, _ = moment_of(1)
    good, bad = SIX[0], SchedulerConfig(Part("srtf"), name="bad")
    make = SchedulerConfig.build

    def build(self, table, registry=None):
        stages = make(self, table, registry)
        return stages if self.name != "bad" else type(stages)(**{**stages.__dict__, "policy": Broken()})

    monkeypatch.setattr(SchedulerConfig, "build", build)
    advisor = Advisor([good, bad], ONE_TYPE)
    advice = advisor.advise(moment.view, good)
    assert not advice.switch
    assert dict(advice.forecasts)["bad"].problem == "FairleadError: no idea"
    assert advisor.advise(moment.view, bad).chosen == good


def test_the_recent_past_comes_again():
    past = [Job(f"old{n}", submitted_s=100.0 * n, steps=50.0 + n) for n in range(100)][::-1]
    forecast = ArrivalForecast("recent", window_s=5000.0, seed=1)
    draw = forecast.draw(10_000.0, past)
    assert draw == forecast.draw(10_000.0, past)
    assert draw != ArrivalForecast("recent", window_s=5000.0, seed=2).draw(10_000.0, past)
    assert 25 <= len(draw) <= 80  # fifty, give or take
    assert all(10_000.0 <= one.submitted_s <= 15_000.0 for one in draw)
    assert {one.steps for one in draw} <= {job.steps for job in past if job.submitted_s >= 5000.0}
    assert len({one.name for one in draw}) == len(draw)
    assert forecast.draw(1e6, past) == ()  # nobody came lately
    assert ArrivalForecast().draw(10_000.0, past) == ()


def test_where_nobody_stands_at_the_door_and_nobody_comes_admission_makes_no_difference():
    moment, _ = moment_of(1)
    for free, limited in zip(SIX[::2], SIX[1::2]):
        assert free.policy == limited.policy
        assert equivalence_key(moment, free) == equivalence_key(moment, limited)
        assert forecast_candidate(moment, free, ONE_TYPE) == forecast_candidate(moment, limited, ONE_TYPE)
    draw = replace(moment, arrivals=(Job("late", 20_000.0, 3600.0),))
    assert len({equivalence_key(draw, one) for one in SIX}) == len(SIX)


def test_an_outlook_of_nobody_is_no_reason_to_switch():
    wanted = Objective({"jct": 1.0, "responsiveness": 1.0})
    assert wanted.score(CandidateForecast(0.0, 0.0), CandidateForecast(0.0, 0.0)) == 1.0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Advisor((), ONE_TYPE), "field 'candidates': expected at least one candidate"),
        (lambda: Advisor(SIX, ONE_TYPE, margin=-1.0), "field 'margin' is -1.0: expected a share of at least 0"),
        (lambda: Objective({"jtc": 1.0}), "field 'metric' is 'jtc': expected a metric .did you mean 'jct'"),
        (lambda: Objective({"jct": 0.0}), "field 'jct' is 0.0: expected a weight above 0"),
        (lambda: Objective({}), "at least one metric"),
        (lambda: ArrivalForecast("tomorrow"), "none or recent"),
        (lambda: ArrivalForecast("recent", 0.0), "field 'window_s' is 0.0: expected seconds above 0"),
        (lambda: combinations(SchedulerConfig(), ()), "field 'policies': expected at least one policy"),
        (
            lambda: combinations(SchedulerConfig(), THREE[:1] * 2),
            "field 'candidates' is 'fifo': expected each candidate only once",
        ),
    ],
)
def test_what_makes_no_sense_is_told(make, told):
    with pytest.raises(InputError, match=told):
        make()
