"""Lines of code per part and per preset, beside those of Blox (Table 3): `python benchmarks/parts.py [--markdown]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fairlead_papers.part_lines import BLOX, part_lines, preset_lines


def rows_of_parts() -> list[tuple[str, ...]]:
    return [(part.what, part.name, f"{part.own}", f"{part.module}", f"{part.whole}") for part in part_lines()]


def rows_of_presets() -> list[tuple[str, ...]]:
    found = preset_lines()
    rows = [
        (one.name, f"{one.yaml}", f"{one.code}", f"{len(one.modules)}", "" if one.blox is None else f"{one.blox:,}")
        for one in found
    ]
    named = {one.name for one in found}
    return rows + [(name, "", "", "", f"{lines:,}") for name, lines in BLOX.items() if name not in named]


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], words: int, *, markdown: bool) -> None:
    """A table whose first `words` columns are words and the others numbers."""
    widths = [max(map(len, column)) for column in zip(headings, *rows)]
    lines = [
        [cell.ljust(w) if index < words else cell.rjust(w) for index, (cell, w) in enumerate(zip(row, widths))]
        for row in (headings, *rows)
    ]
    print(f"\n{title}\n")
    if markdown:
        lines.insert(1, ["-" * w if index < words else "-" * (w - 1) + ":" for index, w in enumerate(widths)])
    print("\n".join("| " + " | ".join(line) + " |" if markdown else "  ".join(line).rstrip() for line in lines))


def main() -> None:
    markdown = "--markdown" in sys.argv[1:]
    headings = ("part", "name", "class", "its module", "with what it builds upon")
    show("Lines of code per part", headings, rows_of_parts(), 2, markdown=markdown)
    headings = ("preset", "YAML", "code beyond fifo", "in modules", "Blox (Table 3)")
    show("Lines per preset; Blox' are what its authors added to FIFO", headings, rows_of_presets(), 1, markdown=markdown)


if __name__ == "__main__":
    main()
