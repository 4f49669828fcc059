"""Requests to a Kubernetes API server, and a local copy of a collection that follows it. What the objects mean is not known
here."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import yaml

from fairlead.core.errors import FairleadError, InputError, NotInstalled, install, require
from fairlead.runtime.drivers.base import EngineUnavailable
from fairlead.runtime.host import Host

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

GONE, CONFLICT, NOT_FOUND, FORBIDDEN, UNAUTHORIZED, TOO_MANY = 410, 409, 404, 403, 401, 429
POD_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"  # where Kubernetes puts a pod's own credentials
ANSWER_WITHIN_S, CONNECT_WITHIN_S = 15.0, 5.0
WATCH_S = 50.0  # length of one watch; a new one continues it. A connection that died without a sign is noticed so late
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 5.0  # before an API server that does not answer is asked again
LIST_AGAIN_AFTER = 5  # failed watches, in case the server no longer knows the version from which they continue
PAGE = 1000  # objects in one answer to a list
MAX_MESSAGE = 500


class ApiStatus(FairleadError):
    """The API server refused a request: its code, its reason (`AlreadyExists`) and its message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(" ".join(message.split())[:MAX_MESSAGE] or f"status {code}")


@dataclass(frozen=True)
class ApiAccess:
    """How to reach an API server: its address, its authority, and a token or a client's certificate."""

    server: str
    trust: ssl.SSLContext | bool = field(default=True, repr=False)
    token_file: str = ""  # read for each request, as tokens are replaced before they expire
    token: str = field(default="", repr=False)

    @classmethod
    def find(cls, *, server: str = "", kubeconfig: str = "", ca: str = "", token_file: str = "") -> ApiAccess:
        """The access to `server`; without it, as a kubeconfig file says; without both, as Kubernetes tells a pod.

        Raises:
            InputError: A file cannot be read, or there is no address.
        """
        if server:
            require(server.startswith(("https://", "http://")), "kubernetes", "https://HOST:PORT", "server", server)
            return cls(server.rstrip("/"), _trust(ca) if server.startswith("https:") else False, token_file)
        if kubeconfig:
            return cls._of_kubeconfig(Path(kubeconfig).expanduser(), ca, token_file)
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        require(host, "kubernetes", "'server' or 'kubeconfig'; only a pod needs neither")
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", _trust(ca or f"{POD_FOLDER}/ca.crt"), token_file or f"{POD_FOLDER}/token")

    @classmethod
    def _of_kubeconfig(cls, path: Path, ca: str, token_file: str) -> ApiAccess:
        try:
            read = yaml.safe_load(path.read_bytes())
            named = {kind: {each["name"]: each[kind[:-1]] for each in read[kind]} for kind in ("contexts", "clusters", "users")}
            context = named["contexts"][read["current-context"]]
            cluster, user = named["clusters"][context["cluster"]], named["users"][context["user"]] or {}
            server = str(cluster["server"]).rstrip("/")
            if "exec" in user or "auth-provider" in user:
                raise InputError(path, "a token or a client certificate; for other log-ins pass server, ca and token_file")
            authority = base64.b64decode(cluster.get("certificate-authority-data", "")).decode()
            named_file = cluster.get("certificate-authority", "") if not authority else ""
            trust = _trust(ca or (str(path.parent / named_file) if named_file else ""), authority)
            if cluster.get("insecure-skip-tls-verify") is True and not ca:
                trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
            _load_certificate(trust, path.parent, user)
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as problem:
            raise InputError(path, f"a kubeconfig file with a current context ({type(problem).__name__}: {problem})") from None
        stored = str(path.parent / user["tokenFile"]) if "tokenFile" in user else ""
        return cls(server, trust, token_file or stored, str(user.get("token", "")))

    def headers(self) -> dict[str, str]:
        """The headers that authenticate a request. Raises `EngineUnavailable`: the token cannot be read."""
        token = self.token
        if self.token_file:
            try:
                token = Path(self.token_file).read_text().strip()
            except (OSError, UnicodeDecodeError) as problem:
                raise EngineUnavailable(f"{self.token_file}: the token cannot be read ({problem})") from None
        return {"Authorization": f"Bearer {token}"} if token else {}


def _trust(ca: str, data: str = "") -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None, cadata=(data or None) if not ca else None)
    except (ssl.SSLError, OSError) as problem:
        raise InputError(ca or "kubeconfig", f"a certificate authority's PEM file ({problem})") from None


def _load_certificate(trust: ssl.SSLContext, folder: Path, user: Mapping[str, Any]) -> None:
    """Load a client's certificate; the one of ssl reads files only."""
    with tempfile.TemporaryDirectory(prefix="fairlead-kubernetes-") as private:
        paths: list[Path] = []
        for kind in ("client-certificate", "client-key"):
            if f"{kind}-data" in user:
                path = Path(private) / kind
                path.write_bytes(base64.b64decode(user[f"{kind}-data"]))
                paths.append(path)
            elif kind in user:
                paths.append(folder / user[kind])
        if paths:
            trust.load_cert_chain(paths[0], paths[-1])


class KubernetesApi:
    """Sends requests to one API server. Every method may raise `EngineUnavailable` and `ApiStatus`."""

    def __init__(self, access: ApiAccess, transport: httpx.BaseTransport | None = None) -> None:
        try:
            import httpx
        except ImportError:
            raise NotInstalled(f"Kubernetes needs httpx: {install('cluster')}") from None

        self._access = access
        self._problems = (httpx.HTTPError, RuntimeError)  # the latter if the client or a stream is closed
        self._client = httpx.Client(
            base_url=access.server,
            verify=access.trust,
            timeout=httpx.Timeout(ANSWER_WITHIN_S, connect=CONNECT_WITHIN_S),
            transport=transport,
            trust_env=False,
        )
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()  # of streams
        self._requests = 0
        self._closed = threading.Event()

    def ask(self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **query: Any) -> dict[str, Any]:
        """Send a request and return the object that answers it."""
        headers = {**self._access.headers(), "Content-Type": kind}
        content = None if body is None else orjson.dumps(body)
        try:
            with self._request():
                answer = self._client.request(method, path, params=query, content=content, headers=headers)
            self._check(answer)
            return dict(orjson.loads(answer.content))
        except self._problems as problem:
            raise self._silent(problem) from None
        except (ValueError, TypeError):
            raise EngineUnavailable(f"{self._access.server} does not answer as a Kubernetes API server: check it") from None

    def stream(self, path: str, *, read_s: float = ANSWER_WITHIN_S, **query: Any) -> Iterator[bytes]:
        """Yield the answer to a request in pieces as they come; the first is empty, and says that the server answers."""
        try:
            headers = self._access.headers()
            with self._request(), self._client.stream("GET", path, params=query, headers=headers) as answer:
                answer.request.extensions.get("timeout", {})["read"] = read_s  # the answer has begun; the rest may take longer
                if not answer.is_success:
                    answer.read()
                self._check(answer)
                with self._open(answer):
                    yield b""
                    yield from answer.iter_bytes()
        except self._problems as problem:
            raise self._silent(problem) from None

    def lines(self, path: str, *, read_s: float, **query: Any) -> Iterator[bytes]:
        """Yield the lines of an answer as `stream` does."""
        rest: list[bytes] = []
        for piece in self.stream(path, read_s=read_s, **query):
            if not piece:
                yield b""
                continue
            first, *others = piece.split(b"\n")
            rest.append(first)
            if others:
                yield b"".join(rest)
                yield from (line for line in others[:-1] if line)
                rest = [others[-1]]

    def close(self) -> None:
        """End all connections, also those that wait. Each thread leaves its own request: if a connection were closed under it,
        the thread would read from the next one that gets the same file descriptor."""
        with self._lock:
            self._closed.set()
            for each in self._sockets:
                with contextlib.suppress(OSError, ValueError):
                    each.shutdown(socket.SHUT_RDWR)
            unused = not self._requests
        if unused:
            self._client.close()

    @contextlib.contextmanager
    def _request(self) -> Iterator[None]:
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the connection is closed")
            self._requests += 1
        try:
            yield
        finally:
            with self._lock:
                self._requests -= 1
                unused = self._closed.is_set() and not self._requests
            if unused:
                self._client.close()

    @contextlib.contextmanager
    def _open(self, answer: httpx.Response) -> Iterator[None]:
        stream = answer.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream is not None else None
        if connection is None:
            yield
            return
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the connection is closed")
            self._sockets.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(connection)

    def _silent(self, problem: Exception) -> EngineUnavailable:
        return EngineUnavailable(f"the API server {self._access.server} does not answer ({problem or type(problem).__name__})")

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        try:
            status = orjson.loads(answer.content)
            reason, message = str(status.get("reason", "")), str(status.get("message", ""))
        except (ValueError, AttributeError):
            reason, message = "", answer.text[:MAX_MESSAGE]
        code, server = answer.status_code, self._access.server
        if code == UNAUTHORIZED:
            place = self._access.token_file or "the kubeconfig file"
            raise EngineUnavailable(f"{server} does not accept the token of {place}: it may have expired; provide a new one")
        if code == FORBIDDEN and 'User "' in message and " cannot " in message:  # not a quota, and no rule for pods
            raise EngineUnavailable(f"{server}: {message[:MAX_MESSAGE]}; grant it by a Role, as in deploy/kubernetes")
        if code == TOO_MANY or code >= 500:
            raise EngineUnavailable(f"the API server {server} cannot answer now ({code} {' '.join(message.split())[:200]})")
        raise ApiStatus(code, reason, message)


@dataclass(eq=False)
class Mirror:
    """Follows one collection: lists it, then watches it from there on. `run` is the work of a thread."""

    api: KubernetesApi
    path: str
    query: Mapping[str, str]
    listed: Callable[[list[dict[str, Any]]], None]  # all objects, instead of those before
    happened: Callable[[str, dict[str, Any]], None]  # ADDED, MODIFIED or DELETED, and the object
    told: Callable[[], None]  # `problem` changed
    host: Host = field(default_factory=Host)
    problem: str | None = None  # why the copy is not up to date; empty: it is; None: not listed yet
    closed: bool = False
    lists: int = 0  # that have begun

    def run(self) -> None:
        """Follow until `closed`."""
        version, failed, pause_s = "", 0, FIRST_PAUSE_S
        while not self.closed:
            try:
                if not version:
                    version = self._list()
                began_s = self.host.monotonic()
                for seen in self._watch(version):
                    self._note("")
                    version, failed, pause_s = seen, 0, FIRST_PAUSE_S
                if self.host.monotonic() < began_s + 1.0 and not self.closed:
                    self.host.sleep(FIRST_PAUSE_S)
                continue
            except ApiStatus as status:
                if status.code == GONE and version:
                    version = ""
                    self.host.sleep(FIRST_PAUSE_S)
                    continue
                version, problem = "", str(status)
            except FairleadError as unavailable:
                problem = str(unavailable)
            except Exception as odd:  # an object that is not as it should be: without this thread, nothing new is seen
                log.exception("an object of %s cannot be read", self.path)
                version, problem = "", f"an object of {self.path} cannot be read ({odd!r})"
            failed += 1
            version = version if failed < LIST_AGAIN_AFTER else ""
            self._note(problem)
            if not self.closed:
                self.host.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _list(self) -> str:
        found: list[dict[str, Any]] = []
        position = ""
        self.lists += 1
        while True:
            more = {"continue": position} if position else {}
            answer = self.api.ask("GET", self.path, **self.query, limit=PAGE, **more)
            found += answer.get("items") or ()
            about = answer.get("metadata", {})
            if not (position := about.get("continue", "")):
                self.listed(found)
                self._note("")
                return str(about.get("resourceVersion", ""))

    def _watch(self, version: str) -> Iterator[str]:
        """Pass on what happens after a version, and yield the present one with each event."""
        query = {**self.query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": int(WATCH_S)}
        for line in self.api.lines(self.path, read_s=WATCH_S + ANSWER_WITHIN_S, **query, resourceVersion=version):
            if self.closed:
                return
            if line:
                try:
                    event = orjson.loads(line)
                    kind, item = str(event["type"]), dict(event["object"])
                except (ValueError, KeyError, TypeError):
                    raise ApiStatus(0, "", "the API server sent a line that is not a watch event") from None
                if kind == "ERROR":
                    raise ApiStatus(int(item.get("code", 0)), str(item.get("reason", "")), str(item.get("message", "")))
                if kind != "BOOKMARK":
                    self.happened(kind, item)
                version = str(item["metadata"]["resourceVersion"])
            yield version

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self.told()
