"""What a study is: a name, the cases it needs at a scale, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairlead.study.reproduce.case import Answers, Case
from fairlead.study.reproduce.findings import Findings
from fairlead.study.reproduce.scale import Scale


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    cases: Callable[[Scale], Iterable[Case]]
    read: Callable[[Scale, Answers], Findings]
    size: Callable[[Scale], str] = lambda scale: scale.size  # on what the rows stand, where they do not say so themselves
