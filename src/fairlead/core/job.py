"""What a job is and the phases it goes through. A job is a frozen value; all that changes about it lives in the state."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

from fairlead.core.errors import IllegalTransition
from fairlead.core.schedule import Schedule

TIMED = ""
"""The kind of a job whose work is given in seconds: it runs at one step a second on every type."""

ELASTIC = "elastic"
"""The mode of a job that runs at any number of workers, and at any batch size within its limits."""

LEAST_WEIGHT, MOST_WEIGHT = 1e-3, 1e3
"""Beyond these, programs that weigh jobs or entities against each other are not solved exactly any more."""


class Phase(enum.IntEnum):
    """Where a job is in its life. Up to `RUNNING` a job is live; behind it, it has ended."""

    QUEUED = 0  # submitted, not yet let in by admission
    WAITING = 1  # admitted, holds no accelerator
    RUNNING = 2  # holds its accelerators
    FINISHED = 3
    FAILED = 4  # ended without its last step, such as by its time limit
    CANCELLED = 5
    REFUSED = 6  # could never run here


ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.CANCELLED, Phase.REFUSED})

LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.WAITING, Phase.CANCELLED, Phase.REFUSED}),
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.FINISHED, Phase.FAILED, Phase.CANCELLED, Phase.REFUSED}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.FINISHED, Phase.FAILED, Phase.CANCELLED}),
    **{phase: frozenset() for phase in ENDED},
}


def check_transition(name: str, old: Phase, new: Phase) -> None:
    if new not in LEGAL[old]:
        raise IllegalTransition(f"job {name!r} cannot go from {old.name.lower()} to {new.name.lower()}")


@dataclass(frozen=True, slots=True)
class Job:
    """A training job as its owner described it.

    `workers` is the gang size: all run or none. `steps` is the work of the whole gang; for a job of kind `TIMED` it is
    seconds of run time. What is left at its default was not asked for.
    """

    name: str
    submitted_s: float = 0.0
    steps: float = 1.0
    kind: str = TIMED  # model and batch size, as in "ResNet-50 (batch size 64)"
    workers: int = 1
    weight: float = 1.0
    priority: int = 0  # higher goes first where a policy looks at it
    user: str = ""
    entity: str = ""  # the department or group that pays
    deadline_s: float = math.inf  # seconds after submission
    allowed_types: tuple[str, ...] = ()  # empty: any
    memory_gb: float = 0.0  # needed on each accelerator
    cpus: float = 0.0  # needed for each worker
    host_memory_gb: float = 0.0  # needed for each worker
    time_limit_s: float = math.inf  # run time, not waiting time
    retry_limit: int = 3  # failures of its own that it survives; lost nodes do not count. For backends whose jobs can fail
    min_run_s: float = 0.0  # once started, it is left alone for so long
    group: str = ""
    group_order: int = 0  # its place in its group
    mode: str = "static"  # how its batch size changes: static, accordion, gns, …; or `ELASTIC`
    command: str = ""
    after: tuple[int, ...] = ()  # by number, earlier jobs that must have finished before it enters
    most_slowdown: float = math.inf  # how many times slower than alone company may make it; 1: it wants none
    schedule: Schedule = ()  # of mode expert: the batch sizes that its owner has planned


_BATCH = re.compile(r" ?\(batch size ([1-9][0-9]{0,9})\)$")
"""Spelt as `kind_of` does. What else stands there, such as 0 or a thousand digits, is part of the model's name: speeds are
divided by batch sizes."""


def model_of(kind: str) -> str:
    """The model's name without the batch size."""
    return _BATCH.sub("", kind)


def batch_size_of(kind: str) -> int | None:
    match = _BATCH.search(kind)
    return int(match.group(1)) if match else None


def kind_of(model: str, batch_size: int | None) -> str:
    """The kind's name for a model at a batch size; the inverse of `model_of` and `batch_size_of`."""
    return model if batch_size is None else f"{model} (batch size {batch_size})"
