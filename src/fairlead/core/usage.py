"""What a job is thought to take of each accelerator it runs on, as far as an estimation says so. It knows no rates."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.core.cluster import Floats

BUSY, TAKEN_GB = "accelerator_busy", "accelerator_memory_gb"
"""Metrics of jobs that agents measure, where a job has its accelerators to itself: the share of time in which they are busy,
and the memory in use on one. No job says them of itself, and they are of its last launch: another one may be elsewhere."""
SEEN = frozenset({BUSY, TAKEN_GB})


@dataclass(frozen=True)
class Usage:
    """By class, as `Rates` has them, and type: the share of time in which an accelerator is busy with one worker of it, from 0
    to 1, and the memory that the worker needs there. What is not known is 1, and infinity: it fills its accelerator."""

    utilization: Floats  # classes × types
    memory_gb: Floats  # classes × types
