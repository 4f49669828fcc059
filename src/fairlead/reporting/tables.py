"""Summaries as tables for the terminal. `rich` gives plain text without a terminal; no figure is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fairlead.experiments.metric_columns import (
    COLUMNS,
    Column,
    Row,
    best_value,
    format_value,
    format_values,
    principal_columns,
    relevant_columns,
)

if TYPE_CHECKING:
    from fairlead.experiments.metrics import Summary

_BEST = "bold green"
_RUN = "scheduler"


def comparison_table(
    summaries: Sequence[tuple[str, Summary]],
    title: str | None = None,
    *,
    width: int | None = None,
    elsewhere: str = "--json",
) -> Table:
    """One row per run, the best value of each column emphasised.

    The most telling figures that fit `width` (by default the terminal's) are shown, and the others named below: a column is
    better absent than cut in half.
    """
    rows = [summary.to_dict() for _, summary in summaries]
    wanted = principal_columns(relevant_columns(rows))
    names = max(len(_RUN), *(len(label) for label, _ in summaries), 0)
    room = (width or get_console().width) - 4
    names = room_for_names(names, sum(_breadth(column, rows) for column in wanted), room)
    columns = _fitting(wanted, rows, room - names)
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", header_style="bold", collapse_padding=True)
    if hidden := [column.heading for column in wanted if column not in columns]:
        table.caption, table.caption_justify = no_room(hidden, elsewhere), "left"
    table.add_column(_RUN, style="cyan", max_width=names + 1, overflow="fold")  # one of it is padding
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    leading = {column.key: best_value(column, rows) for column in columns}
    texts = {column.key: format_values([row.get(column.key) for row in rows], column.shows) for column in columns}
    for index, ((label, _), row) in enumerate(zip(summaries, rows)):
        cells = (_cell(texts[c.key][index], row.get(c.key), leading[c.key]) for c in columns)
        table.add_row(Text(label), *cells)
    return table


def room_for_names(longest: int, figures: int, room: int) -> int:
    """How wide the names of rows may be: what all figures leave, and a third in any case. Longer ones go on in the next line,
    so that a name with many parameters leaves room for what the table is about."""
    return min(longest, max(room // 3, room - figures))


def no_room(headings: Sequence[str], elsewhere: str = "--json") -> str:
    """What is said below a table of columns that a terminal is too narrow for, and where else they are."""
    return f"no room here for {', '.join(headings)}: widen the terminal, or {elsewhere}"


def summary_table(label: str, summary: Summary) -> Table:
    """One run: a line per figure, with what it means."""
    row = summary.to_dict()
    heading = Text(label, style="bold cyan")
    table = Table(box=SIMPLE_HEAD, title=heading, title_justify="left", pad_edge=False, show_header=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", style="bold", no_wrap=True)
    table.add_column("meaning", style="dim")
    for column in relevant_columns([row]):
        table.add_row(column.heading, format_value(row.get(column.key), column.shows), column.meaning)
    return table


def _cell(text: str, value: float | int | None, leading: float | None) -> Text:
    wins = leading is not None and value is not None and float(value) == leading
    return Text(text, style=_BEST if wins else "", no_wrap=True)


def _fitting(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[Column]:
    """The leading columns that fit the width, in the order in which people are used to see them."""
    kept = []
    for column in columns:
        width -= _breadth(column, rows)
        if width < 0:
            break
        kept.append(column)
    return [column for column in COLUMNS if column in kept]


def _breadth(column: Column, rows: Sequence[Row]) -> int:
    """Of a column, with the space behind it."""
    return max(map(len, (column.heading, *format_values([row.get(column.key) for row in rows], column.shows)))) + 2
