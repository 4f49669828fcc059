"""Of a group of jobs, trials of one search, those that do worst end at rungs on the way, so that the best get the accelerators
(Blox §8; successive halving, and HyperBand's brackets of it). A trial's progress is the share of its steps that it has done.

At a rung are all who are left of a bracket, once the last of them has got there; they are compared by what each has reported
last. Nobody is held up at a rung: who is faster goes on meanwhile and is judged where it then stands, so a policy that treats
the trials alike (least attained service) makes the comparison fair. Who did all its steps already is compared with the others,
and takes a place if it is among the best. Worst is who last reported what is no finite number, next to worst who got to a rung
and reported nothing; as many as may stay must have reported something. Somebody who is not let in yet is waited for. Who failed
or was cancelled counts among those who are out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.columns import JobColumns
from fairlead.core.device_map import NONE
from fairlead.core.errors import InputError
from fairlead.core.job import Phase
from fairlead.core.snapshot import Snapshot

MOST_ETA, MOST_TRIALS = 1000, 10**12
"""What is beyond them is a slip of the pen, and numbers that no column holds."""


@dataclass(frozen=True)
class Rung:
    """Where it is, as a share of the steps, and how many go on from there."""

    share: float
    stay: int


def rungs(trials: int, eta: int, halvings: int) -> list[Rung]:
    """So many trials, of which a share of 1/eta goes on at each rung; the last rung is at 1/eta of the steps."""
    return [Rung(float(eta) ** (k - 1 - halvings), max(1, trials // eta**k)) for k in range(1, halvings + 1)]


@dataclass(frozen=True)
class _OfGroups(ABC):
    eta: int = 3  # one in so many goes on
    metric: str = "loss"
    best: Literal["lowest", "highest"] = "lowest"

    part: ClassVar[str]

    def __post_init__(self) -> None:
        if not 2 <= self.eta <= MOST_ETA:
            wanted = f"a whole number from 2 to {MOST_ETA:,}"
            raise InputError(f"termination {self.part}", wanted, field="eta", value=self.eta)

    def finished_early(self, view: Snapshot) -> Ints:
        if not view.group_sizes or self.metric not in view.jobs.metrics:
            return NONE
        groups = view.jobs.group
        outside = set(view.queued.group.tolist()) | {view.names.groups.index(view.job_of[n].group) for n in view.blocked}
        out = [NONE]
        for group in np.unique(groups).tolist():
            size = view.group_sizes.get(group, 0)
            if size > 1 and group not in outside:
                members = view.jobs.rows[groups == group]
                if len(view.completed_trials):
                    through = view.completed_trials
                    members = np.sort(np.concatenate((members, through.rows[through.group == group])))
                for bracket, ladder in self._brackets(view.jobs.with_rows(members), size):
                    out.append(self._out(bracket, ladder))
        return np.sort(np.concatenate(out))

    @abstractmethod
    def _brackets(self, members: JobColumns, size: int) -> Iterator[tuple[JobColumns, Sequence[Rung]]]:
        """Of a group of so many, who is left or got through, as they compete with each other, and the rungs they come to."""

    def _out(self, bracket: JobColumns, ladder: Sequence[Rung]) -> Ints:
        left = bracket.phase <= int(Phase.RUNNING)
        if not left.any():
            return NONE
        behind = (bracket.steps_done / bracket.steps)[left].min()
        reached = [rung.stay for rung in ladder if behind >= rung.share]
        reported = bracket.metric(self.metric)
        silent = np.isnan(reported)
        if not reached or np.count_nonzero(~silent) < reached[-1]:
            return NONE
        diverged = np.isinf(reported)
        value = reported if self.best == "lowest" else -reported
        order = np.lexsort((np.where(silent | diverged, 0.0, value), silent + 2 * diverged))
        out = order[reached[-1] :]
        return bracket.number[out[left[out]]]


@dataclass(frozen=True)
class SuccessiveHalving(_OfGroups):
    """Of a group of n trials, n / eta^k go on at rung k, the last at 1/eta of the steps (Jamieson and Talwalkar 2016)."""

    part: ClassVar[str] = "successive-halving"

    def _brackets(self, members: JobColumns, size: int) -> Iterator[tuple[JobColumns, Sequence[Rung]]]:
        halvings = 0
        while self.eta ** (halvings + 1) <= size:
            halvings += 1
        yield members, rungs(size, self.eta, halvings)


@dataclass(frozen=True)
class HyperBand(_OfGroups):
    """Brackets of successive halving, from many trials with early rungs to few that run through (Li et al. 2018).

    Bracket s, from `brackets` − 1 down to 0, has ⌈brackets · eta^s / (s + 1)⌉ trials and s rungs. A job's place in its group
    (`group_order`, from 0) says in which it is; a larger group begins again from the first.
    """

    brackets: int = 4

    part: ClassVar[str] = "hyperband"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.brackets <= 20:
            raise InputError("termination hyperband", "a whole number from 1 to 20", field="brackets", value=self.brackets)
        if sum(self._trials) > MOST_TRIALS:
            wanted = f"so few that all brackets together have at most {MOST_TRIALS:,} trials at an eta of {self.eta}"
            raise InputError("termination hyperband", wanted, field="brackets", value=self.brackets)

    @property
    def _trials(self) -> list[int]:
        """Of each bracket, the one with the most rungs first."""
        return [-(-self.brackets * self.eta**s // (s + 1)) for s in range(self.brackets - 1, -1, -1)]

    def _brackets(self, members: JobColumns, size: int) -> Iterator[tuple[JobColumns, Sequence[Rung]]]:
        trials = self._trials
        ends = np.cumsum(trials)
        total = int(ends[-1])
        mine = ends.searchsorted(members.group_order % total, side="right")
        begun = np.clip(size % total - (ends - trials), 0, trials)  # of the last time through, those that are there
        for at, (whole, some) in enumerate(zip(trials, begun.tolist())):
            count = size // total * whole + int(some)
            yield members.only(mine == at), rungs(count, self.eta, self.brackets - 1 - at)
