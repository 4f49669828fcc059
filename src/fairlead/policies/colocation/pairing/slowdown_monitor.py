"""What is seen of those who run together: who is slower than it may be, and whose memory did not suffice. What was seen of two
kinds is remembered and believed, so that the same mistake is not made again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.colocation.pairing.compatibility import ROUNDING, SURE, Judge, Look
from fairlead.policies.colocation.pairing.slots import Group

MORE = 1e-6
"""By so much more than there was a job needs that ran out of memory."""


@dataclass(frozen=True)
class Seen:
    """The memo. `least_gb` is what a job needs at least, by its number, since it ran out of memory; `failures` are those that
    have been reckoned with."""

    slower: Mapping[tuple[str, str, int], float] = field(default_factory=dict)  # a kind beside another, on a type
    least_gb: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_memo(cls, memo: Memo) -> Seen:
        if memo is None:
            return cls()
        slower = {(str(one), str(two), int(kind)): float(factor) for one, two, kind, factor in memo["slower"]}
        return cls(slower, memo["least_gb"], memo["failures"])

    def to_memo(self) -> Memo:
        slower = [[*who, factor] for who, factor in sorted(self.slower.items())]
        return {"slower": slower, "least_gb": dict(self.least_gb), "failures": dict(self.failures)}

    def and_slower(self, found: Mapping[tuple[str, str, int], float]) -> Seen:
        return replace(self, slower={**self.slower, **found}) if found else self

    def after_failures(self, view: Snapshot, judge: Judge, looks: Mapping[int, Look]) -> Seen:
        """Whoever failed since needs more than there was where it stood (Horus §4.2.3)."""
        jobs = view.jobs
        known = [self.failures.get(str(number), 0) for number in jobs.number.tolist()]
        failed = (jobs.failures > np.array(known, dtype=np.int64)).nonzero()[0].tolist()
        if not failed:
            return self
        here = {str(number) for number in jobs.number[jobs.failures > 0].tolist()}
        least = {number: gb for number, gb in self.least_gb.items() if number in here}
        counts = {number: count for number, count in self.failures.items() if number in here}
        for at in failed:
            number = int(jobs.number[at])
            counts[str(number)] = int(jobs.failures[at])
            place = int(view.device_map.last[number])
            if place >= 0 and not jobs.running[at]:
                least[str(number)] = max(least.get(str(number), 0.0), _left_gb(view, judge, looks, place))
        return replace(self, least_gb=least, failures=counts)


def _left_gb(view: Snapshot, judge: Judge, looks: Mapping[int, Look], place: int) -> float:
    """A little more than others leave on an accelerator, and at most all of it."""
    kind = int(view.cluster.type_of[place])
    here = [number for number in view.jobs.runners.number.tolist() if place in view.device_map.of(number)]
    there, used = judge.there_gb[kind], sum(judge.need_gb(looks[number], kind) for number in here)
    return min(max(there - used, 0.0) * (1 + MORE) + MORE, there)


def slowdowns_seen(group: Group, view: Snapshot) -> list[float]:
    """How many times slower than alone each of a group is; 0 for who has not begun to make steps, for who was never seen alone
    on so many nodes, and for whose reports are still of what was before."""
    jobs, rates = view.jobs.of(np.array(group.members)), view.rates
    nodes = len({view.cluster.node_of_accelerator[place] for place in group.places})
    spread = nodes > -(-len(group.places) // int(view.cluster.largest_node_of_type[group.kind]))
    rows = [look.row for look in group.looks]
    alone = (rates.spread if spread else rates.alone)[rows, group.kind]
    steady = (jobs.rate > 0) & (jobs.since_s <= view.time)
    off = rates.spread_uncertainty if spread and rates.spread_uncertainty is not None else rates.uncertainty
    if off is not None:
        steady &= off[rows, group.kind] < SURE
    if rates.current_since_s is not None:
        steady &= rates.current_since_s[view.jobs.number.searchsorted(group.members)] <= view.time
    factors: list[float] = np.where(steady, alone / np.where(steady, jobs.rate, 1.0), 0.0).tolist()
    return factors


def too_slow(group: Group, seen: list[float], judge: Judge) -> bool:
    """Whether somebody of a group is slower than it may be."""
    return any(factor > judge.limit(look) * (1 + ROUNDING) for factor, look in zip(seen, group.looks))


def harm_of(group: Group, seen: list[float], leaver: int) -> dict[tuple[str, str, int], float]:
    """What a leaver did to the others of its group and they to it, by kind. Among more than two all is put down to it."""
    at = group.members.index(leaver)
    mine, found = group.looks[at], dict[tuple[str, str, int], float]()
    for place, look in enumerate(group.looks):
        if place != at:
            for one, two, factor in ((look.kind, mine.kind, seen[place]), (mine.kind, look.kind, seen[at])):
                if factor > 0:
                    found[one, two, group.kind] = max(factor, found.get((one, two, group.kind), 1.0))
    return found
