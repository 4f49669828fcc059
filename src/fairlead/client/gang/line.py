"""A connection between two workers: lines of JSON, small and few."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import Any

LIMIT = 4096
HANDSHAKE_S = 10.0


class Line:
    """A connection of JSON lines."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._connection = connection
        self._incoming = connection.makefile("rb")
        self._sending = threading.Lock()

    def patience(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def send(self, **message: int | str) -> None:
        """A connection that is gone is found by who reads from it."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._incoming.readline(LIMIT)
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
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def forget(self) -> None:
        """In a forked child: close this side's copy, so that the connection ends with the worker."""
        if self._connection.fileno() >= 0:
            os.close(self._connection.detach())
