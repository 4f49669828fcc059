"""The names of observations of one job; the state drops them once the job has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from fairlead.core.plan import ObservedValues

What: TypeAlias = Literal["steps", "speed", "loss", "colocation"]


def observation_name(what: What, number: int) -> str:
    """The name of an observation of a job."""
    return f"{what} of {number}"


def observed_job(name: str) -> int | None:
    """The number of the job that an observation of this name is about; None if it is about no job."""
    what, _, number = name.partition(" of ")
    return int(number) if what in get_args(What) and number.isdecimal() else None


def without_jobs(values: ObservedValues, gone: Iterable[int]) -> ObservedValues:
    """The observations without those of these jobs; the same object if there are none."""
    about = {observation_name(what, number) for number in gone for what in get_args(What)} & values.keys()
    return {name: value for name, value in values.items() if name not in about} if about else values
