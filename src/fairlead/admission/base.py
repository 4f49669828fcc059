"""What admissions share: queues with a limit each, the reasons of jobs that wait, and a chain of several admissions."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.plan import Admitted
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Admission


class QuotaReasons(Mapping[int, Reason]):
    """The reasons of jobs that wait for a quota, made on demand (ADR 0012). `numbers` ascend; job i waits in queue
    `queues[i]`."""

    def __init__(self, numbers: Ints, queues: Ints, why: Callable[[int], Reason]) -> None:
        self._numbers, self._queues, self._why = numbers, queues, why

    def __getitem__(self, number: int) -> Reason:
        at = int(self._numbers.searchsorted(number))
        if at == len(self._numbers) or self._numbers[at] != number:
            raise KeyError(number)
        return self._why(int(self._queues[at]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers.tolist())

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class AdmissionChain:
    """Several admissions in a row, such as a quota for each user and then a limit for all.

    A job is admitted when every link admits it. A link sees the jobs that the links before it admit: a job that waits for one
    link delays no job at a later one, and keeps its quota in the earlier ones."""

    links: tuple[Admission, ...]

    def admit(self, view: Snapshot) -> Admitted:
        """The jobs that all links admit."""
        reasons: list[Mapping[int, Reason]] = []
        for link in self.links:
            if not len(view.queued):
                break
            admitted = link.admit(view)
            passes = np.isin(view.queued.number, admitted.jobs)
            if admitted.reasons:
                reasons.append(admitted.reasons)
            if (other := admitted.others) is not None and not passes.all():
                waiting = view.queued.number[~passes]
                reasons.append(QuotaReasons(waiting, np.zeros_like(waiting), partial(_same, other)))
            view = view.with_changes(queued=view.queued.only(passes))
        return Admitted(view.queued.number, ChainMap(*reasons) if reasons else {})  # type: ignore[arg-type]


def _same(reason: Reason, _: int) -> Reason:
    return reason


def admit_by_quota(
    numbers: Ints, queue: Ints, demands: Ints, used: Ints, limits: Floats, what: Callable[[int], str]
) -> Admitted:
    """Admit the first jobs of each queue, as far as its limit allows.

    No job overtakes another in its queue. A job that demands more than the limit is admitted when no job of its queue is, so
    that it does not wait forever.

    Args:
        queue: By job, in order of submission.
        demands: By job.
        used: By queue, the demand of admitted jobs.
        limits: By queue, the maximum of that.
        what: The name of what a queue counts, for reasons.
    """
    short = queue.astype(np.uint16) if len(limits) <= 1 << 16 else queue  # numpy sorts these ten times faster
    order = short.argsort(kind="stable")
    mine, wanted = queue[order], demands[order]
    total = wanted.cumsum()
    first = mine.searchsorted(mine)  # where each queue begins
    demand = used[mine] + total - total[first] + wanted[first]
    enters = demand <= limits[mine]
    enters |= (first == np.arange(len(mine))) & (used[mine] == 0)
    entering = np.zeros(len(queue), dtype=np.bool_)
    entering[order[enters]] = True
    if enters.all():
        return Admitted(numbers)

    taken = used + np.bincount(queue[entering], demands[entering], minlength=len(used))

    def why(which: int) -> Reason:
        return Reasons.not_admitted(what(which), demand=float(taken[which]), limit=float(limits[which]))

    return Admitted(numbers[entering], QuotaReasons(numbers[~entering], queue[~entering], why))
