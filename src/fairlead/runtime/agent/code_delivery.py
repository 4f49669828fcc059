"""Launches that wait for their code. The archive is requested in chunks over the agent's stream and unpacked in a thread; then
the launches can start. This module neither sends messages nor starts anything itself."""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass, field, replace

from fairlead.core.errors import FairleadError
from fairlead.core.job import LAUNCH_FAILED
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.protocol.messages import CodeChunk, CodeRequest
from fairlead.runtime.protocol.orders import Ended, Kill, Launch, Reroute, Revoke, bounded_text


@dataclass
class _Delivery:
    """One archive in transfer. `problem` is None until the outcome is known, then empty or the error."""

    archive: bytearray = field(default_factory=bytearray)
    unpacking: threading.Thread | None = None
    failed_by_node: bool = False  # such as by a full disk; not a fault of the job
    problem: str | None = None


class CodeDeliveries:
    """All archives in transfer, and the launches that wait for them."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._waiting: dict[tuple[int, int], Launch] = {}
        self._transfers: dict[str, _Delivery] = {}

    @property
    def waiting(self) -> set[tuple[int, int]]:
        return set(self._waiting)

    def hold(self, launch: Launch) -> list[CodeRequest] | None:
        """None if the launch can start; otherwise it waits, and these requests must be sent."""
        digest = launch.task.code
        if not digest or self._supervisor.has_code(digest):
            return None
        self._waiting[launch.key] = launch
        if digest in self._transfers:
            return []
        self._transfers[digest] = _Delivery()
        return [CodeRequest(digest)]

    def repeated_requests(self) -> list[CodeRequest]:
        """The requests to send on a new stream: answers to earlier ones are lost."""
        return [CodeRequest(digest, len(one.archive)) for digest, one in self._transfers.items() if one.unpacking is None]

    def receive(self, chunk: CodeChunk) -> list[CodeRequest]:
        one = self._transfers.get(chunk.digest)
        if one is None or one.unpacking is not None or (chunk.offset != len(one.archive) and not chunk.problem):
            return []
        if chunk.problem:
            one.problem = chunk.problem
            return []
        one.archive += base64.b64decode(chunk.data)
        if len(one.archive) < chunk.size and chunk.data:
            return [CodeRequest(chunk.digest, len(one.archive))]
        one.unpacking = threading.Thread(target=self._unpack, args=(chunk.digest, one), daemon=True)
        one.unpacking.start()
        return []

    def drop(self, order: Revoke | Kill) -> Ended | None:
        """Give up a waiting launch; returns its end, or None if it does not wait here."""
        if self._waiting.pop(order.key, None) is None:
            return None
        return Ended(*order.key, 0, True, 0, 0, "it waited for its code")

    def take_waiting(self) -> list[Launch]:
        """All launches that wait; from now on none does."""
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting

    def reroute(self, order: Reroute) -> bool:
        """Change the routing of a waiting launch; False if it does not wait here."""
        key = order.key
        if (launch := self._waiting.get(key)) is None:
            return False
        self._waiting[key] = replace(launch, parameters=replace(launch.parameters, routing=order.routing))
        return True

    def ready(self) -> tuple[list[Launch], list[Ended]]:
        """The launches whose code has arrived, and the ends of those whose code cannot be delivered."""
        startable: list[Launch] = []
        ended: list[Ended] = []
        for digest in [digest for digest, one in self._transfers.items() if one.problem is not None]:
            one = self._transfers.pop(digest)
            for key in [key for key, launch in self._waiting.items() if launch.task.code == digest]:
                launch = self._waiting.pop(key)
                if one.problem:
                    ended.append(Ended(*key, LAUNCH_FAILED, one.failed_by_node, 0, 0, bounded_text(one.problem)))
                else:
                    startable.append(launch)
        return startable, ended

    def _unpack(self, digest: str, one: _Delivery) -> None:
        try:
            self._supervisor.take_code(bytes(one.archive), digest)
            one.problem = ""
        except FairleadError as problem:
            one.failed_by_node = isinstance(problem, NodeError)
            one.problem = str(problem)
        except BaseException as problem:
            one.problem = f"its code cannot be unpacked: {problem}"
            raise
