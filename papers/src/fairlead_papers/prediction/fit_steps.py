"""Fit the model of a training step's speed (`fairlead.prediction.step_predictor`) to the trainings measured on an H200, and
print its errors on families left out.

`python -m fairlead_papers.prediction.fit_steps --trace` traces all trainings first (minutes) and stores their terms, which the
fit reads; `--out` writes the model."""

from __future__ import annotations

import argparse
import math
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
from fairlead.prediction.step_predictor import (
    COVERED,
    HOST_SCALING,
    OVERLAP,
    SpeedModel,
    Terms,
    combined,
    utilization_of,
    weighed,
)
from fairlead.profiling.results import read_results

DATA = Path(__file__).parents[1] / "data"
MEASURED = {
    "first": DATA / "h200_steps.jsonl",
    "unseen": DATA / "h200_unseen_steps.jsonl",
    "later": DATA / "h200_later_steps.jsonl",
}
"""What was measured of each list of trainings, each on another host."""
TERMS = DATA / "h200_step_terms.jsonl"
BUSY = 90.0  # percent: above, kernels that overlap count once
DEVICE, ISSUE, STEP, USED = 0.5, 0.3, 1.0, 2.0  # importance of the errors of both parts, of the step and of its utilization
RIDGE = 0.05  # of the weights' logarithms, towards 1
MAX_ROUNDS = 300


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
    slower: Floats  # the host of each, in seconds for a second of the first
    host_launch_us: float  # of the first

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
            self.slower[at],
            self.host_launch_us,
        )


def measured_steps() -> MeasuredSteps:
    """What was measured, with the stored terms."""
    terms = {row["name"]: row for row in read_results(TERMS)[1]}
    launches, rows, slower = host_launches_us(), list[dict[str, Any]](), list[float]()
    for listed, path in MEASURED.items():
        there = [row for row in read_results(path)[1] if row["name"] in terms and "problem" not in row]
        rows += there
        slower += [(launches[listed] / launches["first"]) ** HOST_SCALING] * len(there)

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
        np.array(slower),
        launches["first"],
    )


def host_launches_us() -> dict[str, float]:
    """By list: the launch time of the host on which its trainings were measured."""
    return {listed: float(read_results(path)[0]["host_launch_us"]) for listed, path in MEASURED.items()}


def _float(name: str) -> Callable[[dict[str, Any]], float]:
    return lambda row: float(row[name])


def fit(data: MeasuredSteps, ridge: float = RIDGE) -> SpeedModel:
    """The model of these trainings, without its errors.

    All weights are fitted together, by relative errors: those of the device and of the host to their seconds, to those of the
    step, and to its utilization; those of the multiprocessors to the seconds that they were held. Unknown ones stay near 1."""
    (names, device), (host_names, host) = _table(data.device), _table(data.host)
    host = host * data.slower[:, None]
    ends = np.cumsum([len(names), len(host_names), len(names)])
    pull, held_s = math.sqrt(ridge) * np.eye(ends[-1]), np.maximum(data.multiprocessors, 0.5) / 100 * data.step_s

    def errors(logs: Floats) -> tuple[Floats, Floats]:
        """All errors, and their slopes by the weights' logarithms."""
        parts = [table * np.exp(part) for table, part in zip((device, host, device), np.split(logs, ends[:-1]))]
        device_s, host_s, holds_s = (part.sum(axis=1) for part in parts)
        slopes = []
        for at, part in enumerate(parts):
            blocks = [np.zeros_like(each) for each in parts]
            blocks[at] = part / part.sum(axis=1, keepdims=True)
            slopes.append(np.hstack(blocks))
        step_s = combined(device_s, host_s)
        used, share = 100 * device_s / step_s, ((device_s / step_s) ** OVERLAP)[:, None]
        of_step = share * slopes[0] + (1 - share) * slopes[1]
        rows = (
            (DEVICE, np.log(device_s / data.device_s), slopes[0]),
            (ISSUE, np.log(host_s / data.issue_s), slopes[1]),
            (STEP, np.log(step_s / data.step_s), of_step),
            (USED, np.log1p(used) - np.log1p(data.utilization), (used / (1 + used))[:, None] * (slopes[0] - of_step)),
            (1.0, np.log(holds_s / held_s), slopes[2]),
        )
        off = np.concatenate([*(weight * error for weight, error, _ in rows), pull @ logs])
        return off, np.vstack([*(weight * slope for weight, _, slope in rows), pull])

    weights = np.split(np.exp(_least_squares(errors, int(ends[-1]))), ends[:-1])
    of_device, of_host, held = (dict(zip(of, part.tolist())) for of, part in zip((names, host_names, names), weights))
    return SpeedModel(of_device, of_host, held, data.host_launch_us)


def _table(terms: Sequence[Terms]) -> tuple[list[str], Floats]:
    names = sorted({name for one in terms for name in one})
    return names, np.array([[one.get(name, 0.0) for name in names] for one in terms])


def _least_squares(errors: Callable[[Floats], tuple[Floats, Floats]], size: int) -> Floats:
    """From zeros to a minimum, as Levenberg and Marquardt do."""
    logs, damping = np.zeros(size), 1e-2
    off, slopes = errors(logs)
    for _ in range(MAX_ROUNDS):
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(size), -slopes.T @ off)
        tried = logs + np.clip(step, -1.0, 1.0)
        then, slopes_then = errors(tried)
        if then @ then >= off @ off:
            damping *= 4
            continue
        done = off @ off - then @ then < 1e-9 * (off @ off)
        logs, off, slopes, damping = tried, then, slopes_then, max(damping / 3, 1e-6)
        if done:
            break
    return logs


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
            step_s = combined(device_s, data.slower[at] * weighed(data.host[at], model.host))
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
    from fairlead_papers.prediction.trainings import LISTS, entries

    rows: list[dict[str, Any]] = [{"about": {"device": device_rates("h200").name, "terms": "of a step on fake tensors"}}]
    for one in (each for listed in LISTS for each in entries(listed)):
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
