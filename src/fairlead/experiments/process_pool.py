"""Processes that work for a study side by side. They are spawned, as a fork would copy threads' locks, such as a progress
bar's. An interrupt is for whoever gave them work: they never see it, and are ended where nobody waits for them any more.
Where whoever gave them work is killed they end by themselves; what they share would keep them waiting for ever."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class ProcessPool:
    """So many processes, each of which calls `begin` with what is `given` before its first work."""

    def __init__(self, size: int, begin: Callable[..., object] | None = None, given: tuple[Any, ...] = ()) -> None:
        self._pool = ProcessPoolExecutor(size, multiprocessing.get_context("spawn"), _begin, (begin, given))

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def submit(self, work: Callable[..., T], *given: Any) -> Future[T]:
        with _interrupts_wait():
            return self._pool.submit(work, *given)

    def close(self) -> None:
        """When all work is done."""
        self._pool.shutdown()

    def abandon(self) -> None:
        """Now, whatever they are at."""
        running = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()


def _begin(begin: Callable[..., object] | None, given: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_who_gave_work, daemon=True).start()
    if begin is not None:
        begin(*given)


def _end_with_who_gave_work() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Who is started meanwhile inherits the mask and never gets one; and none that comes here leaves somebody half started."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    came: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    usual = signal.signal(signal.SIGINT, lambda number, frame: came.append(number)) if main else None
    try:
        yield
    finally:
        if main:  # another thread may have heard it, and it is this one that acts on it
            signal.signal(signal.SIGINT, usual)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if came:
            signal.raise_signal(signal.SIGINT)
