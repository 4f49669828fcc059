"""Who is kept at the door and why, one line of waiting jobs for each quota. A reason is made when somebody asks for it, so that
a thousand jobs that wait cost nothing (ADR 0012)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fairlead.core.cluster import Ints
from fairlead.core.reasons import Reason


class HeldBack(Mapping[int, Reason]):
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
