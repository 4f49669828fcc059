"""What the head of a file looks like, for formats to recognise themselves by. It knows no format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator


def full_lines(head: str, at_most: int = 50) -> Iterator[str]:
    """The first lines that are not blank. The last one is left out if it may have been cut off."""
    lines = head.splitlines(keepends=True)
    if len(lines) > 1 and not lines[-1].endswith("\n"):
        lines.pop()
    shown = (line.strip("\r\n") for line in lines)
    for _, line in zip(range(at_most), (line for line in shown if line.strip())):
        yield line


def first_row(head: str, delimiter: str = ",") -> list[str]:
    """The cells of the first line, as a header would have them."""
    return [cell.strip().strip('"') for cell in next(full_lines(head), "").split(delimiter)]


def first_row_has(head: str, names: Collection[str], delimiter: str = ",") -> bool:
    cells = set(first_row(head, delimiter))
    return all(name in cells for name in names)


def usual_width(head: str, separator: str | None) -> int:
    """The number of columns that most lines have, so that one broken line hides nothing."""
    widths = Counter(len(line.split(separator)) for line in full_lines(head))
    return widths.most_common(1)[0][0] if widths else 0
