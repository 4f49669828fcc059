"""Logs of jobs, read chunk by chunk from the agents that ran them. The control plane stores only the ends of logs of nodes that
were temporary, such as those of an allocation of Slurm."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fairlead.core.errors import FairleadError
from fairlead.core.job import ENDED, Phase
from fairlead.runtime.protocol.code_archive import CHUNK_BYTES
from fairlead.runtime.protocol.messages import LogChunk, LogRequest
from fairlead.runtime.protocol.task_file import task_of

if TYPE_CHECKING:
    from fairlead.runtime.control.control_plane import ControlPlane

MAX_REMEMBERED = 10_000

_KEEP = "submit --output FILE stores the log of a job in a file"

_Worker: TypeAlias = tuple[int, int, int]  # a job's number, a launch and a rank


class LogUnreachable(FairleadError):
    """The log cannot be read now: its node does not answer."""


class LogMissing(FairleadError):
    """There is no such log."""


@dataclass(eq=False)
class LogReader:
    """Finds and reads the logs of workers."""

    plane: ControlPlane
    _node_of: dict[_Worker, int] = field(default_factory=dict)  # found by asking all nodes

    async def read(self, number: int, launch: int, rank: int, offset: int) -> dict[str, Any]:
        """Return a chunk of a worker's log; launch 0 is the last one with a log.

        Raises:
            LogUnreachable: Its node does not answer.
            LogMissing: There is no such log.
        """
        record, node = await asyncio.to_thread(self._launch, number, launch, rank)
        if record["launch"] == 0:
            return {**record, "over": record["ended"], "offset": 0, "next": 0, "text": ""}
        request = LogRequest(0, number, record["launch"], rank, offset, CHUNK_BYTES)
        try:
            chunk = await self._chunk(node, request, over=record["over"])
        except LogMissing:  # a launch that was asked to leave before it began has no log
            if launch == 0 < record["launch"] - 1:
                return await self.read(number, record["launch"] - 1, rank, offset)
            if record["launch"] < record["launches"] or (record["ended"] and record["launches"] == 1):
                raise
            chunk = LogChunk(0, max(0, offset))
        text, used = _text(base64.b64decode(chunk.data), final=record["over"])
        return {**record, "offset": chunk.offset, "next": chunk.offset + used, "text": text}

    async def read_output(self, number: int, path: str, offset: int) -> tuple[int, bytes]:
        """Return the last launch of a job, and a chunk of one of its kept outputs; of the list of them for an empty path.

        Raises:
            LogUnreachable: Its node does not answer.
            LogMissing: There is no such output.
        """
        record, _ = await asyncio.to_thread(self._launch, number, 0, 0)
        if not task_of(self.plane.loop.state.job_of[number]).outputs:
            raise LogMissing("it declares no outputs: name files with --outputs, or outputs: in its task file, before it runs")
        if record["launch"] == 0 or not record["over"]:
            raise LogMissing("its outputs can be fetched when it has ended")
        launch = record["launch"]
        try:
            chunk = await self._chunk(-1, LogRequest(0, number, launch, -1, offset, CHUNK_BYTES, path), over=True)
        except LogMissing:  # a job that ended while it moved has no output of the launch that did not begin
            if launch == 1:
                raise
            launch -= 1
            chunk = await self._chunk(-1, LogRequest(0, number, launch, -1, offset, CHUNK_BYTES, path), over=True)
        return launch, base64.b64decode(chunk.data)

    def _launch(self, number: int, launch: int, rank: int) -> tuple[dict[str, Any], int]:
        """A launch in the state, and its node (-1: unknown). It is read before the log: if nothing of the launch runs by then
        (`over`), the log is complete."""
        with self.plane.backend.at_rest():
            a = self.plane.loop.state.columns
            starts, ended = int(a["starts"][number]), Phase(int(a["phase"][number])) in ENDED
            launch = launch or starts
            if launch > starts:
                raise LogMissing(f"it has been launched {starts} times; there is no launch {launch}")
            run = self.plane.backend.launches.get(number, launch)
            node = -1
            if run is not None:
                if not 0 <= rank < run.world_size:
                    raise LogMissing(f"its workers are 0 to {run.world_size - 1}; there is no worker {rank}")
                node = next(part.node for part in run.assignment if rank in part.ranks)
        record = {"number": number, "launch": launch, "launches": starts, "rank": rank, "ended": ended, "over": run is None}
        return record, node

    async def _chunk(self, node: int, request: LogRequest, *, over: bool) -> LogChunk:
        worker, nodes, hub = (request.job, request.generation, request.rank), self.plane.cluster.nodes, self.plane.hub
        if hub.engines.all and (data := await self.plane.agents.read_output(request)) is not None:
            return LogChunk(0, max(0, request.offset), base64.b64encode(data).decode())
        kept = self.plane.hub.transfers.logs
        if kept is not None and (stored := await asyncio.to_thread(kept.read, request)) is not None:
            return stored
        node = self._node_of.get(worker, -1) if node < 0 else node
        if node >= 0:
            self._remember(worker, node)
            found = await self.plane.agents.read_log(node, request)
            if nodes[node].removed:
                raise LogMissing(f"node {nodes[node].name}, where it ran, was removed from the cluster, with its logs; {_KEEP}")
            if found is None:
                raise LogUnreachable(
                    f"node {nodes[node].name}, where it ran, does not answer; its log can be read when it is connected again"
                )
            if not found.problem:
                return found
            if not over:  # it is about to begin
                return LogChunk(0, max(0, request.offset))
            raise LogMissing(found.problem)
        here = sorted(hub.connected)
        answers = await asyncio.gather(*(self.plane.agents.read_log(one, request) for one in here))
        for one, answer in zip(here, answers):
            if answer is not None and not answer.problem:
                self._remember(worker, one)
                return answer
        heard = {one for one, answer in zip(here, answers) if answer is not None}
        heard |= {one for one in range(len(nodes)) if (engine := hub.engines.of(one)) is not None and not engine.problem}
        away = [node.name for one, node in enumerate(nodes) if one not in heard and not node.removed]
        what = f"the log of worker {request.rank} in launch {request.generation}"
        if request.rank < 0:
            what = f"the output {request.path!r} of launch {request.generation}" if request.path else "a list of its outputs"
        if away:
            raise LogUnreachable(
                f"{what} is on a node that does not answer; unreachable: {', '.join(away[:5])}{' …' if len(away) > 5 else ''}"
            )
        advice = f"; {_KEEP}" if request.rank >= 0 else ""
        raise LogMissing(f"{what} is not stored: it was deleted, or the launch failed before it wrote any{advice}")

    def _remember(self, worker: _Worker, node: int) -> None:
        if len(self._node_of) >= MAX_REMEMBERED:
            self._node_of.clear()
        self._node_of[worker] = node


def _text(data: bytes, *, final: bool) -> tuple[str, int]:
    """Return the text and the bytes it took; an incomplete character at the end waits for the next chunk."""
    for cut in range(min(4, len(data) + 1)) if not final else ():
        try:
            return data[: len(data) - cut].decode(), len(data) - cut
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), len(data)
