"""Jobs by name. People find the youngest job of a name; a name is free again when its job has ended. Names are read from the
state as jobs come, so that a look costs the same with ten jobs and with a hundred thousand."""

from __future__ import annotations

from fairlead.core.job import Phase
from fairlead.engine.state import State


class Names:
    """Ask it under the control plane's lock only."""

    def __init__(self) -> None:
        self._youngest: dict[str, int] = {}
        self._read = 0

    def find(self, state: State, name: str) -> int | None:
        for number in range(self._read, state.next_number):
            self._youngest[state.job_of[number].name] = number
        self._read = state.next_number
        return self._youngest.get(name)

    def taken(self, state: State, name: str) -> bool:
        number = self.find(state, name)
        return number is not None and state.store.arrays["phase"][number] <= Phase.RUNNING
