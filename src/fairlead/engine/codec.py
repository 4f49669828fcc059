"""Encodes events as JSON and decodes them strictly. This is the only module that knows the JSON form of an event.

An event is an object with its type in `event` (the class name in snake case) and its fields under their own names. Each record
shows its version: records of version 1 have their type in `e`, and `codec_v1` migrates them before they are decoded. So a
journal may hold records of both versions. It must not know where journals are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import orjson

from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Floats, Ints, Node
from fairlead.core.device_map import offsets_of
from fairlead.core.errors import JournalError
from fairlead.core.job import Job
from fairlead.core.plan import NO_LAUNCHES, Launches, RoundPlan
from fairlead.core.reasons import Code, Reason
from fairlead.core.routes import Route
from fairlead.engine.codec_v1 import migrate_event
from fairlead.engine.event_schema import MAX_INTEGER, amount, amounts, finite, floats, indices, integer, ints, time_of, typed

VERSION = 2
READABLE_VERSIONS = (1, VERSION)

_DEFAULTS = {f.name: f.default for f in fields(Job)}
_JOB_FIELDS = tuple(name for name in _DEFAULTS if name not in ("name", "submitted_s"))
_TYPE_OF = {name: type(default) for name, default in _DEFAULTS.items()} | {"name": str}
_JOB_DEFAULTS = tuple((name, _DEFAULTS[name]) for name in _JOB_FIELDS)
_USUAL = _JOB_FIELDS.index("deadline_s")  # most jobs say nothing about this and what follows
_USUAL_VALUES, _OTHER_VALUES = attrgetter(*_JOB_FIELDS[:_USUAL]), attrgetter(*_JOB_FIELDS[_USUAL:])
_MAX_WORKERS = _MAX_ACCELERATORS = 1_000_000
_OTHER_DEFAULTS = tuple(default for _, default in _JOB_DEFAULTS[_USUAL:])


def encode(event: ev.Event) -> bytes:
    """One line of JSON, without the line's end. The same event gives the same bytes."""
    return orjson.dumps(_ENCODE[type(event)](event), option=orjson.OPT_SERIALIZE_NUMPY)


def encode_line(event: ev.Event) -> bytes:
    """The same with its end."""
    return orjson.dumps(_ENCODE[type(event)](event), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def decode(line: bytes | str) -> ev.Event:
    try:
        record = orjson.loads(line)
        if isinstance(record, dict) and "e" in record:
            record = migrate_event(record)
        decoder = _DECODE[record["event"]]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise JournalError(f"not an event: {bytes(line[:60], 'utf8') if isinstance(line, str) else line[:60]!r}") from error
    try:
        return decoder(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, MemoryError, RecursionError) as error:
        raise JournalError(f"a damaged {record['event']!r} event: {type(error).__name__} {error}") from error


# Columns: a column whose values are all alike is written once. Infinity has no JSON, so it is written as a word.


def _column(values: Ints | Floats) -> object:
    if len(values) > 1:
        first = values.item(0)
        if values.item(-1) == first and values.item(values.argmax()) == first == values.item(values.argmin()):
            return {"n": len(values), "all": first}
    return np.ascontiguousarray(values)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def encode_memo(memo: Any) -> bytes:
    """A memo (or any plain data) as JSON; what could not be read back as it was is refused."""
    return orjson.dumps(_plain(memo))


def _plain(value: Any) -> Any:
    """Data as JSON has it, such that `_from_plain` gives the same data again: arrays keep their type and shape."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key.startswith("$"):
                raise JournalError(f"a memo's keys are strings that do not begin with '$'; this one is {key!r}")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        flat = [_plain(item) for item in value.ravel().tolist()]
        return {"$array": flat, "$type": value.dtype.str, "$shape": list(value.shape)}
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise JournalError(f"a memo is made of indices, strings, lists, mappings and arrays; this is {type(value).__name__}")


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if "$array" in value:
            flat = [_from_plain(item) for item in value["$array"]]
            return np.array(flat, dtype=np.dtype(value["$type"])).reshape(value["$shape"])
        if "$float" in value:
            return float(value["$float"])
        return {key: _from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    return value


def _job(job: Job) -> dict[str, Any]:
    record: dict[str, Any] = {"name": job.name}
    values, others = _USUAL_VALUES(job), _OTHER_VALUES(job)
    if others != _OTHER_DEFAULTS:
        values += others
    for (name, default), value in zip(_JOB_DEFAULTS, values):
        if value != default:
            record[name] = _number(value) if isinstance(value, float) else value
    return record


def _to_job(record: Mapping[str, Any], submitted_s: float) -> Job:
    values = dict(record)
    for name, value in values.items():
        kind = _TYPE_OF.get(name)  # what is no field is told below
        if kind is float:
            values[name] = amount(name, value)
        elif kind is tuple:
            values[name] = tuple(_READ_EACH[name](name, each) for each in value)
        elif kind is int:
            lower, upper = (1, _MAX_WORKERS) if name == "workers" else (-MAX_INTEGER, MAX_INTEGER)
            integer(name, value, lower, upper)
        elif kind is str:
            typed(str, name, value)
    return Job(submitted_s=submitted_s, **values)


def _scheduled(name: str, value: Any) -> tuple[int, float]:
    size, part = value
    return integer(name, size, 1, MAX_INTEGER), amount(name, part)


_READ_EACH: dict[str, Callable[[str, Any], Any]] = {
    "allowed_types": partial(typed, str),
    "after": partial(typed, int),
    "schedule": _scheduled,
}


def _cluster(cluster: Cluster) -> dict[str, Any]:
    def spell(record: dict[str, Any]) -> dict[str, Any]:
        return {k: _number(v) if isinstance(v, float) else v for k, v in record.items()}

    return {"types": [spell(asdict(t)) for t in cluster.types], "nodes": [spell(asdict(n)) for n in cluster.nodes]}


def _to_cluster(record: Mapping[str, Any]) -> Cluster:
    types = tuple(
        AcceleratorType(
            typed(str, "name", t["name"]),
            amount("memory_gb", t["memory_gb"]),
            amount("price_per_hour", t["price_per_hour"]),
        )
        for t in record["types"]
    )
    nodes = tuple(
        Node(
            typed(str, "name", n["name"]),
            typed(str, "type", n["type"]),
            integer("accelerators", n["accelerators"], 0, _MAX_ACCELERATORS),
            amount("cpus", n["cpus"]),
            amount("memory_gb", n["memory_gb"]),
            amount("network_gbps", n["network_gbps"]),
            tuple(tuple(amount("links", speed) for speed in row) for row in n["links"]),
        )
        for n in record["nodes"]
    )
    integer("accelerators of all nodes", sum(node.accelerators for node in nodes), 0, _MAX_ACCELERATORS)
    return Cluster(nodes, types)


def _planned(event: ev.RoundPlanned) -> dict[str, Any]:
    plan = event.plan
    record: dict[str, Any] = {"event": "round_planned", "time": plan.time}
    if plan.refused:
        record["refused"] = [[number, r.by, str(r.code), [list(fact) for fact in r.facts]] for number, r in plan.refused]
    for name in ("admitted", "ended", "suspended"):
        values: Ints = getattr(plan, name)
        if len(values):
            record[name] = values
    if len(plan.launches):
        record["launches"] = _launches(plan.launches)
    if plan.routes:
        record["routes"] = [[n, r.accelerators, r.parts, r.batch, r.rate] for n, r in sorted(plan.routes.items())]
    return record


_OPTIONAL = ("batch_sizes", "cpus", "host_memory_gb")


def _launches(launches: Launches) -> dict[str, Any]:
    record: dict[str, Any] = {
        "jobs": launches.jobs,
        "types": _column(launches.types),
        "workers": _column(launches.workers),
        "accelerators": launches.accelerators,
    }
    for name in _OPTIONAL:
        column = getattr(launches, name)
        if column is not None and column.any():
            record[name] = column
    return record


def _to_planned(record: Mapping[str, Any]) -> ev.RoundPlanned:
    launches = _to_launches(record["launches"]) if "launches" in record else NO_LAUNCHES
    refused = tuple(
        (int(number), Reason(by, Code(code), tuple((str(k), v) for k, v in facts)))
        for number, by, code, facts in record.get("refused", ())
    )
    admitted, ended, suspended = (indices(name, record.get(name, ())) for name in ("admitted", "ended", "suspended"))
    routes = {integer("routes: job", number, 0, MAX_INTEGER): _to_route(*route) for number, *route in record.get("routes", ())}
    return ev.RoundPlanned(RoundPlan(time_of(record), refused, admitted, ended, suspended, launches, routes))


def _to_launches(record: Mapping[str, Any]) -> Launches:
    offsets, accelerators = offsets_of(ints(record["workers"])), ints(record["accelerators"])
    if len(accelerators) != offsets[-1]:
        raise ValueError("accelerators and workers do not match")
    jobs, types = indices("jobs", record["jobs"]), indices("types", record["types"], _MAX_ACCELERATORS)
    sizes = ints(record["batch_sizes"]) if "batch_sizes" in record else None
    cpus, memory = (amounts(name, record[name], jobs) if name in record else None for name in _OPTIONAL[1:])
    return Launches(jobs, types, offsets, accelerators, sizes, cpus, memory)


def _to_route(accelerators: Any, parts: Any, batch: Any, rate: Any) -> Route:
    places = tuple(integer("routes: accelerator", place, 0, _MAX_ACCELERATORS - 1) for place in accelerators)
    if len(parts) != len(places):
        raise ValueError(f"routes: there are {len(parts)} parts for {len(places)} accelerators")
    shares, requests = tuple(finite("routes: part", part) for part in parts), finite("routes: rate", rate)
    return Route(places, shares, integer("routes: batch", batch, 1, MAX_INTEGER), requests)


def _progress(event: ev.ProgressReported) -> dict[str, Any]:
    return {
        "event": "progress_reported",
        "time": event.time,
        "jobs": event.jobs,
        "steps": _column(event.steps),
        "rates": _column(event.rates),
        "since": _column(event.since),
    }


_HOW = (("code", 0), ("node", -1), ("rank", 0))
_HOW_BOUNDS = {"code": (-MAX_INTEGER, MAX_INTEGER), "node": (-1, MAX_INTEGER), "rank": (0, _MAX_WORKERS - 1)}


def _how(event: ev.JobsFailed | ev.JobsInterrupted) -> dict[str, int]:
    return {name: getattr(event, name) for name, usual in _HOW if getattr(event, name) != usual}


def _to_failed(r: Mapping[str, Any]) -> ev.JobsFailed:
    told, jobs, at = _ended(r)
    return ev.JobsFailed(told, jobs, at, *_why_and_how(r, r["why"]))


def _ended(r: Mapping[str, Any]) -> tuple[float, Ints, Floats]:
    """Nobody ended after the moment at which it was told."""
    told, jobs = time_of(r), indices("jobs", r["jobs"])
    return told, jobs, amounts("at", r["at"], jobs, told)


def _to_interrupted(r: Mapping[str, Any]) -> ev.JobsInterrupted:
    jobs = indices("jobs", r["jobs"])
    steps = amounts("steps", r["steps"], jobs)
    own_fault = typed(bool, "own_fault", r["own_fault"])
    return ev.JobsInterrupted(time_of(r), jobs, steps, own_fault, *_why_and_how(r, r.get("why", "")))


def _why_and_how(r: Mapping[str, Any], why: Any) -> tuple[str, int, int, int]:
    code, node, rank = (integer(name, r.get(name, usual), *_HOW_BOUNDS[name]) for name, usual in _HOW)
    return typed(str, "why", why), code, node, rank


_ENCODE: dict[type, Callable[[Any], dict[str, Any]]] = {
    ev.JournalOpened: lambda e: {
        "event": "journal_opened",
        "version": VERSION,
        "time": e.time,
        "cluster": _cluster(e.cluster),
        "scheduler": _plain(e.scheduler),
        "trace": e.trace,
        "rates": None if e.rates is None else {key: list(rates) for key, rates in e.rates.items()},
        **({"journal": e.journal} if e.journal else {}),
    },
    ev.JobSubmitted: lambda e: {"event": "job_submitted", "time": e.time, "number": e.number, "job": _job(e.job)},
    ev.JobCancelled: lambda e: {"event": "job_cancelled", "time": e.time, "number": e.number},
    ev.NodeLost: lambda e: {"event": "node_lost", "time": e.time, "node": e.node},
    ev.NodeRepaired: lambda e: {"event": "node_repaired", "time": e.time, "node": e.node},
    ev.NodeDrained: lambda e: {"event": "node_drained", "time": e.time, "node": e.node, **({"undo": True} if e.undo else {})},
    ev.NodeBackedOff: lambda e: {
        "event": "node_backed_off",
        "time": e.time,
        "node": e.node,
        "until_s": _number(e.until_s),
        "why": e.why,
    },
    ev.MetricsReported: lambda e: {
        "event": "metrics_reported",
        "time": e.time,
        "name": e.name,
        "jobs": e.jobs,
        "values": [_number(value) for value in e.values.tolist()],
    },
    ev.SchedulerSwitched: lambda e: {
        "event": "scheduler_switched",
        "time": e.time,
        "scheduler": _plain(e.scheduler),
        "why": e.why,
    },
    ev.RoundPlanned: _planned,
    ev.MemoChanged: lambda e: {"event": "memo_changed", "time": e.time, "memo": _plain(e.memo)},
    ev.ObservationsRecorded: lambda e: {"event": "observations_recorded", "time": e.time, "values": _plain(e.values)},
    ev.ProgressReported: _progress,
    ev.JobsFinished: lambda e: {"event": "jobs_finished", "time": e.time, "jobs": e.jobs, "at": _column(e.at)},
    ev.JobsFailed: lambda e: {
        "event": "jobs_failed",
        "time": e.time,
        "jobs": e.jobs,
        "at": _column(e.at),
        "why": e.why,
        **_how(e),
    },
    ev.JobsInterrupted: lambda e: {
        "event": "jobs_interrupted",
        "time": e.time,
        "jobs": e.jobs,
        "steps": e.steps,
        "own_fault": e.own_fault,
        **({"why": e.why} if e.why else {}),
        **_how(e),
    },
}


def _to_opened(r: Mapping[str, Any]) -> ev.JournalOpened:
    rates = r["rates"]
    if rates is not None:
        rates = {key: tuple(finite("rates", rate) for rate in known) for key, known in typed(dict, "rates", rates).items()}
    scheduler, cluster = _mapping("scheduler", r["scheduler"]), _to_cluster(typed(dict, "cluster", r["cluster"]))
    trace, journal = (typed(str, name, value) for name, value in (("trace", r["trace"]), ("journal", r.get("journal", ""))))
    return ev.JournalOpened(time_of(r), cluster, scheduler, trace, rates, journal)


def _to_submitted(r: Mapping[str, Any]) -> ev.JobSubmitted:
    second = time_of(r)
    return ev.JobSubmitted(second, integer("number", r["number"], 0, MAX_INTEGER), _to_job(r["job"], second))


def _node(r: Mapping[str, Any]) -> int:
    return integer("node", r["node"], 0, MAX_INTEGER)


def _to_backed_off(r: Mapping[str, Any]) -> ev.NodeBackedOff:
    return ev.NodeBackedOff(time_of(r), _node(r), amount("until_s", r["until_s"]), typed(str, "why", r["why"]))


def _to_metrics(r: Mapping[str, Any]) -> ev.MetricsReported:
    """Jobs may report any number, and what is none."""
    jobs, values = indices("jobs", r["jobs"]), floats(r["values"])
    if len(values) != len(jobs):
        raise ValueError(f"values: there are {len(values)} for {len(jobs)} jobs")
    return ev.MetricsReported(time_of(r), typed(str, "name", r["name"]), jobs, values)


def _to_progress(r: Mapping[str, Any]) -> ev.ProgressReported:
    jobs = indices("jobs", r["jobs"])
    steps, rates = amounts("steps", r["steps"], jobs), amounts("rates", r["rates"], jobs)
    return ev.ProgressReported(time_of(r), jobs, steps, rates, amounts("since", r["since"], jobs))


def _mapping(name: str, value: Any) -> dict[str, Any]:
    return typed(dict, name, _from_plain(value))


_DECODE: dict[str, Callable[[Mapping[str, Any]], ev.Event]] = {
    "journal_opened": _to_opened,
    "job_submitted": _to_submitted,
    "job_cancelled": lambda r: ev.JobCancelled(time_of(r), integer("number", r["number"], 0, MAX_INTEGER)),
    "node_lost": lambda r: ev.NodeLost(time_of(r), integer("node", r["node"], 0, MAX_INTEGER)),
    "node_repaired": lambda r: ev.NodeRepaired(time_of(r), integer("node", r["node"], 0, MAX_INTEGER)),
    "node_drained": lambda r: ev.NodeDrained(
        time_of(r), integer("node", r["node"], 0, MAX_INTEGER), bool(r.get("undo", False))
    ),
    "node_backed_off": _to_backed_off,
    "metrics_reported": _to_metrics,
    "scheduler_switched": lambda r: ev.SchedulerSwitched(time_of(r), _mapping("scheduler", r["scheduler"]), r["why"]),
    "round_planned": _to_planned,
    "memo_changed": lambda r: ev.MemoChanged(time_of(r), _from_plain(r["memo"])),
    "observations_recorded": lambda r: ev.ObservationsRecorded(time_of(r), _mapping("values", r["values"])),
    "progress_reported": _to_progress,
    "jobs_finished": lambda r: ev.JobsFinished(*_ended(r)),
    "jobs_failed": _to_failed,
    "jobs_interrupted": _to_interrupted,
}
