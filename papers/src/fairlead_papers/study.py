"""What a study is: a name, the cases it needs at a scale, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from fairlead.core.errors import UnknownName
from fairlead.experiments.cases import Answers, Case
from fairlead.experiments.inputs import ExperimentInputs
from fairlead_papers.findings import Findings


class StudyScale(Protocol):
    """How large a reproduction is. Each paper adds its own fields."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> str:
        """On what most rows stand, in a few words."""
        ...

    @property
    def description(self) -> str:
        """All of it, in one line."""
        ...


S = TypeVar("S", bound=StudyScale)


def usual_size(scale: StudyScale) -> str:
    return scale.size


@dataclass(frozen=True)
class Study(Generic[S]):
    name: str
    title: str
    cases: Callable[[S], Iterable[Case]]
    read: Callable[[S, Answers], Findings]
    size: Callable[[S], str] = usual_size  # on what the rows stand, where they do not say so themselves


# A paper whose evaluation is run again: its studies, and the scales at which they can be run.

PUBLIC, TRIAL = ("small", "medium", "full"), "tiny"
"""The scales that people are offered, and the one that only shows that all of it runs: figures of it say nothing."""


@dataclass(frozen=True)
class Paper(Generic[S]):
    title: str  # whose evaluation, as in "Gavel"
    studies: tuple[Study[S], ...]
    scales: Mapping[str, S]
    introduction: Callable[[S, ExperimentInputs], Sequence[str]]  # what holds for all studies, in paragraphs
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
