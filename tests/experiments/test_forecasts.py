"""Scenarios of forecasts: what they draw, that seeds determine it, and how past forecasts are compared with what happened."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fairlead.cli.cmd_when import _data, _guesses, _table
from fairlead.cli.main import app
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.rng import stream
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import encode_line
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.experiments.forecast_json import forecast_from_json, forecast_to_json
from fairlead.experiments.forecast_quality import Widening, forecast_interval, forecast_quality
from fairlead.experiments.lookahead import ForecastOptions, forecast
from fairlead.experiments.scenarios import ArrivalForecast, FaultHistory, RunGroup, RunTimes
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.simulator.backend import SimulatedBackend
from fairlead.testing.builders import cluster
from fairlead.workloads.throughput_tables import ThroughputTable
from scenes import state_of

TIMED = ThroughputTable.timed(("v100",))


def ran(*runs: tuple[str, str, float], now: float = 10_000.0) -> State:
    """Jobs of users and types that have run so long and finished; two more, of user ann and type a, run and wait."""
    named = [*((user, kind) for user, kind, _ in runs), ("ann", "a"), ("ann", "a")]
    jobs = [Job(f"j{n}", user=user, kind=kind, steps=UNKNOWN_STEPS) for n, (user, kind) in enumerate(named)]
    state = state_of(cluster(f"v100:{len(jobs)}"), jobs, {n: [n] for n in range(len(runs) + 1)})
    ends = np.array([run_s for _, _, run_s in runs])
    apply_event(state, ev.JobsFinished(float(ends.max()), np.arange(len(runs)), ends))
    state.time = now
    return state


def test_a_job_that_has_survived_is_compared_with_longer_runs_only():
    state = ran(*(("ann", "a", run_s) for run_s in (100.0, 200.0, 300.0, 400.0)), now=250.0)
    times = RunTimes(state)
    fresh, survived = (times.of(state.job_of[4], age_s) for age_s in (0.0, 250.0))
    assert [fresh.at(share) for share in (0.1, 0.3, 0.6, 0.7)] == [100.0, 200.0, 300.0, 400.0]
    assert [survived.at(share) for share in (0.1, 0.4, 0.5, 0.8)] == [300.0, 300.0, 400.0, 400.0]
    oldest = times.of(state.job_of[4], 1000.0)
    assert [oldest.at(0.5, beyond) for beyond in (0.1, 0.5, 0.9)] == pytest.approx([1000 / 0.9, 2000.0, 10_000.0])


def test_jobs_that_still_run_count_as_longer_runs():
    runs = RunGroup.of([50.0, 100.0, 80.0], [True, True, False]).survival()
    assert runs.runs.tolist() == [50.0, 100.0]
    assert runs.mass.tolist() == pytest.approx([1 / 3, 2 / 3]), "Kaplan–Meier: the third one ends at 100 s, or later"
    assert RunGroup.of([50.0, 80.0], [True, False]).survival().left == 0.5


def test_with_few_runs_of_its_group_a_job_takes_after_larger_groups():
    def median(*runs: tuple[str, str, float]) -> float:
        state = ran(*runs, now=1.0)
        return RunTimes(state).of(state.job_of[len(runs) + 1], 0.0).median_s

    others = [("bob", "a", 500.0)] * 3 + [("bob", "b", 9000.0)] * 9
    assert median(*others) == 500.0, "the job type before all jobs"
    assert median(*others[3:]) == 9000.0
    assert median(("ann", "a", 60.0), *others) == 500.0, "one run counts a third"
    assert median(*[("ann", "a", 60.0)] * 4, *others) == 60.0


def test_arrivals_follow_the_hour_of_day():
    day = 86400.0
    past = [Job(f"j{n}", submitted_s=day * (n // 40) + 3600.0 * 9 + 60.0 * (n % 40), steps=float(n + 1)) for n in range(280)]
    found = ArrivalForecast("recent", 7 * day, seed=3)
    drawn = found.draw(7 * day, past[::-1])
    assert drawn == found.draw(7 * day, past[::-1])
    assert drawn != ArrivalForecast("recent", 7 * day, seed=4).draw(7 * day, past[::-1])
    assert {int(job.submitted_s % day // 3600) for job in drawn} == {9}
    assert 200 < len(drawn) < 360, "forty a day"
    assert [job.submitted_s for job in drawn] == sorted(job.submitted_s for job in drawn)
    soon = found.draw(7 * day, past[::-1], within_s=day)
    assert soon == drawn[: len(soon)], "what comes first does not depend on how far is drawn"


@pytest.mark.parametrize("hours", [2, 72])
def test_an_array_is_one_submission(hours):
    def arrived(name: str, hour: float) -> list[Job]:
        command = f'{{"run":["a"],"array":{{"id":"{name}"}}}}'
        return [Job(f"{name}-{n}", submitted_s=3600.0 * hour, steps=1.0, command=command) for n in range(50)]

    past = [Job("b", submitted_s=1.0, steps=2.0), *arrived("sweep", hours - 1)]
    now = 3600.0 * hours
    drawn = [ArrivalForecast("recent", now, seed).draw(now, past[::-1]) for seed in range(40)]
    at = [Counter(job.submitted_s for job in jobs if job.steps == 1.0) for jobs in drawn]
    assert all(count % 50 == 0 for counts in at for count in counts.values()), "whole arrays, each at once"
    assert 0 < sum(map(bool, at)) < 40


def test_the_first_submission_of_a_young_cluster_is_not_expected_again():
    only = [Job("a", submitted_s=100.0)]
    assert all(ArrivalForecast("recent", 7 * 86400.0).draw(now, only) == () for now in (200.0, 2 * 86400.0))
    assert any(ArrivalForecast("recent", 150.0, seed).draw(200.0, only) for seed in range(9)), "the past is longer"


def test_nodes_fail_as_often_and_as_long_as_they_did():
    state = State(cluster("4xv100:2"))
    for event in (ev.NodeLost(0.0, 0), ev.NodeRepaired(5.0, 0), ev.NodeLost(1e5, 1), ev.NodeRepaired(1e5 + 600.0, 1)):
        apply_event(state, event)
    assert state.outages == [(1e5, 1e5 + 600.0)], "a journal begins without nodes"
    again = load(save(state))
    assert (again.outages, again.lost_since) == (state.outages, {})
    apply_event(again, ev.NodeLost(2e5, 0))
    events = [*FaultHistory.of(again).draw(7, 2e5 + 300.0, 4e6)]
    back = next(event for event in events if event.node == 0)
    assert (type(back), back.time) == (ev.NodeRepaired, 2e5 + 600.0), "after 600 s, as the other did"
    assert events == sorted(events, key=lambda event: event.time)
    assert 10 < sum(isinstance(event, ev.NodeLost) for event in events) < 80, "two losses in 4e5 node seconds, and 8e6 ahead"
    assert [*FaultHistory.of(State(cluster("4xv100:2"))).draw(7, 1e5, 1e6)] == []


def loaded(seed: int = 1) -> State:
    """Two GPUs, a past of 40 jobs that declared no steps, and eight that have not ended."""
    draw = stream(seed, "forecast-test")
    lengths = [100.0 * math.exp(draw.normal()) for _ in range(48)]
    jobs = [Job(f"j{n}", 120.0 * n if n < 40 else 5000.0, length) for n, length in enumerate(lengths)]
    scheduler, on = SchedulerConfig(Part("fifo"), round_s=10.0), cluster("v100:2")
    loop = Loop(State(on), SimulatedBackend(on, TIMED, jobs), scheduler.build(TIMED))
    loop.record(ev.JournalOpened(0.0, on, scheduler.to_data()))
    loop.run(until=5010.0)
    state = load(save(loop.state))
    state.time = 5010.0
    for number in (*state.live.tolist(), *state.queue.tolist()):
        state.assume(number, steps=UNKNOWN_STEPS, min_run_s=0.0)
    return state


def test_a_forecast_has_intervals_that_seeds_determine_and_old_clients_read_them():
    found = forecast(loaded(), TIMED, ForecastOptions(simulations=19))
    assert found == forecast(loaded(), TIMED, ForecastOptions(simulations=19))
    assert found.completed == 20
    for one in found.jobs:
        low, median, high = one.range(lambda times: times.ends_s)
        assert low <= median <= high
        assert [times.ends_s for times in one.with_arrivals] == [low, median, high], "least, median and most for old clients"
    last = found.jobs[-1]
    low, median, high = last.range(lambda times: times.starts_s)
    assert low < median < high
    assert forecast_from_json(json.loads(json.dumps(forecast_to_json(found)))).jobs == found.jobs
    told = _data(found, {})
    assert told["jobs"][-1]["starts_s"] == (low, median, high)
    assert (told["coverage"], told["simulations"]) == (0.8, 19)
    assert [column.header for column in _table(found.jobs).columns] == [
        "name",
        *["starts in", "from", "to"],
        "ends in",
        "from",
        "to",
    ]
    assert "ranges are 80 % intervals of 19 simulations" in next(_guesses(found, True, False))


def test_declared_steps_leave_little_to_draw():
    state = loaded()
    for number in (*state.live.tolist(), *state.queue.tolist()):
        state.assume(number, steps=5000.0, min_run_s=0.0)
    for one in forecast(state, TIMED, ForecastOptions(simulations=5)).jobs:
        assert {times.starts_s for times in one.with_arrivals} == {one.without_arrivals.starts_s}
        assert {times.ends_s for times in one.with_arrivals} == {one.without_arrivals.ends_s}


def test_an_interval_of_few_scenarios_is_widened():
    assert forecast_interval(range(1, 20)) == (2.0, 10.0, 18.0)
    assert forecast_interval([10.0, 20.0, 30.0, 40.0, 50.0]) == pytest.approx((6.0, 30.0, 54.0)), "by 0.8 · 6 / 4"
    assert forecast_interval([1.0, math.inf, math.inf, math.inf]) == (1.0, math.inf, math.inf)
    assert forecast_interval(range(1, 20), 2.0) == (0.0, 10.0, 26.0)


def recorded(*forecasts: ev.ForecastsRecorded) -> list[ev.Event]:
    """Job 0 starts at 100 s and ends at 700 s; job 1 starts at 4000 s and runs at 5000 s; job 2 is cancelled."""
    opened = ev.JournalOpened(0.0, cluster("v100:2"), {"policy": "fifo"})
    jobs = [ev.JobSubmitted(1.0, n, Job(f"j{n}", 1.0, steps=UNKNOWN_STEPS)) for n in range(3)]
    zero, one = np.array([0]), np.array([1])
    starts = [
        ev.RoundPlanned(RoundPlan(100.0, admitted=np.arange(3), launches=Launches(zero, zero * 0, np.array([0, 1]), zero))),
        ev.JobsFinished(700.0, zero, np.array([700.0])),
        ev.JobCancelled(800.0, 2),
        ev.RoundPlanned(RoundPlan(4000.0, launches=Launches(one, one * 0, np.array([0, 1]), zero))),
        ev.ProgressReported(5000.0, one, np.array([9.0]), np.array([0.0]), np.array([5000.0])),
    ]
    return sorted([opened, *jobs, *forecasts, *starts], key=lambda event: event.time)


def made(time: float, jobs: list[int], *values: list[float]) -> ev.ForecastsRecorded:
    return ev.ForecastsRecorded(time, np.array(jobs), *(np.array(column) for column in zip(*values)))


FORECASTS = (
    made(50.0, [0, 1, 2], [60, 90, 120, 500, 650, 900], [100, 200, 3000, 4500, 9000, math.inf], [60, 70, 80, 90, 95, 99]),
    made(150.0, [0], [150, 150, 150, 200, 300, 400]),
)


def test_forecasts_of_a_journal_are_compared_with_what_happened(tmp_path: Path):
    found = forecast_quality(recorded(*FORECASTS))
    rows = {(row["of"], row["horizon"]): (row["forecasts"], row["coverage"], row["median_error_s"]) for row in found.rows()}
    assert rows == {
        ("start", "< 10 min"): (2, 0.5, 1905.0),  # 10 s and 3800 s late: one within its interval
        ("start", "all"): (2, 0.5, 1905.0),
        ("end", "< 10 min"): (1, 0.0, 400.0),  # made while the job ran
        ("end", "< 1 h"): (1, 1.0, 50.0),
        ("end", "all"): (2, 0.5, 225.0),
    }
    assert found.open == 1, "the end of job 1"
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"".join(map(encode_line, recorded(*FORECASTS))))
    told = CliRunner().invoke(app, ["forecast-quality", str(journal)])
    assert told.exit_code == 0, (told.output, told.exception)
    assert "start  < 10 min          2          50%" in told.stdout
    assert json.loads(CliRunner().invoke(app, ["forecast-quality", str(journal), "--json"]).stdout)["open"] == 1
    late = forecast_quality([*recorded(made(50.0, [1], [100, 200, 300, 400, 500, 600]))][:-2])
    assert [(one.covered, one.happened_s) for one in late.starts] == [(False, None)], "it has not started, and is late"


def test_recorded_forecasts_replay_and_change_nothing_else():
    with_them, without = replay_events(recorded(*FORECASTS)), replay_events(recorded())
    assert len(with_them.forecasts) == 4
    assert load(save(with_them)).digest() == with_them.digest() != without.digest()
    with_them.forecasts = []
    assert with_them.digest() == without.digest()


def test_recorded_forecasts_cause_no_decision():
    jobs = [Job("a", 0.0, 500.0), Job("b", 10.0, 50.0)]

    def decisions(*others: ev.Event) -> int:
        loop = Loop(State(cluster("v100:1")), SimulatedBackend(cluster("v100:1"), TIMED, jobs, others=others), scheduler)
        loop.record(ev.JournalOpened(0.0, cluster("v100:1"), {"policy": "fifo"}))
        loop.run()
        return loop.decisions

    scheduler = SchedulerConfig(Part("fifo"), round_s=0.0).build(TIMED)
    assert decisions(made(100.0, [0], [0, 0, 0, 1, 2, 3])) == decisions()


def test_intervals_that_were_too_narrow_are_widened():
    state = replay_events(recorded())
    assert Widening.learned(state) == (1.0, 1.0)
    state.forecasts = [(50.0, 0.0, 90.0, 95.0, 97.5, 600.0, 690.0, 720.0, 1.0, 1.0)] * 400
    starts, ends = Widening.learned(state)
    assert 1.8 < starts < 2.0, "5 s after the median, and the bound was at 2.5 s: nearly twice as wide"
    assert 0.3 < ends < 0.6


def test_a_forecast_teaches_nothing_before_its_interval_has_passed():
    """Of forecasts that are still open, the early outcomes are known first: intervals would become too short."""
    state = replay_events(recorded())
    still_open = (50.0, 0.0, 90.0, 95.0, 1e9, 600.0, 690.0, 1e9, 1.0, 1.0)
    state.forecasts = [still_open] * 400
    assert Widening.learned(state) == (1.0, 1.0)
    late = next(n for n in state.job_of if math.isnan(state.columns["ended_s"][n]))
    state.time = 5000.0
    state.forecasts = [(50.0, float(late), 90.0, 95.0, 100.0, 600.0, 690.0, 720.0, 1.0, 1.0)] * 400
    assert Widening.learned(state).ends > 3.0, "it has not ended, long after its interval"


def test_groups_share_the_shape_of_their_run_times():
    """With one run of its own, a job is about as long as that, and its run time is as uncertain as in other groups."""
    draw = np.random.default_rng(1)
    others = [
        (f"user-{user}", f"type-{user}", float(run_s))
        for user in range(10)
        for run_s in 100.0 * 3**user * np.exp(draw.normal(0.0, 0.5, 20))
    ]
    state = ran(("ann", "a", 5000.0), *others, now=1.0)
    times = RunTimes(state)
    fresh = times.of(state.job_of[0], 0.0)
    assert 3000.0 < fresh.median_s < 8000.0
    low, high = (math.log(fresh.at(share) / fresh.median_s) for share in (0.1, 0.9))
    assert low == pytest.approx(-0.9, abs=0.35)
    assert high == pytest.approx(0.9, abs=0.35)
    assert times.of(state.job_of[0], 12_000.0).median_s < 20_000.0, "the others' runs of weeks are not its own"
