"""What people are told of who waits, where "others go first" is not all: why it has no company while others share, and that its
wait counts anew if it has run before. It decides nothing, and looks at everybody who looks alike once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fairlead.core.cluster import Ints
from fairlead.core.reasons import Reason, Unplaced
from fairlead.policies.horus.company import Look
from fairlead.policies.horus.floor import Floor

UNKNOWN = "nothing is predicted of its kind"
BEARS_NONE = "it bears no slowdown (most_slowdown)"
NOBODY_BEARS = "nobody may be slowed down here (slo)"
UNSEEN = "it may not be slowed down much, and how fast it is alone is not known yet"
TOO_SLOW = "with any who would have room for it, one of the two would be slower than it may be"
ANEW = "the longest wait goes first, and its own counts from when it last stopped"


def reasons_of(floor: Floor, looks: Mapping[int, Look], waiting: Iterable[int], stopped: Ints) -> dict[int, Reason]:
    """By number, of those who found no place and of whom there is more to say. `stopped` are those who have run before."""
    told: dict[tuple[int, bool], Reason | None] = {}
    reasons, before = dict[int, Reason](), set(stopped.tolist())
    for number in waiting:
        look, again = looks[number], number in before
        key = (id(look), again)
        if key not in told:
            told[key] = _reason(floor, look, again)
        if (reason := told[key]) is not None:
            reasons[number] = reason
    return reasons


def _reason(floor: Floor, look: Look, stopped: bool) -> Reason | None:
    kinds = [kind for kind in floor.types_of(look) if floor.view.capacity[kind] >= look.workers]
    free = max((floor.idle_on(kind) for kind in kinds), default=look.workers)
    if free >= look.workers:  # or too few are up for it: neither others nor company are what it waits for
        return None
    why, anew = _why_alone(floor, look, kinds), ANEW if stopped else ""
    return Unplaced.outranked(look.workers, free=free, alone=why, anew=anew) if why or anew else None


def _why_alone(floor: Floor, look: Look, kinds: list[int]) -> str:
    judge = floor.judge
    if judge.refuses(look):
        return BEARS_NONE if look.most_slowdown < math.inf else NOBODY_BEARS
    usage = judge.view.rates.usage
    if usage is not None and all(math.isinf(usage.memory_gb[look.row, kind]) for kind in kinds):
        return UNKNOWN
    if judge.limit(look) < math.inf and not any(judge.can_tell(look, kind) for kind in kinds):
        return UNSEEN
    slow = False
    for kind, looks, _ in floor.open_to(look):
        both = (*looks, look)
        if judge.cost(both, kind) is not None:  # they have no room for it on their hosts, or are left alone for now
            return ""
        slow = slow or (any(judge.limit(one) < math.inf for one in both) and judge.fit(both, kind))
    return TOO_SLOW if slow else ""
