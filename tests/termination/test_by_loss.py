"""Jobs that have converged end at the round's end at which it shows, at the step that one finds by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job, Phase
from fairlead.core.rng import stream
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.state_codec import load, save
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.models.convergence import AT, EARLIER, ERROR, RECENT, WINDOW
from fairlead.termination.by_loss import ByLoss
from fairlead.workloads.dynamics import LossCurve
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import with_loss_curves
from scenes import state_of, view_of


def played(trace: Trace, termination="by-loss", *, policy="fifo", skip=True, where="4xv100:4", **parameters):
    scheduler = SchedulerConfig(Part(policy), termination=Part(termination, parameters), round_s=100.0)
    journal = MemoryJournal()
    given = Simulation(trace, Cluster.parse(where), scheduler, skip_quiet_rounds=skip)
    return run_simulation(given, journal=journal), journal.events


def test_a_job_ends_at_the_first_round_end_at_which_its_loss_is_near_enough():
    # 1 + 9 · e^(−x / 0.1) ≤ 1.01 from x = 0.1 · ln 900 = 0.68024 on: step 680.24 of 1000, which is seen at second 700.
    curve = LossCurve(10.0, 1.0, 0.1)
    run, events = played(Trace.of([Job("a", 0.0, 1000.0)], losses={"a": curve}), threshold=0.01)
    a = run.state.columns
    assert (a["phase"][0], a["ended_s"][0], a["base_steps"][0]) == (int(Phase.FINISHED), 700.0, 700.0)
    told = {e.time: float(e.values[0]) for e in events if isinstance(e, ev.MetricsReported) and e.name == "loss"}
    assert list(told) == [100.0 * k for k in range(1, 8)]
    assert told[600.0] == pytest.approx(1 + 9 * math.exp(-6.0))
    assert told[600.0] > 1.01 >= told[700.0]


def test_started_late_and_slowly_it_ends_when_its_steps_are_there_not_its_seconds():
    # Submitted at 30, started at 100: the same steps at second 800. A twin that reports nothing runs through.
    jobs = [Job("a", 30.0, 1000.0), Job("silent", 30.0, 1000.0)]
    run, _ = played(Trace.of(jobs, losses={"a": LossCurve(10.0, 1.0, 0.1)}), threshold=0.01)
    assert run.state.columns["ended_s"][:2].tolist() == [800.0, 1100.0]


def test_the_accelerators_are_free_for_the_same_decision_and_room_at_the_door_for_the_next():
    jobs = [Job(name, 0.0, 1000.0, workers=4, user="ann") for name in ("a", "b")]
    trace = Trace.of(jobs, losses={"a": LossCurve(10.0, 1.0, 0.1)})
    run, _ = played(trace, threshold=0.01)
    assert run.state.columns["first_started_s"][1] == 700.0
    scheduler = SchedulerConfig(
        Part("fifo"), Part("user-job-quota", {"default": 1}), termination=Part("by-loss", {"threshold": 0.01}), round_s=100.0
    )
    logs = []
    for skip in (True, False):
        journal = MemoryJournal()
        run = run_simulation(Simulation(trace, Cluster.parse("4xv100:4"), scheduler, skip_quiet_rounds=skip), journal=journal)
        assert run.state.columns["first_started_s"][1] == 800.0
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
    run = run_simulation(Simulation(trace, Cluster.parse("1xv100:1"), scheduler), journal=journal)
    assert run.state.columns["ended_s"][0] == 900.0


def reporting(losses: list[float], every: float = 100.0, steps: float = 1e4):
    """A job of a step a second that reports nothing but these losses."""
    state = state_of(Cluster.parse("1xv100:1"), [Job("a", 0.0, steps)], {0: [0]})
    for k, loss in enumerate(losses, 1):
        apply_event(state, ev.MetricsReported(k * every, "loss", np.array([0]), np.array([loss])))
    return state


CONVERGED = [*(1.0 - 0.05 * k for k in range(10)), *[0.5] * 30]


def test_who_tells_no_target_is_measured_against_itself_by_means_over_windows():
    # A report each 100 of 4000 steps. A part of a window is a report or more, so windows are full at 900, 1700, 2500, 3300.
    ended = [
        n for n in range(1, 41) if len(ByLoss(0.01).finished_early(view_of(reporting(CONVERGED[:n], steps=4e3), 100.0 * n)))
    ]
    assert ended == list(range(33, 41))  # at 2500 the window before still held 0.55 among 0.5
    last = reporting(CONVERGED[:25], steps=4e3).snapshot(2500.0).jobs
    assert [float(last.metric(name)[0]) for name in (EARLIER, RECENT, ERROR, AT, WINDOW)] == pytest.approx(
        [0.50625, 0.5, 0.00625, 2500, 800]
    )


def test_what_it_would_still_fall_by_to_its_last_step_counts():
    # From 1 it falls by 0.0008 in each window of 800 steps.
    slow = [1.0 - 1e-6 * 100 * k for k in range(40)]
    assert ByLoss(0.01).finished_early(view_of(reporting(slow, steps=4e3), 4000.0)).tolist() == [0]
    assert ByLoss(0.01).finished_early(view_of(reporting(slow, steps=4e4), 4000.0)).tolist() == []
    assert ByLoss(0.001).finished_early(view_of(reporting(slow, steps=4e3), 4000.0)).tolist() == []


def test_nobody_is_measured_against_itself_before_a_share_of_its_steps():
    state = reporting([0.5] * 40, steps=2e4)
    assert ByLoss().finished_early(view_of(state, 4000.0)).tolist() == []
    assert ByLoss(after=0.1).finished_early(view_of(state, 4000.0)).tolist() == [0]


def noisy(curve, noise: float, *, seed: int, jobs: int = 40, steps: float = 1e4, every: float = 10.0) -> list[float]:
    """At which share of their steps jobs ended whose losses are a curve's, give or take."""
    rng = stream(seed, "noise")
    state = state_of(
        Cluster.parse(f"{jobs}xv100:1"), [Job(f"j{i}", 0.0, steps) for i in range(jobs)], {i: [i] for i in range(jobs)}
    )
    numbers, ended = np.arange(jobs), np.full(jobs, math.inf)
    for second in np.arange(every, steps, every).tolist():
        losses = curve(second / steps) * (1 + noise * rng.standard_normal(jobs))
        apply_event(state, ev.MetricsReported(second, "loss", numbers, losses))
        if second % 100 == 0:
            done = ByLoss().finished_early(view_of(state, second))
            ended[done] = np.minimum(ended[done], second / steps)
    return ended.tolist()


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("warm_up", [0.0, 0.005, 0.1])
def test_nobody_ends_while_its_true_loss_falls_however_noisy_and_flat_at_first(noise, warm_up):
    def curve(share: float) -> float:
        return 0.5 + 6.4 * math.exp(-5 * max(0.0, share - warm_up))

    assert noisy(curve, noise, seed=int(1000 * (noise + warm_up))) == [math.inf] * 40


@pytest.mark.parametrize("noise", [0.003, 0.05])
def test_nor_while_it_falls_slowly_all_the_way(noise):
    assert noisy(lambda share: 1.0 - 0.2 * share, noise, seed=5) == [math.inf] * 40


def test_who_has_converged_ends_with_a_little_noise_too():
    ended = noisy(lambda share: 1.0 + 9.0 * math.exp(-share / 0.02), 0.0003, seed=7)
    assert all(0.3 < share < 1.0 for share in ended)


def test_a_loss_that_is_no_number_is_in_no_mean():
    losses = list(CONVERGED)
    losses[20:20] = [math.nan, math.inf]
    state = reporting(losses, steps=4e3)
    assert np.isfinite(state.snapshot(4200.0).jobs.metric(RECENT)).all()
    assert ByLoss(0.01).finished_early(view_of(state, 4200.0)).tolist() == [0]
    assert len(ByLoss().finished_early(view_of(reporting([math.nan] * 40, steps=4e3), 4000.0))) == 0


def test_a_target_goes_before_and_can_be_left_aside():
    state = reporting(CONVERGED, steps=4e3)
    apply_event(state, ev.MetricsReported(4000.0, "target_loss", np.array([0]), np.array([0.4])))
    assert ByLoss(0.01).finished_early(view_of(state, 4000.0)).tolist() == []
    assert ByLoss(0.25).finished_early(view_of(state, 4000.0)).tolist() == [0]
    assert ByLoss(0.01, targets=False).finished_early(view_of(state, 4000.0)).tolist() == [0]


def test_a_saved_state_and_a_detached_view_know_the_same():
    state = reporting(CONVERGED[:20], steps=4e3)
    again = load(save(state))
    assert again.digest() == state.digest()
    for each in (state, again):
        for k in range(21, 41):
            apply_event(each, ev.MetricsReported(100.0 * k, "loss", np.array([0]), np.array([0.5])))
    assert again.digest() == state.digest()
    for view in (view_of(again, 4000.0), view_of(state, 4000.0).detached()):
        assert ByLoss(0.01).finished_early(view).tolist() == [0]


def test_where_three_quarters_converge_at_two_fifths_so_much_less_is_done():
    jobs = [Job(f"j{i}", 0.0, 1e5) for i in range(200)]
    trace = with_loss_curves(Trace.of(jobs), seed=1)
    run, _ = played(trace, where="200xv100:4")
    shares = run.state.columns["base_steps"][:200] / 1e5
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


@pytest.mark.parametrize("after", [-0.1, 1.1, math.nan])
def test_nor_is_a_beginning_that_is_none(after):
    with pytest.raises(InputError, match=r"termination by-loss: field 'after' is .*expected a share from 0 to 1"):
        ByLoss(after=after)
