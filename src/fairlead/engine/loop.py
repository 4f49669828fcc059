"""The only loop there is. It waits for what happens, records it, decides, records the decision, and has it carried out. Whether
time is virtual or real, and whether jobs are processes or numbers, is the backend's business."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from fairlead.core.errors import FairleadError
from fairlead.core.events import (
    Event,
    JobsFailed,
    JobsInterrupted,
    Memo,
    MemoChanged,
    MetricsReported,
    ObservationsRecorded,
    RoundPlanned,
    SchedulerSwitched,
)
from fairlead.core.plan import RoundPlan, boundary_after, boundary_at
from fairlead.core.reasons import Reason
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Backend, Stages
from fairlead.engine.decide import decide
from fairlead.engine.journal import Journal, NoJournal
from fairlead.engine.state import State
from fairlead.engine.validate import no_op_plan, revalidate_plan, validate_launches, validate_plan

STALLED_AFTER = 20_000
"""So many decisions without a step of progress: this run would not end."""

LEAST_STEP_S = 1.0
"""Without rounds, decisions that no event asks for are at least so far apart; else two jobs that take turns would never end."""


class Stalled(FairleadError):
    """Decisions go on, and no job makes progress."""


Decision: TypeAlias = tuple[RoundPlan, Memo]


class DecisionRunner(Protocol):
    """Where decisions are made while the loop goes on listening: for wall time, which does not wait for them."""

    @property
    def lead_s(self) -> float:
        """So long before a round's start its decision is begun."""
        ...

    def begin(self, decision: Callable[[], Decision]) -> Callable[[], Decision | None]:
        """What is returned gives the decision once it is made, or raises what a stage raised; when it is there, the backend's
        `wait` returns."""
        ...

    def late(self) -> None:
        """A round begins, and the decision of an earlier one is still being made."""
        ...

    def failed(self, problem: Exception) -> Reason:
        """A decision could not be made: what people are told. There is another try in the next round."""
        ...


@dataclass
class Loop:
    """A scheduler at work. `run()` goes until nothing is left to do, or until `stop` says so."""

    state: State
    backend: Backend
    stages: Stages
    journal: Journal = field(default_factory=NoJournal)
    skip_quiet_rounds: bool = True
    allow_stalls: bool = False  # never give up on jobs that make no progress; for real ones
    compose: Callable[[Mapping[str, Any]], Stages] | None = None  # makes the stages of a switched scheduler
    stopwatch: Callable[[], float] = lambda: 0.0
    on_decision: Callable[[RoundPlan], None] | None = None  # for progress bars and tests; it may look, not touch
    async_decider: DecisionRunner | None = None  # None: a decision is made at its moment, and nothing happens until it is

    decisions: int = 0
    rounds: int = 0  # that have passed, skipped ones included; without rounds, decisions
    decide_s: float = 0.0
    missed: int = 0  # rounds that began while the decision of an earlier one was still being made
    plan: RoundPlan | None = None  # the last one
    _last_round: float | None = None
    _wake_s: float = -math.inf  # when a decision is due, whatever happens or not; at first, at the first boundary
    _making: tuple[float, float] | None = None  # of a decision that is being made beside it: what it saw, and for which moment
    _furthest: tuple[int, int, float] = (0, 0, -1.0)
    _furthest_at: int = 0
    _last_mark: tuple[int, int, float] = (0, 0, -1.0)
    _progress_at: int = 0

    def run(self, until: float = math.inf, stop: Callable[[State], bool] | None = None) -> None:
        """Until nothing is left to do, or up to a second, or until `stop` says so; it can go on later from there."""
        if self._wake_s == -math.inf:
            self._wake_s = boundary_at(self.backend.now, self.stages.round_s)
        while self.state.busy or not self.backend.exhausted:
            # 1. What happened: up to the next decision that is due in any case, or, after an event, to the next round.
            due = self._wake_s if self.async_decider is None else self._wake_s - self._lead_s(self.async_decider)
            happened = self.backend.wait(min(due, until), self.stages.round_s)
            if happened:
                self._hear(happened)
            if stop is not None and stop(self.state):
                return
            now = self.backend.now
            if happened:  # whatever happened is decided on at the next boundary, which may be now
                self._wake_s = min(self._wake_s, boundary_at(now, self.stages.round_s))
                due = self._wake_s if self.async_decider is None else self._wake_s - self._lead_s(self.async_decider)
            if now < due:
                if now >= until or (self.backend.exhausted and self._wake_s == math.inf):
                    return
                continue
            # 2. Decide, 3. record, 4. carry out.
            plan = self.step() if self.async_decider is None else self._step_aside(self.async_decider)
            if plan is None:
                continue
            # 5. When to look again at the latest.
            self._wake_s = self._next_look(plan)
            if self.decisions % 1000 == 0 and not self.allow_stalls:
                self._watch_progress()
            if self._wake_s == math.inf and not plan.changes and self.backend.exhausted:
                return
            if now >= until:
                return

    def decides_s(self, since_s: float, now: float) -> float:
        """When a job that has waited since a second will be in a decision at the latest; infinity where that is not known, such
        as where the decision takes longer than it should, or only an event asks for one."""
        due = self._wake_s
        if self._making is not None:
            snapshot_s, moment = self._making
            due = moment if since_s <= snapshot_s else self._round_after(moment)
        return due if due > now else math.inf

    def may_decide_s(self, since_s: float, now: float) -> float:
        """The soonest that can be: an event is decided on at the next round. Infinity where that is not known."""
        sure, length = self.decides_s(since_s, now), self.stages.round_s
        if self._making is not None:
            return sure
        return min(sure, boundary_after(now, length)) if length else math.inf

    def _watch_progress(self) -> None:
        """Turns shorter than what a start costs, or faults faster than work, would go on for ever without progress."""
        state, now = self.state, self.decisions
        ended = state.next_number - len(state.live) - len(state.queue)
        mark = (state.next_number, ended, float(state.snapshot(self.backend.now).jobs.steps_done.sum()))
        if mark > self._furthest:
            self._furthest, self._furthest_at = mark, now
        if mark > self._last_mark or not state.busy:  # work that is done again after a fault is progress too, for a while
            self._progress_at = now
        self._last_mark = mark
        if now - self._progress_at >= STALLED_AFTER or (state.busy and now - self._furthest_at >= 50 * STALLED_AFTER):
            raise Stalled(
                f"no progress in {STALLED_AFTER:,} decisions up to second {self.backend.now:g}, {len(state.live)} jobs alive: "
                "do starts and saves cost more than a round (`first_step_s` leaves who starts alone), do nodes fail faster "
                "than jobs save, or does the policy start no job?"
            )

    def step(self) -> RoundPlan:
        """One decision at the backend's present moment."""
        view = self._view(self.backend.now)
        plan, memo = self._decide(view, self.state.memo, self.stages)
        if len(plan.launches):
            validate_launches(plan, view, self.stages)
        return self._act(plan, memo)

    def _step_aside(self, aside: DecisionRunner) -> RoundPlan | None:
        """One decision for the start of a round, made elsewhere. What happens meanwhile is recorded; of the plan, what it has
        made impossible is left out. Where a stage fails, nothing changes. None where the decision is no longer wanted."""
        snapshot_s, stages, memo = self.backend.now, self.stages, self.state.memo
        moment = max(snapshot_s, self._wake_s)
        view = self._view(moment).detached()
        made, overtaken = aside.begin(lambda: self._sound(view, memo, stages)), False
        self._making = snapshot_s, moment
        decision: Decision | None = None
        missed = 0
        while True:
            try:
                decision = decision or made()
            except Exception as problem:  # whatever a plug-in may raise
                decision = no_op_plan(view, aside.failed(problem)), memo
            if (begun := self._rounds_since(moment)) > missed:
                self.missed, missed = self.missed + begun - missed, begun
                if decision is None:
                    aside.late()
            if decision is not None and self.backend.now >= moment:
                break
            happened = self.backend.wait(moment if decision is not None else self._round_after(moment), 0.0)
            self._hear(happened)
            if self.stages is not stages or self.backend.exhausted:
                self._making = None
                return None
            overtaken = overtaken or bool(happened)
        self._making = None
        now = self.backend.now
        plan, left = decision
        plan = revalidate_plan(replace(plan, snapshot_s=snapshot_s), self.state.snapshot(now))
        if overtaken:  # what happened is not in the view, so there is another look, whatever the policy promised
            plan = replace(plan, valid_until=now)
        return self._act(plan, left)

    def _rounds_since(self, moment: float) -> int:
        """How many have begun since the round that began then."""
        length = self.stages.round_s
        return max(0, int((self.backend.now - moment) / length)) if length else 0

    def _round_after(self, moment: float) -> float:
        length = self.stages.round_s
        return moment + length * (self._rounds_since(moment) + 1) if length else math.inf

    def _view(self, moment: float) -> Snapshot:
        stages = self.stages
        return self.state.snapshot(
            moment,
            run_to_completion=stages.run_to_completion,
            first_step_s=stages.first_step_s,
            round_s=stages.round_s,
        )

    def _decide(self, view: Snapshot, memo: Memo, stages: Stages) -> Decision:
        began = self.stopwatch()
        decision = decide(view, memo, stages)
        self.decide_s += self.stopwatch() - began
        return decision

    def _sound(self, view: Snapshot, memo: Memo, stages: Stages) -> Decision:
        """A decision that can be carried out and kept: raises before anything of it is."""
        plan, left = decision = self._decide(view, memo, stages)
        validate_plan(plan, None if left is memo else left, view, stages)
        return decision

    def _act(self, plan: RoundPlan, memo: Memo) -> RoundPlan:
        """A decision is recorded, then carried out."""
        self.decisions += 1
        self._count_rounds()
        if plan.observations:
            self.record(ObservationsRecorded(plan.time, plan.observations))
        if memo is not self.state.memo:
            self.record(MemoChanged(plan.time, memo))
        if plan.changes:
            self.record(RoundPlanned(plan))
            self.journal.commit()  # nothing acts on a plan that could be forgotten
            for event in self.backend.submit(plan):
                self.record(event)
                # What jobs say as they start, and who fell over at once, is there to be seen at the next look.
                if isinstance(event, (MetricsReported, JobsInterrupted, JobsFailed)):
                    plan = replace(plan, valid_until=plan.time, revisit=plan.time)
        self.plan = plan
        if self.on_decision is not None:
            self.on_decision(plan)
        return plan

    def _hear(self, happened: Sequence[Event]) -> None:
        for event in happened:
            self.record(event)
        if happened:
            self.journal.commit()  # that the backend is asked to wait again says that this is kept

    def record(self, event: Event) -> None:
        """Into the journal first, then into the state."""
        self.journal.append(event)
        self.state.apply(event)
        if isinstance(event, SchedulerSwitched):
            if self.compose is None:
                raise FairleadError("a scheduler switch needs a way to compose the new one; give the loop `compose`")
            self.stages = self.compose(event.scheduler)
            self._wake_s = boundary_at(self.backend.now, self.stages.round_s)

    def _count_rounds(self) -> None:
        length = self.stages.round_s
        if length == 0 or self._last_round is None:
            self.rounds += 1
        else:
            self.rounds += round((self.backend.now - self._last_round) / length)
        self._last_round = self.backend.now

    def _lead_s(self, aside: DecisionRunner) -> float:
        return min(aside.lead_s, self.stages.round_s / 2)

    def _next_look(self, plan: RoundPlan) -> float:
        now, length = self.backend.now, self.stages.round_s
        holds = plan.valid_until
        if length == 0:  # at every event; in between only where the policy names a second, and then just behind it
            second = plan.revisit if holds is None else holds
            return math.inf if second == math.inf else max(second + 1e-6, now + LEAST_STEP_S)
        following = boundary_after(now, length)
        if holds is None or not self.skip_quiet_rounds:
            return following
        return max(following, boundary_at(holds, length))
