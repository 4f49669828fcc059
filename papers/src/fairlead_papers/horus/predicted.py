"""Horus' test bed with current trainings (bf16 too) and a table of predictions, to compare predictors at the same truth.

python -m fairlead_papers.horus.predicted --alone h200_steps.jsonl --pairs h200_step_pairs.jsonl \\
    --predictions today=h200_steps_by_graph.jsonl --predictions new=h200_steps_predicted.jsonl

Without --alone and --pairs, the trainings are those of Horus' studies (fp32 and SGD), and `--predictions graph` is the
predictor of those studies.

Each line of predictions has the `name` of a training and a `StepPrediction`, as its fields or as `prediction`. A training
without a prediction is not co-located. The truth is measured. The trainings are those that were measured in pairs; with
--every, all, and pairs that were not measured follow a model that was fitted to the measured ones. Jobs request the memory
that was predicted for placement, except by a graph: those values are no upper bounds."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fairlead.core.errors import InputError
from fairlead.experiments.cases import Answer, CaseFailed
from fairlead.models.interference import Slowdown, fit
from fairlead.prediction.measured_profiles import Profiles, profiles_of
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.profiling.results import read_pairs, read_results
from fairlead.workloads.throughput_tables import MeasuredTraining, ThroughputTable, colocation_table
from fairlead.workloads.trace import Trace
from fairlead_papers.horus.jobs import SHARES
from fairlead_papers.horus.runs import FIFO, HORUS, OBP, PAB, Arm, Run
from fairlead_papers.horus.scale import SCALES, Scale
from fairlead_papers.horus.slo import KEPT
from fairlead_papers.horus.truth import H200, SHARING, SIZES, MeasuredPairs

ARMS = (FIFO, PAB, OBP, HORUS, KEPT)


@dataclass(frozen=True)
class PredictedTrainings(MeasuredPairs):
    """Trainings `alone`, and their `pairs`, as files of measurements (None: the shipped ones); and a file of `predictions`.
    `only` is a pattern of names, such as `*bf16*`."""

    alone: Path | None = None
    pairs: Path | None = None
    predictions: Path = Path()
    only: str = "*"
    every: bool = False  # also trainings that were not measured in pairs

    @property
    def table(self) -> ThroughputTable:
        if self.alone is None or self.pairs is None:
            return super().table
        return _true_table(self.alone, self.pairs, self.only, self.every)

    @property
    def sessions(self) -> tuple[str, ...]:
        return ()

    @property
    def trainings(self) -> tuple[MeasuredTraining, ...]:
        if self.alone is None or self.pairs is None:
            return super().trainings
        return _measured_trainings(self.alone, self.pairs, self.only, self.every)

    @cached_property
    def fingerprint(self) -> str:
        read = b"".join(path.read_bytes() for path in (self.alone, self.pairs, self.predictions) if path is not None)
        return hashlib.sha256(repr((self.only, self.every, self.model)).encode() + read).hexdigest()[:16]

    @cached_property
    def predicted(self) -> Mapping[str, StepPrediction]:
        """By the name of a training."""
        return dict(read_predictions(self.predictions))

    def submitted(self, jobs: Trace) -> Trace:
        """Each job with the prediction of its training."""
        made = []
        for job in jobs.jobs:
            if (found := self.predicted.get(job.kind)) is not None:
                memory_gb = 0.0 if found.source == "graph" else found.memory_gb
                job = replace(job, prediction=found.job_text(H200.name), memory_gb=memory_gb)
            made.append(job)
        return Trace.of(made, jobs.name)

    def believed(self) -> dict[str, Any]:
        return {"name": "predicted", "below": list(self.model.below), "above": list(self.model.above)}


def read_predictions(path: Path) -> Iterator[tuple[str, StepPrediction]]:
    """Yield names and predictions. A line without a name, such as one about the device, is skipped."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            row = orjson.loads(line)
        except ValueError:
            raise InputError(path, "a JSON object", line=number) from None
        if isinstance(row, dict) and isinstance(name := row.pop("name", None), str) and "problem" not in row:
            yield name, StepPrediction.from_data(row.get("prediction", row), f"{path}:{number}")


@lru_cache(maxsize=4)
def _profiles(alone: Path, pairs: Path) -> Profiles:
    return profiles_of(read_results(alone), {pairs: read_pairs(pairs)}, alone)


@lru_cache(maxsize=4)
def _measured_trainings(alone: Path, pairs: Path, only: str, every: bool) -> tuple[MeasuredTraining, ...]:
    """In order of utilization."""
    known = _profiles(alone, pairs)
    names = known.alone if every else known.paired(SHARING)
    chosen = [known.alone[name] for name in names if fnmatch.fnmatchcase(name, only)]
    chosen.sort(key=lambda one: (one.utilization, one.name))
    return tuple(MeasuredTraining(one.name, one.steps_per_s, one.utilization, one.memory_mb / 1024) for one in chosen)


@lru_cache(maxsize=4)
def _true_table(alone: Path, pairs: Path, only: str, every: bool) -> ThroughputTable:
    known, model = _profiles(alone, pairs), fitted_slowdown(alone, pairs)
    measured = known.pairs.get(SHARING, {})

    def slowdown(one: str, other: str) -> float:
        if (one, other) in measured:
            return max(1.0, measured[one, other][0])
        busy = np.array([known.alone[name].utilization for name in (one, other)])
        return max(1.0, float(model.slowdowns(busy)[0]))

    return colocation_table(
        H200.name, _measured_trainings(alone, pairs, only, every), slowdown, SIZES, f"{pairs.stem}, {SHARING}"
    )


def fitted_slowdown(alone: Path, pairs: Path) -> Slowdown:
    """The slowdown by measured utilization, fitted to the measured pairs; with too few pairs, the shipped one."""
    known = _profiles(alone, pairs)
    measured = known.pairs.get(SHARING, {})
    own, others = (np.array([known.alone[names[at]].utilization for names in measured]) for at in (0, 1))
    try:
        return fit(own, others, np.array([slower for slower, _ in measured.values()]))
    except InputError:
        return MeasuredPairs().model


def compared(scale: Scale, inputs: MeasuredPairs) -> dict[str, dict[str, float]]:
    """By workload: makespans over Horus', out-of-memory events, and GPU time with two jobs, with an SLO too; over all seeds."""
    found: dict[str, dict[str, float]] = {}
    for workload in SHARES:
        answers = {arm.label: [_answer(scale, inputs, workload, arm, seed) for seed in scale.seeds] for arm in ARMS}
        horus, kept = answers[HORUS.label], answers[KEPT.label]
        found[workload] = {
            **{f"{arm.label}/Horus": _ratio(answers[arm.label], horus) for arm in (FIFO, OBP, PAB)},
            "out of memory": float(sum(answer["out_of_memory"] for answer in (*horus, *kept))),
            "shared GPU hours": statistics.fmean(answer["shared_s"] for answer in horus) / 3600,
            "shared GPU hours, SLO": statistics.fmean(answer["shared_s"] for answer in kept) / 3600,
            "job time beyond the SLO, %": 100 * statistics.fmean(answer["beyond"] for answer in kept),
            "longest beyond, rounds": max(answer["longest_beyond_s"] for answer in kept) / 60,
        }
    return found


def _ratio(answers: Sequence[Answer], better: Sequence[Answer]) -> float:
    return statistics.fmean(one["makespan_s"] / other["makespan_s"] for one, other in zip(answers, better))


def _answer(scale: Scale, inputs: MeasuredPairs, workload: str, arm: Arm, seed: int) -> Answer:
    try:
        return Run(arm.policy, scale.cluster, workload, scale.jobs, seed).run(inputs)
    except CaseFailed as failed:
        raise SystemExit(f"{workload}, {arm.label}, seed {seed}: {failed}") from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the comparison, one line for each predictor, workload and figure."""
    parser = argparse.ArgumentParser(description="Compare predictors in Horus' test bed.")
    parser.add_argument("--alone", type=Path, help="trainings, measured alone")
    parser.add_argument("--pairs", type=Path, help="pairs of them, measured")
    parser.add_argument(
        "--predictions", action="append", required=True, metavar="NAME=FILE", help="a predictor, or graph; repeatable"
    )
    parser.add_argument("--only", default="*", help="pattern of the names of trainings")
    parser.add_argument("--every", action="store_true", help="also trainings that were not measured in pairs")
    parser.add_argument("--scale", default="small", choices=sorted(SCALES))
    given = parser.parse_args(arguments)
    if (given.alone is None) != (given.pairs is None):
        parser.error("--alone and --pairs belong together")
    for word in given.predictions:
        name, equals, file = word.partition("=")
        made = PredictedTrainings(
            alone=given.alone, pairs=given.pairs, predictions=Path(file), only=given.only, every=given.every
        )
        inputs = made if equals else MeasuredPairs()
        if equals:
            covered = sum(one.kind in made.predicted for one in made.trainings)
            print(f"{name}: {covered} of {len(made.trainings)} trainings are predicted")
        elif given.alone is not None:
            parser.error("--predictions NAME=FILE, with --alone and --pairs")
        for workload, figures in compared(SCALES[given.scale], inputs).items():
            for what, value in figures.items():
                print(f"{name}\t{workload}\t{what}\t{value:.4g}", flush=True)


if __name__ == "__main__":
    main()
