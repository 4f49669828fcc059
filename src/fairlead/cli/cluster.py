"""`fairlead up`, `serve` and `agent`: the processes of a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from fairlead.cli.output import note
from fairlead.config import SchedulerConfig
from fairlead.config.cluster import read_cluster
from fairlead.config.scheduler import parse_part
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.registry import Registry
from fairlead.workloads.catalogue import accelerator_types

if TYPE_CHECKING:
    from fairlead.runtime.control.tokens import Tokens

ClusterOption = Annotated[str, typer.Option("--cluster", help="Accelerators × type : per node, or a YAML file.")]
PolicyOption = Annotated[str, typer.Option("--policy", help="See `fairlead policies`.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="A scheduler as YAML, in place of --policy and --round.")]
RoundOption = Annotated[float, typer.Option("--round", help="Seconds of a round.", min=0.1)]
RootOption = Annotated[Path, typer.Option("--root", help="Where journal, tokens, checkpoints and logs are kept.")]


def _scheduler(config: Path | None, policy: str, round_s: float) -> SchedulerConfig:
    if config is not None:
        return SchedulerConfig.from_file(config)
    return SchedulerConfig(parse_part(policy), estimation=parse_part("measured"), round_s=round_s)


def serve(
    cluster: ClusterOption,
    policy: PolicyOption = "las",
    config: ConfigOption = None,
    round_s: RoundOption = 60.0,
    root: RootOption = Path(".fairlead"),
    journal: Annotated[str, typer.Option("--journal", help="x.sqlite or postgresql://…  [default: in --root]")] = "",
    http: Annotated[str, typer.Option("--http", help="Address for people.")] = "127.0.0.1:7420",
    agents: Annotated[str, typer.Option("--agents", help="Address for agents.")] = "127.0.0.1:7421",
    term: Annotated[float, typer.Option("--term", help="Seconds of an agent's lease.", min=1.0)] = 15.0,
    grace: Annotated[float, typer.Option("--grace", help="Seconds after it in which jobs save and end.", min=1.0)] = 35.0,
) -> None:
    """Run the control plane: the scheduler's loop on wall time, for agents and people. Jobs outlive it; run it again to go on.

    A token for people (admin) and one for agents are made at the first start and kept in ROOT/admin.token and ROOT/agent.token.
    """
    machines = read_cluster(cluster, accelerator_types())
    asyncio.run(_serve(machines, _scheduler(config, policy, round_s), root, journal, http, agents, term, grace))


async def _serve(
    machines: Cluster,
    scheduler: SchedulerConfig,
    root: Path,
    where: str,
    http: str,
    agents: str,
    term_s: float = 15.0,
    grace_s: float = 35.0,
) -> None:
    import uvicorn  # with what it brings, a second; only this command needs it

    from fairlead.journals.opening import open_journal
    from fairlead.journals.recovery import recover
    from fairlead.runtime.control.api import create_app
    from fairlead.runtime.control.clock import origin_of
    from fairlead.runtime.control.plane import Plane
    from fairlead.runtime.control.tokens import Role

    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    tokens = _tokens(root)
    journal = open_journal(where or str(root / "journal.sqlite"))
    known = next(iter(journal), None) is not None
    state = recover(journal)[0] if known else None
    if state is not None and state.cluster != machines:
        raise InputError("--cluster", "the cluster that the journal is about; another one needs a journal of its own")
    registry = Registry.installed()
    plane = Plane(
        machines,
        scheduler.to_data(),
        lambda data: SchedulerConfig.from_data({k: v for k, v in data.items() if k != "name"}).build(None, registry),
        journal,
        state,
        term_s=term_s,
        grace_s=grace_s,
        checkpoints=str((root / "checkpoints").absolute()),
        may_join=lambda token: (found := tokens.bearer(token)) is not None and found.role is Role.AGENT,
        origin=origin_of(root / "origin"),
    )
    port = await plane.start(agents)
    host, _, at = http.rpartition(":")
    server = uvicorn.Server(uvicorn.Config(create_app(plane, tokens), host, int(at), log_level="warning", lifespan="off"))
    note(
        f"people: http://{http}/docs   agents: {agents.rpartition(':')[0]}:{port}   journal: {where or root / 'journal.sqlite'}"
    )
    # Left to itself, it would let the process die of a signal before the loop has ended.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
    serving = asyncio.create_task(server.serve())
    ended = asyncio.create_task(plane.ended())
    await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
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
) -> None:
    """Run the agent of this node: it starts and stops jobs as the control plane says, and by itself when it is cut off.

    Jobs outlive it unless --end-jobs is given: start it again on the same --root, and it goes on with them.
    """
    from fairlead.runtime.agent.accelerators import Accelerators
    from fairlead.runtime.agent.session import Agent
    from fairlead.runtime.agent.settings import Settings, User
    from fairlead.runtime.agent.supervisor import Supervisor

    logging.basicConfig(level=logging.WARNING, format="fairlead agent: %(message)s")
    has = Accelerators.spelled(accelerators) if accelerators else Accelerators.found()
    token = os.environ.get("FAIRLEAD_TOKEN", "") if token_file is None else token_file.read_text().strip()
    supervisor = Supervisor(root, has, Settings(user=User.named(user) if user else None))
    one = Agent(supervisor, node, control, token, address)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: one.stopping.set())
    try:
        one.run()
        if end_jobs:
            supervisor.stop_all()
            while supervisor.running():
                supervisor.wait(0.2)
                supervisor.poll()
    finally:
        supervisor.close()


def up(
    cluster: ClusterOption = "2xv100:2,2xk80:2",
    policy: PolicyOption = "las",
    config: ConfigOption = None,
    round_s: RoundOption = 10.0,
    root: RootOption = Path(".fairlead"),
    http: Annotated[str, typer.Option("--http", help="Address for people.")] = "127.0.0.1:7420",
    agents: Annotated[str, typer.Option("--agents", help="Address for agents.")] = "127.0.0.1:7421",
) -> None:
    """Run a whole cluster on this machine: the control plane and an agent for each node. Ctrl-C ends it, and the jobs with it.

    Then, in another terminal in this directory: fairlead submit -- python train.py; fairlead queue; fairlead nodes.
    """
    machines = read_cluster(cluster, accelerator_types())
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _tokens(root)
    connection = {"url": f"http://{http}", "token": (root / "admin.token").read_text()}
    path = root / "connection.json"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(orjson.dumps(connection))
    started: list[subprocess.Popen[bytes]] = []
    base = [sys.executable, "-m", "fairlead.cli.main", "agent", "--end-jobs", "--control", agents]
    base += ["--token-file", str(root / "agent.token")]
    for machine in machines.nodes:
        spelled = f"{machine.type}:{machine.accelerators}"
        where = str(root / "agents" / machine.name)
        started.append(subprocess.Popen([*base, "--node", machine.name, "--accelerators", spelled, "--root", where]))
    try:
        asyncio.run(_serve(machines, _scheduler(config, policy, round_s), root, "", http, agents))
    finally:
        path.unlink(missing_ok=True)
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
