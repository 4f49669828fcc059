"""Logs of launches that have none."""

from __future__ import annotations

import asyncio
import base64
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.core.cluster import Node
from fairlead.core.job import Job, Phase
from fairlead.journal.control_files import LOGS, FolderFiles
from fairlead.runtime.control.engines import Engines
from fairlead.runtime.control.job_logs import LogMissing, LogReader, LogUnreachable
from fairlead.runtime.control.kept_logs import KeptLogs
from fairlead.runtime.protocol.messages import (
    MAX_TAIL,
    BadMessage,
    LogChunk,
    LogRequest,
    LogTail,
    decode_message,
    encode_message,
)


def reader(logs: dict[int, bytes], starts: int, phase: Phase, kept: KeptLogs | None = None) -> LogReader:
    """Of a cluster with a node that stores these logs of a job, by launch."""

    async def read_log(node: int, request: LogRequest) -> LogChunk:
        if request.generation not in logs:
            return LogChunk(0, problem="there is no log")
        return LogChunk(0, request.offset, base64.b64encode(logs[request.generation][request.offset :]).decode())

    plane: Any = SimpleNamespace(
        backend=SimpleNamespace(at_rest=nullcontext, launches=SimpleNamespace(get=lambda job, launch: None)),
        loop=SimpleNamespace(state=SimpleNamespace(columns={"starts": [starts], "phase": [int(phase)]})),
        cluster=SimpleNamespace(nodes=(Node("n1", "v100", 1),)),
        hub=SimpleNamespace(connected={0}, engines=Engines(), transfers=SimpleNamespace(logs=kept)),
        agents=SimpleNamespace(read_log=read_log),
    )
    return LogReader(plane)


def read(logs: LogReader, launch: int = 0) -> tuple[int, str]:
    found = asyncio.run(logs.read(0, launch, 0, 0))
    return found["launch"], found["text"]


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.CANCELLED])
def test_a_launch_that_was_stopped_before_it_began_hides_no_log(phase: Phase) -> None:
    logs = reader({1: b"hello"}, 2, phase)
    assert read(logs) == (1, "hello")
    assert read(logs, 2) == (2, ""), "followers go on with the next launch"
    assert read(reader({}, 1, Phase.WAITING)) == (1, "")


def test_outputs_of_a_job_that_ended_while_it_moved_are_those_of_the_launch_before() -> None:
    logs = reader({1: b"kept"}, 2, Phase.FINISHED)
    logs.plane.loop.state.job_of = {0: Job("a", command='{"run": ["true"], "outputs": ["result.txt"]}')}
    assert asyncio.run(logs.read_output(0, "result.txt", 0)) == (1, b"kept")
    logs.plane.loop.state.columns["starts"] = [3]
    with pytest.raises(LogMissing, match="of launch 2 is not stored"):
        asyncio.run(logs.read_output(0, "result.txt", 0))


def test_logs_that_were_removed_are_missing() -> None:
    with pytest.raises(LogMissing, match="launch 1 is not stored"):
        read(reader({}, 1, Phase.FINISHED))
    with pytest.raises(LogMissing, match="launch 1 is not stored"):
        read(reader({2: b""}, 2, Phase.FINISHED), 1)


@pytest.mark.parametrize(
    ("problem", "error", "words"),
    [
        ("", LogMissing, "is not stored: it was deleted, or the launch failed"),
        ("kubernetes is away", LogUnreachable, "does not answer"),
    ],
)
def test_an_engine_that_has_no_log_of_a_launch_has_answered(problem: str, error: type[Exception], words: str) -> None:
    async def nothing(*_: object) -> None:
        return None

    logs = reader({}, 1, Phase.CANCELLED)
    engines: Any = SimpleNamespace(all=(1,), of=lambda node: SimpleNamespace(problem=problem))
    logs.plane.hub.engines, logs.plane.agents.read_log, logs.plane.agents.read_output = engines, nothing, nothing
    with pytest.raises(error, match=words):
        read(logs)


def test_the_end_of_a_log_outlives_its_node(tmp_path: Path) -> None:
    kept = KeptLogs(FolderFiles(tmp_path), "journal", lambda job: 3)
    kept.add(LogTail(0, 1, 0, 1000, base64.b64encode(b"the end\n").decode()))
    kept.add(LogTail(0, 1, 0, 0, base64.b64encode(b"another one").decode()))
    kept.add(LogTail(0, 2, 0, 0, "not base64"))
    found = asyncio.run(reader({}, 1, Phase.FINISHED, kept).read(0, 1, 0, 0))
    assert (found["offset"], found["text"], found["next"]) == (1000, "the end\n", 1008)
    for offset, text in ((-4, "end\n"), (1004, "end\n"), (1008, ""), (5000, "")):
        assert asyncio.run(reader({}, 1, Phase.FINISHED, kept).read(0, 1, 0, offset))["text"] == text
    with pytest.raises(LogMissing, match="submit --output FILE"):
        read(reader({}, 3, Phase.FINISHED, kept), 2)
    other = KeptLogs(kept.files, "another", kept.starts_of)
    with pytest.raises(LogMissing):
        read(reader({}, 1, Phase.FINISHED, other))
    kept.clean(0.0)
    assert kept.read(LogRequest(0, 0, 1, 0, 0, 100)) is not None
    kept.clean(4e9)
    assert kept.read(LogRequest(0, 0, 1, 0, 0, 100)) is None


def test_ends_of_logs_are_stored_for_launches_that_exist_and_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptLogs(FolderFiles(tmp_path), "journal", lambda job: 1 if job < 100 else 0)
    for job, generation in ((100, 1), (0, 2), (0, 0)):
        kept.add(LogTail(job, generation, 0, 0, "AAAA"))
    assert not kept.files.listed(LOGS), "of launches that never were"
    monkeypatch.setattr("fairlead.runtime.control.kept_logs.MAX_KEPT_BYTES", 10_000)
    for job in range(100):
        kept.add(LogTail(job, 1, 0, 0, base64.b64encode(bytes(1_000)).decode()))
        assert sum(one.size for one in kept.files.listed(LOGS).values()) <= 11_000
    assert kept.read(LogRequest(0, 99, 1, 0, 0, 10)) is not None


def test_the_end_of_a_log_has_a_bound() -> None:
    for tail in (LogTail(0, 1, 0, 0, "A" * (MAX_TAIL + 1)), LogTail(0, 1, 10**6)):
        with pytest.raises(BadMessage):
            decode_message(encode_message(tail))
