"""The report of a reproduction: one Markdown file with its pictures beside it, and one page that needs nothing else."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.study.reproduce.earlier import MARKDOWN, PAGE, Section, drop_pictures, heading, mark, pictures_in
from fairlead.study.reproduce.findings import Findings, Row, Wants
from fairlead.study.reproduce.pictures import png
from fairlead.study.reproduce.study import Sizes, Study
from fairlead.whole import write_whole

VERDICTS = (
    "A gain is met from nine tenths of the paper's factor on, and met in part where there is a gain at all; a value is met"
    " within a tenth, a bound where it is kept. An order (>) is met, or not met, where no seed says otherwise, alike where no"
    " seed differs by more than 1 %, and open where seeds disagree; of many seeds, an order of means is met where the interval"
    " lies beyond it. ± is the half width of the 95 % confidence interval"
    " of the mean over seeds."
)

HEADINGS = ("claim", "paper", "ours", "ours / paper", "verdict", "scale", "remark")
NUMBERS = HEADINGS[1:4]

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#22303c;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
td,th{padding:.3rem .6rem;border-bottom:1px solid #dde3e8;text-align:left}
td.n,th.n{text-align:right;white-space:nowrap}.pictures{display:flex;flex-wrap:wrap;gap:1rem}
.pictures img{max-width:100%;width:33rem}
.met{color:#00734f}.not-met,.failed{color:#b3261e}.in-part,.open{color:#8a5a00}.no-data,.not-installed{color:#66717d}li{color:#55626f}
"""


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
    scale: Sizes
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


def write_pages(report: Report, folder: Path) -> list[Path]:
    """Write report.html, report.md and the pictures; say which."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {picture.name: png(picture) for one in report.told for picture in one.findings.pictures}
    drop_pictures(folder, {*pictures, *pictures_in(report.kept.values())})
    written = []
    for name, image in pictures.items():
        written.append(folder / f"{name}.png")
        write_whole(written[-1], image)
    for name, text in ((MARKDOWN, markdown(report)), (PAGE, page(report, pictures))):
        write_whole(folder / name, text.encode("utf-8"))
        written.insert(0, folder / name)
    return written


def cells(row: Row, scale: Sizes, study: Study[Any]) -> tuple[str, ...]:
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


def _markdown_section(one: Told, scale: Sizes) -> str:
    lines = [heading(one.study).markdown, _markdown_row(HEADINGS), _markdown_row(["---"] * len(HEADINGS))]
    lines += [_markdown_row(cells(row, scale, one.study)) for row in one.findings.rows]
    lines += ["", *(f"- {note}" for note in one.findings.notes)]
    lines += ["", *(f"![{picture.title}]({picture.name}.png)" for picture in one.findings.pictures), ""]
    return "\n".join(lines)


def _markdown_row(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def page(report: Report, pictures: dict[str, bytes]) -> str:
    introduction = "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in report.paragraphs)
    new = {one.study.name: _html_section(one, report.scale, pictures) for one in report.told}
    parts = report.in_order(new, {name: section.html for name, section in report.kept.items()})
    top = f"<h1>{html.escape(report.title)}'s evaluation, reproduced</h1>{introduction}"
    return document(f"{report.title}, reproduced", "".join([top, *parts]))


def _html_section(one: Told, scale: Sizes, pictures: dict[str, bytes]) -> str:
    head = "".join(f"<th{' class=n' if name in NUMBERS else ''}>{name}</th>" for name in HEADINGS)
    body = "".join(_html_row(row, scale, one.study) for row in one.findings.rows)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in one.findings.notes)
    images = "".join(
        f'<img alt="{html.escape(p.title)}" src="data:image/png;base64,{base64.b64encode(pictures[p.name]).decode()}">'
        for p in one.findings.pictures
    )
    tables = f"<table><tr>{head}</tr>{body}</table><ul>{notes}</ul><div class=pictures>{images}</div>"
    return heading(one.study).html + tables


def document(title: str, body: str) -> str:
    """A page that needs nothing else and asks for nothing."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _html_row(row: Row, scale: Sizes, study: Study[Any]) -> str:
    shown = [html.escape(cell) for cell in cells(row, scale, study)]
    kind = row.verdict.replace(" ", "-")
    parts = [f'<td class="n">{cell}</td>' if 1 <= index <= 3 else f"<td>{cell}</td>" for index, cell in enumerate(shown)]
    parts[4] = f'<td class="{kind}">{shown[4]}</td>'
    return f"<tr>{''.join(parts)}</tr>"
