"""The colours of runs, the same in every picture: the eight that Okabe and Ito chose so that colour-blind readers tell
them apart, less the yellow that white paper swallows. Beyond them the dash changes."""

from __future__ import annotations

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
DASHES = ("", "6 3", "2 2", "8 3 2 3")


def colour_of(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


def dash_of(run: int) -> str:
    """An SVG dash pattern; empty for a solid line."""
    return DASHES[run // len(COLOURS) % len(DASHES)]


def unique_labels(schedulers: list[str], traces: list[str]) -> list[str]:
    """A label for each run that no other has: the scheduler, with the trace if need be, else a number."""
    labels = list(schedulers)
    if len(set(zip(schedulers, traces))) > len(set(labels)):
        labels = [f"{s} · {t}" for s, t in zip(schedulers, traces)]
    taken: dict[str, int] = {}
    for place, label in enumerate(labels):
        taken[label] = taken.get(label, 0) + 1
        if taken[label] > 1:
            labels[place] = f"{label} #{taken[label]}"
    return labels
