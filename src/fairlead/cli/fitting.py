"""Tables for a terminal of any width: what a row is called is always there, figures as far as there is room."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from fairlead.cli.output import out
from fairlead.report.tables import no_room, room_for_names


def fitted(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], names: int, caption: str = "") -> Table:
    """The first `names` columns say what a row is about. A row that has only one cell behind them says something else there,
    such as why it has no figures."""
    whole = [row for row in rows if len(row) == len(headings)]
    # with the space that the table puts around and between cells
    widths = [max(len(heading), *(len(row[i]) for row in whole), 0) + 3 for i, heading in enumerate(headings)]
    widths[:names] = [max(len(heading), *(len(row[i]) for row in rows)) + 3 for i, heading in enumerate(headings[:names])]
    longest, widths[0] = widths[0], room_for_names(widths[0], sum(widths[1:]), out.width - 2)
    room = out.width - sum(widths[:names]) - 2
    kept = list(range(names))
    for index in range(names, len(headings)):
        if widths[index] <= room:
            room -= widths[index]
            kept.append(index)
    table = Table(title=escape(title), box=box.SIMPLE, title_justify="left", caption_justify="left")
    for index in kept:
        if index:
            table.add_column(escape(headings[index]), justify="right", no_wrap=True)
        else:
            whole_names = widths[0] == longest  # else others would take of their room all the same
            table.add_column(escape(headings[index]), no_wrap=whole_names, max_width=widths[0] - 3, overflow="fold")
    for row in rows:
        if len(row) == len(headings):
            table.add_row(*(escape(row[index]) for index in kept))
        else:
            table.add_row(*map(escape, row[:names]), *("–" for _ in kept[names:]))
    hidden = [headings[index] for index in range(names, len(headings)) if index not in kept]
    table.caption = "; ".join(part for part in (caption, no_room(hidden) if hidden else "") if part) or None
    return table
