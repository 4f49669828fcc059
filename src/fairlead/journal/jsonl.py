"""A journal as JSON lines in a file.

The first line is the `journal_opened` event with the version of the format. A file of version 1 begins with `opened`; lines
that are appended to it are of the present version. A last line that was cut off while it was written was never
acknowledged and is skipped; damage anywhere else is an error that names the line."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import orjson

from fairlead.core.errors import JournalError, JournalInUse
from fairlead.core.events import Event
from fairlead.engine.codec import READABLE_VERSIONS, VERSION, decode, encode_line
from fairlead.files import is_stream

_OPENED = "journal_opened"
_BEGINNINGS = (b'{"event":"journal_opened"', b'{"e":"opened"')  # of the first line, as the codec writes it and once did


class JsonlJournal:
    """One JSON object per line. With `fresh=True` the file is emptied first; otherwise events are appended.

    With `durable`, `commit()` returns when the events are on the disk, and no other process may write the file. Without it, the
    events are there when the journal is closed, which is enough for a simulation.
    """

    def __init__(self, path: Path | str, *, fresh: bool = False, durable: bool = False) -> None:
        self.path, self._durable = Path(path), durable
        self._file: IO[bytes] | None = None
        try:
            with self._write_errors():
                mode = "wb" if fresh and not durable else "ab"
                self._file = open(self.path, mode, buffering=1 << 20)  # noqa: SIM115 - closed by close()
                if durable:
                    self._lock()  # before anything is removed that another process may be writing
                if not fresh:
                    self._cut_torn_line()
                elif durable:
                    self._file.truncate(0)
        except JournalError:
            self._release()
            raise

    def append(self, event: Event) -> None:
        if self._file is None:
            raise JournalError(f"{self.path}: the journal is closed")
        try:  # not `_write_errors`: a context manager takes as long as encoding an event
            self._file.write(encode_line(event))
        except OSError as error:
            raise self._write_error(error) from error

    def commit(self) -> None:
        if self._durable and self._file is not None:
            self.flush()
            with self._write_errors():
                os.fsync(self._file.fileno())

    def flush(self) -> None:
        if self._file is not None:
            with self._write_errors():
                self._file.flush()

    def __iter__(self) -> Iterator[Event]:
        self.flush()
        return read_events(self.path)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._release()

    def _release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with self._write_errors():  # the file is closed even if this fails
                file.close()

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> JournalError:
        return JournalError(f"{self.path}: cannot write the journal: {error.strerror or error}")

    def _lock(self) -> None:
        """The system releases the lock when the file is closed or its process ends."""
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse(f"{self.path}: another process writes this journal; end it first") from None

    def _cut_torn_line(self) -> None:
        """Remove a last line without its end, so that nothing is appended to it. A file that is no journal is not changed."""
        with open(self.path, "rb+") as file:
            if (first := file.readline()).endswith(b"\n"):
                _check_header(self.path, first)
            elif not any(first[: len(start)] == start[: len(first)] for start in _BEGINNINGS):
                raise _no_journal(self.path)
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
    """Yield the events of a journal file one by one, without holding them all."""
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


def _check_header(path: Path | str, line: bytes) -> None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = None
    if not isinstance(record, dict) or (record.get("event"), record.get("e")) not in ((_OPENED, None), (None, "opened")):
        raise _no_journal(path)
    if type(record.get("version")) is not int or record["version"] not in READABLE_VERSIONS:
        raise JournalError(
            f"{path}:1: the journal is of version {record.get('version')!r}; this Fairlead reads versions up to {VERSION}: use "
            "the Fairlead that wrote it, or simulate again"
        )


def _no_journal(path: Path | str) -> JournalError:
    return JournalError(f"{path}:1: not a journal: expected a '{_OPENED}' event in the first line")
