"""Shockwave's evaluation (NSDI'23, §5 and §8) as studies."""

from __future__ import annotations

from fairlead.experiments.inputs import ExperimentInputs
from fairlead_papers.shockwave import contention, fidelity, forecasts, mixes, overhead, pollux, schedules, sizes
from fairlead_papers.shockwave.jobs import AdaptiveJobs
from fairlead_papers.shockwave.runs import RESTART_S, ROUND_S
from fairlead_papers.shockwave.scale import SCALES, Scale
from fairlead_papers.study import Paper

__all__ = ["SHOCKWAVE", "AdaptiveJobs"]


def introduction(scale: Scale, inputs: ExperimentInputs) -> list[str]:
    return [
        f"Scale {scale.description}.",
        f"{inputs.rates_note[0].upper()}{inputs.rates_note[1:]}.",
        f"One type, rounds of {ROUND_S:.0f} s, {RESTART_S:.0f} s for each start after the first. Shockwave is the preset of"
        " that name in every study; the others are the presets that end in '-as-in-shockwave', with the constants of its"
        " authors' simulator. All of them see a batch size that has changed.",
        "ρ is JCT / (exclusive run time × max(1, jobs / accelerators)), as the published results have it; no scheduler knows"
        " how many jobs will come. A job is unfair where ρ > 1.",
        "Table 3 takes real time: processes that sleep in the place of computing, in rounds of seconds, on a cluster of this"
        " machine. They run behind all other cases, one policy after the other.",
    ]


SHOCKWAVE = Paper(
    "Shockwave",
    (
        *forecasts.STUDIES,
        *sizes.STUDIES,
        *schedules.STUDIES,
        *fidelity.STUDIES,
        *mixes.STUDIES,
        *overhead.STUDIES,
        *pollux.STUDIES,
        *contention.STUDIES,
    ),
    SCALES,
    introduction,
    {
        "small": "about a quarter of an hour, most of it real time for table3",
        "tiny": "about a minute, most of it real time for table3",
    },
)
