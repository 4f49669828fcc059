"""Forecasts as JSON, as a control plane sends them to clients of this version and of older ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fairlead.experiments.forecast_quality import Widening
from fairlead.experiments.live_inputs import RateGuesses
from fairlead.experiments.lookahead import ClusterForecast, ForecastOptions, JobForecast, JobTimes

_OLD_KEYS = {
    "completed": "made",
    "simulations": "looks",
    "history_s": "lately_s",
    "scaled": "in_proportion",
    "open_ended": "endless",
    "running": "runs",
    "without_arrivals": "by_itself",
    "with_arrivals": "with_others",
    "horizon_s": "within_s",
}
"""Keys of control planes before this version."""


def forecast_to_json(found: ClusterForecast) -> dict[str, Any]:
    """As JSON data; infinity is null."""
    return {
        "jobs": [
            {
                **vars(one),
                "without_arrivals": _seconds(one.without_arrivals),
                "with_arrivals": [_seconds(times) for times in one.with_arrivals],
            }
            for one in found.jobs
        ],
        "completed": found.completed,
        "simulations": found.options.simulations,
        "budget_s": found.options.budget_s,
        "history_s": found.history_s,
        "window_s": found.options.window_s,
        "scaled": list(found.guesses.scaled.items()),
        "unmeasured": list(found.guesses.unmeasured.items()),
        "open_ended": list(found.open_ended),
        "missed": found.missed,
        "priors": list(found.priors.items()),
        "limited": sorted(found.limited),
        "overdue": list(found.overdue.items()),
        "ranges": list(found.ranges.items()),
        "widened": list(found.widened),
    }


def forecast_from_json(data: Mapping[str, Any]) -> ClusterForecast:
    """The forecast that `forecast_to_json` has written, here or in an older version."""
    data = _with_new_keys(data)
    jobs = []
    for one in map(_with_new_keys, data["jobs"]):
        with_arrivals = tuple(map(_times, one["with_arrivals"]))
        known = (one["number"], one["name"], one["running"], _times(one["without_arrivals"]), with_arrivals)
        jobs.append(JobForecast(*known, one["horizon_s"], one.get("blocked", False)))
    return ClusterForecast(
        tuple(jobs),
        data["completed"],
        ForecastOptions(data["simulations"], data["window_s"], data["budget_s"]),
        data["history_s"],
        RateGuesses(dict(data["scaled"]), dict(data["unmeasured"])),
        tuple(data["open_ended"]),
        data.get("missed", 0),  # older control planes lack these
        dict(data.get("priors", ())),
        frozenset(data.get("limited", ())),
        dict(data.get("overdue", ())),
        dict(data.get("ranges", ())),
        Widening(*data.get("widened", ())),
    )


def _with_new_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, **{new: data[old] for new, old in _OLD_KEYS.items() if old in data and new not in data}}


def _seconds(times: JobTimes) -> list[float | None]:
    return [None if each == math.inf else each for each in (times.starts_s, times.ends_s)]


def _times(seconds: list[float | None]) -> JobTimes:
    starts, ends = (math.inf if each is None else each for each in seconds)
    return JobTimes(starts, ends)
