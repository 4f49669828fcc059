"""Jobs that end when their loss has converged (Blox §5.3, Figure 16): three quarters of them within 0.1 % of their lowest loss
after 40 % of their steps. The paper names neither policy nor load; here FIFO, and a load at which hardly anybody waits too."""

from __future__ import annotations

from functools import partial

from fairlead.experiments.cases import Answers
from fairlead_papers.arms import Sweep, average_jct
from fairlead_papers.blox.policies import LOADS_ARE
from fairlead_papers.blox.runs import Arm, made
from fairlead_papers.blox.scale import DURATIONS, SHOWN, Scale, load_told
from fairlead_papers.findings import Findings, row
from fairlead_papers.study import Study

BY_STEPS = Arm("by steps", "policy: fifo")
BY_LOSS = Arm("by loss", "policy: fifo, termination: by-loss")
LOW = 2.0
SHORTER = 44.0


def sweep(scale: Scale, durations: str) -> Sweep[Arm]:
    loads = scale.points(durations, (LOW, 8.0))
    return Sweep((BY_STEPS, BY_LOSS), loads, scale.seeds, partial(made, scale, durations, losses=True), LOADS_ARE)


def read(scale: Scale, answers: Answers) -> Findings:
    rows, pictures = [], []
    for durations in DURATIONS:
        given = sweep(scale, durations)
        for load in given.loads:
            gains = partial(given.gains, answers, BY_STEPS.label, BY_LOSS.label, load, average_jct)
            rows.append(row(f"average JCT, by steps / by loss: {load_told(durations, load)}", 1 / (1 - SHORTER / 100), gains))
        title = f"JCT at {LOW:g} jobs/hr, {SHOWN[durations]} durations"
        pictures.append(given.distribution(answers, f"fig16-{durations}", title, "hours", "jct_s", LOW))
    notes = [
        "the paper's average JCT is shorter by 44 %, which is 1.79×; of run times alone 0.75 · 0.6 = 45 % are saved, or 1.82×"
    ]
    return Findings(rows, pictures, notes)


STUDIES = (
    Study(
        "fig16",
        "Figure 16: termination by loss",
        lambda scale: (case for durations in DURATIONS for case in sweep(scale, durations).cases()),
        read,
    ),
)
