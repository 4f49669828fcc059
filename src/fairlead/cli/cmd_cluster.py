"""`fairlead up`, `serve` and `agent`: the processes of a real cluster."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import shutil
import signal
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import typer

from fairlead.cli import options as opt
from fairlead.cli.output import note, option_error
from fairlead.config.schedulers import SchedulerConfig, compose, parse_part, read_scheduler, scheduler_of
from fairlead.core.cluster import Cluster
from fairlead.core.errors import require
from fairlead.runtime.control.snapshotter import Retention, check_serializable
from fairlead.runtime.http_client import CONNECTION, TOKEN, URL
from fairlead.runtime.log_format import LogFormat, log_to_stderr

if TYPE_CHECKING:
    from fairlead.runtime.bootstrap import ServeSettings, Started
    from fairlead.runtime.control.code_store import CodeQuota

LOG_FORMAT = typer.Option("text", help="Format of log lines: text or JSON.")
INSECURE = typer.Option(
    False, "--insecure", help="Allow addresses beyond this machine without TLS. Tokens are then sent unencrypted."
)
LEASHED = typer.Option(False, "--leashed", hidden=True, help="End with standard input; wait for a process that is ending.")


@dataclass(frozen=True)
class LiveSchedulerOptions:
    """The scheduler of a real cluster: a file, or a preset or policy with single parts."""

    panel = opt.SCHEDULER

    policy: str | None = typer.Option(None, help="A policy; see `fairlead policies`. [default: las]")
    preset: str | None = opt.PRESET
    config: Path | None = typer.Option(None, help="A scheduler file in YAML, in place of the other scheduler options.")
    round_s: float | None = typer.Option(
        None, "--round", help="Length of a round in seconds. [default: the preset's, or 60; 10 with up]", min=0.1
    )
    admission: str | None = opt.ADMISSION
    placement: str | None = opt.PLACEMENT
    estimator: str | None = typer.Option(
        None, help="Throughput estimator. [default: measured; monitored for presets that predict]"
    )

    def read(self, default_round_s: float) -> SchedulerConfig:
        """Return the scheduler, with all names and parameters checked."""
        single = {field.name.removesuffix("_s"): getattr(self, field.name) for field in fields(self) if field.name != "config"}
        for name, value in single.items():
            if self.config is not None and value is not None:
                raise option_error(name, f"either --config FILE or --{name}", value)
        scheduler = self._composed(default_round_s) if self.config is None else read_scheduler(self.config)
        compose(scheduler.to_data())
        check_serializable(scheduler.to_data())
        return scheduler

    def _composed(self, default_round_s: float) -> SchedulerConfig:
        preset = {"preset": self.preset} if self.preset else {"policy": "las", "rounds": default_round_s}
        base = scheduler_of(preset, "--preset")
        if self.policy is not None:
            base = replace(base, policy=parse_part(self.policy), name="")
        parts = opt.SchedulerOptions(self.round_s, admission=self.admission, placement=self.placement, estimator=self.estimator)
        return parts.apply(base)


@dataclass(frozen=True)
class PlaneOptions:
    """Where a control plane keeps its files, and where it listens."""

    panel = "Files and addresses"

    root: Path = typer.Option(Path(".fairlead"), help="Folder for the journal, tokens, checkpoints and logs.")
    journal: str = typer.Option("", help="The journal: FILE.sqlite or postgresql://… [default: ROOT/journal.sqlite]")
    http: str = typer.Option("127.0.0.1:7420", help="Address of the HTTP API and the console; port 0 picks a free one.")
    agents: str = typer.Option("127.0.0.1:7421", help="Address for agents.")
    metrics_open: bool = typer.Option(False, "--metrics-open", help="Serve /metrics without a token.")
    code_quota: float = typer.Option(1.0, help="GiB of code (submit --code) that a user may store.", min=0.0)
    code_total: float = typer.Option(10.0, help="GiB of code that all users may store.", min=0.0)
    request_rate: float = typer.Option(50.0, help="Requests of a user per second, after a burst; 0 is no limit.", min=0.0)
    alerts: Path | None = typer.Option(None, help="An alert file in YAML: rules for webhooks and mail.", show_default=False)
    log_format: LogFormat = LOG_FORMAT

    def quota(self) -> CodeQuota:
        """Return the quota of code in bytes."""
        from fairlead.runtime.control.code_store import CodeQuota

        return CodeQuota(self.code_quota * 2**30, self.code_total * 2**30)

    def with_alerts(self, settings: ServeSettings) -> ServeSettings:
        """Return the settings with the alerts of the file, if there is one."""
        from fairlead.config.alert_rules import read_alerts
        from fairlead.experiments.lookahead_process import forecast_in_process

        if self.alerts is None:
            return settings
        return replace(settings, alerts=read_alerts(self.alerts), alert_file=self.alerts, alert_forecast=forecast_in_process)


@opt.option_groups
def serve_command(
    *,
    cluster: str = typer.Option(
        "",
        help="Nodes of a new cluster, as in '8xv100:4' or a YAML file. [default: none; agents add their nodes]",
        rich_help_panel=opt.CLUSTER,
    ),
    parts: LiveSchedulerOptions,
    plane: PlaneOptions,
    lease: float = typer.Option(15.0, help="Lease duration of an agent in seconds.", min=1.0),
    grace: float = typer.Option(35.0, help="Seconds after the lease in which jobs checkpoint and end.", min=1.0),
    tls_cert: Path | None = typer.Option(None, help="Certificate (PEM) of both addresses."),
    tls_key: Path | None = typer.Option(None, help="Key (PEM) of the certificate."),
    insecure: bool = INSECURE,
    checkpoints: Path | None = typer.Option(
        None, help="Folder of checkpoints, the same on all nodes. [default: ROOT/checkpoints]"
    ),
    keep_ended: float = typer.Option(7 * 86400.0, help="Seconds to keep checkpoints of ended jobs.", min=0.0),
    snapshot_events: int = typer.Option(50000, help="Take a snapshot after this many events.", min=1),
    snapshot_minutes: float = typer.Option(30.0, help="Take a snapshot after this many minutes, if that is earlier.", min=0.01),
    keep_snapshots: int = typer.Option(3, help="How many snapshots to keep.", min=1),
    keep_days: float | None = typer.Option(
        None, help="Drop events that are older than this many days and part of a snapshot. [default: keep all]", min=0.001
    ),
    standby: bool = typer.Option(
        False, "--standby", help="If another control plane has the journal (PostgreSQL), wait, and take over when it ends."
    ),
    max_nodes: int = typer.Option(10_000, help="How many nodes the cluster can have.", min=1),
    journal_timeout: float = typer.Option(
        60.0, help="For how many seconds leases are renewed while the database of the journal does not answer.", min=5.0
    ),
    engine: list[str] = typer.Option(
        [], help="Also run jobs on Slurm or Kubernetes, as in slurm:partition=gpu; repeatable. The guides list the keys."
    ),
    advertise: str = typer.Option("", help="Address of --agents for the machines of --engine. [default: --agents]"),
    agents_ca: Path | None = typer.Option(None, help="CA certificate (PEM) of --tls-cert, as a path on the engine's machines."),
) -> None:
    """Run the control plane of a cluster. Jobs keep running when it stops; start it again to resume.

    Examples:

      fairlead serve --policy las
      fairlead serve --cluster cluster.yaml --config scheduler.yaml --http 0.0.0.0:7420 --agents 0.0.0.0:7421 \\
          --tls-cert server.pem --tls-key server.key

    Each agent with an agent token adds its node to the cluster. --cluster describes the nodes of a new cluster
    before their agents connect. Later starts use the cluster of the journal; 'fairlead nodes add' and 'remove' change it.

    The first start creates an admin token and an agent token, in ROOT/admin.token and ROOT/agent.token; 'fairlead token add'
    creates more. Addresses beyond this machine need a certificate. Agents then need --tls-ca, and clients need FAIRLEAD_CA.

    SIGHUP reads --config again. If it is invalid, the log says why, and the current one stays. Without --config, a
    control plane that starts again uses the scheduler of its journal; 'fairlead scheduler set' changes it.
    """
    from fairlead.console.web_console import Console
    from fairlead.experiments.lookahead_process import warm_processes
    from fairlead.runtime.bootstrap import ServeSettings, serve_control_plane
    from fairlead.runtime.protocol.network import Certificate, check_encryption

    certificate = Certificate.load(tls_cert, tls_key)
    for option, address in (("--http", plane.http), ("--agents", plane.agents)):
        fix = "--tls-cert and --tls-key"
        check_encryption(option, address, encrypted=certificate is not None, insecure=insecure, mend=fix)
    for option, seconds in (("lease", lease), ("grace", grace), ("journal-timeout", journal_timeout)):
        require(math.isfinite(seconds), f"--{option}", "a number of seconds", option, seconds)
    if engine and certificate is not None:
        require(agents_ca is not None, "--agents-ca", "the CA certificate of --tls-cert: its path on the machines of --engine")
    scheduler = parts.read(60.0)
    log_to_stderr(plane.log_format)
    settings = ServeSettings(
        opt.live_cluster_of(cluster) if cluster else Cluster(()),
        scheduler,
        plane.root,
        plane.journal,
        plane.http,
        plane.agents,
        checkpoints,
        parts.config,
        plane.metrics_open,
        Retention(snapshot_events, 60 * snapshot_minutes, keep_snapshots, keep_days),
        keep_ended,
        certificate,
        lease,
        grace,
        plane.quota(),
        plane.request_rate,
        standby,
        journal_timeout,
        max_nodes,
        engine,
        advertise,
        agents_ca,
    )
    serve_control_plane(
        plane.with_alerts(settings), warm_processes(), lambda started: _print_addresses(started, parts), Console
    )


def _print_addresses(started: Started, parts: LiveSchedulerOptions) -> None:
    note(f"console: {started.url}   HTTP API: {started.url}/docs   agents: {started.agents}   journal: {started.journal}")
    if started.cluster_note:
        note(started.cluster_note)
    scheduler = started.scheduler
    if not started.utilization_measured:
        opt.note_unmonitored(scheduler)
    if started.resumed:
        rounds = f"rounds of {scheduler.round_s:g} s"
        note(f"scheduler: {scheduler.label}, {rounds}, as in the journal; `fairlead scheduler set` changes it")
        names = [field.name for field in fields(parts) if getattr(parts, field.name) is not None]
        asked = {name: getattr(started.requested, name, started.requested) for name in names}  # of a preset or a file: all
        if ignored := [name for name in names if getattr(scheduler, name, scheduler) != asked[name]]:
            options = ", ".join(f"--{name.removesuffix('_s')}" for name in ignored)
            note(f"no effect: {options}; the scheduler in the journal has other values")


def agent_command(
    control: str = typer.Option(
        "127.0.0.1:7421", help="The control plane's address for agents, or several, as in a:7421,b:7421."
    ),
    node: str = typer.Option(os.uname().nodename, help="This node's name in the cluster."),
    accelerators: str = typer.Option("", help="GPUs of this node, as in v100:4. [default: detected by NVML]"),
    rack: str = typer.Option("", help="Rack of this node. Used only when the node is new in the cluster. [default: none]"),
    root: Path = typer.Option(Path(".fairlead-agent"), help="Folder for files and logs of jobs."),
    token_file: Path | None = typer.Option(None, help="A file with an agent token, for the first connection of this node."),
    address: str = typer.Option(
        "", help="Address of this node for other nodes. [default: the local address of the route to --control]"
    ),
    user: str = typer.Option("", help="The Unix user that all jobs run as. [default: each user's own, if the agent is root]"),
    user_pool: str = typer.Option("200000-200999", help="Uids for users without a Unix account of their name on this node."),
    allow_root_jobs: bool = typer.Option(
        False, "--allow-root-jobs", envvar="FAIRLEAD_ALLOW_ROOT_JOBS", help="Run jobs as root, if the agent is root."
    ),
    cgroup: str = typer.Option(
        "", help="Folder of a cgroup (v2) that limits jobs, or 'none'. [default: a new one, if the agent may create it]"
    ),
    container_mounts: str | None = typer.Option(
        None,
        envvar="FAIRLEAD_CONTAINER_MOUNTS",
        help="Folders of this node that containers may mount, separated by commas. [default: all that the job's user may read]",
    ),
    allow_docker: bool = typer.Option(
        False,
        "--allow-docker",
        envvar="FAIRLEAD_ALLOW_DOCKER",
        help="Let jobs use Docker. Its daemon runs as root, so its users can become root on this node.",
    ),
    end_jobs: bool = typer.Option(
        False, "--end-jobs", help="At SIGTERM, let jobs save checkpoints and end, report this, and end the agent."
    ),
    grace: float | None = typer.Option(
        None,
        help="With --end-jobs or --until: the most seconds that jobs have to save. [default: what their tasks say]",
        min=0.0,
    ),
    until: str = typer.Option(
        "",
        envvar="SLURM_JOB_END_TIME",
        help="When this machine becomes unavailable, as Unix or ISO time. The node is drained, and the agent ends before that.",
    ),
    temporary: bool = typer.Option(
        False, "--temporary", help="Remove this node from the cluster when the agent has ended or is lost."
    ),
    remove_root: bool = typer.Option(
        False, "--remove-root", help="Delete ROOT, with the logs of jobs, when the agent has left."
    ),
    log_format: LogFormat = LOG_FORMAT,
    tls_ca: Path | None = typer.Option(None, help="The CA certificate (PEM) that signed the control plane's certificate."),
    insecure: bool = INSECURE,
    keep_logs: float = typer.Option(7 * 86400.0, help="Seconds to keep the logs of a launch that has ended.", min=0.0),
    leashed: bool = LEASHED,
    launch: str = typer.Option("", hidden=True, help="JOB.GENERATION: run this launch only, as an engine asks for it."),
) -> None:
    """Run the agent of this node. It starts and stops jobs for the control plane, and stops them if it loses contact.

    Example:

      fairlead agent --control head:7421 --node node-7 --token-file agent.token --tls-ca ca.pem

    At its first connection the agent gets a credential for this node only, in ROOT/credential. It needs no agent token from
    then on.

    Jobs keep running when the agent stops, unless you pass --end-jobs. Start it again with the same --root to resume.

    With --end-jobs the node is free as soon as the last job has ended, and its jobs can start elsewhere at once.
    """
    from fairlead.runtime.agent.agent_identity import CREDENTIAL_FILE
    from fairlead.runtime.agent.agent_process import run_agent, run_launch_agent
    from fairlead.runtime.agent.agent_service import Agent
    from fairlead.runtime.agent.containers import ContainerRules
    from fairlead.runtime.agent.devices import NodeAccelerators
    from fairlead.runtime.agent.processes import find_cgroup
    from fairlead.runtime.agent.settings import AgentSettings, choose_users
    from fairlead.runtime.agent.supervisor import Supervisor
    from fairlead.runtime.protocol.network import channel_credentials, check_encryption

    for one in control.split(","):
        check_encryption("--control", one.strip(), encrypted=tls_ca is not None, insecure=insecure, mend="--tls-ca")
    log_to_stderr(log_format, logging.WARNING if leashed else logging.INFO)  # with `up`, the control plane logs it
    engine = {} if leashed else os.environ  # with `up`, several agents with simulated GPUs share this machine
    devices = NodeAccelerators.parse(accelerators, engine) if accelerators else NodeAccelerators.detect()
    token = os.environ.get("FAIRLEAD_TOKEN", "")
    if token_file is not None and (token_file.exists() or not (root / CREDENTIAL_FILE).exists()):
        token = token_file.read_text().strip()
    own, pool = choose_users(user, user_pool, allow_root_jobs=allow_root_jobs, quiet=leashed)
    groups = find_cgroup(f"fairlead-{crc32(bytes(root.absolute())):08x}") if not cgroup and not leashed else None
    groups = Path(cgroup) if cgroup not in ("", "none") else groups
    rules = ContainerRules.parse(container_mounts, docker=allow_docker)
    settings = AgentSettings(own, pool, cgroup=groups, reports_limits=not leashed, keep_s=keep_logs, containers=rules)
    trust = channel_credentials(tls_ca)
    if launch:
        job, _, generation = launch.partition(".")
        key = (int(job), int(generation)) if job.isdecimal() and generation.isdecimal() else None
        require(key is not None, "--launch", "JOB.GENERATION, as in 12.3")
        raise typer.Exit(run_launch_agent(devices, settings, node, control, token, address, trust, key or (0, 0), note))
    has_left = run_agent(
        lambda: Supervisor(root, devices, settings),
        lambda supervisor, departure: Agent(
            supervisor, node, control, token, address, trust, departure=departure, temporary=temporary, rack=rack
        ),
        leashed=leashed,
        end_jobs=end_jobs,
        report=note,
        until=_end_of_allocation(until),
        grace_s=grace,
    )
    if has_left and remove_root:
        shutil.rmtree(root, ignore_errors=True)


def _end_of_allocation(text: str) -> float:
    """Return a Unix time; infinity without one."""
    if not text:
        return math.inf
    try:
        at = float(text) if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text) else datetime.fromisoformat(text).timestamp()
    except ValueError:
        at = math.nan
    if not 0 < at < 2.5e11:
        raise option_error("until", "a Unix time in seconds, or a time such as 2026-05-01T18:00", text)
    return at


@opt.option_groups
def up_command(
    *,
    cluster: opt.ClusterOption = "2xv100:2,2xk80:2",
    parts: LiveSchedulerOptions,
    plane: PlaneOptions,
    leashed: bool = LEASHED,
) -> None:
    """Run a cluster on this machine: a control plane, and an agent for each node.

    Examples:

      fairlead up
      fairlead up --cluster 4xv100:4 --policy srtf --round 30

    Then, in another terminal in this directory:

      fairlead submit -- python train.py
      fairlead queue

    If --cluster is one node with exactly this machine's GPUs, jobs use them; otherwise GPUs are simulated.

    Ctrl-C lets jobs checkpoint and ends the cluster. With
    another --root, the command prints the variables to set in other terminals.
    """
    from fairlead.console.web_console import Console
    from fairlead.experiments.lookahead_process import warm_processes
    from fairlead.runtime.agent.agent_process import end_with_stdin
    from fairlead.runtime.bootstrap import ServeSettings, run_local_cluster
    from fairlead.runtime.protocol.network import check_encryption

    if leashed:
        end_with_stdin(lambda: os.kill(os.getpid(), signal.SIGTERM))
    root, log_format = plane.root, plane.log_format
    for option, listen in (("--http", plane.http), ("--agents", plane.agents)):
        check_encryption(option, listen, encrypted=False, insecure=False, mend="fairlead serve with a certificate")
    scheduler = parts.read(10.0)
    log_to_stderr(log_format)
    settings = ServeSettings(
        opt.live_cluster_of(cluster),
        scheduler,
        root,
        plane.journal,
        plane.http,
        plane.agents,
        config=parts.config,
        metrics_open=plane.metrics_open,
        code_quota=plane.quota(),
        request_rate=plane.request_rate,
    )

    def on_start(started: Started) -> None:
        _print_addresses(started, parts)
        if root != CONNECTION.parent:
            token = (root / "admin.token").absolute()
            note(f'in other terminals: export {URL}={started.url} {TOKEN}="$(cat {shlex.quote(str(token))})"')

    on_stop = lambda: note("jobs checkpoint and end …")  # noqa: E731
    run_local_cluster(plane.with_alerts(settings), warm_processes(), log_format, on_start, on_stop, Console)
    note(f"ended. `fairlead up` with the same --root ({root}) resumes the jobs that have not finished")
