"""Horus' evaluation (TPDS'21, §6) as studies, with trainings that were measured on an H200."""

from __future__ import annotations

from fairlead.experiments.inputs import ExperimentInputs
from fairlead_papers.horus import fairness, limits, makespan, measurements, seeds, sessions, slo
from fairlead_papers.horus.scale import SCALES, Scale
from fairlead_papers.horus.truth import MeasuredPairs
from fairlead_papers.study import Paper

__all__ = ["HORUS", "MeasuredPairs"]


def introduction(scale: Scale, inputs: ExperimentInputs) -> list[str]:
    assert isinstance(inputs, MeasuredPairs)
    return [
        f"Scale {scale.description}.",
        f"{inputs.rates_note[0].upper()}{inputs.rates_note[1:]}.",
        f"What the scheduler believes: {inputs.beliefs_are}. At most two jobs share an accelerator; rounds of one minute; a"
        " restart takes 30 s. All jobs are there at second 0, which is what the paper's makespans and waits look like.",
        "W-Large is 30 % short and light, 15 % short and heavy, 35 % long and light, 20 % long and heavy; W-Small 55, 20, 20"
        " and 5 %. Short is 3 to 13 minutes alone, long 13 minutes to 2 hours, log-uniform; light is below 60 % utilization.",
        "The month of the large simulation is not published. Here its jobs last 300 minutes in the median and 500 in the mean,"
        " and request 3.9 times the GPUs of the cluster, in gangs of 1 to 64, half of them single workers: so many that at the"
        " paper's size FIFO's mean wait, in minutes, is the paper's in its steps.",
    ]


STUDIES = (
    *measurements.STUDIES,
    *makespan.STUDIES,
    *seeds.STUDIES,
    *limits.STUDIES,
    *sessions.STUDIES,
    *fairness.STUDIES,
    *slo.STUDIES,
)
HORUS = Paper(
    "Horus", STUDIES, SCALES, introduction, {"small": "two or three minutes on one core", "tiny": "ten seconds on one core"}
)
