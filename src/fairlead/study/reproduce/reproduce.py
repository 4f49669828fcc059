"""The registry of studies, and how a reproduction goes: gather the cases, answer them, read the answers, write the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.errors import UnknownName
from fairlead.study.reproduce import batches, cost, entities, estimation, fairness, las, mechanism, physical, scaling
from fairlead.study.reproduce.case import Answers, Case
from fairlead.study.reproduce.findings import Findings, Row
from fairlead.study.reproduce.page import Told, write_pages
from fairlead.study.reproduce.scale import Scale
from fairlead.study.reproduce.store import Store
from fairlead.study.reproduce.study import Study
from fairlead.study.reproduce.working import answer_all, distinct
from fairlead.study.reproduce.world import World

STUDIES: tuple[Study, ...] = (
    *las.STUDIES,
    *fairness.STUDIES,
    *batches.STUDIES,
    *cost.STUDIES,
    *entities.STUDIES,
    *scaling.STUDIES,
    *mechanism.STUDIES,
    *estimation.STUDIES,
    *physical.STUDIES,
)


def chosen(names: Sequence[str] = ()) -> tuple[Study, ...]:
    """The studies of these names, in the order of the paper; none named: all."""
    known = {study.name: study for study in STUDIES}
    for name in names:
        if name not in known:
            raise UnknownName("study", name, known)
    return tuple(study for study in STUDIES if not names or study.name in names)


@dataclass(frozen=True)
class Reproduction:
    """What to reproduce, how large, with which rates, and into which folder."""

    scale: Scale
    world: World
    folder: Path
    studies: tuple[Study, ...] = STUDIES

    def cases(self) -> list[Case]:
        """Each once, whichever studies need it."""
        every = (case for study in self.studies for case in study.cases(self.scale))
        return list(distinct(every, self.world).values())


@dataclass(frozen=True)
class Outcome:
    told: Sequence[Told]
    files: Sequence[Path]
    ran: int  # cases that were not kept from before

    @property
    def rows(self) -> list[tuple[Study, Row]]:
        return [(one.study, row) for one in self.told for row in one.findings.rows]


def reproduce(given: Reproduction, *, processes: int | None = None, on_done: Callable[[bool], None] | None = None) -> Outcome:
    """Answer what is not answered yet, and write the report; `on_done` is told of each case whether it had to be run."""
    ran = 0

    def note(new: bool) -> None:
        nonlocal ran
        ran += new
        if on_done:
            on_done(new)

    store = Store(given.folder / "cases", given.world)
    answers = answer_all(given.cases(), store, processes=processes, on_done=note)
    told = [Told(study, _read(study, given.scale, answers)) for study in given.studies]
    return Outcome(told, write_pages(told, given.scale, given.world, given.folder), ran)


def _read(study: Study, scale: Scale, answers: Answers) -> Findings:
    """A study that cannot be read at all is told as one row with the error; the others stand."""
    try:
        return study.read(scale, answers)
    except Exception as problem:
        return Findings([Row(study.title, None, None, note=f"{type(problem).__name__}: {problem}")])
