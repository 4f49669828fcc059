"""Encodes events as JSON and decodes them strictly. This is the only module that knows the JSON form of an event.

An event is an object with its type in `event` (the class name in snake case) and its fields under their own names. Each record
shows its version: records of version 1 have their type in `e`, and `codec_v1` migrates them before they are decoded. So a
journal may hold records of both versions. It must not know where journals are stored."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np
import orjson

from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Floats, Ints, Node
from fairlead.core.device_map import offsets_of
from fairlead.core.errors import JournalError
from fairlead.core.job import UPDATABLE, Job
from fairlead.core.plan import NO_LAUNCHES, Launches, RoundPlan
from fairlead.core.reasons import Code, Reason
from fairlead.core.routes import Route
from fairlead.engine.codec_v1 import migrate_event

VERSION = 2
READABLE_VERSIONS = (1, VERSION)

T = TypeVar("T")
Known = Mapping[str, Any]
"""The fields of an event that have been read: `time` comes first, and `jobs` before the columns about them."""

_MAX_INTEGER = 2**53
_LARGEST = 1e30  # of seconds, steps and rates: far above what there is, and products of them are still finite
_MAX_COLUMN = 10_000_000
_MAX_WORKERS = _MAX_ACCELERATORS = 1_000_000
_POSITIVE = ("steps", "weight")
_TYPE_NAMES = {str: "text", int: "a whole number", bool: "true or false", dict: "a mapping"}
_JOB_DEFAULTS = {f.name: f.default for f in fields(Job) if f.name not in ("name", "submitted_s")}
_job_values = attrgetter(*_JOB_DEFAULTS)
_USUAL = [*_JOB_DEFAULTS].index("deadline_s")  # most jobs set none of the fields from here on
_RARE_DEFAULTS = tuple(_JOB_DEFAULTS.values())[_USUAL:]


def encode(event: ev.Event) -> bytes:
    """One line of JSON, without the line's end. The same event gives the same bytes."""
    return orjson.dumps(_ENCODE[type(event)](event), option=orjson.OPT_SERIALIZE_NUMPY)


def encode_line(event: ev.Event) -> bytes:
    """The same with its end."""
    return orjson.dumps(_ENCODE[type(event)](event), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def decode(line: bytes | str) -> ev.Event:
    """The event of a line; raise `JournalError` where it is damaged."""
    try:
        record = orjson.loads(line)
        if isinstance(record, dict) and "e" in record:
            if "event" in record:
                raise KeyError("e")
            record = migrate_event(record)
        decoder = _DECODE[record["event"]]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise JournalError(f"not an event: {bytes(line[:60], 'utf8') if isinstance(line, str) else line[:60]!r}") from error
    try:
        return decoder(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, MemoryError, RecursionError) as error:
        raise JournalError(f"a damaged {record['event']!r} event: {type(error).__name__} {error}") from error


# Validation of events: each value has its type and is within bounds, before it becomes part of a state.


def _typed(kind: type[T], name: str, value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"{name} is {value!r:.60}, not {_TYPE_NAMES[kind]}")
    return value


def _integer(name: str, value: Any, lower: int, upper: int) -> int:
    if not lower <= _typed(int, name, value) <= upper:
        raise ValueError(f"{name} is {value}: expected {lower:,} to {upper:,}")
    return int(value)


def _amount(name: str, value: Any) -> float:
    """An amount of a job or a node: not below 0; steps and weight are above 0 and finite."""
    number = float(value)
    if not number >= 0 or (name in _POSITIVE and not 0 < number < math.inf):
        raise ValueError(f"{name} is {number:g}, not {'a finite number above 0' if name in _POSITIVE else '0 or more'}")
    return number


def _finite(name: str, value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} is {number:g}, not a finite number of at least 0")
    return number


def _not_later(name: str, value: Any, latest: float) -> float:
    if not 0 <= (second := float(value)) <= latest:
        raise ValueError(f"{name} is {second:g}: expected 0 to {latest:g}, the event's time")
    return second


def _column_of(kind: type[T], record: object) -> np.ndarray[Any, np.dtype[T]]:  # type: ignore[type-var]
    if isinstance(record, dict):
        return np.full(_integer("n", record["n"], 0, _MAX_COLUMN), record["all"], dtype=kind)
    return np.array(record, dtype=kind)


def _indices(name: str, record: object, upper: int = _MAX_INTEGER) -> Ints:
    """A column of what goes by indices from 0 on."""
    values = _column_of(np.int64, record)
    if len(values) and not (values.item(values.argmin()) >= 0 and values.item(values.argmax()) <= upper):
        raise ValueError(f"{name}: {values[(values < 0) | (values > upper)][0]} is not between 0 and {upper:,}")
    return values


def _of_jobs(name: str, values: Floats, jobs: Ints) -> Floats:
    if len(values) != len(jobs):
        raise ValueError(f"{name}: there are {len(values)} for {len(jobs)} jobs")
    return values


def _amounts(name: str, record: object, jobs: Ints, upper: float = _LARGEST) -> Floats:
    """A column of what is never below 0: one for each of these jobs."""
    values = _of_jobs(name, _column_of(np.float64, record), jobs)
    if len(values):  # by the places of the lowest and the largest, a third of what `min` and `max` take; NaN is either
        lowest = values.item(values.argmin())
        largest = lowest if isinstance(record, dict) else values.item(values.argmax())
        if not (lowest >= 0 and largest <= upper):
            wrong = largest if lowest >= 0 else lowest
            raise ValueError(f"{name} is {wrong:g}: expected 0 to {upper:g}")
    return values


def _time(value: Any) -> float:
    second = float(value)
    if not 0 <= second <= _LARGEST:
        raise ValueError(f"time is {second:g}: expected 0 to {_LARGEST:g}")
    return second


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
        flat = value.ravel().tolist()
        if value.dtype.kind not in "biu" and not (value.dtype.kind == "f" and np.isfinite(value).all()):
            flat = [_plain(item) for item in flat]
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
    values = _job_values(job)
    if values[_USUAL:] == _RARE_DEFAULTS:
        values = values[:_USUAL]
    for (name, default), value in zip(_JOB_DEFAULTS.items(), values):
        if value != default:
            record[name] = _number(value) if isinstance(value, float) else value
    return record


def _scheduled(name: str, value: Any) -> tuple[int, float]:
    size, part = value
    return _integer(name, size, 1, _MAX_INTEGER), _amount(name, part)


def _each(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, values: tuple(read(name, value) for value in values)


_BY_NAME: dict[str, Callable[[str, Any], Any]] = {
    "workers": partial(_integer, lower=1, upper=_MAX_WORKERS),
    "accelerators": partial(_integer, lower=0, upper=_MAX_ACCELERATORS),
    "allowed_types": _each(partial(_typed, str)),
    "after": _each(partial(_typed, int)),
    "schedule": _each(_scheduled),
    "links": _each(_each(_amount)),
    "price_changes": _each(_each(_finite)),
}
_BY_TYPE: dict[str, Callable[[str, Any], Any]] = {
    "str": partial(_typed, str),
    "float": _amount,
    "int": partial(_integer, lower=-_MAX_INTEGER, upper=_MAX_INTEGER),
    "bool": partial(_typed, bool),
}
_READ: dict[type, dict[str, Callable[[str, Any], Any]]] = {
    kind: {f.name: _BY_NAME.get(f.name) or _BY_TYPE[str(f.type)] for f in fields(kind)} for kind in (Job, Node, AcceleratorType)
}


def _to_job(record: Mapping[str, Any], submitted_s: float) -> Job:
    read = _READ[Job]  # the class raises on an unknown field
    values = {name: read[name](name, value) if name in read else value for name, value in record.items()}
    return Job(submitted_s=submitted_s, **values)


def _changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _number(value) if isinstance(value, float) else value for name, value in changes.items()}


def _to_changes(name: str, record: Any) -> dict[str, Any]:
    for field in _typed(dict, name, record):
        if field not in UPDATABLE:
            raise ValueError(f"{name}: {field!r} of a job cannot be changed")
    return {field: _READ[Job][field](field, value) for field, value in record.items()}


_IF_TRUE = ("removed", "temporary", "engine", "rack", "price_changes")


def _properties(of: Node | AcceleratorType) -> dict[str, Any]:
    """The fields of a node or a GPU type; those of `_IF_TRUE` only where they are set."""
    return {k: _number(v) if isinstance(v, float) else v for k, v in asdict(of).items() if k not in _IF_TRUE or v}


def _from_properties(kind: type[T], record: Mapping[str, Any]) -> T:
    read = _READ[kind].items()
    return kind(**{name: reader(name, record[name]) for name, reader in read if name not in _IF_TRUE or name in record})


def _cluster(cluster: Cluster) -> dict[str, Any]:
    return {"types": [*map(_properties, cluster.types)], "nodes": [*map(_properties, cluster.nodes)]}


def _to_cluster(record: Mapping[str, Any]) -> Cluster:
    types = tuple(_from_properties(AcceleratorType, one) for one in record["types"])
    nodes = tuple(_from_properties(Node, one) for one in record["nodes"])
    _integer("accelerators of all nodes", sum(node.accelerators for node in nodes), 0, _MAX_ACCELERATORS)
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
    admitted, ended, suspended = (_indices(name, record.get(name, ())) for name in ("admitted", "ended", "suspended"))
    routes = {
        _integer("routes: job", number, 0, _MAX_INTEGER): _to_route(*route) for number, *route in record.get("routes", ())
    }
    return ev.RoundPlanned(RoundPlan(_time(record["time"]), refused, admitted, ended, suspended, launches, routes))


def _to_launches(record: Mapping[str, Any]) -> Launches:
    offsets, accelerators = offsets_of(_column_of(np.int64, record["workers"])), _column_of(np.int64, record["accelerators"])
    if len(accelerators) != offsets[-1]:
        raise ValueError("the numbers of GPUs and workers differ")
    jobs, types = _indices("jobs", record["jobs"]), _indices("types", record["types"], _MAX_ACCELERATORS)
    sizes = _column_of(np.int64, record["batch_sizes"]) if "batch_sizes" in record else None
    cpus, memory = (_amounts(name, record[name], jobs) if name in record else None for name in _OPTIONAL[1:])
    return Launches(jobs, types, offsets, accelerators, sizes, cpus, memory)


def _to_route(accelerators: Any, parts: Any, batch: Any, rate: Any) -> Route:
    places = tuple(_integer("routes: accelerator", place, 0, _MAX_ACCELERATORS - 1) for place in accelerators)
    if len(parts) != len(places):
        raise ValueError(f"routes: there are {len(parts)} parts for {len(places)} GPUs")
    shares, requests = tuple(_finite("routes: part", part) for part in parts), _finite("routes: rate", rate)
    return Route(places, shares, _integer("routes: batch", batch, 1, _MAX_INTEGER), requests)


class _Field(NamedTuple):
    """How a field of an event is read, given the fields before it, and written; an `optional` one is omitted at its default."""

    read: Callable[[str, Any, Known], Any]
    write: Callable[[Any], object] | None = None  # None: as it is
    optional: bool = False


def _to_rates(name: str, value: Any, _: Known) -> dict[str, tuple[float, ...]] | None:
    return None if value is None else {key: _each(_finite)(name, known) for key, known in _typed(dict, name, value).items()}


def _reported(name: str, record: Any, known: Known) -> Floats:
    """Jobs may report any number, also NaN and infinity."""
    return _of_jobs(name, _column_of(np.float64, record), known["jobs"])


def _whole(lower: int, upper: int = _MAX_INTEGER, *, optional: bool = False) -> _Field:
    return _Field(lambda name, value, _: _integer(name, value, lower, upper), None, optional)


_EACH = _Field(lambda name, value, known: _amounts(name, value, known["jobs"]), _column)
_MAPPING = _Field(lambda name, value, _: _typed(dict, name, _from_plain(value)), _plain)
_TEXT = _Field(lambda name, value, _: _typed(str, name, value))
_FIELDS: dict[str, _Field] = {
    "time": _Field(lambda name, value, _: _time(value)),
    "cluster": _Field(lambda name, value, _: _to_cluster(_typed(dict, name, value)), _cluster),
    "scheduler": _MAPPING,
    "trace": _TEXT,
    "rates": _EACH,
    "journal": _TEXT._replace(optional=True),
    "origin": _Field(lambda name, value, _: _finite(name, value), None, True),
    "number": _whole(0),
    "job": _Field(lambda name, value, known: _to_job(value, known["time"]), _job),
    "node": _whole(0),
    "undo": _Field(lambda name, value, _: bool(value), None, True),
    "hold": _Field(lambda name, value, _: _typed(bool, name, value), None, True),
    "by": _TEXT._replace(optional=True),
    "changes": _Field(lambda name, value, _: _to_changes(name, value), lambda changes: _changes(changes)),
    "until_s": _Field(lambda name, value, _: _amount(name, value), _number),
    "reason": _TEXT._replace(optional=True),
    "spec": _Field(lambda name, value, _: _from_properties(Node, _typed(dict, name, value)), _properties),
    "type": _Field(lambda name, value, _: _from_properties(AcceleratorType, _typed(dict, name, value)), _properties, True),
    "why": _TEXT,
    "name": _TEXT,
    "jobs": _Field(lambda name, value, _: _indices(name, value)),
    "values": _MAPPING,
    "memo": _Field(lambda name, value, _: _from_plain(value), _plain),
    "steps": _EACH,
    "since": _EACH,
    "at": _Field(lambda name, value, known: _amounts(name, value, known["jobs"], known["time"]), _column),
    "own_fault": _Field(lambda name, value, _: _typed(bool, name, value)),
    "code": _whole(-_MAX_INTEGER, optional=True),
    "rank": _whole(0, _MAX_WORKERS - 1, optional=True),
    "stopped_s": _Field(lambda name, value, known: _not_later(name, value, known["time"]), None, True),
}
"""The fields of events, by name."""
_ANY_NUMBERS = _Field(_reported, lambda values: [_number(value) for value in values.tolist()])
_NODE_IF_ANY = _whole(-1, optional=True)
_FIELDS_BY_EVENT: dict[type, dict[str, _Field]] = {
    ev.JournalOpened: {"rates": _Field(_to_rates)},
    ev.NodeDrained: dict.fromkeys(("until_s", "from_s"), _Field(lambda name, value, _: _finite(name, value), None, True)),
    ev.MetricsReported: {"values": _ANY_NUMBERS},
    ev.ForecastsRecorded: dict.fromkeys(ev.FORECAST_COLUMNS, _ANY_NUMBERS) | dict.fromkeys(ev.FACTORS, _FIELDS["origin"]),
    ev.SlowdownExceeded: {"slowdowns": _EACH},
    ev.JobsFailed: {"node": _NODE_IF_ANY},
    ev.JobsInterrupted: {"node": _NODE_IF_ANY, "steps": _EACH._replace(write=None), "why": _TEXT._replace(optional=True)},
}


def _by_fields(kind: type) -> Callable[[Any], dict[str, Any]]:
    """Return the encoder of an event type, and put its decoder into `_DECODE`."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    first = {"event": name} | ({"version": VERSION} if kind is ev.JournalOpened else {})
    own = _FIELDS_BY_EVENT.get(kind, {})
    layout = [(f.name, *(own.get(f.name) or _FIELDS[f.name]), f.default) for f in fields(kind)]
    values_of = attrgetter(*(each[0] for each in layout))

    def write(event: Any) -> dict[str, Any]:
        record: dict[str, Any] = first.copy()
        for (name, _, to_plain, optional, default), value in zip(layout, values_of(event)):
            if not optional or value != default:
                record[name] = value if to_plain is None else to_plain(value)
        return record

    def read(record: Mapping[str, Any]) -> Any:
        known: dict[str, Any] = {}
        for name, reader, _, optional, default in layout:
            known[name] = default if optional and name not in record else reader(name, record[name], known)
        return kind(**known)

    _DECODE[name] = read
    return write


_DECODE: dict[str, Callable[[Mapping[str, Any]], ev.Event]] = {"round_planned": _to_planned}
_ENCODE: dict[type, Callable[[Any], dict[str, Any]]] = {
    kind: _planned if kind is ev.RoundPlanned else _by_fields(kind) for kind in get_args(ev.Event)
}
