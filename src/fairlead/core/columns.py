"""Columns of jobs: the growable store that the state writes, and the read-only view of some of its rows that a stage sees. A
view gathers a column when it is first read; after the state has moved on, that raises `StaleSnapshot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InvalidPlan, StaleSnapshot, near_or_all
from fairlead.core.job import Phase

# Operands of every round, as arrays without a dimension: numpy takes 1 to 2 µs to make one of a Python number.


def _constant(value: bool | int | float) -> Any:
    operand = np.array(value)
    operand.setflags(write=False)
    return operand


NO_JOB: Ints = _constant(-1)
NO: Ints = _constant(0)
ONE: Ints = _constant(1)
ZERO: Floats = _constant(0.0)
INFINITY: Floats = _constant(np.inf)
TRUE: Bools = _constant(True)
FALSE: Bools = _constant(False)


def as_scalar_array(second: float) -> Floats:
    """A time as an array without a dimension, for operations with several columns."""
    return np.array(second)


def rounded(column: Floats, digits: int) -> Floats:
    """As `column.round(digits)`, in half the time."""
    scale = _SCALES[digits]
    kept: Floats = column * scale
    np.rint(kept, kept)
    kept /= scale
    return kept


def significant(values: Floats, bits: int = 24) -> Floats:
    """Round to so many significant bits; 24 are about seven digits.

    Two machines may compute the last bits of a number differently. What a memo keeps, or a tie is broken by, goes through
    here, so that the same inputs give the same bytes everywhere."""
    mantissa, exponent = np.frexp(values)
    kept: Floats = np.ldexp(np.rint(mantissa * 2.0**bits), exponent - bits)
    return kept


RATE_BITS = 36
"""Rates count in linear programs with so many significant bits: more than any table has, fewer than rounding errors reach."""


def canonical(values: Floats) -> Floats:
    """Round derived numbers to 24 significant bits, but not at midpoints.

    Sums, means and simple fractions of a few rounded numbers often lie in the middle between two numbers of 24 bits, where the
    last bit of a machine decides. Here numbers are rounded up from 0.382 of a unit on, which no such number meets."""
    mantissa, exponent = np.frexp(values)
    kept: Floats = np.ldexp(np.floor(mantissa * _BITS + _GOLDEN), exponent - 24)
    return kept


_BITS = _constant(2.0**24)
_GOLDEN = _constant((5.0**0.5 - 1.0) / 2.0)
_SCALES = [_constant(10.0**digits) for digits in range(10)]


T = TypeVar("T", bound=np.generic)
V = TypeVar("V")


class ColumnStore:
    """Columns by name, all of one length that doubles as needed; those of one type are the rows of one block.

    `version` changes with every write by the state. An unused row holds every column's default."""

    def __init__(self, capacity: int = 256, *, by_number: bool = True) -> None:
        self.metrics: dict[str, Floats] = {}
        self.version = 0
        self.by_number = by_number  # a job's row is its number
        self.ints: Ints = np.empty((len(INT_COLUMNS), 0), dtype=np.int64)
        self.floats: Floats = np.empty((len(FLOAT_COLUMNS), 0), dtype=np.float64)
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self._read_only: Mapping[str, npt.NDArray[Any]] | None = None
        self._grow(capacity)

    @property
    def capacity(self) -> int:
        return int(self.ints.shape[1])

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The same arrays, read-only; others after the store has grown."""
        if self._read_only is None:
            ints, floats = self.ints.view(), self.floats.view()
            _fix(ints)
            _fix(floats)
            self._read_only = MappingProxyType(dict(zip(ALL_COLUMNS, (*ints, *floats))))
        return self._read_only

    def reserve(self, size: int) -> None:
        """Make room for rows up to `size`."""
        if size > self.capacity:
            self._grow(max(size, 2 * self.capacity))

    def metric(self, name: str) -> Floats:
        if name not in self.metrics:
            self.metrics[name] = np.full(self.capacity, np.nan)
        return self.metrics[name]

    def _grow(self, size: int) -> None:
        self.ints = _grown(self.ints, np.array(list(INT_COLUMNS.values()), dtype=np.int64), size)
        self.floats = _grown(self.floats, np.array(list(FLOAT_COLUMNS.values()), dtype=np.float64), size)
        self.arrays = dict(zip(ALL_COLUMNS, (*self.ints, *self.floats)))
        self._read_only = None
        nothing = np.array([np.nan])
        self.metrics = {name: _grown(array[None, :], nothing, size)[0] for name, array in self.metrics.items()}


def _grown(block: npt.NDArray[T], defaults: npt.NDArray[T], size: int) -> npt.NDArray[T]:
    larger = np.repeat(defaults[:, None], size, axis=1)
    larger[:, : block.shape[1]] = block
    return larger


def without(rows: Ints, gone: Ints) -> Ints:
    """Ascending `rows` without `gone`."""
    leaves = np.zeros(len(rows), dtype=np.bool_)
    leaves[rows.searchsorted(gone)] = TRUE
    return rows[~leaves]


def _fix(column: npt.NDArray[Any]) -> None:
    """Make a column read-only; the argument is positional, as a keyword takes numpy four times as long."""
    column.setflags(False)  # type: ignore[call-arg]


class _Kept(Generic[V]):
    """A value derived from a `JobColumns`, computed at the first read and then kept in the instance: `cached_property` without
    its lock, which would slow rounds down. A column is read-only."""

    def __init__(self, find: Callable[[JobColumns], V]) -> None:
        self.find, self.__doc__ = find, find.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, view: None, owner: type) -> Self: ...
    @overload
    def __get__(self, view: JobColumns, owner: type) -> V: ...
    def __get__(self, view: JobColumns | None, owner: type) -> Self | V:
        if view is None:
            return self
        found = self.find(view)
        if isinstance(found, np.ndarray):
            _fix(found)
        view.__dict__[self.name] = found
        return found


class _Column(_Kept[npt.NDArray[T]]):
    """A column of the store; `default` is the value of a row that is not in use."""

    def __init__(self, dtype: type[T], default: float) -> None:
        self.dtype, self.default = dtype, default

    @overload
    def __get__(self, view: None, owner: type) -> Self: ...
    @overload
    def __get__(self, view: JobColumns, owner: type) -> npt.NDArray[T]: ...
    def __get__(
        self, view: JobColumns | None, owner: type
    ) -> Self | npt.NDArray[T]:  # without `find`, as columns are read often
        if view is None:
            return self
        store, name = view._store, self.name
        if store.version != view._version:
            raise StaleSnapshot(f"column {name!r} was first read after the state had moved on from second {view.now:g}")
        known = name == "number" and store.by_number
        column: npt.NDArray[Any] = view._rows if known else store.arrays[name][view._rows]
        _fix(column)
        view.__dict__[name] = column
        return column


class JobColumns:
    """Some jobs, a row each, in order of submission. Every column is read-only and as long as the others."""

    number = _Column(np.int64, -1)  # the job's number; `view.job_of[number]` has all its fields
    phase = _Column(np.int64, int(Phase.QUEUED))
    workers = _Column(np.int64, 1)  # GPUs that the job asks for
    held = _Column(np.int64, 0)  # GPUs that the job holds now; 0 while it waits
    type = _Column(np.int64, -1)  # code of the GPU type that it holds, or held last; -1: none yet
    kind = _Column(np.int64, 0)  # code of the job type; `view.names.kinds` has the names
    user = _Column(np.int64, 0)  # code of the user; `view.names.users` has the names; without a user: 0, named ''
    account = _Column(np.int64, 0)  # code of the account; `view.names.accounts` has the names; without one: 0, named ''
    group = _Column(np.int64, 0)  # code of the group of trials; jobs of one search share it
    group_order = _Column(np.int64, 0)  # position in the group
    priority = _Column(np.int64, 0)  # priority; higher is more urgent
    fits = _Column(np.int64, -1)  # bit t is set if the job may run on GPU type t
    starts = _Column(np.int64, 0)  # how often the job has started
    preemptions = _Column(np.int64, 0)  # how often it was suspended and had to wait
    moves = _Column(np.int64, 0)  # how often it was suspended and resumed at once on other GPUs, or at another size
    failures = _Column(np.int64, 0)  # how often it has failed
    batch_size = _Column(np.int64, 0)  # set by a plan; 0: the job type's own, -1: tuned by the job
    submitted_s = _Column(np.float64, 0.0)  # time of the submission
    weight = _Column(np.float64, 1.0)  # weight in fair shares
    steps = _Column(np.float64, 0.0)  # steps that the job declares
    deadline_s = _Column(np.float64, np.inf)  # deadline, counted from the submission; infinite: none
    min_run_s = _Column(np.float64, 0.0)  # how long a started job may not be preempted
    memory_gb = _Column(np.float64, 0.0)  # GPU memory that each worker needs; 0: unknown
    cpus = _Column(np.float64, 0.0)  # CPUs that each worker asks for
    host_memory_gb = _Column(np.float64, 0.0)  # host memory that each worker asks for
    time_limit_s = _Column(np.float64, np.inf)  # limit of the run time; infinite: none
    base_steps = _Column(np.float64, 0.0)  # progress is (base, rate, since)
    rate = _Column(np.float64, 0.0)  # progress now, in steps per second; 0 while it waits
    since_s = _Column(np.float64, 0.0)
    settled_run_s = _Column(np.float64, 0.0)  # run time before the present launch
    settled_accelerator_s = _Column(np.float64, 0.0)
    run_started_s = _Column(np.float64, 0.0)  # start of the present launch, if it runs
    run_started_steps = _Column(np.float64, 0.0)  # steps that were done at that time
    first_started_s = _Column(np.float64, np.nan)  # time of the first start; NaN: not started yet
    waiting_since_s = _Column(np.float64, 0.0)  # time since which it waits
    ended_s = _Column(np.float64, np.nan)
    cpus_given = _Column(np.float64, 0.0)  # CPUs of each worker by the present plan; 0: not set
    memory_given_gb = _Column(np.float64, 0.0)  # host memory of each worker by the present plan; 0: not set

    def __init__(self, store: ColumnStore, rows: Ints, now: float, running: Ints | None = None) -> None:
        """`running` are the rows of running jobs, where they are known."""
        self._store, self._rows, self.now, self._version = store, rows, now, store.version
        self._running = running
        self._sought: Ints | None = None
        self._found = rows

    def __len__(self) -> int:
        return len(self._rows)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = [one for one in dir(type(self)) if one[0] != "_"]
            raise AttributeError(f"view.jobs has no column {name!r} ({near_or_all(name, known)})", name=name, obj=self)

    def metric(self, name: str) -> Floats:
        """What jobs reported under a name of their own, such as "loss"; NaN for jobs that did not."""
        if self._store.version != self._version:
            raise StaleSnapshot(f"metric {name!r} was first read after the state had moved on from second {self.now:g}")
        array = self._store.metrics.get(name)
        return np.full(len(self), np.nan) if array is None else array[self._rows]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names under which jobs have reported something, and under which the state keeps values derived from losses."""
        return tuple(self._store.metrics)

    # Derived from the columns at the time of the view.

    @_Kept
    def running(self) -> Bools:
        """Whether the job runs."""
        return self.held > NO

    @_Kept
    def steps_done(self) -> Floats:
        """Steps done so far."""
        ran = np.maximum(as_scalar_array(self.now) - self.since_s, ZERO)
        return np.minimum(self.base_steps + self.rate * ran, self.steps)

    @_Kept
    def steps_left(self) -> Floats:
        """Steps that are left."""
        return self.steps - self.steps_done

    @_Kept
    def overran(self) -> Bools:
        """Whether the job has done more than its declared steps."""
        return (self.base_steps > self.steps) | ((self.base_steps >= self.steps) & (self.phase <= Phase.RUNNING))

    @_Kept
    def run_s(self) -> Floats:
        """Run time so far."""
        return self.settled_run_s + self.running * (as_scalar_array(self.now) - self.run_started_s)

    @_Kept
    def accelerator_s(self) -> Floats:
        """GPU time so far: run time × GPUs held."""
        return self.settled_accelerator_s + self.held * (as_scalar_array(self.now) - self.run_started_s)

    @_Kept
    def waited_s(self) -> Floats:
        """How long the job has waited since its submission or last suspension; 0 while it runs."""
        return np.where(self.running, 0.0, self.now - self.waiting_since_s)

    def only(self, chosen: Bools | Ints | slice) -> JobColumns:
        """The rows where `chosen` holds, or those at the given positions."""
        return JobColumns(self._store, self._rows[chosen], self.now)

    def with_rows(self, rows: Ints, running: Ints | None = None) -> JobColumns:
        return JobColumns(self._store, rows, self.now, running)

    @_Kept
    def runners(self) -> JobColumns:
        """The running jobs."""
        return self.with_rows(self._rows[self.running] if self._running is None else self._running)

    @_Kept
    def waiters(self) -> JobColumns:
        """The waiting jobs."""
        if self._running is None:
            return self.only(~self.running)
        return self.with_rows(without(self._rows, self._running))

    @property
    def rows(self) -> Ints:
        """The jobs' rows in the store; for the state only."""
        return self._rows

    def position_of(self, numbers: Ints) -> Ints:
        """The rows in this view of jobs known by number, all of which must be here."""
        if self._sought is not numbers:  # a policy asks about its selection, and then the placement does
            try:
                found = self.number.searchsorted(numbers)
                if np.count_nonzero(self.number[found] != numbers):
                    raise IndexError
            except IndexError:
                raise InvalidPlan("a selection names a job that is not among the admitted ones") from None
            self._sought, self._found = numbers, found
        return self._found

    def numbers_at(self, positions: Ints) -> Ints:
        """The numbers of the jobs in these rows. `position_of` knows the way back."""
        self._sought, self._found = self.number[positions], positions
        return self._sought

    def of(self, numbers: Ints) -> JobColumns:
        """Jobs known by number, in this order."""
        return self.only(self.position_of(numbers))

    def detached(self) -> JobColumns:
        """The same rows in a store of their own, which no event will change."""
        store = ColumnStore(len(self), by_number=False)
        for name in ALL_COLUMNS:
            store.arrays[name][:] = getattr(self, name)
        store.metrics = {name: array[self._rows].copy() for name, array in self._store.metrics.items()}
        return JobColumns(store, np.arange(len(self), dtype=np.int64), self.now)


def _defaults(dtype: type[np.generic]) -> dict[str, float]:
    return {name: column.default for name, column in vars(JobColumns).items() if getattr(column, "dtype", None) is dtype}


INT_COLUMNS, FLOAT_COLUMNS = _defaults(np.int64), _defaults(np.float64)
"""Their names, in the order of the store's rows, and defaults."""
ALL_COLUMNS = (*INT_COLUMNS, *FLOAT_COLUMNS)
