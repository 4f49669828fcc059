"""Traces that are one CSV table with a header: Philly, Tiresias, Helios and Pollux."""

from __future__ import annotations

import re
from pathlib import Path

from fairlead.core.job import Job, kind_of
from fairlead.workloads.formats.base import CsvTable, JobList, first_row, timed_job
from fairlead.workloads.formats.text_fields import (
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
    optional: tuple[str, ...] = ()
    dated = False  # times are of a calendar, and second 0 is the first submission

    def sniff(self, path: Path, head: str) -> bool:
        """Whether the header has the needed columns."""
        return set(self.needed) <= set(first_row(head))

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace."""
        table = CsvTable(path, on_bad, self.needed, self.optional)
        jobs = JobList(path, on_bad)
        jobs.read(table.rows, lambda line, row: self.job(table.job_name(line), *table.cells(row)), rebase=self.dated)
        return jobs.trace(dated=self.dated)

    def job(self, unnamed: str, *cells: str) -> Job:
        """The job of a row's needed and optional cells; `unnamed` is its name where it has none."""
        raise NotImplementedError


class PhillyTrace(_CsvTrace):
    """Microsoft's Philly trace as one table: time, duration, number of GPUs and virtual cluster."""

    name = "philly"
    summary = "Philly CSV: timestamp, duration, num_gpus, gpu_time, cluster"
    needed = ("timestamp", "duration", "num_gpus")
    optional = ("cluster",)
    dated = True

    def job(self, unnamed: str, *cells: str) -> Job:
        """The job of a row."""
        when, duration, gpus, cluster = cells
        submitted_s, duration_s = parse_time("timestamp", when), parse_positive("duration", duration, _ABOVE_0)
        return timed_job(unnamed, submitted_s, duration_s, parse_workers("num_gpus", gpus), account=cluster)


class TiresiasTrace(_CsvTrace):
    """Tiresias' job tables: submission, duration and GPUs of each job, in seconds from the start."""

    name = "tiresias"
    summary = "Tiresias CSV: job_id, num_gpu, submit_time, iterations, model_name, duration, interval"
    needed = ("job_id", "num_gpu", "submit_time", "duration")

    def job(self, unnamed: str, *cells: str) -> Job:
        """The job of a row."""
        name, gpus, submitted, duration = cells
        submitted_s, duration_s = parse_seconds("submit_time", submitted), parse_positive("duration", duration, _ABOVE_0)
        return timed_job(parse_name("job_id", name), submitted_s, duration_s, parse_workers("num_gpu", gpus))


class HeliosTrace(_CsvTrace):
    """SenseTime's Helios logs (`cluster_log.csv`), and Lucid's tables of the same columns.

    Jobs without accelerators and jobs that never ran are listed as left out."""

    name = "helios"
    summary = "Helios/Lucid cluster_log.csv: job_id, user, vc, gpu_num, cpu_num, state, submit_time, duration, …"
    needed = ("gpu_num", "submit_time", "duration")

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        """Read the trace; second 0 is the first submission."""
        table = CsvTable(path, on_bad, self.needed, ("job_id", "jobname", "user", "vc", "cpu_num"))
        named_by = next((name for name in ("job_id", "jobname") if table.has(name)), None)
        dated: bool | None = None

        def job_of(line: int, row: list[str]) -> Job:
            nonlocal dated
            gpu_num, submitted, duration, job_id, job_name, user, cluster, cpus = table.cells(row)
            gpus, duration_s = parse_accelerators("gpu_num", gpu_num), parse_seconds("duration", duration)
            if gpus == 0:
                raise LeftOut("gpu_num", gpu_num, "a job with GPUs")
            if duration_s == 0:
                raise LeftOut("duration", duration, "a job that ran")
            if dated is None:  # Lucid's own tables count seconds instead
                dated = re.fullmatch(r"\d+(\.\d*)?", submitted) is None
            return timed_job(
                parse_name(named_by, job_id if named_by == "job_id" else job_name) if named_by else table.job_name(line),
                parse_time("submit_time", submitted) if dated else parse_seconds("submit_time", submitted),
                duration_s,
                gpus,
                user=user,
                account=cluster,
                cpus=parse_amount("cpu_num", cpus) / gpus if table.has("cpu_num") else 0.0,
            )

        return JobList(path, on_bad).read(table.rows, job_of, rebase=True).trace(dated=bool(dated))


ONE_TRAINING_RUN = 1.0
"""The work of a Pollux job: an application is trained until it is done. Rates of these job types are runs per second."""


class PolluxTrace(_CsvTrace):
    """Pollux's workloads: application, time, number of replicas and batch size."""

    name = "pollux"
    summary = "Pollux workload CSV: name, time, application, num_replicas, batch_size"
    needed = ("name", "time", "application", "num_replicas", "batch_size")

    def job(self, unnamed: str, *cells: str) -> Job:
        """The job of a row: one training run."""
        name, time, application, replicas, batch = cells
        batch_size = parse_whole("batch_size", batch, "a whole number of at least 1", 1)
        kind = kind_of(parse_name("application", application), batch_size)
        workers = parse_workers("num_replicas", replicas)
        return Job(parse_name("name", name), parse_seconds("time", time), ONE_TRAINING_RUN, kind, workers)
