"""What travels between an agent and the control plane, as bytes and back. One stream for each agent: it says hello, beats, and
tells what became of its jobs; it gets orders, and its own lease is renewed by every beat that is answered. It is asked for
pieces of logs, and asks for pieces of code.

A message is one JSON object with its kind under "is". Whatever does not have exactly the fields of its kind is refused; in the
orders and words inside, what a newer peer has added is passed over."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from fairlead.core.errors import FairleadError
from fairlead.runtime.protocol.orders import Ended, Extend, Kill, Launch, Metric, Progress, RenewalRequest, Reroute, Revoke

MAX_MESSAGE_BYTES = 4 << 20
"""Bytes of one message."""

CHUNK_BYTES = 256 << 10
"""Bytes of a log or an archive in one message, so that beats are not held up behind them."""

PROTOCOL_VERSION = 5
"""Of these messages: it changes when an older agent or control plane would misunderstand a newer one."""

SERVICE, METHOD = "fairlead.Agents", "Session"

_STRICT = ConfigDict(extra="forbid")


class BadMessage(FairleadError):
    """Bytes that are no message."""


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Hello:
    """The first word of an agent. `incarnation` grows with every start of the agent on its node: of two, the younger is it.
    `journal` names the one that what it has is about; empty where it has not worked for any yet."""

    node: str
    type: str
    accelerators: int
    incarnation: int
    address: str = "127.0.0.1"
    running: tuple[tuple[int, int], ...] = ()
    journal: str = ""
    version: int = PROTOCOL_VERSION


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I am here. `busy` is the use of each accelerator from 0 to 1, `memory_gb` how much of its memory is taken, where they can
    be measured."""

    utilization: tuple[float, ...] = ()
    memory_gb: tuple[float, ...] = ()


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class ReportBatch:
    """What became of jobs; said again until it is heard."""

    sequence: int
    reports: tuple[Progress | Metric | RenewalRequest | Ended, ...]


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class LogChunk:
    """The answer to `LogRequest` of the same number: what stands at `offset`, in base64; or why there is nothing to read."""

    number: int
    offset: int = 0
    data: str = ""
    problem: str = ""


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class CodeRequest:
    """A launch is waiting for this archive: send it from `offset` on."""

    digest: str
    offset: int = 0


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Welcome:
    """The agent's lease: after `lease_s` without an answer to a beat it stops its jobs, and `grace_s` later none is left."""

    lease_s: float
    grace_s: float = 35.0
    journal: str = ""  # which jobs' numbers are about from now on


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class JournalMismatch:
    """What the agent has is about other jobs of the same numbers: come back without it."""

    journal: str


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """The lease begins anew at the moment at which the beat that this answers was sent."""


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class OrderBatch:
    orders: tuple[Launch | Revoke | Kill | Extend | Reroute, ...]


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Everything up to this sequence is in the journal."""

    sequence: int


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class LogRequest:
    """Somebody wants to read what a worker printed: at most `limit` bytes from `offset` on; below 0, from the end."""

    number: int
    job: int
    generation: int
    rank: int
    offset: int
    limit: int


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class CodeChunk:
    """A part of an archive of `size` bytes, in base64; or why it cannot be had."""

    digest: str
    offset: int = 0
    size: int = 0
    data: str = ""
    problem: str = ""


@with_config(_STRICT)
@dataclass(frozen=True, slots=True)
class Refused:
    """You are not wanted here, and why; trying again as you are will not help."""

    why: str


FromAgent: TypeAlias = Hello | Heartbeat | ReportBatch | LogChunk | CodeRequest
FromControl: TypeAlias = Welcome | LeaseRenewed | JournalMismatch | OrderBatch | Acknowledged | LogRequest | CodeChunk | Refused
Message: TypeAlias = FromAgent | FromControl

_FROM_AGENT = (Hello, Heartbeat, ReportBatch, LogChunk, CodeRequest)
_FROM_CONTROL = (Welcome, JournalMismatch, LeaseRenewed, OrderBatch, Acknowledged, LogRequest, CodeChunk, Refused)
_KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in (*_FROM_AGENT, *_FROM_CONTROL)}
_PARTS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Launch, Revoke, Kill, Extend, Reroute, Progress, Metric, RenewalRequest, Ended)
}
_ADAPTERS = {name: TypeAdapter(kind) for name, kind in {**_KINDS, **_PARTS}.items()}


def encode_message(message: Message) -> bytes:
    return orjson.dumps(_plain(message))


def decode_message(data: bytes) -> Message:
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
    """Values as JSON has them, with their kinds; a task stands where only a task can, and needs no name."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    record = {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Metric) and not math.isfinite(value.value):
        record["value"] = str(value.value)  # JSON has no number for it
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
