"""The report of a reproduction: one Markdown file with its pictures beside it, and one page that needs nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.core.errors import InputError
from fairlead.files import atomic_write
from fairlead.reporting.html import Cell, PageSource, PageTable, document, image
from fairlead.reporting.pictures import png
from fairlead_papers.findings import Findings, Row, Wants
from fairlead_papers.study import Study, StudyScale

# The report that a folder has from before. One of another paper, or at another scale, is nobody's to write over. Of one that
# is written anew, studies that are not run this time stay as they were told; the pictures that the new one lacks would stand
# beside it as if they were its own.

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
    return Section(
        f"## {study.title}\n", f'<section class="card" id="{html.escape(study.name)}"><h2>{html.escape(study.title)}</h2>'
    )


def sections(folder: Path, studies: Iterable[Study[Any]], introduction: Sequence[str]) -> dict[str, Section]:
    """Of these studies, by name, what the report that is there tells. Where another introduction holds for it than for the new
    one, such as other rates or fewer seeds, the section says so from now on."""
    whole, page = _text(folder / MARKDOWN), _text(folder / PAGE).partition("</main>")[0]
    opening, *texts = re.split(r"^(?=## )", whole, flags=re.MULTILINE)
    parts = re.split(r'(?=<section class="card" id=)', page)
    others = " ".join(line for line in opening.splitlines()[3:] if line and line not in introduction)
    found = {}
    for study in studies:
        begins = heading(study)
        text = next((text for text in texts if text.startswith(begins.markdown)), None)
        part = next((part for part in parts if part.startswith(begins.html)), None)
        if text is not None and part is not None:
            found[study.name] = _otherwise(begins, Section(text.rstrip("\n") + "\n", part.rstrip("\n")), others)
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


VERDICTS = (
    "Verdicts: a gain is met within 10 % of the paper's factor, exceeded if it is larger, and met in part if there is a"
    " smaller gain. A value is met within 10 %. A bound is met if it is kept. An order (>) is met or not met if all seeds"
    " agree, alike if no seed differs by more than 1 %, and open if seeds disagree. With many seeds, an order of means is"
    " met if the interval lies beyond it. ± is half the width of the 95 % confidence interval of the mean over seeds."
)

HEADINGS = ("claim", "paper", "ours", "ours / paper", "verdict", "scale", "remark")
NUMBERS = HEADINGS[1:4]


@dataclass(frozen=True)
class Told:
    """A study with what it found."""

    study: Study[Any]
    findings: Findings


@dataclass(frozen=True)
class Report:
    """What the page of a reproduction shows: whose evaluation, at which scale, what holds for all of it, and each study.
    Studies that were not run this time are `kept` as an earlier report told them; all come in the paper's `order`."""

    title: str
    scale: StudyScale
    introduction: Sequence[str]
    told: Sequence[Told]
    kept: Mapping[str, Section] = field(default_factory=dict)
    order: Sequence[str] = ()

    @property
    def paragraphs(self) -> list[str]:
        return paragraphs(self.introduction)

    def in_order(self, new: Mapping[str, str], kept: Mapping[str, str]) -> list[str]:
        """The sections of all studies, by name."""
        every = {**kept, **new}
        return [every[name] for name in dict.fromkeys((*self.order, *every)) if name in every]


def paragraphs(introduction: Sequence[str]) -> list[str]:
    return [*introduction, VERDICTS]


def write_pages(report: Report, folder: Path, source: PageSource | None = None) -> list[Path]:
    """Write report.html, report.md and the pictures; say which."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {picture.name: png(picture) for one in report.told for picture in one.findings.pictures}
    drop_pictures(folder, {*pictures, *pictures_in(report.kept.values())})
    written = []
    for name, drawn in pictures.items():
        written.append(folder / f"{name}.png")
        atomic_write(written[-1], drawn)
    for name, text in ((MARKDOWN, markdown(report)), (PAGE, page(report, pictures, source))):
        atomic_write(folder / name, text.encode("utf-8"))
        written.insert(0, folder / name)
    return written


def cells(row: Row, scale: StudyScale, study: Study[Any]) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    shown = shown_paper(row), shown_ours(row)
    return (row.what, *shown, ratio, row.verdict, f"{scale.name}: {row.scale or study.size(scale)}", row.note)


def shown_paper(row: Row) -> str:
    """The paper's value, or the bound that it is."""
    bound = {Wants.MORE: "> ", Wants.AHEAD: "> ", Wants.LEAST: "≥ ", Wants.MOST: "≤ "}.get(row.wants, "")
    return shown_value(row.paper, row.unit) if row.paper is None else f"{bound}{shown_value(row.paper, row.unit)}"


def shown_ours(row: Row) -> str:
    """Our value, and how far it can be trusted where that is known."""
    shown = shown_value(row.ours, row.unit)
    return f"{shown} ± {shown_value(row.within, row.unit)}" if row.ours is not None and row.within is not None else shown


def shown_value(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "%":
        return f"{value:.2g} %" if 0 < abs(value) < 0.1 else f"{value:.2f} %" if abs(value) < 10 else f"{value:.1f} %"
    if unit == "x":
        return f"{value:.2f}×"
    return f"{value:.3g} {unit}" if abs(value) < 100 else f"{value:,.0f} {unit}"


def markdown(report: Report) -> str:
    lines = [f"# {report.title}'s evaluation, reproduced", "", mark(report.title, report.scale.name), ""]
    lines += [part + "\n" for part in report.paragraphs]
    new = {one.study.name: _markdown_section(one, report.scale) for one in report.told}
    return "\n".join(lines + report.in_order(new, {name: section.markdown for name, section in report.kept.items()}))


def _markdown_section(one: Told, scale: StudyScale) -> str:
    lines = [heading(one.study).markdown, _markdown_row(HEADINGS), _markdown_row(["---"] * len(HEADINGS))]
    lines += [_markdown_row(cells(row, scale, one.study)) for row in one.findings.rows]
    lines += ["", *(f"- {note}" for note in one.findings.notes)]
    lines += ["", *(f"![{picture.title}]({picture.name}.png)" for picture in one.findings.pictures), ""]
    return "\n".join(lines)


def _markdown_row(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def page(report: Report, pictures: dict[str, bytes], source: PageSource | None = None) -> str:
    introduction = "".join(f'<p class="prose">{html.escape(paragraph)}</p>' for paragraph in report.paragraphs)
    new = {one.study.name: _html_section(one, report.scale, pictures) for one in report.told}
    parts = report.in_order(new, {name: section.html for name, section in report.kept.items()})
    return document(f"{report.title}: the evaluation reproduced", "".join([introduction, *parts]), source)


_VERDICT_KINDS = {"met": "good", "not met": "bad", "failed": "bad", "in part": "open", "open": "open", "exceeded": "open"}


def _html_section(one: Told, scale: StudyScale, pictures: dict[str, bytes]) -> str:
    verdict = HEADINGS.index("verdict")
    rows: list[list[str | Cell]] = [list(cells(row, scale, one.study)) for row in one.findings.rows]
    for row, found in zip(rows, one.findings.rows, strict=True):
        row[verdict] = Cell(found.verdict, _VERDICT_KINDS.get(found.verdict, "muted"))
    table = PageTable(HEADINGS, rows, [HEADINGS.index(name) for name in NUMBERS]).to_html()
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in one.findings.notes)
    images = "".join(image(picture, pictures[picture.name]) for picture in one.findings.pictures)
    listed = f"<ul>{notes}</ul>" if notes else ""
    return f'{heading(one.study).html}{table}{listed}<div class="pictures">{images}</div></section>'
