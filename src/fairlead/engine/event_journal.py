"""Where events go before anything acts on them: an append-only list. In memory for studies, as JSON lines in a file to keep.

A file begins with the `opened` event, which carries the format's version. A last line that was cut off while it was written was
never acknowledged and is left out; damage anywhere else is an error that names the line."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

import orjson

from fairlead.core.errors import JournalError
from fairlead.core.events import Event, JournalOpened
from fairlead.engine.codec import VERSION, decode, encode_line
from fairlead.files import is_stream

_BEGINNING = b'{"e":"opened"'  # of every journal's first line, as the codec spells it


@runtime_checkable
class Journal(Protocol):
    """Events in, the same events out, in the same order."""

    def append(self, event: Event) -> None: ...

    def commit(self) -> None:
        """What was appended is kept from now on, as safely as this journal keeps anything."""
        ...

    def __iter__(self) -> Iterator[Event]: ...

    def close(self) -> None: ...


class NoJournal:
    """Forgets everything: for studies that only want the result."""

    def append(self, event: Event) -> None:
        pass

    def commit(self) -> None:
        pass

    def __iter__(self) -> Iterator[Event]:
        return iter(())

    def close(self) -> None:
        pass


class MemoryJournal:
    """A list of events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.events.append(event)

    def commit(self) -> None:
        pass

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self.events))

    def close(self) -> None:
        pass


class JsonlJournal:
    """One JSON object a line. `fresh=True` starts the file anew; otherwise events are appended to what is there.

    With `durable`, `commit()` returns when the events are on the disk, and nobody else may write it meanwhile; without it they
    are there when the journal is closed, which is enough for a simulation.
    """

    def __init__(self, path: Path | str, *, fresh: bool = False, durable: bool = False) -> None:
        self.path, self._durable = Path(path), durable
        self._file: IO[bytes] | None = None
        try:
            mode = "wb" if fresh and not durable else "ab"
            self._file = open(self.path, mode, buffering=1 << 20)  # noqa: SIM115 - closed by close()
            if durable:
                self._lock()  # before anything is taken from what another process may be writing
            if not fresh:
                self._cut_torn_line()
            elif durable:
                self._file.truncate(0)
        except OSError as error:
            self._let_go()
            raise JournalError(f"{self.path}: cannot write the journal: {error.strerror or error}") from error
        except JournalError:
            self._let_go()
            raise

    def append(self, event: Event) -> None:
        if self._file is None:
            raise JournalError(f"{self.path}: the journal is closed")
        try:
            self._file.write(encode_line(event))
        except OSError as error:
            raise JournalError(f"{self.path}: cannot write the journal: {error.strerror or error}") from error

    def commit(self) -> None:
        if self._durable and self._file is not None:
            self.flush()
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                raise JournalError(f"{self.path}: cannot write the journal: {error.strerror or error}") from error

    def flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                raise JournalError(f"{self.path}: cannot write the journal: {error.strerror or error}") from error

    def __iter__(self) -> Iterator[Event]:
        self.flush()
        return read_events(self.path)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # it is closed all the same
                raise JournalError(f"{self.path}: cannot write the journal: {error.strerror or error}") from error

    def _lock(self) -> None:
        """The system lets go of it when the file is closed, or its process ends."""
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(f"{self.path}: another process writes this journal; end it first") from None

    def _cut_torn_line(self) -> None:
        """A line without its end was being written when the writer died; nothing may be glued to it. What is no journal stays
        as it is."""
        with open(self.path, "rb+") as file:
            if (first := file.readline()).endswith(b"\n"):
                _check_header(self.path, first)
            elif first[: len(_BEGINNING)] != _BEGINNING[: len(first)]:
                raise JournalError(f"{self.path}:1: not a journal: expected an 'opened' event in the first line")
            size = file.seek(0, 2)
            while size > 0:
                start = max(0, size - (1 << 16))
                file.seek(start)
                end = file.read(size - start).rfind(b"\n")
                if end >= 0:
                    file.truncate(start + end + 1)
                    return
                size = start
            file.truncate(0)


def read_events(path: Path | str) -> Iterator[Event]:
    """The events of a journal file, one after the other, without holding them all."""
    try:
        if is_stream(path):
            raise JournalError(f"{path}: not a journal: not a regular file")
        file = open(path, "rb")  # noqa: SIM115 - closed below, when the iteration ends
    except OSError as error:
        raise JournalError(f"{path}: cannot read the journal: {error.strerror or error}") from error
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                if number == 1:
                    raise JournalError(f"{path}:1: not a journal: no complete line")
                return  # torn by a crash; never acknowledged
            if number == 1:
                _check_header(path, line)
            try:
                yield decode(line)
            except JournalError as error:
                raise JournalError(f"{path}:{number}: {error}") from error


def opening(path: Path | str) -> JournalOpened:
    """The first event of a journal file."""
    first = next(read_events(path), None)
    if not isinstance(first, JournalOpened):
        raise JournalError(f"{path}:1: not a journal: expected an 'opened' event")
    return first


def _check_header(path: Path | str, line: bytes) -> None:
    try:
        record = orjson.loads(line)
        opened = isinstance(record, dict) and record.get("e") == "opened"
    except orjson.JSONDecodeError:
        opened = False
    if not opened:
        raise JournalError(f"{path}:1: not a journal: expected an 'opened' event in the first line")
    if record.get("version") != VERSION:
        raise JournalError(
            f"{path}:1: the journal is of version {record.get('version')!r}; this Fairlead reads version {VERSION}: use the "
            "Fairlead that wrote it, or make the run anew"
        )
