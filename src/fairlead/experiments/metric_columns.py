"""The name, format and better direction of each metric, for the terminal, the page and the plots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Shows: TypeAlias = Literal["count", "duration", "share", "ratio", "money", "memory"]
Better: TypeAlias = Literal["low", "high", ""]


@dataclass(frozen=True)
class Column:
    """How a metric of a summary is shown."""

    key: str
    heading: str
    shows: Shows
    better: Better
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("jobs", "jobs", "count", "", "Jobs that the figures are taken over."),
    Column("finished", "finished", "count", "high", "Jobs that ran to their end."),
    Column("average_jct_s", "avg JCT", "duration", "low", "Job completion time, submission to end; mean."),
    Column("median_jct_s", "median JCT", "duration", "low", "Half of the finished jobs took no longer than this."),
    Column("p99_jct_s", "p99 JCT", "duration", "low", "99 % of the finished jobs took no longer than this."),
    Column("makespan_s", "makespan", "duration", "low", "From the first submission to the last finished job."),
    Column(
        "average_responsiveness_s",
        "first start",
        "duration",
        "low",
        "Responsiveness: mean wait from submission to the first start.",
    ),
    Column("average_queueing_s", "queueing", "duration", "low", "JCT less the time spent running; mean."),
    Column("utilization", "use", "share", "high", "GPU-seconds held, of those there were during the run."),
    Column(
        "average_ftf",
        "avg ρ",
        "ratio",
        "low",
        "Finish-time fairness: JCT over the time an equal share would have taken; mean. Above 1: slower than fair.",
    ),
    Column("worst_ftf", "worst ρ", "ratio", "low", "The finish-time fairness of the job treated worst."),
    Column("unfair_fraction", "unfair", "share", "low", "Share of finished jobs whose ρ is above the threshold."),
    Column("deadline_misses", "missed", "count", "low", "Jobs with a deadline that did not finish by it."),
    Column("cost", "cost", "money", "low", "GPU-hours held, at the price of their type."),
    Column("preemptions", "preempted", "count", "low", "Times a job was suspended by a decision, to wait."),
    Column("moves", "moved", "count", "low", "Times a job was moved to another type or place, or changed in size."),
    Column("restarts", "restarts", "count", "low", "Starts after a job's first, whatever the cause."),
    Column("failed", "failed", "count", "low", "Jobs that gave up."),
    Column("refused", "refused", "count", "low", "Jobs that could never run on this cluster."),
    Column("cancelled", "cancelled", "count", "", "Jobs withdrawn by their owner."),
    Column("unfinished", "unfinished", "count", "low", "Jobs still in the system when the record ends."),
    Column("rounds", "rounds", "count", "", "Rounds that passed; without rounds, decisions."),
    Column("decisions", "decisions", "count", "", "Decisions taken; rounds in which nothing could change are skipped."),
    Column("decide_s", "deciding", "duration", "", "Processor time spent deciding."),
    Column("wall_s", "wall time", "duration", "", "Time the whole run took."),
    Column("peak_rss_mb", "peak memory", "memory", "", "Most memory the process held."),
)

_PRINCIPAL = (  # for a terminal, most important first: columns that do not fit are dropped from the end
    *("average_jct_s", "p99_jct_s", "makespan_s", "average_responsiveness_s", "utilization", "worst_ftf", "unfair_fraction"),
    *("unfinished", "refused", "deadline_misses", "preemptions", "finished", "cost"),
)
_ONLY_IF_ANY = frozenset(
    {"deadline_misses", "cost", "moves", "failed", "refused", "cancelled", "unfinished"}
    | {"rounds", "decisions", "decide_s", "wall_s", "peak_rss_mb"}
)

Row: TypeAlias = Mapping[str, float | int | None]


def relevant_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns worth showing for these summaries."""
    return tuple(c for c in COLUMNS if c.key not in _ONLY_IF_ANY or any((row.get(c.key) or 0) > 0 for row in rows))


def principal_columns(columns: Sequence[Column]) -> list[Column]:
    """The columns of a narrow table, most important first."""
    by_key = {column.key: column for column in columns}
    return [by_key[key] for key in _PRINCIPAL if key in by_key]


def best_value(column: Column, rows: Iterable[Row]) -> float | None:
    """The best value of a column among several runs; None if neither direction is better, or all are equal."""
    known = [float(v) for row in rows if (v := row.get(column.key)) is not None]
    if not column.better or len(known) < 2 or min(known) == max(known):
        return None
    return min(known) if column.better == "low" else max(known)


def format_value(value: float | int | None, shows: Shows) -> str:
    """One value as text; a dash where it is unknown."""
    if value is None or not math.isfinite(value):
        return "–"
    match shows:
        case "duration":
            return format_duration(value)
        case "share":
            return f"{100 * value:.1f} %"
        case "ratio":
            return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
        case "money":
            return f"${value:,.2f}" if abs(value) < 1000 else f"${value:,.0f}"
        case "memory":
            return f"{value:,.0f} MB"
        case "count":
            return f"{value:,.0f}"


def format_values(values: Sequence[float | int | None], shows: Shows) -> list[str]:
    """The values of one column as text. Durations have one unit, except small ones."""
    known = [float(v) for v in values if v is not None and math.isfinite(v) and v > 0]
    if shows != "duration" or not known:
        return [format_value(value, shows) for value in values]
    apart = max(known) > 100 * min(known)
    unit, name = _unit(max(known) if apart else sorted(known)[len(known) // 2])
    least = unit if apart else 0.1 * unit
    return [format_value(v, shows) if v is None or not least <= v < math.inf else f"{_digits(v / unit)} {name}" for v in values]


def format_with_error(values: Sequence[float | None], widths: Sequence[float | None], shows: Shows) -> list[str]:
    """Values with their errors: `"23.4 ± 5.4 h"`, both in one unit."""
    cells = []
    for text, width in zip(format_values(values, shows), widths, strict=True):
        number, _, unit = text.rpartition(" ")
        if width is None or not width or text == "–":
            cells.append(text)
        elif unit in _SIZES:
            cells.append(f"{number} ± {_digits(width / _SIZES[unit])} {unit}")
        else:
            cells.append(f"{text} ± {format_value(width, shows)}")
    return cells


_SIZES = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "%": 0.01, "MB": 1.0}
_UNITS = ((60.0, 1.0, "s"), (3600.0, 60.0, "min"), (48 * 3600.0, 3600.0, "h"))


def format_duration(seconds: float) -> str:
    """`"3.2 h"`: the unit in which the number is easiest to read."""
    if not math.isfinite(seconds):
        return "–"
    unit, name = _unit(abs(seconds))
    return f"{_digits(seconds / unit)} {name}"


def format_seconds(seconds: float) -> str:
    """A waiting time as text, without parts of a second."""
    return f"{max(0.0, seconds):.0f} s" if seconds < 59.5 else format_duration(max(60.0, seconds))


def format_delay(seconds: float) -> str:
    """`"in 3.2 h"`, or `"at once"` below half a second."""
    return "at once" if seconds < 0.5 else f"in {format_seconds(seconds)}"


def _unit(seconds: float) -> tuple[float, str]:
    return next(((unit, name) for limit, unit, name in _UNITS if seconds < limit), (86400.0, "d"))


def _digits(number: float) -> str:
    size = abs(number)
    if size == 0 or size >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if size >= 1 else f"{number:.2g}"
