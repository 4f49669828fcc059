"""How a job really behaves where its speed is not one number of a table: what a simulated world knows of a job and no scheduler
may see, except for what comes of it. It knows neither files nor backends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol


def _no_table(batch_size: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands: how far it is, and on what it runs."""

    steps: float  # done so far
    type: str
    workers: int
    per_node: tuple[int, ...]  # its workers on each of its nodes, most first
    batch_size: int = 0  # that a plan gave it; 0: none
    table: Callable[[int], float] = _no_table
    """Steps per second of its model at a batch size, as the world's table has them for where it stands; 0 where it has none."""
    rate: float = 0.0  # steps per second of its kind, likewise
    cpus: float = math.inf  # for each worker, as a plan gave them, or as its nodes have them for each accelerator
    host_memory_gb: float = math.inf


@dataclass(frozen=True, slots=True)
class Speed:
    """From a standing on: steps per second, up to how many steps that holds, and the batch size it really runs with."""

    rate: float
    until: float = math.inf
    batch_size: int = 0  # 0: unknown
    reports: Mapping[str, float] = field(default_factory=dict)  # what else the job then tells of itself, by names of its own


class Nature(Protocol):
    """The same standing is always answered with the same speed. Steps are those that the job declared: of one size, whatever
    the batch size is."""

    def speed(self, standing: Standing) -> Speed: ...

    def work(self, declared: float) -> float:
        """How many steps it really does."""
        return declared


def run_time_s(nature: Nature, declared: float, standing: Standing) -> float:
    """How long a job would run from this standing on, if it were left alone; infinity where it would not get on."""
    work, seconds = nature.work(declared), 0.0
    while standing.steps < work:
        speed = nature.speed(standing)
        until = min(speed.until, work)
        if not (speed.rate > 0 and until > standing.steps):
            return math.inf
        seconds += (until - standing.steps) / speed.rate
        standing = replace(standing, steps=until)
    return seconds
