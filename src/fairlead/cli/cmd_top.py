"""`fairlead top`: a live view of a cluster: nodes and their jobs, the queue, the last decisions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlead.cli.job_tables import jobs_table
from fairlead.cli.output import JsonOption, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.core.errors import FairleadError
from fairlead.runtime.http_client import is_temporary

_OTHERS = "·"  # a job of another user


def top_command(
    once: bool = typer.Option(False, "--once", help="Print the view once and exit; the default without a terminal."),
    every: float = typer.Option(2.0, help="Seconds between two updates.", min=0.2),
    json: JsonOption = False,
) -> None:
    """Show a live view of nodes, jobs and decisions.

    It shows the GPUs of each node with their jobs and utilization, jobs with their progress, speed and time left, and the last
    decisions. It waits while the control plane is unreachable. Ctrl-C ends it.

    With an admin token it shows the jobs of all users, otherwise your own. --json prints one object and exits.
    """
    seen = control_plane().overview()
    if json:
        print_json(seen)
    elif once or not out.is_terminal:
        out.print(overview_view(seen, out.width))
    else:
        with Live(overview_view(seen, out.width), console=out, screen=True, auto_refresh=False) as live:
            for latest, away in updates(seen, lambda: control_plane().overview(), lambda: time.sleep(every)):
                live.update(overview_view(latest, out.width, away), refresh=True)


def updates(
    seen: dict[str, Any], look: Callable[[], dict[str, Any]], pause: Callable[[], None]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the overview from time to time; while the control plane does not answer, the last one and the problem."""
    while True:
        pause()
        away = ""
        try:
            seen = look()
        except FairleadError as problem:
            if not is_temporary(problem):
                raise
            away = str(problem)
        yield seen, away


def overview_view(seen: Mapping[str, Any], width: int, away: str = "") -> Group:
    """Return the view of an overview; `away` says why there is no newer one."""
    phases = [job["phase"] for job in seen["jobs"]]
    counts = ", ".join(f"{phases.count(phase)} {phase}" for phase in ("running", "waiting", "queued"))
    head = Text(f"second {seen['second']:,.0f}   {seen['policy']}   {counts}", style="bold")
    if away:
        head.append(f"\noutdated; waiting for the control plane: {away}", style="red")
    jobs = jobs_table(seen["jobs"], width, users=True, left=True) if seen["jobs"] else Text("  no jobs\n", style="dim")
    return Group(head, _nodes(seen["nodes"]), jobs, *([_decisions(seen["decisions"])] if seen["decisions"] else ()))


def _nodes(nodes: list[dict[str, Any]]) -> Table:
    table = Table("node", "type", "agent", "GPUs", box=box.SIMPLE)
    for node in nodes:
        use = list(zip(node["utilization"], node["memory_gb"]))
        cells = []
        for place, holders in enumerate(node["holders"]):
            used = f" {100 * use[place][0]:.0f} % {use[place][1]:.0f} GB" if place < len(use) else ""
            usable = node.get("up", True) and not node["drained"] and node["connected"]
            empty = "free" if usable else "not usable"
            cells.append(f"[{'+'.join(name or _OTHERS for name in holders) or empty}{used}]")
        there = "drained" if node["drained"] else "connected" if node["connected"] else "unreachable"
        table.add_row(node["name"], node["type"], there, Text(" ".join(cells)))
    return table


def _decisions(decisions: list[dict[str, Any]]) -> Table:
    table = Table("second", "last decisions", box=box.SIMPLE)
    for each in decisions[:8]:
        parts = [f"{name} on {', '.join(nodes)}" for name, nodes in each["launched"].items()]
        parts += [f"{name} {what}" for what in ("suspended", "refused", "ended") for name in each[what]]
        table.add_row(f"{each['second']:,.0f}", Text("; ".join(parts)))
    return table
