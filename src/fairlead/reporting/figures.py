"""The same pictures as the page's, as PNG files for papers and slides. It draws with matplotlib off screen, and computes
nothing that `metrics` or `series` does not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.experiments.metric_columns import format_duration, format_values
from fairlead.experiments.metrics import (
    DEFAULTS,
    MetricOptions,
    completion_times,
    finish_time_fairness,
    last_seen_s,
    measured_rows,
    summarize,
)
from fairlead.experiments.run_record import RunRecord
from fairlead.reporting.series import Steps, in_use, waiting

# The colours of runs, the same in every picture: the eight that Okabe and Ito chose so that colour-blind readers tell
# them apart, less the yellow that white paper swallows. Beyond them the dash changes.

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
DASHES = ("", "6 3", "2 2", "8 3 2 3")


def colour_of(run: int) -> str:
    """The colour of a run, by its number."""
    return COLOURS[run % len(COLOURS)]


def dash_of(run: int) -> str:
    """An SVG dash pattern; empty for a solid line."""
    return DASHES[run // len(COLOURS) % len(DASHES)]


def unique_labels(schedulers: list[str], traces: list[str]) -> list[str]:
    """A label for each run that no other has: the scheduler, with the trace if need be, else a number."""
    labels = list(schedulers)
    if len(set(zip(schedulers, traces))) > len(set(labels)):
        labels = [f"{s} · {t}" for s, t in zip(schedulers, traces)]
    taken: dict[str, int] = {}
    for place, label in enumerate(labels):
        taken[label] = taken.get(label, 0) + 1
        if taken[label] > 1:
            labels[place] = f"{label} #{taken[label]}"
    return labels


Runs: TypeAlias = Sequence[tuple[str, RunRecord]]

LOOK: dict[Any, Any] = {
    "text.parse_math": False,  # names of people's own may have a dollar in them
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa5b1",
    "axes.grid": True,
    "axes.labelcolor": "#33404d",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.titleweight": "bold",
    "font.size": 10,
    "grid.color": "#e6eaee",
    "legend.frameon": False,
    "xtick.color": "#55626f",
    "ytick.color": "#55626f",
}
LONGEST_LINE = 36  # letters of a run's name; the rest stands below, and leaves the picture its room
_MOST_BARS = 60_000  # of a Gantt: beyond it a bar is thinner than ink, and pixels are drawn
_PIXELS = 3000  # of a Gantt's time, where they are drawn
_DURATIONS = (1, 10, 60, 600, 3600, 4 * 3600, 86_400, 4 * 86_400, 30 * 86_400, 365 * 86_400)

_RATIOS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000, 10_000)


def write_figures(records: Sequence[RunRecord], folder: Path, options: MetricOptions = DEFAULTS) -> list[Path]:
    """Write every figure there is material for, and say which."""
    from matplotlib import rc_context  # here, because it takes as long to load as a small simulation to run

    folder.mkdir(parents=True, exist_ok=True)
    labels = unique_labels([r.scheduler for r in records], [r.trace for r in records])
    runs = [(textwrap.fill(label, LONGEST_LINE), record) for label, record in zip(labels, records)]
    figures: dict[str, Callable[[], Any]] = {
        "jct_cdf.png": lambda: _jct_cdf(runs, options),
        "ftf_cdf.png": lambda: _ftf_cdf(runs, options),
        "use.png": lambda: _over_time(runs, in_use, "Cluster use", "GPUs in use"),
        "queue.png": lambda: _over_time(runs, waiting, "Queue", "jobs waiting"),
        "responsiveness.png": lambda: _averages(runs, options),
        "gantt.png": lambda: _gantts([run for run in runs if run[1].device_intervals is not None]),
    }
    written = []
    with rc_context(LOOK):
        for name, draw in figures.items():
            figure = draw()
            if figure is not None:
                figure.savefig(folder / name, dpi=150)
                written.append(folder / name)
    return written


def canvas(width: float, height: float, rows: int = 1) -> tuple[Any, Any]:
    """A figure with its axes, drawn by Agg whatever the machine has, and known to no window system."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 1, squeeze=False)[:, 0]


def line_style(number: int) -> dict[str, Any]:
    """How the line of a run looks, for matplotlib."""
    dash = [float(part) for part in dash_of(number).split()]
    return {"color": colour_of(number), "linewidth": 1.8, "linestyle": (0, tuple(dash)) if dash else "-"}


def _jct_cdf(runs: Runs, options: MetricOptions) -> Any:
    def times(record: RunRecord) -> Floats:
        return completion_times(record.jobs, options)[measured_rows(record, options)]

    figure, axes = _distribution(runs, times, "Job completion time", "share of jobs done within")
    _label_ticks(axes, _DURATIONS, lambda tick: format_duration(tick).replace(".0 ", " "))
    return figure


def _ftf_cdf(runs: Runs, options: MetricOptions) -> Any:
    def rho(record: RunRecord) -> Floats:
        return finish_time_fairness(record, options.contention)[measured_rows(record, options)]

    figure, axes = _distribution(runs, rho, "Finish-time fairness ρ", "share of jobs with at most ρ")
    axes.axvline(options.unfair_above, color="#8d98a6", linewidth=1, linestyle=":")
    axes.set_xlabel(f"ρ; unfair from the dotted line on ({options.unfair_above:g})")
    _label_ticks(axes, _RATIOS, "{:g}".format)
    return figure


def _label_ticks(axes: Any, ticks: Sequence[float], text: Callable[[float], str]) -> None:
    low, high = axes.get_xlim()
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(shown, [*map(text, shown)])
    axes.minorticks_off()


def _distribution(runs: Runs, pick: Callable[[RunRecord], Floats], title: str, what: str) -> tuple[Any, Any]:
    figure, (axes,) = canvas(7, 4.2)
    plot_distributions(axes, [(label, pick(record)) for label, record in runs])
    axes.set(title=title, ylabel=what)
    if axes.has_data():
        axes.legend(loc="lower right")
    return figure, axes


def plot_distributions(axes: Any, values_of: Sequence[tuple[str, Floats]]) -> None:
    """Plot cumulative distributions on a logarithmic axis, one for each label."""
    for number, (label, values) in enumerate(values_of):
        ordered = np.maximum(np.sort(values[np.isfinite(values)]), 1e-3)
        if len(ordered):
            axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", label=label, **line_style(number))
    axes.set(ylim=(0, 1.01), xscale="log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def _over_time(runs: Runs, pick: Callable[[RunRecord], Steps], title: str, what: str) -> Any:
    lines = [pick(record).at_most(500) for _, record in runs]
    unit, name = _time_unit(max((float(line.edge_s[-1]) for line in lines if len(line.edge_s)), default=1.0))
    figure, (axes,) = canvas(9, 3.8)
    for number, ((label, _), line) in enumerate(zip(runs, lines)):
        if len(line.value):
            axes.stairs(line.value, line.edge_s / unit, baseline=None, label=label, **line_style(number))
    axes.set(title=title, xlabel=f"time, {name}", ylabel=what)
    axes.set_ylim(bottom=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if lines and axes.has_data():
        axes.legend(ncols=min(len(runs), 5), loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


def _averages(runs: Runs, options: MetricOptions) -> Any:
    """Average completion time with the part of it spent waiting for the first start."""
    summaries = [summarize(record, options) for _, record in runs]
    jct = np.nan_to_num([s.average_jct_s for s in summaries])
    first = np.nan_to_num([s.average_responsiveness_s for s in summaries])
    unit, name = _time_unit(float(jct.max(initial=1.0)))
    place = np.arange(len(runs))
    figure, (axes,) = canvas(7, 1.4 + 0.55 * len(runs))
    for offset, values, label, colour in ((-0.19, jct, "completion", "#0072B2"), (0.19, first, "first start", "#E69F00")):
        bars = axes.barh(place + offset, values / unit, 0.36, label=label, color=colour)
        axes.bar_label(bars, format_values(values.tolist(), "duration"), padding=4, fontsize=8.5, color="#33404d")
    axes.set_yticks(place, [label for label, _ in runs])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.14)
    axes.set(title="Average completion time and wait for the first start", xlabel=name)
    axes.legend(ncols=2, loc="upper left", bbox_to_anchor=(0, -0.16 - 0.25 / len(runs)))
    return figure


def _gantts(runs: Runs) -> Any:
    if not runs:
        return None
    rows = max(record.cluster.size for _, record in runs)
    longest_s = max(last_seen_s(record) for _, record in runs)
    figure, axes = canvas(11, len(runs) * min(4.5, 1.2 + 0.045 * rows), len(runs))
    figure.suptitle("a row for each GPU, a colour for each job", x=0.01, ha="left", fontsize=9, color="#55626f")
    for place, (label, record) in zip(axes, runs):
        _gantt(place, label, record, longest_s)
    low, high = zip(*(place.get_xlim() for place in axes))
    for place in axes:
        place.set_xlim(min(low), max(high))  # one scale of time, or lengths could not be compared
    return figure


def _gantt(axes: Any, label: str, record: RunRecord, longest_s: float) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    device_intervals, cluster = record.device_intervals, record.cluster
    assert device_intervals is not None
    unit, name = _time_unit(longest_s)
    left, right, row = device_intervals.start_s / unit, device_intervals.end_s / unit, device_intervals.accelerator
    colours = colormaps["tab20"](device_intervals.job * 7 % 20)
    low, high = float(left.min(initial=0.0)), float(right.max(initial=1.0))
    how = ""
    if len(row) <= _MOST_BARS:
        top, bottom = row + 0.06, row + 0.94
        corners = np.stack([np.stack((x, y), 1) for x, y in ((left, top), (right, top), (right, bottom), (left, bottom))], 1)
        axes.add_collection(PolyCollection(list(corners), facecolors=colours, edgecolors="none"))
    else:
        step = (high - low) / _PIXELS
        image = painted((left - low) / step, (right - low) / step, row, colours, cluster.size)
        axes.imshow(image, extent=(low, high, cluster.size, 0), aspect="auto", interpolation="nearest")
        how = f" ({len(row):,} stretches, in pixels of {format_duration(step * unit)})"
    for first in cluster.first_of[1:].tolist():
        axes.axhline(first, color="white", linewidth=0.8)
    # One tick for each run of nodes of the same type: node names do not fit on paper.
    change = np.flatnonzero(np.diff(cluster.type_of, prepend=-1))
    axes.set_yticks(change, [cluster.type_names[cluster.type_of[first]] for first in change.tolist()], va="top")
    axes.set(title=f"{label}{how}", xlabel=f"time, {name}", xlim=(low, high), ylim=(cluster.size, 0))
    axes.grid(visible=False)


def painted(left: Floats, right: Floats, row: Ints, colours: Floats, rows: int, pixels: int = _PIXELS) -> Floats:
    """Stretches from pixel to pixel as an image: each pixel has the colour of the job that holds its accelerator in its middle.
    Where several do, it is that of the last; where none does, it is transparent."""
    first, behind = (np.clip(np.ceil(edge - 0.5), 0, pixels).astype(np.int64) for edge in (left, right))
    width = behind - first
    begins = np.cumsum(width) - width
    column = np.arange(width.sum()) + (first - begins).repeat(width)
    image = np.zeros((rows, pixels, 4))
    image[row.repeat(width), column] = colours.repeat(width, axis=0)
    return image


def _time_unit(span_s: float) -> tuple[float, str]:
    if span_s >= 4 * 86_400:
        return 86_400.0, "days"
    if span_s >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if span_s >= 120 else (1.0, "seconds")
