"""Several admissions one behind the other, such as a quota for each user and then a limit for all. It knows its links by their
contract only."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.plan import Admitted
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Admission

# Who is kept at the door and why, one line of waiting jobs for each quota. A reason is made when somebody asks for it, so
# that
# a thousand jobs that wait cost nothing (ADR 0012).


class QuotaReasons(Mapping[int, Reason]):
    """`numbers` are ascending; the job in row i waits in line `lines[i]`, and `why(line)` is what its jobs are told."""

    def __init__(self, numbers: Ints, lines: Ints, why: Callable[[int], Reason]) -> None:
        self._numbers, self._lines, self._why = numbers, lines, why

    def __getitem__(self, number: int) -> Reason:
        at = int(self._numbers.searchsorted(number))
        if at == len(self._numbers) or self._numbers[at] != number:
            raise KeyError(number)
        return self._why(int(self._lines[at]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers.tolist())

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class AdmissionChain:
    """A job enters when every link lets it in. A link sees those whom the links before it let through: who waits for one link
    stands in nobody's way at a later one, and keeps its room in the earlier ones."""

    links: tuple[Admission, ...]

    def admit(self, view: Snapshot) -> Admitted:
        told: list[Mapping[int, Reason]] = []
        for link in self.links:
            if not len(view.queued):
                break
            through = link.admit(view)
            passes = np.isin(view.queued.number, through.jobs)
            if through.reasons:
                told.append(through.reasons)
            if through.others is not None and not passes.all():
                told.append(_all_told(view, passes, through.others))
            view = view.with_changes(queued=view.queued.only(passes))
        return Admitted(view.queued.number, ChainMap(*told) if told else {})  # type: ignore[arg-type]


def _all_told(view: Snapshot, passes: np.typing.NDArray[np.bool_], reason: Reason) -> QuotaReasons:
    numbers = view.queued.number[~passes]
    return QuotaReasons(numbers, np.zeros_like(numbers), lambda _: reason)


# Jobs at the door in several lines, each with a limit of its own: who enters is the front of each line, as far as there is
# room. What a line stands for (a user, a model) and what is counted in it is said by who calls this.


def admit_by_quota(numbers: Ints, line: Ints, asks: Ints, inside: Ints, limits: Floats, what: Callable[[int], str]) -> Admitted:
    """Job i, in order of submission, stands in line `line[i]` and takes `asks[i]` of what the line's jobs may take together,
    `limits[line]`, of which those inside have taken `inside[line]`. Nobody overtakes in a line. Who asks for more than the
    limit enters when nobody of its line is inside, so that it cannot wait for ever. `what(line)` is counted, in words."""
    short = line.astype(np.uint16) if len(limits) <= 1 << 16 else line  # numpy sorts these in a tenth of the time
    order = short.argsort(kind="stable")
    mine, wanted = line[order], asks[order]
    total = wanted.cumsum()
    first = mine.searchsorted(mine)  # where each one's line begins
    demand = inside[mine] + total - total[first] + wanted[first]
    enters = demand <= limits[mine]
    enters |= (first == np.arange(len(mine))) & (inside[mine] == 0)
    entering = np.zeros(len(line), dtype=np.bool_)
    entering[order[enters]] = True
    if enters.all():
        return Admitted(numbers)

    taken = inside + np.bincount(line[entering], asks[entering], minlength=len(inside))

    def why(which: int) -> Reason:
        return Unplaced.not_admitted(what(which), demand=float(taken[which]), limit=float(limits[which]))

    return Admitted(numbers[entering], QuotaReasons(numbers[~entering], line[~entering], why))
