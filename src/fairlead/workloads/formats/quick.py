"""Jobs by the hundred thousand. Filling a frozen dataclass goes through `object.__setattr__` for every field and takes four
times as long as filling one that is not frozen, which is half the time it takes to read a large log. So a twin of `Job` that
may be written to is filled, and then declared to be a `Job`, which Python allows because both have the same slots."""

from __future__ import annotations

import math
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any

from fairlead.core.job import TIMED, Job


def _twin() -> Any:
    columns: list[Any] = []
    for column in fields(Job):
        if column.default is MISSING:
            columns.append((column.name, column.type))
        else:
            columns.append((column.name, column.type, field(default=column.default)))
    return make_dataclass("_Writable", columns, slots=True)


_Writable = _twin()


def timed_job(
    name: str,
    submitted_s: float,
    duration_s: float,
    workers: int,
    user: str = "",
    entity: str = "",
    allowed_types: tuple[str, ...] = (),
    cpus: float = 0.0,
    host_memory_gb: float = 0.0,
    time_limit_s: float = math.inf,
) -> Job:
    """The job whose work is given in seconds."""
    job = _Writable(
        name,
        submitted_s,
        duration_s,
        TIMED,
        workers,
        user=user,
        entity=entity,
        allowed_types=allowed_types,
        cpus=cpus,
        host_memory_gb=host_memory_gb,
        time_limit_s=time_limit_s,
    )
    job.__class__ = Job
    return job  # type: ignore[no-any-return]
