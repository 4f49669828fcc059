"""What Horus says of trainings before it schedules any (§3 and §4.1), from the measurements that ship: how busy they keep an
accelerator (Figures 3 and 5), what two do to each other (Figure 4), and how well the first is predicted (Figure 7, Table 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.experiments.cases import Answer, Answers, Case
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.models.interference import FULL
from fairlead.prediction.fit_predictor import (
    Dataset,
    KernelProfiles,
    dataset,
    errors_at_random,
    errors_by_family,
    kernel_durations,
)
from fairlead.prediction.learners import LEARNERS
from fairlead.prediction.measured_profiles import Profiles, shipped_profiles
from fairlead.prediction.predictor import shipped_predictor
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead.profiling.results import measured_set
from fairlead.reporting.pictures import Lines, PlotLine, Points
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.horus.scale import Scale
from fairlead_papers.horus.truth import MeasuredPairs
from fairlead_papers.prediction import evaluation
from fairlead_papers.study import Study

CONFIGURATIONS, PAIRS = 292.0, 600.0
"""How many the paper measured, alone and together (§3.1)."""
FITS = 0.84
"""R² of its quadratic fit to slowdowns over the sum of utilizations, on the newer of its two cards (§3.2)."""
ERRORS = {"linear": 0.188, "lightgbm": 0.193, "xgboost": 0.133, "random-forest": 0.150}
"""Table 4."""
IMPORTANT = ("activations", "batch_size", "parameters", "flops")
"""Figure 7, from the most to the least."""
MOST_SHOWN = 12


@dataclass(frozen=True)
class Alone:
    """Every configuration by itself."""

    def run(self, inputs: ExperimentInputs) -> Answer:
        data = _data(inputs)
        flops = [column["flops"] for column in data.columns]
        return {"family": list(data.families), "utilization": data.utilization.tolist(), "flops": flops}


@dataclass(frozen=True)
class Together:
    """Every pair of those that span what is divided, and how well pairs that were left out are told by what both would use
    alone; where kernels run side by side, also by what the other holds."""

    sharing: str

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, MeasuredPairs)
        known = shipped_profiles(inputs.device, SPANNING[self.sharing])
        busy, pairs = {name: one.utilization for name, one in known.alone.items()}, known.pairs[self.sharing]
        held = self._held(known, _data(inputs)) if self.sharing in shipped_predictor(inputs.device).at_once else None
        off = evaluation.of_slowdown(pairs, busy, busy, held)
        each = [(busy[one], busy[other], slower) for (one, other), (slower, _) in pairs.items()]
        own, others, slower = (list(column) for column in zip(*each))
        scores = {name: getattr(off, name) for name in ("piecewise", "of_sum", "linear", "constant", "finer")}
        return {"own": own, "others": others, "slower": slower, "pairs": len({frozenset(pair) for pair in pairs}), **scores}

    @staticmethod
    def _held(known: Profiles, data: Dataset) -> KernelProfiles:
        counted = {name: one.multiprocessors for name, one in known.alone.items() if one.multiprocessors is not None}
        return KernelProfiles(counted, kernel_durations(data))


@dataclass(frozen=True)
class Learned:
    """How far a learner's utilizations are off."""

    learner: str

    def run(self, inputs: ExperimentInputs) -> Answer:
        data, learner = _data(inputs), LEARNERS[self.learner]
        mixed, left = errors_at_random(data, learner), errors_by_family(data, learner)
        return {"at_random": mixed.rmsle, "by_family": left.rmsle}


@dataclass(frozen=True)
class Important:
    """What the predictor that ships goes by."""

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, MeasuredPairs)
        predictor = shipped_predictor(inputs.device)
        return {"learner": predictor.utilization.learner, "shares": predictor.utilization.importance()}


def _data(inputs: ExperimentInputs) -> Dataset:
    assert isinstance(inputs, MeasuredPairs)
    return dataset(measured_set(inputs.device)[1], measured_set(f"{inputs.device}_features")[1])


SPANNING = {"time-slicing": SelectionMetric.UTILIZATION, "mps": SelectionMetric.DEVICE_FILL}
"""What the configurations of each way of sharing span: time is divided by turns, multiprocessors through MPS."""


def read_utilization(scale: Scale, answers: Answers) -> Findings:
    found = answers.of(Alone())
    busy, families = np.array(found["utilization"]), found["family"]
    names = sorted(set(families), key=lambda name: (np.median(busy[[one == name for one in families]]), name))
    at = [float(names.index(one)) for one in families]
    rows = [
        row("configurations measured alone", CONFIGURATIONS, lambda: float(len(busy)), "", Wants.LEAST),
        row("utilization, the median configuration", None, lambda: float(np.median(busy)), "%", Wants.NOTHING),
        row("below 60 %, of all", None, lambda: float(100 * (busy < 60).mean()), "%", Wants.NOTHING),
    ]
    picture = Points("fig3", "Utilization alone, by family", "", "percent", [("", at, busy.tolist())], ticks=names)
    return Findings(rows, (picture,))


def read_slowdowns(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    pictures = []
    for mode in SPANNING:
        found, of = answers.of(Together(mode)), partial(_score, answers, mode)
        rows.append(row(f"pairs measured, {mode}", PAIRS, partial(of, "pairs"), "", Wants.NEAR))
        rows.append(
            row(f"R² on pairs left out, of the sum as in the paper, {mode}", FITS, partial(of, "of_sum"), "", Wants.NEAR)
        )
        rows.append(row(f"R² on pairs left out, of both apart, {mode}", FITS, partial(of, "piecewise"), "", Wants.NEAR))
        if found["finer"] is not None:
            finer = f"R² on pairs left out, of multiprocessors and kernels, {mode}"
            rows.append(row(finer, FITS, partial(of, "finer"), "", Wants.NEAR))
        for what, inside in (("at most 100 %", True), ("above 100 %", False)):
            mean = partial(_mean_slowdown, answers, mode, inside)
            rows.append(row(f"mean slowdown where both use {what} together, {mode}", None, mean, "x", Wants.NOTHING))
        total = (np.array(found["own"]) + np.array(found["others"])).tolist()
        title = f"Slowdown of each of two, {mode}"
        pictures.append(
            Points(f"fig4-{mode}", title, "utilization of both alone, percent", "times", [("", total, found["slower"])])
        )
    return Findings(rows, pictures, (_TURNS,))


_TURNS = (
    "The paper's cards slow pairs down 1 to 1.5 times below 100 % and 1.5 to 3 times above. Here the two of a pair are told"
    " apart: with the sum alone the busier and the less busy one would be predicted to lose alike, and they do not. Through MPS"
    " what counts is the multiprocessors that the other holds and the length of its kernels; its 34 were chosen by how much of"
    " the card they fill, as nobody notices company that leaves most of it free."
)


def _score(answers: Answers, mode: str, name: str) -> float:
    return float(answers.of(Together(mode))[name])


def _mean_slowdown(answers: Answers, mode: str, inside: bool) -> float:
    found = answers.of(Together(mode))
    total = np.array(found["own"]) + np.array(found["others"])
    return float(np.array(found["slower"])[(total <= FULL) == inside].mean())


def read_flops(scale: Scale, answers: Answers) -> Findings:
    found = answers.of(Alone())
    flops, busy = np.array(found["flops"]), np.array(found["utilization"])
    rows = [row("rank correlation of FLOPs and utilization", 0.0, partial(_ranked, flops, busy), "", Wants.LEAST)]
    points = [("", (flops / 1e9).tolist(), busy.tolist())]
    picture = Points("fig5", "FLOPs of a step and utilization", "GFLOPs", "percent", points, log_x=True)
    return Findings(rows, (picture,))


def _ranked(one: Floats, other: Floats) -> float:
    first, second = (column.argsort(kind="stable").argsort(kind="stable") for column in (one, other))
    return float(np.corrcoef(first, second)[0, 1])


def read_importance(scale: Scale, answers: Answers) -> Findings:
    found = answers.of(Important())
    shares: dict[str, float] = found["shares"]
    rows = [row(f"importance of {name}", None, partial(_share, shares, name), "%", Wants.NOTHING) for name in IMPORTANT]
    first = sorted(shares, key=lambda name: (-shares[name], name))[:MOST_SHOWN]
    line = PlotLine(found["learner"], range(len(first)), [100 * shares[name] for name in first])
    note = (
        f"The paper has activations first, then batch size, parameters and FLOPs. Here the first is {first[0]!r}: an estimate,"
        " by the graph, of the part of a step in which the device is at work, which takes most of the others in."
    )
    return Findings(rows, (Lines("fig7", "What utilization is predicted from", "", "percent", (line,), ticks=first),), (note,))


def _share(shares: dict[str, float], name: str) -> float:
    return 100 * shares.get(name, 0.0)


def read_learners(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for name in scale.learners:
        mixed, left = (partial(_error, answers, name, how) for how in ("at_random", "by_family"))
        rows.append(row(f"RMSLE of utilization, {name}, rows left out", ERRORS[name], mixed, "", Wants.MOST))
        rows.append(row(f"RMSLE of utilization, {name}, families left out", None, left, "", Wants.NOTHING))
    return Findings(rows)


def _error(answers: Answers, learner: str, how: str) -> float:
    return float(answers.of(Learned(learner))[how])


def _alone(scale: Scale) -> Iterable[Case]:
    return [Alone()]


def _size(scale: Scale) -> str:
    return "one H200"


STUDIES = (
    Study("fig3", "Utilization of trainings alone (Figure 3)", _alone, read_utilization, _size),
    Study(
        "fig4",
        "Slowdown of two together (Figure 4)",
        lambda scale: [Together(mode) for mode in SPANNING],
        read_slowdowns,
        _size,
    ),
    Study("fig5", "FLOPs and utilization (Figure 5)", _alone, read_flops, _size),
    Study("fig7", "The most important features (Figure 7)", lambda scale: [Important()], read_importance, _size),
    Study("table4", "Errors of four learners (Table 4)", lambda scale: map(Learned, scale.learners), read_learners, _size),
)
