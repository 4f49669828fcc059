"""Observations of co-located jobs: slowdowns beyond a limit, and jobs that ran out of memory. Slowdowns of two kinds are kept
and replace predictions, so that the same mistake is not made again. It places no job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.core.events import Memo
from fairlead.core.observed_slowdowns import ROUNDING
from fairlead.core.snapshot import Snapshot
from fairlead.policies.colocation.pairing.colocation_cost import (
    ColocationCost,
    JobSignature,
    PairSlowdowns,
    job_signatures,
)
from fairlead.policies.colocation.pairing.slots import ColocatedGroup

MEMORY_MARGIN = 1e-6
"""A job that ran out of memory needs this much more than there was."""


@dataclass(frozen=True)
class ColocationMemo:
    """The memo: slowdowns by pair of kinds, the memory that failed jobs need, and the failures handled so far."""

    slowdowns: PairSlowdowns = field(default_factory=dict)
    min_memory_gb: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_memo(cls, memo: Memo) -> ColocationMemo:
        if memo is None:
            return cls()
        slowdowns = {(str(one), str(two), int(type_)): float(factor) for one, two, type_, factor in memo["slower"]}
        return cls(slowdowns, memo["least_gb"], memo["failures"])

    def to_memo(self) -> Memo:
        slowdowns = [[*pair, factor] for pair, factor in sorted(self.slowdowns.items())]
        return {"slower": slowdowns, "least_gb": dict(self.min_memory_gb), "failures": dict(self.failures)}

    def signatures(self, view: Snapshot) -> dict[int, JobSignature]:
        return job_signatures(view, self.min_memory_gb)

    def with_failures(self, view: Snapshot, costs: ColocationCost) -> ColocationMemo:
        """A job that failed since the last decision needs more memory than there was (Horus §4.2.3)."""
        jobs = view.jobs
        handled = [self.failures.get(str(number), 0) for number in jobs.number.tolist()]
        failed = (jobs.failures > np.array(handled, dtype=np.int64)).nonzero()[0].tolist()
        if not failed:
            return self
        signatures = self.signatures(view)
        present = {str(number) for number in jobs.number[jobs.failures > 0].tolist()}
        memory = {number: gb for number, gb in self.min_memory_gb.items() if number in present}
        counts = {number: count for number, count in self.failures.items() if number in present}
        for at in failed:
            number = int(jobs.number[at])
            counts[str(number)] = int(jobs.failures[at])
            place = int(view.device_map.last[number])
            if place >= 0 and not jobs.running[at]:
                memory[str(number)] = max(memory.get(str(number), 0.0), _more_than_left_gb(view, costs, signatures, place))
        return replace(self, min_memory_gb=memory, failures=counts)


def _more_than_left_gb(view: Snapshot, costs: ColocationCost, signatures: Mapping[int, JobSignature], place: int) -> float:
    """A little more memory than other jobs leave on an accelerator, and at most all of it."""
    type_ = int(view.cluster.type_of[place])
    present = [number for number in view.jobs.runners.number.tolist() if place in view.device_map.of(number)]
    device, used = costs.device_memory_gb[type_], sum(costs.memory_gb(signatures[number], type_) for number in present)
    return min(max(device - used, 0.0) * (1 + MEMORY_MARGIN) + MEMORY_MARGIN, device)


def exceeds_limit(group: ColocatedGroup, slowdowns: list[float], costs: ColocationCost) -> bool:
    """Whether a member is slower than it tolerates."""
    return any(factor > costs.slowdown_limit(job) * (1 + ROUNDING) for factor, job in zip(slowdowns, group.signatures))


def slowdowns_with(group: ColocatedGroup, slowdowns: list[float], leaver: int) -> dict[tuple[str, str, int], float]:
    """The slowdowns between a job that leaves and the others, by kind. In larger groups all slowdown is attributed to it."""
    at = group.members.index(leaver)
    mine, found = group.signatures[at], dict[tuple[str, str, int], float]()
    for other, job in enumerate(group.signatures):
        if other != at:
            for one, two, factor in ((job.kind, mine.kind, slowdowns[other]), (mine.kind, job.kind, slowdowns[at])):
                if factor > 0:
                    found[one, two, group.type] = max(factor, found.get((one, two, group.type), 1.0))
    return found
