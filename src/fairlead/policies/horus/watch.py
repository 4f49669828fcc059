"""What is seen of those who run together: who is slower than it may be, and which of them leaves; whose memory did not suffice.
What was seen is remembered by kind, so that the same two are not put together again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.horus.company import ROUNDING, Judge, Look
from fairlead.policies.horus.floor import Group

MORE = 1e-6
"""By so much more than there was a job needs that ran out of memory."""


@dataclass(frozen=True)
class Seen:
    """The memo. `least_gb` is what a job needs at least, by its number, since it ran out of memory; `failures` are those that
    have been reckoned with."""

    apart: tuple[tuple[str, str], ...] = ()
    least_gb: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_memo(cls, memo: Memo) -> Seen:
        if memo is None:
            return cls()
        apart = tuple((str(one), str(two)) for one, two in memo["apart"])
        return cls(apart, memo["least_gb"], memo["failures"])

    def to_memo(self) -> Memo:
        data: dict[str, Any] = {"apart": [list(pair) for pair in self.apart]}
        return {**data, "least_gb": dict(self.least_gb), "failures": dict(self.failures)}

    def but_apart(self, kinds: set[tuple[str, str]]) -> Seen:
        new = sorted(kinds - set(self.apart))
        return Seen((*self.apart, *new), self.least_gb, self.failures) if new else self

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
            place = int(view.holdings.last[number])
            if place >= 0 and not jobs.running[at]:
                least[str(number)] = max(least.get(str(number), 0.0), _left_gb(view, judge, looks, place))
        return Seen(self.apart, least, counts)


def _left_gb(view: Snapshot, judge: Judge, looks: Mapping[int, Look], place: int) -> float:
    """A little more than others leave on an accelerator, and at most all of it."""
    kind = int(view.cluster.type_of[place])
    here = [number for number in view.jobs.runners.number.tolist() if place in view.holdings.of(number)]
    there, used = judge.there_gb[kind], sum(judge.need_gb(looks[number], kind) for number in here)
    return min(max(there - used, 0.0) * (1 + MORE) + MORE, there)


def too_slow(group: Group, view: Snapshot, judge: Judge) -> bool:
    """Whether somebody of a group is seen to be slower than it may be."""
    if all(math.isinf(judge.limit(look)) for look in group.looks):
        return False
    jobs, rates = view.jobs.of(np.array(group.members)), view.rates
    nodes = len({view.cluster.node_of_accelerator[place] for place in group.places})
    spread = nodes > -(-len(group.places) // int(view.cluster.largest_node_of_type[group.kind]))
    for look, rate, since in zip(group.looks, jobs.rate.tolist(), jobs.since_s.tolist()):
        alone = float((rates.spread if spread else rates.alone)[look.row, group.kind])
        if rate > 0 and since <= view.time and alone > rate * judge.limit(look) * (1 + ROUNDING):
            return True
    return False
