"""`fairlead up`, `serve` and `agent`: the processes of a real cluster."""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.options import AdmissionOption, PlacementOption, PresetOption, override, tell_unseen
from fairlead.cli.output import note
from fairlead.config import SchedulerConfig
from fairlead.config.clusters import read_cluster
from fairlead.config.schedulers import compose, parse_part, read_scheduler, scheduler_of
from fairlead.core.errors import InputError
from fairlead.runtime.bootstrap import (
    ServeSettings,
    Started,
    end_with_stdin,
    run_agent,
    run_local_cluster,
    serve_control_plane,
)
from fairlead.runtime.control.snapshotter import Retention, check_serializable
from fairlead.runtime.http_client import CONNECTION, TOKEN, URL
from fairlead.runtime.log_format import LogFormat, log_to_stderr
from fairlead.workloads.catalogue import accelerator_types

ClusterOption = Annotated[str, typer.Option("--cluster", help="Accelerators × type : per node, or a YAML file.")]
PolicyOption = Annotated[str | None, typer.Option("--policy", help="See `fairlead policies`. [default: las]")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="A scheduler as YAML, in place of --policy, --preset and --round.")
]
RoundOption = Annotated[
    float | None, typer.Option("--round", help="Seconds of a round. [default: 60, with up 10; a preset's own]", min=0.1)
]
EstimatorOption = Annotated[
    str | None,
    typer.Option("--estimator", help="What is known of throughputs and uses. [default: measured; a preset's own: watched]"),
]
MetricsOption = Annotated[bool, typer.Option("--metrics-open", help="Let everybody read /metrics, without a token.")]
LogOption = Annotated[LogFormat, typer.Option("--log-format", help="Lines for people, or JSON for machines.")]
RootOption = Annotated[Path, typer.Option("--root", help="Where journal, tokens, checkpoints and logs are kept.")]

JournalOption = Annotated[str, typer.Option("--journal", help="x.sqlite or postgresql://…  [default: in --root]")]
HttpOption = Annotated[str, typer.Option("--http", help="Address for people; port 0 is one that is free.")]
AgentsOption = Annotated[str, typer.Option("--agents", help="Address for agents.")]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="Go beyond this machine in the clear, tokens and all.")]
LeashOption = Annotated[
    bool, typer.Option("--leashed", hidden=True, help="End when standard input does; wait where another is ending.")
]


@dataclass(frozen=True)
class Asked:
    """What the command line says of the scheduler. A file says all of it; a preset what is not said here."""

    config: Path | None
    preset: str | None
    policy: str | None
    round_s: float | None
    admission: str | None
    placement: str | None
    estimator: str | None

    def scheduler(self, usual_round_s: float) -> SchedulerConfig:
        for name, value in self._said().items():
            if self.config is not None:
                raise InputError("command line", f"either --config FILE or --{name}", field=name, value=value)
        asked = read_scheduler(self.config) if self.config is not None else self._spelled(usual_round_s)
        compose(asked.to_data())  # names and parameters are checked before any process is started
        check_serializable(asked.to_data())
        return asked

    def _said(self) -> dict[str, object]:
        """What was asked for option by option."""
        spoken = (("preset", self.preset), ("policy", self.policy), ("round", self.round_s))
        parts = (("admission", self.admission), ("placement", self.placement), ("estimator", self.estimator))
        return {name: value for name, value in (*spoken, *parts) if value is not None}

    def _spelled(self, usual_round_s: float) -> SchedulerConfig:
        base = scheduler_of({"preset": self.preset} if self.preset else {"policy": "las", "rounds": usual_round_s}, "--preset")
        if self.policy is not None:
            base = replace(base, policy=parse_part(self.policy), name="")
        return override(base, self.round_s, False, self.admission, self.placement, False, estimator=self.estimator)


def serve(
    cluster: ClusterOption,
    policy: PolicyOption = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    round_s: RoundOption = None,
    admission: AdmissionOption = None,
    placement: PlacementOption = None,
    estimator: EstimatorOption = None,
    root: RootOption = Path(".fairlead"),
    journal: JournalOption = "",
    http: HttpOption = "127.0.0.1:7420",
    agents: AgentsOption = "127.0.0.1:7421",
    term: Annotated[float, typer.Option("--term", help="Seconds of an agent's lease.", min=1.0)] = 15.0,
    grace: Annotated[float, typer.Option("--grace", help="Seconds after it in which jobs save and end.", min=1.0)] = 35.0,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="The server's certificate (PEM), for both.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key (PEM).")] = None,
    insecure: InsecureOption = False,
    metrics_open: MetricsOption = False,
    log_format: LogOption = "text",
    checkpoints: Annotated[
        Path | None, typer.Option("--checkpoints", help="Where jobs save, the same on all nodes. [default: ROOT/checkpoints]")
    ] = None,
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
    """Run the control plane of a cluster. It is the scheduler's loop on wall time, for agents and people. Jobs outlive it; run
    it again to go on.

    A token for people (admin) and one for agents are made at the first start and kept in ROOT/admin.token and ROOT/agent.token;
    fairlead token makes more. Beyond this machine it listens with a certificate only: fairlead serve --http 0.0.0.0:7420
    --agents 0.0.0.0:7421 --tls-cert server.pem --tls-key server.key; agents then need --tls-ca, and people FAIRLEAD_CA.

    SIGHUP reads --config again; a scheduler with a mistake is refused in the log, and the old one stays. Without --config, a
    plane that is started again goes on with the scheduler of its journal; `fairlead scheduler set` gives it another.
    """
    from fairlead.experiments.lookahead_process import forecast_in_process
    from fairlead.runtime.protocol.network import Certificate, check_encryption

    certificate = Certificate.load(tls_cert, tls_key)
    for option, address in (("--http", http), ("--agents", agents)):
        mend = "--tls-cert and --tls-key"
        check_encryption(option, address, encrypted=certificate is not None, insecure=insecure, mend=mend)
    for option, seconds in (("term", term), ("grace", grace)):
        if not math.isfinite(seconds):
            raise InputError("command line", "a number of seconds", field=f"--{option}", value=seconds)
    scheduler = Asked(config, preset, policy, round_s, admission, placement, estimator).scheduler(60.0)
    log_to_stderr(log_format)
    settings = ServeSettings(
        read_cluster(cluster, accelerator_types()),
        scheduler,
        root,
        journal,
        http,
        agents,
        checkpoints,
        config,
        metrics_open,
        Retention(snapshot_events, 60 * snapshot_minutes, keep_snapshots, keep_days),
        keep_ended,
        certificate,
        term,
        grace,
    )
    serve_control_plane(settings, forecast_in_process, _print_addresses)


def _print_addresses(started: Started) -> None:
    note(f"people: {started.url}/docs   agents: {started.agents}   journal: {started.journal}")
    kept = started.scheduler
    if not started.utilization_measured:
        tell_unseen(kept)
    if started.resumed:
        note(f"scheduler: {kept.label}, rounds of {kept.round_s:g} s, as in the journal; `fairlead scheduler set` changes it")


def agent(
    control: Annotated[str, typer.Option("--control", help="The control plane's address for agents.")] = "127.0.0.1:7421",
    node: Annotated[str, typer.Option("--node", help="This node's name in the cluster.")] = os.uname().nodename,
    accelerators: Annotated[str, typer.Option("--accelerators", help="Such as v100:4. [default: found by NVML]")] = "",
    root: Annotated[Path, typer.Option("--root", help="Where jobs' files and logs are kept.")] = Path(".fairlead-agent"),
    token_file: Annotated[Path | None, typer.Option("--token-file", help="A file with an agent's token.")] = None,
    address: Annotated[
        str,
        typer.Option("--address", help="Where other nodes find this one. [default: where it reaches the control plane from]"),
    ] = "",
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
    leashed: LeashOption = False,
) -> None:
    """Run the agent of this node. It starts and stops jobs as the control plane says, and by itself when it is cut off.

    Jobs outlive it unless --end-jobs is given: start it again on the same --root, and it goes on with them.
    """
    from fairlead.runtime.agent.agent_service import Agent
    from fairlead.runtime.agent.devices import NodeAccelerators
    from fairlead.runtime.agent.settings import AgentSettings, User
    from fairlead.runtime.agent.supervisor import Supervisor
    from fairlead.runtime.protocol.network import channel_credentials, check_encryption

    check_encryption("--control", control, encrypted=tls_ca is not None, insecure=insecure, mend="--tls-ca")
    log_to_stderr(log_format, logging.WARNING)
    has = NodeAccelerators.parse(accelerators) if accelerators else NodeAccelerators.detect()
    token = os.environ.get("FAIRLEAD_TOKEN", "") if token_file is None else token_file.read_text().strip()
    settings = AgentSettings(user=User.named(user) if user else None, keep_s=keep_logs)
    run_agent(
        lambda: Supervisor(root, has, settings),
        lambda supervisor, stopping: Agent(
            supervisor, node, control, token, address, channel_credentials(tls_ca), stopping=stopping
        ),
        leashed=leashed,
        end_jobs=end_jobs,
        report=note,
    )


def up(
    cluster: ClusterOption = "2xv100:2,2xk80:2",
    policy: PolicyOption = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    round_s: RoundOption = None,
    admission: AdmissionOption = None,
    placement: PlacementOption = None,
    estimator: EstimatorOption = None,
    root: RootOption = Path(".fairlead"),
    journal: JournalOption = "",
    http: HttpOption = "127.0.0.1:7420",
    agents: AgentsOption = "127.0.0.1:7421",
    metrics_open: MetricsOption = False,
    log_format: LogOption = "text",
    leashed: LeashOption = False,
) -> None:
    """Run a whole cluster on this machine. That is a control plane and an agent for each node; Ctrl-C lets jobs save, and ends
    it.

    Then, in another terminal in this directory: fairlead submit -- python train.py; fairlead queue; fairlead nodes. With
    another --root it says first what has to be set there for these to find it.
    """
    from fairlead.experiments.lookahead_process import forecast_in_process
    from fairlead.runtime.protocol.network import check_encryption

    if leashed:
        end_with_stdin(lambda: os.kill(os.getpid(), signal.SIGTERM))
    for option, listen in (("--http", http), ("--agents", agents)):
        check_encryption(option, listen, encrypted=False, insecure=False, mend="fairlead serve with a certificate")
    scheduler = Asked(config, preset, policy, round_s, admission, placement, estimator).scheduler(10.0)
    log_to_stderr(log_format)
    machines = read_cluster(cluster, accelerator_types())
    settings = ServeSettings(machines, scheduler, root, journal, http, agents, config=config, metrics_open=metrics_open)

    def begun(started: Started) -> None:
        _print_addresses(started)
        if root != CONNECTION.parent:
            token = (root / "admin.token").absolute()
            note(f'in other terminals: export {URL}={started.url} {TOKEN}="$(cat {shlex.quote(str(token))})"')

    run_local_cluster(settings, forecast_in_process, log_format, begun, lambda: note("letting jobs save and ending them …"))
    note(f"ended; jobs that had not finished were asked to save. `fairlead up` with the same --root ({root}) goes on with them")
