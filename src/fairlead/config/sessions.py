"""Inference sessions as a small YAML file.

models:
  resnet50:
    batches: [1, 8, 32]                                 # what was measured; between them latencies lie on a line
    latency_ms: {v100: [6, 14, 40], p100: [9, 25, 80]}  # of each of these batches, by type
sessions:
  - {name: photos, model: resnet50, rate: 900, slo_ms: 100}
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from fairlead.config.source import Value, read_yaml
from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.inference import MOST_IN_A_BATCH, MOST_REQUESTS_PER_S, Session, latencies

_MODEL_FIELDS = ("batches", "latency_ms")
_SESSION_FIELDS = ("name", "model", "rate", "slo_ms")


def read_sessions(path: Path | str) -> tuple[Session, ...]:
    return sessions_from(read_yaml(path))


def sessions_from(value: Value) -> tuple[Session, ...]:
    fields = value.mapping(("models", "sessions"))
    for name in ("models", "sessions"):
        if name not in fields:
            raise InputError(value.source, f"{name}; a file of sessions has both models and sessions", field=name)
    models = {name: _model(entry) for name, entry in fields["models"].mapping().items()}
    sessions: list[Session] = []
    taken: set[str] = set()
    for entry in fields["sessions"].items():
        session = _session(entry, models)
        if session.name in taken:
            raise entry.error(f"another name for each session; {session.name!r} is there twice")
        taken.add(session.name)
        sessions.append(session)
    if not sessions:
        raise fields["sessions"].error("at least one session")
    return tuple(sessions)


def _model(entry: Value) -> Mapping[str, Floats]:
    fields = _all_of(entry, _MODEL_FIELDS)
    batches = [size.whole(f"a whole number from 1 to {MOST_IN_A_BATCH}", 1) for size in fields["batches"].items()]
    if not batches or any(one >= other for one, other in pairwise(batches)) or batches[-1] > MOST_IN_A_BATCH:
        raise fields["batches"].error(f"batch sizes in ascending order, at most {MOST_IN_A_BATCH}")
    known: dict[str, Floats] = {}
    for name, column in fields["latency_ms"].mapping().items():
        seconds = [one.number("milliseconds above 0", above=True) / 1000 for one in column.items()]
        if len(seconds) != len(batches):
            raise column.error(f"{len(batches)} latencies, one for each of the batches")
        if name.lower() in known:
            raise column.error(f"each type once; {name.lower()!r} is there already")
        known[name.lower()] = latencies(batches, seconds)
    if not known:
        raise fields["latency_ms"].error("latencies on at least one type")
    return known


def _session(entry: Value, models: Mapping[str, Mapping[str, Floats]]) -> Session:
    fields = _all_of(entry, _SESSION_FIELDS)
    model = fields["model"].text("a model's name")
    if model not in models:
        raise fields["model"].error(f"one of the models of this file ({near_or_all(model, models)})")
    rate = fields["rate"].number("requests per second above 0", above=True)
    if rate > MOST_REQUESTS_PER_S:
        raise fields["rate"].error(f"at most {MOST_REQUESTS_PER_S:,.0f} requests per second")
    slo = fields["slo_ms"].number("milliseconds above 0", above=True)
    return Session(fields["name"].text("a name"), rate, slo / 1000, models[model])


def _all_of(entry: Value, names: tuple[str, ...]) -> dict[str, Value]:
    fields = entry.mapping(names)
    for name in names:
        if name not in fields:
            raise InputError(entry.source, "a value; it is needed", line=entry.line, field=name)
    return fields
