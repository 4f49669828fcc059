"""How a reproduction goes: gather the cases, answer them, read the answers, write the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from fairlead.experiments.cases import Answers, Case, CaseStore, ReportProgress, distinct_cases, run_cases, silent
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.reporting.html import PageSource
from fairlead_papers.findings import Findings, Row
from fairlead_papers.pages import Report, Told, check_folder, paragraphs, sections, write_pages
from fairlead_papers.study import Paper, S, Study


@dataclass(frozen=True)
class Reproduction(Generic[S]):
    """What to reproduce, how large, with which rates, and into which folder; without studies, all of the paper's."""

    paper: Paper[S]
    scale: S
    inputs: ExperimentInputs
    folder: Path
    only: tuple[Study[S], ...] = ()

    @property
    def studies(self) -> tuple[Study[S], ...]:
        return self.only or self.paper.studies

    def cases(self) -> list[Case]:
        """Each once, whichever studies need it."""
        every = (case for study in self.studies for case in study.cases(self.scale))
        return list(distinct_cases(every, self.inputs).values())


@dataclass(frozen=True)
class Outcome:
    told: Sequence[Told]
    files: Sequence[Path]
    ran: int  # cases that were not kept from before
    kept: Sequence[str] = ()  # studies that were not run, and stand in the report as they did before

    @property
    def rows(self) -> list[tuple[Study[Any], Row]]:
        return [(one.study, row) for one in self.told for row in one.findings.rows]


def reproduce(
    given: Reproduction[S],
    *,
    processes: int | None = None,
    on: str | None = None,
    on_done: Callable[[bool], None] | None = None,
    report: ReportProgress = silent,
    source: PageSource | None = None,
) -> Outcome:
    """Run the cases that have not run yet, and write the report. `on_done` gets for each case whether it had to run, `report`
    the progress of long ones. The page shows `source`. `on` is a Ray cluster that runs them, as in `ray:auto`."""
    ran = 0

    def note(new: bool) -> None:
        nonlocal ran
        ran += new
        if on_done:
            on_done(new)

    check_folder(given.folder, given.paper.title, given.scale.name)
    store = CaseStore(given.folder / "cases", given.inputs)
    answers = run_cases(given.cases(), store, processes=processes, on=on, on_done=note, report=report)
    told = [Told(study, _read(study, given.scale, answers)) for study in given.studies]
    introduction = given.paper.introduction(given.scale, given.inputs)
    others = [study for study in given.paper.studies if study not in given.studies]
    kept = sections(given.folder, others, paragraphs(introduction))
    order = [study.name for study in given.paper.studies]
    pages = Report(given.paper.title, given.scale, introduction, told, kept, order)
    return Outcome(told, write_pages(pages, given.folder, source), ran, [*kept])


def _read(study: Study[S], scale: S, answers: Answers) -> Findings:
    """A study that cannot be read at all is told as one row with the error; the others stand."""
    try:
        return study.read(scale, answers)
    except Exception as problem:
        return Findings([Row(study.title, None, None, note=f"{type(problem).__name__}: {problem}")])
