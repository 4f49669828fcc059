"""`fairlead nodes`, `drain` and `undrain`: requests about nodes to a control plane."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli.job_tables import legible
from fairlead.cli.output import JsonOption, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.core.errors import NotFound, near_or_all
from fairlead.experiments.metric_columns import format_delay, format_seconds

NodesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NODE]...", help="Names or patterns ('v100-*').", show_default=False)
]


def nodes_command(words: NodesArgument = None, json: JsonOption = False) -> None:
    """List the nodes of the cluster. Shows their GPUs, agents and jobs.

    Examples:

      fairlead nodes
      fairlead nodes 'v100-*'

    Exit codes: 0 done, 3 no such node.
    """
    found = select_nodes(control_plane().nodes(), words)
    if json:
        print_json({"nodes": found})
        return
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("name", overflow="fold")
    counted = ("accelerators", "free", *(["shared"] if any(node.get("shared") for node in found) else ()))
    for heading in ("type", *counted, "up", "agent"):
        table.add_column(
            "GPUs" if heading == "accelerators" else heading, no_wrap=True, justify="right" if heading in counted else "left"
        )
    table.add_column("jobs", overflow="fold", min_width=16)
    for node in found:
        silent_s = node.get("unreachable_s") if node["up"] else None
        there = f"unreachable {format_seconds(silent_s)}" if silent_s else "connected" if node["connected"] else "unreachable"
        up = "draining" if node["drained"] and node["jobs"] else "drained" if node["drained"] else "yes" if node["up"] else "no"
        up = "backing off" if node.get("backoff_s") else "unknown" if silent_s and up == "yes" else up
        counts = (str(node[what]) for what in counted)
        marks = {name: f" ({mark})" for mark in ("starting", "stopping") for name in node.get(mark) or ()}
        jobs = ", ".join(name + marks.get(name, "") for name in node["jobs"])
        table.add_row(*map(Text, (node["name"], node["type"], *counts, up, there, jobs)))
    out.print(table)
    if unlimited := [node["name"] for node in found if node.get("limits") == "none"]:
        every = not words and len(unlimited) == len(found) > 1
        where = "no node limits" if every else f"no limits on {', '.join(unlimited)} for"
        out.print(Text(f"{where} the CPU and memory of jobs: cgroups (v2) are not available"), soft_wrap=True)
    for node in found:
        if why := node.get("launch_error"):
            again = f"; retried {format_delay(node['backoff_s'])}" if node["backoff_s"] else ""
            told = f"{node['name']} could not start a job: {legible(why)}{again}"
            out.print(told, soft_wrap=True)


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
    words: Annotated[list[str], typer.Argument(metavar="NODE...", help="Names or patterns ('v100-*').")],
    json: JsonOption = False,
) -> None:
    """Use drained nodes again.

    Example:

      fairlead undrain n1

    It needs an admin token. Exit codes: 0 done, 3 no such node, 4 not allowed.
    """
    _drain(words, undo=True, json=json)


def drain_command(
    words: Annotated[list[str], typer.Argument(metavar="NODE...", help="Names or patterns ('v100-*').")],
    undo: bool = typer.Option(False, "--undo", help="The same as 'fairlead undrain'.", hidden=True),
    json: JsonOption = False,
) -> None:
    """Drain nodes: no new job starts there, and their jobs resume on other nodes.

    Examples:

      fairlead drain n1
      fairlead undrain n1     # after the maintenance

    At the next round the jobs of the node checkpoint, and resume on other nodes or wait for free GPUs. 'fairlead nodes' shows
    when the node is empty. It stays drained across restarts. The command needs an admin token.
    Exit codes: 0 done, 3 no such node, 4 not allowed.
    """
    _drain(words, undo=undo, json=json)


def _drain(words: Sequence[str], *, undo: bool, json: bool) -> None:
    plane = control_plane()
    answers = [plane.drain(node["name"], undo=undo) for node in select_nodes(plane.nodes(), words)]
    if json:
        print_json(answers[0] if len(answers) == 1 else {"nodes": answers})
        return
    for node in answers:
        left = f"; jobs to move at the next round: {', '.join(node['jobs'])}" if node["jobs"] else "; no job runs on it"
        out.print(f"{node['name']} accepts jobs again" if undo else f"{node['name']} is drained{left}")
