"""Termination of the worst trials of a search, so that the best get the accelerators (Blox §8; successive halving, and
HyperBand's brackets of it). The trials are the jobs of a group; the progress of a trial is the share of its steps that it has
done.

A rung is reached when the last trial of its bracket has got there. The trials are then compared by the values that they
reported last. No trial waits at a rung: a faster one continues and is judged by its later value, so a policy that treats trials
alike (least attained service) makes the comparison fair. A trial that has done all its steps is compared with the others.
Trials that last reported no finite number are worst, and before them come those that reported nothing; as many as may stay must
have reported a value. Trials that are not admitted yet are waited for. Failed and cancelled trials count as stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.columns import JobColumns
from fairlead.core.device_map import NONE
from fairlead.core.errors import InputError, require
from fairlead.core.job import Phase
from fairlead.core.snapshot import Snapshot

MAX_ETA, MAX_TRIALS = 1000, 10**12
"""Larger values are typing mistakes."""


@dataclass(frozen=True)
class Rung:
    """A share of the steps, and the number of trials that continue from there."""

    share: float
    stay: int


def rungs(trials: int, eta: int, halvings: int) -> list[Rung]:
    """The rungs of a bracket: a share of 1/eta continues at each; the last rung is at 1/eta of the steps."""
    return [Rung(float(eta) ** (k - 1 - halvings), max(1, trials // eta**k)) for k in range(1, halvings + 1)]


@dataclass(frozen=True)
class _GroupTermination(ABC):
    eta: int = 3  # one in `eta` jobs continues
    metric: str = "loss"  # name of the reported metric
    best: Literal["lowest", "highest"] = "lowest"  # whether low or high values are better

    part: ClassVar[str]

    def __post_init__(self) -> None:
        require(2 <= self.eta <= MAX_ETA, f"termination {self.part}", f"a whole number from 2 to {MAX_ETA:,}", "eta", self.eta)

    def finished_early(self, view: Snapshot) -> Ints:
        """The trials to end now."""
        if not view.group_sizes or self.metric not in view.jobs.metrics:
            return NONE
        groups = view.jobs.group
        not_admitted = set(view.queued.group.tolist()) | {view.names.groups.index(view.job_of[n].group) for n in view.blocked}
        stopped = [NONE]
        for group in np.unique(groups).tolist():
            size = view.group_sizes.get(group, 0)
            if size > 1 and group not in not_admitted:
                members = view.jobs.rows[groups == group]
                if len(view.completed_trials):
                    through = view.completed_trials
                    members = np.sort(np.concatenate((members, through.rows[through.group == group])))
                for bracket, ladder in self._brackets(view.jobs.with_rows(members), size):
                    stopped.append(self._stopped(bracket, ladder))
        return np.sort(np.concatenate(stopped))

    @abstractmethod
    def _brackets(self, members: JobColumns, size: int) -> Iterator[tuple[JobColumns, Sequence[Rung]]]:
        """The brackets of a group of so many trials: those that are left or completed, and their rungs."""

    def _stopped(self, bracket: JobColumns, ladder: Sequence[Rung]) -> Ints:
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
class SuccessiveHalving(_GroupTermination):
    """Of n trials in a group, continue n / eta^k at rung k; the last rung is at 1/eta of the steps (Jamieson 2016)."""

    part: ClassVar[str] = "successive-halving"

    def _brackets(self, members: JobColumns, size: int) -> Iterator[tuple[JobColumns, Sequence[Rung]]]:
        halvings = 0
        while self.eta ** (halvings + 1) <= size:
            halvings += 1
        yield members, rungs(size, self.eta, halvings)


@dataclass(frozen=True)
class HyperBand(_GroupTermination):
    """Run brackets of successive halving: from many trials with early rungs to few that run all steps (Li et al. 2018).

    Bracket s, from `brackets` − 1 down to 0, has ⌈brackets · eta^s / (s + 1)⌉ trials and s rungs. The position of a job in its
    group (`group_order`, from 0) determines its bracket; a larger group begins again with the first bracket.
    """

    brackets: int = 4  # number of brackets

    part: ClassVar[str] = "hyperband"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.brackets <= 20, "termination hyperband", "a whole number from 1 to 20", "brackets", self.brackets)
        if sum(self._trials) > MAX_TRIALS:
            wanted = f"so few that all brackets together have at most {MAX_TRIALS:,} trials at an eta of {self.eta}"
            raise InputError("termination hyperband", wanted, field="brackets", value=self.brackets)

    @property
    def _trials(self) -> list[int]:
        """The trials of each bracket, the one with the most rungs first."""
        return [-(-self.brackets * self.eta**s // (s + 1)) for s in range(self.brackets - 1, -1, -1)]

    def _brackets(self, members: JobColumns, size: int) -> Iterator[tuple[JobColumns, Sequence[Rung]]]:
        trials = self._trials
        ends = np.cumsum(trials)
        total = int(ends[-1])
        mine = ends.searchsorted(members.group_order % total, side="right")
        begun = np.clip(size % total - (ends - trials), 0, trials)  # trials of the last, incomplete pass
        for at, (whole, some) in enumerate(zip(trials, begun.tolist())):
            count = size // total * whole + int(some)
            yield members.only(mine == at), rungs(count, self.eta, self.brackets - 1 - at)
