"""How the command line speaks: one JSON object, or tables and notes for people. Errors are one line and an exit code."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import orjson
import typer
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
from rich.text import Text

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Out(Console):
    """Standard output. For a file or a pipe tables are complete, whatever the terminal's width, and no line ends in blanks.
    Text is what it is, whatever of it looks like markup."""

    @property
    def size(self) -> ConsoleDimensions:
        unbounded = not self.is_terminal and self._width is None  # nobody asked for one, COLUMNS neither
        return ConsoleDimensions(_UNBOUNDED, 25) if unbounded else super().size

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        Console.size.fset(self, new_size)  # type: ignore[attr-defined]

    def print(self, *objects: Any, **how: Any) -> None:
        if all(isinstance(one, str) for one in objects):
            how.setdefault("markup", False)
        if self.is_terminal:
            super().print(*objects, **how)
            return
        with self.capture() as printed:
            super().print(*objects, **how)
        self.file.write("\n".join(line.rstrip() for line in printed.get().split("\n")))


_UNBOUNDED = 10_000  # columns

out = Out()
err = Console(stderr=True)

MOST_FOR_NAMES = 25
"""Columns, in lists of names with a line each."""


def print_json(data: Mapping[str, Any]) -> None:
    """One JSON object on one line; what is not a finite number is null."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    sys.stdout.buffer.write(orjson.dumps(_finite(data), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
    sys.stdout.buffer.flush()


def print_lines(named: Sequence[tuple[str, str]], title: str) -> None:
    """A name and a line each; on a terminal lines are cut where it ends, and a few long names stand out."""
    width = min(max(len(name) for name, _ in named), MOST_FOR_NAMES)
    out.print(title, style="bold", highlight=False)
    for name, about in named:
        line = Text(f"  {name:<{width}}  {about}")
        if out.is_terminal:
            line.truncate(out.width, overflow="ellipsis")
        out.print(line, highlight=False, soft_wrap=True)


@contextmanager
def kept_in(folder: object) -> Iterator[None]:
    """Whoever interrupts a long study is told that what has ended is not lost."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"what has ended is kept in {folder}; the same command goes on from there")
        raise


def note(text: str) -> None:
    """A remark for people; never on standard output, which may be JSON."""
    err.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress(total: int | None, what: str, *, quiet: bool) -> Iterator[Any]:
    """A bar on standard error while something long runs; `advance(1)` or `show(share)` move it, `say(what)` names it."""
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
    with bar:
        task = bar.add_task(what, total=total or 1.0)
        yield _Bar(bar, task)


class _Bar:
    def __init__(self, bar: Progress, task: Any) -> None:
        self._bar, self._task = bar, task

    def advance(self, steps: float = 1) -> None:
        self._bar.advance(self._task, steps)

    def show(self, share: float) -> None:
        self._bar.update(self._task, completed=share)

    def say(self, what: str) -> None:
        """What runs now, in front of the bar."""
        self._bar.update(self._task, description=what)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
