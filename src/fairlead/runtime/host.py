"""The machine under a part of the runtime: its clocks, its threads and its secrets. Every part is given a `Host`, so that a
simulation can replace it by one with a virtual clock and one thread."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Condition(Protocol):
    """Waiting for another thread, as `threading.Condition`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Host:
    """The real machine."""

    def monotonic(self) -> float:
        """Seconds by a clock that is never set."""
        return time.monotonic()

    def time(self) -> float:
        """Unix time."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)

    def condition(self) -> Condition:
        """A condition that threads of this host can wait for."""
        return threading.Condition()

    def spawn(self, name: str, work: Callable[[], None]) -> None:
        """Run `work` in a daemon thread, which does not keep the process alive."""
        threading.Thread(target=work, name=name, daemon=True).start()

    def token(self, size: int) -> str:
        """A random name of `size` bytes, in hexadecimal digits."""
        return secrets.token_hex(size)
