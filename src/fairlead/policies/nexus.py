"""Inference beside training (Nexus, Shen et al., SOSP'19; Blox, appendix B): sessions first, with as many accelerators as their
requests need, and training on what is left.

    n_s = ⌈a_s + headroom·a_s / √(R_s·SLO_s)⌉ accelerators of the type on which these are fewest; a_s as in `pooling.py`

A session is a job without an end: somebody cancels it. Where it is elastic it has as many workers as it needs, however many it
was submitted with, each a replica; otherwise always those. R_s is what the job reported last as `request_rate`, or what
`sessions` says. What routers have to know is in the memo, which is journaled when it changes: the batch of each session, and
for how many requests a second it was planned. An elastic session's launch carries its batch too; where the batch alone
changes, nobody is started again for that.

Sessions have accelerators to themselves here; `pooling.py` packs closer, and a selection has no words for it: jobs that share
accelerators share all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.inference import MOST_IN_A_BATCH, MOST_REQUESTS_PER_S, REPORTED, Session, latencies
from fairlead.core.plan import Selection
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Policy
from fairlead.policies.fifo import Fifo
from fairlead.policies.las import LeastAttainedService
from fairlead.policies.pooling import gathered_batch
from fairlead.policies.size import ShortestRemainingTimeFirst

_TRAINING: Mapping[str, Policy] = {  # policies without a memory
    "fifo": Fifo(preempt=True),
    "las": LeastAttainedService(),
    "srtf": ShortestRemainingTimeFirst(),
}


@dataclass(frozen=True)
class Asked:
    """What is known of a session before it reports: as in a file of sessions, with its model written out."""

    slo_ms: float
    batches: tuple[int, ...]
    latency_ms: Mapping[str, tuple[float, ...]]
    rate: float


@dataclass(frozen=True)
class _Sized:
    """A session's accelerators."""

    job: int
    type: int
    workers: int
    needed: int
    batch: int
    rate: float


@dataclass(frozen=True)
class Nexus:
    """Inference sessions have the accelerators they need, training jobs what is left, in the order of `training`.

    `sessions` says, by the job's name, what a session is: `slo_ms`, `rate`, and of its model `batches` and, by type,
    `latency_ms`. A session that runs is left as it is while it has what it needs, and at most `spare` more.
    """

    paper: ClassVar[str] = "Nexus (Shen et al., SOSP'19); Blox appendix B"
    sessions: Mapping[str, Asked] = field(default_factory=dict)
    training: Literal["fifo", "las", "srtf"] = "fifo"
    wait: float = 0.3
    headroom: float = 1.5
    spare: int = 1

    def __post_init__(self) -> None:
        for name, asked in self.sessions.items():
            _check(name, asked)
        for parameter in ("wait", "headroom", "spare"):
            value = getattr(self, parameter)
            if not 0 <= value < math.inf:
                raise InputError("policy nexus", "a number from 0 on", field=parameter, value=value)

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        ours = self._ours(view)
        trained = view.but(jobs=view.jobs.only(~ours))
        free = view.capacity.copy()
        protected = trained.protected
        if protected is not None:  # they stay, whatever sessions need
            np.subtract.at(free, trained.jobs.type[protected], trained.jobs.held[protected])
        sized, reasons = self._sized(view, ours, free)
        used = np.zeros_like(view.capacity)
        for one in sized:
            used[one.type] += one.workers
        policy = _TRAINING[self.training]
        rest, _ = policy.select(trained.but(capacity=view.capacity - used), None)
        routing = _routing(view, sized)
        known = {} if memo is None else memo["routing"]
        return _both(view, sized, reasons, rest), memo if routing == known else {"routing": routing}

    def _ours(self, view: Snapshot) -> Bools:
        if not self.sessions:
            return np.zeros(len(view.jobs), dtype=np.bool_)
        return np.array([view.job_of[number].name in self.sessions for number in view.jobs.number.tolist()], dtype=np.bool_)

    def _sized(self, view: Snapshot, ours: Bools, free: Ints) -> tuple[list[_Sized], dict[int, Reason]]:
        """Who runs first, then by submission; each takes what it needs of what is `free`, or as much as there is."""
        jobs = view.jobs.only(ours)
        if not len(jobs):
            return [], {}
        sized: list[_Sized] = []
        reasons: dict[int, Reason] = {}
        protected, reported = view.protected, jobs.metric(REPORTED)
        fixed = np.zeros(len(jobs), dtype=np.bool_) if protected is None else protected[ours]
        elastic = view.elastic[ours]
        for row in np.lexsort((~jobs.running, ~fixed)).tolist():
            number, held = int(jobs.number[row]), int(jobs.held[row])
            now = int(jobs.type[row]) if jobs.running[row] else -1
            ways = self._ways(view, number, float(reported[row]), int(jobs.fits[row]))
            if fixed[row] or elastic[row]:
                one = _choice(number, ways, free, now, held, self.spare, fixed=bool(fixed[row]))
            else:
                one = _as_asked(ways, free, now, int(jobs.workers[row]))
            if one is None:
                need = min((way.needed for way in ways.values()), default=0) if elastic[row] else int(jobs.workers[row])
                what = Unplaced.outranked(need, free=int(free.max(initial=0)))
                reasons[number] = what if ways else Unplaced.unsuitable("no type answers a single request within its SLO")
                continue
            free[one.type] -= one.workers
            sized.append(one)
        return sized, reasons

    def session(self, name: str, rate: float | None = None) -> Session:
        """The session of a name, at another rate than was said where one is given."""
        asked = self.sessions[name]
        latency = {kind: latencies(asked.batches, [ms / 1000 for ms in column]) for kind, column in asked.latency_ms.items()}
        return Session(name, asked.rate if rate is None else rate, asked.slo_ms / 1000, latency)

    def _ways(self, view: Snapshot, number: int, reported: float, fits: int) -> dict[int, _Sized]:
        """By type, what the session needs there."""
        session = self.session(view.job_of[number].name, min(reported, MOST_REQUESTS_PER_S) if reported > 0 else None)
        rate, ways = session.rate, {}
        for code, name in enumerate(view.cluster.type_names):
            batch = gathered_batch(session, name, self.wait) if fits >> code & 1 else 0
            if batch:
                load = rate / float(session.throughput(name)[batch - 1])
                needed = max(1, math.ceil(load * (1 + self.headroom / math.sqrt(rate * session.slo_s)) - 1e-9))
                ways[code] = _Sized(number, code, needed, needed, batch, rate)
        return ways


def _choice(
    number: int, ways: Mapping[int, _Sized], free: Ints, now: int, held: int, spare: int, *, fixed: bool
) -> _Sized | None:
    """Where it is, where that will do; else where it needs fewest and finds them; else where it is served best."""
    if fixed:
        way = ways.get(now)
        return _Sized(number, now, held, held, 0, 0.0) if way is None else replace(way, workers=held)
    here = ways.get(now)
    if here is not None and here.needed <= held <= min(here.needed + spare, int(free[now])):
        return replace(here, workers=held)
    if here is not None and here.needed <= free[now]:
        return here
    enough = [way for way in ways.values() if way.needed <= free[way.type]]
    if enough:
        return min(enough, key=lambda way: (way.needed, way.type))
    some = [way for way in ways.values() if free[way.type] > 0]
    if not some:
        return None
    best = max(some, key=lambda way: (free[way.type] / way.needed, -way.type))
    return replace(best, workers=int(free[best.type]))


def _as_asked(ways: Mapping[int, _Sized], free: Ints, now: int, workers: int) -> _Sized | None:
    """With the replicas that it was submitted with: where it is, else where it needs fewest."""
    enough = [way for way in ways.values() if workers <= free[way.type]]
    best = min(enough, key=lambda way: (way.type != now, way.needed, way.type), default=None)
    return None if best is None else replace(best, workers=workers)


def _both(view: Snapshot, sized: list[_Sized], reasons: Mapping[int, Reason], rest: Selection) -> Selection:
    if not sized and not reasons:
        return rest
    columns = ([getattr(one, name) for one in sized] for name in ("job", "type", "workers", "batch"))
    jobs, types, workers, batches = (np.array(column, dtype=np.int64) for column in columns)
    at = view.jobs.position_of(jobs)
    stays = (view.jobs.type[at] == types) & (view.jobs.held[at] == workers)
    batches = np.where(view.elastic[at], np.where(stays, view.jobs.batch_size[at], batches), 0)
    return replace(
        rest,
        jobs=np.concatenate((jobs, rest.jobs)),
        types=np.concatenate((types, rest.types)),
        workers=np.concatenate((workers, rest.workers)),
        batch_sizes=np.concatenate((batches, np.zeros(len(rest), dtype=np.int64))),
        reasons={**rest.reasons, **reasons},
    )


def _routing(view: Snapshot, sized: list[_Sized]) -> dict[str, Any]:
    """What routers have to know."""
    return {
        view.job_of[one.job].name: {
            "type": view.cluster.type_names[one.type],
            "replicas": one.workers,
            "needed": one.needed,
            "batch": one.batch,
            "rate": one.rate,
        }
        for one in sorted(sized, key=lambda one: one.job)
    }


def _check(name: str, asked: Asked) -> None:
    def wrong(parameter: str, expected: str, value: object) -> InputError:
        return InputError("policy nexus", expected, field=f"sessions.{name}.{parameter}", value=value)

    for parameter in ("slo_ms", "rate"):
        value = getattr(asked, parameter)
        if not 0 < value < math.inf:
            raise wrong(parameter, "a number above 0", value)
    sizes = list(asked.batches)
    if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > MOST_IN_A_BATCH:
        raise wrong("batches", f"batch sizes from 1 to {MOST_IN_A_BATCH} in ascending order", sizes)
    for kind, column in asked.latency_ms.items():
        if len(column) != len(sizes) or not all(0 < one < math.inf for one in column):
            raise wrong(f"latency_ms.{kind}", f"{len(sizes)} numbers above 0, one for each of the batches", list(column))
