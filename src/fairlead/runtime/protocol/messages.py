"""Messages between an agent and the control plane, and how they become bytes. Each agent has one stream: it sends hello,
heartbeats and reports about its jobs; it receives orders, and each answered heartbeat renews its lease. Logs and code archives
travel over it in chunks. A message is a JSON object with its type under "is". A message must have exactly the fields of its
type; unknown fields of `Hello` and of the orders and reports inside are ignored. "is", the fields of `Hello` and `Refused`
never change, so that two versions can refuse each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, TypeAlias, TypeVar, dataclass_transform, get_args

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from fairlead.core.errors import FairleadError
from fairlead.runtime.protocol.orders import Amount, Count, Metric, Order, Rank, Report, Text

MAX_MESSAGE_BYTES = 4 << 20  # size limit of one message

MAX_TAIL = 1 << 17  # characters of the end of a log

PROTOCOL_VERSION = 5  # changes when an older agent or control plane would misunderstand a newer one

SERVICE, METHOD = "fairlead.Agents", "Session"

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True)
def _message(cls: type[_Class]) -> type[_Class]:
    """A frozen dataclass that rejects unknown fields."""
    return with_config(ConfigDict(extra="forbid"))(dataclass(frozen=True, slots=True)(cls))


class BadMessage(FairleadError):
    """Bytes that are not a valid message."""


@with_config(ConfigDict(extra="ignore"))  # a newer agent may say more: its version decides
@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of an agent. `incarnation` is the last number that a control plane has issued to an agent of this root,
    or 0; agents of former versions count their starts (`keeps_incarnation` is false). `journal` names the journal that its
    launches belong to; empty before the first. `identity` tells apart two agents with one node name. `cpus`, `memory_gb` and
    `gpu_memory_gb` (of each accelerator) describe the node, where they are known. Agents of former versions send none of these,
    and do not keep a credential.

    `left_s`: seconds until an engine, such as Slurm, takes the machine away; 0: not known. `temporary`: the node is removed
    from the cluster when its agent has left, or was given up. `leaving`: as after `Leaving`. `rack` is empty where it is not
    known."""

    node: Text
    type: Text
    accelerators: Count
    incarnation: Count
    address: Text = "127.0.0.1"
    running: tuple[tuple[Count, Count], ...] = ()
    journal: Text = ""
    version: Count = PROTOCOL_VERSION
    identity: Annotated[str, Field(max_length=64)] = ""
    keeps_credential: bool = False
    cpus: Amount = 0.0
    memory_gb: Amount = 0.0
    gpu_memory_gb: Amount = 0.0
    left_s: Amount = 0.0
    temporary: bool = False
    leaving: bool = False
    launch: tuple[Count, Count] | None = None  # of an agent that an engine has started for this launch only
    keeps_incarnation: bool = False
    rack: Text = ""
    reports_host: bool = False


@dataclass(frozen=True, slots=True)
class LaunchUsage:
    """What the workers of a launch on one node use of its host, as their control groups say."""

    job: Count
    generation: Count
    cpus: Amount | None = None  # cores, since the sample before
    memory_gb: Amount | None = None


NEARLY_FULL = 0.95  # of a disk or of the memory: a warning


@dataclass(frozen=True, slots=True)
class HostUsage:
    """What is used of a node besides its accelerators, by all its programs; None: not measured. The disk is that of the agent's
    folder."""

    cpu: Amount | None = None  # share of all cores, 0 to 1, since the sample before
    load: Amount | None = None  # processes that run or want to, averaged over a minute
    memory_gb: Amount | None = None
    memory_total_gb: Amount | None = None
    disk_gb: Amount | None = None
    disk_total_gb: Amount | None = None
    launches: Annotated[tuple[LaunchUsage, ...], Field(max_length=1000)] = ()

    @property
    def nearly_full(self) -> dict[str, float]:
        """The used share of the disk and of the memory, where it is nearly all of it."""
        found = {"disk": (self.disk_gb, self.disk_total_gb), "memory": (self.memory_gb, self.memory_total_gb)}
        shares = {name: used / total for name, (used, total) in found.items() if used is not None and total}
        return {name: share for name, share in shares.items() if share >= NEARLY_FULL}


@_message
class Heartbeat:
    """The agent is alive. Utilization (0 to 1) and used memory of each accelerator, where they can be measured. `limits`: what
    control groups limit on the node ("cpu,memory" or "none"); agents of former versions do not say. `host`: a new sample; not
    in each heartbeat, and only for a control plane that has asked for it in its welcome."""

    utilization: tuple[Amount, ...] = ()
    memory_gb: tuple[Amount, ...] = ()
    limits: Annotated[str, Field(max_length=64)] = ""
    host: HostUsage | None = None

    def after(self, former: Heartbeat | None) -> Heartbeat:
        """Return this heartbeat with the last sample of the host."""
        return self if self.host is not None or former is None or former.host is None else replace(self, host=former.host)


@_message
class ReportBatch:
    """Reports about jobs; sent again until they are acknowledged."""

    sequence: Count
    reports: tuple[Report, ...]


@_message
class LogChunk:
    """The answer to the `LogRequest` of the same number: the bytes at `offset` in base64, or why there are none."""

    number: Count
    offset: Count = 0
    data: str = ""
    problem: Text = ""


@_message
class LogTail:
    """The end of a worker's log, from `offset` on, in base64. A temporary agent sends it before it leaves."""

    job: Count
    generation: Count
    rank: Rank
    offset: Count = 0
    data: Annotated[str, Field(max_length=MAX_TAIL)] = ""


@_message
class CodeRequest:
    """A launch waits for this archive: send it from `offset` on."""

    digest: Annotated[str, Field(max_length=64)]
    offset: Count = 0


@_message
class Leaving:
    """The agent is about to end, and lets its jobs save and stop. It starts no launch any more."""


@_message
class Left:
    """The last message of an agent that was leaving: nothing runs on its node. It is answered by the end of the stream."""


@_message
class Welcome:
    """The agent's lease: after `lease_s` without an answer to a heartbeat it stops its jobs; `grace_s` later none is left."""

    lease_s: float
    grace_s: float = 35.0
    journal: str = ""  # that job numbers belong to from now on
    credential: str = ""  # a token for this node only, in place of the agent's from now on; empty: none is given
    incarnation: int = 0  # for the agent's next hello; 0: none is issued
    wants_host: bool = False  # heartbeats may say what is used of the host


@_message
class JournalMismatch:
    """The agent's launches belong to another journal, where the same numbers mean other jobs: connect again without them."""

    journal: str


@_message
class LeaseRenewed:
    """The lease starts again at the moment when the answered heartbeat was sent."""


@_message
class OrderBatch:
    """Orders, to be carried out in this sequence."""

    orders: tuple[Order, ...]


@_message
class Acknowledged:
    """The reports of this sequence number are in the journal."""

    sequence: int


@_message
class LogRequest:
    """Read a worker's log: at most `limit` bytes from `offset` on; a negative offset counts from the end. With `rank` -1, read
    the kept output `path`, or the list of outputs for an empty path."""

    number: int
    job: int
    generation: int
    rank: int
    offset: int
    limit: int
    path: str = ""


@_message
class CodeChunk:
    """A part of an archive of `size` bytes, in base64, or why it is not available."""

    digest: str
    offset: int = 0
    size: int = 0
    data: str = ""
    problem: str = ""


@_message
class Refused:
    """The control plane refuses this agent; connecting again without a change will not help."""

    why: str


FromAgent: TypeAlias = Hello | Heartbeat | ReportBatch | LogChunk | LogTail | CodeRequest | Leaving | Left
FromControl: TypeAlias = Welcome | LeaseRenewed | JournalMismatch | OrderBatch | Acknowledged | LogRequest | CodeChunk | Refused
Message: TypeAlias = FromAgent | FromControl

_KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Message)}
_PARTS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in (*get_args(Order), *get_args(Report))}
_ADAPTERS = {name: TypeAdapter(kind) for name, kind in {**_KINDS, **_PARTS}.items()}


def encode_message(message: Message) -> bytes:
    """The JSON bytes of a message."""
    return orjson.dumps(_plain(message))


def decode_message(data: bytes) -> Message:
    """The message of some bytes. Raises `BadMessage`: it is too large, not JSON, not a message of this version, or has a value
    out of range."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"a message of {len(data):,} bytes; at most {MAX_MESSAGE_BYTES:,}")
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadMessage(f"not JSON: {error}") from None
    if isinstance(record, dict):
        for name in ("reports", "orders"):
            if isinstance(parts := record.get(name), list):
                record[name] = tuple(_value(part, _PARTS) for part in parts)
    message: Message = _value(record, _KINDS)
    return message


def _plain(value: Any) -> Any:
    """The JSON value; messages, orders and reports carry their type under "is"."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    record = {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Welcome | Heartbeat):  # the other side may be of a former version, and not know it
        for name in ("credential", "incarnation", "wants_host", "host"):
            if name in record and not record[name]:
                del record[name]
    if isinstance(value, Metric) and not math.isfinite(value.value):
        record["value"] = str(value.value)  # JSON has no such number
    name = type(value).__name__.lower()
    return {"is": name, **record} if name in _ADAPTERS else record


def _value(record: Any, kinds: dict[str, type[Any]]) -> Any:
    if not isinstance(record, dict) or str(record.get("is")) not in kinds:
        raise BadMessage(f"not one of {', '.join(sorted(kinds))}")
    name = str(record.pop("is"))
    try:
        return _ADAPTERS[name].validate_python(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadMessage(f"a damaged {name}: {where}: {first['msg']}") from None
