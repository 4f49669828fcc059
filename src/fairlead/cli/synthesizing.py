"""The options that `fairlead synthesize` and `fairlead advise` share: what to choose from, by what, and how often to look."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer
from rich import box
from rich.table import Table

from fairlead.cli import options as opt
from fairlead.config import Part
from fairlead.config.scheduler import parse_part
from fairlead.core.errors import InputError
from fairlead.study.synthesizer import Advice, Forecast, Wanted

PoliciesOption: TypeAlias = Annotated[str, typer.Option("--policies", help="Policies to choose from, separated by commas.")]
AdmissionsOption: TypeAlias = Annotated[
    str, typer.Option("--admissions", help="Admissions to combine them with, as in 'accept-all,accept-up-to:factor=1.2'.")
]
PlacementsOption: TypeAlias = Annotated[
    str, typer.Option("--placements", help="Placements to combine them with. [default: the one there is]")
]
EveryOption: TypeAlias = Annotated[int, typer.Option("--every", help="Look ahead every so many rounds.", min=1)]
MetricOption: TypeAlias = Annotated[
    str,
    typer.Option("--metric", help="What to choose by: jct, responsiveness, or both by weight as in 'jct=2,responsiveness=1'."),
]
ForecastOption: TypeAlias = Annotated[
    str,
    typer.Option("--forecast", help="Who will come: 'nobody', or as in the 'recent' past."),
]
WindowOption: TypeAlias = Annotated[
    float, typer.Option("--window", help="With --forecast recent: hours of the past, and of the future.", min=0.01)
]
MarginOption: TypeAlias = Annotated[
    float, typer.Option("--margin", help="Switch only where it is better by more than this share.", min=0.0)
]

POLICIES, ADMISSIONS = "fifo,srtf,las", "accept-all,accept-up-to:factor=1.2,accept-up-to:factor=1.4"
"""The nine combinations of Blox §5.2."""


def parts(text: str) -> list[Part]:
    return [parse_part(name) for name in opt.split(text)]


def wanted_of(metric: str) -> Wanted:
    weights: dict[str, float] = {}
    for one in opt.split(metric):
        name, equals, weight = one.partition("=")
        try:
            weights[name.strip()] = float(weight) if equals else 1.0
        except ValueError:
            raise InputError("--metric", "jct, responsiveness, or name=weight", field="metric", value=one) from None
    return Wanted(weights)


def forecast_of(arrivals: str, window_h: float, seed: int = 0) -> Forecast:
    return Forecast(arrivals, 3600.0 * window_h, seed)  # type: ignore[arg-type]  # it says what is wrong


def outlook_table(advice: Advice) -> Table:
    """What was seen of every candidate; the chosen one is marked."""
    table = Table(box=box.SIMPLE, title=f"from second {advice.time:.0f} on")
    for name, side in (("", "left"), ("jobs end after", "right"), ("begin after", "right"), ("", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for label, outlook in advice.outlooks:
        least = "" if outlook.complete else "> "
        marks = [
            mark for mark, holds in (("runs", label == advice.running.label), ("best", label == advice.chosen.label)) if holds
        ]
        if outlook.problem:
            table.add_row(label, "", "", outlook.problem)
        else:
            table.add_row(label, f"{least}{outlook.jct_s:.0f} s", f"{least}{outlook.responsiveness_s:.0f} s", ", ".join(marks))
    return table


def advice_data(advice: Advice) -> dict[str, object]:
    """The same for --json."""
    return {
        "time": advice.time,
        "running": advice.running.label,
        "chosen": advice.chosen.label,
        "switch": advice.switch,
        "gain": advice.gain,
        "took_s": advice.took_s,
        "outlooks": {
            label: {"jct_s": seen.jct_s, "responsiveness_s": seen.responsiveness_s, "complete": seen.complete}
            if not seen.problem
            else {"problem": seen.problem}
            for label, seen in advice.outlooks
        },
    }
