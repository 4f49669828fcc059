"""Get the journal for a control plane, and with a PostgreSQL journal the term for which it has it. A standby waits until the
active control plane releases the journal, and meanwhile answers all HTTP requests with status 503."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead.core.errors import JournalError, JournalInUse, JournalUnreachable
from fairlead.runtime.control.journal_term import FormerControlPlane, JournalTerm
from fairlead.runtime.http_client import STANDBY_HEADER

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from fairlead.engine.journal import Journal
    from fairlead.journal.control_files import ControlFiles
    from fairlead.runtime.protocol.network import Certificate

log = logging.getLogger("fairlead.cluster")

_TEXT = (
    b"this is a standby control plane: it waits until the active one releases the journal. Use the address of the active one.\n"
)
_RETRY_S = 1.0


@dataclass(frozen=True)
class HeldJournal:
    """A journal that this control plane has, its control files, and what is known of the control plane that had it before."""

    journal: Journal
    files: ControlFiles
    checkpoints: str  # the folder
    term: JournalTerm | None = None
    former: FormerControlPlane = field(default_factory=FormerControlPlane)

    def close(self) -> None:
        """Give the journal back, after a failed start."""
        with contextlib.suppress(Exception):
            if self.term is not None:
                self.term.end()
        self.journal.close()


def hold_journal(url: str, root: Path, settings: Mapping[str, Any]) -> HeldJournal:
    """Open a journal for writing. With PostgreSQL, a term begins, with the settings that control planes must have in common.
    Raises `JournalInUse`: another control plane has it."""
    from fairlead.journal.recovery import control_files, is_postgres, open_journal

    journal = open_journal(url)
    try:
        files = control_files(root, url)
        checkpoints = settings["checkpoints"] or str((root / "checkpoints").absolute())
        if not is_postgres(url):
            return HeldJournal(journal, files, checkpoints)
        from fairlead.journal.postgres_files import PostgresFiles, PostgresTerms

        assert isinstance(files, PostgresFiles)
        terms = PostgresTerms(files)
        if (before := terms.current()) is not None:
            warn_of_differences(settings, before.settings)
            if not settings["checkpoints"]:  # its jobs have theirs there
                checkpoints = before.settings["checkpoints"]
        term = JournalTerm(terms, float(settings["journal_timeout_s"]))
        before, former = terms.begin({**settings, "checkpoints": checkpoints}), FormerControlPlane()
        if before is not None:
            had = {name: float(before.settings[name]) for name in ("journal_timeout_s", "lease_s", "grace_s")}
            former = FormerControlPlane(before.confirmed_ago_s, **had)
            term.former_renews_s = former.renews_s
        term.start()  # before the state is recovered, which may take long
        return HeldJournal(journal, files, checkpoints, term, former)
    except BaseException:
        journal.close()
        raise


def common_settings(
    *, lease_s: float, grace_s: float, journal_timeout_s: float, checkpoints: Path | None, config: Path | None
) -> dict[str, Any]:
    """Return the settings that the control planes of one journal must have in common."""
    return {
        "lease_s": lease_s,
        "grace_s": grace_s,
        "journal_timeout_s": journal_timeout_s,
        "checkpoints": str(checkpoints.absolute()) if checkpoints is not None else "",
        "config": hashlib.sha256(config.read_bytes()).hexdigest() if config is not None else "",
    }


def warn_of_differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Log which settings differ from those of the active control plane."""
    for name, value in mine.items():
        if value != other.get(name, value) and (value or name != "checkpoints"):
            option = "--" + name.removesuffix("_s").replace("_", "-")
            values = {} if name == "config" else {"here": value, "there": other[name]}
            log.warning("%s differs from that of the other control plane: use the same", option, extra=values)


def wait_for_journal(url: str, root: Path, settings: Mapping[str, Any]) -> HeldJournal | None:
    """Wait until the active control plane releases a PostgreSQL journal, and take over; None if a signal came first. One that
    has the journal but has not confirmed this for its timeout is cut off: it has renewed no lease since."""
    stopped, found, signals = threading.Event(), list[HeldJournal | BaseException](), list[int]()

    def leave(number: int, frame: object) -> None:
        signals.append(number)
        stopped.set()

    handlers = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}

    def wait() -> None:
        try:
            found.append(_wait_for_journal(url, root, settings))
        except BaseException as problem:
            found.append(problem)
        stopped.set()

    threading.Thread(target=wait, name="standby", daemon=True).start()
    while not stopped.wait(60.0):
        pass
    for number, handler in handlers.items():  # a signal that comes later ends the process
        signal.signal(number, handler)
    taken = found[0] if found else None
    if isinstance(taken, BaseException):
        raise taken
    if signals and taken is not None:
        taken.close()
    return None if signals else taken


def _wait_for_journal(url: str, root: Path, settings: Mapping[str, Any]) -> HeldJournal:
    pause, said = threading.Event(), ""
    while True:
        try:
            return hold_journal(url, root, settings)
        except JournalInUse as problem:  # it was waited for a few seconds
            state = "standby: waiting until the active control plane releases the journal"
            why = str(problem).removesuffix("; end it first")
        except JournalUnreachable as problem:
            state, why = "standby: the journal is unreachable", str(problem)
        if state != said:
            log.info(state, extra={"why": why})
        try:
            _watch_active(url, settings, compare=state != said)
        except JournalError:
            pause.wait(_RETRY_S)
        said = state


def _watch_active(url: str, settings: Mapping[str, Any], *, compare: bool) -> None:
    from fairlead.journal.postgres_files import PostgresFiles, PostgresTerms

    with contextlib.closing(PostgresFiles(url)) as files:
        terms = PostgresTerms(files)
        if (active := terms.current()) is None:
            return
        if compare:
            warn_of_differences(settings, active.settings)
        if math.inf > active.confirmed_ago_s > float(active.settings["journal_timeout_s"]):
            log.warning("standby: the active control plane is stuck; its session is ended")
            terms.end_writer()


@contextlib.contextmanager
def answering_as_standby(listeners: list[socket.socket], certificate: Certificate | None) -> Iterator[None]:
    """Answer all requests with 503 meanwhile. The sockets stay open."""
    from fairlead.runtime.control.http_server import HttpServer

    server = HttpServer(_standby_page, *((str(certificate.certificate), str(certificate.key)) if certificate else ()))
    copies = [listener.dup() for listener in listeners]
    thread = threading.Thread(target=server.run, args=(copies,), name="standby-http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join(5.0)


async def _standby_page(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/plain"), (STANDBY_HEADER.encode(), b"waiting"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(_TEXT)).encode()))
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": _TEXT})
