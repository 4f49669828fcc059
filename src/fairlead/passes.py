"""In how many passes a worker does its part of a batch: the one rule, for jobs that do it, for schedulers that reckon with it
and for simulations of both. Below the core and the client, without imports: numbers and arrays of them are treated alike."""

from __future__ import annotations

from typing import Any

_NEARLY = 1e-8


def passes_of(batch_size: Any, workers: Any, most_local: Any, twice_above: Any) -> Any:
    """So few that no pass has more than `most_local` samples. A worker that is alone goes twice at least where the batch is
    larger than `twice_above`: how noisy gradients are cannot be told from a single one."""
    few = -((_NEARLY - batch_size / (workers * most_local)) // 1)
    return few + ((few < 2) & (workers == 1) & (batch_size > twice_above + _NEARLY))
