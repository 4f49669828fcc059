"""The agent's own lease. The control plane counts on it: when it has heard nothing from an agent for the term, what ran there
is stopping without being told. Pure; whoever asks brings the time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LeaseTerm:
    term_s: float
    since: float = -math.inf  # never renewed: over

    def renewed(self, at: float) -> LeaseTerm:
        """`at` is when the agent *asked*: the control plane counts from its answer, which is later. An answer that was
        overtaken by a later one takes nothing away."""
        return replace(self, since=max(self.since, at))

    def remaining(self, now: float) -> float:
        return max(0.0, self.since + self.term_s - now)

    def is_over(self, now: float) -> bool:
        return self.remaining(now) <= 0
