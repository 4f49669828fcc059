"""A throughput table of what a cluster has measured. What it has not is filled in from what it has, and marked as guessed. It
knows rates by name, and not who measured them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fairlead.core.errors import InputError
from fairlead.workloads.table_draft import Draft, Key

MEASURED, GUESSED = "measured", "guessed"


class MeasuredRate(NamedTuple):
    kind: str
    workers: int
    type: str
    spread: bool  # on more nodes than a gang of this size needs
    steps_per_s: float


def drafted(rates: Iterable[MeasuredRate], types: Sequence[str], source: Path) -> Draft:
    """Of spread and not, the one that was not measured is like the other. `types` are filled in with the mean of others."""
    draft = Draft(source)
    for one in rates:
        key: Key = (one.kind, one.workers)
        (draft.spread if one.spread else draft.alone)[key, one.type] = one.steps_per_s
        draft.sources.setdefault(key, {})[MEASURED] = None
    if not draft.sources:
        raise InputError("rates", "a cluster with estimation 'measured' whose jobs have told of their steps")
    for table, other in ((draft.alone, draft.spread), (draft.spread, draft.alone)):
        for place, rate in other.items():
            table.setdefault(place, rate)
    for key in draft.sources:
        for table in (draft.alone, draft.spread):
            seen = [rate for (of, _), rate in table.items() if of == key]
            for name in types:
                if (key, name) not in table:
                    table[key, name] = sum(seen) / len(seen)
                    draft.sources[key][GUESSED] = None
    return draft
