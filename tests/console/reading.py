"""A client of the live stream, which keeps what a page would keep."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime" / "control"))

PATIENCE_S = 120.0


class Page:
    """What a page has: rows of jobs and nodes by number, and the last decisions."""

    def __init__(self) -> None:
        self.jobs: dict[int, dict[str, Any]] = {}
        self.nodes: dict[int, dict[str, Any]] = {}
        self.decisions: list[dict[str, Any]] = []
        self.scheduler: dict[str, Any] = {}
        self.types: list[str] = []
        self.last_id = ""
        self.names: list[str] = []  # of the events

    def take(self, name: str, last_id: str, data: dict[str, Any]) -> None:
        self.names.append(name)
        self.last_id = last_id
        if name == "reset":
            self.jobs, self.nodes, self.decisions = {}, {}, []
            self.job_columns, self.node_columns, self.types = data["job_columns"], data["node_columns"], data["types"]
        for row in data["jobs"]:
            self.jobs[row[0]] = dict(zip(self.job_columns, row, strict=True))
        for row in data["nodes"]:
            self.nodes[row[0]] = dict(zip(self.node_columns, row, strict=True))
            if self.nodes[row[0]]["state"] == "removed":
                del self.nodes[row[0]]
        self.decisions = [*data["decisions"], *self.decisions][:20]
        self.scheduler = data.get("scheduler", self.scheduler)


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The events of a stream, by name and id; comments are left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields and not line:
            yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}


@contextmanager
def live(url: str, token: str = "", last_id: str = "", cookie: str = "", since: str = "") -> Iterator[Iterator[Any]]:
    """Open a stream, with a token or the cookie of a session."""
    headers = {"Authorization": f"Bearer {token}"} if token else {"Cookie": cookie}
    headers |= {"Last-Event-ID": last_id} if last_id else {}
    params = {"since": since} if since else {}
    timeout = httpx.Timeout(PATIENCE_S)
    with httpx.stream("GET", f"{url}/v1/live", headers=headers, params=params, timeout=timeout) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer.iter_lines())


def fresh(url: str, token: str, last_id: str = "") -> Page:
    """A page after its first event."""
    page = Page()
    with live(url, token, last_id) as found:
        page.take(*next(found))
    return page
