"""`fairlead up`, `serve` and `agent`: the processes of a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from fairlead.cli.options import AdmissionOption, PlacementOption, PresetOption, override
from fairlead.cli.output import note
from fairlead.cli.reloading import follow
from fairlead.config import SchedulerConfig
from fairlead.config.cluster import read_cluster
from fairlead.config.scheduler import parse_part
from fairlead.config.wall_time import compose, read_scheduler, scheduler_of
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.registry import Registry
from fairlead.runtime.control.keeping import Retention
from fairlead.runtime.logs import LogFormat, log_to_stderr
from fairlead.workloads.catalogue import accelerator_types

if TYPE_CHECKING:
    from fairlead.runtime.control.tokens import Tokens
    from fairlead.runtime.tls import Certificate

ClusterOption = Annotated[str, typer.Option("--cluster", help="Accelerators × type : per node, or a YAML file.")]
PolicyOption = Annotated[str | None, typer.Option("--policy", help="See `fairlead policies`. [default: las]")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="A scheduler as YAML, in place of --policy, --preset and --round.")
]
RoundOption = Annotated[
    float | None, typer.Option("--round", help="Seconds of a round. [default: 60, with up 10; a preset's own]", min=0.1)
]
MetricsOption = Annotated[bool, typer.Option("--metrics-open", help="Let everybody read /metrics, without a token.")]
LogOption = Annotated[LogFormat, typer.Option("--log-format", help="Lines for people, or JSON for machines.")]
RootOption = Annotated[Path, typer.Option("--root", help="Where journal, tokens, checkpoints and logs are kept.")]

InsecureOption = Annotated[bool, typer.Option("--insecure", help="Go beyond this machine in the clear, tokens and all.")]


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
class Asked:
    """What the command line says of the scheduler. A file says all of it; a preset what is not said here."""

    config: Path | None
    preset: str | None
    policy: str | None
    round_s: float | None
    admission: str | None
    placement: str | None

    def scheduler(self, usual_round_s: float) -> SchedulerConfig:
        for name in ("preset", "admission", "placement"):
            if self.config is not None and getattr(self, name) is not None:
                raise InputError("command line", f"either --config FILE or --{name}", field=name, value=getattr(self, name))
        if self.config is not None:
            return read_scheduler(self.config)
        base = scheduler_of({"preset": self.preset} if self.preset else {"policy": "las", "rounds": usual_round_s}, "--preset")
        if self.policy is not None:
            base = replace(base, policy=parse_part(self.policy), name="")
        asked = override(base, self.round_s, False, self.admission, self.placement, False)
        compose(asked.to_data())  # names and parameters are checked before any process is started
        return asked


def serve(
    cluster: ClusterOption,
    policy: PolicyOption = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    round_s: RoundOption = None,
    admission: AdmissionOption = None,
    placement: PlacementOption = None,
    root: RootOption = Path(".fairlead"),
    journal: Annotated[str, typer.Option("--journal", help="x.sqlite or postgresql://…  [default: in --root]")] = "",
    http: Annotated[str, typer.Option("--http", help="Address for people.")] = "127.0.0.1:7420",
    agents: Annotated[str, typer.Option("--agents", help="Address for agents.")] = "127.0.0.1:7421",
    term: Annotated[float, typer.Option("--term", help="Seconds of an agent's lease.", min=1.0)] = 15.0,
    grace: Annotated[float, typer.Option("--grace", help="Seconds after it in which jobs save and end.", min=1.0)] = 35.0,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="The server's certificate (PEM), for both.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key (PEM).")] = None,
    insecure: InsecureOption = False,
    metrics_open: MetricsOption = False,
    log_format: LogOption = "text",
    keep_ended: Annotated[
        float, typer.Option("--keep-ended", help="Seconds for which checkpoints of ended jobs are kept.", min=0.0)
    ] = 7 * 86400.0,
    snapshot_events: Annotated[
        int, typer.Option("--snapshot-events", help="A snapshot after so many events …", min=1)
    ] = 50_000,
    snapshot_minutes: Annotated[float, typer.Option("--snapshot-minutes", help="… or so many minutes.", min=0.01)] = 30.0,
    keep_snapshots: Annotated[int, typer.Option("--keep-snapshots", help="So many stay.", min=1)] = 3,
    keep_days: Annotated[
        float | None, typer.Option("--keep-days", help="Events older than this may be dropped. [default: all stay]", min=0.001)
    ] = None,
) -> None:
    """Run the control plane: the scheduler's loop on wall time, for agents and people. Jobs outlive it; run it again to go on.

    A token for people (admin) and one for agents are made at the first start and kept in ROOT/admin.token and ROOT/agent.token;
    fairlead token makes more. Beyond this machine it listens with a certificate only: fairlead serve --http 0.0.0.0:7420
    --agents 0.0.0.0:7421 --tls-cert server.pem --tls-key server.key; agents then need --tls-ca, and people FAIRLEAD_CA.

    SIGHUP reads --config again; a scheduler with a mistake is refused in the log, and the old one stays. Without --config, a
    plane that is started again goes on with the scheduler of its journal; `fairlead scheduler set` gives it another.
    """
    from fairlead.runtime.tls import Certificate, check_clear

    certificate = Certificate.given(tls_cert, tls_key)
    for option, address in (("--http", http), ("--agents", agents)):
        mend = "--tls-cert and --tls-key"
        check_clear(option, address, encrypted=certificate is not None, insecure=insecure, mend=mend)
    scheduler = Asked(config, preset, policy, round_s, admission, placement).scheduler(60.0)
    log_to_stderr(log_format)
    machines = read_cluster(cluster, accelerator_types())
    rules = Retention(snapshot_events, 60 * snapshot_minutes, keep_snapshots, keep_days)
    keeping = Housekeeping(config, metrics_open, rules, keep_ended, certificate, term, grace)
    asyncio.run(_serve(machines, scheduler, root, journal, http, agents, keeping))


async def _serve(
    machines: Cluster,
    scheduler: SchedulerConfig,
    root: Path,
    where: str,
    http: str,
    agents: str,
    keeping: Housekeeping,
    listening: Callable[[], None] = lambda: None,
) -> None:
    import uvicorn  # with what it brings, a second; only this command needs it

    from fairlead.journals.opening import open_journal
    from fairlead.journals.recovery import is_new, recover
    from fairlead.runtime.control.api import create_app
    from fairlead.runtime.control.clock import origin_of
    from fairlead.runtime.control.code import CodeStore
    from fairlead.runtime.control.plane import Plane
    from fairlead.runtime.control.tokens import Role
    from fairlead.runtime.tls import host_of

    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    tokens = _tokens(root)
    journal = open_journal(where or str(root / "journal.sqlite"))
    state = None if is_new(journal) else recover(journal)[0]
    if state is not None and state.cluster != machines:
        raise InputError("--cluster", "the cluster that the journal is about; another one needs a journal of its own")
    registry = Registry.installed()
    plane = Plane(
        machines,
        scheduler.to_data(),
        lambda data: compose(data, registry),
        journal,
        state,
        term_s=keeping.term_s,
        grace_s=keeping.grace_s,
        checkpoints=str((root / "checkpoints").absolute()),
        code=CodeStore(root / "code"),
        keep_ended_s=keeping.keep_ended_s,
        may_join=lambda token: (found := tokens.bearer(token)) is not None and found.role is Role.AGENT,
        origin=origin_of(root / "origin"),
        retention=keeping.retention,
    )
    certificate = keeping.certificate
    port = await plane.start(agents, certificate.for_agents() if certificate else None)
    follow(plane, keeping.config)
    app = create_app(plane, tokens, metrics_open=keeping.metrics_open)
    at = int(http.rpartition(":")[2])
    settings = uvicorn.Config(app, host_of(http), at, log_config=None, log_level="warning", lifespan="off")
    if certificate is not None:
        settings.ssl_certfile, settings.ssl_keyfile = str(certificate.certificate), str(certificate.key)
    server = uvicorn.Server(settings)
    people, machine = f"{'https' if certificate else 'http'}://{http}/docs", agents.rpartition(":")[0]
    note(f"people: {people}   agents: {machine}:{port}   journal: {where or root / 'journal.sqlite'}")
    listening()
    if state is not None and keeping.config is None:
        note(f"scheduler: {scheduler_of(plane.scheduled).label}, as in the journal")
    # Left to itself, it would let the process die of a signal before the loop has ended.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
    serving = asyncio.create_task(server.serve())
    ended = asyncio.create_task(plane.ended())
    try:
        await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        if not ended.done():
            await plane.stop()
    await ended


def _tokens(root: Path) -> Tokens:
    from fairlead.runtime.control.tokens import Role, Tokens

    tokens = Tokens(root / "tokens.json")
    for role in (Role.ADMIN, Role.AGENT):
        path = root / f"{role}.token"
        if not path.exists():
            token = tokens.issue(role, str(role))
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(token)
    return tokens


def agent(
    control: Annotated[str, typer.Option("--control", help="The control plane's address for agents.")] = "127.0.0.1:7421",
    node: Annotated[str, typer.Option("--node", help="This node's name in the cluster.")] = os.uname().nodename,
    accelerators: Annotated[str, typer.Option("--accelerators", help="Such as v100:4. [default: found by NVML]")] = "",
    root: Annotated[Path, typer.Option("--root", help="Where jobs' files and logs are kept.")] = Path(".fairlead-agent"),
    token_file: Annotated[Path | None, typer.Option("--token-file", help="A file with an agent's token.")] = None,
    address: Annotated[str, typer.Option("--address", help="Where other nodes find this one.")] = "127.0.0.1",
    user: Annotated[str, typer.Option("--user", help="Whom jobs run as, where the agent is root.")] = "",
    end_jobs: Annotated[bool, typer.Option("--end-jobs", help="When it is ended, let jobs save and end them too.")] = False,
    log_format: LogOption = "text",
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", help="The authority (PEM) by which it believes the control plane.")
    ] = None,
    insecure: InsecureOption = False,
    keep_logs: Annotated[
        float, typer.Option("--keep-logs", help="Seconds for which logs are kept after a launch has ended.", min=0.0)
    ] = 7 * 86400.0,
) -> None:
    """Run the agent of this node: it starts and stops jobs as the control plane says, and by itself when it is cut off.

    Jobs outlive it unless --end-jobs is given: start it again on the same --root, and it goes on with them.
    """
    from fairlead.runtime.agent.accelerators import Accelerators
    from fairlead.runtime.agent.session import Agent
    from fairlead.runtime.agent.settings import Settings, User
    from fairlead.runtime.agent.supervisor import Supervisor
    from fairlead.runtime.tls import check_clear, trusting

    check_clear("--control", control, encrypted=tls_ca is not None, insecure=insecure, mend="--tls-ca")
    log_to_stderr(log_format, logging.WARNING)
    has = Accelerators.spelled(accelerators) if accelerators else Accelerators.found()
    token = os.environ.get("FAIRLEAD_TOKEN", "") if token_file is None else token_file.read_text().strip()
    supervisor = Supervisor(root, has, Settings(user=User.named(user) if user else None, keep_s=keep_logs))
    one = Agent(supervisor, node, control, token, address, trusting(tls_ca))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: one.stopping.set())
    try:
        one.run()
        if end_jobs:
            supervisor.stop_all()
            while supervisor.running():
                supervisor.wait(0.2)
                supervisor.poll()
            supervisor.stop_sharing()
    finally:
        supervisor.close()


def up(
    cluster: ClusterOption = "2xv100:2,2xk80:2",
    policy: PolicyOption = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    round_s: RoundOption = None,
    admission: AdmissionOption = None,
    placement: PlacementOption = None,
    root: RootOption = Path(".fairlead"),
    http: Annotated[str, typer.Option("--http", help="Address for people.")] = "127.0.0.1:7420",
    agents: Annotated[str, typer.Option("--agents", help="Address for agents.")] = "127.0.0.1:7421",
    metrics_open: MetricsOption = False,
    log_format: LogOption = "text",
) -> None:
    """Run a whole cluster on this machine: the control plane and an agent for each node. Ctrl-C lets jobs save, and ends it.

    Then, in another terminal in this directory: fairlead submit -- python train.py; fairlead queue; fairlead nodes.
    """
    from fairlead.runtime.tls import check_clear

    for option, address in (("--http", http), ("--agents", agents)):
        check_clear(option, address, encrypted=False, insecure=False, mend="fairlead serve with a certificate")
    scheduler = Asked(config, preset, policy, round_s, admission, placement).scheduler(10.0)
    log_to_stderr(log_format)
    machines = read_cluster(cluster, accelerator_types())
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _tokens(root)
    connection = {"url": f"http://{http}", "token": (root / "admin.token").read_text()}
    path = root / "connection.json"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(orjson.dumps(connection))
    started: list[subprocess.Popen[bytes]] = []
    base = [sys.executable, "-m", "fairlead.cli.main", "agent", "--end-jobs", "--control", agents]
    base += ["--token-file", str(root / "agent.token"), "--log-format", log_format]

    def start_agents() -> None:
        for machine in machines.nodes:
            spelled = f"{machine.type}:{machine.accelerators}"
            where = str(root / "agents" / machine.name)
            started.append(subprocess.Popen([*base, "--node", machine.name, "--accelerators", spelled, "--root", where]))

    try:
        keeping = Housekeeping(config, metrics_open)
        asyncio.run(_serve(machines, scheduler, root, "", http, agents, keeping, start_agents))
        note("letting jobs save and ending them …")
    finally:
        path.unlink(missing_ok=True)
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
    note(f"ended; jobs that had not finished were asked to save. `fairlead up` with the same --root ({root}) goes on with them")
