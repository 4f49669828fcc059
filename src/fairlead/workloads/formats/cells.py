"""A job and the cells of its row in Fairlead's own tables, one the inverse of the other. It knows neither CSV nor Parquet: a
cell is text, or what a typed table holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

from fairlead.core.job import ELASTIC, TIMED, Job, batch_size_of
from fairlead.workloads import adaptation
from fairlead.workloads.formats.fields import MOST_WHOLE, BadField, number, whole, workers
from fairlead.workloads.losses import LossCurve
from fairlead.workloads.nature import Nature
from fairlead.workloads.regimes import EXPECTED, Regimes, parsed, spelt
from fairlead.workloads.trace import MOST_STEPS

Cell: TypeAlias = object
"""Text in a CSV file; text, a number, a list or nothing in a Parquet file."""

DURATION = "duration_s"
"""The column that stands for `steps` of a job without a kind: seconds of run time on any type."""

LOSS_CURVE = "loss_curve"
"""The column of what is no part of a job: how its loss falls, which the simulated world alone knows."""

REGIMES = "regimes"
"""Likewise: how its batch size changes."""

SCHEDULE = "schedule"
"""How its owner has planned that, in the same words; a field of the job."""

DEFAULTS: Mapping[str, Any] = {column.name: column.default for column in fields(Job)}
COLUMNS = (*DEFAULTS, DURATION, LOSS_CURVE, REGIMES)
MODES = (*adaptation.MODES, ELASTIC)
WHOLE = ("workers", "priority", "retry_limit", "group_order")
TEXT = ("name", "kind", "user", "entity", "allowed_types", "group", "mode", "command", "after", SCHEDULE, LOSS_CURVE, REGIMES)

_BETWEEN = "|"
_MAY_BE_ENDLESS = ("deadline_s", "time_limit_s", "most_slowdown")


def job_of(names: Sequence[str], cells: Sequence[Cell], position: int) -> tuple[Job, LossCurve | None, Regimes | None]:
    """The job of a row, and its loss curve and regimes where it has them. An empty cell stands for the field's default, and a
    job without a name is called by its position."""
    given = {name: _READ[name](name, cell) for name, cell in zip(names, cells) if cell is not None and cell != ""}
    given.setdefault("name", f"job-{position}")
    if "submitted_s" not in given:
        raise BadField("submitted_s", "", "seconds from 0 on")
    if DURATION in given:
        if "steps" in given or "kind" in given:
            raise BadField(DURATION, given[DURATION], "either seconds here, or steps and kind, not both")
        given["steps"] = given.pop(DURATION)
    elif "steps" not in given:
        raise BadField("steps", "", f"a number above 0 here or in {DURATION}")
    curve: LossCurve | None = given.pop(LOSS_CURVE, None)
    parts = given.pop(REGIMES, None)
    job = Job(**given)
    if parts is None:
        return job, curve, None
    if batch_size_of(job.kind) is None:
        raise BadField(REGIMES, spelt(parts), "nothing, for a job whose kind has no batch size")
    regimes = Regimes.of(job, parts)
    if not regimes.work(job.steps) <= MOST_STEPS:
        raise BadField(REGIMES, spelt(parts), f"shares that make at most {MOST_STEPS:g} steps")
    return job, curve, regimes


def cells_of(job: Job, names: Sequence[str], curve: LossCurve | None = None, nature: Nature | None = None) -> list[Any]:
    """The values of a job's row, with nothing where a default would be read. Numbers stay numbers."""
    values: list[Any] = []
    for name in names:
        if name == LOSS_CURVE:
            values.append(None if curve is None else _spelt(curve))
            continue
        if name == REGIMES:
            values.append(spelt(nature.parts) if isinstance(nature, Regimes) else None)
            continue
        value: Any = job.steps if name == DURATION else getattr(job, name)
        if name in ("allowed_types", "after"):
            value = _BETWEEN.join(map(str, value))
        elif name == SCHEDULE:
            value = spelt(value) if value else ""
        elif name in WHOLE:
            value = int(value)
        elif name not in TEXT:
            value = float(value)
        values.append(None if value in ("", math.inf) else value)
    return values


def _spelt(curve: LossCurve) -> str:
    return _BETWEEN.join(repr(float(number)) for number in (curve.start, curve.floor, curve.scale))


def columns_for(jobs: Sequence[Job], losses: Mapping[str, LossCurve], natures: Mapping[str, Nature]) -> list[str]:
    """The columns that say something about these jobs."""
    timed = all(job.kind == TIMED for job in jobs)
    always = ["name", "submitted_s", *([DURATION] if timed else ["steps", "kind"]), "workers"]
    others = [name for name in DEFAULTS if name not in (*always, "steps", "kind")]
    told = [name for name in others if any(getattr(job, name) != DEFAULTS[name] for job in jobs)]
    secrets = [name for name, known in ((LOSS_CURVE, losses), (REGIMES, natures)) if any(job.name in known for job in jobs)]
    return [*always, *told, *secrets]


def _text(field: str, cell: Cell) -> str:
    if not isinstance(cell, str):
        raise BadField(field, cell, "text")
    return cell


def _number(field: str, cell: Cell) -> float:
    if isinstance(cell, str):
        return number(field, cell)
    if isinstance(cell, bool) or not isinstance(cell, int | float) or not math.isfinite(cell):
        raise BadField(field, cell, "a number")
    return float(cell)


def _number_or_endless(field: str, cell: Cell) -> float:
    endless = cell.strip().lower() == "inf" if isinstance(cell, str) else cell == math.inf
    return math.inf if endless else _number(field, cell)


def _whole(field: str, cell: Cell) -> int:
    if isinstance(cell, str):
        return whole(field, cell)
    value = _number(field, cell)
    if not value.is_integer() or abs(value) > MOST_WHOLE:
        raise BadField(field, cell, "a whole number")
    return int(value)


def _workers(field: str, cell: Cell) -> int:
    return workers(field, cell if isinstance(cell, str) else str(_whole(field, cell)))


def _mode(field: str, cell: Cell) -> str:
    if _text(field, cell) not in MODES:
        raise BadField(field, cell, f"{', '.join(MODES[:-1])} or {MODES[-1]}")
    return _text(field, cell)


def _types(field: str, cell: Cell) -> tuple[str, ...]:
    parts = cell.split(_BETWEEN) if isinstance(cell, str) else cell
    if not isinstance(parts, list) or not all(isinstance(part, str) and part for part in parts):
        raise BadField(field, cell, f"names of types with '{_BETWEEN}' between them")
    return tuple(parts)


def _numbers(field: str, cell: Cell) -> tuple[int, ...]:
    parts = cell.split(_BETWEEN) if isinstance(cell, str) else cell
    if not isinstance(parts, list):
        raise BadField(field, cell, f"numbers of jobs with '{_BETWEEN}' between them")
    return tuple(_whole(field, part) for part in parts)


def _curve(field: str, cell: Cell) -> LossCurve:
    parts = cell.split(_BETWEEN) if isinstance(cell, str) else cell
    if not isinstance(parts, list) or len(parts) != 3:
        raise BadField(field, cell, LossCurve(0.0, 0.0, 0.0).wrong)
    curve = LossCurve(*(_number(field, part) for part in parts))
    if curve.wrong:
        raise BadField(field, cell, curve.wrong)
    return curve


def _regimes(field: str, cell: Cell) -> tuple[tuple[int, float], ...]:
    if not isinstance(cell, str):
        raise BadField(field, cell, EXPECTED)
    try:
        return parsed(cell)
    except ValueError as wrong:
        raise BadField(field, cell, str(wrong)) from None


def _reader(name: str) -> Callable[[str, Cell], Any]:
    if name == "workers":
        return _workers
    if name == "mode":
        return _mode
    if name == "allowed_types":
        return _types
    if name == "after":
        return _numbers
    if name == LOSS_CURVE:
        return _curve
    if name in (REGIMES, SCHEDULE):
        return _regimes
    if name in WHOLE:
        return _whole
    if name in TEXT:
        return _text
    return _number_or_endless if name in _MAY_BE_ENDLESS else _number


_READ = {name: _reader(name) for name in COLUMNS}
