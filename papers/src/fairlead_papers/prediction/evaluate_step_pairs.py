"""Fit slowdowns to the measured pairs of current trainings and to the shipped pairs, and print R² on pairs whose families were
left out: from utilization as measured, and as predicted with the family left out (`fit_steps`).

python -m fairlead_papers.prediction.evaluate_step_pairs

`--out` writes the shipped predictor with slowdowns that are fitted to both."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.models.interference import Slowdown, fit
from fairlead.prediction.measured_profiles import Profiles, profiles_of, shipped_profiles
from fairlead.prediction.predictor import shipped_predictor
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead.profiling.results import read_pairs, read_results
from fairlead_papers.prediction.evaluation import r_squared
from fairlead_papers.prediction.fit_steps import DATA, MEASURED, left_out, measured_steps

PAIRS = {"time-slicing": DATA / "h200_step_pairs.jsonl", "mps": DATA / "h200_step_pairs_mps.jsonl"}

COLUMNS = ("own", "others", "slowdown")


@dataclass(frozen=True)
class PairRows:
    """Both sides of pairs: utilization of the one and of the other, as measured and as predicted, and the slowdown."""

    families: Sequence[frozenset[str]]
    own: Floats
    others: Floats
    predicted_own: Floats
    predicted_others: Floats
    slowdown: Floats

    @classmethod
    def of(cls, known: Profiles, sharing: str, predicted: Mapping[str, float]) -> PairRows:
        pairs = known.pairs[sharing]
        measured = {name: one.utilization for name, one in known.alone.items()}
        slowdown = np.array([slower for slower, _ in pairs.values()])
        families = [frozenset(known.alone[name].family for name in pair) for pair in pairs]

        def side(values: Mapping[str, float], at: int) -> Floats:
            return np.array([values[pair[at]] for pair in pairs])

        asked = predicted or measured
        return cls(families, side(measured, 0), side(measured, 1), side(asked, 0), side(asked, 1), slowdown)


def step_pairs(sharing: str) -> PairRows:
    """The pairs of current trainings."""
    data = measured_steps()
    known = profiles_of(read_results(MEASURED["first"]), {PAIRS[sharing]: read_pairs(PAIRS[sharing])}, MEASURED["first"])
    return PairRows.of(known, sharing, dict(zip(data.names, left_out(data).utilization.tolist())))


def shipped_pairs(sharing: str) -> PairRows:
    """The pairs that the shipped model was fitted to."""
    return PairRows.of(shipped_profiles("h200", SelectionMetric.UTILIZATION if sharing != "mps" else None), sharing, {})


def scores(fitted_to: Sequence[PairRows], rows: PairRows) -> tuple[float, float]:
    """R² from measured and from predicted utilization, of fits without the families of each pair."""
    found = np.zeros((2, len(rows.slowdown)))
    for left in set(rows.families):
        kept = [np.array([not each & left for each in some.families]) for some in fitted_to]
        own, others, slowdown = (
            np.concatenate([getattr(some, name)[at] for some, at in zip(fitted_to, kept)]) for name in COLUMNS
        )
        model, at = fit(own, others, slowdown), np.array([each == left for each in rows.families])
        found[0, at] = model.of(rows.own[at], rows.others[at])
        found[1, at] = model.of(rows.predicted_own[at], rows.predicted_others[at])
    return r_squared(found[0], rows.slowdown), r_squared(found[1], rows.slowdown)


def fit_to_both(sharing: str) -> Slowdown:
    """The model of all pairs, the shipped ones and these."""
    old, new = shipped_pairs(sharing), step_pairs(sharing)
    own, others, slowdown = (np.concatenate([getattr(some, name) for some in (old, new)]) for name in COLUMNS)
    return fit(own, others, slowdown)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the shipped predictor with slowdowns fitted to both")
    given = parser.parse_args(arguments)
    if given.out:
        shipped = shipped_predictor()
        about = {**shipped.about, "current_pairs": ", ".join(path.stem for path in PAIRS.values())}
        replace(shipped, about=about, slowdown={sharing: fit_to_both(sharing) for sharing in PAIRS}).save(given.out)
    for sharing in PAIRS:
        new, old = step_pairs(sharing), shipped_pairs(sharing)
        for name, sets in {"these pairs": (new,), "the shipped pairs": (old,), "both, as shipped": (old, new)}.items():
            (measured, predicted), (on_old, _) = scores(sets, new), scores(sets, old)
            told = f"R² {measured:.3f} from measured, {predicted:.3f} from predicted utilization"
            print(f"{sharing}, fitted to {name}: {told}; on the shipped pairs {on_old:.3f}")


if __name__ == "__main__":
    main()
