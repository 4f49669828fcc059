"""Two control planes and one journal, by a simulated clock: no lease that the former one renews overlaps with a new launch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import JournalUnreachable
from fairlead.engine.journal import MemoryJournal
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.journal_term import FormerControlPlane, JournalTerm
from fairlead.runtime.control.snapshotter import ObservedJournal
from fairlead.runtime.host import Host
from fairlead.runtime.protocol import messages as ms
from fairlead.testing.builders import cluster

LEASE_S, GRACE_S, TIMEOUT_S = 15.0, 35.0, 60.0


class SetHost(Host):
    """A host whose clock stands where a test sets it. Threads run when they are told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


class Database:
    """The record of terms. `clock` is that of the database."""

    def __init__(self, clock: SetHost) -> None:
        self.clock, self.term, self.confirmed, self.reachable = clock, 0, -math.inf, True

    def begin(self) -> tuple[SetTerms, float]:
        ago_s = self.clock.now - self.confirmed
        self.term, self.confirmed = self.term + 1, self.clock.now
        return SetTerms(self, self.term), ago_s


class SetTerms:
    def __init__(self, database: Database, term: int) -> None:
        self.database, self.term = database, term

    def confirm(self) -> bool:
        if not self.database.reachable:
            raise JournalUnreachable("away")
        if self.database.term == self.term:
            self.database.confirmed = self.database.clock.now
        return self.database.term == self.term

    def end(self) -> None:
        self.database.confirmed = -math.inf


class Backend:
    def __init__(self) -> None:
        self.lost: list[int] = []

    def agent_joined(self, node: int, running: object, accept: object, stay: object = None) -> None: ...

    def agent_lost(self, node: int, silent_s: float) -> None:
        self.lost.append(node)


def hub_of(host: Host, may_renew: object = lambda: True) -> AgentHub:
    machines = cluster("v100:1")
    hub = AgentHub(lambda: machines, LEASE_S, GRACE_S, host=host)
    hub.backend = Backend()  # type: ignore[assignment]
    hub.may_renew = may_renew  # type: ignore[assignment]
    return hub


def test_leases_are_renewed_only_while_the_journal_is_confirmed() -> None:
    host = SetHost()
    database = Database(host)
    term = JournalTerm(database.begin()[0], TIMEOUT_S, host)
    hub, sent = hub_of(host, term.may_renew), list[object]()
    name = hub.cluster.nodes[0].name
    session = hub.welcome(ms.Hello(name, "v100", 1, 1, "127.0.0.1", (), ""), sent.append)
    assert session is not None
    host.now = 40.0
    term.confirm()
    database.reachable = False
    host.now = 100.0
    term.confirm()
    assert hub.receive(session, ms.Heartbeat((), ()))
    assert sent[-1] == ms.LeaseRenewed()
    host.now = 100.1
    assert not hub.receive(session, ms.Heartbeat((), ()))
    assert sent[2:] == [None], "no renewal after the timeout: the agent is sent away, to another control plane"
    hub.expire()
    again = list[object]()
    assert hub.welcome(ms.Hello(name, "v100", 1, 1, "127.0.0.1", (), ""), again.append) is not None
    assert again == [None]
    host.now = 100.0 + LEASE_S + GRACE_S - 0.1
    hub.expire()
    assert hub.backend.lost == []  # type: ignore[attr-defined]
    host.now += 0.1
    hub.expire()
    assert hub.backend.lost == [0]  # type: ignore[attr-defined]

    database.reachable = True
    term.confirm()
    assert hub.welcome(ms.Hello(name, "v100", 1, 1, "127.0.0.1", (), ""), again.append) is not None
    assert isinstance(again[-1], ms.Welcome)


def test_one_line_says_that_the_journal_is_unreachable_and_one_that_leases_are_renewed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = SetHost()
    database = Database(host)
    term = JournalTerm(database.begin()[0], TIMEOUT_S, host)
    database.reachable = False

    class Away(MemoryJournal):
        def commit(self) -> None:
            if not database.reachable:
                term.confirm()
                database.reachable, host.now = True, host.now + 30.0
                raise JournalUnreachable("away")
            super().commit()

    host.sleep = lambda seconds: term.confirm()  # type: ignore[method-assign]
    ObservedJournal(Away(), (), lambda: False, host, quiet=True).commit()
    assert [record.message for record in caplog.records if record.name == "fairlead.cluster"] == [
        "journal unreachable; no decisions until it answers, and leases end after a time",
        "journal answers again; leases are renewed",
    ]


def test_one_that_finds_another_in_its_place_renews_nothing() -> None:
    host = SetHost()
    database = Database(host)
    term, lost = JournalTerm(database.begin()[0], TIMEOUT_S, host), list[str]()
    term.on_lost = lambda: lost.append("lost")
    database.begin()
    term._run()
    assert lost == ["lost"]
    assert not term.may_renew()


@pytest.mark.parametrize(
    ("ago_s", "known_s", "silence_s"),
    [
        (5.0, 0.0, -55.0),  # killed five seconds ago, or cut off from the database: it may renew for 55 s yet
        (5.0, 300.0, -55.0),  # a silent node may have come back to it since
        (70.0, 0.0, 0.0),  # it renews nothing any more; from the takeover on
        (70.0, 300.0, 10.0),
        (math.inf, 20.0, 20.0),  # it has ended
        (math.inf, 0.0, 0.0),
    ],
)
def test_how_long_a_node_has_certainly_been_without_a_lease(ago_s: float, known_s: float, silence_s: float) -> None:
    assert FormerControlPlane(ago_s, TIMEOUT_S).silence_s(known_s, LEASE_S, GRACE_S) == silence_s


def test_longer_leases_of_the_former_one_are_waited_for() -> None:
    assert FormerControlPlane(5.0, TIMEOUT_S, 30.0, 40.0).silence_s(0.0, LEASE_S, GRACE_S) == -75.0
    assert FormerControlPlane(5.0, TIMEOUT_S, 5.0, 5.0).silence_s(0.0, LEASE_S, GRACE_S) == -55.0


def test_one_that_ends_soon_after_a_takeover_does_not_hide_the_one_before() -> None:
    host = SetHost()
    database = Database(host)
    first = JournalTerm(database.begin()[0], TIMEOUT_S, host)  # cut off from the database from now on
    host.now = 25.0
    terms, ago_s = database.begin()
    second = JournalTerm(terms, TIMEOUT_S, host, former_renews_s=FormerControlPlane(ago_s, TIMEOUT_S).renews_s)
    host.now = 27.0
    second.end()
    host.now = 30.0
    third = hub_of(host)
    third.expect(0, FormerControlPlane(database.begin()[1], TIMEOUT_S).silence_s(0.0, LEASE_S, GRACE_S))
    host.now = TIMEOUT_S
    assert first.may_renew()
    host.now += LEASE_S + GRACE_S - 0.1
    third.expire()
    assert third.backend.lost == []  # type: ignore[attr-defined]


def test_one_that_ends_after_the_one_before_can_renew_no_more_says_so() -> None:
    host = SetHost()
    database = Database(host)
    term = JournalTerm(database.begin()[0], TIMEOUT_S, host, former_renews_s=30.0)
    host.now = 30.0
    term.end()
    assert database.confirmed == -math.inf


@given(
    cut_s=st.floats(0.0, 100.0),
    takeover_after_s=st.floats(0.0, 200.0),
    delay_s=st.floats(0.0, 0.9),
    known_s=st.sampled_from([0.0, 10.0, 1000.0]),
    timeout_s=st.sampled_from([1.0, 10.0, 60.0]),
)
def test_no_lease_of_the_former_one_overlaps_with_a_new_launch(
    cut_s: float, takeover_after_s: float, delay_s: float, known_s: float, timeout_s: float
) -> None:
    """The former one is cut off from the database at some second, while its agent's heartbeats keep coming."""
    host = SetHost()
    database = Database(host)
    term = JournalTerm(database.begin()[0], timeout_s, host)
    taken_s, renewed_s, given_up_s, other = cut_s + takeover_after_s, 0.0, math.inf, hub_of(host)
    for tick in range(4 * int(taken_s + timeout_s + LEASE_S + GRACE_S + 5)):
        host.now = tick / 4
        if tick % 4 == 0 and host.now < cut_s:  # a write that takes a while
            host.now += delay_s
            term._confirmed, _ = host.now - delay_s, term.terms.confirm()
            host.now -= delay_s
        if given_up_s == math.inf and host.now >= taken_s:
            former = FormerControlPlane(database.begin()[1], timeout_s, LEASE_S, GRACE_S)
            other.expect(0, former.silence_s(known_s, LEASE_S, GRACE_S))
            given_up_s = -1.0
        if given_up_s == -1.0:
            other.expire()
            given_up_s = host.now if other.backend.lost else given_up_s  # type: ignore[attr-defined]
        if term.may_renew() and (host.now < taken_s or host.now >= cut_s):
            renewed_s = host.now
    assert given_up_s >= renewed_s + LEASE_S + GRACE_S - 1e-6
    assert given_up_s <= max(taken_s, cut_s + timeout_s) + LEASE_S + GRACE_S + 2.0


def test_launches_of_a_former_agent_are_given_up_before_another_one_joins() -> None:
    host = SetHost()
    hub = hub_of(host)
    name = hub.cluster.nodes[0].name
    hub.welcome(ms.Hello(name, "v100", 1, 1, "127.0.0.1", (), "", identity="a" * 32), lambda message: None)
    host.now = LEASE_S + GRACE_S + 0.1  # `expire` comes next
    assert hub.welcome(ms.Hello(name, "v100", 1, 1, "127.0.0.1", (), "", identity="b" * 32), lambda message: None) is not None
    assert hub.backend.lost == [0]  # type: ignore[attr-defined]
    hub.expire()
    assert hub.backend.lost == [0]  # type: ignore[attr-defined]
