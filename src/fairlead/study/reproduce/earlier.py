"""The report that a folder has from before. One of another paper, or at another scale, is nobody's to write over. Of one that
is written anew, studies that are not run this time stay as they were told; the pictures that the new one lacks would stand
beside it as if they were its own."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.core.errors import InputError
from fairlead.study.reproduce.study import Study

MARKDOWN, PAGE = "report.md", "report.html"
_PICTURE = re.compile(r"^!\[[^\n]*\]\(([\w-]+)\.png\)$", re.MULTILINE)
_MARK = re.compile(r"^<!-- report of (.+) at scale (\w+) -->$", re.MULTILINE)
_OTHERWISE = "From an earlier run, of which this holds: "


@dataclass(frozen=True)
class Section:
    """A study as a report tells it, once for each of its files."""

    markdown: str
    html: str


def mark(paper: str, scale: str) -> str:
    """A line of the Markdown that nobody sees: whose report it is, and how large."""
    return f"<!-- report of {paper} at scale {scale} -->"


def check_folder(folder: Path, paper: str, scale: str) -> None:
    """Before anything runs: each report has a folder of its own."""
    found = _MARK.search(_text(folder / MARKDOWN))
    if found is not None and found.groups() != (paper, scale):
        told = f"a folder without the report of {found[1]} at scale {found[2]}"
        raise InputError("--out", f"{told}: another --out keeps both, as in {folder}-{scale}", field="out", value=str(folder))


def heading(study: Study[Any]) -> Section:
    """What a study's section begins with, and is found by."""
    return Section(f"## {study.title}\n", f'<h2 id="{html.escape(study.name)}">{html.escape(study.title)}</h2>')


def sections(folder: Path, studies: Iterable[Study[Any]], introduction: Sequence[str]) -> dict[str, Section]:
    """Of these studies, by name, what the report that is there tells. Where another introduction holds for it than for the new
    one, such as other rates or fewer seeds, the section says so from now on."""
    whole, page = _text(folder / MARKDOWN), _text(folder / PAGE).partition("</body>")[0]
    opening, *texts = re.split(r"^(?=## )", whole, flags=re.MULTILINE)
    parts = re.split(r"(?=<h2 id=)", page)
    others = " ".join(line for line in opening.splitlines()[3:] if line and line not in introduction)
    found = {}
    for study in studies:
        begins = heading(study)
        text = next((text for text in texts if text.startswith(begins.markdown)), None)
        part = next((part for part in parts if part.startswith(begins.html)), None)
        if text is not None and part is not None:
            found[study.name] = _otherwise(begins, Section(text.rstrip("\n") + "\n", part), others)
    return found


def _otherwise(begins: Section, kept: Section, others: str) -> Section:
    if not others or _OTHERWISE in kept.markdown:
        return kept
    text, part = kept.markdown.removeprefix(begins.markdown), kept.html.removeprefix(begins.html)
    said = f"{begins.html}<p>{html.escape(_OTHERWISE + others)}</p>{part}"
    return Section(f"{begins.markdown}\n{_OTHERWISE}{others}\n{text}", said)


def pictures_in(kept: Iterable[Section]) -> Iterator[str]:
    for section in kept:
        yield from _PICTURE.findall(section.markdown)


def drop_pictures(folder: Path, new: Collection[str]) -> None:
    """Those of the report that is there, if it is one of ours, except for what the new one has too."""
    text = _text(folder / MARKDOWN)
    for name in {*_PICTURE.findall(text)}.difference(new) if _MARK.search(text) else ():
        (folder / f"{name}.png").unlink(missing_ok=True)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # none, or not one of ours
        return ""
