"""Published traces and tables, where they are at hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fairlead.experiments.inputs import DataMissing, ExperimentInputs, TraceFile, content_digest
from fairlead.workloads.trace import Trace

TABLE, TRACE = "simulation_throughputs.json", ".trace"


def public_file(data: Path | None, pattern: str) -> Path:
    """The first file in the folder of public traces that matches the pattern."""
    if data is None:
        raise DataMissing(pattern, "it in the folder of public traces: pass --data FOLDER")
    found = [path for path in sorted(data.glob(pattern)) if path.is_file()]
    if not found:
        raise DataMissing(f"--data {data}", f"a folder with {pattern} in it")
    return found[0]


@dataclass(frozen=True)
class GavelInputs(ExperimentInputs):
    """A throughput table, with Gavel's traces beside it."""

    @property
    def fingerprint(self) -> str:
        beside = "" if self.throughputs is None else _traces_in(self.throughputs.parent)
        return f"{super().fingerprint} {beside}".rstrip()

    def trace(self, name: str) -> Trace:
        """A trace by its file name."""
        if self.throughputs is None:
            raise DataMissing(f"trace {name}", f"it next to the throughput table: pass --throughputs FILE (Gavel's {TABLE})")
        path = self.throughputs.parent / name
        if not path.is_file():
            raise DataMissing(f"--throughputs {self.throughputs}", f"{name} next to it")
        return TraceFile(path, "gavel").read(self.table)


@lru_cache(maxsize=4)
def _traces_in(folder: Path) -> str:
    files = [path for path in sorted(folder.glob(f"*{TRACE}")) if path.is_file()]
    return " ".join(f"{path.name} {content_digest(path, 'trace')}" for path in files)
