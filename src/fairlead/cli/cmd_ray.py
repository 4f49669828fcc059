"""`fairlead ray up`, `status` and `down`: the GPU nodes of a Ray cluster as nodes of a Fairlead cluster."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.core.errors import REFUSED, FairleadError, NotFound, require
from fairlead.runtime.drivers.ray_pilot import AgentRequest, AgentState, RayPilot

_ABOUT = (
    "Use nodes of a Ray cluster as nodes of Fairlead.\n\nOn each GPU node, a Ray actor reserves the GPUs and runs an agent."
)
ray_app = typer.Typer(help=_ABOUT, no_args_is_help=True, rich_markup_mode=None)
ADDRESS = typer.Option("auto", help="Address of the Ray cluster: HOST:PORT, or 'auto' for that of this machine.")
CONTROL = typer.Option("", help="The control plane's address for agents. [default: port 7421 of this machine]")
JOIN_S = 60.0
WATCH_S = 10.0


@ray_app.command("up")
def up_ray(
    address: str = ADDRESS,
    control: str = CONTROL,
    gpus: int = typer.Option(0, help="GPUs to reserve on each node. [default: all]", min=0, show_default=False),
    type_name: str = typer.Option("", "--type", help="GPU type. [default: detected by NVML]"),
    watch: bool = typer.Option(False, "--watch", help="Keep running, and start agents on new nodes, until Ctrl-C."),
    token_file: Path = typer.Option(Path(".fairlead/agent.token"), help="A file with an agent token."),
    tls_ca: Path | None = typer.Option(None, help="The CA certificate (PEM) that signed the control plane's certificate."),
    insecure: bool = typer.Option(False, "--insecure", help="Allow agents without TLS. Tokens are then sent unencrypted."),
    json: JsonOption = False,
) -> None:
    """Start an agent on each GPU node of a Ray cluster. The agents join the control plane.

    Examples:

      fairlead ray up --tls-ca cert.pem
      fairlead ray up --address head:6379 --control login:7421 --tls-ca cert.pem --watch

    Start the control plane first: 'fairlead serve' in this folder. The agents keep running when this command ends;
    'fairlead ray down' ends them. Run the command again to start agents on new nodes.
    Exit codes: 0 done, 4 an agent has ended, 5 no Ray, or no control plane.
    """
    from fairlead.runtime.protocol.network import check_encryption

    place = _control(control)
    for each in place.split(","):
        check_encryption("--control", each.strip(), encrypted=tls_ca is not None, insecure=insecure, mend="--tls-ca")
    require(token_file.is_file(), token_file, "an agent token, as 'fairlead serve' writes it to ROOT/agent.token")
    authority = "" if tls_ca is None else tls_ca.read_text()
    request = AgentRequest(place, token_file.read_text().strip(), gpus, type_name, authority, insecure)
    plane = control_plane()
    plane.nodes()  # no control plane is an error before anything starts
    with RayPilot(address, place) as pilot:
        pilot.clear_ended()
        started = pilot.start(request)
        left = pilot.until_joined(lambda: {one["name"] for one in plane.nodes() if one["connected"]}, JOIN_S)
        states = pilot.states()
    if json:
        print_json({"started": [one.node_name for one in started], "agents": [asdict(one) for one in states]})
    elif not states:
        note(f"the Ray cluster at {address} has no node with GPUs")
    else:
        joined = {one.node for one in states} - {one.node for one in left}
        out.print(Text(f"agents started: {len(started)}; joined: {len(joined)} of {len(states)}"))
    for one in left:
        note(f"{one.node}: {_why(one)}")
    if watch:
        _watch(address, request)
    if any(one.state == "ended" for one in left):
        raise typer.Exit(REFUSED)


def _watch(address: str, request: AgentRequest) -> NoReturn:
    """Start agents on new nodes, and again where one has ended, until Ctrl-C."""
    with RayPilot(address, request.control) as pilot:
        while True:
            time.sleep(WATCH_S)
            for one in pilot.clear_ended():
                note(f"{one.node}: {_why(one)}")
            for node in pilot.start(request):
                note(f"{node.node_name}: an agent starts")


@ray_app.command("status")
def ray_status(address: str = ADDRESS, control: str = CONTROL, json: JsonOption = False) -> None:
    """List the agents on a Ray cluster, and whether they have joined the control plane.

    Example:

      fairlead ray status

    Exit codes: 0 done, 5 no Ray.
    """
    with RayPilot(address, _control(control)) as pilot:
        states = pilot.states()
        none = _no_agent(pilot)
    joined: set[str] | None = None
    try:
        joined = {one["name"] for one in control_plane().nodes() if one["connected"]}
    except FairleadError as problem:
        note(f"cannot find out which nodes have joined: {problem}")
    if json:
        listed = [{**asdict(one), "joined": None if joined is None else one.node in joined} for one in states]
        print_json({"agents": listed})
        return
    if not states:
        note(none)
        return
    table = Table("node", "address", "GPUs", "agent", "joined", "reason", box=box.SIMPLE_HEAD)
    for one in states:
        there = "?" if joined is None else "yes" if one.node in joined else "no"
        table.add_row(*map(Text, (one.node, one.address, str(one.gpus or ""), one.state, there, one.reason)))
    out.print(table)


@ray_app.command("down")
def down_ray(
    nodes: list[str] | None = typer.Argument(None, metavar="[NODE]...", help="Names of nodes. [default: all]"),
    address: str = ADDRESS,
    control: str = CONTROL,
    json: JsonOption = False,
) -> None:
    """End agents on a Ray cluster, after their jobs have saved checkpoints. Ray gets the GPUs back.

    Examples:

      fairlead ray down
      fairlead ray down 10.0.0.7-4f2a91c0

    The command returns when no process of a job is left on the nodes. Exit codes: 0 done, 3 no such node, 5 no Ray.
    """
    with RayPilot(address, _control(control)) as pilot:
        known = {one.node for one in pilot.states()}
        if unknown := [name for name in nodes or () if name not in known]:
            raise NotFound(f"no agent {unknown[0]} runs on this Ray cluster: 'fairlead ray status' lists them")
        ended, none = pilot.end(nodes or (), note), _no_agent(pilot)
    if json:
        print_json({"ended": ended})
    else:
        out.print(Text(f"ended: {', '.join(ended)}" if ended else none), soft_wrap=True)


def _control(given: str) -> str:
    return given or f"{os.uname().nodename}:7421"


def _no_agent(pilot: RayPilot) -> str:
    """That no agent runs, and for which other control planes there are some: this one may be known by another address."""
    others = [f"'--control {address}'" for address in pilot.control_planes() if address != pilot.control]
    mend = f"there are agents for another one: pass {' or '.join(others)}" if others else "'fairlead ray up' starts them"
    return f"no agent runs on this Ray cluster for the control plane {pilot.control}; {mend}"


def _why(state: AgentState) -> str:
    if state.state == "waiting":
        return "waits for GPUs that other Ray tasks use, or for a slow node; it joins later"
    return f"its agent has ended: {state.reason}" if state.state == "ended" else "its agent runs, but has not joined yet"
