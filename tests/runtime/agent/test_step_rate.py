"""How fast a worker is now: the mean of a launch, and from where its pace changed for good on."""

from __future__ import annotations

import pytest

from fairlead.runtime.agent.worker_reports import _SEGMENT_NS, _SEGMENTS, StepRate

SECOND = 10**9
AT = 7 * SECOND  # when a launch began


class Worker:
    """Makes steps, and is looked at twice a second."""

    def __init__(self) -> None:
        self.step_rate, self.steps, self.now, self.last = StepRate(), 0.0, AT, AT
        self.reports: list[float] = []

    def goes(self, rate: float, seconds: float) -> float:
        for _ in range(round(2 * seconds)):
            whole = int(self.steps)
            self.steps += rate / 2
            self.now += SECOND // 2
            if int(self.steps) > whole:
                self.last = self.now
            self.reports.append(self.step_rate.update(0, AT, int(self.steps), self.last))
        return self.reports[-1]


def test_an_even_pace_is_a_mean_since_the_beginning():
    worker = Worker()
    assert worker.goes(10.0, 600.0) == pytest.approx(10.0)
    assert worker.step_rate.update(0, 0, 0, 0) == 0.0
    assert StepRate().update(5, AT, 5, AT) == 0.0, "it has only begun"


@pytest.mark.parametrize(("before", "after"), [(10.0, 5.0), (10.0, 20.0), (2.0, 1.0)])
def test_a_pace_that_changes_for_good_is_told_within_a_quarter_of_a_minute(before, after):
    worker = Worker()
    worker.goes(before, 3600.0)
    assert worker.goes(after, 2 + (_SEGMENTS + 1) * _SEGMENT_NS / SECOND) == pytest.approx(after, rel=0.05)
    assert worker.goes(after, 600.0) == pytest.approx(after, rel=0.02)
    assert worker.goes(before, 60.0) == pytest.approx(before, rel=0.05)


def test_a_pause_is_no_change():
    worker = Worker()
    for _ in range(20):
        worker.goes(10.0, 120.0)
        worker.goes(0.0, 12.0)
    assert min(worker.reports[3:]) > 8.5
    assert worker.reports[-1] == pytest.approx(10 * 120 / 132, rel=0.03), "a job that saves does less in a second"


def test_what_varies_from_second_to_second_is_even():
    worker = Worker()
    for _ in range(100):
        worker.goes(8.5, 3.0)
        worker.goes(11.5, 3.0)
    assert worker.reports[-1] == pytest.approx(10.0, rel=0.02)
    assert max(worker.reports[40:]) < 11.0


def test_slow_steps_are_waited_for():
    worker = Worker()
    worker.goes(0.1, 1200.0)
    assert worker.goes(0.05, 150.0) > 0.08, "four pieces of two steps take longer"
    assert worker.goes(0.05, 100.0) == pytest.approx(0.05, rel=0.1)


def test_where_the_worker_says_that_its_rate_begins_anew_it_does():
    worker = Worker()
    worker.goes(10.0, 100.0)
    then = worker.last
    assert worker.step_rate.update(1000, then, 1100, then + 20 * SECOND) == pytest.approx(5.0)


def test_a_page_that_goes_back_says_nothing():
    worker = Worker()
    worker.goes(10.0, 100.0)
    worker.goes(5.0, 100.0)
    assert worker.step_rate.update(0, AT, 3, AT + SECOND) == 0.0
    assert worker.step_rate.update(0, AT, 2**53, AT - 5) == 0.0
    assert worker.goes(5.0, 30.0) == pytest.approx(5.0, rel=0.05)
