"""What jobs take of an accelerator, and what company does to them by that (Horus §3.2, §4.1): who estimates rates alone in
whatever way has rates of pairs and the use of accelerators from here.

    rate of i beside k on t  =  rate of i alone on t / f(u_i, u_k),

u the utilization and f the slowdown: linear while both come to at most 100 % together, quadratic above
(`prediction/interference.py`). Predictions are plain numbers by kind, so that a journal says what was believed; who made them
is not its business. Where agents see what jobs take that have an accelerator to themselves, that takes the place of what was
predicted for their kind on that type: it is remembered as a fact, and replaced when a later one differs by more than a
tenth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.job import TIMED, model_of
from fairlead.core.snapshot import Snapshot
from fairlead.core.usage import BUSY, TAKEN_GB, Usage
from fairlead.prediction.interference import Slowdown
from fairlead.prediction.profiles import devices, profiles

BELOW, ABOVE = (0.99, 0.03, 0.10), (1.13, -2.85, 1.51, 2.59, 1.21, -1.45)
"""As fitted to 595 pairs that took turns on an H200."""
NOT_KNOWN = (100.0, math.inf)
TELLS = 0.1
"""A difference of uses that is worth remembering."""


@dataclass(frozen=True)
class Company:
    """`where` is who is told of in errors; the rest are parameters of estimations, which say what they are."""

    where: str
    uses: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    below: tuple[float, ...] = BELOW
    above: tuple[float, ...] = ABOVE
    profiles: str = ""
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind, (busy, memory) in self.uses.items():
            if not 0 <= busy <= 100:
                raise InputError(self.where, f"a utilization from 0 to 100 percent for {kind}", field="uses", value=busy)
            if not 0 <= memory < math.inf:
                raise InputError(self.where, f"GB of memory from 0 on for {kind}", field="uses", value=memory)
        for name, many in (("below", len(BELOW)), ("above", len(ABOVE))):
            given = getattr(self, name)
            if len(given) != many or not all(map(math.isfinite, given)):
                raise InputError(self.where, f"{many} finite coefficients", field=name, value=given)
        if self.profiles and self.profiles not in devices():
            expected = f"a device whose profiles ship ({near_or_all(self.profiles, devices())})"
            raise InputError(self.where, expected, field="profiles", value=self.profiles)

    def of(self, view: Snapshot, kinds: Sequence[str], alone: Floats) -> tuple[Floats, Usage]:
        """Of classes of these kinds and rates: rates in pairs, and what each takes."""
        types = view.cluster.type_names
        uses = {**_measured(self.profiles), **self.uses}
        predicted = [uses.get(kind, uses.get(model_of(kind), NOT_KNOWN)) for kind in kinds]
        found = [[view.learned.get(_fact(kind, name), use) for name in types] for kind, use in zip(kinds, predicted)]
        busy, memory = np.moveaxis(np.array(found, dtype=float).reshape(len(kinds), len(types), 2), 2, 0)  # classes × types
        about = np.array([not self.types or name in self.types for name in types])
        there = np.array([kind.memory_gb for kind in view.cluster.types])
        both = memory[:, None] + memory
        fits = about & (both <= there) & np.isfinite(both)
        slower = Slowdown(self.below, self.above).of(*np.broadcast_arrays(busy[:, None], busy[None, :]))
        paired = np.where(fits, alone[:, None, :] / slower, 0.0) * (alone > 0)[None, :, :]
        return paired, Usage(np.where(about, busy / 100, 1.0), np.where(about, memory, math.inf))


def uses_seen(view: Snapshot) -> dict[str, object]:
    """Facts that are new: what agents saw of those that run, of all of a kind on one type the mean. Who has no kind says
    nothing of others."""
    if BUSY not in view.jobs.metrics:
        return {}
    jobs, seen = view.jobs.runners, dict[str, list[tuple[float, float]]]()
    columns = (jobs.kind, jobs.type, jobs.metric(BUSY), jobs.metric(TAKEN_GB))
    for code, type_, busy, memory in zip(*(column.tolist() for column in columns)):
        kind = view.names.kinds[code]
        if kind != TIMED and math.isfinite(busy) and math.isfinite(memory):
            seen.setdefault(_fact(kind, view.cluster.type_names[type_]), []).append((min(100 * busy, 100.0), memory))
    means = {name: np.mean(uses, axis=0).tolist() for name, uses in seen.items()}
    return {name: use for name, use in means.items() if _tells(view.learned.get(name), use)}


def _measured(device: str) -> dict[str, tuple[float, float]]:
    """Utilization and memory, by kind, of a measured set."""
    known = profiles(device).alone if device else {}
    return {name: (one.utilization, one.memory_mb / 1024) for name, one in known.items()}


def _fact(kind: str, type_name: str) -> str:
    return f"use of {kind} on {type_name}"


def _tells(known: Any, use: list[float]) -> bool:
    return known is None or any(abs(now - before) > TELLS * before for now, before in zip(use, known))
