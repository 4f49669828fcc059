"""`fairlead nodes`, `nodes add`, `nodes remove`, `drain` and `undrain`: requests about nodes to a control plane."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli.job_info import local_time
from fairlead.cli.job_tables import legible
from fairlead.cli.output import JsonOption, note, option_error, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.core.durations import parse_duration
from fairlead.core.errors import InputError, NotFound, near_or_all
from fairlead.experiments.metric_columns import format_delay, format_seconds

_ABOUT = "List, add and remove the nodes of the cluster.\n\n'fairlead nodes' and 'fairlead nodes NODE...' list them."
nodes_app = typer.Typer(help=_ABOUT, rich_markup_mode=None)
POLL_S = 1.0  # between two requests for a node that becomes empty
_GPUS = re.compile(r"([A-Za-z][\w.-]*):([1-9]\d{0,3})", re.ASCII)
MOMENT = "a duration from now, such as 12h, or a time, such as 2026-11-20T08:00"
NodeNames = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names or patterns ('v100-*').")]
NodesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NODE]...", help="Names or patterns ('v100-*').", show_default=False)
]


@nodes_app.command("list")
def nodes_command(
    words: NodesArgument = None,
    host: bool = typer.Option(False, "--host", help="Show the utilization of CPU, memory and disk, if agents measure it."),
    json: JsonOption = False,
) -> None:
    """List the nodes of the cluster. Shows their GPUs, agents and jobs, and warns of nodes whose disk or memory is nearly full.

    Examples:

      fairlead nodes
      fairlead nodes 'v100-*'
      fairlead nodes --host

    'fairlead nodes' is short for 'fairlead nodes list'. Exit codes: 0 done, 3 no such node.
    """
    found = select_nodes(control_plane().nodes(), words)
    if json:
        print_json({"nodes": found})
        return
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("name", overflow="fold")
    counted = ("accelerators", "free", *(["shared"] if any(node.get("shared") for node in found) else ()))
    racks = any(node.get("rack") for node in found)
    hosts = _HOST_COLUMNS if host else ()
    counted = (*counted, *hosts)
    for heading in ("type", *(["rack"] if racks else ()), *counted, "up", "agent"):
        table.add_column(
            "GPUs" if heading == "accelerators" else heading, no_wrap=True, justify="right" if heading in counted else "left"
        )
    table.add_column("jobs", overflow="fold", min_width=16)
    for node in found:
        silent_s = node.get("unreachable_s") if node["up"] else None
        there = f"unreachable {format_seconds(silent_s)}" if silent_s else "connected" if node["connected"] else "unreachable"
        up = "draining" if node["drained"] and node["jobs"] else "drained" if node["drained"] else "yes" if node["up"] else "no"
        up = "backing off" if node.get("backoff_s") else "unknown" if silent_s and up == "yes" else up
        counts = (_host_share(node, what) if what in hosts else str(node[what]) for what in counted)
        marks = {name: f" ({mark})" for mark in ("starting", "stopping") for name in node.get(mark) or ()}
        jobs = ", ".join(name + marks.get(name, "") for name in node["jobs"])
        place = [node.get("rack") or ""] if racks else []
        table.add_row(*map(Text, (node["name"], node["type"], *place, *counts, up, there, jobs)))
    out.print(table)
    if unlimited := [node["name"] for node in found if node.get("limits") == "none"]:
        every = not words and len(unlimited) == len(found) > 1
        where = "no node limits" if every else f"no limits on {', '.join(unlimited)} for"
        out.print(Text(f"{where} the CPU and memory of jobs: cgroups (v2) are not available"), soft_wrap=True)
    for node in found:
        for warning in (node.get("host") or {}).get("warnings") or ():
            out.print(Text(f"{node['name']}: {warning}"), soft_wrap=True)
    for problem in sorted({node["engine_problem"] for node in found if node.get("engine_problem")}):
        out.print(legible(problem), soft_wrap=True)
    for node in found:
        if node.get("drain"):
            out.print(Text(f"{node['name']} {_described(node['drain'])}"), soft_wrap=True)
        if why := node.get("launch_error"):
            again = f"; retried {format_delay(node['backoff_s'])}" if node["backoff_s"] else ""
            told = f"{node['name']} could not start a job: {legible(why)}{again}"
            out.print(told, soft_wrap=True)


_HOST_COLUMNS = ("CPU", "memory", "disk")


def _host_share(node: Mapping[str, Any], what: str) -> str:
    """The used share of a node's CPUs, memory or disk in percent."""
    host = node.get("host") or {}
    used, total = (host.get("cpu"), 1.0) if what == "CPU" else (host.get(f"{what}_gb"), host.get(f"{what}_total_gb"))
    return "-" if used is None or not total else f"{100 * used / total:.0f} %"


@nodes_app.command("add")
def add_node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that its agent uses (--node).")],
    gpus: Annotated[str, typer.Argument(metavar="TYPE:COUNT", help="Its GPUs, as in v100:4.")],
    cpus: float | None = typer.Option(None, help="CPUs. [default: not limited]", min=0.01),
    memory: float | None = typer.Option(None, help="GB of memory. [default: not limited]", min=0.01),
    gpu_memory: float | None = typer.Option(
        None, help="GB of memory of each GPU, for a GPU type that is new in the cluster.", min=0.01
    ),
    rack: str = typer.Option("", help="Rack of the node. [default: none]"),
    json: JsonOption = False,
) -> None:
    """Add a node before its agent connects, so that jobs can wait for it. Agents with an agent token need no such command.

    Example:

      fairlead nodes add gpu-7 h200:8 --cpus 192 --memory 2000

    The command needs an admin token. Exit codes: 0 done, 4 not allowed, or the node exists.
    """
    if (found := _GPUS.fullmatch(gpus)) is None:
        raise InputError("nodes add", "TYPE:COUNT, as in v100:4", field="GPUs", value=gpus)
    resources = {"cpus": cpus, "memory_gb": memory, "gpu_memory_gb": gpu_memory, **({"rack": rack} if rack else {})}
    node = control_plane().add_node(name, found[1], int(found[2]), **resources)
    if json:
        print_json(node)
    else:
        agent = f"fairlead agent --control HOST:7421 --node {name} --token-file agent.token"
        out.print(Text(f"{name} is added; start its agent: {agent}"), soft_wrap=True)


@nodes_app.command("remove")
def remove_node(
    words: NodeNames,
    drain: bool = typer.Option(False, "--drain", help="Drain the nodes first, and wait until their jobs have left."),
    json: JsonOption = False,
) -> None:
    """Remove nodes from the cluster, and revoke their credentials. Their agents end.

    Examples:

      fairlead nodes remove gpu-7
      fairlead nodes remove 'gpu-*' --drain

    A node on which jobs run is not removed: drain it first, or pass --drain. To add a node again, remove the file 'credential'
    in its agent's --root, and start the agent with an agent token. The command needs an admin token.
    Exit codes: 0 done, 3 no such node, 4 not allowed, or jobs run there.
    """
    plane = control_plane()
    names = [node["name"] for node in select_nodes(plane.nodes(), words)]
    if drain:
        for name in names:
            plane.drain(name, reason="to be removed")
        _wait_until_empty(plane, names)
    answers = [plane.remove_node(name) for name in names]
    if json:
        print_json(answers[0] if len(answers) == 1 else {"nodes": answers})
        return
    for answer in answers:
        out.print(Text(f"{answer['name']} is removed"))
    if stranded := answers[-1]["stranded"]:
        out.print(Text(f"no node of the cluster can run these jobs now: {', '.join(map(legible, stranded))}"), soft_wrap=True)


def _wait_until_empty(plane: Any, names: Sequence[str]) -> None:
    """Wait until no job runs on nodes; a line says what is waited for, when that changes."""
    said = ""
    while busy := [node for node in plane.nodes() if node["name"] in names and node["jobs"]]:
        line = "; ".join(f"{node['name']}: {', '.join(map(legible, node['jobs']))}" for node in busy)
        if line != said:
            note(f"waiting for jobs to leave {line}")
            said = line
        time.sleep(POLL_S)


def _described(drain: dict[str, Any]) -> str:
    """Return by whom, from and until when, and why a node is drained."""
    by = f" by {drain['by']}" if drain["by"] else ""
    return f"{_window(drain)}{by}" + (f": {legible(drain['reason'])}" if drain["reason"] else "")


def _window(drain: dict[str, Any]) -> str:
    begin = f"will be drained from {local_time(drain['from'])}" if drain.get("from") else "is drained"
    return begin + (f" until {local_time(drain['until'])}" if drain.get("until") else "")


def _moment(option: str, text: str) -> float:
    """Return a time in the future, in Unix time."""
    try:
        at = datetime.fromisoformat(text).timestamp()
    except ValueError:
        try:
            at = time.time() + parse_duration(text)
        except ValueError:
            raise option_error(option, MOMENT, text) from None
    if not time.time() < at < 2.5e11:
        raise option_error(option, "a time in the future", text)
    return at


def select_nodes(nodes: Sequence[dict[str, Any]], words: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return the nodes that a command names; all without words. Raises `NotFound`: a word matches none."""
    chosen: dict[str, dict[str, Any]] = {}
    for word in words or ("*",):
        matching = [node for node in nodes if node["name"] == word or fnmatch.fnmatchcase(node["name"], word)]
        if not matching and words:
            raise NotFound(f"there is no node {word!r}; {near_or_all(word, [node['name'] for node in nodes])}")
        chosen |= {node["name"]: node for node in matching}
    return [node for node in nodes if node["name"] in chosen]


def undrain_command(
    words: NodeNames,
    json: JsonOption = False,
) -> None:
    """Use drained nodes again.

    Example:

      fairlead undrain n1

    The command needs an admin token. Exit codes: 0 done, 3 no such node, 4 not allowed.
    """
    _drain(words, undo=True, json=json)


def drain_command(
    words: NodeNames,
    reason: str = typer.Option("", help="The reason, which 'fairlead nodes' shows."),
    start: str = typer.Option("", "--from", help=f"When the drain begins by itself: {MOMENT}. [default: now]"),
    until: str = typer.Option("", help=f"When the drain ends by itself: {MOMENT}. [default: with 'fairlead undrain']"),
    undo: bool = typer.Option(False, "--undo", help="The same as 'fairlead undrain'.", hidden=True),
    json: JsonOption = False,
) -> None:
    """Drain nodes: no new job starts there, and their jobs resume on other nodes.

    Examples:

      fairlead drain n1
      fairlead undrain n1     # after the maintenance
      fairlead drain 'v100-*' --reason "new driver" --until 12h
      fairlead drain n1 --from 2026-11-20T08:00 --until 2026-11-20T12:00 --reason "new disks"

    At the next round the jobs of the node checkpoint, and resume on other nodes or wait for free GPUs. 'fairlead nodes' shows
    when the node is empty. It stays drained across restarts. The command needs an admin token.
    Exit codes: 0 done, 3 no such node, 4 not allowed.
    """
    moments = {
        name: _moment(option, text) for name, option, text in (("start", "from", start), ("until", "until", until)) if text
    }
    _drain(words, undo=undo, json=json, reason=reason, **moments)


def _drain(words: Sequence[str], *, undo: bool, json: bool, **about: Any) -> None:
    plane = control_plane()
    answers = [plane.drain(node["name"], undo=undo, **about) for node in select_nodes(plane.nodes(), words)]
    if json:
        print_json(answers[0] if len(answers) == 1 else {"nodes": answers})
        return
    for node in answers:
        left = f"; jobs to move at the next round: {', '.join(node['jobs'])}" if node["jobs"] else "; no job runs on it"
        drain = node.get("drain") or {}
        left = "" if drain.get("from") else left
        out.print(f"{node['name']} accepts jobs again" if undo else f"{node['name']} {_window(drain)}{left}")
