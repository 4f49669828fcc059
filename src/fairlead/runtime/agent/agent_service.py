"""The agent: a supervisor of this node's jobs, and a stream to the control plane. It carries orders out, says what became of
them until that is heard, and beats. When its lease has run out because nobody answered, it stops its jobs by itself."""

from __future__ import annotations

import base64
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from fairlead.core.errors import FairleadError
from fairlead.core.job import LAUNCH_FAILED
from fairlead.files import atomic_write
from fairlead.runtime.agent.agent_errors import NodeError
from fairlead.runtime.agent.code_delivery import Deliveries
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.protocol.messages import (
    CHUNK_BYTES,
    METHOD,
    SERVICE,
    Acknowledged,
    CodeChunk,
    CodeRequest,
    FromAgent,
    Heartbeat,
    Hello,
    JournalMismatch,
    LeaseRenewed,
    LogChunk,
    LogRequest,
    OrderBatch,
    Refused,
    ReportBatch,
    Welcome,
    decode_message,
    encode_message,
)
from fairlead.runtime.protocol.network import own_address
from fairlead.runtime.protocol.orders import (
    Ended,
    Extend,
    Launch,
    Metric,
    Order,
    Progress,
    RenewalRequest,
    Report,
    Reroute,
    Revoke,
)

# When an agent says what. Ends, and questions that somebody waits for, are said at once. Of progress and metrics the last
# word
# of each second is enough: jobs make a step in a millisecond, and the control plane hears of a thousand nodes. Pure; whoever
# asks brings the time.

PAUSE_S = 1.0


class Telling:
    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], Progress | Metric] = {}
        self._last_s = -math.inf

    def of(self, told: Iterable[Report], now: float, *, listened_to: bool = True) -> list[Report]:
        """What to say now, of what was held back and what is new. Nothing that is said of a job comes after its end. While
        nobody listens, the last words are held back, but for those of who ends."""
        at_once: list[Report] = []
        for word in told:
            if isinstance(word, Ended):
                key = (word.job, word.generation)
                at_once += [self._held.pop(name) for name in list(self._held) if name[:2] == key]
                at_once.append(word)
            elif isinstance(word, RenewalRequest):
                at_once.append(word)
            else:
                name = word.name if isinstance(word, Metric) else None
                self._held[word.job, word.generation, name] = word
        if not listened_to or now < self._last_s + PAUSE_S or not self._held:
            return at_once
        self._last_s = now
        held, self._held = list(self._held.values()), {}
        return [*held, *at_once]


# The agent's own lease. The control plane counts on it: when it has heard nothing from an agent for the term, what ran there
# is stopping without being told. Pure; whoever asks brings the time.


@dataclass(frozen=True, slots=True)
class LeaseTerm:
    lease_s: float
    since: float = -math.inf  # never renewed: over

    def renewed(self, at: float) -> LeaseTerm:
        """`at` is when the agent *asked*: the control plane counts from its answer, which is later. An answer that was
        overtaken by a later one takes nothing away."""
        return replace(self, since=max(self.since, at))

    def remaining(self, now: float) -> float:
        return max(0.0, self.since + self.lease_s - now)

    def is_over(self, now: float) -> bool:
        return self.remaining(now) <= 0


log = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often progress is looked at."""

QUICK_LOOK_S = 0.002
"""The same where a job does nothing until it is answered (central renewal)."""
SWEEP_S = 60.0
"""How often what is too old is removed."""

LONGEST_PAUSE_S = 5.0
"""Between tries to reach the control plane."""


FIRST_ANSWER_S = 15.0
"""How long the first welcome is waited for; later on it is the term. Nobody closes a stream on which everything is lost."""


class Unwanted(FairleadError):
    """The control plane refuses this agent; trying again as it is would not help."""


class _Lost(Exception):
    """The stream is gone."""


class _Other(Exception):
    """The control plane has another journal than what this agent has is about."""

    def __init__(self, journal: str) -> None:
        self.journal = journal


@dataclass(eq=False)
class Agent:
    """Give it the supervisor of the node, the node's name as the control plane knows it, and where that is."""

    supervisor: Supervisor
    node: str
    control: str
    token: str = ""
    address: str = ""  # where other nodes find this one; empty: where it reaches the control plane from
    credentials: grpc.ChannelCredentials | None = None
    clock: Callable[[], float] = time.monotonic
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._incarnation = _next_incarnation(self.supervisor.root)
        self._about = self.supervisor.root / "journal"
        self._journal = self._about.read_text() if self._about.exists() else ""
        self._term: LeaseTerm | None = None
        self._grace_s = math.inf
        self._expired = False
        self._telling = Telling()
        self._sequence = 0
        self._unheard: dict[int, tuple[Report, ...]] = {}
        self._unanswered: dict[int, list[Metric]] = {}  # said into a stream that may be dead
        self._deliveries = Deliveries(self.supervisor)
        self._next_sweep = self.clock() + SWEEP_S
        self._asked: list[float] = []  # when the beats were sent that have no answer yet
        self._welcomed = False  # in this stream

    def run(self) -> None:
        """Until `stopping` is set, or the control plane does not want it. Jobs go on when it returns."""
        pause = LOOK_S
        while not self.stopping.is_set():
            try:
                self._session()
            except _Lost as problem:
                if not self.stopping.is_set():
                    log.warning("no control plane: %s", problem)
            except _Other as other:
                self._begin_anew(other.journal)
            pause = LOOK_S if self._welcomed else min(2 * pause, LONGEST_PAUSE_S)
            again = self.clock() + pause
            while not self.stopping.is_set() and self.clock() < again:
                self._numbered(self._look(listened_to=False))

    def _session(self) -> None:
        """One stream, from hello to its end."""
        said: queue.Queue[FromAgent | None] = queue.Queue()
        heard: queue.Queue[bytes | Exception | None] = queue.Queue()
        channel = (
            grpc.secure_channel(self.control, self.credentials)
            if self.credentials is not None
            else grpc.insecure_channel(self.control)
        )
        with channel:
            call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")
            stream = call(_encoded(said), metadata=(("authorization", f"Bearer {self.token}"),))
            threading.Thread(target=_listen, args=(stream, heard), daemon=True).start()
            try:
                next_beat = self.clock()
                self._asked, self._welcomed = [next_beat], False
                said.put(self._hello())
                was_over = self._expired
                while not self.stopping.is_set():
                    self._take(heard, said)
                    was_over = was_over and self._expired
                    if self._expired and not was_over:  # a line can be dead long before the network says so
                        raise _Lost("no answer for the whole term of the lease")
                    now = self.clock()
                    if self._asked and now - self._asked[0] > (self._term.lease_s if self._term else FIRST_ANSWER_S):
                        raise _Lost("nobody answers")
                    if self._term is not None and now >= next_beat:
                        self._asked.append(now)
                        said.put(self._beat())
                        next_beat = now + self._term.lease_s / 3
                    if told := self._look():
                        said.put(self._numbered(told))
            finally:
                said.put(None)
                stream.cancel()

    def _begin_anew(self, journal: str) -> None:
        """The same numbers mean other jobs from now on: those that run here save and end, and nothing is told of them."""
        log.warning("the control plane has another journal; jobs of the old one save and end", extra={"journal": journal})
        self._deliveries = Deliveries(self.supervisor)
        self.supervisor.stop_all()
        while self.supervisor.running():
            if self.stopping.is_set():
                return
            self.supervisor.wait(LOOK_S)
            self.supervisor.poll()
        place = self.supervisor.set_aside()
        log.warning("what was kept of the old journal's jobs is set aside", extra={"place": str(place)})
        self._unheard, self._unanswered, self._telling = {}, {}, Telling()
        self._work_for(journal)

    def _work_for(self, journal: str) -> None:
        if journal != self._journal:
            atomic_write(self._about, journal.encode(), private=True)
            self._journal = journal

    def _hello(self) -> Hello:
        """What ended and was not heard of yet counts as running: its end is said next."""
        self._numbered(self._telling.of(self.supervisor.poll(), self.clock(), listened_to=False))
        running = {(one.job, one.generation) for one in self.supervisor.running()}
        running |= {(word.job, word.generation) for words in self._unheard.values() for word in words}
        running |= self._deliveries.waiting
        has = self.supervisor.accelerators
        return Hello(
            self.node,
            has.type_name,
            len(has.devices),
            self._incarnation,
            self.address or own_address(self.control),
            tuple(sorted(running)),
            self._journal,
        )

    def _take(self, heard: queue.Queue[bytes | Exception | None], said: queue.Queue[FromAgent | None]) -> None:
        """Everything that has arrived."""
        while not heard.empty():
            data = heard.get()
            if data is None or isinstance(data, Exception):
                raise _Lost(str(data or "the stream was closed"))
            message = decode_message(data)
            if isinstance(message, Welcome):
                self._welcomed = True
                self._work_for(message.journal)
                self._term, self._grace_s = LeaseTerm(message.lease_s), message.grace_s
                self._renewed()
                if in_doubt := self._in_doubt():  # before any end: what is said of a job after that is not listened to
                    said.put(self._numbered(in_doubt))
                for sequence, told in self._unheard.items():
                    said.put(ReportBatch(sequence, told))
                self._ask(self._deliveries.again(), said)
            elif isinstance(message, JournalMismatch):
                raise _Other(message.journal)
            elif isinstance(message, LeaseRenewed):
                self._renewed()
            elif isinstance(message, Acknowledged):
                self._unanswered.pop(message.sequence, None)
                for job, generation in {(word.job, word.generation) for word in self._unheard.pop(message.sequence, ())}:
                    self.supervisor.acknowledge(job, generation)
            elif isinstance(message, OrderBatch):
                for order in message.orders:
                    if isinstance(order, Launch) and (wanted := self._deliveries.hold(order)) is not None:
                        self._ask(wanted, said)
                    elif (ended := self._carry_out(order)) is not None:
                        said.put(self._numbered([ended]))
            elif isinstance(message, LogRequest):
                said.put(self._log_piece(message))
            elif isinstance(message, CodeChunk):
                self._ask(self._deliveries.take(message), said)
            elif isinstance(message, Refused):
                raise Unwanted(message.why)

    def _beat(self) -> Heartbeat:
        """With the use of all accelerators of this node, or of none: they are told apart by their order."""
        samples = self.supervisor.accelerators.samples()
        if len(samples) < len(self.supervisor.accelerators):
            return Heartbeat()
        return Heartbeat(tuple(one.utilization for one in samples), tuple(one.memory_used_gb for one in samples))

    def _ask(self, wanted: list[CodeRequest], said: queue.Queue[FromAgent | None]) -> None:
        for one in wanted:
            said.put(one)

    def _log_piece(self, wanted: LogRequest) -> LogChunk:
        try:
            found = self.supervisor.read_log(
                wanted.job, wanted.generation, wanted.rank, wanted.offset, min(wanted.limit, CHUNK_BYTES)
            )
        except FairleadError as problem:
            return LogChunk(wanted.number, problem=str(problem))
        return LogChunk(wanted.number, found.offset, base64.b64encode(found.data).decode())

    def _carry_out(self, order: Order) -> Ended | None:
        """None, or how it has ended already: it could not be begun, or never was; or it got lost on its way, and then is not
        wanted any more."""
        try:
            if isinstance(order, Launch):
                return self.supervisor.launch(order)
            if isinstance(order, Extend):
                self.supervisor.extend(order)
            elif isinstance(order, Reroute):
                if not self._deliveries.reroute(order):
                    self.supervisor.reroute(order)
            elif (ended := self._deliveries.drop(order)) is not None:
                return ended
            elif not self.supervisor.has(order.job, order.generation):
                return Ended(order.job, order.generation, LAUNCH_FAILED, False, 0, 0, "it never came here")
            elif isinstance(order, Revoke):
                self.supervisor.revoke(order)
            else:
                self.supervisor.kill(order)
        except FairleadError as problem:
            log.error("order refused: %s", problem)
            left = isinstance(problem, NodeError)  # the node failed it, such as by a folder that cannot be made
            ended = Ended(order.job, order.generation, LAUNCH_FAILED, left, 0, 0, str(problem))
            return ended if isinstance(order, Launch) else None
        return None

    def _look(self, *, listened_to: bool = True) -> list[Report]:
        """What became of jobs by now; and the lease is watched."""
        if self._term is not None and self._term.is_over(self.clock()) and not self._expired:
            log.warning("the lease of this agent is over: its jobs are stopped")
            self._expired = True
            self.supervisor.expire(self._grace_s)
        if self.clock() >= self._next_sweep:
            self._next_sweep = self.clock() + SWEEP_S
            try:
                self.supervisor.sweep(time.time())
            except FairleadError as problem:
                log.warning("cannot clean up: %s", problem)
        begin, told = self._deliveries.ready()
        told += [ended for launch in begin if (ended := self._carry_out(launch)) is not None]
        self.supervisor.wait(QUICK_LOOK_S if self.supervisor.is_waited_for else LOOK_S)
        return [*told, *self._telling.of(self.supervisor.poll(), self.clock(), listened_to=listened_to)]

    def _numbered(self, told: list[Report]) -> ReportBatch:
        """Ends are kept until they are heard, with the last words of who ended, and so are metrics, which may be said once; the
        rest is out of date soon."""
        self._sequence += 1
        ended = {(word.job, word.generation) for word in told if isinstance(word, Ended)}
        if ended:
            self._unheard[self._sequence] = tuple(word for word in told if (word.job, word.generation) in ended)
        if metrics := [word for word in told if isinstance(word, Metric) and (word.job, word.generation) not in ended]:
            self._unanswered[self._sequence] = metrics
        return ReportBatch(self._sequence, tuple(told))

    def _in_doubt(self) -> list[Report]:
        """Metrics that were said and that perhaps nobody heard, the last of each name, to be said again."""
        last = {(one.job, one.generation, one.name): one for words in self._unanswered.values() for one in words}
        self._unanswered = {}
        return list(last.values())

    def _renewed(self) -> None:
        """The lease counts from when the answered beat was sent, not from when the answer came."""
        if self._term is not None and self._asked:
            self._term = self._term.renewed(self._asked.pop(0))
            self._expired = False
            self.supervisor.hold(self._term.since + self._term.lease_s, self._grace_s)


def _listen(stream: Iterator[bytes], heard: queue.Queue[bytes | Exception | None]) -> None:
    try:
        for data in stream:
            heard.put(data)
        heard.put(None)
    except grpc.RpcError as problem:
        heard.put(_Lost(problem.details() if hasattr(problem, "details") else str(problem)))


def _encoded(said: queue.Queue[FromAgent | None]) -> Iterator[bytes]:
    while (message := said.get()) is not None:
        yield encode_message(message)


def _next_incarnation(root: Path) -> int:
    """Grows with every start of an agent on this root."""
    path = root / "incarnation"
    before = int(path.read_text()) if path.exists() else 0
    atomic_write(path, str(before + 1).encode(), private=True)
    return before + 1
