"""A case: one piece of work of a reproduction, as data, with what it answers. The same settings in the same world have the same
key while the code is the same, and under that key the answer is kept."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import orjson

import fairlead
from fairlead.config.registry import Registry
from fairlead.core.errors import FairleadError, InputError, NotInstalled
from fairlead.experiments.inputs import ExperimentInputs, NotHere
from fairlead.experiments.process_pool import ProcessPool
from fairlead.files import atomic_write

# Which code answers: a mark that changes when any file of Fairlead, or of a package that plugs something into it, does, or
# the version of one that Fairlead needs, such as its solver. More changes it than need be, such as a comment; nothing that
# matters leaves it as it is.


@lru_cache(maxsize=1)
def code_mark() -> str:
    """Of the files as they are when it is first asked for."""
    plugged = {module.partition(".")[0] for module in Registry.installed().modules()}
    places = [place for package in sorted({"fairlead", *plugged}) for place in _places(package)]
    return f"{fairlead.__version__} {digest_of(places)} {' '.join(versions())}"


def versions() -> Iterator[str]:
    """Of the packages that Fairlead needs wherever it runs, as they are installed."""
    try:
        needed = requires("fairlead") or ()
    except PackageNotFoundError:  # run from its files
        return
    for name in sorted(re.split(r"[^\w.-]", one)[0] for one in needed if "extra ==" not in one):
        yield f"{name}={version(name)}"


def _places(package: str) -> list[Path]:
    """Its folder, or the one file that it is; nothing of it is run."""
    spec = find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [] if spec.origin is None else [Path(spec.origin)]


def digest_of(places: Iterable[Path]) -> str:
    """Of all files there, by name and content, except for what Python makes of them."""
    digest = hashlib.sha256()
    for place in places:
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and file.suffix != ".pyc":
                name = file.relative_to(place.parent).as_posix()
                digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


Answer: TypeAlias = dict[str, Any]
Tell: TypeAlias = Callable[[str], None]
"""What is said of a case while it runs, such as how far it is."""


def silent(_: str) -> None: ...


@runtime_checkable
class Case(Protocol):
    """A frozen dataclass of plain values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def run(self, world: ExperimentInputs) -> Answer:
        """What comes of it, as JSON can hold it."""
        ...


@runtime_checkable
class CaseInRealTime(Case, Protocol):
    """It measures the machine that it runs on, so nothing else of the reproduction runs beside it."""

    def run_alone(self, world: ExperimentInputs, tell: Tell) -> Answer: ...


ABSENT, LACKING = "no data", "not installed"
"""So begins the reason of a case that wants data, or a library, that is not at hand: nothing is wrong with it."""


class CaseFailed(FairleadError):
    """A case that others build upon has no answer."""


def settings_of(case: Case) -> dict[str, Any]:
    return {"does": type(case).__name__, **asdict(case)}


def key_of(case: Case, world: ExperimentInputs) -> str:
    told = orjson.dumps([code_mark(), world.mark, settings_of(case)], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(told).hexdigest()[:24]


class Answers:
    """What the cases came to; asking for one that failed raises with the reason."""

    def __init__(self, world: ExperimentInputs, by_key: Mapping[str, Answer], failed: Mapping[str, str]) -> None:
        self._world, self._by_key, self._failed = world, by_key, failed

    def of(self, case: Case) -> Answer:
        key = key_of(case, self._world)
        if key in self._by_key:
            return self._by_key[key]
        raise CaseFailed(self._failed.get(key, "it was not run"))


# Answers as small files in a folder, one for each case, named by its key. A file that is damaged counts as absent.


@dataclass(frozen=True)
class Store:
    folder: Path
    world: ExperimentInputs

    def path(self, case: Case) -> Path:
        return self.folder / f"{key_of(case, self.world)}.json"

    def read(self, case: Case) -> Answer | None:
        try:
            content = orjson.loads(self.path(case).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        if not isinstance(content, dict) or not isinstance(answer := content.get("answer"), dict):
            return None
        return answer if content.get("check") == _check(answer) else None

    def write(self, case: Case, answer: Answer) -> Answer:
        """Keep it; what comes back is what reading it later will give."""
        kept: Answer = orjson.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))
        atomic_write(self.path(case), orjson.dumps({"case": settings_of(case), "check": _check(kept), "answer": kept}))
        return kept


def _check(answer: Answer) -> str:
    return hashlib.sha256(orjson.dumps(answer, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


# Runs cases in parallel processes, and behind them one by one those that need the machine for themselves. What is kept
# already
# is not run; what fails is told, and the rest goes on.


def distinct(cases: Iterable[Case], world: ExperimentInputs) -> dict[str, Case]:
    """By key: studies may share cases."""
    return {key_of(case, world): case for case in cases}


def answer_all(
    cases: Iterable[Case],
    store: Store,
    *,
    processes: int | None = None,
    on_done: Callable[[bool], None] | None = None,
    tell: Tell = silent,
) -> Answers:
    """The answers of all cases; `on_done` is told, for each, whether it had to be run, and `tell` what those that take long
    say meanwhile."""
    store.folder.mkdir(parents=True, exist_ok=True)  # where that cannot be, it is told before the work
    wanted = distinct(cases, store.world)
    answers: dict[str, Answer] = {}
    failed: dict[str, str] = {}
    for key, case in wanted.items():
        if (kept := store.read(case)) is not None:
            answers[key] = kept
            if on_done:
                on_done(False)
    todo = {key: case for key, case in wanted.items() if key not in answers}

    def note(key: str, answer: Answer | str) -> None:
        if isinstance(answer, str):
            failed[key] = answer  # not kept: the next run tries again
        else:
            answers[key] = store.write(todo[key], answer)
        if on_done:
            on_done(True)

    alone = {key: case for key, case in todo.items() if isinstance(case, CaseInRealTime)}
    workers = min(processes or os.cpu_count() or 1, len(todo) - len(alone))
    if workers <= 1:
        for key, case in todo.items():
            if key not in alone:
                note(key, _run(case, store.world))
    else:
        with ProcessPool(workers) as crew:  # after an interrupt, what has ended is kept
            of = {crew.submit(_run, case, store.world): key for key, case in todo.items() if key not in alone}
            for future in as_completed(of):
                note(of[future], future.result())
    for key, case in alone.items():
        note(key, _run(case, store.world, tell))
    return Answers(store.world, answers, failed)


def _run(case: Case, world: ExperimentInputs, tell: Tell = silent) -> Answer | str:
    """The answer, or in one line why there is none: a policy may raise anything, and other studies go on."""
    try:
        return case.run_alone(world, tell) if isinstance(case, CaseInRealTime) else case.run(world)
    except NotHere as problem:
        return _in_one_line(f"{ABSENT}: {problem}")
    except NotInstalled as problem:
        return _in_one_line(f"{LACKING}: {problem}")
    except InputError as problem:
        return _in_one_line(str(problem))
    except Exception as problem:
        return _in_one_line(f"{type(problem).__name__}: {problem}")


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:300]
