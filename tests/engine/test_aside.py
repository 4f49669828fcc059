"""Decisions that are made beside the loop: begun ahead of their round, overtaken by what happens, dropped by a switch. Time is
a list of what happens at which second."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Node
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Code, Reasons
from fairlead.engine.apply import replay_events
from fairlead.engine.explain import why_in, why_not_running
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Decision, Loop
from fairlead.engine.state import State
from fairlead.workloads.throughput_tables import ThroughputTable

CLUSTER = Cluster.parse("2xv100:1")
ROUND = 10.0


@dataclass
class Tape:
    """A backend on which everything that happens is known, and jobs go on for ever."""

    happens: list[ev.Event]
    now: float = 0.0
    ready: float = math.inf  # when the decision that is being made will be there
    exhausted: bool = False

    def wait(self, until: float, grain: float) -> Sequence[ev.Event]:
        following = self.happens[0].time if self.happens else math.inf
        self.now = max(self.now, min(until, following, self.ready))
        self.ready = math.inf if self.now >= self.ready else self.ready
        self.exhausted = self.now == math.inf
        happened = [event for event in self.happens if event.time <= self.now]
        del self.happens[: len(happened)]
        return happened

    def submit(self, plan: RoundPlan) -> Sequence[ev.Event]:
        return ()


@dataclass
class Slowly:
    """Decisions take so many seconds."""

    tape: Tape
    takes_s: float
    lead_s: float = 0.0
    begun: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)  # that began meanwhile

    def late(self) -> None:
        self.rounds.append(self.tape.now)

    def begin(self, decision: Callable[[], Decision]) -> Callable[[], Decision | None]:
        self.begun.append(self.tape.now)
        self.tape.ready = ready = self.tape.now + self.takes_s

        return lambda: None if self.tape.now < ready else decision()


def played(
    *happens: ev.Event,
    takes_s: float,
    lead_s: float = 0.0,
    policy: str = "fifo",
    until: float = 100.0,
    estimator: str = "oracle",
) -> tuple[Loop, Slowly]:
    table, tape = ThroughputTable.timed(CLUSTER.type_names), Tape(sorted(happens, key=lambda event: event.time))

    def compose(data):
        return SchedulerConfig.from_data(data).build(table)

    scheduler = {"policy": policy, "rounds": ROUND, "estimator": estimator}
    loop = Loop(State(CLUSTER), tape, compose(scheduler), journal=MemoryJournal(), allow_stalls=True, compose=compose)
    loop.decision_runner = Slowly(tape, takes_s, lead_s)
    loop.record(ev.JournalOpened(0.0, CLUSTER, scheduler))
    loop.run(until=until)
    assert replay_events(loop.journal).digest() == loop.state.digest()
    return loop, loop.decision_runner


def submitted(second: float, number: int, workers: int = 1) -> ev.JobSubmitted:
    return ev.JobSubmitted(second, number, Job(f"j{number}", workers=workers, submitted_s=second))


def started(loop: Loop) -> dict[int, float]:
    columns = loop.state.all_jobs()
    found = zip(columns.number.tolist(), columns.first_started_s.tolist())
    return {number: second for number, second in found if not np.isnan(second)}


def test_a_decision_is_begun_ahead_and_carried_out_at_the_rounds_start():
    loop, aside = played(submitted(3.0, 0), submitted(25.0, 1), takes_s=3.0, lead_s=4.0)
    assert aside.begun[1:3] == [6.0, 26.0]
    assert started(loop) == {0: 10.0, 1: 30.0}
    assert loop.missed == 0


def test_a_decision_that_a_new_gpu_type_overtakes_is_dropped_with_its_memo():
    added = ev.NodeAdded(8.0, 2, Node("h100-2", "h100", 1)), ev.NodeRepaired(8.0, 2)
    loop, aside = played(submitted(3.0, 0), *added, takes_s=3.0, lead_s=4.0, policy="max-min-fairness", estimator="measured")
    assert aside.begun[1:3] == [6.0, 8.0]
    assert started(loop) == {0: 11.0}
    plans = [event for event in loop.journal.events if isinstance(event, (ev.MemoChanged, ev.RoundPlanned))]
    assert min(event.time for event in plans if event.time > 3.0) == 11.0, "none of the two is from the first decision"


def test_who_comes_while_a_decision_is_made_is_in_the_next():
    loop, _ = played(submitted(3.0, 0), submitted(8.0, 1), takes_s=3.0, lead_s=4.0)
    assert started(loop) == {0: 10.0, 1: 20.0}


def test_who_waits_for_a_decision_is_told_when_it_will_be_made():
    loop, _ = played(submitted(3.0, 0), takes_s=0.0, until=4.5)
    told = why_in(loop, 0, 4.5)
    assert (told.code, told.text) == (Code.NEXT_DECISION, "Waiting for the next decision, in 6 s")


def test_who_comes_while_a_decision_is_made_is_told_of_the_one_after_it(monkeypatch):
    told, record_all = [], Loop._record_all

    def heard(loop, happened):
        record_all(loop, happened)
        if any(event.time == 8.0 for event in happened):
            told.extend((loop.latest_decision_s(since_s, 8.0), loop.latest_decision_s(since_s, 11.0)) for since_s in (3.0, 8.0))

    monkeypatch.setattr(Loop, "_record_all", heard)
    played(submitted(3.0, 0), submitted(8.0, 1), takes_s=3.0, lead_s=4.0)
    assert told == [(10.0, math.inf), (20.0, 20.0)]


def test_who_comes_back_after_a_decision_was_begun_ahead_of_its_round_was_not_seen_by_it():
    interrupted = ev.JobsInterrupted(18.0, np.array([0]), np.array([0.0]))
    loop, _ = played(submitted(3.0, 0), submitted(4.0, 1), submitted(12.0, 2), interrupted, takes_s=3.0, lead_s=4.0, until=20.5)
    assert loop.plan.time == 20.0
    assert why_not_running(loop.state, loop.plan, 0, 20.5) == Reasons.next_decision()
    assert why_not_running(loop.state, loop.plan, 2, 20.5) != Reasons.next_decision()


def test_what_happens_is_recorded_while_a_decision_takes_rounds_and_these_are_counted():
    loop, aside = played(submitted(3.0, 0), submitted(20.0, 1), ev.JobCancelled(21.0, 0), takes_s=25.0)
    recorded = [(type(event).__name__, event.time) for event in loop.journal]
    assert ("JobSubmitted", 20.0) in recorded
    assert ("JobCancelled", 21.0) in recorded
    assert 0 not in started(loop), "it was cancelled before its plan was there"
    assert 1 in started(loop)
    assert loop.missed >= 2
    assert aside.rounds[:2] == [10.0, 20.0], "people are told while it lasts"


def test_a_launch_on_a_node_that_has_gone_is_left_out_and_made_elsewhere():
    lost = ev.NodeLost(12.0, 0)
    loop, _ = played(submitted(3.0, 0), submitted(3.5, 1), lost, takes_s=4.0)
    plans = [event.plan for event in loop.journal if isinstance(event, ev.RoundPlanned)]
    assert [number for plan in plans for number in plan.launches.jobs.tolist()] == [1]
    assert loop.state.device_map.of(1).tolist() == [1]


def test_a_switch_drops_the_decision_of_the_old_scheduler():
    switch = ev.SchedulerSwitched(12.0, {"policy": "largest-first", "rounds": ROUND})
    loop, aside = played(submitted(3.0, 0), submitted(4.0, 1, workers=2), switch, takes_s=4.0)
    assert started(loop) == {1: 24.0}, "the wide one, which the new scheduler prefers"
    assert aside.begun[1:3] == [10.0, 20.0]
