"""Estimates from other kinds of jobs, and from what was seen."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import CLUSTER, changed, families, known, learned, waiting

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.stages import LearningEstimator, Stages
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.estimators.online import Online
from fairlead.estimators.oracle import Oracle
from fairlead.estimators.profiled import Profiled
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.testing.contracts import InPairs

TABLE = families()


def started(state: State, jobs, places, rates, since, time=0.0) -> None:
    """Jobs are let in and started on accelerators of the cluster."""
    numbers = np.array(jobs)
    offsets = np.concatenate(([0], np.cumsum([len(p) for p in places])))
    flat = np.concatenate([np.array(p) for p in places])
    types = CLUSTER.type_of[[p[0] for p in places]]
    admitted = numbers[state.columns["phase"][numbers] == 0]
    apply_event(state, ev.RoundPlanned(RoundPlan(time, admitted=admitted, launches=Launches(numbers, types, offsets, flat))))
    zeros = np.zeros(len(numbers))
    apply_event(state, ev.ProgressReported(time, numbers, zeros, np.array(rates, dtype=float), zeros + since))


def test_it_learns_and_the_oracle_does_not():
    assert isinstance(Online(TABLE), LearningEstimator)
    assert not isinstance(Oracle(TABLE), LearningEstimator)


def test_before_anything_was_seen_a_job_is_like_the_others_in_the_mean():
    state = waiting(Job("a", 0.0, 100.0, "1-0"))
    rates = known(Online(TABLE), state)
    others = [row for row, (kind, w) in enumerate(TABLE.keys) if kind and kind != "1-0" and w == 1]
    np.testing.assert_allclose(rates.of_jobs[0], np.exp(np.log(TABLE.alone[others]).mean(axis=0)))
    assert (rates.uncertainty[rates.row] > 0.3).all()


def test_speeds_and_company_can_be_guessed():
    state = waiting(Job("a", 0.0, 100.0, "1-0"), Job("b", 0.0, 100.0, "2-0"), Job("timed"))
    rates = known(Online(TABLE, speeds={"v100": 4.0, "p100": 2.0, "k80": 1.0}, colocated=0.7), state)
    a, b, timed = rates.row
    assert rates.alone[a, 0] / rates.alone[a, 2] == pytest.approx(4.0)
    np.testing.assert_allclose(rates.paired[a, b], 0.7 * rates.alone[a])
    np.testing.assert_array_equal(rates.alone[timed], np.ones(3))
    np.testing.assert_array_equal(rates.uncertainty[timed], np.zeros(3))


def test_what_was_seen_on_one_type_tells_the_level_on_the_others():
    state = waiting(Job("a", 0.0, 1e6, "1-0"))
    online = Online(TABLE, speeds={"v100": 4.0, "p100": 2.0, "k80": 1.0})
    started(state, [0], [[8]], [3.0], 0.0)  # on p100
    rates = known(online, state, at=300.0)
    np.testing.assert_allclose(rates.of_jobs[0], [6.0, 3.0, 1.5])
    assert rates.uncertainty[rates.row[0], 1] == 0.0
    assert rates.uncertainty[rates.row[0], 0] > 0.0


def test_a_job_that_still_loads_tells_nothing_and_the_lesson_says_until_when():
    state = waiting(Job("a", 0.0, 1e6, "1-0"))
    started(state, [0], [[0]], [3.0], 400.0)
    _, lesson = learned(Online(TABLE), state, at=300.0)
    assert not lesson.values
    assert lesson.valid_until == 400.0
    _, lesson = learned(Online(TABLE), state, at=600.0)
    assert list(lesson.values) == ["rate 1-0|1 on v100"]
    assert lesson.valid_until == np.inf
    _, lesson = learned(Online(TABLE), state, at=900.0)
    assert not lesson.values


def test_gangs_are_seen_where_they_stand_on_few_nodes_and_where_they_are_spread():
    state = waiting(Job("near", 0.0, 1e6, "1-0", 2), Job("far", 0.0, 1e6, "1-0", 2))
    started(state, [0, 1], [[0, 1], [2, 4]], [5.0, 3.5], 0.0)
    rates = known(Online(TABLE), state, at=300.0)
    row = rates.row[0]
    assert (rates.alone[row, 0], rates.spread[row, 0]) == (5.0, 3.5)


@pytest.mark.parametrize("estimator", [Online(TABLE), Profiled(TABLE, alone="profiled", share=1.0)], ids=["online", "profiled"])
def test_who_was_seen_on_few_nodes_only_is_not_known_on_more(estimator):
    near = waiting(Job("near", 0.0, 1e6, "1-0", 2))
    started(near, [0], [[0, 1]], [5.0], 0.0)
    far = waiting(Job("far", 0.0, 1e6, "1-0", 2))
    started(far, [0], [[2, 4]], [3.5], 0.0)
    only_near, only_far = (known(estimator, state, at=300.0) for state in (near, far))
    at = (only_near.row[0], 0)
    assert only_near.uncertainty[at] < 0.1 < only_near.spread_uncertainty[at]
    assert only_far.spread_uncertainty[at] < 0.1


def test_pairs_are_seen_in_company_and_three_on_an_accelerator_tell_nothing():
    jobs = [Job(f"j{n}", 0.0, 1e6, kind) for n, kind in enumerate(("0-0", "1-0", "2-0", "2-1", "3-0"))]
    state = waiting(*jobs)
    started(state, [0, 1, 2, 3, 4], [[0], [0], [1], [1], [1]], [1.0, 2.0, 3.0, 4.0, 5.0], 0.0)
    _, lesson = learned(Online(TABLE), state, at=300.0)
    assert set(lesson.values) == {"rate 0-0|1 beside 1-0|1 on v100", "rate 1-0|1 beside 0-0|1 on v100"}
    rates = known(Online(TABLE), state, at=300.0)
    a, b = rates.row[:2]
    assert (rates.paired[a, b, 0], rates.paired[b, a, 0]) == (1.0, 2.0)
    assert rates.paired_uncertainty[a, b, 0] == 0.0


def test_who_runs_at_another_size_than_asked_tells_nothing():
    state = waiting(Job("a", 0.0, 1e6, "1-0", 2))
    started(state, [0], [[0]], [3.0], 0.0)
    _, lesson = learned(Online(TABLE), state, at=300.0)
    assert not lesson.values


def test_noisy_measurements_are_averaged_over_stretches():
    online = Online(TABLE, noise=0.2, measurements=400)
    jobs = [Job(f"j{n}", 0.0, 1e6, "1-0") for n in range(8)]
    state = waiting(*jobs)
    time = 0.0
    started(state, range(8), [[n] for n in range(8)], [2.0] * 8, 0.0)
    for _ in range(50):
        time += 300.0
        known(online, state, at=time)
        before = dict(state.observations)
        known(online, state, at=time + 100.0)
        assert state.observations == before, "the same stretch was measured twice"
        at = time + 100.0
        apply_event(state, ev.ProgressReported(at, np.arange(8), np.zeros(8), np.full(8, 2.0), np.full(8, at)))
    rates = known(online, state, at=time + 300.0)
    row = rates.row[0]
    assert len(state.observations["rate 1-0|1 on v100"]["seen"]) == 400
    assert rates.alone[row, 0] == pytest.approx(2.0, rel=0.05)
    assert rates.uncertainty[row, 0] == pytest.approx(0.01)


def test_arrays_stay_the_same_objects_until_something_is_learned():
    state, online = waiting(Job("a", 0.0, 1e6, "1-0")), Online(TABLE)
    started(state, [0], [[0]], [3.0], 0.0)
    first, second = known(online, state, at=300.0), known(online, state, at=600.0)
    assert first.alone is second.alone
    assert first.paired is second.paired
    assert not first.alone.flags.writeable
    started_again = first.alone.copy()
    apply_event(state, ev.RoundPlanned(RoundPlan(700.0, suspended=np.array([0]))))
    started(state, [0], [[8]], [1.0], 700.0, 700.0)
    third = known(online, state, at=900.0)
    assert third.alone is not first.alone
    np.testing.assert_array_equal(first.alone, started_again)


def test_nothing_that_was_not_seen_is_known():
    """The rates of a kind of its own are changed in the world: until it has run, its estimates are the same."""
    mine = [row for row, (kind, _) in enumerate(TABLE.keys) if kind == "1-0"]
    alone, spread, paired = TABLE.alone.copy(), TABLE.spread.copy(), TABLE.paired.copy()
    for array in (alone, spread, paired):
        array[mine] *= 7.0
    state = waiting(Job("a", 0.0, 1e6, "1-0"), Job("b", 0.0, 1e6, "1-0", 2))
    started(state, [0], [[0]], [3.0], 0.0)
    here, there = (known(Online(t), state, 300.0) for t in (TABLE, changed(TABLE, alone=alone, spread=spread, paired=paired)))
    for name in ("alone", "spread", "paired", "uncertainty"):
        np.testing.assert_array_equal(getattr(here, name)[mine], getattr(there, name)[mine])


def test_estimates_come_to_the_truth_as_jobs_run():
    """All kinds, many times, alone and in pairs: what has run is known, and what is known is true."""
    rng = np.random.default_rng(3)
    kinds = list(TABLE.kinds)
    jobs = [
        Job(f"j{n}", float(n * 200), 1e4 * float(rng.uniform(0.2, 1.0)), str(rng.choice(kinds)), int(rng.choice([1, 1, 2])))
        for n in range(300)
    ]
    online = Online(TABLE)
    standard = SchedulerConfig().build(TABLE)
    for policy in (standard.policy, InPairs()):
        stages = Stages(**{**standard.__dict__, "estimator": online, "policy": policy})
        journal = MemoryJournal()
        loop = Loop(
            State(CLUSTER), SimulatedBackend(CLUSTER, TABLE, jobs, costs=Costs(restart_s=20.0)), stages, journal=journal
        )
        loop.record(ev.JournalOpened(0.0, CLUSTER, {}))
        loop.run(until=1000.0)
        before = _errors(online, loop)
        loop.run()
        after = _errors(online, loop)
        assert after[0] < 0.3 * before[0]
        assert after[1] == pytest.approx(0.0, abs=1e-12)
        assert replay_events(journal.events).observations == loop.state.observations
        assert replay_events(journal.events).digest() == loop.state.digest()


def _errors(online: Online, loop: Loop) -> tuple[float, float]:
    """The mean relative error of rates alone, and the largest among combinations that were seen."""
    rates = online.rates(loop.state.snapshot(loop.backend.now))
    rows = slice(1, None)
    off = np.abs(rates.alone - TABLE.alone)[rows] / TABLE.alone[rows]
    seen = [0.0]
    for fact in loop.state.observations.values():
        row, on = TABLE.row(*fact["of"]), TABLE.types.index(fact["on"])
        true = TABLE.spread[row, on] if fact.get("spread") else TABLE.alone[row, on]
        if "beside" in fact:
            true = TABLE.paired[row, TABLE.row(*fact["beside"]), on]
        seen.append(abs(fact["seen"][0][2] - true) / true)
    return float(off.mean()), max(seen)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise", 1.5),
        ("measurements", 0),
        ("colocated", 0.0),
        ("speeds", {"v100": -1.0}),
        ("references", 0.0),
        ("references", 1.5),
        ("references", ()),
    ],
)
def test_wrong_parameters_are_told_by_name(field, value):
    with pytest.raises(InputError, match=field):
        Online(TABLE, **{field: value})


def test_an_unknown_reference_is_told():
    with pytest.raises(InputError, match="no such kind"):
        known(Online(TABLE, references=("no such kind",)), waiting(Job("a", 0.0, 1.0, "1-0")))
