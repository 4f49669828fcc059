"""The contracts. Every stage of the loop is one of these Protocols; the engine composes them and knows no implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fairlead.core.allocation import Allocation
from fairlead.core.cluster import Ints
from fairlead.core.events import Event, Memo
from fairlead.core.plan import Admitted, Observations, Placed, Rates, RoundPlan, Selection
from fairlead.core.snapshot import Snapshot


@runtime_checkable
class Admission(Protocol):
    """Which queued jobs enter, and why others wait."""

    def admit(self, view: Snapshot) -> Admitted: ...


@runtime_checkable
class Estimator(Protocol):
    """The throughputs that a policy may see."""

    def rates(self, view: Snapshot) -> Rates: ...


@runtime_checkable
class LearningEstimator(Estimator, Protocol):
    """An estimator that observes running jobs. It is pure, like a policy: earlier observations are in `view.observations`,
    which `rates` reads too; new ones are returned, journaled, and in `view.observations` from then on. Other estimators may
    have left theirs there before a switch, so names should begin with a word of its own."""

    def observe(self, view: Snapshot) -> Observations:
        """Called first in every decision, before any job is refused or admitted. If new observations become possible at a
        later time without an event, `valid_until` of the result is that time."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Which jobs should run. Pure: it keeps its own state in the memo."""

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]: ...


@runtime_checkable
class PlanningPolicy(Policy, Protocol):
    """A policy whose memo is a plan for several rounds, which is used if the next plan is late."""

    def interim_selection(self, view: Snapshot, memo: Memo) -> Selection:
        """The selection by an old plan; jobs may have come and gone since it was made. It must be fast."""
        ...


@runtime_checkable
class Allocator(Protocol):
    """Which fraction of time each job should get on each type. Pure, like a policy; called only when something has changed. The
    round mechanism makes a policy of it."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]: ...


def known_changes_s(allocator: Allocator, view: Snapshot) -> Sequence[float]:
    """When the answer of an allocator changes although no job comes or leaves, such as with prices: its `changes_s(view)`, in
    ascending order. Most have none."""
    changes: Sequence[float] = allocator.changes_s(view) if hasattr(allocator, "changes_s") else ()
    return changes


@runtime_checkable
class Mechanism(Protocol):
    """Turns the time fractions of an allocator into the selection of each round. Where the allocator raises
    `AllocationPending`, the last allocation is used; a mechanism that re-raises it is called again later."""

    def select(self, allocator: Allocator, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]: ...


@dataclass(frozen=True)
class Allocated:
    """A policy made of an allocator and the mechanism that realises what it allocates."""

    allocator: Allocator
    mechanism: Mechanism

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return self.mechanism.select(self.allocator, view, memo)


@runtime_checkable
class Placement(Protocol):
    """Accelerators for a selection. A job that can stay where it is stays."""

    def place(self, selection: Selection, view: Snapshot) -> Placed: ...


@runtime_checkable
class Termination(Protocol):
    """Jobs (by number) that are done before their last step, for instance because the loss has converged."""

    def finished_early(self, view: Snapshot) -> Ints: ...


@runtime_checkable
class Backend(Protocol):
    """Carries out plans, and has the clock: virtual or wall time."""

    @property
    def now(self) -> float: ...

    def wait(self, until: float, grain: float) -> Sequence[Event]:
        """Wait until `until` or, once an event has come, until the next multiple of `grain` (0: at once). Return the events."""
        ...

    def submit(self, plan: RoundPlan) -> Sequence[Event]:
        """Launch and suspend. Return the events that are known at once; the next `wait` returns the others."""
        ...

    def reconcile(self, view: Snapshot) -> Sequence[Event]:
        """After a restart, return the difference between this state and the running processes, as events."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether no event will come any more unless a plan causes it."""
        ...


@dataclass(frozen=True)
class Stages:
    """A scheduler: one of each. `round_s` is the length of a round; 0 decides at every event instead."""

    admission: Admission
    estimator: Estimator
    policy: Policy
    placement: Placement
    termination: Termination
    round_s: float = 300.0
    run_to_completion: bool = False
    first_step_s: float = 0.0  # a job is not preempted before its first step, for at most this long
    await_nodes: bool = False  # nodes may join: a job that suits none waits, and is not refused
