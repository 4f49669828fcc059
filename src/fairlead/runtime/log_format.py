"""Log lines for people or for machines: one line each, with the fields that a record carries. What looks like a token is
blotted out, wherever it came from."""

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
_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


MOST_WAITING = 10_000
PATIENCE_S = 2.0


def log_to_stderr(form: LogFormat, level: int = logging.INFO) -> None:
    """From now on, all that this process logs goes to standard error in this form. A thread of its own writes it: where nobody
    reads, lines are lost, and the scheduler goes on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    beside = _Beside(queue.Queue(MOST_WAITING))
    QueueListener(beside.queue, handler).start()
    atexit.register(beside.drain)
    logging.basicConfig(level=level, handlers=[beside], force=True)
    for noisy in ("httpx", "httpcore", "grpc", "asyncio"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


class _Beside(QueueHandler):
    """Puts records where another thread takes them, or drops them where that is full."""

    def __init__(self, waiting: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(waiting)
        self._waiting, self._lost = waiting, 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # it stays in this process

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._lost:
                self.queue.put_nowait(_of_lost_ones(self._lost))
                self._lost = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._lost += 1

    def drain(self) -> None:
        """Before the process ends: what waits is written, if somebody reads it."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._waiting.empty() and time.monotonic() < deadline:
            time.sleep(0.01)


def _of_lost_ones(count: int) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": "lines were lost", "levelname": "WARNING", "levelno": logging.WARNING, "lines": count})


class JsonLines(logging.Formatter):
    """`{"time": …, "level": …, "event": …}` and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _moment(record), "level": record.levelname.lower(), "event": record.getMessage()} | _fields(record)
        if record.exc_info:
            line["problem"] = self.formatException(record.exc_info)
        return blotted(orjson.dumps(line, default=str).decode())


class TextLines(logging.Formatter):
    """The same for people: time, level, what happened, field=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_spelled(value)}" for name, value in _fields(record).items())
        text = f"{_moment(record)} {record.levelname.lower()} {record.getMessage()}{fields}"
        problem = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return blotted(_one_line(text) + problem)


def blotted(text: str) -> str:
    return _TOKEN.sub("fl_…", text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _ORDINARY}


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _spelled(value: Any) -> str:
    """A value without blanks stands as it is; a list of numbers is one."""
    plain = isinstance(value, list) and all(isinstance(one, int | float) for one in value)
    text = f"[{','.join(map(str, value))}]" if plain else str(value)
    return text if text and not re.search(r"[\s\"=]", text) else orjson.dumps(text).decode()


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")
