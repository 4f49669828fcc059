"""`fairlead nodes`, `drain` and `usage`: requests about nodes and users to a control plane."""

from __future__ import annotations

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli.job_tables import legible
from fairlead.cli.output import JsonOption, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.experiments.metric_columns import format_delay, format_duration


def nodes_command(json: JsonOption = False) -> None:
    """List the nodes of the cluster. Shows their GPUs, agents and jobs."""
    found = control_plane().nodes()
    if json:
        print_json({"nodes": found})
        return
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("name", overflow="fold")
    counted = ("accelerators", "free", *(["shared"] if any(node.get("shared") for node in found) else ()))
    for heading in ("type", *counted, "up", "agent"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in counted else "left")
    table.add_column("jobs", overflow="fold", min_width=16)
    for node in found:
        there = "connected" if node["connected"] else "unreachable"
        up = "draining" if node["drained"] and node["jobs"] else "drained" if node["drained"] else "yes" if node["up"] else "no"
        up = "backing off" if node.get("backoff_s") else up
        counts = (str(node[what]) for what in counted)
        table.add_row(*map(Text, (node["name"], node["type"], *counts, up, there, ", ".join(node["jobs"]))))
    out.print(table)
    for node in found:
        if why := node.get("launch_error"):
            again = f"; retried {format_delay(node['backoff_s'])}" if node["backoff_s"] else ""
            told = f"{node['name']} could not start a job: {legible(why)}{again}"
            out.print(told, soft_wrap=True)


def drain_command(
    node: str = typer.Argument(..., metavar="NODE", help="A node's name, as in `fairlead nodes`."),
    undo: bool = typer.Option(False, "--undo", help="Use the node again."),
    json: JsonOption = False,
) -> None:
    """Drain a node: its jobs resume elsewhere.

    fairlead drain n1, and after the maintenance fairlead drain n1 --undo. At the next round the node's jobs checkpoint and
    resume elsewhere, or wait for room, and no job is placed on the node. fairlead nodes shows when it is empty. The node stays
    drained over restarts. Needs an admin token. Exit codes: 0 done, 2 failed.
    """
    answer = control_plane().drain(node, undo=undo)
    if json:
        print_json(answer)
    elif undo:
        out.print(f"{node} is used again")
    else:
        left = f"; jobs to move at the next round: {', '.join(answer['jobs'])}" if answer["jobs"] else "; no job runs on it"
        out.print(f"{node} is drained{left}")


def usage_command(json: JsonOption = False) -> None:
    """Show GPU time by user and account. A GPU that two jobs share counts for both."""
    found = control_plane().usage()
    if json:
        print_json({"usage": found})
        return
    table = Table("user", "account", "jobs", "GPU time", box=box.SIMPLE)
    for row in found:
        table.add_row(row["user"], row["account"], str(row["jobs"]), format_duration(3600 * row["accelerator_hours"]))
    out.print(table)
