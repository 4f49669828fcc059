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
    """An estimation that finds something out as time goes on. Pure as a policy is: what is known is `view.observations`, which
    `rates` sees too; what is new goes out, is journaled, and is part of `view.observations` from then on. There may be facts of
    others, from before a switch: names should begin with a word of one's own."""

    def observe(self, view: Snapshot) -> Observations:
        """Asked first in every decision, before any job is refused or admitted. It looks at who is there, who runs where and
        how fast; where it looks at the clock, it names the second in the lesson."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Who should run. Pure: what it wants to remember goes into the memo and comes back with it."""

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]: ...


@runtime_checkable
class PlanningPolicy(Policy, Protocol):
    """A policy whose memo is a plan of what comes next: it stands where the next one is not there in time."""

    def interim_selection(self, view: Snapshot, memo: Memo) -> Selection:
        """What an old plan says of a moment at which others may be there than it is about. It takes no time."""
        ...


@runtime_checkable
class Allocator(Protocol):
    """Who should have which fraction of time on which type. Pure as a policy is; asked only when something has changed. The
    round mechanism makes a policy of it."""

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]: ...


@runtime_checkable
class Mechanism(Protocol):
    """Turns the time fractions of an allocator into the selection of each round. Where the allocator raises
    `AllocationPending`, the last allocation stands; a mechanism that re-raises it is asked again later."""

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
    """Accelerators for a selection. Who can stay where they are stays."""

    def place(self, selection: Selection, view: Snapshot) -> Placed: ...


@runtime_checkable
class Termination(Protocol):
    """Jobs (by number) that are done before their last step, for instance because the loss has converged."""

    def finished_early(self, view: Snapshot) -> Ints: ...


@runtime_checkable
class Backend(Protocol):
    """What makes a plan happen, and where time passes: virtual or wall."""

    @property
    def now(self) -> float: ...

    def wait(self, until: float, grain: float) -> Sequence[Event]:
        """What happened. Returns at `until` or, once something has happened, at the next multiple of `grain` (0: at once)."""
        ...

    def submit(self, plan: RoundPlan) -> Sequence[Event]:
        """Launch and suspend. What is known of it at once is returned; the rest is told by the next `wait`."""
        ...

    def reconcile(self, view: Snapshot) -> Sequence[Event]:
        """After a restart: what is really running, told as events."""
        ...

    @property
    def exhausted(self) -> bool:
        """Nothing will happen any more unless a plan makes it happen."""
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
    first_step_s: float = 0.0  # who has not made a step since its start is left alone for so long
