"""Jobs that have converged end at the round's end at which it shows, at the step that one finds by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.config import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job, Phase
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.saved import load, save
from fairlead.report.metrics import summarize
from fairlead.study.simulate import Simulation, simulate
from fairlead.termination.by_loss import ByLoss
from fairlead.workloads.losses import LossCurve
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import with_loss_curves
from scenes import state_of, view_of


def played(trace: Trace, termination="by-loss", *, policy="fifo", skip=True, where="4xv100:4", **parameters):
    scheduler = SchedulerConfig(Part(policy), termination=Part(termination, parameters), round_s=100.0)
    journal = MemoryJournal()
    given = Simulation(trace, Cluster.parse(where), scheduler, skip_quiet_rounds=skip)
    return simulate(given, journal=journal), journal.events


def test_a_job_ends_at_the_first_round_end_at_which_its_loss_is_near_enough():
    # 1 + 9 · e^(−x / 0.1) ≤ 1.01 from x = 0.1 · ln 900 = 0.68024 on: step 680.24 of 1000, which is seen at second 700.
    curve = LossCurve(10.0, 1.0, 0.1)
    assert curve.share_within(0.01) == pytest.approx(0.1 * math.log(900))
    run, events = played(Trace.of([Job("a", 0.0, 1000.0)], losses={"a": curve}), threshold=0.01)
    a = run.state.store.arrays
    assert (a["phase"][0], a["ended_s"][0], a["base_steps"][0]) == (int(Phase.FINISHED), 700.0, 700.0)
    told = {e.time: float(e.values[0]) for e in events if isinstance(e, ev.MetricsReported) and e.name == "loss"}
    assert list(told) == [100.0 * k for k in range(1, 8)]
    assert told[600.0] == pytest.approx(1 + 9 * math.exp(-6.0))
    assert told[600.0] > 1.01 >= told[700.0]


def test_started_late_and_slowly_it_ends_when_its_steps_are_there_not_its_seconds():
    # Submitted at 30, started at 100: the same steps at second 800. A twin that reports nothing runs through.
    jobs = [Job("a", 30.0, 1000.0), Job("silent", 30.0, 1000.0)]
    run, _ = played(Trace.of(jobs, losses={"a": LossCurve(10.0, 1.0, 0.1)}), threshold=0.01)
    assert run.state.store.arrays["ended_s"][:2].tolist() == [800.0, 1100.0]


def test_the_accelerators_are_free_for_the_same_decision_and_room_at_the_door_for_the_next():
    jobs = [Job(name, 0.0, 1000.0, workers=4, user="ann") for name in ("a", "b")]
    trace = Trace.of(jobs, losses={"a": LossCurve(10.0, 1.0, 0.1)})
    run, _ = played(trace, threshold=0.01)
    assert run.state.store.arrays["first_started_s"][1] == 700.0
    scheduler = SchedulerConfig(
        Part("fifo"), Part("user-job-quota", {"default": 1}), termination=Part("by-loss", {"threshold": 0.01}), round_s=100.0
    )
    logs = []
    for skip in (True, False):
        journal = MemoryJournal()
        run = simulate(Simulation(trace, Cluster.parse("4xv100:4"), scheduler, skip_quiet_rounds=skip), journal=journal)
        assert run.state.store.arrays["first_started_s"][1] == 800.0
        logs.append([encode(event) for event in journal.events])
    assert logs[0] == logs[1]


@pytest.mark.parametrize("policy", ["fifo", "las", "srtf", "max-min-fairness"])
def test_skipping_rounds_changes_nothing_and_only_jobs_with_a_curve_report(policy):
    jobs = [Job(f"j{i}", 700.0 * i, 2000.0 + 500 * (i % 5), workers=1 + i % 2) for i in range(12)]
    curves = {f"j{i}": LossCurve(5.0, 0.5, 0.02 * (1 + i)) for i in range(0, 12, 3)}
    logs = [played(Trace.of(jobs, losses=curves), policy=policy, skip=skip)[1] for skip in (True, False)]
    assert [encode(e) for e in logs[0]] == [encode(e) for e in logs[1]]
    reports = [e for e in logs[0] if isinstance(e, ev.MetricsReported)]
    assert {n for e in reports for n in e.jobs.tolist()} == {0, 3, 6, 9}


def test_without_rounds_reports_come_every_five_minutes():
    journal = MemoryJournal()
    scheduler = SchedulerConfig(Part("fifo"), termination=Part("by-loss", {"threshold": 0.01}), round_s=0.0)
    trace = Trace.of([Job("a", 10.0, 1000.0)], losses={"a": LossCurve(10.0, 1.0, 0.1)})
    run = simulate(Simulation(trace, Cluster.parse("1xv100:1"), scheduler), journal=journal)
    assert run.state.store.arrays["ended_s"][0] == 900.0


def reporting(losses: list[float], every: float = 100.0):
    """A job of a step a second that reports nothing but these losses."""
    state = state_of(Cluster.parse("1xv100:1"), [Job("a", 0.0, 1e4)], {0: [0]})
    for k, loss in enumerate(losses, 1):
        state.apply(ev.MetricsReported(k * every, "loss", np.array([0]), np.array([loss])))
    return state


def test_who_tells_no_target_is_measured_against_itself_a_fifth_of_its_steps_ago():
    falling = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    assert ByLoss(0.01).finished_early(view_of(reporting(falling), 600.0)).tolist() == []
    flat = [*falling, 0.5, 0.499, 0.4985, 0.498]
    # Marks are set at 100, 200, 300, 400, 500, 700 and 900 steps; at 900 the mark before is that of 700, 0.5.
    assert [ByLoss(0.01).finished_early(view_of(reporting(flat[:n]), 100.0 * n)).tolist() for n in range(7, 10)] == [
        [],
        [],
        [0],
    ]
    assert ByLoss(0.001).finished_early(view_of(reporting(flat), 1000.0)).tolist() == []
    rising = [0.5, 0.6, 0.7, 0.8]
    assert ByLoss(0.01).finished_early(view_of(reporting(rising), 400.0)).tolist() == [0]


def test_a_target_goes_before_and_can_be_left_aside():
    state = reporting([1.0, 0.5, 0.5, 0.5])
    state.apply(ev.MetricsReported(400.0, "target_loss", np.array([0]), np.array([0.4])))
    assert ByLoss(0.01).finished_early(view_of(state, 400.0)).tolist() == []
    assert ByLoss(0.25).finished_early(view_of(state, 400.0)).tolist() == [0]
    assert ByLoss(0.01, targets=False).finished_early(view_of(state, 400.0)).tolist() == [0]


def test_a_saved_state_and_a_detached_view_know_the_same():
    state = reporting([1.0, 0.5, 0.5, 0.5])
    again = load(save(state))
    assert again.digest() == state.digest()
    for view in (view_of(again, 400.0), view_of(state, 400.0).detached()):
        assert ByLoss(0.01).finished_early(view).tolist() == [0]


def test_where_three_quarters_converge_at_two_fifths_so_much_less_is_done():
    jobs = [Job(f"j{i}", 0.0, 1e5) for i in range(200)]
    trace = with_loss_curves(Trace.of(jobs), seed=1)
    run, _ = played(trace, where="200xv100:4")
    shares = run.state.store.arrays["base_steps"][:200] / 1e5
    early = shares < 1.0
    assert 0.65 < early.mean() < 0.85
    assert shares[early] == pytest.approx(0.4, abs=0.0011)
    through, _ = played(trace, "by-steps", where="200xv100:4")
    saved = 1 - summarize(run.record).average_jct_s / summarize(through.record).average_jct_s
    assert saved == pytest.approx(0.6 * early.mean(), abs=0.01)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, math.nan])
def test_a_threshold_that_is_no_share_is_refused(threshold):
    with pytest.raises(InputError, match=r"termination by-loss: field 'threshold' is .*expected a share from 0 to below 1"):
        ByLoss(threshold)
