"""What the page is given to draw: records boiled down to plain values and packed columns. It knows the shape that the page's
scripts read, and no HTML."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.job import Phase
from fairlead.experiments.metric_columns import relevant_columns
from fairlead.experiments.metrics import (
    MetricOptions,
    completion_times,
    finish_time_fairness,
    last_seen_s,
    measured_rows,
    summarize,
)
from fairlead.experiments.run_record import DeviceIntervals, JobOutcomes, RunRecord
from fairlead.reporting.figures import COLOURS, DASHES, unique_labels
from fairlead.reporting.series import Steps, in_use, waiting

POINTS = 320  # of a line over time; more than the page has pixels for only blurs it
QUANTILES = 400
MAX_BARS = 400_000  # on the whole page: about 7 MB


def payload(records: Sequence[RunRecord], options: MetricOptions, max_bars: int = MAX_BARS) -> dict[str, Any]:
    """Everything the page draws, ready for JSON."""
    labels = unique_labels([r.scheduler for r in records], [r.trace for r in records])
    summaries = [summarize(record, options).to_dict() for record in records]
    tables, table_of = _job_tables(records)
    clusters = list(dict.fromkeys(r.cluster for r in records))
    share = max(max_bars // max(len(records), 1), 1)
    runs = []
    for number, record in enumerate(records):
        run = _run(record, options, share)
        run |= {"label": labels[number], "summary": summaries[number], "table": table_of[number]}
        runs.append(run | {"cluster": clusters.index(record.cluster)})
    return {
        "columns": [
            {"key": c.key, "heading": c.heading, "shows": c.shows, "better": c.better, "meaning": c.meaning}
            for c in sorted(relevant_columns(summaries), key=lambda column: column.shows == "count")
        ],
        "phases": [phase.name.lower() for phase in Phase],
        "colours": list(COLOURS),
        "dashes": list(DASHES),
        "unfair_above": options.unfair_above,
        "options": _options(options),
        "clusters": [_cluster(c) for c in clusters],
        "tables": tables,
        "runs": runs,
    }


def _options(options: MetricOptions) -> list[str]:
    """The definitions in force, in words."""
    measured = "all jobs" if options.measure is None else f"jobs {options.measure[0]} to {options.measure[1]}, exclusive"
    contention = {
        "average": "jobs present per GPU, averaged over the job's stay",
        "static": "jobs in the trace per GPU",
        "demand": "GPUs requested per GPU, averaged over the job's stay",
    }[options.contention]
    return [
        f"measured: {measured}, by order of submission",
        f"JCT from {options.jct_from.replace('-', ' ')}",
        f"makespan from {options.makespan_from.replace('-', ' ')}",
        f"contention in ρ: {contention}",
        f"unfair: ρ above {options.unfair_above:g}",
    ]


def _cluster(cluster: Cluster) -> dict[str, Any]:
    return {
        "text": str(cluster),
        "size": cluster.size,
        "nodes": [[n.name, n.type, int(first), n.accelerators] for n, first in zip(cluster.nodes, cluster.first_of)],
    }


def _job_tables(records: Sequence[RunRecord]) -> tuple[list[dict[str, Any]], list[int]]:
    """What the trace says about jobs, once for all runs of the same trace."""
    tables: list[dict[str, Any]] = []
    seen: list[JobOutcomes] = []
    table_of = []
    for record in records:
        jobs = record.jobs
        place = next((i for i, other in enumerate(seen) if _same_jobs(jobs, other)), len(seen))
        if place == len(seen):
            seen.append(jobs)
            tables.append(
                {
                    "names": list(jobs.names),
                    "kinds": _levels(jobs.kinds),
                    "users": _levels(jobs.users),
                    "workers": base64_column(jobs.workers, "u2"),
                    "submitted": base64_column(jobs.submitted_s, "f8"),
                }
            )
        table_of.append(place)
    return tables, table_of


def _same_jobs(one: JobOutcomes, other: JobOutcomes) -> bool:
    texts = (one.names, one.users, one.kinds) == (other.names, other.users, other.kinds)
    return texts and np.array_equal(one.workers, other.workers) and np.array_equal(one.submitted_s, other.submitted_s)


def _run(record: RunRecord, options: MetricOptions, max_bars: int) -> dict[str, Any]:
    jobs, rows = record.jobs, measured_rows(record, options)
    done = rows & (jobs.phase == Phase.FINISHED)
    ftf = finish_time_fairness(record, options.contention)
    return {
        "trace": record.trace,
        "span": [float(jobs.submitted_s.min()) if len(jobs) else 0.0, last_seen_s(record)],
        "jct_cdf": _distribution(completion_times(jobs, options)[done]),
        "ftf_cdf": _distribution(ftf[done]),
        "parts": _parts(jobs, done),
        "use": _line(in_use(record)),
        "queue": _line(waiting(record)),
        "exact": record.device_intervals is not None,
        "jobs": {
            "phase": base64_column(jobs.phase, "u1"),
            "wait": base64_column(jobs.first_started_s - jobs.submitted_s, "f4"),
            "jct": base64_column(jobs.ended_s - jobs.submitted_s, "f4"),
            "run": base64_column(jobs.run_s, "f4"),
            "held": base64_column(jobs.accelerator_s, "f4"),
            "ftf": base64_column(ftf, "f4"),
            "preemptions": base64_column(jobs.preemptions, "u4"),
            "restarts": base64_column(jobs.restarts, "u4"),
        },
        "gantt": None if record.device_intervals is None else _gantt(record, record.device_intervals, max_bars),
    }


def _parts(jobs: JobOutcomes, done: Bools) -> list[float]:
    """The average completion time in its parts: the wait for the first start, later waits, running."""
    if not done.any():
        return [0.0, 0.0, 0.0]
    first = float((jobs.first_started_s - jobs.submitted_s)[done].mean())
    run = float(jobs.run_s[done].mean())
    return [first, max(0.0, float((jobs.ended_s - jobs.submitted_s)[done].mean()) - first - run), run]


def _distribution(values: Floats) -> dict[str, list[float]]:
    """Values against the share of jobs at or below them."""
    values = np.sort(values[np.isfinite(values)])
    if not len(values):
        return {"x": [], "y": []}
    share = np.arange(1, len(values) + 1) / len(values)
    if len(values) > QUANTILES:
        picked = np.unique(np.linspace(0, len(values) - 1, QUANTILES).round().astype(np.int64))
        values, share = values[picked], share[picked]
    return {"x": _short(values), "y": _short(share)}


def _line(steps: Steps) -> dict[str, list[float]]:
    thin = steps.at_most(POINTS)
    return {"x": _short(thin.edge_s), "y": _short(thin.value)}


def _gantt(record: RunRecord, every: DeviceIntervals, most: int) -> dict[str, Any]:
    """Stretches in order of accelerator and start; times as whole numbers of a unit that makes the span fit 32 bits. Where
    there are too many, those before the moment from which on there would be."""
    low, high = float(every.start_s.min(initial=0.0)), float(every.end_s.max(initial=0.0))
    job, accelerator, start_s, end_s, until = every.job, every.accelerator, every.start_s, every.end_s, high
    if len(job) > most:
        until = float(np.partition(start_s, most)[most])
        early = start_s < until
        job, accelerator, start_s, end_s = job[early], accelerator[early], start_s[early], np.minimum(end_s[early], until)
    order = np.lexsort((start_s, accelerator))
    unit = max(high - low, 1e-9) / (2**32 - 2)
    start = np.rint((start_s[order] - low) / unit)
    return {
        "low": low,
        "unit": unit,
        "until": until,
        "count": len(order),
        "total": len(every.job),
        "rows": base64_column(np.searchsorted(accelerator[order], np.arange(record.cluster.size + 1)), "u4"),
        "job": base64_column(job[order], "u4"),
        "start": base64_column(start, "u4"),
        "length": base64_column(np.rint((end_s[order] - low) / unit) - start, "u4"),
    }


def _levels(texts: Sequence[str]) -> dict[str, Any]:
    """Texts that repeat, as a list of the different ones and a number for each row."""
    numbers: dict[str, int] = {}
    codes = np.fromiter((numbers.setdefault(text, len(numbers)) for text in texts), dtype=np.int64, count=len(texts))
    return {"levels": list(numbers), "codes": base64_column(codes, "u4")}


def base64_column(column: npt.NDArray[Any] | Ints | Floats, form: str) -> str:
    """A column as little-endian numbers in base64, which the page reads into a typed array without parsing."""
    kind = np.dtype("<" + form)
    if kind.kind == "u":
        column = np.clip(column, 0, np.iinfo(kind).max)
    return base64.b64encode(np.ascontiguousarray(column, dtype=kind).tobytes()).decode("ascii")


def _short(values: Floats) -> list[float]:
    """Six digits are more than a screen can show."""
    return [float(f"{value:.6g}") for value in values.tolist()]
