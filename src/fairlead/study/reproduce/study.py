"""What a study is: a name, the cases it needs at a scale, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from fairlead.study.reproduce.case import Answers, Case
from fairlead.study.reproduce.findings import Findings


class Sizes(Protocol):
    """How large a reproduction is; what else there is to say of it is the paper's own."""

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


S = TypeVar("S", bound=Sizes)


def usual_size(scale: Sizes) -> str:
    return scale.size


@dataclass(frozen=True)
class Study(Generic[S]):
    name: str
    title: str
    cases: Callable[[S], Iterable[Case]]
    read: Callable[[S, Answers], Findings]
    size: Callable[[S], str] = usual_size  # on what the rows stand, where they do not say so themselves
