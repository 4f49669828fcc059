"""The first worker of a gang: it listens, and decides when all stop."""

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
from fairlead.client.gang.connection import HANDSHAKE_S, GangConnection, GangMember
from fairlead.client.launch_context import LaunchContext


@dataclass(slots=True)
class _Other:
    """What the first worker knows of another."""

    line: GangConnection
    ready: bool = False
    at: int = -1
    wrote: int = -1
    done: int = -1


class Leader(GangMember):
    first = True

    def __init__(self, surroundings: LaunchContext, where: Callable[[], int], patience: Patience) -> None:
        super().__init__(surroundings, where, patience)
        self._others: dict[int, _Other] = {}
        self._asked = False
        self._begins_at = 0
        self._exit = -1

    def agree(self, steps: int) -> int:
        self._begins_at = steps
        address = (self._surroundings.master_address, self._surroundings.gang_port)
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server(address, family=family, backlog=self._surroundings.world_size)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._welcome_all, name="fairlead-gang", daemon=True).start()
        return steps

    def ready(self) -> None:
        everybody = range(1, self._surroundings.world_size)
        here = self._others
        self._await(
            lambda: all(rank in here and here[rank].ready for rank in everybody),
            self._patience.start_s,
            lambda: _names([rank for rank in everybody if rank not in here or not here[rank].ready]),
        )
        self._tell(go=1)
        self._listener.shutdown(socket.SHUT_RDWR)  # a thread waits in it, which a mere close would not end
        self._listener.close()

    def attend(self) -> int | None:
        self.calls = False
        self._check()
        return self.end_after(self._where()) if self._asked else None

    def end_after(self, steps: int) -> int:
        """Fixed once: a second reason to stop changes nothing."""
        if self._exit >= 0:
            return self._exit
        self._tell(prepare=1)
        others = self._others
        self._await(
            lambda: all(max(other.at, other.done) >= 0 for other in others.values()),
            self._patience.answer_s,
            lambda: _names([rank for rank, other in others.items() if max(other.at, other.done) < 0]),
        )
        self._exit = 1 + max(steps, *(max(other.at, other.done) for other in others.values()))
        self._tell(exit=self._exit)
        return self._exit

    def gather(self, steps: int) -> None:
        others = self._others
        self._await(lambda: all(max(other.wrote, other.done) >= steps for other in others.values()), None, str)

    def saved(self, steps: int) -> None:
        self._tell(saved=steps)

    def done(self, steps: int) -> None:
        self._through.set()
        self._tell(done=steps)

    def _pass_on(self, why: str) -> None:
        self._tell(broken=why)
        for other in self._others.values():
            other.line.close()

    def _tell(self, **message: int | str) -> None:
        for other in self._others.values():
            other.line.send(**message)

    def _welcome_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="fairlead-gang", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        line = GangConnection(connection)
        try:
            rank = self._greet(line)
        except (OSError, EOFError, ValueError):
            line.close()
            return
        other = self._others[rank]
        try:
            while other.done < 0:
                self._hear(other, line.receive())
        except (OSError, EOFError, ValueError):
            self._break(f"worker {rank} is gone")

    def _greet(self, line: GangConnection) -> int:
        line.patience(HANDSHAKE_S)
        challenge = secrets.token_hex(16)
        line.send(challenge=challenge)
        hello = line.receive()
        rank, theirs, proof = hello.get("rank"), str(hello.get("challenge")), str(hello.get("proof"))
        if not isinstance(rank, int) or not 0 < rank < self._surroundings.world_size:
            raise ValueError("no such worker")
        if not hmac.compare_digest(proof, self._proof("other", rank, challenge)):
            raise ValueError("wrong token")
        with self._heard:
            if rank in self._others:
                raise ValueError("there is one already")
            self._others[rank] = _Other(line)
        line.patience(None)
        line.send(proof=self._proof("first", theirs), begin=self._begins_at)
        return rank

    def _hear(self, other: _Other, message: dict[str, Any]) -> None:
        with self._heard:
            if "ready" in message:
                other.ready = True
            elif "asks" in message:
                self._asked = self.calls = True
            elif "at" in message:
                other.at = int(message["at"])
            elif "wrote" in message:
                other.wrote = int(message["wrote"])
            elif "done" in message:
                other.done = int(message["done"])
            self._heard.notify_all()

    def _forget(self) -> None:
        if self._listener.fileno() >= 0:
            os.close(self._listener.detach())
        for other in self._others.values():
            other.line.forget()


def _names(ranks: list[int]) -> str:
    return ("worker " if len(ranks) == 1 else "workers ") + ", ".join(map(str, ranks))
