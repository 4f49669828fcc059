"""An agent's session with a hub, over a real stream."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn

import grpc.aio
import pytest
from agent_node import order

from fairlead.runtime.agent.agent_errors import AgentRefused, NodeError
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.agent_stream import ConnectionLost
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.agent_server import AgentServer
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.messages import (
    METHOD,
    SERVICE,
    Acknowledged,
    Hello,
    Leaving,
    Left,
    OrderBatch,
    ReportBatch,
    Welcome,
    decode_message,
    encode_message,
)
from fairlead.runtime.protocol.orders import Ended, Kill, Metric, Order, Revoke
from fairlead.testing.builders import cluster

PATIENCE_S = 120.0


class Ears:
    """In the place of the loop's backend."""

    def __init__(self) -> None:
        self.joins, self.words = asyncio.Event(), asyncio.Queue[Any]()

    def agent_joined(self, node: int, found: Any, accept: Any, stay: Any = None) -> None:
        accept()
        self.joins.set()

    def heartbeat(self, node: int, beat: Any) -> None: ...

    def agent_lost(self, node: int, silent_s: float = 0.0) -> None: ...

    def report(self, node: int, reports: Any, answered: Any) -> None:
        for word in reports:
            self.words.put_nowait(word)
        answered()


@contextlib.asynccontextmanager
async def agent_of(root: Path, node: str, port: int, **more: Any) -> AsyncIterator[threading.Thread]:
    """An agent at work, in a thread."""
    supervisor = Supervisor(root, NodeAccelerators.parse("v100:2"))
    agent = Agent(supervisor, node, f"127.0.0.1:{port}", **more)
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        yield thread
    finally:
        agent.stopping.set()
        await asyncio.to_thread(thread.join)
        supervisor.close()


class Listening:
    """A hub with ears, at a port that nobody else gets while it does not listen. Leases outlast the time away."""

    def __init__(self) -> None:
        self.hub, self.ears = AgentHub(lambda: cluster("v100:2"), lease_s=PATIENCE_S), Ears()
        self.hub.backend = self.ears  # type: ignore[assignment]
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port = self._place.getsockname()[1]

    async def begin(self) -> None:
        self._server, _ = await AgentServer(self.hub).serve(f"127.0.0.1:{self.port}")

    async def end(self) -> None:
        self.hub.close()
        await self._server.stop(0)

    def close(self) -> None:
        self._place.close()


@contextlib.asynccontextmanager
async def joined_by_agent(root: Path) -> AsyncIterator[Listening]:
    there = Listening()
    await there.begin()
    async with agent_of(root, there.hub.cluster.nodes[0].name, there.port), asyncio.timeout(PATIENCE_S):
        await there.ears.joins.wait()
        yield there
    await there.end()
    there.close()


@contextlib.asynccontextmanager
async def answered_by(root: Path, answers: Callable[[Any, Any], Any], **more: Any) -> AsyncIterator[threading.Thread]:
    """An agent whose streams are answered by a test."""
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(answers)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with agent_of(root, "here", port, **more) as thread, asyncio.timeout(PATIENCE_S):
        yield thread
    await server.stop(0)


def test_of_two_agents_with_one_node_name_the_second_is_refused_and_starts_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with joined_by_agent(tmp_path / "first") as there:
            supervisor = Supervisor(tmp_path / "second", NodeAccelerators.parse("v100:2"))
            second = Agent(supervisor, there.hub.cluster.nodes[0].name, f"127.0.0.1:{there.port}")
            try:
                with pytest.raises(AgentRefused, match="another root folder"):
                    await asyncio.to_thread(second.run)
            finally:
                supervisor.close()

    asyncio.run(scene())
    identities = [(tmp_path / root / "identity") for root in ("first", "second")]
    assert len({path.read_text() for path in identities}) == 2
    assert [path.stat().st_mode & 0o777 for path in identities] == [0o600, 0o600]


def test_a_root_keeps_its_identity(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, NodeAccelerators.parse("v100:2"))
    try:
        first, second = Agent(supervisor, "n", ""), Agent(supervisor, "n", "")
        assert first._hello().identity == second._hello().identity != ""
        (tmp_path / "identity").write_bytes(b"\xff damaged")
        assert len(Agent(supervisor, "n", "")._hello().identity) == 32
    finally:
        supervisor.close()


def test_a_full_disk_is_named_when_the_journal_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    supervisor = Supervisor(tmp_path, NodeAccelerators.parse("v100:2"))
    try:
        agent = Agent(supervisor, "n", "")
        monkeypatch.setattr("fairlead.files.before_write", full)
        with pytest.raises(NodeError, match="No space left"):
            agent._set_journal("another")
    finally:
        supervisor.close()


@pytest.mark.parametrize("unheard", [Revoke(7, 2), Kill(7, 2)])
def test_a_launch_that_never_arrived_has_ended_when_it_is_not_wanted_any_more(tmp_path: Path, unheard: Order) -> None:
    async def scene() -> None:
        async with joined_by_agent(tmp_path) as there:
            there.hub.send(0, unheard)
            assert await there.ears.words.get() == Ended(7, 2, 126, False, 0, 0, "the launch did not reach this node")

    asyncio.run(scene())


def test_an_agent_that_gets_no_answers_for_its_whole_term_tries_anew(tmp_path: Path) -> None:
    async def scene() -> None:
        hellos = asyncio.Queue[Any]()

        async def welcomes_and_falls_silent(requests: Any, context: Any) -> Any:
            hellos.put_nowait(decode_message(await anext(aiter(requests))))
            yield encode_message(Welcome(0.3))
            await asyncio.Event().wait()

        async with answered_by(tmp_path, welcomes_and_falls_silent):
            for _ in range(3):
                assert (await hellos.get()).node == "here"

    asyncio.run(scene())


def test_a_folder_that_cannot_be_made_is_not_the_jobs_fault(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()

    async def scene() -> None:
        async with joined_by_agent(tmp_path / "agent") as there:
            there.hub.send(0, order(checkpoints=str(tmp_path / "afile" / "1")))
            end = await there.ears.words.get()
            assert (end.code, end.yielded) == (126, True)
            assert "afile" in end.why

    asyncio.run(scene())


def test_what_stands_in_the_place_of_a_jobs_own_folder_is_not_the_nodes_fault(tmp_path: Path) -> None:
    (tmp_path / "afile").touch()

    async def scene() -> None:
        async with joined_by_agent(tmp_path / "agent") as there:
            there.hub.send(0, order(checkpoints=str(tmp_path / "afile")))
            end = await there.ears.words.get()
            assert (end.code, end.yielded, end.could_not_start) == (126, False, False)
            assert "afile exists and is not a folder" in end.why

    asyncio.run(scene())


LAST_WORDS = """
import os, time
while not os.path.exists({go!r}):
    time.sleep(0.01)
with open(os.environ["FAIRLEAD_REPORTS"], "a") as reports:
    print('{{"loss": 0.125}}', file=reports)
"""


def test_what_a_job_said_last_while_nobody_listened_is_told_with_its_end(tmp_path: Path) -> None:
    go, root = tmp_path / "go", tmp_path / "agent"

    async def scene() -> None:
        async with joined_by_agent(root) as there:
            there.hub.send(0, order(LAST_WORDS.format(go=str(go))))
            while not (root / "jobs" / "1" / "1" / "record.json").exists():
                await asyncio.sleep(0.01)
            await there.end()
            go.touch()
            while not (root / "jobs" / "1" / "1" / "ended.json").exists():
                await asyncio.sleep(0.01)
            await there.begin()
            said = [await there.ears.words.get()]
            while not isinstance(said[-1], Ended):
                said.append(await there.ears.words.get())
            assert said[-2:] == [Metric(1, 1, "loss", 0.125), Ended(1, 1, 0, False, 0, 0)]

    asyncio.run(scene())


SAYS_ONCE = """
import os, signal
with open(os.environ["FAIRLEAD_REPORTS"], "a") as reports:
    print('{"batch.largest": 512}', file=reports)
while True:
    signal.pause()
"""


def test_what_a_job_says_once_is_said_again_until_it_is_heard(tmp_path: Path) -> None:
    """Two streams end before they answer; the third answers, and ends the job; the fourth hears of that alone."""

    async def scene() -> None:
        said = asyncio.Queue[Any]()
        streams = iter(range(4))

        async def breaks(requests: Any, context: Any) -> Any:
            words, stream = aiter(requests), next(streams)
            await anext(words)
            yield encode_message(Welcome(30.0))
            if stream == 0:
                yield encode_message(OrderBatch((order(SAYS_ONCE),)))
            async for data in words:
                message = decode_message(data)
                if not isinstance(message, ReportBatch) or not any(
                    isinstance(word, Metric | Ended) for word in message.reports
                ):
                    continue
                said.put_nowait([word for word in message.reports if isinstance(word, Metric | Ended)])
                if stream == 2 and isinstance(message.reports[0], Metric):
                    yield encode_message(Acknowledged(message.sequence))
                    yield encode_message(OrderBatch((Kill(1, 1),)))
                else:
                    return

        async with answered_by(tmp_path, breaks):
            for _ in range(3):
                assert await said.get() == [Metric(1, 1, "batch.largest", 512.0)]
            for _ in range(2):
                (end,) = await said.get()
                assert isinstance(end, Ended)

    asyncio.run(scene())


def test_a_lost_connection_and_the_next_one_are_logged_with_one_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fairlead.runtime.agent.agent_service")

    def records() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "fairlead.runtime.agent.agent_service"]

    def lines() -> list[str]:
        return [record.getMessage().partition(":")[0] for record in records()]

    async def scene() -> None:
        async with joined_by_agent(tmp_path) as there:
            while not lines():  # the hub knows before the agent does
                await asyncio.sleep(0.01)
            await there.end()
            while not any("no connection" in line for line in lines()):
                await asyncio.sleep(0.01)
            there.ears.joins.clear()
            await there.begin()
            await there.ears.joins.wait()
            while len(lines()) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(scene())
    connected = "connected to the control plane"
    assert lines() == [connected, "no connection to the control plane", connected]
    assert records()[2].unreachable_s >= 0.0  # type: ignore[attr-defined]
    first = records()[0].__dict__
    assert (first["node"], first["gpus"]) == ("v100-0", "2 × v100")


def test_nothing_is_logged_of_a_control_plane_that_ends_just_before_its_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = Supervisor(tmp_path, NodeAccelerators.parse("v100:2"))
    attempts: list[int] = []

    def connect() -> NoReturn:
        attempts.append(1)
        if len(attempts) == 2:
            agent.stopping.set()
        raise ConnectionLost("the stream was closed")

    agent = Agent(supervisor, "v100-0", "127.0.0.1:1", connect=connect)
    agent.run()
    supervisor.close()
    assert (len(attempts), caplog.records) == (2, [])


def test_an_agent_waits_longer_for_a_welcome_at_each_attempt(tmp_path: Path) -> None:
    class Fast(Host):
        now = 0.0

        def monotonic(self) -> float:
            self.now += 1.0
            return self.now

    class Silent:
        """The stream of a control plane that is busy with other agents."""

        def __init__(self) -> None:
            self.began = host.now

        def send(self, message: Any) -> None: ...

        def receive(self) -> list[bytes]:
            return []

        def close(self) -> None:
            waited.append(host.now - self.began)
            if len(waited) == 4:
                agent.stopping.set()

    host, waited = Fast(), list[float]()
    supervisor = Supervisor(tmp_path, NodeAccelerators.parse("v100:2"))
    agent = Agent(supervisor, "v100-0", "127.0.0.1:1", host=host, connect=Silent)
    agent.run()
    supervisor.close()
    assert all(least <= length <= least + 10.0 for least, length in zip((15.0, 30.0, 60.0, 60.0), waited, strict=True)), waited


def test_an_agent_that_leaves_starts_nothing_and_says_when_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant in ("departure.ANSWER_WITHIN_S", "agent_service._LEFT_WITHIN_S"):  # it waits for this control plane
        monkeypatch.setattr(f"fairlead.runtime.agent.{constant}", PATIENCE_S)
    said: list[Any] = []

    async def answers(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for data in requests:
            message = decode_message(data)
            said.append(message)
            if isinstance(message, Hello):
                yield encode_message(Welcome(60.0))
                yield encode_message(OrderBatch((order("import signal; signal.pause()", cooperative=False),)))
                while not (tmp_path / "jobs" / "1" / "1" / "record.json").exists():
                    await asyncio.sleep(0.01)
                leaving.set()
            elif isinstance(message, Leaving):
                yield encode_message(OrderBatch((order(job=2), order(job=3, code="0" * 64))))
            elif isinstance(message, ReportBatch):
                yield encode_message(Acknowledged(message.sequence))
            elif isinstance(message, Left):
                return

    leaving = threading.Event()

    async def scene() -> None:
        async with answered_by(tmp_path, answers, leaving=leaving) as thread:
            await asyncio.to_thread(thread.join)

    asyncio.run(scene())
    assert isinstance(said[-1], Left)
    ends = {report.job: report for batch in said if isinstance(batch, ReportBatch) for report in batch.reports}
    assert {job: (end.yielded, end.could_not_start) for job, end in ends.items() if isinstance(end, Ended)} == {
        1: (True, False),
        2: (True, True),
        3: (True, True),
    }
    assert "the agent is leaving" in ends[2].why


def test_an_agent_without_a_control_plane_leaves_after_its_jobs(tmp_path: Path) -> None:
    leaving = threading.Event()
    leaving.set()

    async def scene() -> None:
        async with agent_of(tmp_path, "here", 9, leaving=leaving) as thread, asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(thread.join)

    asyncio.run(scene())
