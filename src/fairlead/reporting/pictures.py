"""Draws a study's pictures as PNG, off screen."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairlead.reporting.figures import LOOK, canvas, colour_of, line_style
from fairlead.reporting.findings import Distribution, Lines, Picture, Points, Stack

MOST_LEVEL = 8  # names along an axis


def png(picture: Picture) -> bytes:
    from matplotlib import rc_context  # here, because it takes long to load

    with rc_context(LOOK):
        figure, (axes,) = canvas(7, 4.2)
        if isinstance(picture, Lines):
            _lines(axes, picture)
        elif isinstance(picture, Distribution):
            _distribution(axes, picture)
        elif isinstance(picture, Points):
            _points(axes, picture)
        else:
            _stack(axes, picture)
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
    """Upright where they would run into each other."""
    if names:
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > MOST_LEVEL else 0)


def _distribution(axes: Any, picture: Distribution) -> None:
    for number, (label, values) in enumerate(picture.values):
        ordered = np.maximum(np.sort(np.array(values)), 1e-3)
        if len(ordered):
            axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", label=label, **line_style(number))
    axes.set(ylabel="share of jobs", ylim=(0, 1.01), xscale="log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    _in_digits(axes.xaxis)


def _in_digits(axis: Any) -> None:
    """Labels of a logarithmic axis: its own are formulas, which would be printed as they are (`figures.LOOK`)."""
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
