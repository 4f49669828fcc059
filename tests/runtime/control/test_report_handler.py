"""What jobs say of themselves, on its way to the journal: as few events as tell it, and names that are bounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from emulated_agents import Scene, begun

from fairlead.core import events as ev
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import decode, encode
from fairlead.runtime.control.job_metrics import MAX_NAMES_PER_USER, MetricBuffer
from fairlead.runtime.protocol.orders import MAX_METRICS, Ended, Metric, Progress


def test_progress_that_was_foreseen_is_no_event():
    scene = begun("a", "v100:1", steps=1e6)
    for second in range(1, 200):
        scene.backend.report(0, [Progress(0, 1, 4 * second, 0, 4.0 + 0.01 * np.sin(second))])
        scene.at(float(second))
    told = [event for event in scene.journal if isinstance(event, ev.ProgressReported)]
    assert len(told) < 5


@pytest.mark.parametrize("yielded", [False, True])
def test_whatever_stands_on_a_workers_page_a_journal_of_it_can_be_read_again(yielded: bool):
    """Steps, speeds and batch sizes as large as its numbers are, or as no agent of ours says them."""
    scene, most = begun("a", "v100:1", steps=1e6, mode="gns", retry_limit=3), 2**53
    words = [(1, 1.0, 1), (2, 1.0, most), (most, 9e24, most), (-5, -1.0, 0), (7, math.inf, 0), (8, math.nan, 1)]
    for second, (steps, rate, size) in enumerate(words, start=1):
        scene.backend.report(0, [Progress(0, 1, steps, steps, rate, size)])
        scene.at(2.0 * second)
    scene.backend.report(0, [Ended(0, 1, 1, yielded, most, most)])
    scene.at(20.0)
    read = [decode(encode(event)) for event in scene.journal]
    assert [type(event) for event in read].count(ev.ProgressReported) > 3
    assert isinstance(next(event for event in reversed(read) if not isinstance(event, ev.RoundPlanned)), ev.JobsInterrupted)
    assert replay_events(read).digest() == scene.loop.state.digest()


def test_what_jobs_report_is_one_event_for_each_name_and_second():
    scene = Scene()
    scene.join()
    for name in ("a", "b", "c"):
        scene.job(name, steps=100.0)
    scene.at(0.0)
    scene.backend.report(0, [Metric(0, 1, "loss", 9.0), Metric(0, 1, "loss", 0.5), Metric(1, 1, "loss", 0.6)])
    scene.backend.report(1, [Metric(2, 1, "loss", 0.7)])
    scene.at(2.0)
    scene.backend.report(1, [Metric(2, 1, "loss", 0.4)])
    scene.at(2.5)  # too early to be told
    scene.backend.report(0, [Metric(0, 1, "loss", 0.3)])
    scene.at(3.0)
    scene.backend.report(0, [Metric(1, 1, "loss", 0.2), Ended(1, 1, 0, False, 100, 100)])
    scene.at(3.1)  # but at an end nothing is held back
    told = [(e.time, e.jobs.tolist(), e.values.tolist()) for e in scene.journal if isinstance(e, ev.MetricsReported)]
    assert told == [(2.0, [0, 1, 2], [0.5, 0.6, 0.7]), (3.0, [2, 0], [0.4, 0.3]), (3.1, [1], [0.2])]
    scene.check()


def test_a_loss_that_is_no_number_any_more_is_in_the_journal_as_infinity():
    scene = begun("a", steps=100.0)
    scene.backend.report(0, [Metric(0, 1, "loss", 0.5)])
    scene.at(2.0)
    scene.backend.report(0, [Metric(0, 1, "loss", math.inf), Metric(0, 1, "loss.lowest", 0.0)])
    scene.at(4.0)
    told = [decode(encode(e)) for e in scene.journal if isinstance(e, ev.MetricsReported)]
    assert [e.values.tolist() for e in told if isinstance(e, ev.MetricsReported)] == [[0.5], [math.inf]]
    assert scene.loop.state.store.metric("loss.lowest")[0] == 0.5  # which nobody can report
    scene.check()


def test_a_job_reports_under_a_bounded_number_of_names_over_restarts_too():
    scene = begun("a", steps=100.0)
    scene.backend.report(0, [Metric(0, 1, f"name-{n}", 1.0) for n in range(1000)])
    scene.at(2.0)
    assert len(scene.loop.state.store.metrics) == MAX_METRICS
    again = Scene(state=replay_events(scene.journal), journal=scene.journal)
    for node in range(2):
        again.backend.agent_joined(node, [(0, 1)] if node == 0 else [])
    again.backend.reconcile(again.loop.state.snapshot(3.0))
    again.backend.report(0, [Metric(0, 1, "name-0", 2.0), Metric(0, 1, "one-more", 1.0)])
    again.at(5.0)
    assert len(again.loop.state.store.metrics) == MAX_METRICS
    assert again.loop.state.store.metric("name-0")[0] == 2.0


def test_names_of_metrics_are_free_again_with_their_last_job_and_nobody_takes_all_of_them():
    measures = MetricBuffer()

    def heard(job: int, name: str, user: str) -> bool:
        measures.add(Metric(job, 1, name, 1.0), user)
        return any(event.name == name for event in measures.flush(0.0))

    mine = [heard(number, f"mine-{number}-{n}", "ann") for number in range(10) for n in range(MAX_METRICS)]
    assert sum(mine) == MAX_NAMES_PER_USER
    assert heard(50, "theirs", "ben")
    assert heard(9, "loss", "ann"), "a decision may be made of it"
    measures.remove(0)
    assert heard(11, "one-more", "ann")
    assert heard(12, "one-more", "ann")
    measures.remove(11)
    assert heard(13, "one-more", "ann"), "another one still uses it"
    for number in range(100, 200):
        heard(number, "a", f"user-{number}")
        for n in range(MAX_METRICS - 1):
            heard(number, f"{number}-{n}", f"user-{number}")
    assert not heard(300, "new", "eve")
    assert heard(300, "a", "eve")
    assert heard(300, "loss", "eve")
    for number in range(200):
        measures.remove(number)
    assert heard(300, "new", "eve")


def test_the_state_forgets_names_of_metrics_that_nobody_alive_uses(monkeypatch):
    monkeypatch.setattr("fairlead.engine.transitions.MAX_METRICS", 8)
    scene = Scene("v100:1", "fifo")
    scene.join()
    for number in range(6):
        scene.job(f"job-{number}", steps=100.0)
    for number in range(6):
        scene.at(20.0 * number)
        scene.backend.report(0, [Metric(number, 1, name, 0.5) for name in ("loss", f"a-{number}", f"b-{number}")])
        scene.at(20.0 * number + 1)
        assert scene.loop.state.snapshot().jobs.metric(f"b-{number}")[0] == 0.5
        scene.backend.report(0, [Ended(number, 1, 0, False, 100, 100)])
    assert len(scene.loop.state.store.metrics) <= 8 + 4
    scene.check()
