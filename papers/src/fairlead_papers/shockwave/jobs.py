"""The jobs of Shockwave's studies: its public traces with their regimes, where they are at hand, and generated jobs like them,
which run for 0.2 to 5 hours (evenly by the logarithm) in gangs of one to eight and adapt their batch size by a mode."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from fairlead.experiments.inputs import ExperimentInputs, TraceFile
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.generate import MAX_HOURS, MIN_HOURS, Generator
from fairlead.workloads.table_files import read_throughputs
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead_papers.public_data import public_file
from fairlead_papers.shockwave.scale import TRACES

GANGS = {1: 0.6, 2: 0.3, 4: 0.09, 8: 0.01}
DURATIONS_S = tuple(np.geomspace(3600 * MIN_HOURS, 3600 * MAX_HOURS, 100).tolist())
HOURS = 1.4
"""In which all jobs arrive, as in the trace of 120."""
FOLDER, POLLUX = "shockwave", "pollux"


@dataclass(frozen=True)
class Jobs:
    """A public trace by the number of its jobs, or generated jobs of which a part adapts, half by Accordion and half by GNS."""

    count: int
    dynamic: float = 1.0
    public: bool = False


@dataclass(frozen=True)
class AdaptiveJobs(ExperimentInputs):
    """`data` is a folder with the public traces, or None: then all jobs are generated, at the catalogue's rates."""

    data: Path | None = None

    @property
    def table(self) -> ThroughputTable:
        return catalogue() if self.data is None else _table(self._path("wisr_throughputs.json"))

    @cached_property
    def fingerprint(self) -> str:
        """Of rates, jobs and regimes alike."""
        if self.data is None:
            return "generated"
        folder, pollux = self._path("tacc_throughputs.json").parent, self.data / POLLUX
        read = sorted((*folder.glob("*.trace"), *folder.glob("*.json")), key=lambda path: path.name)
        read += sorted(pollux.glob("*/*.csv"))
        told = "".join(f"{path.parent.name}/{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in read)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def rates_note(self) -> str:
        if self.data is None:
            return "rates: the bundled catalogue, which is modelled; the public traces are not here: generated jobs alone"
        return "rates: those published with Shockwave's traces"

    def jobs(self, asked: Jobs, seed: int) -> tuple[Trace, ThroughputTable]:
        if asked.public and self.data is not None and asked.count in TRACES:
            return self._public(asked.count)
        table = self.table
        static, adapts = 1.0 - asked.dynamic, asked.dynamic / 2
        made = Generator(
            asked.count,
            jobs_per_hour=asked.count / HOURS,
            table=table,
            reference_type="v100",
            durations=DURATIONS_S,
            workers=GANGS,
            users=0,
            modes={"static": static, "accordion": adapts, "gns": adapts},
        )
        return made.trace(seed), table

    def pollux_jobs(self, workload: int) -> Trace:
        """One of Pollux' eight workloads of 160 jobs, which train the applications that its authors measured."""
        path = public_file(self.data, f"{POLLUX}/workloads/workload-{workload}.csv")
        return TraceFile(path, "pollux", applications=path.parents[1]).read()

    def _public(self, count: int) -> tuple[Trace, ThroughputTable]:
        table = _table(self._path("tacc_throughputs.json" if count == 120 else "wisr_throughputs.json"))
        found = self._path(f"{count}_*.trace")
        return TraceFile(found, "shockwave", regimes=self._path(f"trace{count}_regimes.json")).read(table), table

    def _path(self, name: str) -> Path:
        return public_file(self.data, f"{FOLDER}/{name}")


@lru_cache(maxsize=4)
def _table(path: Path) -> ThroughputTable:
    return read_throughputs(path)
