"""The Python client of a control plane, for commands and scripts:

from fairlead.runtime.http_client import ControlPlaneClient
plane = ControlPlaneClient.from_environment()
plane.submit([{"run": "python train.py"}])
"""

from __future__ import annotations

import hashlib
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import orjson

from fairlead.core.errors import NOT_FOUND, REFUSED, UNREACHABLE, FairleadError
from fairlead.files import why_unsafe
from fairlead.runtime.log_chunks import empty_chunk, read_logs
from fairlead.runtime.protocol.code_archive import archive_digest

if TYPE_CHECKING:
    import httpx

URL, TOKEN, AUTHORITY = "FAIRLEAD_URL", "FAIRLEAD_TOKEN", "FAIRLEAD_CA"
UNAUTHORIZED, FORBIDDEN, MISSING, CONFLICT, TOO_MANY, UNAVAILABLE, FULL = 401, 403, 404, 409, 429, 503, 507
_EXIT_CODES = dict.fromkeys((UNAUTHORIZED, FORBIDDEN, CONFLICT, FULL), REFUSED)
_EXIT_CODES |= {MISSING: NOT_FOUND, TOO_MANY: UNREACHABLE, UNAVAILABLE: UNREACHABLE}
MAX_RETRY_AFTER_S = 10.0
FOLLOW_WITHOUT_ANSWER_S = 60.0  # how long to follow a log while no control plane answers
STANDBY_HEADER = "fairlead-standby"  # in the answers of a control plane that waits to take over
CONNECT_WITHIN_S = 5.0  # to one of several addresses
TAKEOVER_WITHIN_S = 30.0  # how long a request waits for a standby to take over
_last_good: dict[str, str] = {}  # by addresses: the one that answered last
FORECAST_WITHIN_S = 60.0  # what a forecast may take longer than other requests; it may need two simulations
REPEATABLE = ("cancel", "hold", "release")  # changes of jobs
CHANGES_WITHIN_S = 60.0  # what a change of many jobs may take longer
CONNECTION = Path(".fairlead") / "connection.json"  # where `fairlead up` writes how to connect
MAX_SELECTED, MAX_PATTERNS_SELECTED, PAGE = 100, 20, 1000  # words in one request; jobs in one answer when all are asked for


class RefusedRequest(FairleadError):
    """The control plane refused a request."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.exit_code = status, _EXIT_CODES.get(status, self.exit_code)
        super().__init__(why)


class Unreachable(FairleadError):
    """No control plane answers."""

    exit_code = UNREACHABLE


def is_temporary(problem: Exception) -> bool:
    """Return whether a request may succeed later."""
    return isinstance(problem, Unreachable) or getattr(problem, "status", 0) in (TOO_MANY, UNAVAILABLE)


@dataclass(frozen=True)
class ControlPlaneClient:
    """A connection to one control plane. `url` may have several addresses, with commas between them: they are tried in turn,
    first the one that answered last. `authority` is the certificate authority's file for https; empty: the system's."""

    url: str
    token: str = ""
    timeout_s: float = 40.0
    authority: str = ""

    @classmethod
    def from_environment(cls) -> ControlPlaneClient:
        """Connect by FAIRLEAD_URL, FAIRLEAD_TOKEN and FAIRLEAD_CA, or to the cluster of `fairlead up` in this directory or
        above. Raises `Unreachable`: there is neither."""
        if url := os.environ.get(URL):
            return cls(url, os.environ.get(TOKEN, ""), authority=os.environ.get(AUTHORITY, ""))
        problem = ""
        for folder in (Path.cwd(), *Path.cwd().parents):
            if (folder / CONNECTION).is_file():
                if not (doubt := why_unsafe(folder / CONNECTION)):
                    return cls._in(folder / CONNECTION)
                problem = problem or f"; {doubt}, so it is not used"
        raise Unreachable(
            f"no control plane here: run 'fairlead up' in this directory, or set {URL} and {TOKEN}"
            f" (with --root, 'fairlead up' prints their values){problem}"
        )

    @classmethod
    def _in(cls, file: Path) -> ControlPlaneClient:
        if (given := os.environ.get(TOKEN)) == "":  # the token of `fairlead up` would have more rights than the missing one
            raise Unreachable(f"{TOKEN} is set, but empty: unset it, or set it to a token")
        try:
            read = orjson.loads(file.read_bytes())
            found = cls(str(read["url"]), given or str(read["token"]), authority=str(read.get("ca", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise Unreachable(f"{file}: not a file of `fairlead up`; remove it, or set {URL} and {TOKEN}") from None
        if given and not _is_issued(given, file.with_name("tokens.json")):  # it may be for another cluster: do not send it
            raise RefusedRequest(UNAUTHORIZED, f"{_unaccepted(found.url)}. For another cluster, set {URL} too")
        return found

    def submit(self, jobs: Sequence[Mapping[str, Any]], *, dry_run: bool = False) -> list[dict[str, Any]]:
        """Submit jobs, or only check them and forecast when they would start."""
        more_s = FORECAST_WITHIN_S * dry_run
        return list(self._ask("POST", "/v1/jobs", {"jobs": list(jobs), "dry_run": dry_run}, more_s=more_s)["jobs"])

    def jobs(self, phases: Sequence[str] = (), *, all_users: bool = False) -> list[dict[str, Any]]:
        """Return jobs, of all users for an admin."""
        query = "&".join([*(f"phase={phase}" for phase in phases), *(["all_users=true"] if all_users else [])])
        return list(self._ask("GET", f"/v1/jobs?{query}")["jobs"])

    def find_jobs(
        self, words: Sequence[str] = (), *, user: str = "", phases: Sequence[str] = (), array: str = "", all_users: bool = False
    ) -> list[dict[str, Any]]:
        """Return all jobs that words mean, in the order of their numbers: names, numbers, patterns such as `train-*`, arrays,
        members such as `sweep[0-4]`. Without words, all your jobs. Raises `RefusedRequest` (404): no job matches a word."""
        given = [("user", user), ("array", array), ("all_users", "true" if all_users else "")]
        filters = [(key, value) for key, value in [*given, *(("phase", phase) for phase in phases)] if value]
        found: dict[int, dict[str, Any]] = {}
        size = MAX_PATTERNS_SELECTED if any("*" in word or "?" in word for word in words) else MAX_SELECTED
        for begin in range(0, max(1, len(words)), size):
            selected = [("select", word) for word in words[begin : begin + size]]
            page, start = list[dict[str, Any]](), 0
            while not start or len(page) == PAGE:
                query = urlencode([*filters, *selected, ("from_number", start), ("limit", PAGE)])
                page = self._ask("GET", f"/v1/jobs?{query}")["jobs"]
                found |= {job["number"]: job for job in page}
                start = page[-1]["number"] + 1 if page else 1
        return [job for _, job in sorted(found.items())]

    def job(self, name: str) -> dict[str, Any]:
        """Return one job, by name or number."""
        return self._ask("GET", f"/v1/jobs/{self._job(name)}")

    def cancel(self, name: str) -> dict[str, Any]:
        """Cancel a job."""
        return self._ask("DELETE", f"/v1/jobs/{self._job(name)}")

    def hold(self, name: str) -> dict[str, Any]:
        """Hold a waiting job."""
        return self._ask("PUT", f"/v1/jobs/{self._job(name)}/hold", content=b"")

    def release(self, name: str) -> dict[str, Any]:
        """Release a held job."""
        return self._ask("DELETE", f"/v1/jobs/{self._job(name)}/hold")

    def requeue(self, name: str, *, hold: bool = False) -> dict[str, Any]:
        """Put a running or ended job back into the queue, and hold it there if `hold`."""
        return self._ask("POST", f"/v1/jobs/{self._job(name)}/requeue", {"hold": hold})

    def update(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of a job, as in a task file: name, account, priority, weight, time_limit_s, deadline_s, retries."""
        return self._ask("PATCH", f"/v1/jobs/{self._job(name)}", dict(changes))

    def change_jobs(self, change: str, names: Sequence[str | int], **more: Any) -> list[dict[str, Any] | RefusedRequest]:
        """Cancel, hold, release, requeue (with `hold`) or update (`fields`) jobs. Return the answer or the error of each."""
        found: list[dict[str, Any]] = []
        for begin in range(0, len(names), PAGE):
            asked = {"change": change, "jobs": list(names[begin : begin + PAGE]), **more}
            found += self._ask("POST", "/v1/jobs/changes", asked, more_s=CHANGES_WITHIN_S)["results"]
        return [RefusedRequest(one["error"]["status"], one["error"]["detail"]) if "error" in one else one for one in found]

    def send_code(self, archive: bytes) -> str:
        """Send an archive with a job's code, unless it is stored already; return the digest for the job's `code`."""
        digest = archive_digest(archive)
        try:
            self._ask("GET", f"/v1/code/{digest}")
        except RefusedRequest as answer:
            if answer.status != MISSING:
                raise
            self._ask("PUT", f"/v1/code/{digest}", content=archive)
        return digest

    def log_chunk(self, name: str, *, launch: int = 0, rank: int = 0, offset: int = 0) -> dict[str, Any]:
        """Return part of a worker's log of a launch (0: the last), from `offset` on (below 0: from the end)."""
        return self._ask("GET", f"/v1/jobs/{self._job(name)}/logs?launch={launch}&rank={rank}&offset={offset}")

    def logs(
        self, name: str, *, launch: int = 0, rank: int = 0, tail: int | None = None, follow: bool = False, poll_s: float = 0.0
    ) -> Iterator[dict[str, Any]]:
        """Yield a worker's log, or its last lines; with `follow` until the job ends, launch after launch. An unreachable node
        is then waited for until the job resumes elsewhere; a control plane, for a minute. `poll_s`: see `read_logs`."""
        job = str(self.job(name)["number"])  # the name may belong to another job later
        answered = time.monotonic()

        def chunk(at: int, offset: int) -> dict[str, Any]:
            nonlocal answered
            try:
                found = self.log_chunk(job, launch=at, rank=rank, offset=offset)
            except (Unreachable, RefusedRequest) as problem:
                if follow and isinstance(problem, RefusedRequest) and problem.status == CONFLICT:  # its node is unreachable
                    record = self.job(job)
                    ended = record["ended_s"] is not None
                    over = ended or record["starts"] > at
                    found = {**empty_chunk(at, offset), "launches": record["starts"], "over": over, "ended": ended}
                elif not follow or not is_temporary(problem) or time.monotonic() > answered + FOLLOW_WITHOUT_ANSWER_S:
                    raise
                else:
                    return empty_chunk(at, offset)
            answered = time.monotonic()
            return found

        return read_logs(chunk, launch, tail=tail, follow=follow, poll_s=poll_s)

    def outputs(self, name: str) -> dict[str, Any]:
        """Return the files that a job has kept (`files`: path and size), and what was left out and why (`left_out`)."""
        listed = b""
        while data := self._answer("GET", f"/v1/jobs/{self._job(name)}/outputs?offset={len(listed)}").content:
            listed += data
        return dict(orjson.loads(listed))

    def fetch(self, name: str, to: Path) -> list[Path]:
        """Write the files that a job has kept below a folder, and return their paths. A file appears when it is complete."""
        number, written = str(self.job(name)["number"]), list[Path]()
        for file in self.outputs(number)["files"]:
            inside = PurePosixPath(file["path"])
            if inside.is_absolute() or ".." in inside.parts:
                raise FairleadError(f"{name}: {file['path']!r} is not a path inside a folder")
            place = to / inside
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = place.with_name(f".{place.name}.part")
            with open(draft, "wb") as target:
                query = urlencode({"path": file["path"]})
                while target.tell() < file["size"]:
                    path = f"/v1/jobs/{number}/outputs?{query}&offset={target.tell()}"
                    if not (data := self._answer("GET", path).content):
                        raise FairleadError(f"{name}: {file['path']!r} is shorter than the expected {file['size']:,} bytes")
                    target.write(data)
            draft.replace(place)
            written.append(place)
        return written

    def nodes(self) -> list[dict[str, Any]]:
        """Return all nodes."""
        return list(self._ask("GET", "/v1/nodes")["nodes"])

    def rates(self) -> dict[str, Any]:
        """Return measured throughputs, and the cluster's types."""
        return self._ask("GET", "/v1/rates")

    def overview(self) -> dict[str, Any]:
        """Return the cluster at one moment: the jobs on each accelerator, the queue, the last decisions."""
        return self._ask("GET", "/v1/overview")

    def drain(
        self, node: str, *, undo: bool = False, reason: str = "", start: float | None = None, until: float | None = None
    ) -> dict[str, Any]:
        """Drain a node, from a Unix time (None: now) until another (None: no end); or use it again. For admins."""
        path = f"/v1/nodes/{_part(node)}/drain"
        given = {name: value for name, value in (("reason", reason), ("from", start), ("until", until)) if value}
        bare = undo or not given
        return self._ask("DELETE" if undo else "PUT", path, None if bare else given, content=b"" if bare else None)

    def add_node(self, name: str, type_name: str, accelerators: int, **about: float | str | None) -> dict[str, Any]:
        """Add a node before its agent connects, with `cpus`, `memory_gb`, `gpu_memory_gb`, `rack`; needs an admin token."""
        return self._ask("POST", "/v1/nodes", {"name": name, "type": type_name, "accelerators": accelerators, **about})

    def remove_node(self, name: str) -> dict[str, Any]:
        """Remove a node on which no job runs, and revoke its credential. Needs an admin's token."""
        return self._ask("DELETE", f"/v1/nodes/{_part(name)}")

    def usage(self) -> list[dict[str, Any]]:
        """Return accelerator hours by user and account."""
        return list(self._ask("GET", "/v1/usage")["usage"])

    def history(self, since: float = 0.0, until: float = 1e12) -> list[dict[str, Any]]:
        """Return the jobs that ended within a window of Unix times, in the order of their ends."""
        return list(self._ask("GET", f"/v1/history?since={since!r}&until={until!r}")["jobs"])

    def runs(self, since: float = 0.0, until: float = 1e12) -> dict[str, Any]:
        """Return when jobs held GPUs within a window of Unix times, and since when that is known."""
        return self._ask("GET", f"/v1/runs?since={since!r}&until={until!r}")

    def ledger(self) -> dict[str, Any]:
        """Return the fairness ledger: GPU time received and deserved by user and account, and the totals."""
        return self._ask("GET", "/v1/ledger")

    def journal(self, after: int = 0) -> list[bytes]:
        """Return encoded events of the journal, those behind event number `after`; needs an admin token."""
        return self._answer("GET", f"/v1/journal?after={after}").content.splitlines()

    def scheduler(self) -> dict[str, Any]:
        """Return the scheduler in use."""
        return dict(self._ask("GET", "/v1/scheduler")["scheduler"])

    def preempting_policy(self) -> str:
        """Return the name of the policy if it may preempt jobs; empty if it never does, or if that is not known."""
        return str(self._ask("GET", "/v1/scheduler").get("preempting_policy", ""))

    def decision_error(self) -> str:
        """Return why the scheduler does not decide at present; empty if it does."""
        return str(self._ask("GET", "/v1/scheduler")["decision_error"])

    def switch(
        self, scheduler: Mapping[str, Any], why: str = "", *, instead_of: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Another scheduler. With `instead_of`, only where that one still decides; otherwise it is refused with `OVERTAKEN`."""
        condition = {} if instead_of is None else {"instead_of": dict(instead_of)}
        return dict(self._ask("POST", "/v1/scheduler", {"scheduler": dict(scheduler), "why": why, **condition})["scheduler"])

    def when(self) -> dict[str, Any]:
        """Return a forecast of when one's jobs will run."""
        return self._ask("GET", "/v1/when", more_s=FORECAST_WITHIN_S)

    def whatif(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return what would differ with some changes, by simulation; keys as in `POST /v1/whatif`."""
        return self._ask("POST", "/v1/whatif", changes, more_s=10 * FORECAST_WITHIN_S)  # it may wait for others

    def fix(self, name: str) -> dict[str, Any]:
        """Return the smallest changes that would start a waiting job at the next decision."""
        return self._ask("GET", f"/v1/jobs/{self._job(name)}/fix", more_s=FORECAST_WITHIN_S)

    def state(self) -> tuple[float, bytes]:
        """Return the present second and the encoded state; needs an admin token."""
        return float((answer := self._answer("GET", "/v1/state")).headers["fairlead-now"]), answer.content

    def _job(self, name: str) -> str:
        """A job as part of a path; `ann/train` by its number."""
        if "/" not in name:
            return _part(name)
        if len(found := self.find_jobs([name])) > 1:
            raise RefusedRequest(422, f"{name} matches {len(found):,} jobs; give the number of one")
        return str(found[0]["number"])

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content: bytes | None = None, more_s: float = 0
    ) -> dict[str, Any]:
        try:
            answer = replace(self, timeout_s=self.timeout_s + more_s)._answer(method, path, body, content=content).json()
        except ValueError:
            answer = None
        if not answer or not isinstance(answer, dict):
            raise FairleadError(f"{self.url} is not a Fairlead control plane: check the address")
        return answer

    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, content: bytes | None = None
    ) -> httpx.Response:
        if not self.token or not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise Unreachable(f"{TOKEN}: expected a token of `fairlead token add`; it is not set, or has invalid characters")
        headers = {"Authorization": f"Bearer {self.token}"}
        import httpx  # of the extra `cluster`, which other commands do without

        until = time.monotonic() + self.timeout_s
        try:
            sent: Any = {"json": body, "content": content, "headers": headers}
            while True:
                answer = self._from_active(
                    lambda url, timeout: httpx.request(method, url + path, timeout=timeout, verify=self._trust(url), **sent),
                    repeatable=method not in ("POST", "PATCH") or (body or {}).get("change") in REPEATABLE,
                )
                wait_s = _retry_after_s(answer)
                if answer.status_code != TOO_MANY or time.monotonic() + wait_s > until:
                    break
                time.sleep(wait_s)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise Unreachable(f"{self.url}: {problem}; is the control plane running?") from None
        except (TypeError, ValueError) as problem:
            raise RefusedRequest(422, f"the request cannot be sent: {problem}") from None
        if answer.is_success:
            return answer
        if answer.status_code == UNAUTHORIZED:  # the API's own message is for authors of clients
            raise RefusedRequest(UNAUTHORIZED, _unaccepted(self.url))
        raise RefusedRequest(answer.status_code, _why(answer))

    def _from_active(self, send: Callable[[str, httpx.Timeout], httpx.Response], *, repeatable: bool) -> httpx.Response:
        """The answer of the first address that is not a standby's. A request that may have been accepted is sent again only if
        it is repeatable. While there is a standby, but no other one answers, it is about to take over: it is waited for."""
        import httpx

        addresses = [one for part in self.url.split(",") if (one := part.strip().rstrip("/"))] or [self.url]
        connect_s = self.timeout_s if len(addresses) == 1 else min(self.timeout_s, CONNECT_WITHIN_S)
        first = _last_good.get(self.url, addresses[0])
        until = time.monotonic() + min(self.timeout_s, TAKEOVER_WITHIN_S)
        while True:
            problem: httpx.TransportError | None = None
            standby: httpx.Response | None = None
            for address in sorted(addresses, key=lambda one: one != first):
                try:
                    answer = send(address, httpx.Timeout(self.timeout_s, connect=connect_s))
                except (httpx.ConnectError, httpx.ConnectTimeout) as failed:
                    problem = failed
                except httpx.TransportError as failed:
                    problem = failed
                    if not repeatable or len(addresses) == 1:
                        break
                else:
                    if STANDBY_HEADER not in answer.headers:
                        _last_good[self.url] = address
                        return answer
                    standby = answer
            unsent = problem is None or repeatable or isinstance(problem, (httpx.ConnectError, httpx.ConnectTimeout))
            if standby is not None and unsent and len(addresses) > 1 and time.monotonic() < until:
                time.sleep(0.5)
            elif problem is not None:
                raise problem
            elif standby is not None:
                return standby

    def _trust(self, url: str) -> ssl.SSLContext | bool:
        if not url.lower().startswith("https:"):
            return False  # loading the system's authorities would take longer than the request
        if not self.authority:
            return True
        try:
            return ssl.create_default_context(cafile=self.authority)
        except (ssl.SSLError, OSError) as problem:
            raise Unreachable(f"{self.authority}: not a certificate authority's PEM file ({problem})") from None


def _part(name: str) -> str:
    """A name as one part of a path: `cancel ../nodes/n1/drain` must not end a drain."""
    if name in ("", ".", "..") or "/" in name:
        raise RefusedRequest(MISSING, f"there is no {name[:80]!r}")
    return quote(name, safe="")


def _retry_after_s(answer: httpx.Response) -> float:
    after = str(answer.headers.get("retry-after", ""))
    return min(float(after), MAX_RETRY_AFTER_S) if after.isdecimal() else 1.0


def _unaccepted(url: str) -> str:
    where = f"{TOKEN}, or the token file of `fairlead up`"
    return f"{url} does not accept this token ({where}); `fairlead token add` creates one"


def _is_issued(token: str, tokens: Path) -> bool:
    """Whether a token is one of those that this file has."""
    try:
        return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest().encode() in tokens.read_bytes()
    except OSError:
        return False


def _why(answer: httpx.Response) -> str:
    if STANDBY_HEADER in answer.headers:
        return answer.text.strip()
    if answer.status_code == 405:
        return "the control plane does not support this request: upgrade it to the version of this command"
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
    return str(detail)
