"""The part of Ray that a pool uses, in threads of this process: no cluster, no extra."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Pickler(pickle.Pickler):
    def reducer_override(self, found: Any) -> Any:
        return NotImplemented


class FakeRay(ModuleType):
    def __init__(self, cpus: float = 2) -> None:
        super().__init__("ray")
        self.cpus, self.connected, self.cancelled, self.most = cpus, False, [], 0
        self.options: dict[str, Any] = {}
        self.started: list[Future[Any]] = []
        self.threads = ThreadPoolExecutor(2)
        self.cloudpickle = ModuleType("ray.cloudpickle")
        self.cloudpickle.Pickler = Pickler
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")
        self.fail: Exception | None = None

    def is_initialized(self) -> bool:
        return self.connected

    def init(self, **options: Any) -> None:
        if self.fail is not None:
            raise self.fail
        self.connected, self.options = True, options

    def shutdown(self) -> None:
        self.connected = False
        self.threads.shutdown()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def put(self, value: Any) -> Any:
        return ("reference", value)

    def get(self, reference: Any) -> Any:
        return reference[1]

    def cancel(self, reference: Any, *, force: bool) -> None:
        self.cancelled.append(reference)

    def remote(self, **options: Any) -> Any:
        def decorate(function: Any) -> Any:
            def start(*arguments: Any) -> Any:
                future: Future[Any] = self.threads.submit(function, *arguments)
                self.most = max(self.most, 1 + sum(not other.done() for other in self.started))
                self.started.append(future)
                return Reference(future)

            return SimpleNamespace(remote=start)

        return decorate


class Reference:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.cloudpickle", fake.cloudpickle)
    return fake
