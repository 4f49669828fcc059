"""Jobs by name. People find the youngest job of a name that they may see; a name is free again when its job has ended. Names
are read from the state as jobs come, so that a look costs the same with ten jobs and with a hundred thousand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from fairlead.core.errors import near_names
from fairlead.core.job import Phase
from fairlead.engine.state import State

MOST_COMPARED = 200
"""Jobs whose names are compared with one that nobody has; to compare is slow, and everybody waits."""

MOST_LOOKED_AT = 10_000
"""Jobs among which these are looked for: where others have many, one's own may be far back."""


class Names:
    """Ask it under the control plane's lock only."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}
        self._read = 0

    def called(self, state: State, name: str) -> Sequence[int]:
        """The numbers of all jobs of a name, the youngest last."""
        for number in range(self._read, state.next_number):
            self._numbers.setdefault(state.job_of[number].name, []).append(number)
        self._read = state.next_number
        return self._numbers.get(name, ())

    def near(self, state: State, name: str, may_see: Callable[[int], bool]) -> list[str]:
        """Names like it, of the youngest that one may see."""
        youngest = islice(range(state.next_number - 1, -1, -1), MOST_LOOKED_AT)
        numbers = (number for number in youngest if may_see(number))
        return near_names(name, dict.fromkeys(state.job_of[number].name for number in islice(numbers, MOST_COMPARED)))

    def taken(self, state: State, name: str) -> bool:
        """At most the youngest of a name has not ended."""
        numbers = self.called(state, name)
        return bool(numbers) and bool(state.store.arrays["phase"][numbers[-1]] <= Phase.RUNNING)
