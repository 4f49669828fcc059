"""What is made of facts that are told again and again: it takes in those that are new, and begins anew where some are gone,
which is another history. It knows its facts by how their names begin, and nothing of what they say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from fairlead.core.plan import Facts


class Followed(ABC):
    """A cache: it follows from the facts it is given last."""

    begins: ClassVar[str]
    """How the names of its facts begin."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._facts: Facts = self._known
        self._forget()

    def follow(self, facts: Facts) -> None:
        """Take in what is new."""
        if facts is self._facts:
            return
        mine = {name: value for name, value in facts.items() if name.startswith(self.begins)}
        if any(name not in mine for name in self._known):
            self._known = {}
            self._forget()
        for name, value in mine.items():
            before = self._known.get(name)
            if before is not value and before != value:
                self._take(value)
        self._known, self._facts = mine, facts

    @abstractmethod
    def _forget(self) -> None:
        """Be as if nothing had been told."""

    @abstractmethod
    def _take(self, fact: Facts) -> None: ...
