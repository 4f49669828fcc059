"""Launches that wait for their code: asked for piece by piece, begun when it is there, ended when it never will be."""

from __future__ import annotations

import io
import random
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from agent_node import Node, order

from fairlead.core.job import LAUNCH_FAILED
from fairlead.journal.control_files import FolderFiles
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.code_delivery import CodeDeliveries
from fairlead.runtime.control.code_store import CodeStore
from fairlead.runtime.protocol.code_archive import CHUNK_BYTES, archive_digest
from fairlead.runtime.protocol.messages import CodeChunk, CodeRequest
from fairlead.runtime.protocol.orders import Ended, Kill, Launch, RequestRouting, Reroute, Revoke


def archive() -> bytes:
    """One that takes several pieces."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as one:
        one.writestr("main.py", "print(len(open('data').read()))")
        one.writestr("data", random.Random(1).randbytes(2 * CHUNK_BYTES).hex())
    return packed.getvalue()


def with_code(job: int, digest: str) -> Launch:
    launch = order(job=job)
    return replace(launch, task=replace(launch.task, command=(*launch.task.command[:1], "main.py"), code=digest))


def finished(node: Node, deliveries: CodeDeliveries) -> tuple[list[Launch], list[Ended]]:
    return node.until(lambda: any(found := deliveries.ready()) and found, "code that is unpacked")


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(FolderFiles(tmp_path))


def test_code_comes_in_pieces_once_for_all_who_wait_and_over_a_broken_stream(node, store):
    data = archive()
    digest = archive_digest(data)
    store.add(data, digest)
    deliveries = CodeDeliveries(node.supervisor)
    wanted = deliveries.hold(with_code(1, digest))
    assert wanted == [CodeRequest(digest)]
    assert deliveries.hold(with_code(2, digest)) == []
    assert deliveries.waiting == {(1, 1), (2, 1)}
    (wanted,) = deliveries.receive(store.chunk(digest, 0))
    assert wanted == CodeRequest(digest, CHUNK_BYTES)
    assert deliveries.receive(store.chunk(digest, 0)) == []  # said twice
    (again,) = deliveries.repeated_requests()  # a new stream
    assert again == wanted
    asked = [again]
    while asked:
        asked = deliveries.receive(store.chunk(asked[0].digest, asked[0].offset))
    begin, ended = finished(node, deliveries)
    assert ([launch.job for launch in begin], ended, deliveries.waiting) == ([1, 2], [], set())
    assert deliveries.hold(begin[0]) is None
    node.launch(begin[0])
    assert node.ended(begin[0]).code == 0
    assert node.printed(begin[0]) == f"{4 * CHUNK_BYTES}\n"


@pytest.mark.parametrize("bad", ["gone", "damaged"])
def test_a_launch_whose_code_never_comes_has_ended(node, store, bad):
    digest = archive_digest(b"something else")
    deliveries = CodeDeliveries(node.supervisor)
    deliveries.hold(with_code(1, digest))
    piece = store.chunk(digest, 0) if bad == "gone" else CodeChunk(digest, 0, 4, "bm8hIQ==")
    assert deliveries.receive(piece) == []
    begin, ended = finished(node, deliveries)
    assert (begin, [(end.job, end.code, end.yielded) for end in ended]) == ([], [(1, LAUNCH_FAILED, False)])
    assert ("submit it again" if bad == "gone" else "SHA-256") in ended[0].why


def test_code_that_a_node_cannot_unpack_is_not_the_jobs_fault(node, store):
    data = archive()
    digest = archive_digest(data)
    store.add(data, digest)
    place = node.supervisor.root / "code"
    place.rmdir()
    place.touch()
    deliveries = CodeDeliveries(node.supervisor)
    asked = deliveries.hold(with_code(1, digest))
    while asked:
        asked = deliveries.receive(store.chunk(asked[0].digest, asked[0].offset))
    begin, ended = finished(node, deliveries)
    assert (begin, [(end.job, end.code, end.yielded) for end in ended]) == ([], [(1, LAUNCH_FAILED, True)])
    assert str(place) in ended[0].why


@pytest.mark.parametrize("kind", [Revoke, Kill])
def test_a_launch_that_is_not_wanted_any_more_stops_waiting(node, kind):
    deliveries = CodeDeliveries(node.supervisor)
    deliveries.hold(with_code(1, "0" * 64))
    assert deliveries.drop(kind(1, 2)) is None
    ended = deliveries.drop(kind(1, 1))
    assert (ended.job, ended.yielded, deliveries.waiting) == (1, True, set())


def test_a_launch_that_waits_begins_with_the_route_it_has_by_then(node, store):
    data = archive()
    digest = archive_digest(data)
    store.add(data, digest)
    agent, route = Agent(node.supervisor, "node", "127.0.0.1:1"), RequestRouting(16, 900.0, (1.0,))
    asked = agent._deliveries.hold(with_code(1, digest))
    assert agent._carry_out(Reroute(1, 1, route)) is None
    assert agent._carry_out(Reroute(1, 2, RequestRouting(1, 1.0, (1.0,)))) is None  # of a launch that is not here
    while asked:
        asked = agent._deliveries.receive(store.chunk(asked[0].digest, asked[0].offset))
    (launch,), _ = finished(node, agent._deliveries)
    assert launch.parameters.routing == route
