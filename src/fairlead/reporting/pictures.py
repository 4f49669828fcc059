"""Pictures as values, and their drawing as PNG, off screen. Sweeps and reproductions of papers use them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fairlead.reporting.figures import LOOK, canvas, colour_of, line_style, plot_distributions

_MAX_LEVEL_NAMES = 8
"""Names along an axis; more are written upright."""


@dataclass(frozen=True)
class PlotLine:
    """Points in order; `spread` is the half-width of each point's confidence interval over seeds."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Lines:
    """Lines over a common axis."""

    name: str
    title: str
    x: str
    y: str
    lines: Sequence[PlotLine]
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[str] = ()  # names of the values 0, 1, … of x


@dataclass(frozen=True)
class Distribution:
    """Cumulative distributions: a list of values for each label."""

    name: str
    title: str
    x: str
    values: Sequence[tuple[str, Sequence[float]]]


@dataclass(frozen=True)
class Stack:
    """Stacked layers, one for each job, coloured by group."""

    name: str
    title: str
    x: str
    y: str
    edges: Sequence[float]  # one more than there are values in a layer
    layers: Sequence[Sequence[float]]
    groups: Sequence[str]  # of each layer


@dataclass(frozen=True)
class Points:
    """Clouds of points: a label, and the points' x and y."""

    name: str
    title: str
    x: str
    y: str
    clouds: Sequence[tuple[str, Sequence[float], Sequence[float]]]
    log_x: bool = False
    ticks: Sequence[str] = ()  # names of the values 0, 1, … of x


Picture: TypeAlias = Lines | Distribution | Stack | Points


def png(picture: Picture) -> bytes:
    """Return a picture as a PNG file."""
    from matplotlib import rc_context  # here, because it takes long to load

    with rc_context(LOOK):
        figure, (axes,) = canvas(7, 4.2)
        _DRAWN[type(picture)](axes, picture)
        axes.set_title(picture.title)
        axes.set_xlabel(picture.x)
        if axes.has_data() and axes.get_legend_handles_labels()[1]:
            axes.legend(loc="best", fontsize=9)
        written = io.BytesIO()
        figure.savefig(written, format="png", dpi=120, metadata={"Software": None})
    return written.getvalue()


def _lines(axes: Any, picture: Lines) -> None:
    for number, line in enumerate(picture.lines):
        x, y = np.array(line.x), np.array(line.y)
        axes.plot(x, y, label=line.label, marker="o", markersize=4, **line_style(number))
        if len(line.spread):
            spread = np.array(line.spread)
            axes.fill_between(x, y - spread, y + spread, color=colour_of(number), alpha=0.15, linewidth=0)
    axes.set_ylabel(picture.y)
    _ticks(axes, picture.ticks)
    if picture.log_x:
        axes.set_xscale("log", base=2)
        _in_digits(axes.xaxis)
    if picture.log_y:
        axes.set_yscale("log")
        _in_digits(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)


def _points(axes: Any, picture: Points) -> None:
    for number, (label, x, y) in enumerate(picture.clouds):
        axes.scatter(x, y, s=9, alpha=0.7, color=colour_of(number), label=label or None, linewidth=0)
    axes.set_ylabel(picture.y)
    _ticks(axes, picture.ticks)
    if picture.log_x:
        axes.set_xscale("log")
        _in_digits(axes.xaxis)
    axes.set_ylim(bottom=0)


def _ticks(axes: Any, names: Sequence[str]) -> None:
    if names:
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > _MAX_LEVEL_NAMES else 0)


def _distribution(axes: Any, picture: Distribution) -> None:
    plot_distributions(axes, [(label, np.array(values)) for label, values in picture.values])
    axes.set(ylabel="share of jobs")
    _in_digits(axes.xaxis)


def _in_digits(axis: Any) -> None:
    """Label a logarithmic axis with digits; matplotlib's labels are formulas, which `figures.LOOK` does not parse."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")


def _stack(axes: Any, picture: Stack) -> None:
    edges, base = np.array(picture.edges), np.zeros(len(picture.edges) - 1)
    groups = list(dict.fromkeys(picture.groups))
    named: set[str] = set()
    for layer, group in zip(picture.layers, picture.groups):
        top = base + np.array(layer)
        label = None if group in named else group
        named.add(group)
        look = {"facecolor": colour_of(groups.index(group)), "edgecolor": "white", "linewidth": 0.4}
        axes.fill_between(edges, np.append(base, base[-1]), np.append(top, top[-1]), step="post", label=label, **look)
        base = top
    axes.set(ylabel=picture.y, xlim=(float(edges[0]), float(edges[-1])))
    axes.set_ylim(bottom=0)


_DRAWN: dict[type[Picture], Callable[..., None]] = {Lines: _lines, Distribution: _distribution, Points: _points, Stack: _stack}
