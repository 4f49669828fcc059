"""Runs of an experiment on a Ray cluster: one Ray task for each, behind the same calls as the process pool. It knows nothing of
what a run computes. Ray is an extra, imported when a pool opens."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import queue
import sys
import tempfile
import threading
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from fairlead.core import VERSION
from fairlead.core.errors import FairleadError, InputError
from fairlead.experiments import fingerprint
from fairlead.files import atomic_write
from fairlead.runtime.drivers.ray_connection import RayConnection, import_ray

T = TypeVar("T")

ON_RAY = "'ray:auto', 'ray:local', or 'ray:HOST:PORT' of a running Ray cluster"
MAX_WAITING = 1_000
"""Tasks that Ray has at a time. More wait here: 100,000 tasks at once would cost Ray memory and time."""
MAX_RETRIES = 5
"""How often a run is repeated after the loss of its worker or node. A run that always crashes its worker ends with an error."""


def ray_address(on: str) -> str:
    """Return the address in `ray:ADDRESS`, as Ray reads it. Raises InputError if it is none."""
    kind, _, address = on.partition(":")
    if kind != "ray" or not address:
        raise InputError("--on", ON_RAY, value=on)
    return on if address.startswith("//") else address


class RayPool:
    """Workers of a Ray cluster. Each call is a Ray task with one CPU, and gets `inputs` as its last argument.

    Files that `inputs` names travel with it. A call whose worker or node is lost runs again elsewhere. Workers with other code
    than this process are refused. An interrupt cancels all calls."""

    def __init__(self, on: str, inputs: object, processes: int | None = None) -> None:
        address = ray_address(on)
        self._connection = RayConnection(address, **({"num_cpus": processes} if processes and address == "local" else {}))
        self._ray = self._connection.ray
        if self._ray.cluster_resources().get("CPU", 0) < 1:
            self._connection.close()
            raise FairleadError(f"the Ray cluster at {address!r} has no CPU for runs: start a node with at least one")
        self._limit = processes or MAX_WAITING
        self._key = uuid.uuid4().hex
        # In a list, a worker fetches it only once, and not for each call.
        self._inputs = [self._ray.put(_dumps(inputs, with_files=True))]
        options = {"num_cpus": 1, "max_retries": MAX_RETRIES, "name": "fairlead"}
        self._task = self._ray.remote(**options)(_task((VERSION, _python(), fingerprint.code_fingerprint())))
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], bytes]] = deque()
        self._running: dict[Any, Future[Any]] = {}  # by reference
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._receive, name="ray-results", daemon=True)
        self._thread.start()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            left, self._running = list(self._running), {}
            self._waiting.clear()
        self._done.put(None)
        self._thread.join()
        for reference in left:
            self._ray.cancel(reference, force=True)
        self._connection.close()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function in a worker, with the pool's inputs as its last argument."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((future, _dumps((function, arguments))))
        self._start_waiting()
        return future

    def _start_waiting(self) -> None:
        with self._lock:
            while self._waiting and len(self._running) < self._limit:
                future, call = self._waiting.popleft()
                reference = self._task.remote(self._key, self._inputs, call)
                self._running[reference] = future
                reference.future().add_done_callback(lambda done, reference=reference: self._done.put((reference, done)))

    def _receive(self) -> None:
        while (item := self._done.get()) is not None:
            reference, done = item
            with self._lock:
                future = self._running.pop(reference, None)
            if future is None:
                continue
            self._start_waiting()
            try:
                good, value = pickle.loads(done.result())
            except Exception as error:  # Ray's: of the worker, not of the run
                good, value = None, f"a run on Ray was lost: {' '.join(str(error).split())[:300]}"
            if good:
                future.set_result(value)
            elif isinstance(value, ModuleNotFoundError):
                future.set_exception(FairleadError(f"a Ray worker lacks the module {value.name!r}: install it on every node"))
            else:
                future.set_exception(FairleadError(value) if good is None else value)


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _task(expected: tuple[str, str, str]) -> Callable[[str, list[Any], bytes], bytes]:
    """Return the function of the Ray task. It is nested, so that Ray sends its code: a worker may have another Fairlead."""

    def run(key: str, inputs: list[Any], call: bytes) -> bytes:
        import pickle
        import sys

        import ray

        found, code = "no Fairlead", None
        try:
            from fairlead.core import VERSION

            found = f"Fairlead {VERSION}"
            from fairlead.experiments import fingerprint, ray_pool

            code = fingerprint.code_fingerprint()
        except ImportError:
            pass
        version, python, wanted = expected
        if code == wanted:
            return ray_pool.answer(key, inputs, call)
        here = f"{found} on Python {sys.version_info.major}.{sys.version_info.minor}"
        ours = f"Fairlead {version} on Python {python}"
        how = "other code, plug-ins or package versions" if here == ours else here
        text = f"Ray node {ray.util.get_node_ip_address()} has {how}; this command has {ours}: install the same there"
        return pickle.dumps((None, text))

    return run


_inputs: dict[str, Any] = {}
"""Of this worker, by key: those of the last pool that it worked for."""


def answer(key: str, inputs: list[Any], call: bytes) -> bytes:
    """In a worker, make a call; returns whether it was good, and its result or error."""
    content = None if key in _inputs else import_ray().get(inputs[0])
    try:
        if content is not None:
            _inputs.clear()
            _inputs[key] = pickle.loads(content)
        function, arguments = pickle.loads(call)
        return _dumps((True, function(*arguments, _inputs[key])))
    except Exception as error:
        return _dumps((False, error))


def _dumps(value: object, *, with_files: bool = False) -> bytes:
    """Pickle as Ray does: classes of a script travel by value. With files, so do regular files that a path names."""
    pickler = import_module("ray.cloudpickle").Pickler

    class WithFiles(pickler):  # type: ignore[misc,valid-type]
        def reducer_override(self, found: Any) -> Any:
            if isinstance(found, Path):
                return _file_here, (str(found.absolute()), found.read_bytes() if found.is_file() else None)
            return super().reducer_override(found)

    content = io.BytesIO()
    (WithFiles if with_files else pickler)(content, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return content.getvalue()


def _file_here(path: str, content: bytes | None) -> Path:
    """Return the path of a file with this content: the same path where it has it, else a copy for this user."""
    if content is None:
        return Path(path)
    with suppress(OSError):
        if Path(path).read_bytes() == content:
            return Path(path)
    folder = hashlib.sha256(content).hexdigest()[:24]
    copy = Path(tempfile.gettempdir()) / f"fairlead-{os.getuid()}" / folder / Path(path).name
    if not copy.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write(copy, content)
    return copy
