"""How noisy a job's gradients are, from the squared norms of the parts of a batch and of their mean (Pollux §3.1, after
McCandlish et al., 2018). With K parts of b samples each, of mean squared norm `parts` and squared norm `whole` of the mean,

    sqr = (K · whole − parts) / (K − 1),   var = K / (K − 1) · (parts − whole) · b / smallest

are unbiased for the squared norm of the true gradient and for the variance of one at the smallest batch. Single steps say
little, so their means over the last hundred or so count. A batch of m times the smallest is worth

    gain(m) = (var + sqr) / (var / m + sqr)

steps of the smallest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STEPS = 100
"""Over which means are taken, older ones less and less."""


@dataclass
class Noise:
    smallest: int
    steps: int = 0
    sqr: float = 0.0
    var: float = 0.0

    def see(self, parts: float, whole: float, count: int, batch_size: int) -> None:
        """One step with a batch in so many parts; with one part there is nothing to compare."""
        if count < 2:
            return
        self.steps += 1
        share = 1 / min(self.steps, STEPS)
        self.sqr += share * ((count * whole - parts) / (count - 1) - self.sqr)
        self.var += share * (count / (count - 1) * (parts - whole) * (batch_size / count) / self.smallest - self.var)

    @property
    def known(self) -> tuple[float, float] | None:
        """`sqr` and `var`; None as long as they are those of chance alone."""
        return (max(self.sqr, 0.0), max(self.var, 0.0)) if self.steps and self.sqr + self.var > 0 else None

    def gain(self, batch_size: float) -> float:
        if self.known is None:
            return 1.0
        sqr, var = self.known
        below = var * self.smallest / batch_size + sqr
        return (var + sqr) / below if below > 0 else 1.0


# In how many passes a worker does its part of a batch: the one rule, for jobs that do it, for schedulers that reckon with it
# and for simulations of both. Below the core and the client, without imports: numbers and arrays of them are treated alike.

_NEARLY = 1e-8


def accumulation_steps(batch_size: Any, workers: Any, most_local: Any, twice_above: Any) -> Any:
    """So few that no pass has more than `most_local` samples. A worker that is alone goes twice at least where the batch is
    larger than `twice_above`: how noisy gradients are cannot be told from a single one."""
    few = -((_NEARLY - batch_size / (workers * most_local)) // 1)
    return few + ((few < 2) & (workers == 1) & (batch_size > twice_above + _NEARLY))
