"""Blox' evaluation (EuroSys'24, §4, §5 and appendix A) as studies."""

from __future__ import annotations

from fairlead.experiments.inputs import ExperimentInputs
from fairlead_papers.blox import admissions, elastic, hosts, losses, originals, placements, policies, synthesis
from fairlead_papers.blox.scale import DURATIONS, HIGH, SCALES, Scale, load_told
from fairlead_papers.blox.traces import PublicTraces
from fairlead_papers.study import Paper

__all__ = ["BLOX", "PublicTraces"]


def introduction(scale: Scale, inputs: ExperimentInputs) -> list[str]:
    first, last = scale.measure
    hours = first / scale.load(HIGH), last / scale.load(HIGH)
    return [
        f"Scale {scale.description}.",
        f"{inputs.rates_note[0].upper()}{inputs.rates_note[1:]}.",
        "V100s, four to a node, rounds of five minutes, no costs of preemption unless a row says otherwise, gangs of 1, 2, 4"
        " and 8. Loads are those of the paper's 128 GPUs; a smaller cluster gets its part.",
        f"At {HIGH:g} jobs per hour the measured jobs come in hours {hours[0]:.0f} to {hours[1]:.0f}, the paper's in hours 375"
        " to 500. Where a queue grows without end, gains depend on how late they are measured. Jobs keep coming until there are"
        " twice as many as with the last measured one.",
        "The paper's durations are not published whole, and a load says little without them: "
        + "; ".join(load_told(durations, HIGH) for durations in DURATIONS)
        + ". Philly's are drawn from all of its 82 thousand jobs, Gavel's are 10^x minutes as its generator makes them.",
    ]


BLOX = Paper(
    "Blox",
    (
        *originals.STUDIES,
        *elastic.INTERVAL,
        *hosts.STUDIES,
        *policies.STUDIES,
        *elastic.STUDIES,
        *placements.STUDIES,
        *admissions.STUDIES,
        *synthesis.STUDIES,
        *losses.STUDIES,
        *originals.BANDWIDTH,
    ),
    SCALES,
    introduction,
    {"tiny": "ten seconds on one core without the public traces"},
)
