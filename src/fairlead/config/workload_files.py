"""What starting, saving and racks cost, as a small YAML file: one value for all, and others for some kinds (or models).

launch_s: 10
restart_s: 30
checkpoint_s: 5
checkpoint_every_s: 1800
rack_speed: 0.8                                   # part of its rate that a gang on several racks has
kinds:
  ResNet-50: {restart_s: 60}                      # every batch size
  Transformer (batch size 64): {checkpoint_s: 20}
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from fairlead.config.yaml_source import Value, read_yaml
from fairlead.core.cluster import Floats
from fairlead.core.errors import InputError, near_or_all, require
from fairlead.core.routes import MAX_BATCH_SIZE, MAX_REQUESTS_PER_S, Session, latencies
from fairlead.models.sensitivity import EXPECTED, Curve, Sensitivity
from fairlead.simulator.costs import MAX_COST_S, MIN_RACK_SPEED, RACK_SPEED, Costs

_SECONDS = ("launch_s", "restart_s", "checkpoint_s", "checkpoint_every_s")
_FIELDS = (*_SECONDS, "rack_speed")


def read_costs(path: Path | str) -> Costs:
    """Return the costs of a file."""
    return costs_from(read_yaml(path))


def costs_from(value: Value) -> Costs:
    """Return the costs of a YAML value."""
    fields = value.mapping((*_FIELDS, "kinds"))
    common = _costs(fields, Costs())
    kinds = fields["kinds"].mapping() if "kinds" in fields else {}
    return replace(common, by_kind={name: _costs(entry.mapping(_FIELDS), common) for name, entry in kinds.items()})


def _costs(fields: dict[str, Value], base: Costs) -> Costs:
    def seconds(name: str, default: float) -> float:
        every = name == "checkpoint_every_s"
        wanted = "seconds above 0" if every else f"seconds from 0 to {MAX_COST_S:g}"
        return fields[name].number(wanted, most=math.inf if every else MAX_COST_S, above=every) if name in fields else default

    launch, restart, save, every = (seconds(name, getattr(base, name)) for name in _SECONDS)
    rack_speed = base.rack_speed
    if "rack_speed" in fields:
        rack_speed = fields["rack_speed"].number(RACK_SPEED, MIN_RACK_SPEED, most=1.0)
    return Costs(launch, restart, save, every, rack_speed=rack_speed)


# How the speed of models depends on the CPUs and host memory of each worker, as a small YAML file, in the notation of the
# placement `synergy`.
#
# cpus:
# ResNet-50: 3@1|9@2.4
# memory_gb:
# ResNet-50 (batch size 64): 20@0.8|60@1

_HOST_FIELDS = ("cpus", "memory_gb")


def read_hosts(path: Path | str) -> dict[str, Sensitivity]:
    """By model or kind."""
    fields = read_yaml(path).mapping(_HOST_FIELDS)
    curves = {name: {model: _curve(entry) for model, entry in value.mapping().items()} for name, value in fields.items()}
    cpus, memory = (curves.get(name, {}) for name in _HOST_FIELDS)
    return {name: Sensitivity(cpus.get(name), memory.get(name)) for name in {**cpus, **memory}}


def _curve(value: Value) -> Curve:
    try:
        return Curve.parse(value.text(EXPECTED))
    except ValueError:
        raise value.error(EXPECTED) from None


# How many requests a second sessions get, and from when on, as a small YAML file.
#
# photos: [[0, 700], [3600, 2100], [7200, 900]]     # [from second, requests per second]

_SECOND, _RATE = "a time of at least 0 seconds", f"requests per second above 0, at most {MAX_REQUESTS_PER_S:,.0f}"


def read_request_rates(path: Path | str, sessions: Collection[str]) -> dict[str, tuple[tuple[float, float], ...]]:
    """By session: pairs of a second and the requests per second from then on."""
    fields = read_yaml(path).mapping()
    for name, entry in fields.items():
        if name not in sessions:
            wanted = f"the name of a job of the trace that is a session ({near_or_all(name, sessions)})"
            raise InputError(entry.source, wanted, line=entry.line, field=name)
    return {name: _rates(entry) for name, entry in fields.items()}


def _rates(value: Value) -> tuple[tuple[float, float], ...]:
    rates = tuple(_rate(entry) for entry in value.items())
    if not rates:
        raise value.error("at least one time in seconds with a rate, as in [[0, 700]]")
    if any(one >= other for (one, _), (other, _) in pairwise(rates)):
        raise value.error("times in ascending order")
    return rates


def _rate(value: Value) -> tuple[float, float]:
    parts = list(value.items())
    if len(parts) != 2:
        raise value.error("a time in seconds and a rate, as in [3600, 700]")
    rate = parts[1].number(_RATE, most=MAX_REQUESTS_PER_S, above=True)
    return parts[0].number(_SECOND, least=0.0), rate


# Inference sessions as a small YAML file.
#
# models:
# resnet50:
# batches: [1, 8, 32]                                 # measured; latencies are interpolated linearly
# latency_ms: {v100: [6, 14, 40], p100: [9, 25, 80]}  # of each of these batches, by type
# sessions:
# - {name: photos, model: resnet50, rate: 900, slo_ms: 100}

_MODEL_FIELDS = ("batches", "latency_ms")
_SESSION_FIELDS = ("name", "model", "rate", "slo_ms")


def read_sessions(path: Path | str) -> tuple[Session, ...]:
    """Return the inference sessions of a file."""
    return sessions_from(read_yaml(path))


def sessions_from(value: Value) -> tuple[Session, ...]:
    """Return the inference sessions of a YAML value."""
    fields = value.mapping(("models", "sessions"))
    for name in ("models", "sessions"):
        require(name in fields, value.source, f"{name}; a file of sessions has both models and sessions", name)
    models = {name: _model(entry) for name, entry in fields["models"].mapping().items()}
    sessions: list[Session] = []
    taken: set[str] = set()
    for entry in fields["sessions"].items():
        session = _session(entry, models)
        if session.name in taken:
            raise entry.error(f"a unique name for each session; {session.name!r} occurs twice")
        taken.add(session.name)
        sessions.append(session)
    if not sessions:
        raise fields["sessions"].error("at least one session")
    return tuple(sessions)


def _model(entry: Value) -> Mapping[str, Floats]:
    fields = _all_of(entry, _MODEL_FIELDS)
    batches = [size.whole(f"a whole number from 1 to {MAX_BATCH_SIZE}", 1) for size in fields["batches"].items()]
    if not batches or any(one >= other for one, other in pairwise(batches)) or batches[-1] > MAX_BATCH_SIZE:
        raise fields["batches"].error(f"batch sizes in ascending order, at most {MAX_BATCH_SIZE}")
    known: dict[str, Floats] = {}
    for name, column in fields["latency_ms"].mapping().items():
        seconds = [one.number("milliseconds above 0", above=True) / 1000 for one in column.items()]
        if len(seconds) != len(batches):
            raise column.error(f"{len(batches)} latencies, one for each of the batches")
        if name.lower() in known:
            raise column.error(f"each type only once; {name.lower()!r} is there already")
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
    if rate > MAX_REQUESTS_PER_S:
        raise fields["rate"].error(f"at most {MAX_REQUESTS_PER_S:,.0f} requests per second")
    slo = fields["slo_ms"].number("milliseconds above 0", above=True)
    return Session(fields["name"].text("a name"), rate, slo / 1000, models[model])


def _all_of(entry: Value, names: tuple[str, ...]) -> dict[str, Value]:
    fields = entry.mapping(names)
    for name in names:
        if name not in fields:
            raise InputError(entry.source, "a value; the field is required", line=entry.line, field=name)
    return fields
