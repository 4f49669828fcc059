"""What the page of a comparison shows above its runs: the mean of each metric over the seeds, and the paired differences to a
baseline, at every load. It computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.experiments.differences import DIFFERENCE_METRICS, Differences
from fairlead.experiments.metric_columns import COLUMNS, Column, format_column, format_differences
from fairlead.experiments.run_record import RunRecord
from fairlead.reporting.html import Cell, PageTable, card

MEAN_METRICS = (*DIFFERENCE_METRICS, "unfair_fraction")


def run_name(load: float | None, seed: int) -> str:
    """What a page and a note call the runs of a load and a seed."""
    return f"seed {seed}" if load is None else f"{load:g} jobs/h, seed {seed}"


def runs_by_name(
    records: Sequence[RunRecord], keys: Sequence[tuple[float | None, int]]
) -> Sequence[RunRecord] | dict[str, Sequence[RunRecord]]:
    """The runs of a comparison, by load and seed where there are several."""
    if len(set(keys)) < 2:
        return records
    parts: dict[str, Sequence[RunRecord]] = {}
    for record, key in zip(records, keys, strict=True):
        parts[run_name(*key)] = [*parts.get(run_name(*key), ()), record]
    return parts


def comparison_sections(summary: Sequence[Mapping[str, Any]], seeds: Sequence[int], found: Differences, kept: int) -> list[str]:
    """The sections of a comparison's page, as markup.

    Args:
        summary: One row per scheduler and load: means, and half widths under `<metric>_ci95`.
        seeds: The seeds of the comparison.
        found: Differences to a baseline.
        kept: How many pairs of load and seed the page can show.
    """
    loads = list(dict.fromkeys(row["load"] for row in summary))
    sections = []
    if len(loads) * len(seeds) > 1:
        over = f"mean over {_seeds_in_words(seeds)}" + (" ± half the 95 % interval" if len(seeds) > 1 else "")
        pairs = len(loads) * len(seeds)
        of = f"; {kept} of {pairs} pairs of load and seed can be shown" if kept < pairs else ""
        sections.append(card("All runs", _means(summary, loads).to_html(), f"{_loads_in_words(loads)}; {over}{of}", "means"))
    if found.rows:
        note = f"difference ± half the 95 % interval; {found.method}; bold: the interval excludes 0"
        sections.append(card(f"Differences from {found.baseline}", _differences(found, loads).to_html(), note, "differences"))
    return sections


def _loads_in_words(loads: Sequence[float | None]) -> str:
    known = [f"{load:g}" for load in loads if load is not None]
    return f"load {', '.join(known)} jobs/h" if known else "arrivals as in the trace"


def _seeds_in_words(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    in_a_row = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]} to {seeds[-1]}" if in_a_row and len(seeds) > 2 else f"seeds {', '.join(map(str, seeds))}"


def _columns(wanted: Sequence[str]) -> list[Column]:
    by_key = {column.key: column for column in COLUMNS}
    return [by_key[name] for name in wanted]


def _means(summary: Sequence[Mapping[str, Any]], loads: Sequence[float | None]) -> PageTable:
    headings, cells = [], []
    for column in _columns(MEAN_METRICS):
        values, widths = ([row.get(f"{column.key}{end}") for row in summary] for end in ("", "_ci95"))
        unit, texts = format_column(values, column.shows, widths)
        headings.append(f"{column.heading} ({unit})" if unit else column.heading)
        cells.append(texts)
        if column.key == "worst_ftf":
            headings.append("max ρ of all seeds")
            cells.append(format_column([row.get("worst_ftf_max") for row in summary], column.shows)[1])
    return _with_names([(row["scheduler"], row["load"]) for row in summary], loads, headings, cells)


def difference_columns(found: Differences) -> list[tuple[str, list[tuple[str, bool]]]]:
    """The columns of a table of differences: heading with unit, and cells with whether the interval excludes 0."""
    columns = []
    for column in _columns([name for name in DIFFERENCE_METRICS if any(name in row.metrics for row in found.rows)]):
        values = [row.metrics.get(column.key) for row in found.rows]
        means, widths = ([None if v is None else getattr(v, name) for v in values] for name in ("difference", "half_width"))
        unit, texts = format_differences(means, widths, column.shows)
        sure = [value is not None and value.significant for value in values]
        columns.append((f"{column.heading} ({unit})" if unit else column.heading, list(zip(texts, sure, strict=True))))
    return columns


def _differences(found: Differences, loads: Sequence[float | None]) -> PageTable:
    columns = difference_columns(found)
    cells = [[Cell(text, "sure" if sure else "") for text, sure in column] for _, column in columns]
    return _with_names([(row.scheduler, row.load) for row in found.rows], loads, [heading for heading, _ in columns], cells)


def _with_names(
    names: Sequence[tuple[str, float | None]],
    loads: Sequence[float | None],
    headings: Sequence[str],
    cells: Sequence[Sequence[str | Cell]],
) -> PageTable:
    """A table with a row for each scheduler and load; the load only where there are several."""
    several = len(loads) > 1
    front = [(label, *([f"{load:g}" if load is not None else "as is"] if several else [])) for label, load in names]
    head = ["scheduler", *(["load (jobs/h)"] if several else []), *headings]
    rows = [(*name, *row) for name, row in zip(front, zip(*cells, strict=True), strict=True)]
    return PageTable(head, rows, range(1, len(head)))
