"""How the workers of a gang stop after the same step (Blox §7). Only the leader, worker 0, learns that the lease is over. It
asks the followers for their step (*prepare*). Each answers with the steps it has done and pauses before the step after the
current one. No worker can then be beyond the greatest answer plus one, so all leave after that step (*exit*). A thread answers,
also while the worker waits for the leader inside a step: training may be synchronous or not.

    leader to follower    go · prepare · exit n · saved n · done n · broken why
    follower to leader    ready · at n · asks · wrote n · done n

`ready`: it has loaded; `go`: all have. `asks`: its own page was revoked; stop all. `wrote`: its part of the checkpoint is on
disk. `done`: it has finished and will close the connection. A connection that ends without `done` breaks the gang: all other
workers fail at the next step, or are ended if they hang in a step for longer than the timeout. Messages are lines of JSON; both
sides prove that they know the token."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fairlead.client.launch_context import LaunchContext

_MAX_LINE = 4096
_HANDSHAKE_S = 10.0
_RETRY_S = 0.05
_HUNG_IN_STEP = 75  # exit status of a worker that hung in a step after another one had died


class GangBroken(RuntimeError):
    """Another worker has died, or does not answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts of a gang. `start_s`: until all workers have connected and loaded. `answer_s`: until a worker answers or, when
    the gang is broken, finishes its step."""

    start_s: float = 300.0
    answer_s: float = 20.0


class Gang:
    """A worker's view of its gang; `has_messages` is read in every step and costs nothing. This class is a worker without
    coordination: there may be other workers, of which the first one saves."""

    def __init__(self, is_leader: bool = True) -> None:
        self.has_messages = False
        self.is_leader = is_leader

    def agree_on_start(self, steps: int) -> int:
        """The step at which all workers start: that of the leader's latest checkpoint."""
        return steps

    def ready(self) -> None:
        """This worker has loaded; returns when all workers have."""

    def handle_messages(self) -> int | None:
        """Handle new messages; returns the step after which to leave, if it is known."""
        return None

    def request_stop(self, steps: int) -> int | None:
        """This worker's lease is over; returns the step after which to leave, or None if the leader will send it."""
        return steps

    def wait_for_parts(self, steps: int) -> None:
        """Wait until all workers have written their parts of a checkpoint; a follower waits until it is complete."""

    def saved(self, steps: int) -> None:
        """A checkpoint is complete."""

    def done(self, steps: int) -> None:
        """This worker has finished. A follower waits until the leader has saved and finished too."""

    def detach(self) -> None:
        """The script left its loop by itself; the gang ends for this worker."""


class GangConnection:
    """A connection that carries lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self.set_timeout = connection.settimeout
        self._connection = connection
        self._incoming = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, **message: int | str) -> None:
        """Send a message; errors show when the connection is read."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
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
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def close_in_child(self) -> None:
        """Close the copy in a forked child, so that the connection ends with the worker."""
        if self._connection.fileno() >= 0:
            os.close(self._connection.detach())


class GangMember(Gang):
    """What leader and followers have in common; `current_step` returns the worker's completed steps."""

    def __init__(self, context: LaunchContext, current_step: Callable[[], int], patience: Patience) -> None:
        super().__init__(is_leader=context.rank == 0)
        self._context, self._current_step, self._patience = context, current_step, patience
        self._address = context.master_address, context.gang_port
        self._condition = threading.Condition()
        self._stop_requested = False
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
            print(f"fairlead: {why}; this worker does not end its step and is stopped", file=sys.stderr, flush=True)
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


class Follower(GangMember):
    """Every worker except worker 0; `on_saved` is called with the step of each complete checkpoint."""

    def __init__(
        self, context: LaunchContext, current_step: Callable[[], int], patience: Patience, on_saved: Callable[[int], None]
    ) -> None:
        super().__init__(context, current_step, patience)
        self._on_saved = on_saved
        self._received: dict[str, int] = {}  # the last message of each type

    def agree_on_start(self, steps: int) -> int:
        self._line = GangConnection(self._connect())
        self._line.set_timeout(self._patience.start_s)
        try:
            begin = self._handshake()
        except (OSError, EOFError, ValueError) as error:
            raise GangBroken("worker 0 refuses this worker: its token, generation or rank is wrong") from error
        self._line.set_timeout(None)
        os.register_at_fork(after_in_child=self._line.close_in_child)
        threading.Thread(target=self._listen, name="fairlead-gang", daemon=True).start()
        return begin

    def ready(self) -> None:
        self._line.send(ready=1)
        self._await(lambda: "go" in self._received, self._patience.start_s, lambda: "worker 0")

    def handle_messages(self) -> int | None:
        self.has_messages = False
        answers = {"exit", "done"}
        # Twice the leader's timeout: the leader may wait for another worker and can name it.
        self._await(
            lambda: "prepare" not in self._received or not answers.isdisjoint(self._received),
            2 * self._patience.answer_s,
            lambda: "worker 0",
        )
        return self._received.get("exit")

    def request_stop(self, steps: int) -> int | None:
        if not self._stop_requested and "done" not in self._received:
            self._stop_requested = True
            self._line.send(asks=1)
        return None

    def wait_for_parts(self, steps: int) -> None:
        self._line.send(wrote=steps)
        self._await(lambda: self._received.get("saved", -1) >= steps or "done" in self._received, None, str)

    def done(self, steps: int) -> None:
        self._line.send(done=steps)
        self._await(lambda: "done" in self._received, None, str)
        self._released.set()

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + self._patience.start_s
        while True:
            try:
                return socket.create_connection(self._address, timeout=_HANDSHAKE_S)
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise GangBroken(f"worker 0 does not listen at {self._address[0]}:{self._address[1]}") from error
                time.sleep(_RETRY_S)

    def _handshake(self) -> int:
        challenge, rank = secrets.token_hex(16), self._context.rank
        theirs = str(self._line.receive().get("challenge"))
        self._line.send(rank=rank, challenge=challenge, proof=self._proof("other", rank, theirs))
        answer = self._line.receive()
        if not hmac.compare_digest(str(answer.get("proof")), self._proof("first", challenge)):
            raise ValueError("wrong token")
        return int(answer["begin"])

    def _listen(self) -> None:
        try:
            while "done" not in self._received:
                self._handle(self._line.receive())
        except (OSError, EOFError, ValueError):
            self._break("worker 0 is gone")
        except GangBroken as broken:
            self._break(str(broken))

    def _handle(self, message: dict[str, Any]) -> None:
        if "broken" in message:
            raise GangBroken(message["broken"])
        if "saved" in message:
            self._on_saved(int(message["saved"]))
        with self._condition:
            self._received |= {name: value for name, value in message.items() if isinstance(value, int)}
            if "prepare" in message:
                # First pause, then read the step: the loop counts before it reads `has_messages`, so it is at most one ahead.
                self.has_messages = True
                self._line.send(at=self._current_step())
            self._condition.notify_all()


@dataclass(slots=True)
class _FollowerState:
    """The leader's state of a follower, with its last message of each type."""

    line: GangConnection
    received: dict[str, int] = field(default_factory=dict)

    def reached(self, message: str) -> int:
        """The step of a message, or at which it has finished; -1: neither came."""
        return max(self.received.get(message, -1), self.received.get("done", -1))


class Leader(GangMember):
    """Worker 0 of a gang: it accepts the followers' connections and decides when all stop."""

    def __init__(self, context: LaunchContext, current_step: Callable[[], int], patience: Patience) -> None:
        super().__init__(context, current_step, patience)
        self._followers: dict[int, _FollowerState] = {}
        self._begins_at = 0
        self._exit = -1

    def agree_on_start(self, steps: int) -> int:
        self._begins_at = steps
        family = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server(self._address, family=family, backlog=self._context.world_size)
        os.register_at_fork(after_in_child=self._close_in_child)
        threading.Thread(target=self._accept_all, name="fairlead-gang", daemon=True).start()
        return steps

    def ready(self) -> None:
        def missing() -> list[int]:
            ranks, here = range(1, self._context.world_size), self._followers
            return [rank for rank in ranks if rank not in here or "ready" not in here[rank].received]

        self._await(lambda: not missing(), self._patience.start_s, lambda: _names(missing()))
        self._send_all(go=1)
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it, which close would not
        self._listener.close()

    def handle_messages(self) -> int | None:
        self.has_messages = False
        self._check()
        return self.request_stop(self._current_step()) if self._stop_requested else None

    def request_stop(self, steps: int) -> int:
        """The exit step is fixed once: a second reason to stop changes nothing."""
        if self._exit >= 0:
            return self._exit

        def missing() -> list[int]:
            return [rank for rank, follower in self._followers.items() if follower.reached("at") < 0]

        self._send_all(prepare=1)
        self._await(lambda: not missing(), self._patience.answer_s, lambda: _names(missing()))
        self._exit = 1 + max(steps, *(follower.reached("at") for follower in self._followers.values()))
        self._send_all(exit=self._exit)
        return self._exit

    def wait_for_parts(self, steps: int) -> None:
        self._await(lambda: all(one.reached("wrote") >= steps for one in self._followers.values()), None, str)

    def saved(self, steps: int) -> None:
        self._send_all(saved=steps)

    def done(self, steps: int) -> None:
        self._released.set()
        self._send_all(done=steps)

    def _notify_others(self, why: str) -> None:
        self._send_all(broken=why)
        for follower in self._followers.values():
            follower.line.close()

    def _send_all(self, **message: int | str) -> None:
        for follower in self._followers.values():
            follower.line.send(**message)

    def _accept_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="fairlead-gang", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        line = GangConnection(connection)
        try:
            rank = self._handshake(line)
        except (OSError, EOFError, ValueError):
            line.close()
            return
        follower = self._followers[rank]
        try:
            while "done" not in follower.received:
                message = line.receive()
                with self._condition:
                    follower.received |= {name: value for name, value in message.items() if isinstance(value, int)}
                    if "asks" in message:
                        self._stop_requested = self.has_messages = True
                    self._condition.notify_all()
        except (OSError, EOFError, ValueError):
            self._break(f"worker {rank} is gone")

    def _handshake(self, line: GangConnection) -> int:
        line.set_timeout(_HANDSHAKE_S)
        challenge = secrets.token_hex(16)
        line.send(challenge=challenge)
        hello = line.receive()
        rank, theirs, proof = hello.get("rank"), str(hello.get("challenge")), str(hello.get("proof"))
        if not isinstance(rank, int) or not 0 < rank < self._context.world_size:
            raise ValueError("no such worker")
        if not hmac.compare_digest(proof, self._proof("other", rank, challenge)):
            raise ValueError("wrong token")
        with self._condition:
            if rank in self._followers:
                raise ValueError("this rank is connected already")
            self._followers[rank] = _FollowerState(line)
        line.set_timeout(None)
        line.send(proof=self._proof("first", theirs), begin=self._begins_at)
        return rank

    def _close_in_child(self) -> None:
        if self._listener.fileno() >= 0:
            os.close(self._listener.detach())
        for follower in self._followers.values():
            follower.line.close_in_child()


def _names(ranks: list[int]) -> str:
    return ("worker " if len(ranks) == 1 else "workers ") + ", ".join(map(str, ranks))
