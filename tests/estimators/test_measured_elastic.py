"""What `measured` learns of elastic jobs, with no table to look anything up in."""

from __future__ import annotations

import math

import numpy as np
import orjson
import pytest

from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.events import Memo
from fairlead.core.job import ELASTIC, Job
from fairlead.core.observations import observation_name
from fairlead.core.plan import TUNED, Launches, RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.engine.decide import decide
from fairlead.engine.state import State
from fairlead.engine.validate import validate_plan
from fairlead.estimators.fitted import Fitted
from fairlead.estimators.measured import Measured
from fairlead.models import goodput
from fairlead.policies.elastic.optimus import Optimus
from fairlead.testing.builders import cluster, random_table
from scenes import state_of

MACHINES = cluster("v100:8")
ONE = np.zeros(1, dtype=np.int64)


def runs(state: State, places: list[int], rate: float, second: float, size: int = 0) -> None:
    """Job 0 is started anew on so many accelerators, and shows how fast it is there."""
    held = np.array(places)
    launch = Launches(ONE, ONE, np.array([0, len(held)]), held, np.array([size]))
    stops = ONE if state.columns["held"][0] else ONE[:0]
    apply_event(state, ev.RoundPlanned(RoundPlan(second, suspended=stops, launches=launch)))
    apply_event(state, ev.ProgressReported(second, ONE, np.array([100.0 * second]), np.array([rate]), np.array([second])))
    observe(state, second + 1)


def observe(state: State, second: float) -> None:
    if facts := Measured().observe(state.snapshot(second)).values:
        apply_event(state, ev.ObservationsRecorded(second, facts))


def tell(state: State, second: float, **values: float) -> None:
    for name, value in values.items():
        apply_event(state, ev.MetricsReported(second, name.replace("__", "."), ONE, np.array([value])))
    observe(state, second)


def scene(*others: Job) -> State:
    return state_of(MACHINES, [Job("a", steps=1e6, kind="m", workers=4, mode=ELASTIC), *others])


def test_a_rate_is_of_the_workers_that_a_job_has_and_not_of_those_it_asked_for():
    state = scene()
    runs(state, [0], 10.0, 1.0)
    assert state.observations["measured 1 × m on v100"] == 10.0
    assert "measured 4 × m on v100" not in state.observations


def test_a_tuned_batch_size_says_nothing_of_the_kind():
    state = scene()
    runs(state, [0], 10.0, 1.0, TUNED)
    assert not any(name.startswith("measured") for name in state.observations)


def test_speeds_at_sizes_that_were_not_seen_follow_from_those_that_were():
    state = scene(Job("rigid", kind="m", workers=2))
    runs(state, [0], 10.0, 1.0)
    runs(state, [0, 1, 2, 3], 32.0, 20.0)
    rates = Measured().rates(state.snapshot(30.0))
    sizes = rates.other_sizes
    assert sizes is not None
    mine, other = rates.row.tolist()
    known = sizes.at([1, 2, 4, 8])[:, mine, 0].tolist()
    assert known[0] == pytest.approx(10.0)
    assert known[2] == pytest.approx(32.0)
    assert known[0] < known[1] < known[2] < known[3] < 80.0
    assert not sizes.at([1, 2, 4])[:, other, 0].any(), "of who is rigid there is nothing to know"


def test_a_job_gets_no_more_workers_than_can_share_its_largest_batch():
    state = scene()
    runs(state, [0], 10.0, 1.0)
    view = state.snapshot(2.0).with_changes(estimate=Measured().rates)
    assert Optimus().select(view, None)[0].workers.tolist() == [8]
    tell(state, 3.0, batch__smallest=32.0, batch__largest=96.0, batch__least_local=32.0, batch__most_local=96.0)
    view = state.snapshot(4.0).with_changes(estimate=Measured().rates)
    assert Optimus().select(view, None)[0].workers.tolist() == [3]


def test_losses_and_steps_of_elastic_jobs_become_models_and_those_of_others_do_not():
    state = scene(Job("rigid", kind="m"))
    apply_event(state, ev.MetricsReported(1.0, "loss", np.arange(2), np.array([2.0, 2.0])))
    runs(state, [0], 10.0, 1.0)
    assert observation_name("loss", 0) in state.observations
    assert observation_name("loss", 1) not in state.observations
    told = {"step__nodes": 1, "step__workers": 1, "step__local_batch": 8, "step__compute_s": 0.1, "step__s": 0.1}
    tell(state, 3.0, **told)
    assert [list(one) for one in state.observations[observation_name("steps", 0)]["seen"]] == [[1, 1, 8, 0.1, 0.1]]


def test_step_times_that_turn_out_otherwise_are_learned_anew():
    """The first that a job tells may be those of a machine that was busy; small differences are not worth an event."""
    state = scene()
    for second, step, kept in ((1.0, 0.4, 0.4), (2.0, 0.42, 0.4), (3.0, 0.2, 0.2)):
        told = {"step__nodes": 1, "step__workers": 2, "step__local_batch": 8, "step__compute_s": 0.1, "step__s": step}
        tell(state, second, **told)
        assert [one[4] for one in state.observations[observation_name("steps", 0)]["seen"]] == [kept]


def test_it_learns_of_elastic_jobs_what_fitted_learns():
    state = scene()
    table = random_table(1, ("v100",))
    apply_event(state, ev.MetricsReported(1.0, "loss", ONE, np.array([2.0])))
    runs(state, [0, 1], 10.0, 1.0)
    other = Fitted(table).observe(state.snapshot(2.0).with_changes(observations={})).values
    assert other == {name: fact for name, fact in state.observations.items() if not name.startswith("measured")}
    assert set(other) == {observation_name("speed", 0), observation_name("loss", 0)}


ODD = (0.0, -1.0, 5e-324, 1e-300, 1e300, -1e300, 2.0**62, 1e15, math.inf, 0.1, 1.0, 2.0, 8.0, 64.0)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("policy", ["optimus", "pollux"])
def test_whatever_nonsense_jobs_tell_others_are_scheduled(policy):
    """What a job reports is its own word. It must not keep anybody else from being scheduled, nor spoil what is learned."""
    rng, stages = np.random.default_rng(5), compose({"policy": policy, "rounds": 1})
    for _ in range(12):
        jobs = [Job(f"odd-{n}", steps=1e4, kind=f"k{n}", mode=ELASTIC) for n in range(3)]
        state = state_of(cluster("v100:4,v100:4"), [*jobs, Job("plain", steps=10.0, kind="m", workers=2)], {0: [0], 1: [4, 5]})
        memo: Memo = None
        for second in range(1, 9):
            for name in (*goodput.REPORTED, "loss"):
                apply_event(state, ev.MetricsReported(float(second), name, np.arange(3), rng.choice(ODD, size=3)))
            held = state.running
            seconds, done = np.full(len(held), float(second)), np.full(len(held), 10.0 * second)
            apply_event(
                state, ev.ProgressReported(float(second), held, done, rng.choice((0.0, 1e-300, 3.0, 1e25), len(held)), seconds)
            )
            view = state.snapshot(second + 0.5)
            plan, memo = decide(view, memo, stages)
            validate_plan(plan, memo, view)
            if plan.observations:
                apply_event(state, ev.ObservationsRecorded(second + 0.5, plan.observations))
            apply_event(state, ev.RoundPlanned(plan))
        assert state.columns["held"][3] == 2
        assert "null" not in orjson.dumps(state.observations).decode().replace('"curve":null', "")


def test_losses_that_are_nobodys_make_no_curve():
    state = scene()
    runs(state, [0], 10.0, 1.0)
    for loss in (1e300, 5e-324, math.inf):
        apply_event(state, ev.MetricsReported(2.0, "loss", ONE, np.array([loss])))
        observe(state, 3.0)
    assert observation_name("loss", 0) not in state.observations
