"""Metric reports of a job: `report(loss=0.3)` appends a line such as `{"loss": 0.3}` to the file that the agent reads. Each
name is written at most ten times a second with its last value; pending values are written at the end. Outside Fairlead nothing
is written."""

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
    """Writes metric values to a file, with a limited rate per name."""

    def __init__(self, path: str, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._path = path
        self._clock_ns = clock_ns
        self._pending: dict[str, float] = {}
        self._written_ns: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, values: Mapping[str, SupportsFloat]) -> None:
        """Add values. A value that is not finite is written as infinity, the worst when jobs are compared."""
        with self._lock:
            self._pending.update({name: _number(value) for name, value in values.items()})
            now = self._clock_ns()
            self._write(
                [name for name in self._pending if now - self._written_ns.get(name, now - INTERVAL_NS) >= INTERVAL_NS], now
            )

    def flush(self) -> None:
        """Write all pending values."""
        with self._lock:
            self._write(list(self._pending), self._clock_ns())

    def _write(self, names: list[str], now: int) -> None:
        if not names:
            return
        line = json.dumps({name: self._pending.pop(name) for name in names}) + "\n"
        self._written_ns.update(dict.fromkeys(names, now))
        # One write in append mode: lines of several processes do not mix. A full disk must not stop the training.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)


def _number(value: SupportsFloat) -> float:
    number = float(value)
    return number if math.isfinite(number) else math.inf


_writer: ReportWriter | None = None


def report(**values: SupportsFloat) -> None:
    """Report metrics of any names to the scheduler: `report(loss=loss, accuracy=0.9)`."""
    global _writer
    if _writer is None:
        path = os.environ.get(REPORTS)
        if not path:
            return
        _writer = ReportWriter(path)
        atexit.register(flush_reports)
    _writer.add(values)


def flush_reports() -> None:
    """Write all pending values."""
    if _writer is not None:
        _writer.flush()
