"""What is true in Horus' studies, and what its scheduler believes. Two who share an accelerator are as slow as they were
measured to be; the scheduler knows what a predictor says of their graphs, which has not seen half of their families."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from fairlead.core.cluster import AcceleratorType
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.models.interference import Slowdown
from fairlead.prediction.fit_predictor import dataset
from fairlead.prediction.measured_profiles import Profiles, mean_slowdowns, paired_sets, shipped_profiles
from fairlead.prediction.predictor import Predictor, shipped_predictor
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead.profiling.results import measured_set
from fairlead.workloads.throughput_tables import MeasuredTraining, ThroughputTable, colocation_table
from fairlead.workloads.trace import Trace

H200 = AcceleratorType("h200", 141.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
SHARING = "time-slicing"
HALF = "{}_half"
"""The predictor that was trained without half of a device's families: those that it names as `without`."""


@dataclass(frozen=True)
class MeasuredPairs(ExperimentInputs):
    """`device` is a measured set that ships. What is true of its pairs is the mean of the sessions in which they were measured,
    or what one `session` says, by the name of its set."""

    device: str = "h200"
    session: str = ""

    @property
    def table(self) -> ThroughputTable:
        return _table(self.device, self.session)

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sets of all of these pairs."""
        known = _profiles(self.device)
        sets = {name: measured_set(name) for name in paired_sets(self.device, SelectionMetric.UTILIZATION)}
        ours = {name: mean_slowdowns(rows, known.alone) for name, (about, rows) in sets.items() if about["sharing"] == SHARING}
        return tuple(name for name, found in ours.items() if found.keys() == known.pairs[SHARING].keys())

    @cached_property
    def fingerprint(self) -> str:
        """Of what is true and of what is believed."""
        true = b"".join(_table(self.device, session).paired.tobytes() for session in ("", *self.sessions))
        return hashlib.sha256(repr((self.trainings, self.uses, self.model)).encode() + true).hexdigest()[:16]

    @property
    def rates_note(self) -> str:
        many = len(self.trainings)
        pairs = f"all {many * (many + 1) // 2} pairs of them, {SHARING}, the mean of {len(self.sessions)} sessions"
        return f"rates: {many} trainings on {_profiles(self.device).device}, and {pairs}"

    @property
    def beliefs_are(self) -> str:
        unseen = len(self.trainings) - len(self.seen)
        return (
            "utilization and memory that a predictor says of each training's graph, and slowdowns by its model; it was trained"
            f" without {self.predictor.about['without']}, and so has seen nothing of {unseen} of the {len(self.trainings)}"
        )

    @property
    def predictor(self) -> Predictor:
        return shipped_predictor(HALF.format(self.device))

    @property
    def trainings(self) -> tuple[MeasuredTraining, ...]:
        """In order of utilization."""
        return _trainings(self.device)

    @cached_property
    def seen(self) -> frozenset[str]:
        """Kinds of whose family the predictor has learned."""
        without = self.predictor.about["without"].split(", ")
        alone = _profiles(self.device).alone
        return frozenset(one.kind for one in self.trainings if alone[one.kind].family not in without)

    @cached_property
    def uses(self) -> dict[str, tuple[float, float]]:
        """Believed utilization in percent, and memory in GB, by kind."""
        known = dataset(measured_set(self.device)[1], measured_set(f"{self.device}_features")[1])
        columns = dict(zip(known.names, known.columns))
        asked = [columns[one.kind] for one in self.trainings]
        busy, memory = self.predictor.utilization.percent(asked), self.predictor.memory.mb(asked) / 1024
        believed = zip(self.trainings, busy.tolist(), memory.tolist())
        return {one.kind: (round(percent, 3), round(gb, 3)) for one, percent, gb in believed}

    @property
    def model(self) -> Slowdown:
        return self.predictor.slowdown[SHARING]

    def submitted(self, jobs: Trace) -> Trace:
        """The jobs as their users submit them."""
        return jobs

    def believed(self) -> dict[str, Any]:
        """The estimation of a scheduler file."""
        uses = {kind: list(use) for kind, use in self.uses.items()}
        return {"name": "predicted", "usage": uses, "below": list(self.model.below), "above": list(self.model.above)}


@lru_cache(maxsize=2)
def _profiles(device: str) -> Profiles:
    return shipped_profiles(device)


@lru_cache(maxsize=2)
def _trainings(device: str) -> tuple[MeasuredTraining, ...]:
    known = _profiles(device)
    found = [known.alone[name] for name in known.paired(SHARING)]
    return tuple(MeasuredTraining(one.name, one.steps_per_s, one.utilization, one.memory_mb / 1024) for one in found)


@lru_cache(maxsize=4)
def _table(device: str, session: str) -> ThroughputTable:
    """What was faster beside another than alone was noise: nobody gains by company."""
    known = _profiles(device)
    slower = mean_slowdowns(measured_set(session)[1], known.alone) if session else known.pairs[SHARING]
    return colocation_table(
        H200.name, _trainings(device), lambda a, b: max(1.0, slower[a, b][0]), SIZES, f"{device}, {SHARING}"
    )
