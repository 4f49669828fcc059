"""What a job says about itself: `report(loss=0.3)` appends a line such as `{"loss": 0.3}` to the file that the agent reads. A
name is written at most ten times a second, the last value wins, and what is held back is written at the end. Outside Fairlead
nothing is written."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import SupportsFloat

from fairlead.client.launch_context import REPORTS

INTERVAL_NS = 100_000_000


class ReportWriter:
    def __init__(self, path: str, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._path = path
        self._clock_ns = clock_ns
        self._held: dict[str, float] = {}
        self._written_ns: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, values: Mapping[str, SupportsFloat]) -> None:
        """What is no finite number is written as infinity: who compares jobs takes it for the worst."""
        with self._lock:
            self._held.update({name: _number(value) for name, value in values.items()})
            now = self._clock_ns()
            self._write(
                [name for name in self._held if now - self._written_ns.get(name, now - INTERVAL_NS) >= INTERVAL_NS], now
            )

    def flush(self) -> None:
        with self._lock:
            self._write(list(self._held), self._clock_ns())

    def _write(self, names: list[str], now: int) -> None:
        if not names:
            return
        line = json.dumps({name: self._held.pop(name) for name in names}) + "\n"
        self._written_ns.update(dict.fromkeys(names, now))
        # One write to a file opened for appending: lines of several processes do not mix. A report that cannot be written, to a
        # disk that is full, is no reason to stop training.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)


def _number(value: SupportsFloat) -> float:
    number = float(value)
    return number if math.isfinite(number) else math.inf


_reports: ReportWriter | None = None


def report(**values: SupportsFloat) -> None:
    """Tell the scheduler how training goes, by any names: `report(loss=loss, accuracy=0.9)`."""
    global _reports
    if _reports is None:
        path = os.environ.get(REPORTS)
        if not path:
            return
        _reports = ReportWriter(path)
        atexit.register(flush)
    _reports.add(values)


def flush() -> None:
    """Write what is held back."""
    if _reports is not None:
        _reports.flush()
