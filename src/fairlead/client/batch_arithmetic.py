"""The gradient noise of a job, and in how many accumulation steps a worker computes its part of a batch. The noise comes from
the squared norms of the parts of a batch and of their mean (Pollux §3.1, after
McCandlish et al., 2018). With K parts of b samples each, of mean squared norm `parts` and squared norm `whole` of the mean,

    sqr = (K · whole − parts) / (K − 1),   var = K / (K − 1) · (parts − whole) · b / smallest

are unbiased for the squared norm of the true gradient and for the variance of one at the smallest batch. Single steps are
noisy, so the means over about the last hundred count. A batch of m times the smallest is worth

    gain(m) = (var + sqr) / (var / m + sqr)

steps of the smallest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_WINDOW = 100  # steps of the exponential means


@dataclass
class GradientNoise:
    """The running estimate of a job."""

    smallest: int
    steps: int = 0
    sqr: float = 0.0
    var: float = 0.0

    def update(self, parts: float, whole: float, count: int, batch_size: int) -> None:
        """Add a step whose batch had `count` parts; one part gives no information."""
        if count < 2:
            return
        self.steps += 1
        share = 1 / min(self.steps, _WINDOW)
        self.sqr += share * ((count * whole - parts) / (count - 1) - self.sqr)
        self.var += share * (count / (count - 1) * (parts - whole) * (batch_size / count) / self.smallest - self.var)

    @property
    def estimate(self) -> tuple[float, float] | None:
        """`sqr` and `var`; None while they are not meaningful."""
        return (max(self.sqr, 0.0), max(self.var, 0.0)) if self.steps and self.sqr + self.var > 0 else None

    def gain(self, batch_size: float) -> float:
        """The value of a step with a batch size, in steps of the smallest."""
        if self.estimate is None:
            return 1.0
        sqr, var = self.estimate
        below = var * self.smallest / batch_size + sqr
        return (var + sqr) / below if below > 0 else 1.0


_EPSILON = 1e-8


def accumulation_steps(batch_size: Any, workers: Any, max_local: Any, twice_above: Any) -> Any:
    """The fewest steps with at most `max_local` samples each; a single worker takes at least two for a batch above
    `twice_above`, since the noise cannot be estimated from one gradient. Jobs, schedulers and simulations share this rule. It
    takes numbers and numpy arrays."""
    few = -((_EPSILON - batch_size / (workers * max_local)) // 1)
    return few + ((few < 2) & (workers == 1) & (batch_size > twice_above + _EPSILON))
