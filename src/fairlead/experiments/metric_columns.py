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
    Column("jobs", "jobs", "count", "", "Jobs that the metrics are computed over."),
    Column("finished", "finished", "count", "high", "Jobs that finished."),
    Column("average_jct_s", "avg JCT", "duration", "low", "Job completion time, submission to end; mean."),
    Column("median_jct_s", "median JCT", "duration", "low", "Half of the finished jobs took no longer than this."),
    Column("p99_jct_s", "p99 JCT", "duration", "low", "99 % of the finished jobs took no longer than this."),
    Column("makespan_s", "makespan", "duration", "low", "From the first submission to the last finished job."),
    Column("average_responsiveness_s", "first start", "duration", "low", "Responsiveness: mean wait for the first start."),
    Column("average_queueing_s", "queueing", "duration", "low", "JCT less the time spent running; mean."),
    Column("utilization", "utilization", "share", "high", "GPU time held by jobs, as a share of all GPU time of the run."),
    Column("average_ftf", "avg ρ", "ratio", "low", "Mean of JCT / JCT with an equal share. Above 1: slower than fair."),
    Column("worst_ftf", "worst ρ", "ratio", "low", "The largest finish-time fairness of a job."),
    Column("unfair_fraction", "unfair", "share", "low", "Share of finished jobs whose ρ is above the threshold."),
    Column("deadline_misses", "missed", "count", "low", "Jobs with a deadline that did not finish by it."),
    Column("cost", "cost", "money", "low", "GPU hours held, at the price of the GPU type."),
    Column("preemptions", "preempted", "count", "", "Times a decision suspended a job, which then waited."),
    Column("moves", "moved", "count", "", "Times a decision moved a job to other GPUs or changed its number of workers."),
    Column("restarts", "restarts", "count", "", "Starts of a job after its first one, for any reason."),
    Column("failed", "failed", "count", "low", "Jobs that failed for good."),
    Column("refused", "refused", "count", "low", "Jobs that could never run on this cluster."),
    Column("cancelled", "cancelled", "count", "", "Jobs cancelled by their user."),
    Column("unfinished", "unfinished", "count", "low", "Jobs that have not ended when the run ends."),
    Column("rounds", "rounds", "count", "", "Rounds that passed; without rounds, decisions."),
    Column("decisions", "decisions", "count", "", "Decisions made. Rounds in which nothing can change need none."),
    Column("decide_s", "deciding", "duration", "", "Time spent on decisions."),
    Column("wall_s", "wall time", "duration", "", "Time that the simulation took."),
    Column("peak_rss_mb", "peak memory", "memory", "", "Largest memory of the process."),
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
    """The best value of a column. None: neither direction is better, all are equal, or the best is a count of 0."""
    known = [float(v) for row in rows if (v := row.get(column.key)) is not None]
    if not column.better or len(known) < 2 or min(known) == max(known):
        return None
    best = min(known) if column.better == "low" else max(known)
    return None if best == 0 and column.shows == "count" else best


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
        if not width or not math.isfinite(width) or text == "–":
            cells.append(text)
        elif unit in _SIZES:
            cells.append(f"{number} ± {_digits(width / _SIZES[unit])} {unit}")
        else:
            cells.append(f"{text} ± {format_value(width, shows)}")
    return cells


def format_column(
    values: Sequence[float | int | None], shows: Shows, widths: Sequence[float | None] = ()
) -> tuple[str, list[str]]:
    """The unit for a column's heading, and its cells with the same number of decimals, each with its error where that is known.
    The unit is empty where the cells need units of their own."""
    known = sorted(float(v) for v in values if v is not None and math.isfinite(v) and v > 0)
    unit, factor, decimals = {"share": ("%", 0.01, 1), "memory": ("MB", 1.0, 0), "ratio": ("", 1.0, 2)}.get(shows, ("", 1.0, 0))
    errors = widths or [None] * len(values)
    if shows == "count" and any(v != round(v) for v in known):
        decimals = 1
    elif shows == "money":
        unit, decimals = "$", 0 if known and known[-1] >= 1000 else 2
    elif shows == "duration":
        apart = bool(known) and known[-1] > 100 * known[0]
        typical = 0.0 if not known else known[-1] if apart else known[len(known) // 2]
        factor, unit = _unit(typical)
        if not known or known[0] < (factor if apart else 0.1 * factor):
            return "", format_with_error(values, errors, shows)
        decimals = 0 if typical >= 100 * factor else 1

    def cell(value: float | None, error: float | None) -> str:
        if value is None or not math.isfinite(value):
            return "–"
        text = f"{value / factor:,.{decimals}f}"
        return text if error is None or not math.isfinite(error) else f"{text} ± {error / factor:,.{decimals}f}"

    return unit, [cell(value, error) for value, error in zip(values, errors, strict=True)]


def format_differences(values: Sequence[float | None], widths: Sequence[float | None], shows: Shows) -> tuple[str, list[str]]:
    """The unit for a column's heading, and differences with their errors, as in `"−1.2 ± 0.4"`. Differences of shares are in
    percentage points. The larger of difference and error has at least two digits."""
    known = [abs(v) for v in values if v is not None and math.isfinite(v)]
    factor, unit = (0.01, "pp") if shows == "share" else (1.0, "")
    if shows == "duration":
        factor, unit = _unit(max(known, default=0.0))
    decimals = max(_decimals(max(known, default=0.0) / factor), 2 if shows == "ratio" else 0)

    def cell(value: float | None, width: float | None) -> str:
        if value is None or not math.isfinite(value):
            return "–"
        sizes = [abs(one) / factor for one in (value, width or 0.0) if math.isfinite(one)]
        digits = max(decimals, 1 - math.floor(math.log10(max(sizes)))) if max(sizes) > 0 else decimals
        text = f"{value / factor:+.{digits}f}".replace("-", "−")
        return text if width is None or not math.isfinite(width) else f"{text} ± {width / factor:.{digits}f}"

    return unit, [cell(value, width) for value, width in zip(values, widths, strict=True)]


def _decimals(size: float) -> int:
    return 0 if size >= 100 else 1 if size >= 1 else 2


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
