"""What estimation learns: it is journaled, goes into forks, survives switches, and costs nothing where nobody learns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import JournalError
from fairlead.core.job import Job
from fairlead.core.plan import Observations, Rates
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Stages
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import decode, encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.estimators.measured import Measured
from fairlead.estimators.oracle import Oracle
from fairlead.estimators.predicted import Monitored
from fairlead.simulator.backend import SimulatedBackend
from fairlead.testing import cluster
from fairlead.testing.builders import random_jobs, random_table

MACHINE = cluster("v100:2,k80:2")
TABLE = random_table(3, MACHINE.type_names)


@dataclass(frozen=True)
class Counting:
    """Counts the jobs it has met, and wants to be asked again at some seconds."""

    oracle: Oracle
    alarms: tuple[float, ...] = ()
    asked: list[float] = field(default_factory=list)

    def observe(self, view: Snapshot) -> Observations:
        self.asked.append(view.time)
        new = [n for n in (*view.queued.number.tolist(), *view.jobs.number.tolist()) if f"job {n}" not in view.observations]
        rung = [a for a in self.alarms if a <= view.time and f"alarm {a}" not in view.observations]
        facts = {**{f"job {n}": [n] for n in new}, **{f"alarm {a}": view.time for a in rung}}
        return Observations(facts, min((a for a in self.alarms if a > view.time), default=np.inf))

    def rates(self, view: Snapshot) -> Rates:
        assert all(f"job {n}" in view.observations for n in view.jobs.number.tolist()), "rates asked for before the lesson"
        return self.oracle.rates(view)


def running(estimator, jobs, *, round_s: float = 300.0, scheduler=None, **others) -> Loop:
    stages = SchedulerConfig(round_s=round_s).build(TABLE)
    stages = Stages(**{**stages.__dict__, "estimator": estimator})
    loop = Loop(State(MACHINE), SimulatedBackend(MACHINE, TABLE, jobs, **others), stages, journal=MemoryJournal())
    loop.record(ev.JournalOpened(0.0, MACHINE, scheduler or {}))
    return loop


def test_facts_are_recorded_before_the_plan_and_add_up():
    loop = running(Counting(Oracle(TABLE)), random_jobs(1, 12, table=TABLE, largest=2))
    loop.run()
    events = loop.journal.events
    told = [event for event in events if isinstance(event, ev.ObservationsRecorded)]
    assert {name for event in told for name in event.values} == {f"job {n}" for n in range(12)}
    assert sum(len(event.values) for event in told) == 12
    for place, event in enumerate(events):
        if isinstance(event, ev.ObservationsRecorded):
            following = events[place + 1]
            assert isinstance(following, (ev.RoundPlanned, ev.MemoChanged))
            assert following.time == event.time
    assert replay_events(events).observations == loop.state.observations
    assert replay_events(events).digest() == loop.state.digest()


@pytest.mark.parametrize("round_s", [300.0, 0.0])
def test_a_lesson_is_asked_for_again_at_the_second_it_names(round_s):
    counting = Counting(Oracle(TABLE), alarms=(4000.0, 7777.0))
    loop = running(counting, [Job("long", 0.0, 20_000.0)], round_s=round_s)
    loop.run()
    for alarm in counting.alarms:
        rung = loop.state.observations[f"alarm {alarm}"]
        assert alarm <= rung <= alarm + (round_s or 1.0)
    assert len(counting.asked) <= 8  # and not in every round


def test_after_a_launch_there_is_one_more_look():
    counting = Counting(Oracle(TABLE))
    running(counting, [Job("long", 0.0, 20_000.0)]).run()
    assert counting.asked[:2] == [0.0, 300.0]
    assert len(counting.asked) <= 3


def test_a_fork_carries_what_was_learned():
    loop = running(Counting(Oracle(TABLE)), random_jobs(1, 12, table=TABLE, largest=2))
    loop.run(until=9000.0)
    assert loop.state.observations
    view = loop.state.snapshot(loop.backend.now).detached()
    assert view.observations == loop.state.observations
    assert State.from_snapshot(view).observations == loop.state.observations


def test_what_was_learned_stays_whoever_estimates_next():
    state = State(MACHINE)
    online = {"policy": "las", "estimator": "online"}
    apply_event(state, ev.JournalOpened(0.0, MACHINE, online))
    apply_event(state, ev.ObservationsRecorded(1.0, {"a": [1]}))
    apply_event(state, ev.SchedulerSwitched(2.0, {**online, "policy": "srtf"}))
    assert state.observations == {"a": [1]}
    apply_event(state, ev.ObservationsRecorded(3.0, {"b": 2, "a": [3]}))
    assert state.observations == {"a": [3], "b": 2}
    apply_event(state, ev.SchedulerSwitched(4.0, {"policy": "srtf", "estimator": "oracle"}))
    assert state.observations == {"a": [3], "b": 2}, "under its name, and whoever does not know that does not look at it"


@pytest.mark.parametrize(("first", "second"), [("measured", "monitored"), ("monitored", "measured")])
def test_a_switch_between_estimations_of_real_clusters_keeps_what_was_measured(first: str, second: str):
    state = State(MACHINE)
    apply_event(state, ev.JournalOpened(0.0, MACHINE, {"policy": "las", "estimator": first}))
    apply_event(state, ev.JobSubmitted(0.0, 0, Job("one", kind="resnet", steps=100.0)))
    type_name = MACHINE.type_names[0]
    apply_event(state, ev.ObservationsRecorded(1.0, {f"measured 1 × resnet on {type_name}": 7.5}))
    apply_event(state, ev.SchedulerSwitched(2.0, {"policy": "horus", "estimator": second}))
    view = state.snapshot(2.0)
    rates = {"measured": Measured, "monitored": Monitored}[second]().rates(view.with_changes(jobs=view.queued))
    assert rates.alone[rates.row[0], 0] == 7.5


def test_a_snapshot_keeps_what_was_known_at_its_moment():
    state = State(MACHINE)
    apply_event(state, ev.ObservationsRecorded(1.0, {"a": 1}))
    view = state.snapshot()
    apply_event(state, ev.ObservationsRecorded(2.0, {"a": 2}))
    assert view.observations == {"a": 1}


def test_facts_that_are_not_a_mapping_are_damage():
    line = encode(ev.ObservationsRecorded(1.0, {"a": [1, 2.5, "x", {"b": None}]}))
    assert decode(line) == ev.ObservationsRecorded(1.0, {"a": [1, 2.5, "x", {"b": None}]})
    with pytest.raises(JournalError, match="damaged"):
        decode(line.replace(b'{"a":[1,2.5,"x",{"b":null}]}', b"[1]"))


def test_facts_about_a_job_are_forgotten_with_it():
    machine = cluster("v100:4")
    state = State(machine)
    submitted = [ev.JobSubmitted(0.0, number, Job(f"j{number}")) for number in range(3)]
    for event in (ev.JournalOpened(0.0, machine, {}), *submitted):
        apply_event(state, event)
    apply_event(
        state,
        ev.ObservationsRecorded(1.0, {"steps of 0": 1, "loss of 1": 2, "speed of 1": 3, "alarm of 1": 4, "steps of 12": 5}),
    )
    apply_event(state, ev.JobCancelled(2.0, 1))
    assert state.observations == {"steps of 0": 1, "alarm of 1": 4, "steps of 12": 5}
    apply_event(state, ev.ObservationsRecorded(3.0, {"steps of 1": 6, "steps of 2": 7}))  # learned while the job was ending
    assert state.observations == {"steps of 0": 1, "alarm of 1": 4, "steps of 12": 5, "steps of 2": 7}
    assert State.from_snapshot(state.snapshot(3.0).detached()).observations == state.observations
