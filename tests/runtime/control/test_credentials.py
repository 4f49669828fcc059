"""Credentials of nodes: how they are stored, and what a bearer may do with one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fairlead import files
from fairlead.journal.control_files import FolderFiles
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.request_guard import HTTPException, check_token
from fairlead.runtime.control.tokens import Bearer, Role, Tokens
from fairlead.runtime.host import Host
from fairlead.runtime.protocol import messages as ms
from fairlead.testing.builders import cluster

HERE, ELSEWHERE = "a" * 32, "b" * 32


def test_a_new_credential_of_a_node_replaces_the_former_one(tmp_path: Path) -> None:
    tokens = Tokens(FolderFiles(tmp_path))
    tokens.issue(Role.USER, "n1")  # a user with the name of the node
    issued = [tokens.issue_credential("n1", HERE) for _ in range(20)] + [tokens.issue_credential("n2", HERE)]
    assert [(one.role, one.user) for one in tokens.listed()] == [(Role.USER, "n1"), (Role.NODE, "n1"), (Role.NODE, "n2")]
    other = Tokens(FolderFiles(tmp_path))
    assert [other.bearer(token) is not None for token in issued] == [False] * 19 + [True] * 2
    held = other.credential_of("n1")
    assert held is not None
    assert (held.is_for(HERE), held.is_for(ELSEWHERE), held.is_for("")) == (True, False, False)
    assert other.revoke("n1", Role.NODE) == 1
    assert not tokens.is_valid(held)
    assert tokens.credential_of("n1") is None
    assert [one.user for one in tokens.listed()] == ["n1", "n2"]


def test_a_credential_that_cannot_be_stored_leaves_the_former_one_valid(tmp_path: Path, monkeypatch) -> None:
    tokens = Tokens(FolderFiles(tmp_path))
    first = tokens.issue_credential("n1", HERE)

    def full(path: Path) -> None:
        raise OSError(28, os.strerror(28), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(files, "before_write", full)
        with pytest.raises(OSError, match="No space"):
            tokens.issue_credential("n1", HERE)
    assert tokens.bearer(first) is not None


@pytest.mark.parametrize("role", [Role.AGENT, Role.NODE])
def test_agents_and_nodes_are_no_users_of_the_http_api(role: Role) -> None:
    tokens = Tokens()
    with pytest.raises(HTTPException) as refused:
        check_token(tokens.bearer(tokens.issue(role, "n1")))
    assert refused.value.status_code == 401


class SetClock(Host):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Backend:
    """In the place of the loop's: it accepts all agents."""

    def agent_joined(self, node: int, found: object, accept: Any, stay: object = None) -> None:
        accept()

    def agent_lost(self, node: int, silent_s: float = 0.0) -> None:
        pass


class ControlPlane:
    """A hub over stored tokens, which can be started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clock = SetClock()
        self.restart()
        self.join_token = self.tokens.issue(Role.AGENT, "agent")

    def restart(self, expects: tuple[int, ...] = ()) -> None:
        self.tokens = Tokens(FolderFiles(self._folder))
        self.hub = AgentHub(lambda: cluster("v100:2,v100:2"), lease_s=10.0, grace_s=5.0, host=self.clock, tokens=self.tokens)
        self.hub.backend = Backend()  # type: ignore[assignment]
        for node in expects:
            self.hub.expect(node)

    def connect(self, token: str, node: int = 0, identity: str = HERE, *, keeps: bool = True) -> Agent:
        return Agent(self, token, node, identity, keeps)


class Agent:
    """An agent's stream, as far as the hub sees it."""

    def __init__(self, control: ControlPlane, token: str, node: int, identity: str, keeps: bool) -> None:
        self._hub = control.hub
        name = self._hub.cluster.nodes[node].name
        self.received: list[ms.FromControl | None] = []
        hello = ms.Hello(name, "v100", 2, 1, identity=identity, keeps_credential=keeps)
        session = self._hub.welcome(hello, self.received.append, self._hub.admit(token))
        assert session is not None
        self.session = session
        welcome = self.received[0]
        assert isinstance(welcome, ms.Welcome)
        self.credential = welcome.credential

    def heartbeat(self) -> bool:
        return self._hub.receive(self.session, ms.Heartbeat())


@pytest.fixture
def control(tmp_path: Path) -> ControlPlane:
    return ControlPlane(tmp_path)


def test_heartbeats_do_not_wait_for_a_slow_disk_while_many_agents_connect_for_the_first_time(
    control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = control.tokens.issue_credential

    def slow(node: str, identity: str, used: Bearer) -> str:
        control.clock.now += 3.0
        return issue(node, identity, used)

    monkeypatch.setattr(control.tokens, "issue_credential", slow)
    assert control.connect(control.join_token).credential
    later = control.connect(control.join_token, 1, ELSEWHERE)
    assert not later.credential
    assert later.heartbeat()
    assert not control.connect(control.join_token).credential  # it has one, and gets another later
    assert control.clock.now == 3.0
    control.clock.now = 5.0
    assert control.connect(control.join_token, 1, ELSEWHERE).credential


def test_an_agent_token_with_uses_connects_so_many_agents(control: ControlPlane) -> None:
    token = control.tokens.issue(Role.AGENT, "batch", uses=2)
    first = control.connect(token)
    assert control.connect(first.credential).credential == "", "a credential is no use"
    assert control.connect(token, 1, ELSEWHERE).credential
    with pytest.raises(ms.BadMessage, match="no uses left"):
        control.connect(token)
    control.restart()
    with pytest.raises(ms.BadMessage, match="no uses left"):
        control.connect(token, 1, ELSEWHERE)
    assert control.connect(first.credential).heartbeat()


def test_a_use_that_cannot_be_stored_ends_the_stream(control: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    token = control.tokens.issue(Role.AGENT, "batch", uses=2)

    def full(node: str, identity: str, used: Bearer) -> str:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(control.tokens, "issue_credential", full)
    received: list[object] = []
    hello = ms.Hello("v100-0", "v100", 2, 1, identity=HERE, keeps_credential=True)
    control.hub.welcome(hello, received.append, control.hub.admit(token))
    assert (received, control.hub.connected) == ([None], frozenset())


def test_a_token_ends_at_its_time(tmp_path: Path) -> None:
    now = 1000.0
    tokens = Tokens(FolderFiles(tmp_path), clock=lambda: now)
    token, other = tokens.issue(Role.AGENT, "batch", lasts_s=60.0), tokens.issue(Role.USER, "ann")
    hub = AgentHub(lambda: cluster("v100:2"), tokens=Tokens(FolderFiles(tmp_path), clock=lambda: now))
    now = 1059.0
    assert hub.admit(token).expires == 1060.0
    now = 1060.0
    with pytest.raises(ms.BadMessage, match="has expired"):
        hub.admit(token)
    assert tokens.bearer(other) is not None


class SlowFiles(FolderFiles):
    """Files in a place that may take long."""

    remote = True


def test_heartbeats_do_not_wait_while_a_database_stores_a_credential(tmp_path: Path) -> None:
    tokens, posted, works = Tokens(SlowFiles(tmp_path)), list[Any](), list[Any]()
    host = SetClock()
    host.spawn = lambda name, work: works.append(work)  # type: ignore[method-assign]
    hub = AgentHub(lambda: cluster("v100:2,v100:2"), tokens=tokens, host=host, post=posted.append)
    hub.backend = Backend()  # type: ignore[assignment]
    bearer, received = hub.admit(tokens.issue(Role.AGENT, "agent")), list[Any]()
    hello = ms.Hello("v100-0", "v100", 2, 1, identity=HERE, keeps_credential=True)
    session = hub.welcome(hello, received.append, bearer)
    again: list[Any] = []
    hub.welcome(ms.Hello("v100-0", "v100", 2, 1, identity=ELSEWHERE, keeps_credential=True), again.append, bearer)
    other: list[Any] = []
    hub.welcome(ms.Hello("v100-1", "v100", 2, 1, identity=ELSEWHERE, keeps_credential=True), other.append, bearer)
    assert (received, again, [type(one) for one in other]) == ([], [None], [ms.Welcome]), "only the first one waits"
    assert session is not None
    assert hub.receive(session, ms.Heartbeat())
    [work] = works
    work()
    posted.pop()()
    [welcome] = received
    assert tokens.bearer(welcome.credential) == tokens.credential_of("v100-0")
    hub.remove(0)
    posted.pop()()
    assert isinstance(received[1], ms.Refused)
    works[1]()
    assert tokens.credential_of("v100-0") is None


def test_an_agent_gets_a_credential_once_and_connects_with_it_from_then_on(control: ControlPlane) -> None:
    first = control.connect(control.join_token)
    assert first.credential
    for _ in range(3):
        again = control.connect(first.credential)
        assert again.credential == ""
        assert again.heartbeat()
    assert [one.role for one in control.tokens.listed()] == [Role.AGENT, Role.NODE]


def test_an_agent_that_keeps_losing_its_credential_does_not_fill_the_list_of_tokens(control: ControlPlane) -> None:
    given = [control.connect(control.join_token).credential for _ in range(5)]
    assert len(set(given)) == 5
    assert len(control.tokens.listed()) == 2
    with pytest.raises(ms.BadMessage, match="revoked"):
        control.connect(given[3])
    assert control.connect(given[4]).heartbeat()


def test_the_credential_of_a_node_speaks_for_no_other(control: ControlPlane) -> None:
    stolen = control.connect(control.join_token).credential
    with pytest.raises(ms.BadMessage, match="this credential is for node"):
        control.connect(stolen, node=1, identity=ELSEWHERE)


def test_a_revoked_credential_ends_the_session_at_the_next_heartbeat(control: ControlPlane) -> None:
    agent = control.connect(control.join_token)
    assert agent.heartbeat()
    name = control.hub.cluster.nodes[0].name
    assert Tokens(FolderFiles(control._folder)).revoke(name) == 1, "in another process, by the name of the node"
    until = control.hub._until[0]
    control.clock.now = 3.0
    with pytest.raises(ms.BadMessage, match=f"credential of node '{name}' was revoked: to connect this node again, remove"):
        agent.heartbeat()
    assert control.hub._until[0] == until, "its lease is not renewed"
    with pytest.raises(ms.BadMessage, match="or it was revoked"):
        control.connect(agent.credential)


def test_revoking_the_token_of_all_agents_does_not_end_agents_with_credentials(control: ControlPlane) -> None:
    agent, former = control.connect(control.join_token), control.connect(control.join_token, node=1, keeps=False)
    control.tokens.revoke("agent")
    assert agent.heartbeat()
    with pytest.raises(ms.BadMessage, match="agent's token was revoked"):
        former.heartbeat()


@pytest.mark.parametrize("restarted", [False, True])
def test_another_root_is_refused_until_the_node_is_given_up_also_after_a_restart(
    control: ControlPlane, restarted: bool
) -> None:
    first = control.connect(control.join_token)
    if restarted:
        control.restart(expects=(0,))
    for token in (control.join_token, first.credential):  # a copy of the credential is no copy of the root
        with pytest.raises(ms.BadMessage, match="another root folder"):
            control.connect(token, identity=ELSEWHERE)
    assert control.connect(first.credential).heartbeat()
    control.clock.now = 15.0
    second = control.connect(control.join_token, identity=ELSEWHERE)
    assert second.heartbeat()
    with pytest.raises(ms.BadMessage, match="revoked"):
        control.connect(first.credential)


def test_a_root_that_has_lost_its_credential_may_return_at_once_after_a_restart(control: ControlPlane) -> None:
    control.connect(control.join_token)
    control.restart(expects=(0,))
    assert control.connect(control.join_token).credential


def test_an_agent_of_a_former_version_gets_no_credential_and_reads_its_welcome(control: ControlPlane) -> None:
    agent = control.connect(control.join_token, keeps=False)
    assert agent.credential == ""
    assert not any(name in ms.encode_message(ms.Welcome(15.0)) for name in (b"credential", b"incarnation"))
    assert ms.decode_message(ms.encode_message(ms.Welcome(15.0, credential="x"))) == ms.Welcome(15.0, credential="x")


def test_without_room_for_tokens_agents_connect_all_the_same(control: ControlPlane, monkeypatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, os.strerror(28), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(files, "before_write", full)
        agent = control.connect(control.join_token)
    assert agent.credential == ""
    assert agent.heartbeat()


def test_a_token_that_could_not_be_checked_gives_no_session_later(control: ControlPlane) -> None:
    control.hub.may_renew = lambda: False
    bearer = control.hub.admit("a guess")
    control.hub.may_renew = lambda: True
    received: list[ms.FromControl | None] = []
    name = control.hub.cluster.nodes[0].name
    session = control.hub.welcome(ms.Hello(name, "v100", 2, 1, keeps_credential=True), received.append, bearer)
    assert received == [None]
    assert session is not None
    assert not control.hub.receive(session, ms.Heartbeat())
