"""Agents' streams over a real gRPC server on loopback, with the agent's side played by hand."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from fairlead.runtime.control.agent_hub import MIN_CHECK_S, AgentHub
from fairlead.runtime.control.agent_server import AgentServer
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.messages import (
    METHOD,
    SERVICE,
    Acknowledged,
    BadMessage,
    Heartbeat,
    Hello,
    JournalMismatch,
    LeaseRenewed,
    OrderBatch,
    Refused,
    ReportBatch,
    Welcome,
    decode_message,
    encode_message,
)
from fairlead.runtime.protocol.orders import Ended, Kill, Launch, Metric, Progress, Revoke, Task
from fairlead.testing.builders import cluster

PATIENCE_S = 60.0


class Backend:
    """In the place of the loop's: it remembers, and answers at once."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.rung = asyncio.Event()

    def agent_joined(self, node: int, found: Any, accept: Any, stay: Any = None) -> None:
        accept()
        self._note("joined", node, tuple(found))

    def heartbeat(self, node: int, beat: Heartbeat) -> None:
        self._note("seen", node, beat)

    def agent_lost(self, node: int, silent_s: float = 0.0) -> None:
        self._note("left", node)

    def report(self, node: int, told: Any, answered: Callable[[], None]) -> None:
        self._note("told", node, told)
        answered()

    def _note(self, *what: Any) -> None:
        self.heard.append(what)
        self.rung.set()

    async def until(self, *what: Any) -> None:
        while what not in self.heard:
            self.rung.clear()
            await asyncio.wait_for(self.rung.wait(), PATIENCE_S)


class SetClock(Host):
    """A clock that stands where a test sets it, and counts how often it was asked."""

    now, asked = 0.0, 0

    def monotonic(self) -> float:
        self.asked += 1
        return self.now

    def time(self) -> float:
        return 1.8e9 + self.now


class Agent:
    def __init__(self, port: int, token: str = "secret") -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self.stream = call(metadata=(("authorization", f"Bearer {token}"),))

    async def say(self, message: Any) -> None:
        await self.stream.write(message if isinstance(message, bytes) else encode_message(message))

    async def hear(self) -> Any:
        data = await asyncio.wait_for(self.stream.read(), PATIENCE_S)
        return None if data is grpc.aio.EOF else decode_message(data)


def with_hub(scene: Callable[..., Any], **about: Any) -> None:
    async def run() -> None:
        tokens = Tokens()
        tokens.accept("secret", Role.AGENT, "agent")
        hub = AgentHub(lambda: cluster("v100:2,v100:2"), tokens=tokens, **about)
        hub.backend = backend = Backend()  # type: ignore[assignment]
        served = AgentServer(hub)
        server, port = await served.serve("127.0.0.1:0")
        watching = asyncio.create_task(served.watch())
        agents: list[Agent] = []

        def connect(**how: Any) -> Agent:
            agents.append(Agent(port, **how))
            return agents[-1]

        try:
            await asyncio.wait_for(scene(hub, backend, connect), 2 * PATIENCE_S)
        finally:
            watching.cancel()
            for agent in agents:
                await agent.channel.close()
            await server.stop(0)

    asyncio.run(run())


def hello(node: int = 0, **about: Any) -> Hello:
    name = cluster("v100:2,v100:2").nodes[node].name
    return Hello(name, **{"type": "v100", "accelerators": 2, "incarnation": 1, **about})


def test_an_agent_with_jobs_of_another_journal_does_not_join_before_they_are_gone():
    async def scene(hub, backend, connect):
        agent = connect()
        await agent.say(hello(running=((3, 1),), journal="another"))
        assert await agent.hear() == JournalMismatch("mine")
        assert await agent.hear() is None
        assert hub.connected == frozenset()
        again = connect()
        await again.say(hello(journal="mine"))
        assert await again.hear() == Welcome(15.0, journal="mine")
        await backend.until("joined", 0, ())

    with_hub(scene, journal="mine")


def test_an_agent_joins_gets_orders_and_is_heard():
    async def scene(hub, backend, connect):
        agent = connect()
        await agent.say(hello(running=((3, 1),)))
        assert await agent.hear() == Welcome(15.0)
        await backend.until("joined", 0, ((3, 1),))
        launch = Launch(7, 2, "a", Task(("python", "x.py"), {"A": "b"}), (0, 1), (1, 0), 2, "h", 1, 2)
        hub.send(0, launch)
        hub.send(0, Revoke(7, 2))
        hub.send(0, Kill(7, 2))
        assert [await agent.hear() for _ in range(3)] == [
            OrderBatch((launch,)),
            OrderBatch((Revoke(7, 2),)),
            OrderBatch((Kill(7, 2),)),
        ]
        told = (Progress(7, 2, 5, 0, 1.5), Metric(7, 2, "loss", 0.1), Ended(7, 2, 0, True, 6, 6, "yielded"))
        await agent.say(ReportBatch(4, told))
        assert await agent.hear() == Acknowledged(4)
        assert ("told", 0, told) in backend.heard
        await agent.say(Heartbeat((0.5, 0.25), (11.0, 4.0)))
        assert await agent.hear() == LeaseRenewed()
        assert ("seen", 0, Heartbeat((0.5, 0.25), (11.0, 4.0))) in backend.heard
        assert (hub.heartbeats[0].utilization, hub.heartbeats[0].memory_gb) == ((0.5, 0.25), (11.0, 4.0))

    with_hub(scene)


@pytest.mark.parametrize(
    ("first", "token", "why"),
    [
        (hello(), "guess", "this is not an agent's token"),
        (hello(), "", "this agent has no token: pass --token-file"),
        (Heartbeat(), "secret", "hello"),
        (b"{", "secret", "JSON"),
        (b'{"is":"hello","node":"x"}', "secret", "damaged"),
        # An agent of a later version, with a field that this version does not know.
        (
            b'{"is":"hello","node":"node-0","type":"v100","accelerators":2,"incarnation":1,"version":6,"extra":1}',
            "secret",
            "the agent's messages have version 6, the control plane's 5",
        ),
        (Hello("a node", "v100", 2, 1), "secret", "a node cannot have the name 'a node'"),
        (Hello("new", "4", 2, 1), "secret", "a GPU type cannot have the name '4'"),
        (Hello("new", "v100", 2, 1, rack="a rack"), "secret", "a rack cannot have the name 'a rack'"),
        (hello(accelerators=4), "secret", "'fairlead nodes remove v100-0', and remove the file 'credential'"),
        (hello(version=1), "secret", "the agent's messages have version 1, the control plane's 5"),
        (hello(incarnation=2**53 + 1), "secret", "incarnation"),
        (hello(incarnation=-1), "secret", "incarnation"),
        (hello(accelerators=3), "secret", "2 × v100"),
        (hello(type="k80"), "secret", "2 × v100"),
    ],
)
def test_whoever_is_not_that_agent_is_refused_and_leaves_no_trace(first, token, why):
    async def scene(hub, backend, connect):
        agent = connect(token=token)
        if token == "secret":  # others are refused before they have said a word, and saying one may fail or not
            await agent.say(first)
        answer = await agent.hear()
        assert isinstance(answer, Refused)
        assert why in answer.why
        assert await agent.hear() is None
        assert not backend.heard
        assert not hub.connected

    with_hub(scene)


def test_of_two_agents_of_one_node_the_younger_speaks():
    async def scene(hub, backend, connect):
        old, new, stale = connect(), connect(), connect()
        await old.say(hello(incarnation=4))
        await old.hear()
        await new.say(hello(incarnation=5))
        assert await new.hear() == Welcome(15.0)
        assert await old.hear() is None
        await stale.say(hello(incarnation=4))
        assert "more recent" in (await stale.hear()).why
        hub.send(0, Kill(1, 1))
        assert await new.hear() == OrderBatch((Kill(1, 1),))

    with_hub(scene)


def test_a_second_agent_with_the_name_of_a_node_is_refused_until_the_first_is_given_up():
    host = SetClock()

    async def scene(hub, backend, connect):
        first, second, replacement = connect(), connect(), connect()
        await first.say(hello(incarnation=7, identity="a" * 32))
        await first.hear()
        await first.channel.close()
        host.now = 14.9
        await second.say(hello(incarnation=8, identity="b" * 32))
        answer = await second.hear()
        assert isinstance(answer, Refused)
        assert "another root folder" in answer.why
        again = connect()
        await again.say(hello(incarnation=8, identity="a" * 32))
        assert isinstance(await again.hear(), Welcome), "the same root restarts at any time"
        host.now = 30.0
        await backend.until("left", 0)
        await replacement.say(hello(incarnation=1, identity="b" * 32))
        assert isinstance(await replacement.hear(), Welcome), "a new machine counts its agents from 1"

    with_hub(scene, lease_s=10.0, grace_s=5.0, host=host)


def plain_hub(now: float = 0.0) -> AgentHub:
    host = SetClock()
    host.now = now
    hub = AgentHub(lambda: cluster("v100:2,v100:2"), host=host, post=lambda call: call())
    hub.backend = Backend()  # type: ignore[assignment]
    return hub


def join(hub: AgentHub, incarnation: int, *, keeps: bool = True, heard: bool = False) -> int:
    """The number that is issued to an agent which had this one; `heard`: it sends a heartbeat."""
    received: list[Any] = []
    session = hub.welcome(hello(incarnation=incarnation, identity="a" * 32, keeps_incarnation=keeps), received.append)
    if heard:
        hub.receive(session, Heartbeat())
    return received[0].incarnation


@pytest.mark.parametrize("keeps", [True, False])
def test_a_number_that_was_never_issued_does_not_lock_a_node(keeps: bool) -> None:
    hub = plain_hub()
    join(hub, 2**53, keeps=keeps, heard=not keeps)
    issued = join(hub, 3, keeps=keeps)
    assert (2**40 < issued < 2**43) if keeps else issued == 0


def test_the_control_plane_issues_numbers_that_grow_and_refuses_an_old_copy_of_a_root() -> None:
    hub = plain_hub()
    first = join(hub, 0)
    again = join(hub, 0)
    assert again > first, "the first welcome may not have arrived"
    second = join(hub, again, heard=True)
    assert second > again
    with pytest.raises(BadMessage, match="a more recent agent has connected"):
        join(hub, again)
    third = join(hub, second)
    assert join(hub, second) > third, "its file was not written before it died"
    last = join(hub, 0, heard=True)
    assert last > third, "its file was damaged"
    assert join(hub, last + 1, keeps=False) == 0, "an agent of a former version counts on from the file"
    assert join(plain_hub(1.0), first) > last, "also after a restart of the control plane"


def test_an_agent_of_a_former_version_has_no_identity_and_can_be_upgraded():
    async def scene(hub, backend, connect):
        former, upgraded = connect(), connect()
        await former.say(hello(incarnation=7))
        await former.hear()
        await upgraded.say(hello(incarnation=8, identity="a" * 32))
        assert isinstance(await upgraded.hear(), Welcome)
        other = connect()
        await other.say(hello(incarnation=9))
        assert "another root folder" in (await other.hear()).why

    with_hub(scene)


def test_a_silent_agent_is_given_up_after_its_term_and_the_grace_and_not_before():
    host = SetClock()

    async def scene(hub, backend, connect):
        agent = connect()
        await agent.say(hello())
        await agent.hear()
        assert hub.silent_s(0) == 0.0
        await agent.channel.close()
        host.now, seen = 14.9, host.asked
        while host.asked < seen + 4:  # the watch checks several times
            await asyncio.sleep(0.01)
        assert ("left", 0) not in backend.heard
        assert hub.silent_s(0) == pytest.approx(14.9)
        host.now = 15.1
        await backend.until("left", 0)

    with_hub(scene, lease_s=10.0, grace_s=5.0, host=host)


def test_restarts_do_not_prolong_the_wait_for_an_unreachable_node():
    nodes, host = cluster("v100:2,v100:2"), SetClock()
    silent: dict[str, float] = {}
    for lasts_s, until in ((20.0, 50.0), (19.0, 50.0), (10.0, 50.0), (0.0, 59.0)):  # at the end its agent still may connect
        hub = AgentHub(lambda: nodes, lease_s=10.0, grace_s=40.0, host=host)
        hub.expect(0, silent.get(nodes.nodes[0].name, 0.0))
        assert hub._until == {0: until}
        host.now += lasts_s
        silent = hub.silent_nodes()


@pytest.mark.parametrize(("grace_s", "last"), [(0.31, 0.31), (0.01, MIN_CHECK_S)])
def test_a_node_is_given_up_as_soon_as_its_time_is_over(grace_s, last):
    """The next check is then, but within a second, as another node may have less time, and never without a pause."""
    host = SetClock()
    hub = AgentHub(lambda: cluster("v100:2"), lease_s=2.0, grace_s=grace_s, host=host)
    hub.expect(0)

    async def story() -> list[float]:
        hub.backend = backend = Backend()  # type: ignore[assignment]
        pauses = []
        while ("left", 0) not in backend.heard:
            pauses.append(hub.expire())
            host.now += pauses[-1]
        return pauses

    pauses = asyncio.run(story())
    assert pauses[:3] == pytest.approx([1.0, 1.0, last])
    assert all(MIN_CHECK_S <= seconds <= 1.0 for seconds in pauses)
    assert hub.silent_s(0) == math.inf


def test_a_hub_that_closes_ends_streams_as_they_end(caplog):
    async def scene(hub, backend, connect):
        agent = connect()
        await agent.say(hello())
        assert await agent.hear() == Welcome(15.0)
        hub.close()
        assert await agent.hear() is None
        assert await agent.stream.code() == grpc.StatusCode.OK
        assert not hub.connected

    with_hub(scene)
    assert not caplog.records


def test_a_stranger_is_sent_away_before_it_has_said_a_word():
    async def scene(hub, backend, connect):
        stranger = connect(token="guess")
        assert "token" in (await stranger.hear()).why
        assert await stranger.hear() is None

    with_hub(scene)


def test_what_is_no_message_ends_the_stream_and_nothing_else():
    async def scene(hub, backend, connect):
        agent, other = connect(), connect()
        await agent.say(hello())
        await agent.hear()
        await other.say(hello(1))
        await other.hear()
        await agent.say(b'{"is":"reportbatch","sequence":1,"reports":[{"is":"kill","job":1,"generation":1}]}')
        assert isinstance(await agent.hear(), Refused)
        await other.say(Heartbeat())
        assert await other.hear() == LeaseRenewed()

    with_hub(scene)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'"x"', b'{"is":"nothing"}', b'{"is":["hello"]}', b'{"is":"reportbatch","sequence":"x","reports":[]}']
)
def test_bytes_that_are_no_message(data):
    with pytest.raises(BadMessage):
        decode_message(data)


def test_an_order_does_not_reach_an_agent_that_the_backend_does_not_know_of_yet() -> None:
    """The loop was busy when the node's agent was lost and another one came: its orders are for the lost one."""
    joins: list[Callable[[], None]] = []
    hub = AgentHub(lambda: cluster("v100:2,v100:2"), post=lambda call: call())
    hub.backend = backend = Backend()  # type: ignore[assignment]
    backend.agent_joined = lambda node, found, accept, stay: joins.append(accept)  # type: ignore[method-assign]
    first: list[Any] = []
    second: list[Any] = []
    hub.welcome(hello(), first.append)
    joins[0]()
    hub.welcome(hello(incarnation=2), second.append)
    hub.send(0, Kill(1, 1))
    assert [type(message) for message in second] == [Welcome]
    joins[1]()
    hub.send(0, Kill(1, 2))
    assert second[1:] == [OrderBatch((Kill(1, 2),))]
    assert not any(isinstance(message, OrderBatch) for message in first)


def test_an_agent_that_sends_nothing_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr("fairlead.runtime.control.agent_server.HELLO_WITHIN_S", 0.05)

    async def scene(hub, backend, connect):
        answer = await connect().hear()
        assert isinstance(answer, Refused)
        assert "sent nothing within 0.05 s" in answer.why

    with_hub(scene)


def test_progress_is_not_acknowledged_because_no_agent_repeats_it():
    async def scene(hub, backend, connect):
        agent = connect()
        await agent.say(hello())
        assert isinstance(await agent.hear(), Welcome)
        await agent.say(ReportBatch(1, (Progress(7, 2, 5, 0, 1.5),)))
        await agent.say(ReportBatch(2, (Metric(7, 2, "loss", 0.1),)))
        assert await agent.hear() == Acknowledged(2)
        assert ("told", 0, (Progress(7, 2, 5, 0, 1.5),)) in backend.heard

    with_hub(scene)


def test_leases_are_checked_again_after_an_error():
    async def watch() -> None:
        again, calls = asyncio.Event(), []

        class Hub(AgentHub):
            def expire(self) -> float:
                calls.append(1)
                if len(calls) == 1:
                    raise OSError("a disk")
                again.set()
                return 60.0

        nodes = cluster("v100:1")
        watching = asyncio.create_task(AgentServer(Hub(lambda: nodes)).watch())
        await asyncio.wait_for(again.wait(), PATIENCE_S)
        watching.cancel()

    asyncio.run(watch())
