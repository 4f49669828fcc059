"""The time that starts, saves and loads cost a simulated job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.core.job import model_of


@dataclass(frozen=True)
class Costs:
    """Seconds lost by starting, saving and loading; `by_kind` has other values for some job types.

    A job checkpoints when it is suspended, and every `checkpoint_every_s` while it runs; each save takes `checkpoint_s`,
    without progress. The first start takes `launch_s`, every later one `restart_s`.
    """

    launch_s: float = 0.0
    restart_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_every_s: float = math.inf
    by_kind: Mapping[str, Costs] = field(default_factory=dict)

    @property
    def longest_start_s(self) -> float:
        """The longest start of any job type."""
        return max(max(cost.launch_s, cost.restart_s) for cost in (self, *self.by_kind.values()))

    def of(self, kind: str) -> Costs:
        """The costs of a job type: its own, or those of its model, or those of all."""
        if not self.by_kind:
            return self
        return self.by_kind.get(kind) or self.by_kind.get(model_of(kind), self)
