"""Events as JSON and back. The only place that knows how an event is spelled; the version belongs to this spelling."""

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
from fairlead.core.job import FORMER_FIELDS, Job
from fairlead.core.plan import NO_LAUNCHES, Launches, RoundPlan
from fairlead.core.reasons import Code, Reason
from fairlead.core.routes import Route
from fairlead.engine.event_schema import MOST_WHOLE, amount, amounts, floats, ints, numbers, of_sort, second_of, share, whole

VERSION = 1

_DEFAULTS = {f.name: f.default for f in fields(Job)}
_JOB_FIELDS = tuple(name for name in _DEFAULTS if name not in ("name", "submitted_s"))
_SORT_OF = {name: type(default) for name, default in _DEFAULTS.items()} | {"name": str}
_JOB_DEFAULTS = tuple((name, _DEFAULTS[name]) for name in _JOB_FIELDS)
_USUAL = _JOB_FIELDS.index("deadline_s")  # most jobs say nothing about this and what follows
_USUAL_VALUES, _OTHER_VALUES = attrgetter(*_JOB_FIELDS[:_USUAL]), attrgetter(*_JOB_FIELDS[_USUAL:])
_MOST_WORKERS = _MOST_ACCELERATORS = 1_000_000
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
        decoder = _DECODE[record["e"]]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise JournalError(f"not an event: {bytes(line[:60], 'utf8') if isinstance(line, str) else line[:60]!r}") from error
    try:
        return decoder(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, MemoryError, RecursionError) as error:
        raise JournalError(f"a damaged {record['e']!r} event: {type(error).__name__} {error}") from error


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
    raise JournalError(f"a memo is made of numbers, strings, lists, mappings and arrays; this is {type(value).__name__}")


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
    values = {FORMER_FIELDS.get(name, name): value for name, value in record.items()}
    for name, value in values.items():
        sort = _SORT_OF.get(name)  # what is no field is told below
        if sort is float:
            values[name] = amount(name, value)
        elif sort is tuple:
            values[name] = tuple(_READ_EACH[name](name, each) for each in value)
        elif sort is int:
            least, most = (1, _MOST_WORKERS) if name == "workers" else (-MOST_WHOLE, MOST_WHOLE)
            whole(name, value, least, most)
        elif sort is str:
            of_sort(str, name, value)
    return Job(submitted_s=submitted_s, **values)


def _scheduled(name: str, value: Any) -> tuple[int, float]:
    size, part = value
    return whole(name, size, 1, MOST_WHOLE), amount(name, part)


_READ_EACH: dict[str, Callable[[str, Any], Any]] = {
    "allowed_types": partial(of_sort, str),
    "after": partial(of_sort, int),
    "schedule": _scheduled,
}


def _cluster(cluster: Cluster) -> dict[str, Any]:
    def spell(record: dict[str, Any]) -> dict[str, Any]:
        return {k: _number(v) if isinstance(v, float) else v for k, v in record.items()}

    return {"types": [spell(asdict(t)) for t in cluster.types], "nodes": [spell(asdict(n)) for n in cluster.nodes]}


def _to_cluster(record: Mapping[str, Any]) -> Cluster:
    types = tuple(
        AcceleratorType(
            of_sort(str, "name", t["name"]),
            amount("memory_gb", t["memory_gb"]),
            amount("price_per_hour", t["price_per_hour"]),
        )
        for t in record["types"]
    )
    nodes = tuple(
        Node(
            of_sort(str, "name", n["name"]),
            of_sort(str, "type", n["type"]),
            whole("accelerators", n["accelerators"], 0, _MOST_ACCELERATORS),
            amount("cpus", n["cpus"]),
            amount("memory_gb", n["memory_gb"]),
            amount("network_gbps", n["network_gbps"]),
            tuple(tuple(amount("links", speed) for speed in row) for row in n["links"]),
        )
        for n in record["nodes"]
    )
    whole("accelerators of all nodes", sum(node.accelerators for node in nodes), 0, _MOST_ACCELERATORS)
    return Cluster(nodes, types)


def _planned(event: ev.RoundPlanned) -> dict[str, Any]:
    plan = event.plan
    record: dict[str, Any] = {"e": "planned", "t": plan.time}
    if plan.refused:
        record["refused"] = [[number, r.by, str(r.code), [list(fact) for fact in r.facts]] for number, r in plan.refused]
    for name in ("admitted", "ended", "suspended"):
        values: Ints = getattr(plan, name)
        if len(values):
            record[name] = values
    starts = plan.launches
    if len(starts):
        record["launched"] = starts.jobs
        record["types"] = _column(starts.types)
        record["workers"] = _column(starts.workers)
        record["accelerators"] = starts.accelerators
        if starts.batch_sizes is not None and starts.batch_sizes.any():
            record["batch_sizes"] = starts.batch_sizes
        for name in _OF_HOSTS:
            amounts: Floats | None = getattr(starts, name)
            if amounts is not None and amounts.any():
                record[name] = amounts
    if plan.routes:
        record["routes"] = [[n, r.accelerators, r.parts, r.batch, r.rate] for n, r in sorted(plan.routes.items())]
    return record


_OF_HOSTS = ("cpus", "host_memory_gb")


def _to_planned(record: Mapping[str, Any]) -> ev.RoundPlanned:
    launches = NO_LAUNCHES
    if "launched" in record:
        workers = ints(record["workers"])
        offsets = offsets_of(workers)
        sizes = ints(record["batch_sizes"]) if "batch_sizes" in record else None
        accelerators = ints(record["accelerators"])
        if len(accelerators) != offsets[-1]:
            raise ValueError("accelerators and workers do not match")
        jobs, types = numbers("launched", record["launched"]), numbers("types", record["types"], _MOST_ACCELERATORS)
        cpus, memory = (amounts(name, record[name], jobs) if name in record else None for name in _OF_HOSTS)
        launches = Launches(jobs, types, offsets, accelerators, sizes, cpus, memory)
    refused = tuple(
        (int(number), Reason(by, Code(code), tuple((str(k), v) for k, v in facts)))
        for number, by, code, facts in record.get("refused", ())
    )
    admitted, ended, suspended = (numbers(name, record.get(name, ())) for name in ("admitted", "ended", "suspended"))
    routes = {whole("routes: job", number, 0, MOST_WHOLE): _to_route(*route) for number, *route in record.get("routes", ())}
    return ev.RoundPlanned(RoundPlan(second_of(record), refused, admitted, ended, suspended, launches, routes))


def _to_route(accelerators: Any, parts: Any, batch: Any, rate: Any) -> Route:
    places = tuple(whole("routes: accelerator", place, 0, _MOST_ACCELERATORS - 1) for place in accelerators)
    if len(parts) != len(places):
        raise ValueError(f"routes: there are {len(parts)} parts for {len(places)} accelerators")
    shares, requests = tuple(share("routes: part", part) for part in parts), share("routes: rate", rate)
    return Route(places, shares, whole("routes: batch", batch, 1, MOST_WHOLE), requests)


def _progress(event: ev.ProgressReported) -> dict[str, Any]:
    return {
        "e": "progress",
        "t": event.time,
        "jobs": event.jobs,
        "steps": _column(event.steps),
        "rates": _column(event.rates),
        "since": _column(event.since),
    }


_HOW = (("code", 0), ("node", -1), ("rank", 0))
_HOW_BOUNDS = {"code": (-MOST_WHOLE, MOST_WHOLE), "node": (-1, MOST_WHOLE), "rank": (0, _MOST_WORKERS - 1)}


def _how(event: ev.JobsFailed | ev.JobsInterrupted) -> dict[str, int]:
    return {name: getattr(event, name) for name, usual in _HOW if getattr(event, name) != usual}


def _to_failed(r: Mapping[str, Any]) -> ev.JobsFailed:
    told, jobs, at = _ended(r)
    return ev.JobsFailed(told, jobs, at, *_why_and_how(r, r["why"]))


def _ended(r: Mapping[str, Any]) -> tuple[float, Ints, Floats]:
    """Nobody ended after the moment at which it was told."""
    told, jobs = second_of(r), numbers("jobs", r["jobs"])
    return told, jobs, amounts("at", r["at"], jobs, told)


def _to_interrupted(r: Mapping[str, Any]) -> ev.JobsInterrupted:
    jobs = numbers("jobs", r["jobs"])
    steps = amounts("steps", r["steps"], jobs)
    own_fault = of_sort(bool, "own_fault", r["own_fault"])
    return ev.JobsInterrupted(second_of(r), jobs, steps, own_fault, *_why_and_how(r, r.get("why", "")))


def _why_and_how(r: Mapping[str, Any], why: Any) -> tuple[str, int, int, int]:
    code, node, rank = (whole(name, r.get(name, usual), *_HOW_BOUNDS[name]) for name, usual in _HOW)
    return of_sort(str, "why", why), code, node, rank


_ENCODE: dict[type, Callable[[Any], dict[str, Any]]] = {
    ev.JournalOpened: lambda e: {
        "e": "opened",
        "version": VERSION,
        "t": e.time,
        "cluster": _cluster(e.cluster),
        "scheduler": _plain(e.scheduler),
        "trace": e.trace,
        "rates": None if e.rates is None else {key: list(rates) for key, rates in e.rates.items()},
        **({"journal": e.journal} if e.journal else {}),
    },
    ev.JobSubmitted: lambda e: {"e": "submitted", "t": e.time, "n": e.number, "job": _job(e.job)},
    ev.JobCancelled: lambda e: {"e": "cancelled", "t": e.time, "n": e.number},
    ev.NodeLost: lambda e: {"e": "lost", "t": e.time, "node": e.node},
    ev.NodeRepaired: lambda e: {"e": "repaired", "t": e.time, "node": e.node},
    ev.NodeDrained: lambda e: {"e": "drained", "t": e.time, "node": e.node, **({"undo": True} if e.undo else {})},
    ev.MetricsReported: lambda e: {
        "e": "metrics",
        "t": e.time,
        "name": e.name,
        "jobs": e.jobs,
        "values": [_number(value) for value in e.values.tolist()],
    },
    ev.SchedulerSwitched: lambda e: {"e": "switched", "t": e.time, "scheduler": _plain(e.scheduler), "why": e.why},
    ev.RoundPlanned: _planned,
    ev.MemoChanged: lambda e: {"e": "memo", "t": e.time, "memo": _plain(e.memo)},
    ev.ObservationsRecorded: lambda e: {"e": "learned", "t": e.time, "facts": _plain(e.values)},
    ev.ProgressReported: _progress,
    ev.JobsFinished: lambda e: {"e": "finished", "t": e.time, "jobs": e.jobs, "at": _column(e.at)},
    ev.JobsFailed: lambda e: {"e": "failed", "t": e.time, "jobs": e.jobs, "at": _column(e.at), "why": e.why, **_how(e)},
    ev.JobsInterrupted: lambda e: {
        "e": "interrupted",
        "t": e.time,
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
        rates = {key: tuple(share("rates", rate) for rate in known) for key, known in of_sort(dict, "rates", rates).items()}
    scheduler, cluster = _mapping("scheduler", r["scheduler"]), _to_cluster(of_sort(dict, "cluster", r["cluster"]))
    trace, journal = (of_sort(str, name, value) for name, value in (("trace", r["trace"]), ("journal", r.get("journal", ""))))
    return ev.JournalOpened(second_of(r), cluster, scheduler, trace, rates, journal)


def _to_submitted(r: Mapping[str, Any]) -> ev.JobSubmitted:
    second = second_of(r)
    return ev.JobSubmitted(second, whole("n", r["n"], 0, MOST_WHOLE), _to_job(r["job"], second))


def _to_metrics(r: Mapping[str, Any]) -> ev.MetricsReported:
    """Jobs may report any number, and what is none."""
    jobs, values = numbers("jobs", r["jobs"]), floats(r["values"])
    if len(values) != len(jobs):
        raise ValueError(f"values: there are {len(values)} for {len(jobs)} jobs")
    return ev.MetricsReported(second_of(r), of_sort(str, "name", r["name"]), jobs, values)


def _to_progress(r: Mapping[str, Any]) -> ev.ProgressReported:
    jobs = numbers("jobs", r["jobs"])
    steps, rates = amounts("steps", r["steps"], jobs), amounts("rates", r["rates"], jobs)
    return ev.ProgressReported(second_of(r), jobs, steps, rates, amounts("since", r["since"], jobs))


def _mapping(name: str, value: Any) -> dict[str, Any]:
    return of_sort(dict, name, _from_plain(value))


_DECODE: dict[str, Callable[[Mapping[str, Any]], ev.Event]] = {
    "opened": _to_opened,
    "submitted": _to_submitted,
    "cancelled": lambda r: ev.JobCancelled(second_of(r), whole("n", r["n"], 0, MOST_WHOLE)),
    "lost": lambda r: ev.NodeLost(second_of(r), whole("node", r["node"], 0, MOST_WHOLE)),
    "repaired": lambda r: ev.NodeRepaired(second_of(r), whole("node", r["node"], 0, MOST_WHOLE)),
    "drained": lambda r: ev.NodeDrained(second_of(r), whole("node", r["node"], 0, MOST_WHOLE), bool(r.get("undo", False))),
    "metrics": _to_metrics,
    "switched": lambda r: ev.SchedulerSwitched(second_of(r), _mapping("scheduler", r["scheduler"]), r["why"]),
    "planned": _to_planned,
    "memo": lambda r: ev.MemoChanged(second_of(r), _from_plain(r["memo"])),
    "learned": lambda r: ev.ObservationsRecorded(second_of(r), _mapping("facts", r["facts"])),
    "progress": _to_progress,
    "finished": lambda r: ev.JobsFinished(*_ended(r)),
    "failed": _to_failed,
    "interrupted": _to_interrupted,
}
