"""The report of a reproduction: one Markdown file with its pictures beside it, and one page that needs nothing else."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.study.reproduce.findings import Findings, Row
from fairlead.study.reproduce.pictures import png
from fairlead.study.reproduce.scale import Scale, scale_named
from fairlead.study.reproduce.study import Study
from fairlead.study.reproduce.world import World

HIGH_LOAD = 5.6
"""Figure 9's high load, by which a scale's window is put beside the paper's."""

HEADINGS = ("claim", "paper", "ours", "ours / paper", "verdict", "scale", "remark")

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#22303c;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
td,th{padding:.3rem .6rem;border-bottom:1px solid #dde3e8;text-align:left}
td.n{text-align:right;white-space:nowrap}.pictures{display:flex;flex-wrap:wrap;gap:1rem}
.pictures img{max-width:100%;width:33rem}
.met{color:#00734f}.not-met,.failed{color:#b3261e}.in-part{color:#8a5a00}.not-built{color:#66717d}li{color:#55626f}
"""


@dataclass(frozen=True)
class Told:
    """A study with what it found."""

    study: Study
    findings: Findings


def write_pages(told: Sequence[Told], scale: Scale, world: World, folder: Path) -> list[Path]:
    """Write report.html, report.md and the pictures; say which."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {picture.name: png(picture) for one in told for picture in one.findings.pictures}
    written = []
    for name, image in pictures.items():
        written.append(folder / f"{name}.png")
        written[-1].write_bytes(image)
    for name, text in (("report.md", markdown(told, scale, world)), ("report.html", page(told, scale, world, pictures))):
        (folder / name).write_text(text, encoding="utf-8")
        written.insert(0, folder / name)
    return written


def introduction(scale: Scale, world: World) -> list[str]:
    (first, last), (from_h, to_h) = scale.hours(HIGH_LOAD), scale_named("full").hours(HIGH_LOAD)
    return [
        f"Scale {scale.description}.",
        f"{world.rates_are[0].upper()}{world.rates_are[1:]}.",
        "Rounds of six minutes and no costs of preemption, unless a study says otherwise. Both sides of a comparison have the"
        " same jobs and the same options. Loads are those of the paper's 108 accelerators; a smaller cluster gets its part.",
        f"At {HIGH_LOAD} jobs per hour the measured jobs come in hours {first:.0f} to {last:.0f}; the paper's in hours"
        f" {from_h:.0f} to {to_h:.0f}. Where one side cannot carry the load, its queue keeps growing all that time: gains at"
        " high load depend on how late they are measured.",
        "A gain is met from nine tenths of the paper's factor on, and met in part where there is a gain at all; a value is met"
        " within a tenth.",
    ]


def cells(row: Row, scale: Scale, study: Study) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    shown = shown_value(row.paper, row.unit), shown_value(row.ours, row.unit)
    return (row.what, *shown, ratio, row.verdict, f"{scale.name}: {row.scale or study.size(scale)}", row.note)


def shown_value(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "%":
        return f"{value:.2f} %" if abs(value) < 10 else f"{value:.1f} %"
    if unit == "x":
        return f"{value:.2f}×"
    return f"{value:.3g} {unit}" if abs(value) < 100 else f"{value:,.0f} {unit}"


def markdown(told: Sequence[Told], scale: Scale, world: World) -> str:
    lines = ["# Gavel's evaluation, reproduced", ""]
    lines += [part + "\n" for part in introduction(scale, world)]
    for one in told:
        lines += [f"## {one.study.title}", "", _markdown_row(HEADINGS), _markdown_row(["---"] * len(HEADINGS))]
        lines += [_markdown_row(cells(row, scale, one.study)) for row in one.findings.rows]
        lines += ["", *(f"- {note}" for note in one.findings.notes)]
        lines += ["", *(f"![{picture.title}]({picture.name}.png)" for picture in one.findings.pictures), ""]
    return "\n".join(lines)


def _markdown_row(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def page(told: Sequence[Told], scale: Scale, world: World, pictures: dict[str, bytes]) -> str:
    parts = [
        f"<h1>Gavel's evaluation, reproduced</h1>{''.join(f'<p>{html.escape(p)}</p>' for p in introduction(scale, world))}"
    ]
    for one in told:
        head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
        body = "".join(_html_row(row, scale, one.study) for row in one.findings.rows)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in one.findings.notes)
        images = "".join(
            f'<img alt="{html.escape(p.title)}" src="data:image/png;base64,{base64.b64encode(pictures[p.name]).decode()}">'
            for p in one.findings.pictures
        )
        parts.append(
            f'<h2 id="{html.escape(one.study.name)}">{html.escape(one.study.title)}</h2>'
            f"<table><tr>{head}</tr>{body}</table><ul>{notes}</ul><div class=pictures>{images}</div>"
        )
    return document("Gavel, reproduced", "".join(parts))


def document(title: str, body: str) -> str:
    """A page that needs nothing else and asks for nothing."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _html_row(row: Row, scale: Scale, study: Study) -> str:
    shown = [html.escape(cell) for cell in cells(row, scale, study)]
    kind = row.verdict.replace(" ", "-")
    parts = [f'<td class="n">{cell}</td>' if 1 <= index <= 3 else f"<td>{cell}</td>" for index, cell in enumerate(shown)]
    parts[4] = f'<td class="{kind}">{shown[4]}</td>'
    return f"<tr>{''.join(parts)}</tr>"
