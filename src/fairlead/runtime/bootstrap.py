"""A control plane as a process, for `fairlead serve` and `up`: what it listens at and what it keeps is made sure of first, then
it serves until it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli.output import note
from fairlead.config import SchedulerConfig
from fairlead.config.registry import Registry
from fairlead.config.schedulers import compose, read_scheduler, scheduler_of
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, InputError
from fairlead.files import remove_empty
from fairlead.runtime.control.snapshotter import Retention
from fairlead.runtime.protocol.network import bound, check_free, host_of, port_of

if TYPE_CHECKING:
    from fairlead.engine.event_journal import Journal
    from fairlead.engine.state import State
    from fairlead.runtime.control.control_plane import ControlPlane
    from fairlead.runtime.control.tokens import Tokens
    from fairlead.runtime.protocol.network import Certificate

# A scheduler file that a running control plane follows: read again on SIGHUP, and at a start that goes on with a journal.

START = "--config"
"""Why the file is read where nobody asked for it: then it is told of only if it says something else."""

log = logging.getLogger("fairlead.cluster")


def follow(plane: ControlPlane, path: Path | None) -> None:
    """The file decides from now on, where it says something else than the journal; without one, SIGHUP does nothing."""

    def reload(why: str) -> None:
        if path is None:
            log.warning("nothing to reload", extra={"why": "there is no --config"})
            return
        try:
            wanted = read_scheduler(path)
            if scheduler_of(plane.scheduled) == wanted:
                if why != START:
                    log.info("scheduler unchanged", extra={"file": str(path)})
                return
            plane.switch(wanted.to_data(), why)
        except (FairleadError, OSError) as problem:
            log.error("scheduler refused, the old one stays", extra={"why": str(problem)})

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload, "SIGHUP")
    if path is not None:
        reload(START)


@dataclass(frozen=True)
class Housekeeping:
    """What a control plane does besides deciding."""

    config: Path | None = None  # the scheduler file that it follows
    metrics_open: bool = False
    retention: Retention = field(default_factory=Retention)
    keep_ended_s: float = 7 * 86400.0  # checkpoints of jobs that have ended
    certificate: Certificate | None = None
    term_s: float = 15.0  # of an agent's lease
    grace_s: float = 35.0  # in which jobs save and end when it is over


@dataclass(frozen=True)
class Places:
    """Where it is: its files, its journal (empty: with them), and its addresses for people and for agents."""

    root: Path
    journal: str
    http: str
    agents: str
    checkpoints: Path | None = None  # of jobs, the same on all nodes; None: with its files

    @property
    def kept(self) -> str:
        return self.journal or str(self.root / "journal.sqlite")


Begun = Callable[[str, str], None]
"""Is told the addresses for people and for agents once they are there, with the ports that they really have."""


def serve_plane(
    machines: Cluster,
    scheduler: SchedulerConfig,
    places: Places,
    keeping: Housekeeping,
    begun: Begun = lambda people, agents: None,
) -> None:
    """Until it is ended by a signal; raises what it fails of. What is wrong with its places is found before any is used."""
    from fairlead.journal.recovery import open_journal

    with contextlib.ExitStack() as held:
        people = bound("--http", places.http)
        for one in people:
            held.enter_context(one)
        port = port_of("--agents", places.agents)
        if port and port == people[0].getsockname()[1] and host_of(places.agents) == host_of(places.http):
            raise InputError("--agents", "another address than --http", field="address", value=places.agents)
        check_free("--agents", places.agents)
        if places.checkpoints is not None:
            _check_writable(places.checkpoints)
        held.enter_context(_folder(places.root))
        journal = open_journal(places.kept)
        try:
            state = _recovered(journal, machines)
        except BaseException:
            journal.close()
            raise
        asyncio.run(_serve(machines, scheduler, places, keeping, people, journal, state, begun))


@contextlib.contextmanager
def _folder(root: Path) -> Iterator[None]:
    """The root is there; where nothing came of it and it is new, it is gone again."""
    new = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        remove_empty(*new)
        raise


def _check_writable(checkpoints: Path) -> None:
    """Jobs' folders can be made there, by all that is known here; it is made with the first."""
    there = next(path for path in (checkpoints.absolute(), *checkpoints.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError("--checkpoints", "a folder that can be written", field="folder", value=str(checkpoints))


def _recovered(journal: Journal, machines: Cluster) -> State | None:
    from fairlead.journal.recovery import is_new, recover

    if is_new(journal):
        return None
    state, _ = recover(journal)
    if state.cluster != machines:
        raise InputError("--cluster", "the cluster that the journal is about; another one needs a journal of its own")
    return state


async def _serve(
    machines: Cluster,
    scheduler: SchedulerConfig,
    places: Places,
    keeping: Housekeeping,
    people: list[socket.socket],
    journal: Journal,
    state: State | None,
    begun: Begun,
) -> None:
    import uvicorn  # with what it brings, a second; only these commands need it

    from fairlead.cli.options import tell_unseen
    from fairlead.estimators.colocated_rates import has_usage_observations
    from fairlead.experiments.lookahead import foresee
    from fairlead.runtime.control.http_api import create_app

    tokens = tokens_of(places.root)
    plane = _plane(machines, scheduler, places, keeping, journal, state, tokens)
    certificate = keeping.certificate
    port = await plane.start(places.agents, certificate.for_agents() if certificate else None)
    follow(plane, keeping.config)
    app = create_app(plane, tokens, metrics_open=keeping.metrics_open, foresee=foresee)
    settings = uvicorn.Config(app, log_config=None, log_level="warning", lifespan="off")
    if certificate is not None:
        settings.ssl_certfile, settings.ssl_keyfile = str(certificate.certificate), str(certificate.key)
    server = uvicorn.Server(settings)
    http = f"{places.http.rpartition(':')[0]}:{people[0].getsockname()[1]}"
    agents = f"{places.agents.rpartition(':')[0]}:{port}"
    scheme = "https" if certificate else "http"
    note(f"people: {scheme}://{http}/docs   agents: {agents}   journal: {getattr(journal, 'where', places.kept)}")
    begun(f"{scheme}://{http}", agents)
    kept = scheduler_of(plane.scheduled)
    if not has_usage_observations(plane.loop.state.learned):
        tell_unseen(kept)
    if state is not None and keeping.config is None:
        note(f"scheduler: {kept.label}, rounds of {kept.round_s:g} s, as in the journal; `fairlead scheduler set` changes it")
    # Left to itself, it would let the process die of a signal before the loop has ended.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]

    def leave() -> None:
        server.should_exit = plane.leaving = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, leave)
    serving = asyncio.create_task(server.serve(people))
    ended = asyncio.create_task(plane.ended())
    try:
        await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        if not ended.done():
            await plane.stop()
    await ended


def _plane(
    machines: Cluster,
    scheduler: SchedulerConfig,
    places: Places,
    keeping: Housekeeping,
    journal: Journal,
    state: State | None,
    tokens: Tokens,
) -> ControlPlane:
    from fairlead.runtime.control.code_store import CodeStore
    from fairlead.runtime.control.control_plane import ControlPlane
    from fairlead.runtime.control.tokens import Role
    from fairlead.runtime.control.wall_clock import origin_of

    registry = Registry.installed()
    return ControlPlane(
        machines,
        scheduler.to_data(),
        lambda data: compose(data, registry),
        journal,
        state,
        term_s=keeping.term_s,
        grace_s=keeping.grace_s,
        checkpoints=str((places.checkpoints or places.root / "checkpoints").absolute()),
        code=CodeStore(places.root / "code"),
        keep_ended_s=keeping.keep_ended_s,
        may_join=lambda token: (found := tokens.bearer(token)) is not None and found.role is Role.AGENT,
        origin=origin_of(places.root / "origin"),
        retention=keeping.retention,
    )


def tokens_of(root: Path) -> Tokens:
    """Those of a control plane; an admin's and an agent's are made where there are none."""
    from fairlead.files import atomic_write
    from fairlead.runtime.control.tokens import Role, Tokens

    tokens = Tokens(root / "tokens.json")
    for role in (Role.ADMIN, Role.AGENT):
        path = root / f"{role}.token"
        if not path.exists():
            atomic_write(path, tokens.issue(role, str(role)).encode(), private=True)
    return tokens
