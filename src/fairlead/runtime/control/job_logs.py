"""What jobs print, for people: found on the node that ran a launch and read there, a piece at a time. The logs stay with the
agents; the control plane keeps none of them."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fairlead.core.errors import FairleadError
from fairlead.core.job import ENDED, Phase
from fairlead.runtime.protocol.messages import CHUNK_BYTES, LogChunk, LogRequest

if TYPE_CHECKING:
    from fairlead.runtime.control.control_plane import ControlPlane

MOST_REMEMBERED = 10_000

_Worker: TypeAlias = tuple[int, int, int]
"""A job's number, a launch and a rank."""


class LogUnreachable(FairleadError):
    """Not to be read now: its node does not answer."""


class LogMissing(FairleadError):
    """There is no such log."""


@dataclass(frozen=True)
class _Known:
    """What the state says of a launch, read before its log: where all is over then, all has been printed."""

    launch: int
    launches: int
    over: bool  # nothing of this launch runs any more
    ended: bool  # nor will there be another
    node: int  # -1: not known


@dataclass(eq=False)
class LogReader:
    plane: ControlPlane
    _node_of: dict[_Worker, int] = field(default_factory=dict)  # found by asking everybody

    async def read(self, number: int, launch: int, rank: int, offset: int) -> dict[str, Any]:
        known = await asyncio.to_thread(self._known, number, launch, rank)
        told = {"number": number, "launch": known.launch, "launches": known.launches, "rank": rank, "ended": known.ended}
        if known.launch == 0:
            return {**told, "over": known.ended, "offset": 0, "next": 0, "text": ""}
        wanted = LogRequest(0, number, known.launch, rank, offset, CHUNK_BYTES)
        piece = await self._piece(known, wanted)
        data = base64.b64decode(piece.data)
        text, used = _text(data, final=known.over)
        return {**told, "over": known.over, "offset": piece.offset, "next": piece.offset + used, "text": text}

    def _known(self, number: int, launch: int, rank: int) -> _Known:
        with self.plane.backend.at_rest():
            a = self.plane.loop.state.store.arrays
            starts, phase = int(a["starts"][number]), Phase(int(a["phase"][number]))
            launch = launch or starts
            if launch > starts:
                raise LogMissing(f"it has been launched {starts} times; there is no launch {launch}")
            run = self.plane.backend.launches.get(number, launch)
            node = -1
            if run is not None:
                if not 0 <= rank < run.world_size:
                    raise LogMissing(f"its workers are 0 to {run.world_size - 1}; there is no worker {rank}")
                node = next(seat.node for seat in run.assignment if rank in seat.ranks)
            return _Known(launch, starts, run is None, phase in ENDED, node)

    async def _piece(self, known: _Known, wanted: LogRequest) -> LogChunk:
        worker, nodes, hub = (wanted.job, wanted.generation, wanted.rank), self.plane.cluster.nodes, self.plane.hub
        node = self._node_of.get(worker, known.node) if known.node < 0 else known.node
        if node >= 0:
            self._remember(worker, node)
            found = await hub.read_log(node, wanted)
            if found is None:
                raise LogUnreachable(
                    f"node {nodes[node].name}, where it ran, does not answer; its log can be read when it is back"
                )
            if not found.problem:
                return found
            if not known.over:  # it is about to begin
                return LogChunk(0, max(0, wanted.offset))
            raise LogMissing(found.problem)
        here = sorted(hub.connected)
        answers = await asyncio.gather(*(hub.read_log(one, wanted) for one in here))
        for one, answer in zip(here, answers):
            if answer is not None and not answer.problem:
                self._remember(worker, one)
                return answer
        silent = [nodes[one].name for one, answer in zip(here, answers) if answer is None]
        away = silent + [node.name for one, node in enumerate(nodes) if one not in here]
        what = f"the log of worker {wanted.rank} in launch {wanted.generation}"
        if away:
            raise LogUnreachable(
                f"{what} is on no node that answers; away: {', '.join(away[:5])}{' …' if len(away) > 5 else ''}"
            )
        raise LogMissing(f"{what} is not kept any more, or never was")

    def _remember(self, worker: _Worker, node: int) -> None:
        if len(self._node_of) >= MOST_REMEMBERED:
            self._node_of.clear()
        self._node_of[worker] = node


def _text(data: bytes, *, final: bool) -> tuple[str, int]:
    """The text, and how many of the bytes it took: half a character at the end waits for its other half, unless none comes."""
    for cut in range(min(4, len(data) + 1)) if not final else ():
        try:
            return data[: len(data) - cut].decode(), len(data) - cut
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), len(data)
