"""The control plane's side of the agents' streams: which agent is a node's, and how long each agent's lease lasts. It passes
messages on to the backend, and decides nothing. It knows neither threads nor sockets; `AgentServer` is its gRPC server."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError
from fairlead.runtime.control.agent_sessions import ANY_AGENT, AgentSession, PartSession
from fairlead.runtime.control.agent_transfers import AgentTransfers
from fairlead.runtime.control.cluster_backend import ClusterBackend
from fairlead.runtime.control.code_store import CodeStore
from fairlead.runtime.control.engines import Engines, launch_key
from fairlead.runtime.control.node_roster import reported_node, stay_of
from fairlead.runtime.control.tokens import Bearer, Role, Tokens
from fairlead.runtime.host import Host
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol.orders import Launch, Order, is_repeated

log = logging.getLogger(__name__)

MIN_CHECK_S = 0.05
MAX_RUNNING = 100_000  # launches that an agent can have
AGENT_TYPES = 32  # GPU types that a cluster may have by its agents; operators can add more
NEW_NODES_PER_S, NEW_NODES_BURST = 10.0, 2_000  # nodes that agents add; others connect again later

WRITING = 0.2  # of the time may be spent on writing new credentials; agents without one use the token of all agents
MISSED_LEASE = 0.7  # of a lease without a heartbeat (agents send three in a lease): the agent is unreachable
UNCHECKED = Bearer(Role.NODE, "")  # of a token that cannot be checked now: its agent connects again later
_AGAIN = "remove the file 'credential' in the agent's --root, and pass --token-file with an agent token"


@dataclass(eq=False)
class AgentHub:
    """The streams of all agents. A node is given up `lease_s + grace_s` after its last heartbeat. Until then its jobs count as
    running, because they may be. One thread uses a hub; calls from others go through `post`."""

    current_cluster: Callable[[], Cluster]
    lease_s: float = 15.0
    grace_s: float = 35.0
    tokens: Tokens | None = None  # None: any agent may connect
    host: Host = field(default_factory=Host)
    code: CodeStore | None = None
    journal: str = ""  # its name; empty for a journal of an early version
    post: Callable[[Callable[[], None]], object] = lambda call: None  # runs a call in the hub's thread; set by the server
    may_renew: Callable[[], bool] = lambda: True  # False: another control plane may have the journal; no lease is renewed

    def __post_init__(self) -> None:
        self.backend: ClusterBackend  # set after construction: the two need each other
        self._sessions: dict[int, AgentSession] = {}
        self._accepted: dict[int, AgentSession] = {}  # of which the backend knows
        self._agent: dict[int, tuple[str, int]] = {}  # by node: identity of its agent, and the last number that it surely has
        self._issued = 0  # the last number of an agent
        self._registering: set[AgentSession] = set()  # until their nodes are in the journal
        self._adding: set[str] = set()  # names of nodes that may not be in the journal yet
        self._address: dict[int, str] = {}
        self._issuing = ""  # the node whose credential is being written to a database
        self._last_noted_s = -math.inf  # when a log line said that new nodes have to wait
        self._new_nodes_s = -math.inf  # when agents may add a whole burst of nodes again
        self._write_from = -math.inf  # when the next new credential may be written
        self._until: dict[int, float] = {}  # by node: when it is given up
        self.heartbeats: dict[int, ms.Heartbeat] = {}  # the last one of each node
        self.engines, self.transfers = Engines(), AgentTransfers(self)
        self.drained_by: Callable[[int], str] = lambda node: ""  # by which user or engine

    # For any thread.

    @property
    def cluster(self) -> Cluster:
        return self.current_cluster()

    def send(self, node: int, order: Order) -> None:
        """Send an order to the session that the backend has accepted. With any other it is lost: a new agent must not get an
        order for an agent that the backend is about to give up."""
        if (engine := self.engines.of(node)) is not None:
            engine.send(node, order)
            return
        accepted = self._accepted.get(node)

        def put() -> None:
            if self._sessions.get(node) is accepted:
                if isinstance(order, Launch):
                    self.transfers.note_launch(node, order)
                self._put(node, ms.OrderBatch((order,)))

        self.post(put)

    def address_of(self, node: int) -> str:
        if (engine := self.engines.of(node)) is not None:
            return engine.address_of(node)
        return self._address.get(node, "127.0.0.1")

    def silent_s(self, node: int) -> float:
        """Return how long a node's agent is unreachable: 0 while its heartbeats come, infinity once the node is given up."""
        if (engine := self.engines.of(node)) is not None:
            return engine.silent_s(node)
        age_s = max(0.0, self.host.monotonic() + self.lease_s + self.grace_s - self._until.get(node, -math.inf))
        return age_s if node not in self._sessions or age_s > MISSED_LEASE * self.lease_s else 0.0

    def remove(self, node: int) -> None:
        """End the session of a node that was removed from the cluster, and revoke its credential: its agent ends."""
        name, tokens = self.cluster.nodes[node].name, self.tokens

        def revoke() -> None:
            try:
                if tokens is not None:
                    tokens.revoke(name, Role.NODE)
            except (FairleadError, OSError) as problem:
                why = {"node": name, "why": str(problem)}
                log.error("a removed node keeps its credential: the tokens cannot be written", extra=why)

        def forget() -> None:
            self._forget_node(node, name)
            self.host.spawn("revoke", revoke) if tokens is not None and tokens.remote else revoke()

        self.post(forget)

    @property
    def connected(self) -> frozenset[int]:
        return self.engines.connected.union(self._sessions)

    def silent_nodes(self) -> dict[str, float]:
        """Return for how long each unreachable node has been silent that is not given up yet."""
        silent = {node: self.silent_s(node) for node in self.engines.connected.union(self._until)}
        return {self.cluster.nodes[node].name: seconds for node, seconds in silent.items() if 0 < seconds < math.inf}

    # For the hub's thread.

    def expect(self, node: int, silent_s: float = 0.0) -> None:
        """After a restart, wait for a node's agent as if its last heartbeat came `silent_s` ago: just now, where that is not
        known; in the future (below 0), where a former control plane may renew its lease until then. Each agent has at least the
        duration of a lease to connect and to report what has ended."""
        self._until.setdefault(node, self.host.monotonic() + self.lease_s + max(0.0, self.grace_s - silent_s))

    def take_over(self, node: int) -> float:
        """An engine has this node. Return until when agents of launches from before a restart may connect."""
        return self._until.pop(node, self.host.monotonic() + self.lease_s + self.grace_s)

    def is_open(self, session: AgentSession | PartSession) -> bool:
        """Return whether a session is the present one of its agent."""
        return session.open if isinstance(session, PartSession) else self._sessions.get(session.node) is session

    def is_kept(self, node: int) -> bool:
        """Return whether a node has an agent of its own, for all its launches, or is kept for the one that it had."""
        tokens, name = self.tokens, self.cluster.nodes[node].name
        return node in self._until or (tokens is not None and tokens.credential_of(name) is not None)

    def admit(self, token: str) -> Bearer:
        """Return the bearer of an agent's token or a node's credential. Raises `BadMessage`: the token is neither."""
        if self.tokens is None:
            return ANY_AGENT
        if not self.may_renew():
            return UNCHECKED
        if not token:
            raise ms.BadMessage("this agent has no token: pass --token-file with an agent token, or set FAIRLEAD_TOKEN")
        found = self.tokens.bearer(token)
        if found is None or found.role not in (Role.AGENT, Role.NODE, Role.LAUNCH):
            raise ms.BadMessage(
                "this is not an agent's token, or it was revoked or has expired: use agent.token, or "
                "'fairlead token add NAME --role agent'; a file 'credential' in the agent's --root is used first: remove it"
            )
        if found.uses == 0:
            raise ms.BadMessage(
                f"the agent token {found.id} has no uses left: create another one with 'fairlead token add NAME --role agent'"
            )
        return found

    def welcome(
        self, message: ms.Message, out: Callable[[ms.FromControl | None], None], bearer: Bearer = ANY_AGENT
    ) -> AgentSession | PartSession | None:
        """Begin a session with an agent's first message; None if its jobs belong to another journal. An unknown node becomes
        part of the cluster, if the agent has the token of all agents. Raises `BadMessage`: the agent is refused."""
        if not isinstance(message, ms.Hello):
            raise ms.BadMessage("this is not a Fairlead agent: its first message is not hello")
        if bearer is UNCHECKED or not self.may_renew():
            out(None)
            return AgentSession(-1, out)  # of which nothing is received
        if message.version != ms.PROTOCOL_VERSION:
            both = f"the agent's messages have version {message.version}, the control plane's {ms.PROTOCOL_VERSION}"
            raise ms.BadMessage(f"{both}: install the same Fairlead on both")
        if len(message.running) > MAX_RUNNING:
            raise ms.BadMessage(f"a node cannot run {len(message.running):,} launches: at most {MAX_RUNNING:,}")
        if message.launch is not None:
            key = launch_key(self.journal, message).text
            if self.tokens is not None and (bearer.role, bearer.user) != (Role.LAUNCH, key):
                raise ms.BadMessage("this token is not for this launch")
            node = self.cluster.number_of_node.get(message.node, -1)
            return self.engines.for_agent(message, node).welcome(message, out)
        if bearer.role is Role.LAUNCH:
            raise ms.BadMessage(f"this token is for the agent of one launch, not of a node: {_AGAIN}")
        if bearer.role is Role.NODE and bearer.user != message.node:
            raise ms.BadMessage(f"this credential is for node {bearer.user!r}, not {message.node!r}: {_AGAIN}")
        node = -1 if message.node in self._adding else self.cluster.number_of_node.get(message.node, -1)
        if node >= 0:
            self._check_agent(node, message, bearer)
        elif bearer.role is Role.NODE:
            raise ms.BadMessage(f"node {message.node!r} is not in the cluster, or was removed: to add it, {_AGAIN}")
        if message.journal and self.journal and message.journal != self.journal:
            log.warning("agent has jobs of another journal", extra={"node": message.node, "journal": message.journal})
            return None
        session = AgentSession(node, out, bearer)
        if node >= 0:
            self._begin(session, message)
        else:
            self._register(session, message)
        return session

    def _register(self, session: AgentSession, message: ms.Hello) -> None:
        """Add an agent's node to the cluster; its session begins once that is in the journal. Of too many new nodes in a short
        time, the agents connect again later."""
        spec, type_ = reported_node(message)
        now = self.host.monotonic()
        full_s = max(now, self._new_nodes_s) + 1 / NEW_NODES_PER_S
        if full_s - now > NEW_NODES_BURST / NEW_NODES_PER_S + 1e-9:
            if now > self._last_noted_s + 10.0:
                log.warning("too many new nodes at once: some agents must connect again later", extra={"node": spec.name})
                self._last_noted_s = now
            session.out(None)
            return
        self._new_nodes_s = full_s
        self._registering.add(session)
        self._adding.add(spec.name)

        def added(events: Sequence[ev.Event]) -> None:
            self.post(lambda: self._registered(session, message, getattr(events, "why", "")))

        self.backend.add_node(spec, type_, added, AGENT_TYPES)

    def _registered(self, session: AgentSession, message: ms.Hello, problem: str, credential: str | None = None) -> None:
        """The node of an agent is in the journal, or (with `credential`) its credential is in the database."""
        self._adding.discard(message.node)
        if session not in self._registering:
            return  # its stream has ended
        self._registering.discard(session)
        if not self.may_renew():
            session.out(None)
            return
        try:
            session.node = self.cluster.number_of_node.get(message.node, -1)
            if session.node < 0:
                raise ms.BadMessage(problem or f"node {message.node!r} was removed")
            self._check_agent(session.node, message, session.bearer)
            if credential is None:
                self._begin(session, message)
            else:
                self._join(session, message, credential)
        except ms.BadMessage as refused:
            session.out(ms.Refused(str(refused)))
            session.out(None)

    def _begin(self, session: AgentSession, message: ms.Hello) -> None:
        """Begin a session with a new credential, where the agent needs one. Nothing else waits while a database stores it."""
        name, bearer = self.cluster.nodes[session.node].name, session.bearer
        if self.tokens is None or (bearer.role is Role.NODE and (not bearer.root or bearer.is_for(message.identity))):
            self._join(session, message, "")
        elif not self.tokens.remote:
            self._join(session, message, self._credential(self.tokens, name, message, bearer))
        elif self._issuing:  # one at a time: the agent gets one when it connects again
            session.out(None) if self._issuing == name or bearer.is_limited else self._join(session, message, "")
        else:
            self._issuing, tokens = name, self.tokens
            self._registering.add(session)

            def issue() -> None:
                credential = self._credential(tokens, name, message, bearer)
                self.post(lambda: issued(credential))

            def issued(credential: str) -> None:
                self._issuing = ""
                self._registered(session, message, "", credential)

            self.host.spawn("credential", issue)

    def _join(self, session: AgentSession, message: ms.Hello, credential: str) -> None:
        node = session.node
        if session.bearer.is_limited and not credential:
            session.out(None)  # its use could not be counted: the agent connects again
            return
        self._close(node)
        if credential and self.tokens is not None:
            session.bearer = self.tokens.bearer(credential) or session.bearer
        self._issued = max(self._issued + 1, int(self.host.time() * 1000))  # grows over restarts too
        session.incarnation = self._issued if message.keeps_incarnation else 0
        number = message.incarnation if message.incarnation < self._issued else 0  # none that was never issued
        self._agent[node], self._address[node] = (message.identity, number), message.address
        self._sessions[node] = session
        if not message.reports_host:
            self.heartbeats.pop(node, None)  # no sample of its host stays
        self._renew(node)
        about = self.journal, credential, session.incarnation, message.reports_host
        session.out(ms.Welcome(self.lease_s, self.grace_s, *about))
        self.backend.agent_joined(node, message.running, lambda: self._accept(session), stay_of(message, self.grace_s))

    def _check_agent(self, node: int, message: ms.Hello, bearer: Bearer) -> None:
        """Refuse an agent with other GPUs than its node has, or where another agent or an engine has the node."""
        known = self.cluster.nodes[node]
        self.engines.check_agent(node, known)
        if (known.type.lower(), known.accelerators) != (message.type.lower(), message.accelerators):
            has = f"{known.accelerators} × {known.type}"
            raise ms.BadMessage(
                f"node {known.name!r} has {has}, not {message.accelerators} × {message.type}: if its GPUs have changed, run "
                f"'fairlead nodes remove {known.name}', and {_AGAIN}; otherwise correct --accelerators"
            )
        if (left_s := self._until.get(node, -math.inf) - self.host.monotonic()) > 0:
            self._check_former_agent(known.name, node, message, bearer, left_s)
        elif node in self._until:  # the launches of the former agent are over, and no orders for this one
            self._give_up(node, self.lease_s + self.grace_s)

    def _check_former_agent(self, name: str, node: int, message: ms.Hello, bearer: Bearer, left_s: float) -> None:
        """Refuse an agent that is not the one whose jobs may still run on the node. Of agents with one root, such as a copy of
        it, the one with the last number counts; one that has lost its number (0) is believed. The credential knows the root of
        its agent over restarts of the control plane."""
        identity, incarnation = self._agent.get(node, ("", 0))
        held = bearer if bearer.root else None
        if self.tokens is not None and bearer.role is Role.AGENT:
            held = self.tokens.credential_of(name)
        if identity not in ("", message.identity) or (held is not None and not held.is_for(message.identity)):
            raise ms.BadMessage(
                f"node {name!r} has an agent with another root folder, and its jobs may still run: run one agent for "
                f"each node; if this one replaces it, stop the other and start this one again in {left_s:.0f} s"
            )
        if 0 < message.incarnation < incarnation:
            raise ms.BadMessage(f"a more recent agent has connected for node {name!r}: run one agent for each node")

    def _credential(self, tokens: Tokens, name: str, message: ms.Hello, bearer: Bearer) -> str:
        """A new credential for an agent with the token of all agents, or with one of another root; the former is revoked."""
        try:
            held, began = tokens.credential_of(name), self.host.monotonic()
            own = held is None or held.is_for(message.identity)
            if message.keeps_credential and own and began < self._write_from and not bearer.is_limited:
                return ""  # many agents connect at once, and heartbeats wait for the disk; it gets one when it connects again
            if message.keeps_credential:
                credential = tokens.issue_credential(name, message.identity, bearer)
                took_s = self.host.monotonic() - began
                self._write_from = max(self._write_from, began - self.lease_s) + took_s / WRITING
                return credential
            if held is not None and not held.is_for(message.identity):
                tokens.revoke(name, Role.NODE)
        except (FairleadError, OSError) as problem:
            log.error("no credential for a node: the tokens cannot be written", extra={"node": name, "why": str(problem)})
        return ""

    def receive(self, session: AgentSession | PartSession, message: ms.Message) -> bool:
        """Handle a later message; False if the session is over. Raises `BadMessage`: no agent sends such a message."""
        if isinstance(session, PartSession):
            return session.engine.receive(session, message)
        if self._sessions.get(session.node) is not session:
            return session in self._registering  # agents repeat what is not acknowledged
        if isinstance(message, ms.Heartbeat):
            if self.tokens is not None and not self.tokens.is_valid(session.bearer):
                whose = f"credential of node {session.bearer.user!r}" if session.bearer.role is Role.NODE else "agent's token"
                raise ms.BadMessage(f"the {whose} was revoked: to connect this node again, {_AGAIN}")
            self.heartbeats[session.node] = message.after(self.heartbeats.get(session.node))
            if message.utilization:
                self.backend.heartbeat(session.node, message)
            if not self.may_renew():
                self._close(session.node)  # agents match answers to heartbeats by their order: none may be left out
                return False
            self._renew(session.node)
            if session.incarnation:
                self._agent[session.node] = (self._agent[session.node][0], session.incarnation)
            session.out(ms.LeaseRenewed())
        elif isinstance(message, ms.ReportBatch):
            acknowledged, repeated = ms.Acknowledged(message.sequence), any(map(is_repeated, message.reports))

            def answer() -> None:
                if repeated:
                    self.post(lambda: session.out(acknowledged))

            self.backend.report(session.node, message.reports, answer)
        elif isinstance(message, ms.Leaving):
            self.backend.agent_leaving(session.node)
        elif isinstance(message, ms.Left):
            self._give_up(session.node, 0.0)
        else:
            self.transfers.receive(session, message)
        return not isinstance(message, ms.Left)

    def leave(self, session: AgentSession | PartSession) -> None:
        """A stream has ended."""
        if isinstance(session, PartSession):
            session.engine.leave(session)
            return
        self._registering.discard(session)
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]

    def request_log(self, node: int, request: ms.LogRequest, answer: Callable[[ms.LogChunk], None]) -> int:
        """Send a request to an agent; `answer` is called unless `transfers.forget` comes first. Returns the number of the
        request; 0: the agent is not connected."""
        engine = self.engines.of(node)
        session = self._sessions.get(node) if engine is None else engine.session_of(node, request.job, request.generation)
        return 0 if session is None else self.transfers.request(session, request, answer)

    def expire(self) -> float:
        """Give up nodes without heartbeats. Returns in how many seconds to call it again. Where leases may not be renewed, the
        streams are ended: agents may find another control plane that renews them."""
        now = self.host.monotonic()
        if self._sessions and not self.may_renew():
            log.error(
                "no leases are renewed: the journal has not answered for --journal-timeout",
                extra={"agents": len(self._sessions)},
            )
            self.close()
        for node in [node for node, until in self._until.items() if until <= now]:
            self._give_up(node, self.lease_s + self.grace_s)
        earliest = min((until for until in self._until.values() if until > now), default=now + 1.0)
        return min(max(min(earliest - now, self.engines.expire()), MIN_CHECK_S), 1.0)

    def _give_up(self, node: int, silent_s: float) -> None:
        if self.engines.adopt(node):
            return
        del self._until[node]
        self._close(node)
        self.backend.agent_lost(node, silent_s)

    def close(self) -> None:
        """End all streams; agents connect again when they can."""
        for node in list(self._sessions):
            self._close(node)
        for session in self._registering:
            session.out(None)
        self.engines.close()

    def _accept(self, session: AgentSession) -> None:
        self._accepted[session.node] = session

    def _renew(self, node: int) -> None:
        self._until[node] = self.host.monotonic() + self.lease_s + self.grace_s

    def _put(self, node: int, message: ms.FromControl) -> None:
        if (session := self._sessions.get(node)) is not None:
            session.out(message)

    def _forget_node(self, node: int, name: str) -> None:
        if self._sessions.get(node) is self._accepted.get(node):  # otherwise a new agent of a temporary node adds it again
            self._put(node, ms.Refused(f"node {name!r} was removed from the cluster: to add it again, {_AGAIN}"))
        self._close(node)
        for known in (self._until, self._agent, self._address, self._accepted, self.heartbeats):
            known.pop(node, None)

    def _close(self, node: int) -> None:
        if (session := self._sessions.pop(node, None)) is not None:
            session.out(None)
