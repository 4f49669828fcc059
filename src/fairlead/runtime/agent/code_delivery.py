"""Launches that wait for their code: the archive is asked for piece by piece over the agent's stream, unpacked beside the
agent's other work, and then they begin. It neither speaks to the control plane nor starts anything itself."""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass, field, replace

from fairlead.core.errors import FairleadError
from fairlead.core.job import LAUNCH_FAILED
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.protocol.messages import CodeChunk, CodeRequest
from fairlead.runtime.protocol.orders import Ended, Kill, Launch, Reroute, Revoke


@dataclass
class _Delivery:
    """One archive on its way. `problem` is None while it is not known whether it will be there."""

    archive: bytearray = field(default_factory=bytearray)
    unpacking: threading.Thread | None = None
    failed_by_node: bool = False  # as by a disk that is full, and then by no fault of the job
    problem: str | None = None


class Deliveries:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._waiting: dict[tuple[int, int], Launch] = {}
        self._coming: dict[str, _Delivery] = {}

    @property
    def waiting(self) -> set[tuple[int, int]]:
        return set(self._waiting)

    def hold(self, launch: Launch) -> list[CodeRequest] | None:
        """None where it can begin; otherwise it waits, and this is what must be asked for."""
        digest = launch.task.code
        if not digest or self._supervisor.has_code(digest):
            return None
        self._waiting[launch.job, launch.generation] = launch
        if digest in self._coming:
            return []
        self._coming[digest] = _Delivery()
        return [CodeRequest(digest)]

    def again(self) -> list[CodeRequest]:
        """What must be asked for on a new stream: the answers to what was asked before are lost."""
        return [CodeRequest(digest, len(one.archive)) for digest, one in self._coming.items() if one.unpacking is None]

    def take(self, piece: CodeChunk) -> list[CodeRequest]:
        """A part has come; what to ask for next."""
        one = self._coming.get(piece.digest)
        if one is None or one.unpacking is not None or (piece.offset != len(one.archive) and not piece.problem):
            return []
        if piece.problem:
            one.problem = piece.problem
            return []
        one.archive += base64.b64decode(piece.data)
        if len(one.archive) < piece.size and piece.data:
            return [CodeRequest(piece.digest, len(one.archive))]
        one.unpacking = threading.Thread(target=self._unpack, args=(piece.digest, one), daemon=True)
        one.unpacking.start()
        return []

    def drop(self, order: Revoke | Kill) -> Ended | None:
        """Nobody wants a launch any more that waits for its code; None where it does not wait here."""
        if self._waiting.pop((order.job, order.generation), None) is None:
            return None
        return Ended(order.job, order.generation, 0, True, 0, 0, "it waited for its code")

    def reroute(self, order: Reroute) -> bool:
        """A launch that waits for its code begins with another route; False where it does not wait here."""
        key = order.job, order.generation
        if (launch := self._waiting.get(key)) is None:
            return False
        self._waiting[key] = replace(launch, parameters=replace(launch.parameters, routing=order.routing))
        return True

    def ready(self) -> tuple[list[Launch], list[Ended]]:
        """Those whose code is there by now, and those whose code never will be."""
        begin: list[Launch] = []
        ended: list[Ended] = []
        for digest in [digest for digest, one in self._coming.items() if one.problem is not None]:
            one = self._coming.pop(digest)
            for key in [key for key, launch in self._waiting.items() if launch.task.code == digest]:
                launch = self._waiting.pop(key)
                if one.problem:
                    ended.append(Ended(*key, LAUNCH_FAILED, one.failed_by_node, 0, 0, one.problem))
                else:
                    begin.append(launch)
        return begin, ended

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
