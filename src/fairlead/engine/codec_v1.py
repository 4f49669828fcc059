"""Reads what Fairlead wrote before journal format version 2, as tables of renames.

A record of version 1 becomes one of version 2 before the codec reads it, and a saved state of version 2 one of version 3.
Nothing is rewritten in the journal. `core.reasons.Code` reads former reason codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.core.job import FORMER_FIELDS

EVENTS = {
    "opened": "journal_opened",
    "submitted": "job_submitted",
    "cancelled": "job_cancelled",
    "lost": "node_lost",
    "repaired": "node_repaired",
    "drained": "node_drained",
    "metrics": "metrics_reported",
    "switched": "scheduler_switched",
    "planned": "round_planned",
    "memo": "memo_changed",
    "learned": "observations_recorded",
    "progress": "progress_reported",
    "finished": "jobs_finished",
    "failed": "jobs_failed",
    "interrupted": "jobs_interrupted",
}
"""Event types by their former names."""

KEYS = {"e": "event", "t": "time", "n": "number", "facts": "values"}
"""Keys of an event by their former names."""

LAUNCHES = {"launched": "jobs"} | {
    name: name for name in ("types", "workers", "accelerators", "batch_sizes", "cpus", "host_memory_gb")
}
"""Keys of a plan that have moved into `launches`."""

SCHEDULER = {"estimation": "estimator"}
STAGES = {"door": "feasibility"}
REASON_FACTS = {"whom": "job"}
REASON_TEXTS = {
    "accelerators": "GPUs",
    "accelerators of one type": "GPUs of one type",
    "GB of accelerator memory": "GB of GPU memory",
}
OBSERVATIONS = {"company of ": "colocation of "}
"""Beginnings of observations' names."""

STATE = {"lessons": "observation_count"}
COLUMNS = {"entity": "account"}


def migrate_event(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of version 1 as one of version 2. What is damaged stays so, for the codec to refuse."""
    event = _renamed(record, KEYS)
    event["event"] = EVENTS[record["e"]]
    migrate = _MIGRATE.get(event["event"])
    return event if migrate is None else migrate(event)


def migrate_state(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description in a saved state of version 2 as one of version 3."""
    new = _renamed(about, STATE)
    new["ints"] = [COLUMNS.get(name, name) for name in about["ints"]]
    new["codes"] = _renamed(about["codes"], COLUMNS)
    if "adaptations" in about:
        new["adaptations"] = _renamed(about["adaptations"], {"looks": "signatures"})
    return new


def _renamed(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in record.items()}


def _planned(event: dict[str, Any]) -> dict[str, Any]:
    plan = {name: value for name, value in event.items() if name not in LAUNCHES}
    if launches := {LAUNCHES[name]: value for name, value in event.items() if name in LAUNCHES}:
        plan["launches"] = launches
    if "refused" in plan:
        plan["refused"] = [[number, STAGES.get(by, by), code, _facts(facts)] for number, by, code, facts in plan["refused"]]
    return plan


def _facts(facts: list[list[Any]]) -> list[list[Any]]:
    texts = {text: REASON_TEXTS.get(text, text) for _, text in facts if isinstance(text, str)}
    return [[REASON_FACTS.get(name, name), texts.get(value, value)] for name, value in facts]


def _observed(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"values": {_observation(name): value for name, value in event["values"].items()}}


def _observation(name: str) -> str:
    return next((new + name.removeprefix(old) for old, new in OBSERVATIONS.items() if name.startswith(old)), name)


_MIGRATE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "journal_opened": lambda event: event | {"version": 2, "scheduler": _renamed(event["scheduler"], SCHEDULER)},
    "scheduler_switched": lambda event: event | {"scheduler": _renamed(event["scheduler"], SCHEDULER)},
    "job_submitted": lambda event: event | {"job": _renamed(event["job"], FORMER_FIELDS)},
    "round_planned": _planned,
    "observations_recorded": _observed,
}
