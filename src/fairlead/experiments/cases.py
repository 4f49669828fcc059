"""The experiment engine: cases, frozen dataclasses of settings with a `run`, run in a process pool. In a store, an answer's key
is made of the code, the inputs and the settings: while these are the same, the case does not run again."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

import orjson

from fairlead.core.errors import FairleadError, InputError, NotInstalled
from fairlead.experiments.fingerprint import code_fingerprint
from fairlead.experiments.inputs import DataMissing, ExperimentInputs
from fairlead.files import atomic_write

T = TypeVar("T")
C = TypeVar("C")


class ProcessPool:
    """Spawned worker processes, each of which first calls `initialize(*arguments)`.

    A fork would copy locks of threads, such as a progress bar's. Workers never see an interrupt: it is for this process, which
    then terminates them. They end by themselves if this process is killed."""

    def __init__(self, size: int, initialize: Callable[..., object] | None = None, arguments: tuple[Any, ...] = ()) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(size, context, _start_worker, (initialize, arguments))

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._pool.shutdown()
            return
        running = list((self._pool._processes or {}).values())
        queue = self._pool._call_queue  # type: ignore[attr-defined]
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        queue._reader.close()  # Python below 3.11.5 otherwise waits forever to hand large arguments to a worker that is gone

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function in a worker."""
        with _interrupts_blocked(), _main_script_hidden():
            return self._pool.submit(function, *arguments)


def _start_worker(initialize: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initialize is not None:
        initialize(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process that is started meanwhile inherits the mask. An interrupt that comes meanwhile is raised afterwards."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    came: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    usual = signal.signal(signal.SIGINT, lambda number, frame: came.append(number)) if main else None
    try:
        yield
    finally:
        if main:  # another thread may have received it, and this one acts on it
            signal.signal(signal.SIGINT, usual)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _main_script_hidden() -> Iterator[None]:
    """Processes that start meanwhile do not import the script: without `if __name__ == "__main__"` it would run again."""
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def run_in_processes(
    function: Callable[..., T],
    cases: Sequence[C],
    inputs: object,
    processes: int | None,
    on_result: Callable[[int, T], None],
    on: str | None = None,
) -> None:
    """Call `function(case, inputs)` for each case; `on_result` gets each result with its case's position as it comes. What the
    function raises ends all. `on` is a Ray cluster (`ray:ADDRESS`) that does the work."""
    if on is not None:
        from fairlead.experiments.ray_pool import RayPool, ray_address

        ray_address(on)
        if cases:
            with RayPool(on, inputs, processes) as there:
                _collect({there.submit(function, case): position for position, case in enumerate(cases)}, on_result)
        return
    workers = min(processes or os.cpu_count() or 1, len(cases))
    if workers <= 1:
        for position, case in enumerate(cases):
            on_result(position, function(case, inputs))
        return
    with ProcessPool(workers) as pool:
        _collect({pool.submit(function, case, inputs): position for position, case in enumerate(cases)}, on_result)


def _collect(positions: Mapping[Future[T], int], on_result: Callable[[int, T], None]) -> None:
    for future in as_completed(positions):
        on_result(positions[future], future.result())


Answer: TypeAlias = dict[str, Any]
ReportProgress: TypeAlias = Callable[[str], None]
"""Called with what a long case has to say while it runs."""


def silent(_: str) -> None:
    """Report nothing."""


@runtime_checkable
class Case(Protocol):
    """A frozen dataclass of plain values that are the settings of one run."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def run(self, inputs: ExperimentInputs) -> Answer:
        """The answer, as JSON data."""
        ...


@runtime_checkable
class ExclusiveCase(Case, Protocol):
    """A case that measures the machine: no other case runs at the same time."""

    def run_alone(self, inputs: ExperimentInputs, report: ReportProgress) -> Answer: ...


NO_DATA, NOT_INSTALLED = "no data", "not installed"
"""The reason of a case that lacks data or a library begins so: nothing is wrong with it."""


class CaseFailed(FairleadError):
    """A case has no answer; the message is the reason."""


def settings_of(case: Case) -> dict[str, Any]:
    """The settings as data, with the class of the case."""
    return {"case": type(case).__name__, **asdict(case)}


def key_of(case: Case, inputs: ExperimentInputs) -> str:
    """The key of an answer in a store."""
    settings = orjson.dumps([code_fingerprint(), inputs.fingerprint, settings_of(case)], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(settings).hexdigest()[:24]


class Answers:
    """The answers of cases."""

    def __init__(self, inputs: ExperimentInputs, by_key: Mapping[str, Answer], failed: Mapping[str, str]) -> None:
        self._inputs, self._by_key, self._failed = inputs, by_key, failed

    def of(self, case: Case) -> Answer:
        """The answer of a case.

        Raises:
            CaseFailed: it has none.
        """
        key = key_of(case, self._inputs)
        if key in self._by_key:
            return self._by_key[key]
        raise CaseFailed(self._failed.get(key, "it was not run"))


@dataclass(frozen=True)
class CaseStore:
    """Answers as files in a folder, named by their keys. A damaged file counts as absent."""

    folder: Path
    inputs: ExperimentInputs

    def path(self, case: Case) -> Path:
        return self.folder / f"{key_of(case, self.inputs)}.json"

    def read(self, case: Case) -> Answer | None:
        try:
            content = orjson.loads(self.path(case).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        if not isinstance(content, dict) or not isinstance(answer := content.get("answer"), dict):
            return None
        return answer if content.get("check") == _check(answer) else None

    def write(self, case: Case, answer: Answer) -> Answer:
        """Keep an answer; returns what reading it later will give."""
        kept: Answer = orjson.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))
        atomic_write(self.path(case), orjson.dumps({"case": settings_of(case), "check": _check(kept), "answer": kept}))
        return kept


def _check(answer: Answer) -> str:
    return hashlib.sha256(orjson.dumps(answer, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def distinct_cases(cases: Iterable[Case], inputs: ExperimentInputs) -> dict[str, Case]:
    """By key: studies may share cases."""
    return {key_of(case, inputs): case for case in cases}


def run_cases(
    cases: Iterable[Case],
    store: CaseStore,
    *,
    processes: int | None = None,
    on: str | None = None,
    on_done: Callable[[bool], None] | None = None,
    report: ReportProgress = silent,
) -> Answers:
    """Run the cases whose answers are not in the store; exclusive ones come last, one by one.

    A case that fails has a reason instead of an answer, and the others run. After an interrupt, finished answers are kept.

    Args:
        on: a Ray cluster that runs them, as in `ray:auto`; exclusive ones run here.
        on_done: called after each case, with whether it had to run.
        report: called with what long cases have to say.
    """
    store.folder.mkdir(parents=True, exist_ok=True)  # an error here comes before the work
    wanted = distinct_cases(cases, store.inputs)
    answers: dict[str, Answer] = {}
    failed: dict[str, str] = {}
    for key, case in wanted.items():
        if (kept := store.read(case)) is not None:
            answers[key] = kept
            if on_done:
                on_done(False)
    missing = {key: case for key, case in wanted.items() if key not in answers}

    def note(key: str, answer: Answer | str) -> None:
        if isinstance(answer, str):
            failed[key] = answer  # not kept: the next run tries again
        else:
            answers[key] = store.write(missing[key], answer)
        if on_done:
            on_done(True)

    exclusive = {key: case for key, case in missing.items() if isinstance(case, ExclusiveCase)}
    together = [key for key in missing if key not in exclusive]
    run_in_processes(
        _answer_or_reason,
        [missing[key] for key in together],
        store.inputs,
        processes,
        lambda position, answer: note(together[position], answer),
        on,
    )
    for key, case in exclusive.items():
        note(key, _answer_or_reason(case, store.inputs, report))
    return Answers(store.inputs, answers, failed)


def _answer_or_reason(case: Case, inputs: ExperimentInputs, report: ReportProgress = silent) -> Answer | str:
    """The answer, or in one line why there is none: a policy may raise anything."""
    try:
        return case.run_alone(inputs, report) if isinstance(case, ExclusiveCase) else case.run(inputs)
    except Exception as problem:
        kinds = {DataMissing: f"{NO_DATA}: ", NotInstalled: f"{NOT_INSTALLED}: ", InputError: ""}
        begin = next((text for kind, text in kinds.items() if isinstance(problem, kind)), f"{type(problem).__name__}: ")
        return " ".join(f"{begin}{problem}".split())[:300]
