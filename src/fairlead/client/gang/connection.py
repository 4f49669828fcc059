"""A connection between two workers: lines of JSON, small and few."""

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

from fairlead.client.gang import GangBroken, Patience
from fairlead.client.launch_context import LaunchContext

LIMIT = 4096
HANDSHAKE_S = 10.0


class GangConnection:
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


# What the first worker and the others share: waiting for what threads hear, and how a gang breaks.

ENDED_IN_A_STEP = 75  # the exit status of a worker that hung in a step after another one had died


class GangMember:
    """`where` tells how many steps it has done."""

    def __init__(self, surroundings: LaunchContext, where: Callable[[], int], patience: Patience) -> None:
        self.calls = False
        self._surroundings = surroundings
        self._where = where
        self._patience = patience
        self._heard = threading.Condition()
        self._broken = ""
        self._through = threading.Event()  # this worker needs the gang no more, or knows that it is broken

    def detach(self) -> None:
        self._through.set()

    def _break(self, why: str) -> None:
        """In a thread: tell the worker's own loop, and end a process that does not come to hear it."""
        if self._through.is_set():
            return
        with self._heard:
            if not self._broken:
                self._pass_on(why)  # before the loop hears it, which ends the process
            self._broken = self._broken or why
            self.calls = True
            self._heard.notify_all()
        if not self._through.wait(self._patience.answer_s):
            print(f"fairlead: {why}; this worker hangs in a step and is ended", file=sys.stderr, flush=True)
            os._exit(ENDED_IN_A_STEP)

    def _pass_on(self, why: str) -> None:
        """Let others know that the gang is broken."""

    def _check(self) -> None:
        if self._broken:
            self._through.set()
            raise GangBroken(self._broken)

    def _await(self, what: Callable[[], bool], seconds: float | None, missing: Callable[[], str]) -> None:
        with self._heard:
            came = self._heard.wait_for(lambda: bool(self._broken) or what(), seconds)
        self._check()
        if not came:
            self._through.set()
            why = f"{missing()} did not answer within {seconds:g} s"
            self._pass_on(why)
            raise GangBroken(why)

    def _proof(self, *said: object) -> str:
        text = json.dumps([self._surroundings.generation, *said])
        return hmac.new(self._surroundings.gang_token.encode(), text.encode(), hashlib.sha256).hexdigest()
