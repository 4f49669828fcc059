"""Output of commands: one JSON object, or tables and notes for users, and checks of the files to write."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os.path import realpath  # Path.resolve fails on links in a circle
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import orjson
import typer
from rich import box
from rich.console import Console, ConsoleDimensions
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fairlead.core.durations import EXPECTED, parse_duration
from fairlead.core.errors import InputError, JournalError
from fairlead.reporting.tables import no_room, room_for_names

if TYPE_CHECKING:
    from fairlead.journal.jsonl import JsonlJournal
    from fairlead.reporting.html import PageSource

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel="Output")]


CONTROLS = {code: 0x2400 + code for code in range(32) if code != 9} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Control characters, except tabs, and the visible characters to print in their place."""

_PRINTED = {code: shown for code, shown in CONTROLS.items() if code != 10}


class Out(Console):
    """Standard output or error. All text is data: no markup, no emoji codes, and control characters become visible.

    In a file or a pipe, tables have all columns and no line ends in blanks."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **how})

    def on_broken_pipe(self) -> None:
        """Let `fairlead.cli.main` decide: a reader that has ended, as in `fairlead queue | head -1`, is no error."""
        raise

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for each in super().render(renderable, options):
            plain = each.control or each.text.isprintable()
            yield each if plain else Segment(each.text.translate(_PRINTED), each.style)

    @property
    def size(self) -> ConsoleDimensions:
        unbounded = not self.is_terminal and self._width is None  # no width is given, nor COLUMNS
        return ConsoleDimensions(_UNBOUNDED, 25) if unbounded else super().size

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        Console.size.fset(self, new_size)  # type: ignore[attr-defined]

    def print(self, *objects: Any, **how: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **how)
            return
        with self.capture() as printed:
            super().print(*objects, **how)
        self.file.write("\n".join(line.rstrip() for line in printed.get().split("\n")))


_UNBOUNDED = 10_000  # columns

out = Out()
err = Out(stderr=True)

_MAX_NAME_WIDTH = 25
"""Width of names in lists with a line for each."""


def option_error(option: str, expected: str, value: object) -> InputError:
    """Return the error of an option's value."""
    return InputError(f"--{option}", expected, field=option, value=value)


def option_pairs(option: str, words: Iterable[str], expected: str) -> list[tuple[str, str]]:
    """Return the names and values of an option's words such as `bob=4`."""
    pairs = [(word, word.partition("=")) for word in words]
    for word, (name, _, value) in pairs:
        if not name or not value:
            raise option_error(option, expected, word)
    return [(name, value) for _, (name, _, value) in pairs]


def option_seconds(option: str, text: str) -> float:
    """Return the seconds of an option's duration such as `30m`."""
    try:
        return parse_duration(text)
    except ValueError:
        raise option_error(option, EXPECTED, text) from None


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on one line; numbers that are not finite are null."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    sys.stdout.buffer.write(orjson.dumps(data, dict, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS) + b"\n")
    sys.stdout.buffer.flush()


def print_lines(named: Sequence[tuple[str, str]], title: str) -> None:
    """Print a line for each name; a terminal cuts long lines."""
    width = min(max(len(name) for name, _ in named), _MAX_NAME_WIDTH)
    out.print(title, style="bold")
    for name, about in named:
        line = Text(f"  {name:<{width}}  {about}")
        if out.is_terminal:
            line.truncate(out.width, overflow="ellipsis")
        out.print(line, soft_wrap=True)


@contextmanager
def say_resumable(folder: object) -> Iterator[None]:
    """On Ctrl-C, say that finished runs are kept in a folder."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"finished runs are kept in {folder}; run the same command again to resume")
        raise


def page_source() -> PageSource:
    """Return what pages say they were made by: this command, Fairlead's version and the date."""
    from fairlead.reporting.html import PageSource  # as below: slow to import, and most commands need neither

    return PageSource.now(sys.argv[1:])


def note(text: str) -> None:
    """Print a remark on standard error; standard output may be JSON."""
    err.print(text, style="dim", soft_wrap=True)


@contextmanager
def progress(total: int | None, what: str, *, quiet: bool) -> Iterator[Any]:
    """Show a bar on standard error; `advance(1)` or `show(share)` move it. SIGTERM ends the work as Ctrl-C does: workers
    end, and partial files are removed."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if total else TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    )
    main = threading.current_thread() is threading.main_thread()
    former = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number)) if main else None
    try:
        with bar:
            task = bar.add_task(what, total=total or 1.0)
            yield _Bar(bar, task)
    finally:
        if former is not None:
            signal.signal(signal.SIGTERM, former)


class _Bar:
    def __init__(self, bar: Progress, task: Any) -> None:
        self._bar, self._task = bar, task

    def advance(self, steps: float = 1) -> None:
        self._bar.advance(self._task, steps)

    def show(self, completed: float | None = None, what: str | None = None) -> None:
        """Set how far it is, and the text in front of the bar."""
        self._bar.update(self._task, completed=completed, description=what)


def fitted_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], names: int, caption: str = "") -> Table:
    """Return a table with as many columns as the terminal has room for; the first `names` columns are always there.

    A row with a single cell behind its names has no figures: that cell is left out."""
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
    table = Table(title=title, box=box.SIMPLE, title_justify="left", caption_justify="left")
    for index in kept:
        if index:
            table.add_column(headings[index], justify="right", no_wrap=True)
        else:
            whole_names = widths[0] == longest  # otherwise other columns take their room
            table.add_column(headings[index], no_wrap=whole_names, max_width=widths[0] - 3, overflow="fold")
    for row in rows:
        if len(row) == len(headings):
            table.add_row(*(row[index] for index in kept))
        else:
            table.add_row(*row[:names], *("–" for _ in kept[names:]))
    hidden = [headings[index].strip() for index in range(names, len(headings)) if index not in kept]
    table.caption = "; ".join(part for part in (caption, no_room(hidden) if hidden else "") if part) or None
    return table


def check_paths(inputs: Sequence[Path | None], outputs: Sequence[Path | None], folders: Sequence[Path | None] = ()) -> None:
    """Raise InputError, before the work, where an output cannot be written or replaces an input or another output."""
    seen = {realpath(path) for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        if not str(path) or str(path) == "." or path.is_dir():
            raise InputError(f"output '{path}'", "a file to write, not a folder")
        if realpath(path) in seen:
            raise InputError(f"output '{path}'", "a path that is not also another input or output")
        seen.add(realpath(path))
        if path.is_file() or not path.exists():  # not a pipe or a device
            _check_writable(path, Path(realpath(path)).parent)
    for folder in folders:
        if folder is not None:
            _check_writable(folder, Path(realpath(folder)))


def _check_writable(path: Path, folder: Path) -> None:
    """Raise InputError where a folder cannot be written or created."""
    for link in (path, *path.parents):
        if link.is_symlink() and not link.exists() and not folder.exists():
            raise InputError(f"output '{path}'", f"a writable path; {link} is a broken link")
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with TemporaryFile(dir=there) as trial:
            trial.write(bytes(512))  # a full disk has room for a file, but not for its content
    except OSError as problem:
        raise InputError(f"output '{path}'", f"a writable path; {there}: {problem.strerror}") from None


@contextmanager
def event_log(path: Path | None) -> Iterator[JsonlJournal | None]:
    """Yield a journal for `--events`, or None. The file appears when the run has succeeded; a failed run leaves none."""
    if path is None:
        yield None
        return
    from fairlead.journal.jsonl import JsonlJournal

    if path.exists() and not path.is_file():  # a pipe or a device cannot be replaced later
        yield JsonlJournal(path, fresh=True)
        return
    place = Path(realpath(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    begun = place.with_name(f"{place.name}.part")
    journal = JsonlJournal(begun, fresh=True)
    try:
        yield journal
        journal.close()
        begun.replace(place)
    except BaseException:
        with suppress(JournalError):  # it is deleted anyway
            journal.close()
        begun.unlink(missing_ok=True)
        raise
