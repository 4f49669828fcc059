"""Fit the model of a training step's speed (`fairlead.prediction.step_predictor`) to the trainings measured on an H200, and
print its errors on families left out.

`python -m fairlead_papers.prediction.fit_steps --trace` traces all trainings first (minutes) and stores their terms, which the
fit reads; `--out` writes the model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fairlead.core.cluster import Floats
from fairlead.files import atomic_write
from fairlead.prediction.predictor import rmsle
from fairlead.prediction.step_predictor import COVERED, SpeedModel, Terms, combined, fit_weights, utilization_of, weighed
from fairlead.profiling.results import read_results

DATA = Path(__file__).parents[1] / "data"
MEASURED, TERMS = DATA / "h200_steps.jsonl", DATA / "h200_step_terms.jsonl"
BUSY = 90.0  # percent: above, kernels that overlap count once


@dataclass(frozen=True)
class MeasuredSteps:
    """Terms and measurements of all trainings, in one order."""

    names: list[str]
    families: Any
    device: list[Terms]
    host: list[Terms]
    step_s: Floats
    device_s: Floats
    issue_s: Floats
    utilization: Floats
    multiprocessors: Floats
    host_launch_us: float

    def only(self, chosen: Any) -> MeasuredSteps:
        """Some of the trainings."""
        at = np.flatnonzero(chosen)
        return MeasuredSteps(
            [self.names[place] for place in at.tolist()],
            self.families[at],
            [self.device[place] for place in at.tolist()],
            [self.host[place] for place in at.tolist()],
            self.step_s[at],
            self.device_s[at],
            self.issue_s[at],
            self.utilization[at],
            self.multiprocessors[at],
            self.host_launch_us,
        )


def measured_steps() -> MeasuredSteps:
    """What was measured, with the stored terms."""
    about, rows = read_results(MEASURED)
    terms = {row["name"]: row for row in read_results(TERMS)[1]}
    rows = [row for row in rows if row["name"] in terms and "problem" not in row]

    def column(value: Callable[[dict[str, Any]], float]) -> Floats:
        return np.array([value(row) for row in rows])

    step_s, device_s = column(lambda row: 1 / row["steps_per_s"]), column(_float("device_s"))
    used = column(_float("utilization"))
    return MeasuredSteps(
        [row["name"] for row in rows],
        np.array([row["family"] for row in rows]),
        [terms[row["name"]]["device"] for row in rows],
        [terms[row["name"]]["host"] for row in rows],
        step_s,
        np.where(used > BUSY, np.minimum(device_s, step_s), device_s),
        column(_float("issue_s")),
        used,
        column(_float("sm_active")),
        float(about["host_launch_us"]),
    )


def _float(name: str) -> Callable[[dict[str, Any]], float]:
    return lambda row: float(row[name])


def fit(data: MeasuredSteps) -> SpeedModel:
    """The model of these trainings, without its errors."""
    device, host = fit_weights(data.device, data.device_s), fit_weights(data.host, data.issue_s)
    held = fit_weights(data.device, np.maximum(data.multiprocessors, 0.5) / 100 * data.step_s)
    return SpeedModel(device, host, held, data.host_launch_us)


@dataclass(frozen=True)
class LeftOut:
    """Predictions of each training by a model that has not seen its family."""

    step_s: Floats
    utilization: Floats
    multiprocessors: Floats


def left_out(data: MeasuredSteps) -> LeftOut:
    """Predict each family by the others."""
    found = np.zeros((3, len(data.names)))
    for family in sorted(set(data.families)):
        model = fit(data.only(data.families != family))
        for at in np.flatnonzero(data.families == family).tolist():
            device_s = weighed(data.device[at], model.device)
            step_s = combined(device_s, weighed(data.host[at], model.host))
            held = 100 * weighed(data.device[at], model.multiprocessors) / step_s
            used = utilization_of(device_s, step_s)
            found[:, at] = step_s, used, min(held, used)
    return LeftOut(*found)


def errors_of(data: MeasuredSteps, guess: LeftOut) -> dict[str, float]:
    """The errors on families left out."""
    off = np.abs(data.step_s / guess.step_s - 1)
    return {
        "steps_per_s_median_error": float(np.median(off)),
        "steps_per_s_90_percent": float(np.quantile(off, 0.9)),
        "utilization_rmsle": rmsle(guess.utilization, data.utilization),
        "multiprocessors_rmsle": rmsle(guess.multiprocessors, data.multiprocessors),
    }


def with_errors(model: SpeedModel, data: MeasuredSteps, guess: LeftOut) -> SpeedModel:
    """The model with the intervals of families left out."""
    step = np.quantile(np.log(data.step_s / guess.step_s), COVERED)
    used = np.quantile(np.log1p(guess.utilization) - np.log1p(data.utilization), COVERED)
    return SpeedModel(
        model.device,
        model.host,
        model.multiprocessors,
        model.host_launch_us,
        (float(step[0]), float(step[1])),
        (float(used[0]), float(used[1])),
    )


def trace_all() -> None:
    """Trace every training, and store its terms."""
    from fairlead.prediction.cuda_paths import built_untouched
    from fairlead.prediction.fake_step import trace_step
    from fairlead.prediction.step_features import device_rates, device_terms, host_terms
    from fairlead_papers.prediction.trainings import entries

    rows: list[dict[str, Any]] = [{"about": {"device": device_rates("h200").name, "terms": "of a step on fake tensors"}}]
    for one in entries():
        with built_untouched():
            training = one.make()
        trace = trace_step(training)
        rows.append(terms_row(one.name, one.family, device_terms(trace, device_rates("h200")), host_terms(trace)))
        print(one.name, file=sys.stderr, flush=True)
    atomic_write(TERMS, b"".join(orjson.dumps(row) + b"\n" for row in rows))


def terms_row(name: str, family: str, device: Terms, host: Terms) -> dict[str, Any]:
    """A line of the stored terms; nine digits are enough."""
    short = [{term: float(f"{seconds:.9g}") for term, seconds in sorted(each.items())} for each in (device, host)]
    return {"name": name, "family": family, "device": short[0], "host": short[1]}


def main(words: Sequence[str] | None = None) -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", action="store_true", help="trace all trainings and store their terms")
    parser.add_argument("--out", type=Path, help="write the model")
    given = parser.parse_args(words)
    if given.trace:
        trace_all()
    data = measured_steps()
    guess = left_out(data)
    for name, value in errors_of(data, guess).items():
        print(f"{name}: {value:.3f}")
    if given.out:
        model = with_errors(fit(data), data, guess)
        atomic_write(given.out, orjson.dumps(model.to_data(), option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
