"""The report that a folder has from before. One of another paper, or at another scale, is nobody's to write over; the pictures
of one that is written anew, and that the new one lacks, would stand beside it as if they were its own."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from fairlead.core.errors import InputError

MARKDOWN = "report.md"
_PICTURE = re.compile(r"^!\[[^\n]*\]\(([\w-]+)\.png\)$", re.MULTILINE)
_MARK = re.compile(r"^<!-- report of (.+) at scale (\w+) -->$", re.MULTILINE)


def mark(paper: str, scale: str) -> str:
    """A line of the Markdown that nobody sees: whose report it is, and how large."""
    return f"<!-- report of {paper} at scale {scale} -->"


def check_folder(folder: Path, paper: str, scale: str) -> None:
    """Before anything runs: each report has a folder of its own."""
    found = _MARK.search(_text(folder))
    if found is not None and found.groups() != (paper, scale):
        told = f"a folder without the report of {found[1]} at scale {found[2]}"
        raise InputError("--out", f"{told}: another --out keeps both, as in {folder}-{scale}", field="out", value=str(folder))


def drop_pictures(folder: Path, new: Collection[str]) -> None:
    """Those of the report that is there, if it is one of ours, except for what the new one has too."""
    text = _text(folder)
    for name in {*_PICTURE.findall(text)}.difference(new) if _MARK.search(text) else ():
        (folder / f"{name}.png").unlink(missing_ok=True)


def _text(folder: Path) -> str:
    try:
        return (folder / MARKDOWN).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # none, or not one of ours
        return ""
