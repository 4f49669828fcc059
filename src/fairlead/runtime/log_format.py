"""Log lines as text or JSON: one line per record, with its fields. Tokens are masked wherever they come from."""

from __future__ import annotations

import atexit
import logging
import queue
import re
import sys
import time
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Literal

import orjson

LogFormat = Literal["text", "json"]

_TOKEN = re.compile(r"fl_[A-Za-z0-9_-]{16,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a terminal would obey them
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


MAX_QUEUED = 10_000
FLUSH_WITHIN_S = 2.0


def log_to_stderr(form: LogFormat, level: int = logging.INFO) -> None:
    """Log to standard error in this form. A thread writes, so that a blocked reader costs lines and does not stop the
    process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    queued = _DroppingQueueHandler(queue.Queue(MAX_QUEUED))
    QueueListener(queued.queue, handler).start()
    atexit.register(queued.drain)
    logging.basicConfig(level=level, handlers=[queued], force=True)
    for noisy in ("httpx", "httpcore", "grpc", "asyncio"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


class _DroppingQueueHandler(QueueHandler):
    """Passes records to another thread, or drops them while its queue is full."""

    def __init__(self, records: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(records)
        self._records, self._lost = records, 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record itself: it stays in this process."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record, and before it the number of lost ones."""
        try:
            if self._lost:
                lost = {"msg": "lines were lost", "levelname": "WARNING", "levelno": logging.WARNING, "lines": self._lost}
                self.queue.put_nowait(logging.makeLogRecord(lost))
                self._lost = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._lost += 1

    def drain(self) -> None:
        """Wait until queued records are written, at the end of the process."""
        deadline = time.monotonic() + FLUSH_WITHIN_S
        while not self._records.empty() and time.monotonic() < deadline:
            time.sleep(0.01)


class JsonLines(logging.Formatter):
    """`{"time": …, "level": …, "event": …}` and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()} | _fields(record)
        if record.exc_info:
            line["problem"] = self.formatException(record.exc_info)
        return _TOKEN.sub("fl_…", orjson.dumps(line, default=str).decode())


class TextLines(logging.Formatter):
    """Time, level, event, field=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_text(value)}" for name, value in _fields(record).items())
        text = f"{_time(record)} {record.levelname.lower()} {record.getMessage()}{fields}"
        problem = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return _TOKEN.sub("fl_…", _CONTROL.sub(lambda found: repr(found[0])[1:-1], text) + problem)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _text(value: Any) -> str:
    """A value without spaces as it is, others quoted."""
    plain = isinstance(value, list) and all(isinstance(one, int | float) for one in value)
    text = f"[{','.join(map(str, value))}]" if plain else str(value)
    return text if text and not re.search(r"[\s\"=]", text) else orjson.dumps(text).decode()
