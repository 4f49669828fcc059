"""Start the processes of a cluster: a control plane, an agent, or a whole cluster on this machine. Addresses, folders and the
journal are checked before anything is created. The module knows no command line: it takes plain values, and callbacks for what
is to be printed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, compose, read_scheduler, scheduler_of
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, InputError, require
from fairlead.files import atomic_write, remove_empty
from fairlead.runtime.control.snapshotter import Retention
from fairlead.runtime.log_format import LogFormat
from fairlead.runtime.protocol.network import bind_sockets, check_address_free, host_of, port_of

if TYPE_CHECKING:  # these take a second to import; they are loaded when a process really starts
    from fairlead.config.alert_rules import AlertSettings
    from fairlead.engine.state import State
    from fairlead.journal.control_files import ControlFiles
    from fairlead.runtime.control.alerts import FollowedAlerts
    from fairlead.runtime.control.code_store import CodeQuota
    from fairlead.runtime.control.control_plane import ControlPlane
    from fairlead.runtime.control.lookahead_service import Lookahead, SimulationProcesses
    from fairlead.runtime.control.request_guard import WebConsole
    from fairlead.runtime.control.tokens import Tokens
    from fairlead.runtime.protocol.network import Certificate
    from fairlead.runtime.standby import HeldJournal

    ConsoleFactory = Callable[[ControlPlane, Tokens], WebConsole]

log = logging.getLogger("fairlead.cluster")

_AT_START = "--config"  # why the scheduler file is read at the start; an unchanged file is then not worth a log line


@dataclass(frozen=True)
class ServeSettings:
    """What a control plane runs with. An empty `journal` is a file in `root`; `checkpoints` is a folder that all nodes see."""

    cluster: Cluster
    scheduler: SchedulerConfig
    root: Path
    journal: str = ""
    http: str = "127.0.0.1:7420"
    agents: str = "127.0.0.1:7421"
    checkpoints: Path | None = None
    config: Path | None = None  # the scheduler file; SIGHUP reads it again
    metrics_open: bool = False
    retention: Retention = field(default_factory=Retention)
    keep_ended_s: float = 7 * 86400.0  # checkpoints of ended jobs
    certificate: Certificate | None = None
    lease_s: float = 15.0  # of an agent
    grace_s: float = 35.0  # after the lease, for jobs to save and end
    code_quota: CodeQuota | None = None  # None: the default
    request_rate: float = 50.0  # of each user, per second; 0: no limit
    standby: bool = False  # wait for the journal instead of refusing to start
    journal_timeout_s: float = 60.0  # leases are renewed for this long without the database of the journal
    max_nodes: int = 10_000  # of the cluster
    engines: Sequence[str] = ()  # with options, as in slurm:partition=gpu
    advertise: str = ""  # at which agents of engines reach this control plane
    agents_ca: Path | None = None  # the authority of the certificate, on the engines' machines
    alerts: AlertSettings | None = None
    alert_file: Path | None = None  # where they are from; SIGHUP reads it again
    alert_forecast: Lookahead | None = None  # for alerts about deadlines; another one than that of `when`

    @property
    def journal_url(self) -> str:
        return self.journal or str(self.root / "journal.sqlite")


@dataclass(frozen=True)
class Started:
    """A control plane that accepts requests, with the ports it really has."""

    url: str
    agents: str
    journal: str
    scheduler: SchedulerConfig
    requested: SchedulerConfig  # by the options
    resumed: bool  # the journal had a scheduler, and no file overrides it
    utilization_measured: bool  # the journal has measurements that co-location needs
    cluster: Cluster  # the journal's
    cluster_note: str  # how --cluster differs from the journal's cluster; empty if it does not


def serve_control_plane(
    settings: ServeSettings,
    lookahead: SimulationProcesses | None = None,
    on_start: Callable[[Started], None] = lambda started: None,
    console: ConsoleFactory | None = None,
) -> None:
    """Run a control plane until a signal ends it. `lookahead` answers `when` and other questions, and `console` has the pages
    for browsers; None turns them off. Raises `FairleadError`: an address, folder or journal is unusable, or the loop failed."""
    from fairlead.journal.recovery import is_new, is_postgres, recover
    from fairlead.runtime.standby import answering_as_standby, common_settings, hold_journal, wait_for_journal

    if settings.standby:
        require(is_postgres(settings.journal_url), "--standby", "--journal postgresql://…: two control planes need a database")
    common = common_settings(
        lease_s=settings.lease_s,
        grace_s=settings.grace_s,
        journal_timeout_s=settings.journal_timeout_s,
        checkpoints=settings.checkpoints,
        config=settings.config,
    )
    with contextlib.ExitStack() as held:
        listeners = bind_sockets("--http", settings.http)
        for listener in listeners:
            held.enter_context(listener)
        port = port_of("--agents", settings.agents)
        if port and port == listeners[0].getsockname()[1] and host_of(settings.agents) == host_of(settings.http):
            raise InputError("--agents", "an address other than that of --http", field="address", value=settings.agents)
        check_address_free("--agents", settings.agents)
        if settings.checkpoints is not None:
            _check_writable(settings.checkpoints)
        held.enter_context(_root_folder(settings.root, has_checkpoints=settings.checkpoints is None))
        where = (settings.journal_url, settings.root, common)
        with answering_as_standby(listeners, settings.certificate) if settings.standby else contextlib.nullcontext():
            journal = wait_for_journal(*where) if settings.standby else hold_journal(*where)
            if journal is None:
                return
            try:
                state = None if is_new(journal.journal) else recover(journal.journal)[0]
            except BaseException:
                journal.close()
                raise
        asyncio.run(_serve(settings, listeners, journal, state, lookahead, on_start, console))


@contextlib.contextmanager
def _root_folder(root: Path, *, has_checkpoints: bool) -> Iterator[None]:
    """Create the root; remove it again if the start fails and it is still empty. Jobs of other users, which a root agent starts
    on this machine, pass through the root to checkpoints in it."""
    new = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if has_checkpoints and os.geteuid() == 0 and root.stat().st_mode & 0o777 == 0o700:
        root.chmod(0o711)
    if root.stat().st_mode & 0o066:
        log.warning("other users of this machine can read --root", extra={"fix": f"chmod 700 {root}"})
    try:
        yield
    except BaseException:
        remove_empty(*new)
        raise


def _check_writable(checkpoints: Path) -> None:
    """The folder itself is created with the first checkpoint."""
    there = next(path for path in (checkpoints.absolute(), *checkpoints.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError("--checkpoints", "a writable folder", field="folder", value=str(checkpoints))


async def _serve(
    settings: ServeSettings,
    listeners: list[socket.socket],
    held: HeldJournal,
    state: State | None,
    lookahead: SimulationProcesses | None,
    on_start: Callable[[Started], None],
    console: ConsoleFactory | None,
) -> None:
    from fairlead.estimators.colocated_rates import has_usage_observations
    from fairlead.runtime.control.http_api import create_app
    from fairlead.runtime.control.http_server import HttpServer
    from fairlead.runtime.control.request_guard import RequestRate

    tokens = create_tokens(held.files, settings.root)
    plane = _control_plane(settings, held, state, tokens)
    certificate, alerts = settings.certificate, None
    if settings.alerts is not None:
        from fairlead.runtime.control.alerts import AlertService, FollowedAlerts

        assert settings.alert_file is not None
        service = AlertService(plane, settings.alerts, held.files, settings.alert_forecast)
        alerts = FollowedAlerts(settings.alert_file, service)
        service.start()
    agents_port = await plane.start(settings.agents, certificate.for_agents() if certificate else None)
    _follow_files(plane, settings.config, alerts)
    app = create_app(
        plane,
        tokens,
        metrics_open=settings.metrics_open,
        lookahead=lookahead,
        rate=RequestRate(settings.request_rate, 4 * settings.request_rate) if settings.request_rate else None,
        agents_loop=asyncio.get_running_loop(),
        console=console(plane, tokens) if console is not None else None,
    )
    server = HttpServer(app, *((str(certificate.certificate), str(certificate.key)) if certificate else ()))
    address = f"{settings.http.rpartition(':')[0]}:{listeners[0].getsockname()[1]}"
    on_start(
        Started(
            url=f"{'https' if certificate else 'http'}://{address}",
            agents=f"{settings.agents.rpartition(':')[0]}:{agents_port}",
            journal=getattr(held.journal, "where", settings.journal_url),
            scheduler=scheduler_of(plane.scheduler_in_use),
            requested=settings.scheduler,
            resumed=state is not None and settings.config is None,
            utilization_measured=has_usage_observations(plane.loop.state.observations),
            cluster=plane.cluster,
            cluster_note=_cluster_note(settings.cluster, plane.cluster),
        )
    )

    def leave() -> None:
        plane.stopping = True
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, leave)
    serving = asyncio.create_task(asyncio.to_thread(server.run, listeners))
    ended = asyncio.create_task(plane.ended())
    try:
        await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
        server.stop()
        await serving
    finally:
        server.stop()
        if alerts is not None:
            await asyncio.to_thread(alerts.stop)
        if not ended.done():
            await plane.stop()
    await ended


def _cluster_note(given: Cluster, journal: Cluster) -> str:
    present = {node.name: node for node in journal.nodes if not node.removed}
    if not given.nodes or present == {node.name: node for node in given.nodes}:
        return ""
    return f"cluster: {journal}, as in the journal, which differs from --cluster; `fairlead nodes add` and `remove` change it"


def _control_plane(settings: ServeSettings, held: HeldJournal, state: State | None, tokens: Tokens) -> ControlPlane:
    from fairlead.runtime.control.code_store import CodeStore, number_above
    from fairlead.runtime.control.control_plane import ControlPlane
    from fairlead.runtime.control.wall_clock import AliveMark, check_journal, origin_of
    from fairlead.runtime.drivers.base import create_driver

    check_journal(held.files, new=state is None)
    registry, known = Registry.installed(), state.next_number if state else 0
    first = number_above(Path(held.checkpoints), known)
    if first > known:
        about = {"first": first, "checkpoints": held.checkpoints}
        log.warning("new jobs get numbers above those of checkpoints of jobs that the journal does not know", extra=about)
    plane = ControlPlane(
        settings.cluster,
        settings.scheduler.to_data(),
        lambda data: compose(data, registry),
        held.journal,
        state,
        lease_s=settings.lease_s,
        grace_s=settings.grace_s,
        checkpoints=held.checkpoints,
        code=CodeStore(held.files, quota=settings.code_quota),
        files=held.files,
        keep_ended_s=settings.keep_ended_s,
        tokens=tokens,
        origin=origin_of(held.files, state.origin if state else 0.0),
        alive=AliveMark(held.files),
        retention=settings.retention,
        term=held.term,
        former=held.former,
        first_number=first,
        drivers=[create_driver(text, registry) for text in settings.engines],
        advertise=settings.advertise,
        agent_options=("--insecure",) if settings.certificate is None else ("--tls-ca", str(settings.agents_ca)),
    )
    plane.backend.roster.max_nodes = settings.max_nodes
    return plane


def _follow_files(plane: ControlPlane, path: Path | None, alerts: FollowedAlerts | None) -> None:
    """Switch to the scheduler in the file, now and at each SIGHUP, which also reloads the alerts. An invalid file is logged,
    and changes nothing."""
    loop = asyncio.get_running_loop()

    def reload(why: str) -> None:
        if alerts is not None and why != _AT_START:
            loop.run_in_executor(None, alerts.reload)
        if path is None:
            if alerts is None:
                log.warning("nothing to reload", extra={"why": "the control plane was started without --config and --alerts"})
            return
        try:
            wanted = read_scheduler(path)
            if scheduler_of(plane.scheduler_in_use) == wanted:
                if why != _AT_START:
                    log.info("scheduler unchanged", extra={"file": str(path)})
                return
            plane.switch(wanted.to_data(), why)
        except (FairleadError, OSError) as problem:
            log.error("scheduler refused; the current one stays", extra={"why": str(problem)})

    loop.add_signal_handler(signal.SIGHUP, reload, "SIGHUP")
    if path is not None:
        reload(_AT_START)


def create_tokens(files: ControlFiles, root: Path) -> Tokens:
    """Return the tokens of a control plane. One for an admin and one for agents are created, and written to the root, unless
    they are there, or a database has tokens: one that was revoked since stays so."""
    from fairlead.journal.control_files import TOKENS
    from fairlead.runtime.control.tokens import Role, Tokens, new_token

    tokens, begun = Tokens(files), files.remote and files.version(TOKENS) is not None
    for role in (Role.ADMIN, Role.AGENT):
        path = root / f"{role}.token"
        if begun or (path.exists() and not files.remote):
            continue
        token = path.read_text().strip() if path.exists() else new_token()
        tokens.accept(token, role, str(role))  # first: a file counts as accepted
        if not path.exists():
            atomic_write(path, token.encode(), private=True)
    if files.remote:
        tokens.follow()
    return tokens


def run_local_cluster(
    settings: ServeSettings,
    lookahead: SimulationProcesses | None,
    log_format: LogFormat,
    on_start: Callable[[Started], None],
    on_stop: Callable[[], None],
    console: ConsoleFactory | None = None,
) -> None:
    """Run a control plane with an agent process for each node, until a signal ends it; then let jobs save, and end them.
    `connection.json` in the root tells clients how to connect while the cluster runs."""
    root = settings.root
    _check_agent_folders(root / "agents", *(root / "agents" / node.name for node in settings.cluster.nodes))
    agents: list[subprocess.Popen[bytes]] = []
    connection = root / "connection.json"

    def begin(started: Started) -> None:
        token = root / "admin.token"
        require(token.exists(), token, "an admin's token, as 'fairlead token add NAME --role admin --journal …' prints it")
        record = {"url": started.url, "token": token.read_text().strip()}
        atomic_write(connection, orjson.dumps(record), private=True)
        on_start(started)
        agents.extend(_start_agents(settings, started, log_format))

    try:
        serve_control_plane(settings, lookahead, begin, console)
        on_stop()
    finally:
        if agents:  # otherwise the file belongs to another cluster
            connection.unlink(missing_ok=True)
        for process in agents:
            process.terminate()
        for process in agents:
            process.wait()


def _check_agent_folders(*folders: Path) -> None:
    """An agent without a usable folder would end at once, and the control plane would wait for it."""
    for folder in folders:
        new = not folder.exists() and not folder.is_symlink()
        if not new and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise InputError(
                "--root", "a writable folder, or a path that does not exist yet", field="agents", value=str(folder)
            )


def _start_agents(settings: ServeSettings, started: Started, log_format: LogFormat) -> Iterator[subprocess.Popen[bytes]]:
    from fairlead.runtime.agent.devices import node_has

    root, nodes = settings.root, [node for node in started.cluster.nodes if not node.removed]
    command = [sys.executable, "-m", "fairlead.cli.main", "agent", "--end-jobs", "--leashed", "--control", started.agents]
    command += ["--token-file", str(root / "agent.token"), "--log-format", log_format]
    command += ["--allow-root-jobs"] if os.geteuid() == 0 else []  # all jobs of a local cluster run as its user
    environment = with_own_python(os.environ)
    for node in nodes:
        options = ["--node", node.name, "--root", str(root / "agents" / node.name)]
        if len(nodes) > 1 or not node_has(node.type, node.accelerators):
            options += ["--accelerators", f"{node.type}:{node.accelerators}"]
        yield subprocess.Popen([*command, *options], stdin=subprocess.PIPE, env=environment)


def with_own_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for agents and their jobs, in which `python` has Fairlead. `.venv/bin/fairlead up` may be called
    without activating the environment. An active environment stays first."""
    active = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    if active or sys.prefix == sys.base_prefix:
        return dict(environment)
    folder = str(Path(sys.executable).parent)
    return {**environment, "PATH": f"{folder}{os.pathsep}{environment.get('PATH') or os.defpath}"}
