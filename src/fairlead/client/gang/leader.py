"""The leader of a gang, worker 0: it accepts the followers' connections and decides when all stop."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.client.gang import Patience
from fairlead.client.gang.gang_connection import HANDSHAKE_S, GangConnection, GangMember
from fairlead.client.launch_context import LaunchContext


@dataclass(slots=True)
class _FollowerState:
    """The leader's state of a follower."""

    line: GangConnection
    ready: bool = False
    at: int = -1
    wrote: int = -1
    done: int = -1


class Leader(GangMember):
    """Worker 0 of a gang."""

    def __init__(self, context: LaunchContext, current_step: Callable[[], int], patience: Patience) -> None:
        super().__init__(context, current_step, patience)
        self._followers: dict[int, _FollowerState] = {}
        self._stop_requested = False
        self._begins_at = 0
        self._exit = -1

    def agree_on_start(self, steps: int) -> int:
        self._begins_at = steps
        address = (self._context.master_address, self._context.gang_port)
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server(address, family=family, backlog=self._context.world_size)
        os.register_at_fork(after_in_child=self._close_in_child)
        threading.Thread(target=self._accept_all, name="fairlead-gang", daemon=True).start()
        return steps

    def ready(self) -> None:
        ranks = range(1, self._context.world_size)
        here = self._followers
        self._await(
            lambda: all(rank in here and here[rank].ready for rank in ranks),
            self._patience.start_s,
            lambda: _names([rank for rank in ranks if rank not in here or not here[rank].ready]),
        )
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
        self._send_all(prepare=1)
        followers = self._followers
        self._await(
            lambda: all(max(follower.at, follower.done) >= 0 for follower in followers.values()),
            self._patience.answer_s,
            lambda: _names([rank for rank, follower in followers.items() if max(follower.at, follower.done) < 0]),
        )
        self._exit = 1 + max(steps, *(max(follower.at, follower.done) for follower in followers.values()))
        self._send_all(exit=self._exit)
        return self._exit

    def wait_for_parts(self, steps: int) -> None:
        followers = self._followers
        self._await(lambda: all(max(follower.wrote, follower.done) >= steps for follower in followers.values()), None, str)

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
            while follower.done < 0:
                self._handle(follower, line.receive())
        except (OSError, EOFError, ValueError):
            self._break(f"worker {rank} is gone")

    def _handshake(self, line: GangConnection) -> int:
        line.set_timeout(HANDSHAKE_S)
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

    def _handle(self, follower: _FollowerState, message: dict[str, Any]) -> None:
        with self._condition:
            if "ready" in message:
                follower.ready = True
            elif "asks" in message:
                self._stop_requested = self.has_messages = True
            elif "at" in message:
                follower.at = int(message["at"])
            elif "wrote" in message:
                follower.wrote = int(message["wrote"])
            elif "done" in message:
                follower.done = int(message["done"])
            self._condition.notify_all()

    def _close_in_child(self) -> None:
        if self._listener.fileno() >= 0:
            os.close(self._listener.detach())
        for follower in self._followers.values():
            follower.line.close_in_child()


def _names(ranks: list[int]) -> str:
    return ("worker " if len(ranks) == 1 else "workers ") + ", ".join(map(str, ranks))
