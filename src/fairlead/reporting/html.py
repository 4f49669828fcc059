"""The one design of all pages, and the page of a set of runs: tables, distributions, GPUs in use, queue and a Gantt chart. It
puts the page's parts together; what they show is in `payload`, how they look and move is in `page/`.

Names from a trace are data: they travel as JSON in which no character can end the script, and the page's scripts write them as
text, never as markup. A content policy in the page forbids every request.
"""

from __future__ import annotations

import base64
import html
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

import orjson

from fairlead.core import VERSION
from fairlead.core.errors import InputError
from fairlead.experiments.metrics import DEFAULTS, MetricOptions
from fairlead.experiments.run_record import RunRecord
from fairlead.files import atomic_write
from fairlead.reporting.payload import MAX_BARS, payload
from fairlead.reporting.pictures import Picture, png

_STATIC = ("theme.js", "static.js")
_SCRIPTS = (
    *("theme.js", "data.js", "format.js", "chart.js", "charts.js", "gantt-data.js", "gantt-raster.js", "gantt.js"),
    *("gantt-hand.js", "table.js", "tables.js", "main.js"),
)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_SECTIONS = {"summary": "Summary", "charts": "Charts", "gantt": "Gantt", "jobs": "Jobs", "users": "Users"}


Runs: TypeAlias = Sequence[RunRecord] | Mapping[str, Sequence[RunRecord]]
"""Runs to compare; or several sets of runs that are not to be compared with each other, such as runs of other jobs, by name.
The page shows one set at a time and offers the others by their names."""


@dataclass(frozen=True)
class PageSource:
    """Where a page comes from: the command, Fairlead's version and the date, each empty where it is not known."""

    command: str = ""
    version: str = ""
    date: str = ""

    @classmethod
    def now(cls, arguments: Sequence[str] = ()) -> PageSource:
        """Of this moment; `arguments` are those of the `fairlead` command."""
        command = f"fairlead {shlex.join(arguments)}" if arguments else ""
        return cls(command, VERSION, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))

    def to_html(self) -> str:
        """As the first lines of a page."""
        about = " · ".join(filter(None, (f"Fairlead {self.version}" if self.version else "", self.date)))
        command = f"<code>{html.escape(self.command)}</code>" if self.command else ""
        said = f"<span>{html.escape(about)}</span>" if about else ""
        return f'<p class="source">{command}{said}</p>' if command or said else ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table, with a class of the style sheet."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table of a page. The columns in `numbers` are right-aligned; a row that is too short ends in one wide cell."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    numbers: Collection[int] = ()

    def to_html(self) -> str:
        """As markup."""
        head = "".join(
            f'<th class="{"" if i in self.numbers else "text"}" scope="col">{html.escape(text)}</th>'
            for i, text in enumerate(self.headings)
        )
        body = "".join(f"<tr>{''.join(self._cells(row))}</tr>" for row in self.rows)
        return f'<div class="scroll"><table class="figures"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

    def _cells(self, row: Sequence[str | Cell]) -> Iterable[str]:
        for index, given in enumerate(row):
            cell = given if isinstance(given, Cell) else Cell(given)
            wide = len(self.headings) - index if index == len(row) - 1 and len(row) < len(self.headings) else 1
            kinds = " ".join(filter(None, ("" if index in self.numbers and wide == 1 else "text", cell.kind)))
            shown = f' class="{kinds}"' if kinds else ""
            label = "" if index == 0 or wide > 1 else f' data-label="{html.escape(self.headings[index])}"'
            span = f' colspan="{wide}"' if wide > 1 else ""
            yield f"<td{shown}{span}{label}>{html.escape(cell.text)}</td>"


def card(title: str, body: str, note: str = "", identifier: str = "") -> str:
    """A section of a page: `body` is markup, the other arguments are text."""
    small = f" <small>{html.escape(note)}</small>" if note else ""
    where = f' id="{html.escape(identifier)}"' if identifier else ""
    return f'<section class="card"{where}><h2>{html.escape(title)}{small}</h2>{body}</section>'


def image(picture: Picture, drawn: bytes | None = None) -> str:
    """A picture as markup; `drawn` is its PNG file where there is one."""
    data = base64.b64encode(png(picture) if drawn is None else drawn).decode("ascii")
    return f'<img alt="{html.escape(picture.title)}" src="data:image/png;base64,{data}">'


def document(title: str, body: str, source: PageSource | None = None) -> str:
    """A page without data: `body` is markup. It needs no other file and makes no request."""
    return _framed(title, body, _STATIC, source)


def write_report(
    runs: Runs,
    path: Path,
    options: MetricOptions = DEFAULTS,
    title: str = "Fairlead report",
    notes: Sequence[str] = (),
    source: PageSource | None = None,
    sections: Sequence[str] = (),
) -> Path:
    """Write the page; its folder is made where it is missing. `notes` are text, `sections` markup above the runs."""
    if not runs or (isinstance(runs, Mapping) and not all(runs.values())):
        raise InputError(path, "at least one run to report on")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = report_html(runs, options, title, notes, source or PageSource.now(), sections)
    atomic_write(path, text.encode("utf-8"))
    return path


def report_html(
    runs: Runs,
    options: MetricOptions = DEFAULTS,
    title: str = "Fairlead report",
    notes: Sequence[str] = (),
    source: PageSource | None = None,
    sections: Sequence[str] = (),
) -> str:
    """The page as text."""
    parts = runs if isinstance(runs, Mapping) else {"": runs}
    bars_per_set = MAX_BARS // max(len(parts), 1)
    data = "\n".join(
        f'<script type="application/json" class="data" data-name="{html.escape(name)}">'
        f"{script_safe(payload(records, options, bars_per_set))}</script>"
        for name, records in parts.items()
    )
    said = "".join(f'<p class="note">{html.escape(text)}</p>' for text in notes)
    main = _filled("report.html", {"notes": said, "sections": "\n".join(sections)})
    nav = "".join(f'<a href="#{name}">{text}</a>' for name, text in _SECTIONS.items())
    return _framed(title, main, _SCRIPTS, source, nav, data)


def _framed(title: str, main: str, scripts: Sequence[str], source: PageSource | None, nav: str = "", data: str = "") -> str:
    values = {"title": html.escape(title), "style": _part("style.css"), "nav": nav, "main": main, "data": data}
    said = "" if source is None else source.to_html()
    return _filled("frame.html", {**values, "source": said, "script": "\n".join(_part(name) for name in scripts)})


def _filled(name: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders filled, in one pass: one that happens to be in a value is not filled."""
    pieces, rest = [], _part(name)
    while (start := rest.find("{{")) >= 0:
        end = rest.index("}}", start)
        pieces += [rest[:start], values[rest[start + 2 : end]]]
        rest = rest[end + 2 :]
    return "".join([*pieces, rest])


def script_safe(value: object) -> str:
    """JSON that can stand inside a script element whatever its texts contain."""
    text = orjson.dumps(value).decode("utf-8")
    for character, escaped in _UNSAFE.items():
        text = text.replace(character, escaped)
    return text


@cache
def _part(name: str) -> str:
    return files("fairlead.reporting").joinpath("page", name).read_text(encoding="utf-8")
