"""When two are at work and when they pause, and how fast that says they were: on a clock that nobody has to wait for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fairlead.profiling.profile_pairs import (
    Interval,
    PairRates,
    PairTiming,
    WorkInterval,
    estimated_step_s,
    pair_schedule,
    rate,
    window_rates,
    work,
)


class Clockwork:
    """A training whose steps take a given time on a clock of its own; the device is behind the host, as a real one is."""

    def __init__(self, seconds: Callable[[float], float]) -> None:
        self.now, self.free, self.seconds = 0.0, 0.0, seconds

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    def step(self) -> None:
        self.now += 1e-4
        self.free = max(self.free, self.now) + self.seconds(max(self.free, self.now))

    def record_event(self) -> Callable[[], None]:
        done = self.free

        def wait() -> None:
            self.now = max(self.now, done)

        return wait

    def pause(self, seconds: float) -> None:
        self.now += seconds


def looked_at(
    seconds: tuple[float, float], slower: tuple[float, float], timing: PairTiming, host: Callable[[float], float]
) -> list[PairRates]:
    """Two of them, each as much slower as told while the other has work, and both as slow as the host is at a time."""
    planned = pair_schedule(timing, seconds, 0.05)

    def step_s(alone: float, times: float, company: list[Interval]) -> Callable[[float], float]:
        return lambda now: alone * host(now) * (times if any(start <= now < end for start, end in company) else 1.0)

    spells = []
    for each, times, company, mine in zip(seconds, slower, reversed(planned), planned):
        training = Clockwork(step_s(each, times, company))
        spells.append(work(training, each, mine, training.clock, training.pause))
    return window_rates(planned, *spells)


@pytest.mark.parametrize("seconds", [(0.0005, 0.003), (0.013, 0.002), (0.11, 0.004), (0.31, 0.31)])
def test_slowdowns_are_told_by_what_each_does_alone_and_in_company_within_a_moment(seconds: tuple[float, float]):
    found = looked_at(seconds, (1.8, 1.2), PairTiming(), lambda now: 1.0)
    assert len(found) == 2
    for together, alone in found:
        assert alone == pytest.approx([1 / each for each in seconds], rel=0.02)
        assert [quick / slow for quick, slow in zip(alone, together)] == pytest.approx([1.8, 1.2], rel=0.03)


@pytest.mark.parametrize("slower", [(2.0, 2.0), (1.0, 2.2), (2.2, 1.0)])
@pytest.mark.parametrize("seconds", [(0.002, 0.08), (0.08, 0.002), (0.08, 0.08), (0.03, 0.009), (0.009, 0.03)])
def test_a_long_step_in_company_is_seen_beside_any_other(seconds: tuple[float, float], slower: tuple[float, float]):
    found = looked_at(seconds, slower, PairTiming(), lambda now: 1.0)
    assert len(found) == 2, "turns of equal length make each half as fast, however short the other's steps are"
    for together, alone in found:
        assert [quick / slow for quick, slow in zip(alone, together)] == pytest.approx(slower, rel=0.02)


def test_who_comes_late_was_no_company_until_then():
    planned = pair_schedule(PairTiming(0.1, 0.2, 0.3, repetitions=1), (0.001, 0.001), 0.0)
    (_, both_end), (both_start, ended) = planned.one[0], planned.other[1]
    late = both_start + 0.15
    alone = np.arange(0.0, late, 0.001).tolist()
    mine = WorkInterval(0.0, [*alone, *np.arange(late, both_end, 0.002).tolist()], 3, both_end)
    theirs = WorkInterval(
        late, [*np.arange(late, both_end, 0.002).tolist(), *np.arange(both_end, ended, 0.001).tolist()], 3, ended
    )
    (window,) = window_rates(planned, [mine], [WorkInterval(0.0, [], 3, 0.1), theirs])
    assert window.together == pytest.approx((500, 500))
    assert window.alone == pytest.approx((1000, 1000))


def test_who_pauses_is_company_until_it_has_done_what_it_was_asked():
    planned = pair_schedule(PairTiming(0.1, 0.2, 0.3, repetitions=1), (0.001, 0.001), 0.0)
    (_, both_end), (both_start, ended) = planned.one[0], planned.other[1]
    over = both_end + 0.1
    both, alone = np.arange(both_start, over, 0.002).tolist(), np.arange(over, ended, 0.001).tolist()
    mine = WorkInterval(0.0, [*np.arange(0.0, both_start, 0.001).tolist(), *both], 1, over)
    (window,) = window_rates(
        planned, [mine], [WorkInterval(0.0, [], 1, 0.1), WorkInterval(both_start, [*both, *alone], 1, ended)]
    )
    assert window.alone == pytest.approx((1000, 1000), rel=0.01)


def test_how_long_a_step_takes_is_tried_with_nothing_left_to_do():
    training = Clockwork(lambda now: 0.05 if now < 1.0 else 0.02)
    for _ in range(20):
        training.step()
    assert estimated_step_s(training, training.clock) == pytest.approx(0.02, rel=0.01)


def test_a_host_that_gets_slower_from_one_look_to_the_next_slows_alone_and_company_alike():
    timing = PairTiming(repetitions=3)
    found = looked_at((0.006, 0.012), (1.5, 1.1), timing, lambda now: 1.0 if now < 1.1 else 1.7)
    first, _, last = ([quick / slow for quick, slow in zip(one.alone, one.together)] for one in found)
    assert found[0].alone[0] == pytest.approx(1.7 * found[2].alone[0], rel=0.03)
    assert first == pytest.approx([1.5, 1.1], rel=0.03)
    assert last == pytest.approx([1.5, 1.1], rel=0.03)


def test_both_work_at_the_same_time_and_each_alone_for_as_long_as_asked():
    one, other = pair_schedule(PairTiming(0.1, 0.2, 0.3, repetitions=2), (0.001, 0.002), 5.0)
    assert [moment for span in one for moment in span] == pytest.approx([5.0, 5.608, 5.812, 6.32])
    assert [moment for span in other for moment in span] == pytest.approx([5.0, 5.1, 5.308, 5.812, 6.02, 6.524])
    slow = pair_schedule(PairTiming(0.1, 0.2, 0.3, repetitions=1, steps=5), (0.1, 0.2), 0.0)
    assert [moment for span in slow.other for moment in span] == pytest.approx([0.0, 0.1, 1.4, 4.8])


def test_who_does_too_few_steps_in_a_look_is_not_told_by_it():
    assert rate(WorkInterval(0.0, [1.0, 2.0, 3.0, 4.0], 1, 5.0), (0.5, 4.5)) == pytest.approx(1.0)
    assert rate(WorkInterval(0.0, [1.0, 2.0, 3.0, 4.0], 3, 5.0), (0.5, 4.5)) == 0.0
    assert rate(WorkInterval(0.0, [], 1, 5.0), (0.5, 4.5)) == 0.0
    assert looked_at((0.013, 0.002), (40.0, 1.0), PairTiming(), lambda now: 1.0) == []
