"""One self-contained page for a set of runs: tables, distributions, use, queue and a Gantt that can be zoomed. It puts the
page's parts together; what they show is `payload`'s business, how they look and move is in `page/`.

Whatever a trace calls its jobs is data: it travels as JSON in which no character can end the script, and the page's scripts
write it as text, never as markup. A content policy in the page forbids every request.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

import orjson

from fairlead.core.errors import InputError
from fairlead.experiments.metrics import DEFAULTS, MetricOptions
from fairlead.experiments.run_record import RunRecord
from fairlead.files import atomic_write
from fairlead.reporting.payload import MAX_BARS, payload

_SCRIPTS = (
    "data.js",
    "format.js",
    "chart.js",
    "charts.js",
    "gantt-data.js",
    "gantt-raster.js",
    "gantt.js",
    "gantt-hand.js",
    "table.js",
    "tables.js",
    "main.js",
)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


Runs: TypeAlias = Sequence[RunRecord] | Mapping[str, Sequence[RunRecord]]
"""Runs to compare; or several sets of runs that are not to be compared with each other, such as runs of other jobs, by name.
The page shows one set at a time and offers the others by their names."""


def write_report(
    runs: Runs,
    path: Path,
    options: MetricOptions = DEFAULTS,
    title: str = "Fairlead report",
    max_bars: int = MAX_BARS,
    notes: Sequence[str] = (),
) -> Path:
    """Write the page; its folder is made where it is missing. `notes` stand above the tables."""
    if not runs or (isinstance(runs, Mapping) and not all(runs.values())):
        raise InputError(path, "at least one run to report on")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, report_html(runs, options, title, max_bars, notes).encode("utf-8"))
    return path


def report_html(
    runs: Runs,
    options: MetricOptions = DEFAULTS,
    title: str = "Fairlead report",
    max_bars: int = MAX_BARS,
    notes: Sequence[str] = (),
) -> str:
    """The page as text."""
    parts = runs if isinstance(runs, Mapping) else {"": runs}
    bars_per_set = max_bars // max(len(parts), 1)
    data = "\n".join(
        f'<script type="application/json" class="data" data-name="{html.escape(name)}">'
        f"{script_safe(payload(records, options, bars_per_set))}</script>"
        for name, records in parts.items()
    )
    filled = {
        "{{title}}": html.escape(title),
        "{{style}}": _part("style.css"),
        "{{script}}": "\n".join(_part(name) for name in _SCRIPTS),
        "{{notes}}": "".join(f'<p class="note">{html.escape(text)}</p>' for text in notes),
        "{{data}}": data,
    }
    text = _part("page.html")
    # Split at the placeholders first: one that happens to be in a value must not be filled.
    pieces = []
    for placeholder in ("{{title}}", "{{style}}", "{{title}}", "{{notes}}", "{{data}}", "{{script}}"):
        before, _, text = text.partition(placeholder)
        pieces += [before, filled[placeholder]]
    return "".join([*pieces, text])


def script_safe(value: object) -> str:
    """JSON that can stand inside a script element whatever its texts contain."""
    text = orjson.dumps(value).decode("utf-8")
    for character, escaped in _UNSAFE.items():
        text = text.replace(character, escaped)
    return text


@cache
def _part(name: str) -> str:
    return files("fairlead.reporting").joinpath("page", name).read_text(encoding="utf-8")
