"""The Python client of a control plane: what the commands for people use, and scripts may.

from fairlead.runtime.http_client import ControlPlaneClient
plane = ControlPlaneClient.found()
plane.submit([{"run": "python train.py"}])
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from fairlead.core.errors import FairleadError
from fairlead.runtime.protocol.code_archive import archive_digest

if TYPE_CHECKING:
    import httpx

# How a log is read from afar: piece after piece, the last lines of it, or on and on from launch to launch.

LOOK_S = 0.5
"""Between two looks at a log that may still grow."""

_LINE = 4096
"""Bytes in which to look for one of the last lines: longer ones are cut."""


def read_logs(
    piece: Callable[[int, int], dict[str, Any]],
    launch: int,
    *,
    tail: int | None = None,
    follow: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """`piece(launch, offset)` is some of a log. What comes out is never empty, and in order. `follow` begins with the launch
    that is asked for (0: the last) and goes on with those after it, until the job ends."""
    offset = 0
    if tail is not None:
        found = _tail(piece, launch, tail)
        launch, offset = found["launch"], found["next"]
        if found["text"]:
            yield found
    while True:
        found = piece(launch, offset)
        launch = launch or found["launch"]
        if found["text"]:
            offset = found["next"]
            yield found
        elif follow and found["over"] and found["launches"] > launch:
            launch, offset = launch + 1, 0
        elif not follow or (found["over"] and found["ended"]):
            return
        else:
            pause(LOOK_S)


def _tail(piece: Callable[[int, int], dict[str, Any]], launch: int, lines: int) -> dict[str, Any]:
    """The last lines there are now; more room is looked at until they are in it."""
    room = _LINE * max(1, lines)
    found = piece(launch, -room)
    begins_whole = found.get("offset", 0) == 0
    while more := (following := piece(found["launch"], found["next"]))["text"] if found["launch"] else "":
        found = {**following, "text": found["text"] + more}
    kept = found["text"].splitlines(keepends=True)
    if not begins_whole:
        kept = kept[1:] or kept  # the first was cut
    return {**found, "text": "".join(kept[-lines:] if lines else [])}


URL, TOKEN, AUTHORITY = "FAIRLEAD_URL", "FAIRLEAD_TOKEN", "FAIRLEAD_CA"
AWAY = 409  # what a log is whose node does not answer
FORBIDDEN = 403  # what only an admin may do
MISSING = 404
LATER = 503  # what cannot be answered now
PATIENCE_S = 60.0
LOOKED_WITHIN_S = 60.0  # longer than for anything else is waited for looks ahead, of which it may take two
OVERTAKEN = 409  # what a switch is where somebody else has switched since
CONNECTION = Path(".fairlead") / "connection.json"
"""Where `fairlead up` writes how it is reached."""


class RefusedRequest(FairleadError):
    """The control plane answered, and said no."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


class Unreachable(FairleadError):
    """No control plane answers."""


def passes(problem: Exception) -> bool:
    """Whether what was asked may be answered later, if it is asked again."""
    return isinstance(problem, Unreachable) or (isinstance(problem, RefusedRequest) and problem.status == LATER)


@dataclass(frozen=True)
class ControlPlaneClient:
    url: str
    token: str = ""
    timeout_s: float = 40.0
    authority: str = ""  # file of the certificate authority that vouches for an https address; empty: the system's

    @classmethod
    def found(cls) -> ControlPlaneClient:
        """By FAIRLEAD_URL, FAIRLEAD_TOKEN and, for https, FAIRLEAD_CA; or the one that `fairlead up` started in this
        directory or one above it, as its admin unless FAIRLEAD_TOKEN says as whom."""
        if url := os.environ.get(URL):
            return cls(url, os.environ.get(TOKEN, ""), authority=os.environ.get(AUTHORITY, ""))
        for folder in (Path.cwd(), *Path.cwd().parents):
            if (folder / CONNECTION).is_file():
                return cls._in(folder / CONNECTION)
        raise Unreachable(
            f"no control plane is known: start one with 'fairlead up' in this directory, or set {URL} and {TOKEN}"
            " (with --root, 'fairlead up' says to what)"
        )

    @classmethod
    def _in(cls, file: Path) -> ControlPlaneClient:
        try:
            told = orjson.loads(file.read_bytes())
            return cls(str(told["url"]), os.environ.get(TOKEN) or str(told["token"]), authority=str(told.get("ca", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise Unreachable(f"{file}: not what `fairlead up` writes; remove it, or set {URL} and {TOKEN}") from None

    def submit(self, jobs: Sequence[Mapping[str, Any]], *, dry_run: bool = False) -> list[dict[str, Any]]:
        return list(self._ask("POST", "/v1/jobs", {"jobs": list(jobs), "dry_run": dry_run})["jobs"])

    def jobs(self, phases: Sequence[str] = (), *, everybody: bool = False) -> list[dict[str, Any]]:
        query = "&".join([*(f"phase={phase}" for phase in phases), *(["everybody=true"] if everybody else [])])
        return list(self._ask("GET", f"/v1/jobs?{query}")["jobs"])

    def job(self, name: str) -> dict[str, Any]:
        return self._ask("GET", f"/v1/jobs/{_part(name)}")

    def cancel(self, name: str) -> dict[str, Any]:
        return self._ask("DELETE", f"/v1/jobs/{_part(name)}")

    def send_code(self, archive: bytes) -> str:
        """An archive (see `pack`) with a job's code, sent unless it was before; the digest is the job's `code`."""
        digest = archive_digest(archive)
        try:
            self._ask("GET", f"/v1/code/{digest}")
        except RefusedRequest as answer:
            if answer.status != MISSING:
                raise
            self._ask("PUT", f"/v1/code/{digest}", content=archive)
        return digest

    def log_piece(self, name: str, *, launch: int = 0, rank: int = 0, offset: int = 0) -> dict[str, Any]:
        """Some of what a worker printed in a launch (0: the last), from `offset` on (below 0: from the end)."""
        return self._ask("GET", f"/v1/jobs/{_part(name)}/logs?launch={launch}&rank={rank}&offset={offset}")

    def logs(
        self, name: str, *, launch: int = 0, rank: int = 0, tail: int | None = None, follow: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Pieces of what a worker printed, whole or its last lines; with `follow` until the job ends, launch after launch. A
        node that is away is waited for then, until the job goes on elsewhere; a control plane that is, for a minute."""
        job = str(self.job(name)["number"])  # the name may be another's when this one has ended
        heard = time.monotonic()

        def piece(at: int, offset: int) -> dict[str, Any]:
            nonlocal heard
            try:
                ask = self._log_piece_or_nothing if follow else self.log_piece
                found = ask(job, launch=at, rank=rank, offset=offset)
            except (Unreachable, RefusedRequest) as problem:
                if not follow or not passes(problem) or time.monotonic() > heard + PATIENCE_S:
                    raise
                return _nothing(at, offset)
            heard = time.monotonic()
            return found

        return read_logs(piece, launch, tail=tail, follow=follow)

    def _log_piece_or_nothing(self, job: str, *, launch: int, rank: int, offset: int) -> dict[str, Any]:
        """The same as `log_piece`, but of a node that is away: nothing for now."""
        try:
            return self.log_piece(job, launch=launch, rank=rank, offset=offset)
        except RefusedRequest as answer:
            if answer.status != AWAY:
                raise
            told = self.job(job)
            ended = told["ended_s"] is not None
            over = ended or told["starts"] > launch
            return {**_nothing(launch, offset), "launches": told["starts"], "over": over, "ended": ended}

    def nodes(self) -> list[dict[str, Any]]:
        return list(self._ask("GET", "/v1/nodes")["nodes"])

    def rates(self) -> dict[str, Any]:
        """Throughputs as they were measured, and the cluster's types."""
        return self._ask("GET", "/v1/rates")

    def overview(self) -> dict[str, Any]:
        """The cluster at one moment: who holds which accelerator, the queue, the last decisions."""
        return self._ask("GET", "/v1/overview")

    def drain(self, node: str, *, undo: bool = False) -> dict[str, Any]:
        """Leave a node, or use it again; needs an admin's token."""
        return self._ask("DELETE" if undo else "PUT", f"/v1/nodes/{_part(node)}/drain", content=b"")

    def usage(self) -> list[dict[str, Any]]:
        return list(self._ask("GET", "/v1/usage")["usage"])

    def scheduler(self) -> dict[str, Any]:
        return dict(self._ask("GET", "/v1/scheduler")["scheduler"])

    def trouble(self) -> str:
        """What keeps the scheduler from deciding; empty where nothing does."""
        return str(self._ask("GET", "/v1/scheduler")["trouble"])

    def switch(
        self, scheduler: Mapping[str, Any], why: str = "", *, instead_of: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Another scheduler. With `instead_of`, only where that one still decides; otherwise it is refused with `OVERTAKEN`."""
        body: dict[str, Any] = {"scheduler": dict(scheduler), "why": why}
        if instead_of is not None:
            body["instead_of"] = dict(instead_of)
        return dict(self._ask("POST", "/v1/scheduler", body)["scheduler"])

    def when(self) -> dict[str, Any]:
        """When one's jobs should run, as the control plane sees it, looking ahead itself."""
        return replace(self, timeout_s=self.timeout_s + LOOKED_WITHIN_S)._ask("GET", "/v1/when")

    def state(self) -> tuple[float, bytes]:
        """The second of this moment, and the whole state as a journal's snapshots spell it; needs an admin's token."""
        answer = self._answer("GET", "/v1/state")
        return float(answer.headers["fairlead-now"]), answer.content

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content: bytes | None = None
    ) -> dict[str, Any]:
        told: dict[str, Any] = self._answer(method, path, body, content=content).json()
        return told

    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content: bytes | None = None
    ) -> httpx.Response:
        if not self.token or not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise Unreachable(
                f"{TOKEN}: expected a token, as `fairlead token` makes them; none is set, or it has other letters"
            )
        headers = {"Authorization": f"Bearer {self.token}"}
        import httpx  # of the extra `cluster`; commands that ask nobody do without

        try:
            answer = httpx.request(
                method,
                self.url + path,
                json=body,
                content=content,
                headers=headers,
                timeout=self.timeout_s,
                verify=self._trust(),
            )
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise Unreachable(f"{self.url}: {problem}; is the control plane running?") from None
        except (TypeError, ValueError) as problem:
            raise RefusedRequest(422, f"it cannot be sent: {problem}") from None
        if answer.is_success:
            return answer
        if answer.status_code == 401:  # said for people; what the API says is for whoever writes a client
            where = f"{TOKEN}, or what `fairlead up` wrote"
            raise RefusedRequest(401, f"{self.url} does not take this token ({where}); `fairlead token add` makes one")
        raise RefusedRequest(answer.status_code, _why(answer))

    def _trust(self) -> ssl.SSLContext | bool:
        if not self.url.lower().startswith("https:"):
            return False  # nobody to be believed; reading the system's authorities would take longer than the answer
        if not self.authority:
            return True
        try:
            return ssl.create_default_context(cafile=self.authority)
        except (ssl.SSLError, OSError) as problem:
            raise Unreachable(f"{self.authority}: not a certificate authority's PEM file ({problem})") from None


def _nothing(launch: int, offset: int) -> dict[str, Any]:
    """A piece of a log in which nothing stands; there may be more."""
    return {"launch": launch, "launches": launch, "over": False, "ended": False, "text": "", "next": offset}


def _part(name: str) -> str:
    """A name as one part of a path, which must not lead anywhere else: `cancel ../nodes/n1/drain` would end a drain."""
    if name in ("", ".", "..") or "/" in name:
        raise RefusedRequest(MISSING, f"there is nothing called {name[:80]!r}")
    return quote(name, safe="")


def _why(answer: httpx.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
    return str(detail)
