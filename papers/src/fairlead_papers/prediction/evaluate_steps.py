"""Compare predictions of trainings with their measurements on an H200: memory by precision, speed, utilization, and the
same by family. These are the tables of docs/papers/training-steps.md.

python -m fairlead_papers.prediction.predict_trainings --by left-out --out left_out.jsonl --only '*/*'
python -m fairlead_papers.prediction.evaluate_steps left_out.jsonl --picture docs/img/training-steps.png

The memory for placement is compared with what NVML reports as used while the training runs, as agents see it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.prediction.predictor import rmsle
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.profiling.results import read_results
from fairlead_papers.horus.predicted import read_predictions
from fairlead_papers.prediction.fit_steps import MEASURED

MODES: Mapping[str, Callable[[str], bool]] = {
    "bf16 autocast": lambda mode: mode.startswith("bf16"),
    "fp32": lambda mode: mode.startswith("fp32"),
    "fp16 with scaling, or weights in bf16": lambda mode: not mode.startswith(("bf16", "fp32")),
    "all": lambda mode: True,
}


@dataclass(frozen=True)
class Comparison:
    """Trainings with a prediction: names, families and modes, and both sides of each value."""

    rows: Sequence[Mapping[str, Any]]
    predictions: Sequence[StepPrediction]

    @classmethod
    def of(cls, predictions: Mapping[str, StepPrediction], lists: Sequence[str] = tuple(MEASURED)) -> Comparison:
        measured = [row for listed in lists for row in read_results(MEASURED[listed])[1]]
        rows = [row for row in measured if row["name"] in predictions and "problem" not in row]
        return cls(rows, [predictions[row["name"]] for row in rows])

    def only(self, chosen: Callable[[Mapping[str, Any]], bool]) -> Comparison:
        """Some of the trainings."""
        kept = [(row, one) for row, one in zip(self.rows, self.predictions) if chosen(row)]
        return Comparison([row for row, _ in kept], [one for _, one in kept])

    def measured(self, name: str) -> Floats:
        """A column of the measurements."""
        return np.array([float(row[name]) for row in self.rows])

    def predicted(self, name: str) -> Floats:
        """A column of the predictions."""
        return np.array([float(getattr(one, name)) for one in self.predictions])

    def off(self, name: str) -> Floats:
        """Relative errors of a value."""
        return self.predicted(name) / self.measured(name) - 1

    def coverage(self) -> tuple[float, float]:
        """The share of trainings whose memory for placement is enough, and its median excess over what NVML reports."""
        excess = self.predicted("memory_mb") / self.measured("device_memory_mb") - 1
        return float(np.mean(excess >= 0)), float(np.median(excess))


def table(compared: Comparison) -> list[str]:
    """One line for each mode."""
    head = ("", "trainings", "allocated", "reserved", "covered", "excess", "utilization", "steps/s, median error")
    lines = [" | ".join(("", *head, "")).strip(), "|---" * len(head) + "|"]
    for name, mode in MODES.items():
        some = compared.only(lambda row, mode=mode: mode(row["mode"]))  # type: ignore[misc]
        memory = []
        for value in ("allocated_mb", "reserved_mb"):
            off = 100 * np.abs(some.off(value))
            memory.append(f"{np.median(off):.1f}, {np.quantile(off, 0.9):.1f}, {off.max():.1f} %")
        covered, excess = some.coverage()
        used = rmsle(some.predicted("utilization"), some.measured("utilization"))
        speed = 100 * np.median(np.abs(1 / (1 + some.off("steps_per_s")) - 1))
        told = f"{100 * covered:.0f} % | {100 * excess:.0f} % | {used:.2f} | {speed:.0f} %"
        lines.append(f"| {name} | {len(some.rows)} | {memory[0]} | {memory[1]} | {told} |")
    return lines


def families(compared: Comparison) -> list[str]:
    """One line for each family, by the median error of its speed."""
    found = []
    for family in sorted({str(row["family"]) for row in compared.rows}):
        some = compared.only(lambda row, family=family: row["family"] == family)  # type: ignore[misc]
        speed = 100 * float(np.median(np.abs(some.off("steps_per_s"))))
        memory = 100 * float(np.max(np.abs(some.off("allocated_mb"))))
        busy = float(np.mean(some.predicted("utilization") - some.measured("utilization")))
        found.append((speed, f"| {family} | {len(some.rows)} | {memory:.1f} % | {speed:.0f} % | {busy:+.0f} |"))
    head = ["| family | trainings | allocated, largest error | steps/s, median error | utilization, mean error in points |"]
    return [*head, "|---|---|---|---|---|", *(line for _, line in sorted(found))]


def draw(compared: Comparison, path: Path) -> None:
    """Predicted against measured memory, utilization and speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
    shown = (
        ("allocated_mb", "allocated memory, GB", 1024.0),
        ("utilization", "utilization, %", 1.0),
        ("steps_per_s", "steps per second", 1.0),
    )
    for panel, (name, title, unit) in zip(panels, shown):
        for mode in [*MODES][:-1]:
            some = compared.only(lambda row, mode=mode: MODES[mode](row["mode"]))  # type: ignore[misc]
            panel.scatter(some.measured(name) / unit, some.predicted(name) / unit, s=10, label=mode)
        ends = [float(compared.measured(name).min()) / unit, float(compared.measured(name).max()) / unit]
        if name != "utilization":
            panel.set(xscale="log", yscale="log")
        panel.plot(ends, ends, color="grey", linewidth=0.5)
        panel.set(title=title, xlabel="measured", ylabel="predicted")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--list", choices=MEASURED, help="only the trainings of a list")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args(arguments)
    compared = Comparison.of(dict(read_predictions(given.predictions)), [given.list] if given.list else [*MEASURED])
    print("\n".join([*table(compared), "", *families(compared)]))
    if given.picture:
        draw(compared, given.picture)


if __name__ == "__main__":
    main()
