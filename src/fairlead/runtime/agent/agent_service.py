"""The agent service: a supervisor of the node's jobs and a stream to the control plane. It carries out orders, sends reports
until they are acknowledged, and sends heartbeats. When its lease expires because no answer comes, it stops its jobs by
itself."""

from __future__ import annotations

import base64
import contextlib
import logging
import math
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import grpc

from fairlead.core.errors import FairleadError
from fairlead.core.job import LAUNCH_FAILED
from fairlead.files import atomic_write
from fairlead.runtime.agent.agent_errors import AgentRefused, NodeError, node_errors
from fairlead.runtime.agent.agent_identity import AgentIdentity, stored_text
from fairlead.runtime.agent.agent_stream import AgentStream, ConnectionLost, GrpcStream
from fairlead.runtime.agent.code_delivery import CodeDeliveries
from fairlead.runtime.agent.departure import Departure
from fairlead.runtime.agent.devices import HostMeter, host_resources
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.host import Host
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol import orders as od
from fairlead.runtime.protocol.code_archive import CHUNK_BYTES
from fairlead.runtime.protocol.network import own_address

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 1.0
EXPECTED_INTERVAL_S = 10.0  # of progress that follows from the last report
RATE_CHANGE, AHEAD_S = 0.05, 0.5  # progress with a larger change of the rate, or so far ahead or behind, does not follow
POLL_S = 0.1
_CENTRAL_POLL_S = 0.002  # while a job may be waiting for an answer (central renewal)
_SWEEP_S = 60.0
_LOST_FOR_S = 2.0  # before a lost connection is logged
_MAX_PAUSE_S = 5.0  # between attempts to reach the control plane
_FIRST_ANSWER_S = 15.0  # how long the first welcome may take; later it is the lease duration, and longer at each attempt
_MAX_ANSWER_S = 60.0
_TAIL_BYTES, _ALL_TAILS_BYTES = 64 << 10, 4 << 20  # of a worker's log, and of all logs of a node that is about to be removed
_LEFT_WITHIN_S, _LEFT_POLL_S = 5.0, 0.02  # for the control plane to end the stream of an agent that has left
_JOURNAL = re.compile(r"[\x20-\x7e]{1,200}")


class ReportThrottle:
    """When reports are sent. Ends and renewal requests are sent at once. Of progress and metrics, the last value of each second
    is enough: a step may take a millisecond, and the control plane serves thousands of nodes. It also computes progress from
    the last rate, so progress as expected is sent less often. The caller passes the time."""

    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], od.Progress | od.Metric] = {}
        self._last_s = -math.inf
        self._sent: dict[tuple[int, int], tuple[od.Progress, float]] = {}  # the last progress of each launch, and when

    def add(self, reports: Iterable[od.Report], now: float, *, connected: bool = True) -> list[od.Report]:
        """The reports to send now, of held and new ones. No report about a launch follows its end. Without a connection only
        ends and what precedes them are returned."""
        at_once: list[od.Report] = []
        for report in reports:
            if isinstance(report, od.Ended):
                at_once += [self._held.pop(name) for name in list(self._held) if name[:2] == report.key]
                at_once.append(report)
                self._sent.pop(report.key, None)
            elif isinstance(report, od.RenewalRequest):
                at_once.append(report)
            else:
                name = report.name if isinstance(report, od.Metric) else None
                self._held[report.job, report.generation, name] = report
        if not connected:
            self._sent = {}  # it may be lost
        if not connected or now < self._last_s + REPORT_INTERVAL_S or not self._held:
            return at_once
        due = {name: one for name, one in self._held.items() if isinstance(one, od.Metric) or not self._is_expected(one, now)}
        if due:
            self._last_s = now
        self._held = {name: one for name, one in self._held.items() if name not in due}
        self._sent |= {one.key: (one, now) for one in due.values() if isinstance(one, od.Progress)}
        return [*due.values(), *at_once]

    def _is_expected(self, new: od.Progress, now: float) -> bool:
        """Whether progress follows from what was sent not long ago. Batch sizes are counted, so they are always sent."""
        last, sent_s = self._sent.get(new.key, (None, -math.inf))
        if last is None or now >= sent_s + EXPECTED_INTERVAL_S or new.batch_size or not last.rate:
            return False
        off = abs(new.steps - last.steps - last.rate * (now - sent_s))
        return off <= max(1.0, AHEAD_S * last.rate) and abs(new.rate - last.rate) <= RATE_CHANGE * last.rate


@dataclass(frozen=True, slots=True)
class AgentLease:
    """The agent's own lease. When the control plane has incoming nothing from an agent for its duration, it relies on the agent
    stopping its jobs. The caller passes the time."""

    lease_s: float
    since: float = -math.inf  # never renewed: over

    def renewed(self, at: float) -> AgentLease:
        """The lease from `at` on, when the answered heartbeat was *sent*: the control plane counts from its later answer. An
        answer that arrives out of order shortens nothing."""
        return replace(self, since=max(self.since, at))

    def is_over(self, now: float) -> bool:
        return now >= self.since + self.lease_s


def retry_pause_s(before_s: float, lease: AgentLease | None, addresses: int = 1) -> float:
    """The pause before the next attempt to connect: twice the last one, and at most a small part of the lease for all of
    several addresses."""
    return min(2 * before_s, _MAX_PAUSE_S, math.inf if lease is None else lease.lease_s / 10 / addresses)


class _WrongJournal(Exception):
    """The control plane has another journal, which it names, than this agent's launches."""


@dataclass(eq=False)
class Agent:
    """The agent of a node: its supervisor, its name in the cluster, and the address of the control plane; of several, with
    commas between them, those are tried in turn."""

    supervisor: Supervisor
    node: str
    control: str
    token: str = ""
    address: str = ""  # at which other nodes reach this one; empty: the one from which it reaches the control plane
    credentials: grpc.ChannelCredentials | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    leaving: threading.Event = field(default_factory=threading.Event)  # let jobs save and end, report that, and stop
    departure: Departure | None = None  # how it leaves; None: with each job's own grace period
    temporary: bool = False  # its node is removed from the cluster when it has left
    rack: str = ""  # of the node; empty: not known
    host: Host = field(default_factory=Host)
    connect: Callable[[], AgentStream] | None = None  # None: by gRPC

    is_last_reader = False  # whether nothing reads the logs here after its end

    def __post_init__(self) -> None:
        self.clock = self.host.monotonic
        self._addresses = [one for address in self.control.split(",") if (one := address.strip())] or [self.control]
        self._departure = self.departure or Departure(self.supervisor)
        self.own = AgentIdentity(self.supervisor.root, self.token, self.host)
        self._journal_file = self.supervisor.root / "journal"
        self._journal = stored_text(self._journal_file, _JOURNAL)
        self._lease: AgentLease | None = None
        self._grace_s = math.inf
        self._expired = False
        self._throttle = ReportThrottle()
        self._sequence = 0
        self._unacknowledged: dict[int, tuple[od.Report, ...]] = {}  # ends, by sequence number
        self._metrics_sent: dict[int, list[od.Metric]] = {}  # maybe into a dead stream
        self._deliveries = CodeDeliveries(self.supervisor)
        self._next_sweep = self.clock() + _SWEEP_S
        self._heartbeats: list[float] = []  # times of those without an answer
        self._host_meter, self._wants_host = HostMeter(self.supervisor.root), False
        self._welcomed = False  # in this stream
        self._unanswered = 0  # streams since the last welcome
        self._lost_s: float | None = None  # when the connection was lost; None: it was not
        self._loss_logged = False

    def run(self) -> None:
        """Run until `stopping` is set; jobs keep running when it returns. Or until `leaving` is set, and no job is left. Raises
        `AgentRefused`: the control plane refuses this agent."""
        pause = POLL_S
        while not self.stopping.is_set():
            try:
                self._session()
            except ConnectionLost as problem:
                now = self.clock()
                self._lost_s = now if self._lost_s is None else self._lost_s
                # One line, not one for each attempt, and none if the control plane and this agent end together.
                if not self.stopping.is_set() and not self._loss_logged and now >= self._lost_s + _LOST_FOR_S:
                    self._loss_logged = True
                    log.warning("no connection to the control plane: %s", problem, extra={"control": self.control})
            except _WrongJournal as other:
                self._change_journal(str(other))
            except AgentRefused:  # a temporary node may have been removed, with its credential: then it is added again
                if self._welcomed or not self.temporary or not self.own.forget_credential():
                    raise
            if not self._welcomed:  # otherwise it is tried again first
                self._addresses.append(self._addresses.pop(0))
            pause = POLL_S if self._welcomed else retry_pause_s(pause, self._lease, len(self._addresses))
            again = self.clock() + pause
            while not self.stopping.is_set() and self.clock() < again:
                self._batch(self._poll(connected=False))
                self._leave(None, False)

    @property
    def control_address(self) -> str:
        """The address that is tried next, or in use."""
        return self._addresses[0]

    def _answer_within_s(self) -> float:
        """How long an answer may take. Of several control planes, another one is tried before the lease is over. While
        thousands of agents connect at once, those that hang up too early make it slower for all: each attempt waits longer."""
        lease_s = self._lease.lease_s if self._lease else _FIRST_ANSWER_S
        if len(self._addresses) > 1:
            return lease_s / (2 if self._welcomed else 3)
        return lease_s if self._welcomed else min(lease_s * 2**self._unanswered, max(_MAX_ANSWER_S, lease_s))

    def _session(self) -> None:
        connect = self.connect or (lambda: GrpcStream(self.control_address, self.own.token, self.credentials))
        stream = connect()
        try:
            next_heartbeat = self.clock()
            self._heartbeats, self._welcomed = [next_heartbeat], False
            stream.send(self._hello())
            was_over, leaving = self._expired, False
            while not self.stopping.is_set():
                self._receive(stream)
                was_over = was_over and self._expired
                if self._welcomed and self._expired and not was_over:  # dead long before the network reports it
                    raise ConnectionLost("no answer for the duration of the lease")
                now = self.clock()
                if self._heartbeats and now - self._heartbeats[0] > self._answer_within_s():
                    self._unanswered += not self._welcomed
                    raise ConnectionLost("no answer")
                if self._welcomed and self._lease is not None and now >= next_heartbeat:
                    self._heartbeats.append(now)
                    stream.send(self._host_meter.heartbeat(self.supervisor, now, with_host=self._wants_host))
                    next_heartbeat = now + self._lease.lease_s / 3
                if reports := self._poll():
                    stream.send(self._batch(reports))
                leaving = self._leave(stream, leaving)
        finally:
            stream.close()

    def _leave(self, stream: AgentStream | None, said: bool) -> bool:
        """Go on with the agent's departure, where it has begun. Returns whether this stream knows of it."""
        now, departure = self.clock(), self._departure
        if not departure.has_begun:
            return False
        departure.advance(now)
        connected = stream if self._welcomed else None
        if connected is not None and not said:
            connected.send(ms.Leaving())
        if departure.is_over(now, connected=connected is not None, reported=not self._unacknowledged):
            self.stopping.set()
            if connected is not None:
                self._send_left(connected)
        return connected is not None

    def _send_left(self, stream: AgentStream) -> None:
        """Send the last message, after the ends of logs that are lost with this agent, and wait for the end of the stream."""
        if self.temporary or self.is_last_reader:
            with contextlib.suppress(FairleadError):
                for job, generation, rank, found in self.supervisor.log_tails(_TAIL_BYTES, _ALL_TAILS_BYTES):
                    data, offset = base64.b64encode(found.data).decode(), min(found.offset, od.MAX_COUNT)
                    stream.send(ms.LogTail(job, generation, rank, offset, data))
        stream.send(ms.Left())
        self._departure.is_acknowledged = not self._unacknowledged
        until = self.clock() + _LEFT_WITHIN_S
        with contextlib.suppress(ConnectionLost):
            while self.clock() < until:
                stream.receive()
                self.host.sleep(_LEFT_POLL_S)

    def _change_journal(self, journal: str) -> None:
        """From now on the same numbers mean other jobs: running jobs save and end without a report."""
        log.warning("the control plane has another journal; jobs of the old one checkpoint and end", extra={"journal": journal})
        self._deliveries = CodeDeliveries(self.supervisor)
        self.supervisor.stop_all()
        while self.supervisor.running():
            if self.stopping.is_set():
                return
            self.supervisor.wait(POLL_S)
            self.supervisor.poll()
        place = self.supervisor.set_aside()
        log.warning("launches of the old journal were moved", extra={"place": str(place)})
        self._unacknowledged, self._metrics_sent, self._throttle = {}, {}, ReportThrottle()
        self._set_journal(journal)

    def _set_journal(self, journal: str) -> None:
        if journal != self._journal:
            with node_errors(self._journal_file):
                atomic_write(self._journal_file, journal.encode(), private=True)
            self._journal = journal

    def _hello(self) -> ms.Hello:
        """A launch whose end was not acknowledged counts as running: its end is sent next."""
        self._departure.record(reports := self._throttle.add(self.supervisor.poll(), self.clock(), connected=False))
        self._batch(reports)
        running = {one.key for one in self.supervisor.running()} | self._deliveries.waiting
        running |= {report.key for batch in self._unacknowledged.values() for report in batch}
        has = self.supervisor.accelerators
        return ms.Hello(
            self.node,
            has.type_name,
            len(has.devices),
            self.own.incarnation,
            self.address or own_address(self.control_address),
            tuple(sorted(running)),
            self._journal,
            identity=self.own.identity,
            keeps_credential=True,
            keeps_incarnation=True,
            reports_host=True,
            left_s=self._departure.left_s(self.host.time()),
            temporary=self.temporary,
            leaving=self._departure.has_begun,
            rack=self.rack,
            **host_resources(has)._asdict(),
        )

    def _receive(self, stream: AgentStream) -> None:
        for data in stream.receive():
            message = ms.decode_message(data)
            if isinstance(message, ms.Welcome):
                self._welcomed, self._unanswered, self._wants_host = True, 0, message.wants_host
                away = {} if self._lost_s is None else {"unreachable_s": round(self.clock() - self._lost_s, 1)}
                has = self.supervisor.accelerators
                about = {"control": self.control_address, "node": self.node}
                gpus = {"gpus": f"{len(has.devices)} × {has.type_name}"}
                log.info("connected to the control plane", extra={**about, **gpus, **away})
                self._lost_s, self._loss_logged = None, False
                self._set_journal(message.journal)
                self.own.keep_credential(message.credential)
                self.own.keep_incarnation(message.incarnation)  # before the first heartbeat, which confirms it
                self._lease, self._grace_s = AgentLease(message.lease_s), message.grace_s
                self._renewed()
                if in_doubt := self._in_doubt():  # before any end: later reports about a launch are ignored
                    stream.send(self._batch(in_doubt))
                for sequence, reports in self._unacknowledged.items():
                    stream.send(ms.ReportBatch(sequence, tuple(map(self._aged, reports))))
                self._send(self._deliveries.repeated_requests(), stream)
            elif isinstance(message, ms.JournalMismatch):
                raise _WrongJournal(message.journal)
            elif isinstance(message, ms.LeaseRenewed):
                self._renewed()
            elif isinstance(message, ms.Acknowledged):
                self._metrics_sent.pop(message.sequence, None)
                for key in {report.key for report in self._unacknowledged.pop(message.sequence, ())}:
                    self.supervisor.acknowledge(key)
            elif isinstance(message, ms.OrderBatch):
                for order in message.orders:
                    if isinstance(order, od.Launch) and (wanted := self._wanted_code(order)) is not None:
                        self._send(wanted, stream)
                    elif (ended := self._carry_out(order)) is not None:
                        stream.send(self._batch([ended]))
            elif isinstance(message, ms.LogRequest):
                stream.send(self._log_chunk(message))
            elif isinstance(message, ms.CodeChunk):
                self._send(self._deliveries.receive(message), stream)
            elif isinstance(message, ms.Refused):
                raise AgentRefused(message.why)

    def _wanted_code(self, launch: od.Launch) -> list[ms.CodeRequest] | None:
        """The requests of a launch that has to wait for its code; None: it is carried out, or refused, at once."""
        return None if self._departure.has_begun else self._deliveries.hold(launch)

    def _send(self, requests: list[ms.CodeRequest], stream: AgentStream) -> None:
        for request in requests:
            stream.send(request)

    def _log_chunk(self, wanted: ms.LogRequest) -> ms.LogChunk:
        try:
            if wanted.rank < 0:
                limit = min(wanted.limit, CHUNK_BYTES)
                data = self.supervisor.read_output(wanted.job, wanted.generation, wanted.path, wanted.offset, limit)
                return ms.LogChunk(wanted.number, wanted.offset, base64.b64encode(data).decode())
            found = self.supervisor.read_log(
                wanted.job, wanted.generation, wanted.rank, wanted.offset, min(wanted.limit, CHUNK_BYTES)
            )
        except FairleadError as problem:
            return ms.LogChunk(wanted.number, problem=od.bounded_text(problem))
        return ms.LogChunk(wanted.number, min(found.offset, od.MAX_COUNT), base64.b64encode(found.data).decode())

    def _carry_out(self, order: od.Order) -> od.Ended | None:
        """Carry out an order. Returns the end of a launch that could not be started or never came here, or None."""
        try:
            if isinstance(order, od.Launch):
                return self.supervisor.launch(order)
            if isinstance(order, od.Reroute) and self._deliveries.reroute(order):
                return None
            if isinstance(order, od.Revoke | od.Kill):
                if (ended := self._deliveries.drop(order)) is not None:
                    return ended
                if not self.supervisor.has(order.key):
                    return od.Ended(*order.key, LAUNCH_FAILED, False, 0, 0, "the launch did not reach this node")
            self.supervisor.carry_out(order)
        except FairleadError as problem:
            log.error("order refused: %s", problem)
            left = isinstance(problem, NodeError)  # not a fault of the job
            ended = od.Ended(*order.key, LAUNCH_FAILED, left, 0, 0, od.bounded_text(problem))
            return ended if isinstance(order, od.Launch) else None
        return None

    def _poll(self, *, connected: bool = True) -> list[od.Report]:
        """New reports; also checks the agent's lease and cleans up."""
        if self._lease is not None and self._lease.is_over(self.clock()) and not self._expired:
            log.warning("the agent's lease expired; its jobs are stopped")
            self._expired = True
            self.supervisor.end_leases(self._grace_s)
        if self.clock() >= self._next_sweep:
            self._next_sweep = self.clock() + _SWEEP_S
            try:
                self.supervisor.sweep(self.host.time())
            except FairleadError as problem:
                log.warning("cannot clean up: %s", problem)
        startable, failed = self._deliveries.ready()
        if not self._departure.has_begun and (self.leaving.is_set() or self._departure.is_due(self.host.time())):
            log.info("leaving: jobs save and end", extra={"jobs": len(self.supervisor.running())})
            self._departure.begin(self.clock())
            startable += self._deliveries.take_waiting()  # they cannot start any more, which is reported
        ends = [ended for launch in startable if (ended := self._carry_out(launch)) is not None]
        self.supervisor.wait(_CENTRAL_POLL_S if self.supervisor.has_central_renewals else POLL_S)
        reports: list[od.Report] = [*failed, *ends]
        reports += self._throttle.add(self.supervisor.poll(), self.clock(), connected=connected)
        self._departure.record(reports)
        return reports

    def _batch(self, reports: list[od.Report]) -> ms.ReportBatch:
        """A batch with the next sequence number. Ends, with the last reports before them, and metrics are kept until they are
        acknowledged; other reports are soon out of date."""
        self._sequence += 1
        ended = {report.key for report in reports if isinstance(report, od.Ended)}
        if ended:
            self._unacknowledged[self._sequence] = tuple(report for report in reports if report.key in ended)
        if metrics := [report for report in reports if isinstance(report, od.Metric) and report.key not in ended]:
            self._metrics_sent[self._sequence] = metrics
        return ms.ReportBatch(self._sequence, tuple(map(self._aged, reports)))

    def _aged(self, report: od.Report) -> od.Report:
        """An end with how long ago it was, by this node's clock: the control plane's may differ."""
        if not isinstance(report, od.Ended) or not report.ended_at:
            return report
        return replace(report, ago_s=max(0.0, self.host.time() - report.ended_at))

    def _in_doubt(self) -> list[od.Report]:
        """Metrics that were perhaps not received, the last of each name, to be sent again."""
        last = {(one.job, one.generation, one.name): one for batch in self._metrics_sent.values() for one in batch}
        self._metrics_sent = {}
        return list(last.values())

    def _renewed(self) -> None:
        """The lease counts from when the answered heartbeat was sent, not from when the answer came."""
        if self._lease is None or not self._heartbeats:
            return
        lease = self._lease.renewed(self._heartbeats.pop(0))
        try:
            self.supervisor.set_fencing_deadline(lease.since + lease.lease_s, self._grace_s)
        except NodeError as problem:  # shims would not know of it: jobs stop as without an answer
            log.error("the agent's lease cannot be renewed: %s", problem)
            return
        self._lease, self._expired = lease, False
