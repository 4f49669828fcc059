"""The report of a sweep: one page that needs nothing else, with a table of all points and a picture of each metric against the
axis that the sweep goes along. It computes nothing."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from fairlead.experiments.metric_columns import COLUMNS, Column, format_with_error
from fairlead.experiments.sweep.sweep_run import Axis, PointResult, Sweep, SweepResult
from fairlead.experiments.sweep.sweep_run import format_axis_value as shown_value
from fairlead.files import atomic_write
from fairlead.reporting.pictures import Lines, PlotLine, png

HOUR = 3600.0
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#22303c;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
td,th{padding:.3rem .6rem;border-bottom:1px solid #dde3e8;text-align:left}
td.n,th.n{text-align:right;white-space:nowrap}.pictures{display:flex;flex-wrap:wrap;gap:1rem}
.pictures img{max-width:100%;width:33rem}
.met{color:#00734f}.not-met,.failed{color:#b3261e}.in-part,.open{color:#8a5a00}.no-data,.not-installed{color:#66717d}li{color:#55626f}
"""
_NAMES = {"load": "load (jobs/h)", "rounds": "round (s)"}


def write_page(swept: SweepResult, folder: Path) -> Path:
    """Write the report of a sweep into its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    atomic_write(path, sweep_html(swept).encode("utf-8"))
    return path


def sweep_html(swept: SweepResult) -> str:
    """The report as text."""
    sweep = swept.sweep
    images = "".join(
        f'<img alt="{html.escape(picture.title)}" src="data:image/png;base64,{base64.b64encode(png(picture)).decode()}">'
        for picture in sweep_pictures(swept)
    )
    numbers = ("",) * (1 + len(sweep.axes)) + (" class=n",) * len(columns(sweep))
    head = "".join(f"<th{kind}>{html.escape(heading)}</th>" for kind, heading in zip(numbers, headings(sweep), strict=True))
    body = "".join(_row(sweep, result, cells) for result, cells in zip(swept.results, rows(swept), strict=True))
    told = "".join(f"<p>{html.escape(line)}</p>" for line in introduction(sweep))
    table = f"<table><tr>{head}</tr>{body}</table>"
    return document(sweep.title, f"<h1>{html.escape(sweep.title)}</h1>{told}<div class=pictures>{images}</div>{table}")


def introduction(sweep: Sweep) -> list[str]:
    """What was simulated, in two sentences."""
    file = sweep.inputs.trace_file
    jobs = f"the jobs of {file.path.name}" if file is not None else f"{sweep.jobs:,} generated jobs, {sweep.workers} workers"
    fixed = [] if any(axis.name == "cluster" for axis in sweep.axes) else [f"on {sweep.clusters[sweep.cluster]}"]
    if sweep.load is not None and all(axis.name != "load" for axis in sweep.axes):
        fixed.append(f"at {sweep.load:g} jobs per hour")
    seeds = len(sweep.seeds)
    told = (
        f"Mean ± half the 95 % interval over {seeds} seeds; bands in the pictures are the same." if seeds > 1 else "One seed."
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
    unit = HOUR if column.shows == "duration" else 1.0
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
    return f"{column.heading} (h)" if column.shows == "duration" else column.heading


def _row(sweep: Sweep, result: PointResult, cells: Sequence[str]) -> str:
    first = 1 + len(sweep.axes)
    kind = f'class="failed" colspan="{len(sweep.metrics)}"' if result.failed else 'class="n"'
    named = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells[:first])
    return f"<tr>{named}{''.join(f'<td {kind}>{html.escape(cell)}</td>' for cell in cells[first:])}</tr>"


def document(title: str, body: str) -> str:
    """A page that needs nothing else and asks for nothing."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )
