"""The results of the stages: admitted jobs, rates, the selection, the placement, and the plan of a round made from them.
Columns with one entry per job; an entry refers to a job by its number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.device_map import NONE
from fairlead.core.errors import InvalidPlan
from fairlead.core.reasons import Reason
from fairlead.core.routes import NO_ROUTES, Routes

BUSY, TAKEN_GB = "accelerator_busy", "accelerator_memory_gb"
"""Metrics that agents measure of a job alone on its accelerators, in its last launch: the share of time in which they are
busy, and the memory in use on one."""
MEASURED_METRICS = frozenset({BUSY, TAKEN_GB})


@dataclass(frozen=True)
class DeviceUsage:
    """By class, as `Rates` has them, and type: the share of time in which an accelerator is busy with one worker of it, from 0
    to 1, and the memory that the worker needs there. Unknown values are 1 and infinity: a full accelerator."""

    utilization: Floats  # classes × types
    memory_gb: Floats  # classes × types
    slowdown_margin: Floats | None = None
    """Classes × classes × types: by how much more than estimated the first may be slowed down by the second, in proportion, as
    the utilization of jobs is uncertain. Limits of the slowdown hold with it. None: by nothing."""


T = TypeVar("T")


def unchecked(kind: type[T], **fields: Any) -> T:
    """A value of a frozen dataclass, every field given and none checked, which is faster."""
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made


NO_OFFSETS: Ints = np.zeros(1, dtype=np.int64)

TUNED = -1
"""In place of a batch size: the job tunes it, and reports the size it runs with."""

QueueOrder: TypeAlias = tuple[Ints, "Floats | Ints | None"]
"""Numbers of jobs in the order of submission, and the key by which a policy ranks them, least first; None: as submitted."""

ObservedValues: TypeAlias = Mapping[str, Any]
"""Observations of estimators, by their own names; each a number, string, list or mapping of such."""
NO_OBSERVATIONS: ObservedValues = {}


@dataclass(frozen=True)
class Admitted:
    """The jobs that are admitted, and why others are not yet."""

    jobs: Ints
    reasons: Mapping[int, Reason] = field(default_factory=dict)
    others: Reason | None = None  # for all that `reasons` does not name


@dataclass(frozen=True)
class Observations:
    """New observations in one decision. Without an event, there would be no others before `valid_until`."""

    values: ObservedValues = field(default_factory=lambda: NO_OBSERVATIONS)
    valid_until: float = math.inf


class OtherSizes(Protocol):
    """Rates of the same classes with other numbers of workers than they asked for, if the estimator knows them."""

    @property
    def sizes(self) -> Sequence[int]:
        """The numbers of workers with known rates, ascending."""
        ...

    def at(self, workers: Sequence[int]) -> Floats:
        """Numbers of workers × classes × types, on as few nodes as possible; 0: impossible, or not known."""
        ...


class OtherBatches(Protocol):
    """Rates of kinds at other batch sizes than their own, if the estimator knows them."""

    def of(self, kind: str, workers: int) -> Mapping[int, Floats]:
        """By batch size, ascending: rates by type, in steps of the kind's own batch size. Empty where nothing is known."""
        ...


@dataclass(frozen=True)
class Rates:
    """Throughputs as a policy may see them, by class: jobs of one class have the same rates.

    Job i of the view (row i of its columns) is of class `row[i]`; `alone[row, type]` is in steps per second, 0 where it
    cannot run. `uncertainty` is a relative standard deviation of the same shape, `spread_uncertainty` one of `spread`, and
    `paired_uncertainty` one of `paired`. `alone` and `paired` are of the same estimate, as
    policies divide them to get the slowdown of a pair.
    """

    row: Ints
    alone: Floats  # classes × types, on as few nodes as possible
    spread: Floats  # classes × types, on more nodes than necessary
    paired: Floats  # classes × classes × types: the first's rate when co-located with the second
    uncertainty: Floats | None = None  # None: there is none
    paired_uncertainty: Floats | None = None
    best: Floats | None = None  # `alone.max(axis=1)`, if the estimator caches it
    mask: Ints | None = None  # `runs_on`, likewise
    ranked: Sequence[tuple[int, ...]] | None = None  # `preferred_types`, likewise
    other_sizes: OtherSizes | None = None  # None: not known
    other_batches: OtherBatches | None = None  # likewise
    usage: DeviceUsage | None = None  # likewise
    spread_uncertainty: Floats | None = None  # None: `uncertainty`
    current_since_s: Floats | None = None  # by job, from when on its reports are of its present configuration; None: always

    @property
    def least_paired(self) -> Floats:
        """`paired`, reduced by the margin of uncertain predictions: limits of the slowdown are checked with it."""
        margin = None if self.usage is None else self.usage.slowdown_margin
        return self.paired if margin is None else self.paired / (1 + margin)

    @property
    def of_jobs(self) -> Floats:
        """jobs × types."""
        return self.alone[self.row]

    @property
    def fastest(self) -> Floats:
        """Each job's rate on its fastest type."""
        best: Floats = self.best if self.best is not None else self.alone.max(axis=1)
        return best[self.row]

    @property
    def runs_on(self) -> Ints:
        """By class, with bit t set where it has a throughput on type t."""
        if self.mask is not None:
            return self.mask
        return (self.alone > 0) @ (1 << np.arange(self.alone.shape[1]))

    @property
    def preferred_types(self) -> Sequence[tuple[int, ...]]:
        """By class, the types it can run on, fastest first."""
        if self.ranked is not None:
            return self.ranked
        order = np.argsort(-self.alone, axis=1, kind="stable").tolist()
        return [tuple(t for t in types if rates[t] > 0) for types, rates in zip(order, self.alone.tolist())]


@dataclass(frozen=True)
class Selection:
    """An ordered list of jobs to run, each with its type and number of workers.

    Entries with the same `combination` share all of their accelerators: one type, one number of workers. Jobs with a route
    serve requests: they get the accelerators of their route, each of which any number of them may share. `valid_until` is the
    policy's promise: if nothing happens, it would answer the same before that second; None promises nothing, and the policy is
    asked again every round.
    """

    jobs: Ints
    types: Ints
    workers: Ints
    combination: Ints | None = None  # None: every job alone
    batch_sizes: Ints | None = None  # 0: unchanged; `TUNED`: the job's own choice; None: all unchanged
    pinned: Mapping[int, Ints] = field(default_factory=dict)  # job → the accelerators it must get
    routes: Routes = field(default_factory=lambda: NO_ROUTES)  # of jobs that serve requests
    valid_until: float | None = None
    revisit: float = math.inf  # without `valid_until` and rounds: when to decide again
    reasons: Mapping[int, Reason] = field(default_factory=dict)  # of jobs that were left out, beyond the default reasons
    head: int | None = None  # the waiting job that strict order stopped at
    strict: bool = False  # no job starts while one before it in the selection finds no place
    order: QueueOrder | None = None  # of a policy that ranks jobs, to show positions in the queue

    def __post_init__(self) -> None:
        if not len(self.jobs) == len(self.types) == len(self.workers):
            raise InvalidPlan("a selection's columns differ in length")
        if self.combination is not None:
            self._check_combinations(self.combination)

    def _check_combinations(self, combination: Ints) -> None:
        """Co-located jobs have equally many accelerators of one type; there is no rate for a partly co-located gang."""
        if len(combination) != len(self.jobs):
            raise InvalidPlan("a selection's columns differ in length")
        _, first, of = np.unique(combination, return_index=True, return_inverse=True)
        head = first[of]
        for what, column in (("numbers of workers", self.workers), ("types", self.types)):
            differ = (column != column[head]).nonzero()[0]
            if len(differ):
                one, other = int(self.jobs[head[differ[0]]]), int(self.jobs[differ[0]])
                values = f"{column[head[differ[0]]]} and {column[differ[0]]}"
                raise InvalidPlan(f"jobs {one} and {other} share GPUs with different {what}: {values}")

    @classmethod
    def empty(cls) -> Selection:
        return _EMPTY

    @classmethod
    def of(cls, jobs: Ints, types: Ints, workers: Ints, valid_until: float | None, head: int | None, **more: Any) -> Selection:
        """Each job alone, from columns that are known to be of one length; `more` are other fields."""
        other = object.__new__(cls)
        other.__dict__.update(_EMPTY.__dict__, jobs=jobs, types=types, workers=workers, valid_until=valid_until, head=head)
        other.__dict__.update(more)
        return other

    def __len__(self) -> int:
        return len(self.jobs)

    def chosen(self, numbers: Ints) -> Bools:
        """Which of these jobs are in the selection."""
        mask = np.zeros(len(numbers), dtype=np.bool_)
        mask[numbers.searchsorted(self.jobs)] = True
        return mask

    def only(self, which: Bools) -> Selection:
        """Some of the entries, with their routes."""
        jobs = self.jobs[which]
        there = set(jobs.tolist())
        return replace(
            self,
            jobs=jobs,
            types=self.types[which],
            workers=self.workers[which],
            combination=None if self.combination is None else self.combination[which],
            batch_sizes=None if self.batch_sizes is None else self.batch_sizes[which],
            routes={number: route for number, route in self.routes.items() if number in there},
        )

    def with_reasons(self, reasons: Mapping[int, Reason]) -> Selection:
        """The same selection, with reasons for some jobs that were left out."""
        return unchecked(Selection, **{**self.__dict__, "reasons": {**self.reasons, **reasons}})

    def until(self, second: float) -> Selection:
        """The same selection, which holds no longer than `second`."""
        if self.valid_until is None or self.valid_until <= second:
            return self
        other = object.__new__(Selection)  # like `dataclasses.replace`, which is too slow for every round
        other.__dict__.update(self.__dict__, valid_until=second)
        return other


_EMPTY = Selection(NONE, NONE, NONE, valid_until=math.inf)


@dataclass(frozen=True)
class Launches:
    """Jobs to start; job i gets `accelerators[offsets[i]:offsets[i+1]]`."""

    jobs: Ints
    types: Ints
    offsets: Ints
    accelerators: Ints
    batch_sizes: Ints | None = None
    cpus: Floats | None = None  # of each worker; 0, or None for all: not set
    host_memory_gb: Floats | None = None  # likewise
    exclusive: bool = field(default=False, compare=False)  # known to be on free accelerators, not shared: no check needed

    @classmethod
    def none(cls) -> Launches:
        return NO_LAUNCHES

    @classmethod
    def alone(cls, jobs: Ints, types: Ints, workers: Ints, offsets: Ints, places: Ints, sizes: Ints | None) -> Launches:
        """On accelerators that are known to be free, each job on its own; `workers` follows from `offsets`."""
        workers.setflags(write=False)
        fields = {"jobs": jobs, "types": types, "offsets": offsets, "accelerators": places, "batch_sizes": sizes}
        return unchecked(cls, **fields, exclusive=True, _workers=workers)

    @property
    def workers(self) -> Ints:
        known: Ints | None = self.__dict__.get("_workers")
        if known is None:  # read often: by the journal, the state, the backend
            known = self.__dict__["_workers"] = self.offsets[1:] - self.offsets[:-1]
            known.setflags(write=False)
        return known

    @property
    def has_overrides(self) -> bool:
        """Whether a batch size, CPUs or host memory are set."""
        return self.batch_sizes is not None or self.cpus is not None or self.host_memory_gb is not None

    def __len__(self) -> int:
        return len(self.jobs)

    def only(self, which: Bools) -> Launches:
        """Some of them."""
        if which.all():
            return self
        optional = (self.batch_sizes, self.cpus, self.host_memory_gb)
        offsets = np.concatenate((NO_OFFSETS, self.workers[which].cumsum()))
        places = self.accelerators[which.repeat(self.workers)]
        sizes, cpus, memory = (None if column is None else column[which] for column in optional)
        return Launches(self.jobs[which], self.types[which], offsets, places, sizes, cpus, memory)  # type: ignore[arg-type]


NO_LAUNCHES = Launches(NONE, NONE, NO_OFFSETS, NONE)


@dataclass(frozen=True)
class Placed:
    """The placement of a selection: the jobs that stay, the launches, and why other jobs were not placed."""

    kept: Ints
    launches: Launches
    free: tuple[int, ...] = ()  # accelerators left idle, by type
    unplaced: Mapping[int, Reason] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundPlan:
    """One decision, as changes. `suspended` and `launches` may both name a job: then it moves or changes its size."""

    time: float
    refused: tuple[tuple[int, Reason], ...] = ()
    admitted: Ints = field(default_factory=lambda: NONE)
    ended: Ints = field(default_factory=lambda: NONE)  # finished early, by the termination stage
    suspended: Ints = field(default_factory=lambda: NONE)
    launches: Launches = field(default_factory=lambda: NO_LAUNCHES)
    routes: Routes = field(default_factory=lambda: NO_ROUTES)  # new ones only, of launched or running jobs
    # The other fields are for users and for the loop; they are not in the journal.
    snapshot_s: float | None = field(default=None, compare=False)  # time of the snapshot it was made from; None: `time`
    valid_until: float | None = field(default=None, compare=False)
    revisit: float = field(default=math.inf, compare=False)
    free: tuple[int, ...] = field(default=(), compare=False)  # accelerators left by type
    up: tuple[int, ...] = field(default=(), compare=False)  # accelerators that are up, by type
    head: int | None = field(default=None, compare=False)
    reasons: Mapping[int, Reason] = field(default_factory=dict, compare=False)
    not_admitted: Reason | None = field(default=None, compare=False)
    observations: ObservedValues = field(default_factory=lambda: NO_OBSERVATIONS, compare=False)  # an event of its own
    combinations: tuple[Ints, Ints] | None = field(default=None, compare=False)  # jobs and their combinations; None: all alone
    order: QueueOrder | None = field(default=None, compare=False)
    slowdowns: tuple[Ints, Floats] | None = field(default=None, compare=False)  # jobs above their limit; an event of its own

    @property
    def changes(self) -> bool:
        moves = len(self.suspended) or len(self.launches.jobs) or len(self.admitted) or len(self.ended)
        return bool(moves or self.refused or self.routes)


# When rounds begin: at the multiples of their length, counted from second 0. Exact, so that skipping rounds and stepping
# through them meet at the same numbers. A length of 0 means no rounds: every moment is a boundary.

LATE_S = 5e-4
"""How long after a boundary, in seconds, an event still counts for it; less than the millisecond of generated times."""


def boundary_at(time: float, length: float) -> float:
    """The first boundary that is not before `time`."""
    if length == 0 or time == math.inf:
        return time
    count = math.ceil(time / length)
    if (count - 1) * length >= time:
        count -= 1
    elif count * length < time:
        count += 1
    return count * length


def decision_at(time: float, length: float) -> float:
    """When an event is decided on: at the first boundary that is not before it. One that is up to LATE_S after a boundary still
    belongs to this boundary, with all others up to then; else a job would wait for a round because of a rounded time."""
    at = boundary_at(time, length)
    late = at - length + LATE_S
    return late if time <= late < at else at


def boundary_after(time: float, length: float) -> float:
    """The first boundary after `time`."""
    at = boundary_at(time, length)
    return at if at > time else (round(at / length) + 1) * length
