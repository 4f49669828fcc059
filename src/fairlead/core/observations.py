"""The names of facts that are about one job: the state forgets them once it has ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from fairlead.core.plan import ObservedValues

What: TypeAlias = Literal["steps", "speed", "loss", "colocation"]


def observation_name(what: What, number: int) -> str:
    """The name of a fact about a job."""
    return f"{what} of {number}"


def observed_job(name: str) -> int | None:
    """The job that a fact of this name is about, by number; None where it is about none."""
    what, _, number = name.partition(" of ")
    return int(number) if what in get_args(What) and number.isdecimal() else None


def without_jobs(facts: ObservedValues, gone: Iterable[int]) -> ObservedValues:
    """The same facts, less those about these jobs; the very same where there are none."""
    about = {observation_name(what, number) for number in gone for what in get_args(What)} & facts.keys()
    return {name: fact for name, fact in facts.items() if name not in about} if about else facts
