"""Arrays and grids: one task that stands for many jobs, which differ in an index or in the values of parameters."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from fairlead.core.job import Job

MAX_ARRAY = 10_000
"""Jobs of one array or grid."""

MAX_INDEX = 1_000_000
MAX_PARAMETERS = 64  # of a grid; every job has all of them

_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?\Z")


@dataclass(frozen=True)
class ArrayMember:
    """The place of one job in its array or grid; `values` are those of a grid's parameters."""

    name: str
    id: str
    index: int
    size: int
    values: Mapping[str, str] = field(default_factory=dict)
    position: int = 0  # among its indices, from 0
    bounds: tuple[int, int] = (0, 0)  # the first and the last index

    @property
    def job_name(self) -> str:
        return f"{self.name}-{self.index}"

    def environment(self) -> dict[str, str]:
        """Return the variables that tell a job its place: `FAIRLEAD_ARRAY_*`, `JOB_INDEX`, and a grid's values."""
        place = zip(("INDEX", "POSITION", "SIZE", "MIN", "MAX"), (self.index, self.position, self.size, *self.bounds))
        values = {name.upper(): value for name, value in self.values.items()}
        return {**{f"FAIRLEAD_ARRAY_{name}": str(one) for name, one in place}, "JOB_INDEX": str(self.index), **values}

    def filled(self, run: list[str] | str) -> list[str] | str:
        """Return a command with `{name}` replaced by the value of that parameter, quoted where a shell reads it. `${name}` is a
        variable of the shell and stays."""
        if not self.values:
            return run
        names = re.compile(r"(?<!\$)\{(" + "|".join(map(re.escape, self.values)) + r")\}")
        if isinstance(run, list):
            return [names.sub(lambda found: self.values[found[1]], word) for word in run]
        return names.sub(lambda found: shlex.quote(self.values[found[1]]), run)

    def to_json(self) -> dict[str, Any]:
        """Return the member as the task in a journal and the HTTP API have it."""
        plain: dict[str, Any] = {"name": self.name, "id": self.id, "index": self.index, "size": self.size}
        return {**plain, "values": dict(self.values)} if self.values else plain


def array_of(job: Job) -> dict[str, Any] | None:
    """Return a job's place in an array, as in its task; None for a job that is in none."""
    if '"array":' not in job.command:  # most jobs; parsing takes longer
        return None
    found: dict[str, Any] | None = orjson.loads(job.command).get("array")
    return found


def parse_indices(text: str) -> list[int]:
    """Return the indices of `0-19`, `0-19:2` or `1,3,5`, in ascending order. Raises `ValueError`: the text is none of these."""
    indices: set[int] = set()
    named = 0  # also those that are named again
    for part in text.split(","):
        found = _RANGE.match(part.strip())
        if found is None:
            raise ValueError("indices such as 0-19, 0-19:2 or 1,3,5")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or not step or last > MAX_INDEX:
            raise ValueError(f"indices such as 0-19, 0-19:2 or 1,3,5, in ascending order, up to {MAX_INDEX:,}")
        if (named := named + (last - first) // step + 1) > MAX_ARRAY:
            raise ValueError(f"at most {MAX_ARRAY:,} jobs")
        indices.update(range(first, last + 1, step))
    return sorted(indices)


def array_indices(array: str | int | Sequence[int]) -> list[int]:
    """Return the indices of a task's `array`: a number of jobs, a list of indices, or a text as in `parse_indices`."""
    if isinstance(array, str) and array.isdecimal():
        array = int(array)
    if isinstance(array, int):
        if not 1 <= array <= MAX_ARRAY:
            raise ValueError(f"a number of jobs from 1 to {MAX_ARRAY:,}, or indices such as 0-19")
        return list(range(array))
    return parse_indices(array if isinstance(array, str) else ",".join(map(str, array)))


def grid_size(grid: Mapping[str, Sequence[str]]) -> int:
    """Return the number of combinations of a grid's values. Raises `ValueError`: there are none, or too many."""
    if len(grid) > MAX_PARAMETERS:
        raise ValueError(f"at most {MAX_PARAMETERS} parameters")
    size = 1
    for name, values in grid.items():
        if not values:
            raise ValueError(f"at least one value for {name}")
        size *= len(values)
        if size > MAX_ARRAY:
            raise ValueError(f"at most {MAX_ARRAY:,} combinations")
    return size


def grid_values(grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return all combinations of a grid's values; the last parameter changes fastest."""
    grid_size(grid)
    return [dict(zip(grid, values)) for values in itertools.product(*grid.values())]
