"""Gavel's evaluation (OSDI'20, §7) as studies."""

from __future__ import annotations

from fairlead.experiments.inputs import ExperimentInputs
from fairlead_papers.gavel import batches, cost, entities, estimator, fairness, las, mechanism, physical, scaling
from fairlead_papers.gavel.scale import SCALES, Scale
from fairlead_papers.study import Paper

HIGH_LOAD = 5.6
"""Figure 9's high load, by which a scale's window is put beside the paper's."""


def introduction(scale: Scale, inputs: ExperimentInputs) -> list[str]:
    (first, last), (from_h, to_h) = scale.hours(HIGH_LOAD), SCALES["full"].hours(HIGH_LOAD)
    return [
        f"Scale {scale.description}.",
        f"{inputs.rates_note[0].upper()}{inputs.rates_note[1:]}.",
        "Rounds of six minutes and no costs of preemption, unless a study says otherwise. Both sides of a comparison have the"
        " same jobs and the same options. Loads are those of the paper's 108 GPUs; a smaller cluster gets its part.",
        f"At {HIGH_LOAD} jobs per hour the measured jobs come in hours {first:.0f} to {last:.0f}; the paper's in hours"
        f" {from_h:.0f} to {to_h:.0f}. Where one side cannot carry the load, its queue keeps growing all that time: gains at"
        " high load depend on how late they are measured.",
    ]


GAVEL = Paper(
    "Gavel",
    (
        *las.STUDIES,
        *fairness.STUDIES,
        *batches.STUDIES,
        *cost.STUDIES,
        *entities.STUDIES,
        *scaling.STUDIES,
        *mechanism.STUDIES,
        *estimator.STUDIES,
        *physical.STUDIES,
    ),
    SCALES,
    introduction,
    {
        "small": "about ten minutes on one core",
        "medium": "about an hour on one core, a quarter of it for fig10",
        "tiny": "a quarter of a minute on one core",
    },
)
