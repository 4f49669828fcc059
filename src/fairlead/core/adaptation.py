"""How jobs' batch sizes have changed so far: what a decision may know of a job's adaptation. Jobs report them; what they will
be nobody here knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

BATCH_SIZE = "batch_size"
"""The name under which jobs report the batch size that they run with from now on."""


class Regime(NamedTuple):
    """A stretch of training at one batch size, from so many steps on."""

    batch_size: int
    from_steps: float


Regimes: TypeAlias = Mapping[int, tuple[Regime, ...]]
"""By number, the regimes of jobs that have reported a batch size, the present one last. Each ends where the next begins."""
NO_REGIMES: Regimes = {}


def with_regime(past: tuple[Regime, ...], batch_size: int, steps: float) -> tuple[Regime, ...]:
    """A job reports a batch size when it has done so many steps. What it did at later steps was lost with a node."""
    kept = tuple(regime for regime in past if regime.from_steps < steps)
    if kept and kept[-1].batch_size == batch_size:
        return kept
    return (*kept, Regime(batch_size, steps))
