"""Records on a node's disk, each read by one schema. A job that runs as the agent's user can write them, so they are not
trusted: a record with other keys, types or ranges counts as missing. So does one that is no plain file, or too large."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import orjson
from pydantic import Field, TypeAdapter

from fairlead.runtime.agent.shim import Exit
from fairlead.runtime.protocol.orders import Count, ExitCode, Text

MAX_RECORD_BYTES = 4 << 20

Nanoseconds: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
Pid: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
MonotonicTime: TypeAlias = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]

_Record = TypeVar("_Record")


class RecordSchema(Generic[_Record]):
    """The schema of a record: a dataclass whose types have bounds."""

    def __init__(self, kind: type[_Record]) -> None:
        self._adapter = TypeAdapter(kind)
        self._names = frozenset(field.name for field in fields(kind))  # type: ignore[arg-type]

    def read(self, path: Path) -> _Record | None:
        """The record in a file; None: there is none that is valid."""
        data = read_plain_file(path)
        try:
            found: Any = orjson.loads(data or b"")
            if not isinstance(found, dict) or not found.keys() <= self._names:
                return None
            return self._adapter.validate_json(data or b"", strict=True)
        except ValueError:
            return None


def read_plain_file(path: Path) -> bytes | None:
    """The content of a plain file; None if it is missing, too large or something else, such as a pipe that would block."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_RECORD_BYTES:
            return None
        with open(file, "rb", closefd=False) as content:
            return content.read(MAX_RECORD_BYTES)
    except OSError:
        return None
    finally:
        os.close(file)


@dataclass(frozen=True, slots=True)
class _ExitRecord:
    """An `Exit` with bounds, which the shim cannot import."""

    code: ExitCode
    at_ns: Nanoseconds
    why: Text = ""
    lost: Count = 0
    permanent: bool = False
    node_fault: bool = False
    asked_ns: Nanoseconds = 0
    signalled_ns: Nanoseconds = 0


_EXIT = RecordSchema(_ExitRecord)


def read_exit(path: Path) -> Exit | None:
    """How a worker ended, as its shim recorded it; None: there is no valid record."""
    found = _EXIT.read(path)
    return None if found is None else Exit(**asdict(found))
