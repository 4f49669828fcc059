"""A follower: every worker of a gang except worker 0. It answers the leader, pauses, and leaves when the leader says so."""

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
from fairlead.client.gang.gang_connection import HANDSHAKE_S, GangConnection, GangMember
from fairlead.client.launch_context import LaunchContext

_RETRY_S = 0.05


class Follower(GangMember):
    """A follower; `on_saved` is called with the step of each complete checkpoint."""

    def __init__(
        self, context: LaunchContext, current_step: Callable[[], int], patience: Patience, on_saved: Callable[[int], None]
    ) -> None:
        super().__init__(context, current_step, patience)
        self._on_saved = on_saved
        self._stop_requested = False
        self._go = False
        self._paused = False
        self._exit = -1
        self._saved = -1
        self._leader_is_done = False

    def agree_on_start(self, steps: int) -> int:
        self._line = GangConnection(self._connect())
        self._line.set_timeout(self._patience.start_s)
        try:
            begin = self._handshake()
        except (OSError, EOFError, ValueError) as error:
            raise GangBroken("worker 0 refuses this worker: another token, generation or rank") from error
        self._line.set_timeout(None)
        os.register_at_fork(after_in_child=self._line.close_in_child)
        threading.Thread(target=self._listen, name="fairlead-gang", daemon=True).start()
        return begin

    def ready(self) -> None:
        self._line.send(ready=1)
        self._await(lambda: self._go, self._patience.start_s, lambda: "worker 0")

    def handle_messages(self) -> int | None:
        self.has_messages = False
        # Twice the leader's timeout: the leader may wait for another worker and can name it.
        self._await(
            lambda: not self._paused or self._exit >= 0 or self._leader_is_done, 2 * self._patience.answer_s, lambda: "worker 0"
        )
        return self._exit if self._exit >= 0 else None

    def request_stop(self, steps: int) -> int | None:
        if not self._stop_requested and not self._leader_is_done:
            self._stop_requested = True
            self._line.send(asks=1)
        return None

    def wait_for_parts(self, steps: int) -> None:
        self._line.send(wrote=steps)
        self._await(lambda: self._saved >= steps or self._leader_is_done, None, str)

    def done(self, steps: int) -> None:
        self._line.send(done=steps)
        self._await(lambda: self._leader_is_done, None, str)
        self._released.set()

    def _connect(self) -> socket.socket:
        address = (self._context.master_address, self._context.gang_port)
        deadline = time.monotonic() + self._patience.start_s
        while True:
            try:
                return socket.create_connection(address, timeout=HANDSHAKE_S)
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise GangBroken(f"worker 0 does not listen at {address[0]}:{address[1]}") from error
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
            while not self._leader_is_done:
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
            if "prepare" in message:
                # First pause, then read the step: the loop counts before it reads `has_messages`, so it is at most one ahead.
                self._paused = self.has_messages = True
                self._line.send(at=self._current_step())
            elif "go" in message:
                self._go = True
            elif "exit" in message:
                self._exit = int(message["exit"])
            elif "saved" in message:
                self._saved = int(message["saved"])
            elif "done" in message:
                self._leader_is_done = True
            self._condition.notify_all()
