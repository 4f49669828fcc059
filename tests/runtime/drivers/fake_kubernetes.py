"""A small API server in memory, for the Kubernetes driver: objects with versions, watches, and errors on request."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from typing import Any

import httpx
import orjson

NAMESPACE = "jobs"
PODS, SECRETS, NODES = f"/api/v1/namespaces/{NAMESPACE}/pods", f"/api/v1/namespaces/{NAMESPACE}/secrets", "/api/v1/nodes"


class FakeKubernetes:
    """`httpx.MockTransport(fake)` is its network. A Pod gets `deletionTimestamp` when it is deleted, and goes by `remove`."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {PODS: {}, SECRETS: {}, NODES: {}}
        self.requests: list[tuple[str, str, Any]] = []  # method, path and body
        self.errors: dict[tuple[str, str], tuple[int, str, str]] = {}  # by method and path: code, reason, message
        self.logs: dict[str, bytes] = {}
        self.tokens: set[str] = set()  # that are accepted; empty: all
        self.away = self.closed = False
        self.oldest = 0  # versions before it are gone
        self._version = itertools.count(1)
        self._now = 0
        self._watches: list[tuple[str, queue.Queue[bytes | None]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, query = request.url.path, request.url.params
        body = orjson.loads(request.content) if request.content else None
        self.requests.append((request.method, path, body))
        if self.away:
            raise httpx.ConnectError("connection refused")
        if self.tokens and request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return _status(401, "Unauthorized", "Unauthorized")
        if (request.method, path) in self.errors:
            return _status(*self.errors[request.method, path])
        if path.endswith("/log"):
            name = path.split("/")[-2]
            if name not in self.logs:
                return _status(404, "NotFound", f'pods "{name}" not found')
            return httpx.Response(200, content=self.logs[name][: int(query["limitBytes"])])
        if path in self.objects:
            return self._collection(request, path, query, body)
        kind, name = path.rsplit("/", 1)
        return self._object(request.method, kind, name, body)

    def _collection(self, request: httpx.Request, path: str, query: httpx.QueryParams, body: Any) -> httpx.Response:
        if request.method == "POST":
            name = body["metadata"]["name"]
            if name in self.objects[path]:
                return _status(409, "AlreadyExists", f'"{name}" already exists')
            body["metadata"]["uid"] = f"uid-{name}-{self._now}"
            return httpx.Response(201, content=orjson.dumps(self.put(path, body)))
        if query.get("watch") != "true":
            items = list(self.objects[path].values())
            return httpx.Response(200, content=orjson.dumps({"items": items, "metadata": {"resourceVersion": str(self._now)}}))
        if int(query["resourceVersion"]) < self.oldest:
            return _status(410, "Expired", "too old resource version")
        events: queue.Queue[bytes | None] = queue.Queue()
        self._watches.append((path, events))
        return httpx.Response(200, stream=_Events(self, events))

    def _object(self, method: str, kind: str, name: str, body: Any) -> httpx.Response:
        found = self.objects.get(kind, {}).get(name)
        if found is None:
            return _status(404, "NotFound", f'"{name}" not found')
        if method == "PATCH":
            merged = {**found, **body, "metadata": {**found["metadata"], **body.get("metadata", {})}}
            found = self.put(kind, merged)
        elif method == "DELETE":
            if kind == PODS and (body or {}).get("gracePeriodSeconds") != 0:
                found = self.put(kind, {**found, "metadata": {**found["metadata"], "deletionTimestamp": "now"}})
            else:
                self.remove(kind, name)
        return httpx.Response(200, content=orjson.dumps(found))

    # What the rest of the cluster does.

    def put(self, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        """Add or change an object."""
        event = "MODIFIED" if item["metadata"]["name"] in self.objects[kind] else "ADDED"
        self._now = next(self._version)
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._now)}}
        self.objects[kind][item["metadata"]["name"]] = item
        self._tell(kind, event, item)
        return item

    def remove(self, kind: str, name: str) -> None:
        self._now = next(self._version)
        self._tell(kind, "DELETED", self.objects[kind].pop(name))

    def set_status(self, name: str, **status: Any) -> None:
        self.put(PODS, {**self.objects[PODS][name], "status": status})

    def break_watches(self) -> None:
        """End all watches as an API server that is killed."""
        watches, self._watches = self._watches, []
        for _, events in watches:
            events.put(None)

    def watching(self, kind: str) -> bool:
        return any(path == kind for path, _ in self._watches)

    def send(self, kind: str, event: str, item: dict[str, Any]) -> None:
        """Send an event that changes nothing here."""
        self._tell(kind, event, item)

    def _tell(self, kind: str, event: str, item: dict[str, Any]) -> None:
        for path, events in self._watches:
            if path == kind:
                events.put(orjson.dumps({"type": event, "object": item}) + b"\n")


class _Events(httpx.SyncByteStream):
    def __init__(self, fake: FakeKubernetes, events: queue.Queue[bytes | None]) -> None:
        self._fake, self._events = fake, events

    def __iter__(self) -> Iterator[bytes]:
        while not self._fake.closed:
            try:
                event = self._events.get(timeout=0.02)
            except queue.Empty:
                continue
            if event is None:
                raise httpx.ReadError("connection reset")
            yield event[:10]  # events come in pieces
            yield event[10:]


def _status(code: int, reason: str, message: str) -> httpx.Response:
    return httpx.Response(code, content=orjson.dumps({"kind": "Status", "code": code, "reason": reason, "message": message}))


def gpu_node(
    name: str, gpus: int = 4, *, product: str = "Tesla-V100-SXM2-16GB", ready: str = "True", **spec: Any
) -> dict[str, Any]:
    """A node with GPUs."""
    resources = {"nvidia.com/gpu": str(gpus), "cpu": "15500m", "memory": "64Gi"}
    return {
        "metadata": {
            "name": name,
            "labels": {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "16384", "disk": "ssd"},
        },
        "spec": spec,
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{"type": "Ready", "status": ready, "message": "kubelet stopped posting"}],
        },
    }


def container_state(**state: Any) -> list[dict[str, Any]]:
    """Statuses of containers in which the agent's has this state."""
    return [{"name": "sidecar", "state": {"running": {}}}, {"name": "agent", "state": state}]
