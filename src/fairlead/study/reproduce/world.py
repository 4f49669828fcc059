"""What all runs of a reproduction have in common: the true rates and the published traces. It travels to other processes as
paths; what they hold is read there once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fairlead.core.errors import InputError
from fairlead.endless import endless
from fairlead.study.inputs import TraceFile
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.profiles import ThroughputTable
from fairlead.workloads.tables import read_throughputs
from fairlead.workloads.trace import Trace

TABLE, TRACE = "simulation_throughputs.json", ".trace"


class NotHere(InputError):
    """What was published, and is not at hand."""


def public_file(data: Path | None, pattern: str) -> Path:
    """A file in the folder of public traces, or the first that looks so. Who named no folder is told to name one, and who did
    is told what it lacks."""
    if data is None:
        raise NotHere(pattern, "it in the folder of public traces: pass --data FOLDER")
    found = [path for path in sorted(data.glob(pattern)) if path.is_file()]
    if not found:
        raise NotHere(f"--data {data}", f"a folder with {pattern} in it")
    return found[0]


@dataclass(frozen=True)
class World:
    """`throughputs` is a file, or None for the bundled catalogue. Traces are looked for beside it."""

    throughputs: Path | None = None

    @property
    def table(self) -> ThroughputTable:
        return catalogue() if self.throughputs is None else _table(self.throughputs)

    @property
    def rates_mark(self) -> str:
        """Tells one table from another, whatever the file is called."""
        return "catalogue" if self.throughputs is None else _digest(self.throughputs)

    @property
    def mark(self) -> str:
        """Tells one world from another: the table, and the traces that lie beside it."""
        beside = "" if self.throughputs is None else _traces_in(self.throughputs.parent)
        return f"{self.rates_mark} {beside}".rstrip()

    @property
    def rates_are(self) -> str:
        if self.throughputs is None:
            return "rates: the bundled catalogue, which is modelled, not Gavel's measurements"
        return f"rates: {self.throughputs.name}"

    def trace(self, name: str) -> Trace:
        if self.throughputs is None:
            raise NotHere(f"trace {name}", f"it beside the throughput table: pass --throughputs FILE (Gavel's {TABLE})")
        path = self.throughputs.parent / name
        if not path.is_file():
            raise NotHere(f"--throughputs {self.throughputs}", f"{name} beside it")
        return TraceFile(path, "gavel").read(self.table)


@lru_cache(maxsize=4)
def _table(path: Path) -> ThroughputTable:
    return read_throughputs(path)


@lru_cache(maxsize=4)
def _digest(path: Path) -> str:
    return _content(path, "throughput table")


@lru_cache(maxsize=4)
def _traces_in(folder: Path) -> str:
    files = [path for path in sorted(folder.glob(f"*{TRACE}")) if path.is_file()]
    return " ".join(f"{path.name} {_content(path, 'trace')}" for path in files)


def _content(path: Path, what: str) -> str:
    if endless(path):
        raise InputError(path, f"a {what} in a regular file")
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as problem:
        raise InputError(path, f"a {what} that can be read ({problem.strerror})") from None
