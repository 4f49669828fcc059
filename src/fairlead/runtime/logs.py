"""Log lines for people or for machines: one line each, with the fields that a record carries. What looks like a token is
blotted out, wherever it came from."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

LogFormat = Literal["text", "json"]

_TOKEN = re.compile(r"fl_[A-Za-z0-9_-]{16,}")
_ORDINARY = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def log_to_stderr(form: LogFormat, level: int = logging.INFO) -> None:
    """From now on, all that this process logs goes to standard error in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore", "grpc", "asyncio"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


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
    text = str(value)
    return text if text and not re.search(r"[\s\"=]", text) else orjson.dumps(text).decode()


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")
