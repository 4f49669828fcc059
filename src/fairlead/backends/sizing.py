"""Which row of a throughput table a job runs by, at the size and batch size that a plan gives it."""

from __future__ import annotations

from fairlead.core.job import TIMED, Job, batch_size_of, kind_of, model_of
from fairlead.core.plan import TUNED, Launches
from fairlead.workloads.profiles import ThroughputTable


def batch_size_given(launches: Launches, index: int) -> int:
    """That one of these is given; 0: none."""
    return 0 if launches.batch_sizes is None else int(launches.batch_sizes[index])


def row_given(table: ThroughputTable, job: Job, workers: int, batch_size: int) -> tuple[int, float]:
    """The row, and the part of its rate: with fewer or more workers than any row is about, in proportion. A batch size of 0,
    or one that is left to the job, is the kind's own."""
    kind = job.kind
    if kind != TIMED and batch_size not in (0, TUNED, batch_size_of(kind)):
        kind = kind_of(model_of(kind), batch_size)
    if workers == job.workers or (kind != TIMED and (kind, workers) in table.row_of):
        return table.row(kind, workers), 1.0
    return table.row(kind, job.workers), workers / job.workers
