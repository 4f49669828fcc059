"""A case: one piece of work of a reproduction, as data, with what it answers. The same settings in the same world have the same
key while the code is the same, and under that key the answer is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import orjson

from fairlead.core.errors import FairleadError
from fairlead.study.reproduce.code import code_mark
from fairlead.study.reproduce.world import World

Answer: TypeAlias = dict[str, Any]
Tell: TypeAlias = Callable[[str], None]
"""What is said of a case while it runs, such as how far it is."""


def silent(_: str) -> None: ...


@runtime_checkable
class Case(Protocol):
    """A frozen dataclass of plain values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def run(self, world: World) -> Answer:
        """What comes of it, as JSON can hold it."""
        ...


@runtime_checkable
class CaseInRealTime(Case, Protocol):
    """It measures the machine that it runs on, so nothing else of the reproduction runs beside it."""

    def run_alone(self, world: World, tell: Tell) -> Answer: ...


ABSENT, LACKING = "no data", "not installed"
"""So begins the reason of a case that wants data, or a library, that is not at hand: nothing is wrong with it."""


class CaseFailed(FairleadError):
    """A case that others build upon has no answer."""


def settings_of(case: Case) -> dict[str, Any]:
    return {"does": type(case).__name__, **asdict(case)}


def key_of(case: Case, world: World) -> str:
    told = orjson.dumps([code_mark(), world.mark, settings_of(case)], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(told).hexdigest()[:24]


class Answers:
    """What the cases came to; asking for one that failed raises with the reason."""

    def __init__(self, world: World, by_key: Mapping[str, Answer], failed: Mapping[str, str]) -> None:
        self._world, self._by_key, self._failed = world, by_key, failed

    def of(self, case: Case) -> Answer:
        key = key_of(case, self._world)
        if key in self._by_key:
            return self._by_key[key]
        raise CaseFailed(self._failed.get(key, "it was not run"))
