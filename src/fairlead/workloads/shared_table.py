"""A throughput table of trainings that were measured alone and two at a time on one type of accelerator. Of gangs nothing was
measured: they are as fast as their workers together, and suffer beside a gang of their size as one worker does beside one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.job import TIMED
from fairlead.workloads.profiles import ThroughputTable


@dataclass(frozen=True)
class Measured:
    """One training alone on one accelerator."""

    kind: str
    steps_per_s: float
    utilization: float  # percent
    memory_gb: float


def shared_table(
    type_name: str,
    trainings: Sequence[Measured],
    slowdowns: Callable[[str, str], float],
    sizes: Sequence[int] = (1,),
    source: str = "",
) -> ThroughputTable:
    """`slowdowns(one, other)` is how many times slower the first is beside the second."""
    rows = [(one, size) for one in trainings for size in sizes]
    slower = {(one.kind, two.kind): slowdowns(one.kind, two.kind) for one in trainings for two in trainings}
    alone = np.array([1.0, *(one.steps_per_s * size for one, size in rows)])[:, None]
    paired = np.zeros((len(rows) + 1, len(rows) + 1, 1))
    for at, (one, size) in enumerate(rows, 1):
        for beside, (two, theirs) in enumerate(rows, 1):
            if size == theirs:
                paired[at, beside, 0] = alone[at, 0] / slower[one.kind, two.kind]
    keys = ((TIMED, 1), *((one.kind, size) for one, size in rows))
    memory = np.array([0.0, *(one.memory_gb for one, _ in rows)])
    return ThroughputTable((type_name,), keys, alone, alone, paired, source, memory_gb=memory)
