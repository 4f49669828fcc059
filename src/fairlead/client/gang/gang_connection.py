"""The connection between two workers, and what leader and followers share: waiting for messages, and how a gang breaks."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from fairlead.client.gang import Gang, GangBroken, Patience
from fairlead.client.launch_context import LaunchContext

_MAX_LINE = 4096
HANDSHAKE_S = 10.0


class GangConnection:
    """A connection that carries lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._connection = connection
        self._incoming = connection.makefile("rb")
        self._sending = threading.Lock()

    def set_timeout(self, seconds: float | None) -> None:
        """The timeout of the next calls; None: no timeout."""
        self._connection.settimeout(seconds)

    def send(self, **message: int | str) -> None:
        """Send a message; errors show when the connection is read."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """The next message."""
        line = self._incoming.readline(_MAX_LINE)
        if not line.endswith(b"\n"):
            raise EOFError
        try:
            message = json.loads(line)
        except RecursionError:
            message = None
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def close_in_child(self) -> None:
        """Close the copy in a forked child, so that the connection ends with the worker."""
        if self._connection.fileno() >= 0:
            os.close(self._connection.detach())


_HUNG_IN_STEP = 75  # exit status of a worker that hung in a step after another one had died


class GangMember(Gang):
    """What leader and followers have in common; `current_step` returns the worker's completed steps."""

    def __init__(self, context: LaunchContext, current_step: Callable[[], int], patience: Patience) -> None:
        super().__init__(is_leader=context.rank == 0)
        self._context = context
        self._current_step = current_step
        self._patience = patience
        self._condition = threading.Condition()
        self._broken = ""
        self._released = threading.Event()  # this worker needs the gang no more, or knows that it is broken

    def detach(self) -> None:
        self._released.set()

    def _break(self, why: str) -> None:
        """In a thread: inform the worker's loop, and end the process if the loop hangs in a step."""
        if self._released.is_set():
            return
        with self._condition:
            if not self._broken:
                self._notify_others(why)  # before the loop notices, which ends the process
            self._broken = self._broken or why
            self.has_messages = True
            self._condition.notify_all()
        if not self._released.wait(self._patience.answer_s):
            print(f"fairlead: {why}; this worker hangs in a step and is ended", file=sys.stderr, flush=True)
            os._exit(_HUNG_IN_STEP)

    def _notify_others(self, why: str) -> None:
        """Tell the other workers that the gang is broken."""

    def _check(self) -> None:
        if self._broken:
            self._released.set()
            raise GangBroken(self._broken)

    def _await(self, what: Callable[[], bool], seconds: float | None, missing: Callable[[], str]) -> None:
        with self._condition:
            came = self._condition.wait_for(lambda: bool(self._broken) or what(), seconds)
        self._check()
        if not came:
            self._released.set()
            why = f"{missing()} did not answer within {seconds:g} s"
            self._notify_others(why)
            raise GangBroken(why)

    def _proof(self, *values: object) -> str:
        text = json.dumps([self._context.generation, *values])
        return hmac.new(self._context.gang_token.encode(), text.encode(), hashlib.sha256).hexdigest()
