"""Runs cases in parallel processes. What is kept already is not run; what fails is told, and the rest goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from fairlead.study.reproduce.case import Answer, Answers, Case, key_of
from fairlead.study.reproduce.store import Store
from fairlead.study.reproduce.world import World


def distinct(cases: Iterable[Case], world: World) -> dict[str, Case]:
    """By key: studies may share cases."""
    return {key_of(case, world): case for case in cases}


def answer_all(
    cases: Iterable[Case], store: Store, *, processes: int | None = None, on_done: Callable[[bool], None] | None = None
) -> Answers:
    """The answers of all cases; `on_done` is told, for each, whether it had to be run."""
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

    workers = min(processes or os.cpu_count() or 1, len(todo))
    if workers <= 1:
        for key, case in todo.items():
            note(key, _run(case, store.world))
    else:
        _in_parallel(todo, store.world, workers, note)
    return Answers(store.world, answers, failed)


def _in_parallel(todo: dict[str, Case], world: World, workers: int, note: Callable[[str, Answer | str], None]) -> None:
    spawn = multiprocessing.get_context("spawn")  # a fork would copy threads' locks, such as a progress bar's
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    of: dict[Future[Answer | str], str] = {pool.submit(_run, case, world): key for key, case in todo.items()}
    open_ = set(of)
    try:
        while open_:
            finished, open_ = wait(open_, return_when=FIRST_COMPLETED)
            for future in finished:
                note(of[future], future.result())
    except BaseException:  # an interrupt: nobody waits for the rest, and what has ended is kept
        running = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        raise
    pool.shutdown()


def _run(case: Case, world: World) -> Answer | str:
    """The answer, or in one line why there is none: a policy may raise anything, and other studies go on."""
    try:
        return case.run(world)
    except Exception as problem:
        return f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:300]
