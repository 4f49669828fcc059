"""What jobs say about themselves under names of their own, gathered for the journal: one event for each name and second,
whoever and however many said it, and no more names than can be kept. The last value counts."""

from __future__ import annotations

import logging
import math

import numpy as np

from fairlead.core.events import MetricsReported
from fairlead.core.losses import DERIVED
from fairlead.core.snapshot import Snapshot
from fairlead.runtime.orders import MOST_METRICS, Metric

log = logging.getLogger("fairlead.cluster")

PAUSE_S = 1.0
MOST_NAMES = 1000
"""Of all jobs together: a name is a column over all of them."""


class Measures:
    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}  # by job
        self._known: set[str] = set()
        self._full = False
        self._held: dict[str, dict[int, float]] = {}
        self._last_s = -math.inf

    def know(self, view: Snapshot) -> None:
        """After a restart: what was said before."""
        reported = set(view.jobs.metrics) - DERIVED
        self._known |= reported
        for name in reported:
            for number in view.jobs.number[~np.isnan(view.jobs.metric(name))].tolist():
                self._names.setdefault(number, set()).add(name)

    def hear(self, said: Metric) -> None:
        """Names that are too many are passed over, and those of what the state makes of reports."""
        if said.name in DERIVED:
            return
        mine = self._names.setdefault(said.job, set())
        if said.name not in mine:
            if len(mine) >= MOST_METRICS:
                return
            if said.name not in self._known and len(self._known) >= MOST_NAMES:
                if not self._full:
                    log.warning("no more names of metrics are kept", extra={"names": len(self._known)})
                self._full = True
                return
            mine.add(said.name)
            self._known.add(said.name)
        self._held.setdefault(said.name, {})[said.job] = said.value

    @property
    def due_s(self) -> float:
        """When what is held back is to be told."""
        return self._last_s + PAUSE_S if self._held else math.inf

    def told(self, now: float) -> list[MetricsReported]:
        """All that is held back."""
        held, self._held = self._held, {}
        if held:
            self._last_s = now
        return [
            MetricsReported(now, name, np.array(list(values), dtype=np.int64), np.array(list(values.values())))
            for name, values in held.items()
        ]

    def forget(self, job: int) -> None:
        self._names.pop(job, None)
