"""Decisions that take longer than a round, on wall time: people are answered, rounds go on, who runs keeps its place. The slow
part waits for a gate that the test opens, so nothing here depends on how fast the machine is."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from without_agents import PATIENCE_S, Scene

from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.allocation import Allocation
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Placed, Rates, RoundPlan, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Allocated, known_changes_s
from fairlead.engine.apply import apply_event
from fairlead.engine.decide import _learns
from fairlead.engine.state import State
from fairlead.estimators.measured import Measured
from fairlead.estimators.oracle import Oracle
from fairlead.journal.recovery import read_journal
from fairlead.placement.basic import Consolidated
from fairlead.policies.ranking.fifo import Fifo
from fairlead.runtime.control.async_decider import DecisionHealth, TimedPolicy, with_timeout
from fairlead.runtime.control.views import job_record
from fairlead.runtime.host import Host
from fairlead.testing.builders import random_table


@dataclass(frozen=True)
class SlowShares:
    """Equal shares for all, once the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        self.asked.append(view.jobs.number.tolist())
        assert self.gate.wait(PATIENCE_S)
        return Allocation.alone(view.jobs.number, np.full((len(view.jobs), 1), 1.0)), memo


@dataclass(frozen=True)
class Unsolved(SlowShares):
    """No shares for anybody, until the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        if not self.gate.is_set():
            self.asked.append(view.jobs.number.tolist())
            raise SolverError("unsolved", "a time limit")
        return super().allocate(view, memo)


@dataclass(frozen=True)
class SlowFifo:
    """In line, once the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        self.asked.append(view.jobs.number.tolist())
        assert self.gate.wait(PATIENCE_S)
        return Fifo().select(view, memo)


@dataclass(frozen=True)
class SlowPlacement(Consolidated):
    """Consolidated, once the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        self.asked.append(view.jobs.number.tolist())
        assert self.gate.wait(PATIENCE_S)
        return super().place(selection, view)


class SlowEstimation(Measured):
    """Measured, once the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def rates(self, view: Snapshot) -> Rates:
        self.asked.append(view.jobs.number.tolist())
        assert self.gate.wait(PATIENCE_S)
        return super().rates(view)


def test_rounds_go_on_with_the_last_allocation_while_the_next_is_computed(tmp_path):
    scene = Scene(tmp_path, SlowShares)
    loop, asked = scene.plane.loop, SlowShares.asked

    async def story() -> None:
        await scene.submit("first")
        await scene.until(lambda: scene.runs(0))  # an agnostic share: there is no allocation yet
        held = loop.state.device_map.of(0).tolist()
        await scene.submit("second", workers=2)
        await scene.until(lambda: scene.runs(1))
        decisions = loop.decisions
        await scene.until(lambda: loop.decisions > decisions + 2)
        assert asked == [[0]]
        assert (loop.state.device_map.of(0).tolist(), scene.starts(0)) == (held, 1)
        assert loop.state.memo["known"].tolist() == []
        SlowShares.gate.set()
        await scene.until(lambda: loop.state.memo["known"].tolist() == [0, 1])
        assert asked == [[0], [0, 1]]
        assert (loop.state.device_map.of(0).tolist(), scene.starts(0), scene.starts(1)) == (held, 1, 1)

    scene.play(story)


def test_after_a_solver_that_failed_the_last_allocation_stands_and_it_is_asked_again(tmp_path, caplog):
    scene = Scene(tmp_path, Unsolved)
    loop = scene.plane.loop

    async def story() -> None:
        await scene.submit("first")
        await scene.until(lambda: scene.runs(0) and len(Unsolved.asked) > 1)
        assert "allocation failed; running jobs keep their GPUs, and no new job starts" in caplog.text
        Unsolved.gate.set()
        await scene.until(lambda: loop.state.memo["known"].tolist() == [0])

    scene.play(story)
    assert scene.starts(0) == 1


@pytest.mark.parametrize("policy", [SlowShares, SlowFifo])
def test_people_are_answered_while_a_decision_is_made(tmp_path, policy):
    scene = Scene(tmp_path, policy)

    async def story() -> None:
        await scene.submit("first")
        await scene.until(lambda: bool(policy.asked))
        for n in range(20):
            await scene.submit(f"more-{n}")
        assert scene.plane.loop.state.next_number == 21
        assert not policy.gate.is_set()

    scene.play(story)


def test_what_has_been_overtaken_is_not_done_and_what_came_since_is_decided_on_next(tmp_path):
    scene = Scene(tmp_path, SlowPlacement, "placement")
    backend, state = scene.plane.backend, scene.plane.loop.state

    async def story() -> None:
        await scene.submit("cancelled", "stays", "elsewhere", "on-a-node-that-goes")
        await scene.until(lambda: bool(SlowPlacement.asked))
        assert SlowPlacement.asked == [[0, 1, 2, 3]]
        await scene.kept(lambda answered: backend.cancel(0, answered))
        backend.agent_lost(1)
        await scene.submit("late")
        SlowPlacement.gate.set()
        await scene.until(lambda: scene.runs(1) and not scene.runs(3) and len(SlowPlacement.asked) > 1)
        await scene.until(lambda: scene.runs(2))

    scene.play(story)
    assert (scene.starts(0), state.columns["phase"][0]) == (0, Phase.CANCELLED)
    first = next(event.plan for event in read_journal(scene.where) if isinstance(event, ev.RoundPlanned))
    assert (first.admitted.tolist(), first.launches.jobs.tolist()) == ([1, 2, 3], [1])
    assert SlowPlacement.asked[1] == [1, 2, 3, 4]


def test_rounds_go_on_with_the_last_selection_while_a_policy_thinks(tmp_path):
    scene = Scene(tmp_path, SlowFifo)
    loop, backend = scene.plane.loop, scene.plane.backend

    def in_time(rounds: list[tuple[int, int]]) -> bool:
        """Whether fewer rounds were missed than held lately: a machine may be late at times, the policy makes no round late."""
        decisions, missed = rounds[-1]
        if loop.decisions <= decisions + 3:
            return False
        rounds.append((loop.decisions, loop.missed))
        return loop.missed - missed < loop.decisions - decisions

    async def story() -> None:
        SlowFifo.gate.set()
        await scene.submit("first", "second")
        await scene.until(lambda: scene.runs(0) and scene.runs(1))
        asked = len(SlowFifo.asked)
        SlowFifo.gate.clear()
        await scene.submit("third")
        await scene.until(lambda: len(SlowFifo.asked) > asked)
        rounds = [(loop.decisions, loop.missed)]
        await scene.kept(
            lambda answered: backend.drain(int(loop.state.cluster.node_of[loop.state.device_map.of(0)][0]), False, answered)
        )
        await scene.until(lambda: scene.starts(0) == 2)
        await scene.until(lambda: in_time(rounds))
        await scene.until(lambda: scene.plane.decision_health.message == "the policy takes longer than a round")
        assert job_record(loop, 2, backend.now)["reason"]["code"] == "no-decision"
        assert (len(SlowFifo.asked), scene.starts(2)) == (asked + 1, 0)
        await scene.kept(lambda answered: backend.cancel(1, answered))
        SlowFifo.gate.set()
        await scene.until(lambda: scene.runs(2) and not scene.plane.decision_health.message)

    scene.play(story)
    assert (scene.starts(0), scene.starts(1)) == (2, 2)
    assert b'fairlead_decisions_skipped_total{reason="late"}' in scene.plane.metrics.text()


@pytest.mark.parametrize(("stage", "slow"), [("placement", SlowPlacement), ("estimator", SlowEstimation)])
def test_who_runs_and_who_asks_does_not_suffer_from_a_placement_or_an_estimation_of_many_rounds(tmp_path, stage, slow):
    scene = Scene(tmp_path, slow, stage, round_s=1.0)
    plane, loop, backend = scene.plane, scene.plane.loop, scene.plane.backend

    async def story() -> None:
        slow.gate.set()
        await scene.submit("stays", "ends", workers=2)
        await scene.until(lambda: scene.runs(0) and scene.runs(1))
        held = loop.state.device_map.of(0).tolist()
        slow.gate.clear()
        asked = len(slow.asked)
        await scene.submit("next", workers=2)
        await scene.until(lambda: len(slow.asked) > asked)
        before, decisions = loop.missed, loop.decisions
        await scene.until(lambda: loop.missed >= before + 3)
        assert plane.decision_health.message == "a decision takes longer than a round", "people see it while it lasts"
        counted = plane.metrics.text().decode().partition('fairlead_decisions_skipped_total{reason="late"} ')[2]
        assert float(counted.split()[0]) >= 3, "and every round of it is counted"
        await scene.kept(lambda answered: backend.cancel(1, answered))
        await scene.submit("late")
        assert (scene.runs(0), loop.state.device_map.of(0).tolist(), scene.starts(0)) == (True, held, 1)
        assert not scene.runs(1)
        assert loop.decisions == decisions
        slow.gate.set()
        await scene.until(lambda: scene.runs(2) and not plane.decision_health.message)
        assert (scene.runs(0), scene.starts(0), scene.starts(2)) == (True, 1, 1)

    scene.play(story)


class EmptyPlan:
    """Selects job 0 once, then fails; its plan has no job."""

    def __init__(self) -> None:
        self._selected = False

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if self._selected:
            raise SolverError("plan", "late")
        self._selected = True
        return Selection(np.array([0]), np.array([0]), np.array([1])), {"plan": []}

    def interim_selection(self, view: Snapshot, memo: Memo) -> Selection:
        return Selection.empty()


def test_an_empty_plan_is_followed_while_its_policy_fails() -> None:
    state = State(Cluster.parse("2xv100:2"))
    for number in range(2):
        apply_event(state, ev.JobSubmitted(0.0, number, Job(f"job-{number}", steps=10.0)))
    apply_event(state, ev.RoundPlanned(RoundPlan(1.0, admitted=np.array([0, 1]))))
    health, view = DecisionHealth(), state.snapshot(1.0)
    policy = TimedPolicy(EmptyPlan(), PATIENCE_S, health, Host())
    with health.track():
        first, memo = policy.select(view, None)
    with health.track():
        second, _ = policy.select(view, memo)
    assert (first.jobs.tolist(), second.jobs.tolist()) == ([0], [])


def test_an_estimator_that_learns_still_does_with_a_timeout() -> None:
    stages = compose({"policy": "fifo", "rounds": 1.0, "estimator": "measured"})
    assert _learns(type(with_timeout(stages, DecisionHealth(), Host()).estimator))
    other = replace(stages, estimator=Oracle(random_table(0, ("v100",))))
    assert not _learns(type(with_timeout(other, DecisionHealth(), Host()).estimator))


def test_a_cost_policy_still_follows_changing_prices_with_a_timeout() -> None:
    known = AcceleratorType("v100", price_per_hour=2.0, price_changes=((60.0, 1.0),))
    view = State(Cluster((Node("n", "v100", 1),), (known,))).snapshot(0.0)
    for policy, changes in (("min-cost-slo", [60.0]), ("max-min-fairness", [])):
        stages = with_timeout(compose({"policy": policy, "rounds": 1.0}), DecisionHealth(), Host())
        assert isinstance(stages.policy, Allocated)
        assert list(known_changes_s(stages.policy.allocator, view)) == changes


def test_another_scheduler_is_rid_of_a_placement_that_never_answers(tmp_path):
    scene = Scene(tmp_path, SlowPlacement, "placement")
    plane = scene.plane

    async def story() -> None:
        await scene.submit("waits")
        await scene.until(lambda: plane.loop.missed > 0)
        await scene.kept(
            lambda answered: plane.switch({**plane.scheduler_in_use, "placement": "consolidated"}, "a test", answered)
        )
        await scene.until(lambda: scene.runs(0))
        assert not SlowPlacement.gate.is_set()

    scene.play(story)
