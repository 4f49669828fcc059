"""Logs and code archives on the agents' streams: requests for logs get their answers, and code is sent in parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from fairlead.core.errors import JournalUnreachable
from fairlead.runtime.control.agent_sessions import AgentSession, HubServices, PartSession
from fairlead.runtime.control.code_store import CodeStore
from fairlead.runtime.control.kept_logs import KeptLogs
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol.orders import Launch

MAX_TAILS = 4_000  # ends of logs that wait to be written; more are dropped
MAX_WORKERS = 100_000  # whose nodes are remembered
MAX_RANKS = 100  # of a launch from before a restart, whose workers are not known


@dataclass(eq=False)
class AgentTransfers:
    """What travels on the streams of a hub besides leases, orders and reports."""

    hub: HubServices

    def __post_init__(self) -> None:
        self._numbers = count(1)
        self._answers: dict[int, tuple[AgentSession | PartSession, Callable[[ms.LogChunk], None]]] = {}
        self._node_of: dict[tuple[int, int, int], int] = {}  # by job, generation and rank; none from before a restart
        self.logs: KeptLogs | None = None
        self._tails: deque[ms.LogTail] = deque(maxlen=MAX_TAILS)
        self._writes = False

    def request(
        self, session: AgentSession | PartSession, request: ms.LogRequest, answer: Callable[[ms.LogChunk], None]
    ) -> int:
        """Ask an agent for a part of a log. Returns the number of the request."""
        number = next(self._numbers)
        self._answers[number] = session, answer
        session.out(replace(request, number=number))
        return number

    def forget(self, number: int) -> None:
        """The answer to a request is not needed any more."""
        self._answers.pop(number, None)

    def note_launch(self, node: int, launch: Launch) -> None:
        """A launch is sent to a node: only this one may send the ends of its logs."""
        self._node_of.update({(*launch.key, rank): node for rank in launch.ranks})
        while len(self._node_of) > MAX_WORKERS:
            del self._node_of[next(iter(self._node_of))]

    def receive(self, session: AgentSession | PartSession, message: ms.Message) -> None:
        """Handle a message about a log or code. Raises `BadMessage`: it is about something else, or about another's job."""
        if isinstance(message, ms.LogChunk):
            asked, answer = self._answers.get(message.number, (None, None))
            if asked is session and answer is not None:
                del self._answers[message.number]
                answer(message)
        elif isinstance(message, ms.LogTail):
            if self._is_own(session, message):
                self._tails.append(message)
                self._write_tails()
        elif (
            isinstance(session, PartSession)
            and isinstance(message, ms.CodeRequest)
            and message.digest != self._code_of(session)
        ):
            raise ms.BadMessage("an agent of one launch has asked for the code of another")
        elif isinstance(message, ms.CodeRequest) and self.hub.code is not None:
            self._send_code(self.hub.code, session, message)
        else:
            raise ms.BadMessage("expected a heartbeat, reports, a log chunk or a code request")

    def _code_of(self, session: PartSession) -> str:
        """The code of the launch of a part's agent."""
        launch = session.part.launch or self.hub.backend.launches.get(*session.part.place[1:])
        return launch.task.code if launch is not None else ""

    def _is_own(self, session: AgentSession | PartSession, tail: ms.LogTail) -> bool:
        """Whether the worker of a log was given to this agent."""
        if isinstance(session, PartSession):
            launch = session.part.launch
            known = tail.rank in launch.ranks if launch is not None else tail.rank < MAX_RANKS
            return known and (tail.job, tail.generation) == session.part.place[1:]
        return self._node_of.get((tail.job, tail.generation, tail.rank), session.node) == session.node

    def _write_tails(self) -> None:
        """Write ends of logs, in one thread: heartbeats do not wait for a disk."""

        def write(logs: KeptLogs) -> None:
            while self._tails:
                logs.add(self._tails.popleft())
            self.hub.post(written)

        def written() -> None:
            self._writes = False
            self._write_tails()

        if self.logs is not None and self._tails and not self._writes:
            self._writes = True
            self.hub.host.spawn("logs", partial(write, self.logs))

    def _send_code(self, code: CodeStore, session: AgentSession | PartSession, message: ms.CodeRequest) -> None:
        """Send part of an archive. Others do not wait for a database; as long as it does not answer, it is asked again."""
        if not code.remote:
            session.out(code.chunk(message.digest, message.offset))
            return

        def read() -> None:
            while self.hub.is_open(session):
                try:
                    self.hub.post(partial(session.out, code.chunk(message.digest, message.offset)))
                    return
                except JournalUnreachable:
                    self.hub.host.sleep(1.0)

        self.hub.host.spawn("code", read)
