"""Draw the pictures of papers/profiles.md and papers/prediction.md: `python docs/make_prediction_pictures.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from fairlead.prediction import learners
from fairlead.prediction.fit_predictor import dataset, errors_by_family
from fairlead.prediction.measured_profiles import mean_slowdowns, shipped_profiles
from fairlead.prediction.predictor import shipped_predictor
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead_papers.measured_data import evaluation_set
from fairlead_papers.prediction import evaluation

TO = Path(__file__).parent / "img"

TITLES = {"time-slicing": "time slicing", "mps": "MPS"}


def pairs() -> None:
    """Draw the slowdown of each job of a pair over the sum of both utilizations alone, with the fit; and over the busy
    multiprocessors of the other job, for jobs that fill the GPU."""
    known, filling = shipped_profiles(), shipped_profiles("h200", SelectionMetric.DEVICE_FILL)
    figure, panels = plt.subplots(1, 3, figsize=(14, 3.6))
    for panel, (mode, found) in zip(panels, sorted(known.pairs.items(), reverse=True)):
        total = [known.alone[one].utilization + known.alone[other].utilization for one, other in found]
        own = [known.alone[one].utilization for one, _ in found]
        dots = panel.scatter(total, [slower for slower, _ in found.values()], c=own, s=6, cmap="viridis", vmin=0, vmax=100)
        half = np.linspace(5, 99, 100)
        panel.plot(
            2 * half,
            shipped_predictor().slowdown[mode].of(half, half),
            color="black",
            linewidth=1,
            label="fit, equal utilizations",
        )
        panel.set(title=TITLES[mode], xlabel="sum of both utilizations alone, %", ylim=(0.7, 2.6))
        panel.axvline(100, color="grey", linewidth=0.5)
        panel.legend(loc="upper left", frameon=False)
    of = {pair: slower for pair, (slower, _) in filling.pairs["mps"].items()}
    held = [filling.alone[other].multiprocessors for _, other in of]
    panels[2].scatter(
        held, [*of.values()], c=[filling.alone[one].utilization for one, _ in of], s=6, cmap="viridis", vmin=0, vmax=100
    )
    line = np.linspace(2, 90, 100)
    for busy in (30, 98):
        full = np.full_like(line, busy)
        panels[2].plot(line, shipped_predictor().at_once["mps"].of(full, line), color="black", linewidth=1)
        panels[2].annotate(f"{busy} %", (90, shipped_predictor().at_once["mps"].of(full, line)[-1]), fontsize=8)
    panels[2].set(title="MPS, jobs that fill the GPU", xlabel="busy multiprocessors of the other job, %")
    panels[0].set_ylabel("slowdown (time co-located / time alone)")
    figure.colorbar(dots, ax=panels, label="own utilization alone, %")
    figure.savefig(TO / "pairs.png", dpi=110, bbox_inches="tight")


TENS = ("h200_beside_ten", "h200_beside_ten_again", "h200_beside_ten_third")
AGAIN = ("h200_beside_pairs", *TENS, "h200_beside_ten_mps", "h200_beside_ten_mps_again", "h200_pairs_beside")


def repeated() -> None:
    """Draw the differences between two measurements of a pair minutes apart, and the slowdowns on two hosts."""
    figure, panels = plt.subplots(1, 3, figsize=(14, 3.6), layout="constrained")
    for name in AGAIN:
        apart = 100 * np.sort(_apart(evaluation_set(name)[1]))
        panels[0].plot(apart, np.linspace(0, 100, len(apart)), label=f"{name} ({np.median(apart):.1f} %)", linewidth=1.2)
    panels[0].axvline(5, color="grey", linewidth=0.5)
    panels[0].axhline(50, color="grey", linewidth=0.5)
    panels[0].set(
        title="the same pair measured again minutes later",
        xlabel="difference in steps per second, %",
        ylabel="cumulative share of jobs, %",
        xlim=(0, 40),
    )
    panels[0].legend(loc="lower right", frameon=False, fontsize=7)
    alone = shipped_profiles().alone
    for panel, names in zip(panels[1:], (("h200_beside_ten", "h200_beside_ten_again"), ("h200_pairs", "h200_pairs_beside"))):
        first, later = (mean_slowdowns(evaluation_set(name)[1], alone) for name in names)
        both = [pair for pair in first if pair in later]
        own = [alone[one].utilization for one, _ in both]
        where = ([first[pair][0] for pair in both], [later[pair][0] for pair in both])
        dots = panel.scatter(*where, c=own, s=6, cmap="viridis", vmin=0, vmax=100)
        panel.plot([0.7, 2.6], [0.7, 2.6], color="grey", linewidth=0.5)
        panel.set(title="slowdowns of the same pairs on two hosts", xlabel=names[0], ylabel=names[1])
    figure.colorbar(dots, ax=panels, label="own utilization alone, %")
    figure.savefig(TO / "repeated.png", dpi=110, bbox_inches="tight")


def _apart(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the differences between the first two measurements of each job of a pair in one session."""
    seen: dict[tuple[Any, ...], list[list[float]]] = {}
    for row in rows:
        if "pair" in row and "problem" not in row:
            seen.setdefault((row.get("session"), *row["pair"]), []).append(row["steps_per_s"])
    twice = [found[:2] for found in seen.values() if len(found) > 1]
    return [abs(one - other) / ((one + other) / 2) for both in twice for one, other in zip(*both)]


def predicted() -> None:
    """Draw predicted and measured utilization and memory of configurations of held-out families."""
    learner = shipped_predictor().utilization.learner
    if learner not in learners.installed_learners():  # another learner would draw another picture
        print(f"prediction.png is not drawn: {learner} is not installed (extra predict)")
        return
    data = dataset(evaluation_set("h200")[1], evaluation_set("h200_features")[1])
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8))
    left = errors_by_family(data, learners.installed_learners()[learner])
    panels[0].scatter(left.measured, left.predicted, s=8)
    panels[0].plot([0, 100], [0, 100], color="grey", linewidth=0.5)
    panels[0].set(title="utilization, held-out family", xlabel="measured, %", ylabel="predicted, %")
    share = evaluation.of_memory(data).with_overhead
    panels[1].scatter(data.device_mb / 1024, share * data.device_mb / 1024, s=8)
    panels[1].plot([1, 130], [1, 130], color="grey", linewidth=0.5)
    panels[1].set(title="memory, held-out family", xlabel="measured, GB", ylabel="predicted, GB", xscale="log", yscale="log")
    figure.savefig(TO / "prediction.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    pairs()
    repeated()
    predicted()
