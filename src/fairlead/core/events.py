"""Events; only they change the state. *Exogenous* events come from outside, *derived* ones from decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from fairlead.core.cluster import AcceleratorType, Cluster, Floats, Ints, Node
from fairlead.core.job import Job
from fairlead.core.plan import ObservedValues, RoundPlan

Memo: TypeAlias = Mapping[str, Any] | None
"""What a policy remembers, as data: numbers, strings, lists, mappings and numpy arrays."""


@dataclass(frozen=True, slots=True)
class JournalOpened:
    """The first event of every journal: the cluster, the scheduler's configuration, and the rates of this world by kind and
    workers (for reports; no stage sees them). `journal` is a unique name, used with agents: a job's
    number is unique only within a journal."""

    time: float
    cluster: Cluster  # nodes and GPU types
    scheduler: Mapping[str, Any]  # the scheduler, as in a scheduler file
    trace: str = ""  # name of the trace, in a simulation
    rates: Mapping[str, tuple[float, ...]] | None = None  # true rates by job type and workers, in a simulation
    journal: str = ""  # unique name of the journal
    origin: float = 0.0  # Unix time of second 0, on a cluster; 0: unknown


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job was submitted; `number` is its number from now on."""

    time: float
    number: int
    job: Job  # the job, with the columns of a trace


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A user cancelled a job."""

    time: float
    number: int


@dataclass(frozen=True, slots=True)
class JobHeld:
    """A user (`by`) holds a job that waits: it is neither admitted nor placed until it is released."""

    time: float
    number: int
    by: str = ""  # the user who holds it


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A held job may run again."""

    time: float
    number: int


@dataclass(frozen=True, slots=True)
class JobRequeued:
    """A user puts a job back into the queue: a running job saves and stops; an ended job runs again, a finished one from its
    first step. With `hold`, `by` holds it there."""

    time: float
    number: int
    hold: bool = False  # also hold the job
    by: str = ""  # the user who requeued it


@dataclass(frozen=True, slots=True)
class JobUpdated:
    """A user changes fields of a job; `UPDATABLE` in `core/job.py` names those that can be changed."""

    time: float
    number: int
    changes: Mapping[str, Any]  # new values of fields of the job


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is lost; `JobsInterrupted` reports the jobs that ran on it."""

    time: float
    node: int


@dataclass(frozen=True, slots=True)
class NodeRepaired:
    """A node is available again, or its back-off has ended."""

    time: float
    node: int


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """An operator drained a node or, with `undo`, ended the drain. The next decision moves or suspends its jobs. A node that is
    drained again has the new reason and time."""

    time: float
    node: int
    undo: bool = False  # use the node again
    reason: str = ""  # the reason that was given
    by: str = ""  # the user who drained it
    until_s: float | None = None  # second at which the drain ends by itself; None: an operator ends it
    from_s: float | None = None  # the drain is announced, and begins at this second by another event; None: it begins now


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A node became part of the cluster. It counts as lost until `NodeRepaired` says that its agent has joined. Its number is
    the next one, or that of a removed node with the same name, type and number of GPUs."""

    time: float
    node: int
    spec: Node  # name, GPU type, number of GPUs, CPUs, memory
    type: AcceleratorType | None = None  # properties of its GPU type, if the cluster did not have that type


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node on which no job runs left the cluster. Its number, and those of its GPUs, are not given to other nodes."""

    time: float
    node: int


@dataclass(frozen=True, slots=True)
class NodeBackedOff:
    """A node failed to start jobs (`why`) and gets no new ones until `until_s`. Then, or when the agent reconnects, it is
    reported as repaired. The node itself is up and not drained."""

    time: float
    node: int
    until_s: float  # second until which the node gets no new jobs
    why: str = ""  # the failure


@dataclass(frozen=True, slots=True)
class ControlPlaneRestarted:
    """A control plane continues a journal. It changes nothing in the state; from `stopped_s` on, no control plane made
    decisions."""

    time: float
    stopped_s: float | None = None  # last second at which the former control plane is known to have run


@dataclass(frozen=True, slots=True)
class MetricsReported:
    """Jobs report a metric, such as "loss"."""

    time: float
    name: str  # name of the metric
    jobs: Ints
    values: Floats  # one value for each job


@dataclass(frozen=True, slots=True)
class SchedulerSwitched:
    """Another scheduler decides from the next round on; `why` is the reason that was given."""

    time: float
    scheduler: Mapping[str, Any]  # the new scheduler, as in a scheduler file
    why: str = ""  # the reason that was given


@dataclass(frozen=True, slots=True)
class RoundPlanned:
    """A decision, recorded before it is carried out."""

    plan: RoundPlan  # the decision: launches, suspended and ended jobs, reasons

    @property
    def time(self) -> float:
        return self.plan.time


@dataclass(frozen=True, slots=True)
class MemoChanged:
    """The new memo of the policy, so that a replay does not decide again."""

    time: float
    memo: Memo  # memory of the policy


@dataclass(frozen=True, slots=True)
class ObservationsRecorded:
    """New observations of an estimator by name. An observation replaces an earlier one of the same name."""

    time: float
    values: ObservedValues  # observations by name


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """From second `since` on, each job is at `steps` and continues at `rates` steps per second."""

    time: float
    jobs: Ints
    steps: Floats  # steps that each job has done at `since`
    rates: Floats  # steps per second of each job from `since` on
    since: Floats  # second of each job's report


@dataclass(frozen=True, slots=True)
class JobsFinished:
    """Jobs did their last step, each at its own second, not later than the event's time."""

    time: float
    jobs: Ints
    at: Floats  # second at which each job finished


@dataclass(frozen=True, slots=True)
class JobsFailed:
    """Jobs ended without their last step, each at its own second, not later than the event's time. `why`, `code`, `node`
    and `rank` are those of a `Failure`."""

    time: float
    jobs: Ints
    at: Floats  # second at which each job failed
    why: str  # the failure in words
    code: int = 0  # exit code, or minus the signal
    node: int = -1
    rank: int = 0  # rank of the worker that failed


@dataclass(frozen=True, slots=True)
class JobsInterrupted:
    """Jobs lost their GPUs and fell back to `steps`; `own_fault` if it counts against their retry limit. `why`, `code`, `node`
    and `rank` are those of a `Failure`, if known. `stopped_s` is when they stopped, if earlier than the event's time, as after
    a restart of the control plane."""

    time: float
    jobs: Ints
    steps: Floats  # steps to which each job falls back
    own_fault: bool = False  # the interruption counts as a failure of the job
    why: str = ""  # the failure in words
    code: int = 0  # exit code, or minus the signal
    node: int = -1
    rank: int = 0  # rank of the worker that failed
    stopped_s: float | None = None  # second at which the jobs stopped, if that was before the event

    @property
    def at_s(self) -> float:
        """When the jobs stopped."""
        return self.time if self.stopped_s is None else self.stopped_s


@dataclass(frozen=True, slots=True)
class ForecastsRecorded:
    """A sample of the forecasts that the control plane made, in seconds of the journal; infinity is beyond the forecast. It
    changes no decision. `fairlead forecast-quality` compares it with what happened."""

    time: float
    jobs: Ints
    starts_low: Floats  # 80 % interval of the start of each job
    starts_median: Floats
    starts_high: Floats
    ends_low: Floats  # 80 % interval of its end
    ends_median: Floats
    ends_high: Floats
    widened_starts: float = 1.0  # factor by which earlier forecasts have widened these intervals
    widened_ends: float = 1.0


@dataclass(frozen=True, slots=True)
class SlowdownExceeded:
    """All co-located jobs that are slower than their `max_slowdown`. A job that was in the event before, too, is separated: it
    may not share a GPU with the same jobs again."""

    time: float
    jobs: Ints
    slowdowns: Floats  # how many times slower than alone each job is


Exogenous: TypeAlias = (
    JournalOpened
    | JobSubmitted
    | JobCancelled
    | JobHeld
    | JobReleased
    | JobRequeued
    | JobUpdated
    | NodeLost
    | NodeRepaired
    | NodeDrained
    | NodeAdded
    | NodeRemoved
    | NodeBackedOff
    | ControlPlaneRestarted
    | MetricsReported
    | SchedulerSwitched
)
Derived: TypeAlias = (
    RoundPlanned
    | MemoChanged
    | ObservationsRecorded
    | ProgressReported
    | JobsFinished
    | JobsFailed
    | JobsInterrupted
    | ForecastsRecorded
    | SlowdownExceeded
)
Event: TypeAlias = Exogenous | Derived

FORECAST_COLUMNS = ("starts_low", "starts_median", "starts_high", "ends_low", "ends_median", "ends_high")
FACTORS = ("widened_starts", "widened_ends")

EXOGENOUS = get_args(Exogenous)
"""The types of exogenous events."""
