"""A predictor as tables that people read: what it was learned from, which features count, and its formulas term by term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.cli.fitting import fitted
from fairlead.cli.output import out
from fairlead.prediction.interference import ABOVE, BELOW, GRAIN, Slowdown
from fairlead.prediction.predictor import Predictor

_MEMORY = {
    "activations": "of what the way back needs of a forward pass",
    "loss": "of the outputs",
    "margin": "of all that, what an allocator takes",
    "overhead_mb": "MB that a framework holds before any tensor",
}
_SHARES = "own, others: utilization alone, from 0 to 1"
_FINER = "; finer: of others the multiprocessors that they hold; grain: log₁₀ of how many times longer their kernels are"


def show_predictor(predictor: Predictor, important: Mapping[str, float]) -> None:
    _print(
        "learned from", ("about", "value"), [(name.replace("_", " "), str(value)) for name, value in predictor.about.items()]
    )
    shares = [(name, f"{share:.1%}") for name, share in important.items()]
    _print(f"utilization: {predictor.utilization.learner}", ("feature", "importance"), shares)
    memory = [
        (name.replace("_mb", ""), f"{value:,.3f}", _MEMORY.get(name, "")) for name, value in predictor.memory.kept().items()
    ]
    _print("memory", ("term", "times", ""), memory)
    formulas = {**predictor.slowdown, **{f"{mode}, finer": one for mode, one in predictor.at_once.items()}}
    rows = [row for name, one in formulas.items() for row in formula_rows(name, one)]
    legend = _SHARES + (_FINER if predictor.at_once else "")
    _print("slowdown beside others, by shares of the accelerator", ("sharing", "term", "up to 100 %", "above"), rows, legend)


def formula_rows(name: str, one: Slowdown) -> list[tuple[str, str, str, str]]:
    """A line for each term, with its factor where both together keep the accelerator no more than busy, and beyond."""
    grain = len(one.below) > len(BELOW)
    below = dict(zip((*BELOW, *GRAIN[:1]) if grain else BELOW, one.below))
    above = dict(zip((*ABOVE, *GRAIN) if grain else ABOVE, one.above))
    rows = [(term, below.get(term), factor) for term, factor in above.items()]
    rows.append(("off by (standard deviation)", one.spread_below, one.spread_above))
    return [
        (name if index == 0 else "", term, "" if low is None else f"{low:.3f}", f"{high:.3f}")
        for index, (term, low, high) in enumerate(rows)
    ]


def _print(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
    if rows:
        table = fitted(title, headings, rows, len(headings), caption)
        for column in table.columns:
            column.justify = "right" if column.header in ("importance", "times", "up to 100 %", "above") else "left"
        out.print(table)
