"""What starting and saving cost a simulated job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.core.job import model_of


@dataclass(frozen=True)
class Costs:
    """Seconds lost by starting, saving and loading; `by_kind` gives some kinds values of their own.

    A job checkpoints when it is suspended, and every `checkpoint_every_s` while it runs; each save takes `checkpoint_s`, in
    which it makes no progress. `restart_s` is paid by every start after the first, `launch_s` by the first.
    """

    launch_s: float = 0.0
    restart_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_every_s: float = math.inf
    by_kind: Mapping[str, Costs] = field(default_factory=dict)

    @property
    def longest_start_s(self) -> float:
        """What a start takes at most, of whatever kind."""
        return max(max(cost.launch_s, cost.restart_s) for cost in (self, *self.by_kind.values()))

    def of(self, kind: str) -> Costs:
        """The costs of a kind: its own, or those given for its model, or those for all."""
        if not self.by_kind:
            return self
        return self.by_kind.get(kind) or self.by_kind.get(model_of(kind), self)
