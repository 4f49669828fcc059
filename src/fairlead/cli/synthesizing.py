"""What `fairlead synthesize` and `fairlead advise` share: the options that say what to choose from, by what, and how often to
look, and how what was seen is shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer
from rich import box
from rich.table import Table

from fairlead.backends.costs import Costs
from fairlead.cli import options as opt
from fairlead.config import SchedulerConfig
from fairlead.config.scheduler import parse_part
from fairlead.core.errors import InputError
from fairlead.report.columns import duration
from fairlead.study.synthesizer import Advice, Advisor, Forecast, Wanted, combinations
from fairlead.workloads.profiles import ThroughputTable

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
EVERY = 10
"""The nine combinations of Blox §5.2, and how often it looks."""

METRIC, FORECAST, WINDOW_H, MARGIN = "jct", "nobody", 6.0, 0.01


@dataclass(frozen=True)
class Asked:
    """What a person wants an advisor to be."""

    policies: str
    admissions: str
    placements: str
    metric: str
    forecast: str
    window_h: float
    margin: float
    processes: int | None

    def __post_init__(self) -> None:
        _ = wanted_of(self.metric), self._forecast(0)  # what is wrong with them is told before a long trace is read

    def candidates(self, base: SchedulerConfig) -> tuple[SchedulerConfig, ...]:
        return combinations(base, *([parse_part(name) for name in opt.split(text)] for text in self._parts))

    def advisor(
        self, candidates: Sequence[SchedulerConfig], table: ThroughputTable, costs: Costs | None = None, seed: int = 0
    ) -> Advisor:
        return Advisor(
            candidates,
            table,
            wanted=wanted_of(self.metric),
            forecast=self._forecast(seed),
            costs=costs,
            margin=self.margin,
            processes=self.processes or os.cpu_count() or 1,
        )

    def _forecast(self, seed: int) -> Forecast:
        return Forecast(self.forecast, 3600.0 * self.window_h, seed)  # type: ignore[arg-type]  # it says what is wrong

    @property
    def _parts(self) -> tuple[str, str, str]:
        return self.policies, self.admissions, self.placements


def wanted_of(metric: str) -> Wanted:
    weights: dict[str, float] = {}
    for one in opt.split(metric):
        name, equals, weight = one.partition("=")
        try:
            weights[name.strip()] = float(weight) if equals else 1.0
        except ValueError:
            raise InputError("--metric", "jct, responsiveness, or name=weight", field="metric", value=one) from None
    return Wanted(weights)


def outlook_table(advice: Advice) -> Table:
    """What was seen of every candidate; the chosen one is marked."""
    table = Table(box=box.SIMPLE, title=f"from second {advice.time:,.0f} on", title_justify="left")
    for name, side in (("scheduler", "left"), ("jobs end after", "right"), ("begin after", "right"), ("", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for label, outlook in advice.outlooks:
        least = "" if outlook.complete else "> "
        marks = [
            mark for mark, holds in (("runs", label == advice.running.label), ("best", label == advice.chosen.label)) if holds
        ]
        if outlook.problem:
            table.add_row(label, "", "", outlook.problem)
        else:
            seconds = (outlook.jct_s, outlook.responsiveness_s)
            table.add_row(label, *(f"{least}{duration(one)}" for one in seconds), ", ".join(marks))
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
