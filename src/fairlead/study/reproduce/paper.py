"""A paper whose evaluation is run again: its studies, and the scales at which they can be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from fairlead.core.errors import UnknownName
from fairlead.study.reproduce.study import S, Study
from fairlead.study.reproduce.world import World

PUBLIC, TRIAL = ("small", "medium", "full"), "tiny"
"""The scales that people are offered, and the one that only shows that all of it runs: figures of it say nothing."""


@dataclass(frozen=True)
class Paper(Generic[S]):
    title: str  # whose evaluation, as in "Gavel"
    studies: tuple[Study[S], ...]
    scales: Mapping[str, S]
    introduction: Callable[[S, World], Sequence[str]]  # what holds for all studies, in paragraphs
    takes: Mapping[str, str] = field(default_factory=dict)  # by scale, about how long all studies take; where it is known

    def chosen(self, names: Sequence[str] = ()) -> tuple[Study[S], ...]:
        """The studies of these names, in the order of the paper; none named: all."""
        known = {study.name: study for study in self.studies}
        for name in names:
            if name not in known:
                raise UnknownName("study", name, known)
        return tuple(study for study in self.studies if not names or study.name in names)

    def scale(self, name: str) -> S:
        if name not in self.scales:
            raise UnknownName("scale", name, (*PUBLIC, TRIAL))
        return self.scales[name]
