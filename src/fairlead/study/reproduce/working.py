"""Runs cases in parallel processes, and behind them one by one those that need the machine for themselves. What is kept already
is not run; what fails is told, and the rest goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import as_completed

from fairlead.core.errors import InputError
from fairlead.core.extras import NotInstalled
from fairlead.study.crew import Crew
from fairlead.study.reproduce.case import ABSENT, LACKING, Answer, Answers, Case, CaseInRealTime, Tell, key_of, silent
from fairlead.study.reproduce.store import Store
from fairlead.study.reproduce.world import NotHere, World


def distinct(cases: Iterable[Case], world: World) -> dict[str, Case]:
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
        with Crew(workers) as crew:  # after an interrupt, what has ended is kept
            of = {crew.submit(_run, case, store.world): key for key, case in todo.items() if key not in alone}
            for future in as_completed(of):
                note(of[future], future.result())
    for key, case in alone.items():
        note(key, _run(case, store.world, tell))
    return Answers(store.world, answers, failed)


def _run(case: Case, world: World, tell: Tell = silent) -> Answer | str:
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
