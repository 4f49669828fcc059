"""How jobs' batch sizes have changed so far: what a decision may know of their adaptation. Jobs report them; what they will be
nobody here knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from fairlead.core.job import Job, batch_size_of
from fairlead.core.schedule import departure

BATCH_SIZE = "batch_size"
"""The name under which jobs report the batch size that they run with from now on."""

LARGEST = 2.0**53

Look: TypeAlias = tuple[int, int, int]
"""The code of a kind, workers, and a batch size that is not the kind's own."""


class Regime(NamedTuple):
    """A stretch of training at one batch size, from so many steps on."""

    batch_size: int
    from_steps: float


@dataclass
class Adaptations:
    """Of all jobs that have reported a batch size. The state writes it, others read it."""

    regimes: dict[int, tuple[Regime, ...]] = field(default_factory=dict)
    """By number, the present one last; each ends where the next begins."""
    looks: dict[Look, int] = field(default_factory=dict)  # in the order in which they first occurred: 0, 1, …
    changes: int = 0  # how often a batch size has become another

    def __bool__(self) -> bool:
        return bool(self.regimes)

    def note(self, number: int, size: float, steps: float, kind: str, code: int, workers: int) -> None:
        """A job says its batch size when it has done so many steps. What it did at later steps was lost with a node."""
        if not 1 <= size < LARGEST:
            return
        past = self.regimes.get(number, ())
        kept = tuple(regime for regime in past if regime.from_steps < steps)
        same = bool(kept) and kept[-1].batch_size == int(size)
        self.regimes[number] = kept if same else (*kept, Regime(int(size), steps))
        own = batch_size_of(kind)
        self.changes += (past[-1].batch_size if past else own) != int(size)
        if own is not None and own != int(size):
            self.looks.setdefault((code, workers, int(size)), len(self.looks))

    def of(self, numbers: Collection[int]) -> Adaptations:
        """A copy with some of the jobs."""
        regimes = {number: each for number, each in self.regimes.items() if number in numbers}
        return Adaptations(regimes, dict(self.looks), self.changes)

    def to_data(self) -> dict[str, Any]:
        regimes = [(number, [*map(list, each)]) for number, each in self.regimes.items()]
        return {"regimes": regimes, "looks": [*map(list, self.looks)], "changes": self.changes}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Adaptations:
        regimes = {number: tuple(Regime(*one) for one in each) for number, each in data["regimes"]}
        looks: dict[Look, int] = {(kind, workers, size): at for at, (kind, workers, size) in enumerate(data["looks"])}
        return cls(regimes, looks, data["changes"])


def flags_of(job: Job, regimes: Sequence[Regime], overran: bool, done: float = 0.0, *, ended: bool = False) -> tuple[str, ...]:
    """What a job that has `done` some of its steps, and maybe has `ended`, does that its owner did not declare; it is
    scheduled like any other."""
    flags = ["did more steps than it declared"] if overran else []
    sizes = [regime.batch_size for regime in regimes]
    falls = [size for size, before in zip(sizes[1:], sizes) if size < before]
    if job.mode == "static" and len(sizes) > 1:
        flags.append(f"declared static, and its batch size became {sizes[-1]}")
    elif job.mode == "accordion" and len(set(sizes)) > 2:
        flags.append(f"declared accordion, and had {len(set(sizes))} batch sizes")
    elif job.mode == "gns" and falls:
        flags.append(f"declared gns, and its batch size fell to {falls[0]}")
    elif job.schedule and (departed := departure(job.schedule, job.steps, regimes, done, ended=ended)):
        flags.append(f"declared a schedule, and {departed}")
    return tuple(flags)
