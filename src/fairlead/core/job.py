"""What a job is and the phases it goes through. A job is a frozen value; all that changes about it lives in the state."""

from __future__ import annotations

import enum
import math
import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

from fairlead.core.errors import IllegalTransition

Schedule: TypeAlias = tuple[tuple[int, float], ...]
"""The batch sizes that a job's owner has planned for it (mode `expert`), each with its share of the declared steps."""

EXPERT = "expert"

LATE = 0.05
"""Of the declared steps: a change that comes so much sooner or later is still as declared."""

_SUM = 1e-6  # shares that add up to 1 but for so much do


def wrong_schedule(schedule: Schedule, mode: str) -> str:
    """What would be right; empty where nothing is wrong."""
    if mode != EXPERT:
        return f"nothing, for a job of mode {mode}: a schedule is for mode {EXPERT}"
    if not all(size >= 1 and 0 < share <= 1 for size, share in schedule):
        return "batch sizes of at least 1, and shares above 0"
    if any(one == next_ for (one, _), (next_, _) in pairwise(schedule)):
        return "batch sizes that differ from the one before"
    total = math.fsum(share for _, share in schedule)
    return "" if abs(total - 1.0) <= _SUM else f"shares that add up to 1; these make {total:g}"


def planned_regimes(schedule: Schedule, had: Sequence[int]) -> list[tuple[int, float]]:
    """All regimes of a job that has had some batch sizes (the present one last): those, and the rest of the schedule, each with
    its declared share. A job may skip regimes. A job at a size that is not ahead in its schedule is assumed to keep it."""
    at, kept, course = -1, True, list[tuple[int, float]]()
    for size in had:
        place = next((place for place in range(at + 1, len(schedule)) if schedule[place][0] == size), None)
        kept = place is not None
        at = at if place is None else place
        course.append(schedule[at] if kept else (size, 1.0 / len(schedule)))
    return [*course, *(schedule[at + 1 :] if kept else ())]


def schedule_departure(
    schedule: Schedule, steps: float, had: Sequence[tuple[int, float]], done: float, *, ended: bool = False
) -> str:
    """How a job that has `done` some of its declared `steps` has departed from its schedule, if it has; `had` are the batch
    sizes that it announced, each with the steps from which on it ran at it. The progress of a job that
    has `ended` is not checked: a job that exits normally counts as done, after however few steps."""
    begins = [0.0, *accumulate(share for _, share in schedule)]
    for place, (size, begun) in enumerate(had):
        if place >= len(schedule):
            return f"its batch size became {size} behind the last of its schedule"
        if size != schedule[place][0]:
            return f"its batch size became {size} where its schedule has {schedule[place][0]}"
        if place and abs(begun / steps - begins[place]) > LATE:
            return (
                f"its batch size became {size} after {begun / steps:.0%} of its steps, and {begins[place]:.0%} by its schedule"
            )
    due = max(len(had), 1)
    if due < len(schedule) and done / steps - begins[due] > LATE:
        if ended:
            return f"its batch size never became {schedule[due][0]}, as its schedule has it"
        return f"its batch size is not yet {schedule[due][0]} after {done / steps:.0%} of its steps, as its schedule has it"
    return ""


TIMED = ""
"""The kind of a job whose work is given in seconds: it runs at one step a second on every type."""

ELASTIC = "elastic"
"""The mode of a job that runs at any number of workers, and at any batch size within its limits."""

MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e3
"""Beyond these, programs that weigh jobs or accounts against each other are not solved exactly any more."""


MAX_ACCOUNT_LEVELS = 16


def account_levels(accounts: Sequence[str]) -> list[tuple[str, ...]]:
    """The tree of accounts, level by level: the account that each of these belongs to there. `a/b` belongs to `a` and then to
    `a/b`; jobs of `a` itself to `a` and then to `a/`, beside `a/b`. All have as many levels as the deepest."""
    paths = [name.split("/") for name in accounts]
    depth = max(map(len, paths), default=1)
    padded = [[*path, *[""] * (depth - len(path))] for path in paths]
    return [tuple("/".join(path[:level]) for path in padded) for level in range(1, depth + 1)]


def is_account(name: str) -> bool:
    """Whether a name is an account, or empty: none; `research/vision`, of at most 16 levels, none of them empty."""
    path = name.split("/")
    return not name or (all(path) and len(path) <= MAX_ACCOUNT_LEVELS)


def with_parents(account: str) -> tuple[str, ...]:
    """An account and those above it: `a/b/c`, `a/b`, `a`."""
    path = account.split("/")
    return tuple("/".join(path[:level]) for level in range(len(path), 0, -1))


class Phase(enum.IntEnum):
    """Where a job is in its life. Up to `RUNNING` a job is live; behind it, it has ended."""

    QUEUED = 0  # submitted, not yet let in by admission
    WAITING = 1  # admitted, holds no accelerator
    RUNNING = 2  # holds its accelerators
    FINISHED = 3
    FAILED = 4  # ended without its last step, such as by its time limit
    CANCELLED = 5
    REFUSED = 6  # could never run here


ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.CANCELLED, Phase.REFUSED})

LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.WAITING, Phase.CANCELLED, Phase.REFUSED}),
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.FINISHED, Phase.FAILED, Phase.CANCELLED, Phase.REFUSED}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.FINISHED, Phase.FAILED, Phase.CANCELLED}),
    **{phase: frozenset() for phase in ENDED},
}

"""How plans and reports move a job. Besides, a user may hold a waiting job, and requeue any job: it is `QUEUED` then."""


def check_transition(name: str, old: Phase, new: Phase) -> None:
    """Raise `IllegalTransition` unless `LEGAL` has it."""
    if new not in LEGAL[old]:
        raise IllegalTransition(f"job {name!r} cannot go from {old.name.lower()} to {new.name.lower()}")


@dataclass(frozen=True, slots=True)
class Job:
    """A training job as its owner described it.

    `workers` is the gang size: all run or none. `steps` is the work of the whole gang; for a job of kind `TIMED` it is
    seconds of run time. What is left at its default was not asked for.
    """

    name: str  # unique in a trace; default: `job-` and the row's number from 0
    submitted_s: float = 0.0  # second of submission
    steps: float = 1.0  # work of the whole gang in steps; for a job without a `kind`, seconds of run time
    kind: str = TIMED  # model and batch size, as in "ResNet-50 (batch size 64)"
    workers: int = 1  # gang size, 1 to 1,000,000: all workers run, or none
    weight: float = 1.0  # 0.001 to 1,000; used by policies that weigh jobs
    priority: int = 0  # a higher priority goes first, in policies that use priorities
    user: str = ""  # for quotas and for results by user
    account: str = ""  # the team or project that the job counts for
    deadline_s: float = math.inf  # deadline in seconds after submission; default: none
    allowed_types: tuple[str, ...] = ()  # GPU types that the job may use; empty: any
    memory_gb: float = 0.0  # memory that the job needs on each GPU
    cpus: float = 0.0  # CPU cores that each worker needs
    host_memory_gb: float = 0.0  # host memory that each worker needs
    time_limit_s: float = math.inf  # run time after which the job fails; waiting does not count. Default: none
    retry_limit: int = 3  # how often the job is retried after a failure of its own; lost nodes do not count
    min_run_s: float = 0.0  # once started, the job is not preempted for this many seconds
    group: str = ""  # group of trials of one search; a termination may stop the worst
    group_order: int = 0  # place of the job in its group
    mode: str = "static"  # how the batch size changes: static, accordion, gns, expert; or elastic
    command: str = ""  # the task of a job on a real cluster, as JSON
    after: tuple[int, ...] = ()  # jobs that must finish first: places in the order of submission, from 0
    max_slowdown: float = math.inf  # tolerated slowdown by co-location, from 1 on; 1 refuses co-location
    schedule: Schedule = ()  # for mode expert: planned batch sizes and their shares of the steps
    prediction: str = ""  # what is predicted of a worker on a GPU, as JSON (`StepPrediction.job_text`)


UPDATABLE_ENDED = ("name", "account")
"""Fields of an ended job that can be changed."""

UPDATABLE = (*UPDATABLE_ENDED, "priority", "weight", "time_limit_s", "deadline_s", "retry_limit")
"""Fields of a submitted job that can be changed."""

FORMER_FIELDS = {"entity": "account", "most_slowdown": "max_slowdown"}
"""Former names of a job's fields, which traces, task files and journals may still use, and the present names."""

_BATCH = re.compile(r" ?\(batch size ([1-9][0-9]{0,9})\)$")
"""The format of `kind_of`. Anything else in the parentheses, such as 0, is part of the model's name."""


def model_of(kind: str) -> str:
    """The model's name without the batch size."""
    return _BATCH.sub("", kind)


def batch_size_of(kind: str) -> int | None:
    """The batch size in a kind's name, if it has one."""
    match = _BATCH.search(kind)
    return int(match.group(1)) if match else None


def kind_of(model: str, batch_size: int | None) -> str:
    """The kind's name for a model at a batch size; the inverse of `model_of` and `batch_size_of`."""
    return model if batch_size is None else f"{model} (batch size {batch_size})"


BATCH_SIZE = "batch_size"
"""The name under which jobs report the batch size that they run with from now on."""

LARGEST = 2.0**53

JobSignature: TypeAlias = tuple[int, int, int]
"""The code of a kind, workers, and a batch size that is not the kind's own."""


class Regime(NamedTuple):
    """A phase of training at one batch size, which begins after `from_steps` steps."""

    batch_size: int
    from_steps: float


@dataclass
class Adaptations:
    """The regimes of all jobs that have reported a batch size. Only the state writes it."""

    regimes: dict[int, tuple[Regime, ...]] = field(default_factory=dict)
    """By number, the present one last; each ends where the next begins."""
    signatures: dict[JobSignature, int] = field(default_factory=dict)  # in the order in which they first occurred: 0, 1, …
    changes: int = 0  # how often a batch size has become another

    def __bool__(self) -> bool:
        return bool(self.regimes)

    def note(self, number: int, size: float, steps: float, kind: str, code: int, workers: int) -> None:
        """Note the batch size that a job reports at a step. Regimes from later steps are dropped: a lost node undid them."""
        if not 1 <= size < LARGEST:
            return
        past = self.regimes.get(number, ())
        kept = tuple(regime for regime in past if regime.from_steps < steps)
        same = bool(kept) and kept[-1].batch_size == int(size)
        self.regimes[number] = kept if same else (*kept, Regime(int(size), steps))
        own = batch_size_of(kind)
        self.changes += (past[-1].batch_size if past else own) != int(size)
        if own is not None and own != int(size):
            self.signatures.setdefault((code, workers, int(size)), len(self.signatures))

    def of(self, numbers: Collection[int]) -> Adaptations:
        """A copy with some of the jobs."""
        regimes = {number: each for number, each in self.regimes.items() if number in numbers}
        return Adaptations(regimes, dict(self.signatures), self.changes)

    def to_data(self) -> dict[str, Any]:
        regimes = [(number, [*map(list, each)]) for number, each in self.regimes.items()]
        return {"regimes": regimes, "signatures": [*map(list, self.signatures)], "changes": self.changes}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Adaptations:
        regimes = {number: tuple(Regime(*one) for one in each) for number, each in data["regimes"]}
        signatures = {(kind, workers, size): at for at, (kind, workers, size) in enumerate(data["signatures"])}
        return cls(regimes, signatures, data["changes"])


def flags_of(job: Job, regimes: Sequence[Regime], overran: bool, done: float = 0.0, *, ended: bool = False) -> tuple[str, ...]:
    """What a job that has `done` some of its steps, and maybe has `ended`, does that its owner did not declare; it is
    scheduled like any other."""
    flags = ["did more steps than it declared"] if overran else []
    sizes = [regime.batch_size for regime in regimes]
    falls = [size for size, before in zip(sizes[1:], sizes) if size < before]
    if job.mode == "static" and len(sizes) > 1:
        flags.append(f"declared static, and its batch size became {sizes[-1]}")
    elif job.mode == "accordion" and len(set(sizes)) > 2:
        flags.append(f"declared accordion, and had {len(set(sizes))} batch sizes")
    elif job.mode == "gns" and falls:
        flags.append(f"declared gns, and its batch size fell to {falls[0]}")
    elif job.schedule and (departed := schedule_departure(job.schedule, job.steps, regimes, done, ended=ended)):
        flags.append(f"declared a schedule, and {departed}")
    return tuple(flags)


@dataclass(frozen=True, slots=True)
class Blocked:
    """The jobs that one job waits for, by number."""

    unfinished: tuple[int, ...] = ()  # not ended yet
    lost: int = -1  # the first that ended without finishing; -1: none has
    how: Phase = Phase.FINISHED  # it ended


BlockedJobs: TypeAlias = Mapping[int, Blocked]
"""By number, queued jobs that are not admitted yet, or never, because of jobs that they depend on."""

NO_BLOCKED_JOBS: BlockedJobs = {}


def blocked_by(after: Iterable[int], phase_of: Callable[[int], Phase]) -> Blocked | None:
    """None where all have finished."""
    phases = [(number, phase_of(number)) for number in after]
    unfinished = tuple(number for number, phase in phases if phase not in ENDED)
    bad = [(number, phase) for number, phase in phases if phase in ENDED and phase is not Phase.FINISHED]
    if bad:
        return Blocked(unfinished, *bad[0])
    return Blocked(unfinished) if unfinished else None


TIME_LIMIT = "time limit"
"""The `why` of a job that was ended at its time limit."""

LAUNCH_FAILED = 126
"""The exit status of a launch that was never begun."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """How a job ended before it was requeued, for accounting. Run time and GPU seconds count from the job's first start."""

    phase: int
    code: int  # exit status of a failure, or 0
    started_s: float | None
    ended_s: float
    run_s: float
    accelerator_s: float
    requeued_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt of a job failed, for users; no decision depends on it.

    `code` is an exit status, below 0 a signal, or 0; `node` is its number, or -1; `rank` is that of the worker that failed
    first; `start` is the number of the attempt from 1, or 0; `own` is False where its node could not start it."""

    why: str = ""
    code: int = 0
    node: int = -1
    rank: int = 0
    start: int = 0
    own: bool = True

    @property
    def facts(self) -> tuple[tuple[str, float | str], ...]:
        if self.code > 0:
            return (("status", self.code),)
        return (("signal", signal_name(-self.code)),) if self.code else ()


def signal_name(number: int) -> str:
    """Such as SIGKILL."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
