"""The report of a sweep: one page that needs nothing else, with a table of all points and a picture of each metric against the
axis that the sweep goes along. It computes nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from fairlead.experiments.metric_columns import COLUMNS, Column, format_column, format_with_error
from fairlead.experiments.sweep.sweep_run import Axis, PointResult, Sweep, SweepResult
from fairlead.experiments.sweep.sweep_run import format_axis_value as shown_value
from fairlead.files import atomic_write
from fairlead.reporting.html import Cell, PageSource, PageTable, card, document, image
from fairlead.reporting.pictures import Lines, PlotLine

_PLOTTED = {"duration": (3600.0, "h"), "share": (0.01, "%")}
"""Units of the plots."""
_NAMES = {"load": "load (jobs/h)", "rounds": "round (s)"}


def write_page(swept: SweepResult, folder: Path, source: PageSource | None = None) -> Path:
    """Write the report of a sweep into its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    atomic_write(path, sweep_html(swept, source or PageSource.now()).encode("utf-8"))
    return path


def sweep_html(swept: SweepResult, source: PageSource | None = None) -> str:
    """The report as text."""
    sweep, told = swept.sweep, swept.sweep.title
    drawn = "".join(image(picture) for picture in sweep_pictures(swept))
    pictures = card("Plots", f'<div class="pictures">{drawn}</div>') if drawn else ""
    about = "".join(f'<p class="prose">{html.escape(line)}</p>' for line in introduction(sweep))
    return document(told, f"{about}{pictures}{card('All points', page_table(swept).to_html())}", source)


def page_table(swept: SweepResult) -> PageTable:
    """One row per point, with units in the headings; a point that failed has its reason in place of metrics."""
    sweep, results = swept.sweep, swept.results
    first, head, by_column = 1 + len(sweep.axes), headings(sweep), []
    for place, column in enumerate(columns(sweep), 1 + len(sweep.axes)):
        means, widths = ([getattr(one, name).get(column.key) for one in results] for name in ("mean", "half_width"))
        unit, texts = format_column(means, column.shows, widths)
        head[place] += f" ({unit})" if unit else ""
        by_column.append(texts)
    found = [
        [*cells[:first], *([Cell(cells[first], "bad")] if result.failed else [texts[number] for texts in by_column])]
        for number, (result, cells) in enumerate(zip(results, rows(swept), strict=True))
    ]
    return PageTable(head, found, range(1, len(head)))


def introduction(sweep: Sweep) -> list[str]:
    """What was simulated, in two sentences."""
    file = sweep.inputs.trace_file
    jobs = f"the jobs of {file.path.name}" if file is not None else f"{sweep.jobs:,} generated jobs, {sweep.workers} workers"
    fixed = [] if any(axis.name == "cluster" for axis in sweep.axes) else [f"on {sweep.clusters[sweep.cluster]}"]
    if sweep.load is not None and all(axis.name != "load" for axis in sweep.axes):
        fixed.append(f"at {sweep.load:g} jobs per hour")
    seeds = len(sweep.seeds)
    told = (
        f"Mean ± half the 95 % interval over {seeds} seeds; bands in the plots are the same intervals."
        if seeds > 1
        else "One seed."
    )
    return [f"{', '.join([jobs, *fixed])}; {sweep.inputs.rates_note}.", told]


def headings(sweep: Sweep) -> list[str]:
    """Of the columns of the table."""
    return ["scheduler", *(axis_title(axis) for axis in sweep.axes), *(column.heading for column in columns(sweep))]


def rows(swept: SweepResult) -> list[list[str]]:
    """The table's cells; a point that failed has its reason in place of figures."""
    sweep = swept.sweep
    by_column = [
        format_with_error(
            [result.mean.get(column.key) for result in swept.results],
            [result.half_width.get(column.key) for result in swept.results],
            column.shows,
        )
        for column in columns(sweep)
    ]
    found = []
    for number, result in enumerate(swept.results):
        at = [shown_value(sweep.value(result.point, index)) for index in range(len(sweep.axes))]
        figures = [f"failed: {result.failed}"] if result.failed else [texts[number] for texts in by_column]
        found.append([sweep.arms[result.point.arm].label, *at, *figures])
    return found


def columns(sweep: Sweep) -> list[Column]:
    """The metrics of a sweep."""
    by_key = {column.key: column for column in COLUMNS}
    return [by_key[name] for name in sweep.metrics]


def axis_title(axis: Axis) -> str:
    """What tables and pictures call an axis."""
    return _NAMES.get(axis.name, axis.name)


def sweep_pictures(swept: SweepResult) -> list[Lines]:
    """One for each metric; a line for each scheduler and each setting of the other axes."""
    sweep = swept.sweep
    if not sweep.axes:
        return []
    along = next(index for index, axis in enumerate(sweep.axes) if axis.name == sweep.against)
    axis = sweep.axes[along]
    ticks = () if axis.numbers else [shown_value(value.data) for value in axis.values]
    return [
        Lines(column.key, column.heading, axis_title(axis), _unit(column), _lines(swept, along, column), ticks=ticks)
        for column in columns(sweep)
    ]


def _lines(swept: SweepResult, along: int, column: Column) -> list[PlotLine]:
    sweep = swept.sweep
    unit = _PLOTTED.get(column.shows, (1.0, ""))[0]
    axis = sweep.axes[along]
    places = [float(value.data) if axis.numbers else float(index) for index, value in enumerate(axis.values)]
    points: dict[str, list[tuple[float, float, float]]] = {}
    for result in swept.results:
        mean = result.mean.get(column.key)
        if mean is None:
            continue
        at = result.point.at[along]
        width = (result.half_width.get(column.key) or 0.0) / unit
        for x in places if at is None else [places[at]]:  # whom the axis is not for is the same all along
            points.setdefault(_label(sweep, result, along), []).append((x, mean / unit, width))
    lines = []
    for label, found in points.items():
        x_, y, spread = zip(*sorted(found))
        lines.append(PlotLine(label, x_, y, spread if any(spread) else ()))
    return lines


def _label(sweep: Sweep, result: PointResult, along: int) -> str:
    others: Sequence[str] = [
        f"{axis.name} {shown_value(sweep.value(result.point, index))}"
        for index, axis in enumerate(sweep.axes)
        if index != along and len(axis.values) > 1 and result.point.at[index] is not None
    ]
    return ", ".join([sweep.arms[result.point.arm].label, *others])


def _unit(column: Column) -> str:
    unit = _PLOTTED.get(column.shows, (1.0, ""))[1]
    return f"{column.heading} ({unit})" if unit else column.heading
