"""The scheduling loop: wait for events, record them, decide, record the decision, carry it out. The backend determines whether
time is virtual or real, and whether jobs are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from fairlead.core.errors import FairleadError
from fairlead.core.events import (
    Event,
    ForecastsRecorded,
    JobsFailed,
    JobsInterrupted,
    Memo,
    MemoChanged,
    MetricsReported,
    ObservationsRecorded,
    RoundPlanned,
    SchedulerSwitched,
    SlowdownExceeded,
)
from fairlead.core.plan import RoundPlan, boundary_after, boundary_at, decision_at
from fairlead.core.reasons import Reason
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Backend, Stages
from fairlead.engine.apply import apply_event
from fairlead.engine.decide import decide
from fairlead.engine.journal import Journal, NoJournal
from fairlead.engine.state import State
from fairlead.engine.validate import no_op_plan, revalidate_plan, validate_launches, validate_plan

STALLED_AFTER = 20_000
"""After this many decisions without a step of progress a run is stopped: it would not end."""

MIN_DECISION_INTERVAL_S = 1.0
"""Without rounds, decisions that no event causes are at least this far apart; else two jobs that take turns would never end."""


class Stalled(FairleadError):
    """No job makes progress in spite of many decisions."""


Decision: TypeAlias = tuple[RoundPlan, Memo]


class DecisionRunner(Protocol):
    """Makes decisions in another thread or process while the loop records events; for real clusters."""

    @property
    def lead_s(self) -> float:
        """How long before a round its decision is started."""
        ...

    def begin(self, decision: Callable[[], Decision]) -> Callable[[], Decision | None]:
        """Start a decision. The returned function gives the decision once it is made (before that None), or raises a stage's
        error. The backend's `wait` returns when the decision is made."""
        ...

    def late(self) -> None:
        """Note that a round begins while the decision of an earlier one is still in progress."""
        ...

    def failed(self, problem: Exception) -> Reason:
        """Note that a decision failed, and return the reason that users see. The next round makes another attempt."""
        ...


def _matter(events: Sequence[Event]) -> bool:
    """Whether events may change a decision."""
    return any(type(event) is not ForecastsRecorded for event in events)


@dataclass
class Loop:
    """A scheduler. Without events it decides again at the plan's `valid_until`; if that is None, every round, or (no rounds) at
    `revisit`."""

    state: State
    backend: Backend
    stages: Stages
    journal: Journal = field(default_factory=NoJournal)
    skip_quiet_rounds: bool = True
    allow_stalls: bool = False  # do not raise `Stalled`; for real clusters
    compose: Callable[[Mapping[str, Any]], Stages] | None = None  # makes the stages of a switched scheduler
    stopwatch: Callable[[], float] = lambda: 0.0
    on_decision: Callable[[RoundPlan], None] | None = None  # for progress bars and tests; it must not change the plan
    decision_runner: DecisionRunner | None = None  # None: the loop blocks while it decides
    decision_delay: Callable[[], float] | None = None  # how long a simulated decision takes; None: no time

    decisions: int = 0
    rounds: int = 0  # that have passed, skipped ones included; without rounds, decisions
    decide_s: float = 0.0
    missed: int = 0  # rounds that began while the decision of an earlier one was still being made
    plan: RoundPlan | None = None  # the last one
    _last_round: float | None = None
    _wake_s: float = -math.inf  # when a decision is due even without an event; -inf: not started yet
    _in_progress: tuple[float, float] | None = None  # the async decision: time of its snapshot, time it is for
    _best_progress: tuple[int, int, float] = (0, 0, -1.0)
    _best_progress_at: int = 0
    _last_progress: tuple[int, int, float] = (0, 0, -1.0)
    _progress_at: int = 0

    def run(self, until: float = math.inf, stop: Callable[[State], bool] | None = None) -> None:
        """Run until nothing is left to do, until a time, or until `stop` returns true; a later call resumes."""
        if self._wake_s == -math.inf:
            self._wake_s = boundary_at(self.backend.now, self.stages.round_s)
        while self.state.busy or not self.backend.exhausted:
            # 1. Wait for events: up to the next decision that is due in any case, or, after an event, to the next round.
            due = self._wake_s if self.decision_runner is None else self._wake_s - self._lead_s(self.decision_runner)
            happened = self.backend.wait(min(due, until), self.stages.round_s)
            if happened:
                self._record_all(happened)
            if stop is not None and stop(self.state):
                return
            now = self.backend.now
            if _matter(happened):  # an event is decided on at the next boundary, which may be now
                self._wake_s = min(self._wake_s, decision_at(now, self.stages.round_s))
                due = self._wake_s if self.decision_runner is None else self._wake_s - self._lead_s(self.decision_runner)
            if now < due:
                if now >= until or (self.backend.exhausted and self._wake_s == math.inf):
                    return
                continue
            # 2. Decide, 3. record, 4. carry out.
            plan = self.step() if self.decision_runner is None else self._step_async(self.decision_runner)
            if plan is None:
                continue
            # 5. Set the latest time of the next decision.
            self._wake_s = self._next_wake(plan)
            if self.decisions % 1000 == 0 and not self.allow_stalls:
                self._watch_progress()
            if self._wake_s == math.inf and not plan.changes and self.backend.exhausted:
                return
            if now >= until:
                return

    def latest_decision_s(self, since_s: float, now: float) -> float:
        """The latest time of the first decision that includes a job that has waited since `since_s`; infinity if not known: the
        decision takes too long, or only an event will cause one."""
        due = self._wake_s
        if self._in_progress is not None:
            snapshot_s, moment = self._in_progress
            due = moment if since_s <= snapshot_s else self._round_after(moment)
        return due if due > now else math.inf

    def earliest_decision_s(self, since_s: float, now: float) -> float:
        """The earliest time of that decision: an event is decided on at the next round. Infinity if not known."""
        latest, length = self.latest_decision_s(since_s, now), self.stages.round_s
        if self._in_progress is not None:
            return latest
        return min(latest, boundary_after(now, length)) if length else math.inf

    def _watch_progress(self) -> None:
        """Raise `Stalled` without progress: rounds shorter than a start, or faults faster than checkpoints, would never end."""
        state, now = self.state, self.decisions
        ended = state.next_number - len(state.live) - len(state.queue)
        progress = (state.next_number, ended, float(state.snapshot(self.backend.now).jobs.steps_done.sum()))
        if progress > self._best_progress:
            self._best_progress, self._best_progress_at = progress, now
        if progress > self._last_progress or not state.busy:  # repeated work after a fault is progress too, for a while
            self._progress_at = now
        self._last_progress = progress
        if now - self._progress_at >= STALLED_AFTER or (state.busy and now - self._best_progress_at >= 50 * STALLED_AFTER):
            raise Stalled(
                f"no progress in {STALLED_AFTER:,} decisions up to second {self.backend.now:g}, {len(state.live)} live jobs: "
                "check whether starts and checkpoints take longer than a round (set `first_step_s`), nodes fail faster than "
                "jobs save, or the policy starts no job"
            )

    def step(self) -> RoundPlan:
        """Make one decision now and act on it."""
        view = self._view(self.backend.now)
        plan, memo = self._decide(view, self.state.memo, self.stages)
        if self.decision_delay is not None:
            plan = self._delayed(plan, self.backend.now + self.decision_delay())
        if len(plan.launches):
            validate_launches(plan, view, self.stages)
        return self._act(plan, memo)

    def _delayed(self, plan: RoundPlan, until: float) -> RoundPlan:
        """The plan when the decision is made, without what events meanwhile have made impossible."""
        changed = False
        while self.backend.now < until:
            happened = self.backend.wait(until, 0.0)
            self._record_all(happened)
            changed = changed or _matter(happened)
        plan = revalidate_plan(plan, self.state.snapshot(until))
        return replace(plan, valid_until=until) if changed else plan

    def _step_async(self, runner: DecisionRunner) -> RoundPlan | None:
        """Let `runner` make a decision for the start of a round. Events are recorded meanwhile, and the parts of the plan that
        they made impossible are dropped. If a stage fails, nothing changes. None if the decision is no longer needed."""
        snapshot_s, stages, memo = self.backend.now, self.stages, self.state.memo
        moment = max(snapshot_s, self._wake_s)
        view = self._view(moment).detached()
        made, changed = runner.begin(lambda: self._decide_and_validate(view, memo, stages)), False
        self._in_progress = snapshot_s, moment
        decision: Decision | None = None
        missed = 0
        while True:
            try:
                decision = decision or made()
            except Exception as problem:  # plug-ins may raise anything
                decision = no_op_plan(view, runner.failed(problem)), memo
            if (begun := self._rounds_since(moment)) > missed:
                self.missed, missed = self.missed + begun - missed, begun
                if decision is None:
                    runner.late()
            if decision is not None and self.backend.now >= moment:
                break
            happened = self.backend.wait(moment if decision is not None else self._round_after(moment), 0.0)
            self._record_all(happened)
            grown = len(self.state.cluster.types) > len(view.cluster.types)  # columns by type have another length
            if self.stages is not stages or grown or self.backend.exhausted:
                self._in_progress = None
                return None
            changed = changed or _matter(happened)
        self._in_progress = None
        now = self.backend.now
        plan, left = decision
        plan = revalidate_plan(replace(plan, snapshot_s=snapshot_s), self.state.snapshot(now))
        if changed:  # the decision did not see these events, so decide again, whatever `valid_until` says
            plan = replace(plan, valid_until=now)
        return self._act(plan, left)

    def _rounds_since(self, moment: float) -> int:
        """The number of rounds that began after the one at `moment`."""
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

    def _decide_and_validate(self, view: Snapshot, memo: Memo, stages: Stages) -> Decision:
        """Make a decision and raise if it cannot be carried out or recorded."""
        plan, left = decision = self._decide(view, memo, stages)
        validate_plan(plan, None if left is memo else left, view, stages)
        return decision

    def _act(self, plan: RoundPlan, memo: Memo) -> RoundPlan:
        """Record a decision, then carry it out."""
        self.decisions += 1
        self._count_rounds()
        if plan.observations:
            self.record(ObservationsRecorded(plan.time, plan.observations))
        if plan.slowdowns is not None:
            self.record(SlowdownExceeded(plan.time, *plan.slowdowns))
        if memo is not self.state.memo:
            self.record(MemoChanged(plan.time, memo))
        if plan.changes:
            self.record(RoundPlanned(plan))
            self.journal.commit()  # a plan must be durable before it is carried out
            for event in self.backend.submit(plan):
                self.record(event)
                # The next decision considers the first reports of jobs and jobs that failed at start.
                if isinstance(event, (MetricsReported, JobsInterrupted, JobsFailed)):
                    plan = replace(plan, valid_until=plan.time, revisit=plan.time)
        self.plan = plan
        if self.on_decision is not None:
            self.on_decision(plan)
        return plan

    def _record_all(self, happened: Sequence[Event]) -> None:
        for event in happened:
            self.record(event)
        if happened:
            self.journal.commit()  # the next `wait` acknowledges these events as durable

    def record(self, event: Event) -> None:
        """Apply an event to the state, then append it to the journal: one that cannot be applied must not get there."""
        apply_event(self.state, event)
        self.journal.append(event)
        if isinstance(event, SchedulerSwitched):
            if self.compose is None:
                raise FairleadError("the loop needs `compose` to switch its scheduler")
            self.stages = self.compose(event.scheduler)
            self._wake_s = boundary_at(self.backend.now, self.stages.round_s)

    def _count_rounds(self) -> None:
        length = self.stages.round_s
        if length == 0 or self._last_round is None:
            self.rounds += 1
        else:
            self.rounds += round((self.backend.now - self._last_round) / length)
        self._last_round = self.backend.now

    def _lead_s(self, runner: DecisionRunner) -> float:
        return min(runner.lead_s, self.stages.round_s / 2)

    def _next_wake(self, plan: RoundPlan) -> float:
        now, length = self.backend.now, self.stages.round_s
        holds = plan.valid_until
        if length == 0:  # at every event; in between only at a time that the policy sets, and then just after it
            second = plan.revisit if holds is None else holds
            return math.inf if second == math.inf else max(second + 1e-6, now + MIN_DECISION_INTERVAL_S)
        following = boundary_after(now, length)
        if holds is None or not self.skip_quiet_rounds:
            return following
        return max(following, boundary_at(holds, length))
