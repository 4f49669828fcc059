"""Traces that are one CSV table with a header: Philly, Tiresias, Helios and Pollux."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.core.job import Job, kind_of
from fairlead.workloads.formats.base import CsvTable, JobList, first_row_has, timed_job
from fairlead.workloads.formats.text_fields import (
    BadField,
    LeftOut,
    parse_accelerators,
    parse_amount,
    parse_name,
    parse_positive,
    parse_seconds,
    parse_time,
    parse_whole,
    parse_workers,
)
from fairlead.workloads.trace import OnBad, Trace

_ABOVE_0 = "seconds above 0"


class _CsvTrace:
    """A format that is recognised by the columns that it needs."""

    needed: tuple[str, ...]

    def sniff(self, path: Path, head: str) -> bool:
        """Whether the header has the needed columns."""
        return first_row_has(head, self.needed)


class PhillyTrace(_CsvTrace):
    """Microsoft's Philly trace as one table: time, duration, number of GPUs and virtual cluster."""

    name = "philly"
    summary = "Philly CSV: timestamp, duration, num_gpus, gpu_time, cluster"
    needed = ("timestamp", "duration", "num_gpus")

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace; second 0 is the first submission."""
        table = CsvTable(path, on_bad, self.needed, ("cluster",))

        def job_of(line: int, row: list[str]) -> Job:
            when, duration, gpus, cluster = table.cells(row)
            submitted_s, duration_s = parse_time("timestamp", when), parse_positive("duration", duration, _ABOVE_0)
            return timed_job(table.job_name(line), submitted_s, duration_s, parse_workers("num_gpus", gpus), account=cluster)

        return JobList(path, on_bad).read(table.rows, job_of, rebase=True).trace(dated=True)


class TiresiasTrace(_CsvTrace):
    """Tiresias' job tables: submission, duration and GPUs of each job, in seconds from the start."""

    name = "tiresias"
    summary = "Tiresias CSV: job_id, num_gpu, submit_time, iterations, model_name, duration, interval"
    needed = ("job_id", "num_gpu", "submit_time", "duration")

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace."""
        table = CsvTable(path, on_bad, self.needed)

        def job_of(line: int, row: list[str]) -> Job:
            name, gpus, submitted, duration = table.cells(row)
            return timed_job(
                parse_name("job_id", name),
                parse_seconds("submit_time", submitted),
                parse_positive("duration", duration, _ABOVE_0),
                parse_workers("num_gpu", gpus),
            )

        return JobList(path, on_bad).read(table.rows, job_of).trace()


class HeliosTrace(_CsvTrace):
    """SenseTime's Helios logs (`cluster_log.csv`), and Lucid's tables of the same columns.

    Jobs without accelerators and jobs that never ran are listed as left out."""

    name = "helios"
    summary = "Helios/Lucid cluster_log.csv: job_id, user, vc, gpu_num, cpu_num, state, submit_time, duration, …"
    needed = ("gpu_num", "submit_time", "duration")

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace; second 0 is the first submission."""
        table = CsvTable(path, on_bad, self.needed, ("job_id", "jobname", "user", "vc", "cpu_num"))
        name_column = next((name for name in ("job_id", "jobname") if table.has(name)), None)
        dated: bool | None = None

        def job_of(line: int, row: list[str]) -> Job:
            nonlocal dated
            gpu_num, submitted, duration, job_id, job_name, user, cluster, cpus = table.cells(row)
            cells = {"job_id": job_id, "jobname": job_name}
            gpus, duration_s = parse_accelerators("gpu_num", gpu_num), parse_seconds("duration", duration)
            if gpus == 0:
                raise LeftOut("gpu_num", gpu_num, "a job with accelerators")
            if duration_s == 0:
                raise LeftOut("duration", duration, "a job that ran")
            if dated is None:  # Lucid's own tables count seconds instead
                dated = re.fullmatch(r"\d+(\.\d*)?", submitted) is None
            return timed_job(
                parse_name(name_column, cells[name_column]) if name_column else table.job_name(line),
                parse_time("submit_time", submitted) if dated else parse_seconds("submit_time", submitted),
                duration_s,
                gpus,
                user=user,
                account=cluster,
                cpus=parse_amount("cpu_num", cpus) / gpus if table.has("cpu_num") else 0.0,
            )

        jobs = JobList(path, on_bad).read(table.rows, job_of, rebase=True)
        return jobs.trace(dated=bool(dated))


ONE_TRAINING_RUN = 1.0
"""The work of a Pollux job: an application is trained until it is done. Rates of these job types are runs per second."""


class PolluxTrace(_CsvTrace):
    """Pollux's workloads: application, time, number of replicas and batch size."""

    name = "pollux"
    summary = "Pollux workload CSV: name, time, application, num_replicas, batch_size"
    needed = ("name", "time", "application", "num_replicas", "batch_size")

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace; the work of each job is one training run."""
        table = CsvTable(path, on_bad, self.needed)

        def job_of(line: int, row: list[str]) -> Job:
            name, time, application, replicas, batch = table.cells(row)
            batch_size = parse_whole("batch_size", batch, "a whole number of at least 1")
            if batch_size < 1:
                raise BadField("batch_size", batch, "a whole number of at least 1")
            kind = kind_of(parse_name("application", application), batch_size)
            workers = parse_workers("num_replicas", replicas)
            return Job(parse_name("name", name), parse_seconds("time", time), ONE_TRAINING_RUN, kind, workers)

        return JobList(path, on_bad).read(table.rows, job_of).trace()
