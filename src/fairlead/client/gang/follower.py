"""Every worker of a gang but the first: it answers, holds and leaves when it is told."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from fairlead.client.gang import GangBroken, Patience
from fairlead.client.gang.connection import HANDSHAKE_S, GangConnection, GangMember
from fairlead.client.launch_context import LaunchContext

RETRY_S = 0.05


class Follower(GangMember):
    """`on_saved` hears of whole checkpoints."""

    first = False

    def __init__(
        self, surroundings: LaunchContext, where: Callable[[], int], patience: Patience, on_saved: Callable[[int], None]
    ) -> None:
        super().__init__(surroundings, where, patience)
        self._on_saved = on_saved
        self._asked = False
        self._go = False
        self._held = False
        self._exit = -1
        self._saved = -1
        self._first_is_done = False

    def agree(self, steps: int) -> int:
        self._line = GangConnection(self._connect())
        self._line.patience(self._patience.start_s)
        try:
            begin = self._greet()
        except (OSError, EOFError, ValueError) as error:
            raise GangBroken("worker 0 refuses this worker: another token, generation or rank") from error
        self._line.patience(None)
        os.register_at_fork(after_in_child=self._line.forget)
        threading.Thread(target=self._listen, name="fairlead-gang", daemon=True).start()
        return begin

    def ready(self) -> None:
        self._line.send(ready=1)
        self._await(lambda: self._go, self._patience.start_s, lambda: "worker 0")

    def attend(self) -> int | None:
        self.calls = False
        # Twice as patient as the first worker, which may be waiting for somebody else and knows better whom to name.
        self._await(
            lambda: not self._held or self._exit >= 0 or self._first_is_done, 2 * self._patience.answer_s, lambda: "worker 0"
        )
        return self._exit if self._exit >= 0 else None

    def end_after(self, steps: int) -> int | None:
        if not self._asked and not self._first_is_done:
            self._asked = True
            self._line.send(asks=1)
        return None

    def gather(self, steps: int) -> None:
        self._line.send(wrote=steps)
        self._await(lambda: self._saved >= steps or self._first_is_done, None, str)

    def saved(self, steps: int) -> None: ...

    def done(self, steps: int) -> None:
        self._line.send(done=steps)
        self._await(lambda: self._first_is_done, None, str)
        self._through.set()

    def _connect(self) -> socket.socket:
        address = (self._surroundings.master_address, self._surroundings.gang_port)
        deadline = time.monotonic() + self._patience.start_s
        while True:
            try:
                return socket.create_connection(address, timeout=HANDSHAKE_S)
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise GangBroken(f"worker 0 does not listen at {address[0]}:{address[1]}") from error
                time.sleep(RETRY_S)

    def _greet(self) -> int:
        challenge, rank = secrets.token_hex(16), self._surroundings.rank
        theirs = str(self._line.receive().get("challenge"))
        self._line.send(rank=rank, challenge=challenge, proof=self._proof("other", rank, theirs))
        answer = self._line.receive()
        if not hmac.compare_digest(str(answer.get("proof")), self._proof("first", challenge)):
            raise ValueError("wrong token")
        return int(answer["begin"])

    def _listen(self) -> None:
        try:
            while not self._first_is_done:
                self._hear(self._line.receive())
        except (OSError, EOFError, ValueError):
            self._break("worker 0 is gone")
        except GangBroken as broken:
            self._break(str(broken))

    def _hear(self, message: dict[str, Any]) -> None:
        if "broken" in message:
            raise GangBroken(message["broken"])
        if "saved" in message:
            self._on_saved(int(message["saved"]))
        with self._heard:
            if "prepare" in message:
                # First hold, then look: the loop counts its step before it looks at `calls`, so it can be at most one further.
                self._held = self.calls = True
                self._line.send(at=self._where())
            elif "go" in message:
                self._go = True
            elif "exit" in message:
                self._exit = int(message["exit"])
            elif "saved" in message:
                self._saved = int(message["saved"])
            elif "done" in message:
                self._first_is_done = True
            self._heard.notify_all()
