"""Jobs of a live cluster as a table for any terminal width.

A job's name and its nodes, or why it does not run, are always shown; other columns where there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli.output import CONTROLS
from fairlead.core.job import ELASTIC, Phase
from fairlead.experiments.metric_columns import format_duration

WIDE = 110
"""Terminal width with room for all columns."""

NARROW = 80
"""Below this width, only the name, phase and nodes or reason are shown."""

LONGEST_NAME = 24
"""Letters of a name in one line of a narrow table; a longer one is folded."""

LONGEST_LINE = 500
"""Letters of a line of a log; longer lines are cut."""

_MAX_SHARING_NAMED = 3
"""Co-located jobs that a table names."""


def legible(text: str) -> str:
    """Return text of a job for a terminal: control characters are made visible, and a long line is cut."""
    line = text.translate(CONTROLS)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def jobs_table(jobs: Sequence[Mapping[str, Any]], width: int, *, users: bool = False, left: bool = False) -> Table:
    """Return jobs as a table; `users` and `left` add columns for the user and the time left."""
    wide, narrow = width >= WIDE, width < NARROW
    shown = {
        "number": wide,
        "job": True,
        "user": users and wide,
        "phase": True,
        "workers": wide,
        "done": not narrow,
        "steps/s": not narrow,
        "time left": left and not narrow,
    }
    longest = None if wide else max(8, width // 4) if narrow else LONGEST_NAME
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for heading in (heading for heading, there in shown.items() if there):
        if heading == "job":
            table.add_column(heading, overflow="fold", max_width=longest)
        else:
            table.add_column(heading, no_wrap=True, justify="left" if heading in ("user", "phase") else "right")
    table.add_column("nodes, or reason", overflow="fold", min_width=17)
    for job in jobs:
        cells = {
            "number": str(job["number"]),
            "job": job["name"],
            "user": job["user"],
            "phase": job["phase"],
            "workers": str(job["workers"]),
            "done": progress_text(job),
            "steps/s": f"{job['rate']:.3g}" if job["rate"] else "",
            "time left": "" if job.get("left_s") is None else format_duration(job["left_s"]),
        }
        table.add_row(*(Text(cells[heading]) for heading, there in shown.items() if there), Text(nodes_or_reason(job)))
    return table


def array_record(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an array or a grid as one object: how many of its jobs are in each phase, when, and what they used."""
    first, array = members[0], members[0]["array"]
    phases = Counter(str(job["phase"]) for job in members)
    starts = [job["first_started_s"] for job in members if job["first_started_s"] is not None]
    ends = [job["ended_s"] for job in members]
    record = {
        "array": array["name"],
        "id": array["id"],
        "jobs": array["size"],
        "numbers": [first["number"], members[-1]["number"]],
        "phases": {phase.name.lower(): phases[phase.name.lower()] for phase in Phase if phases[phase.name.lower()]},
        **{key: first[key] for key in ("user", "account", "kind", "workers", "priority", "now_s", "submitted_s")},
        "first_started_s": min(starts, default=None),
        "ended_s": None if None in ends else max(ends),
        "accelerator_s": sum(job["accelerator_s"] for job in members),
        "failed": [job["name"] for job in members if job["phase"] == "failed"],
        "done": sum(1.0 if job["phase"] == "finished" else job["steps_done"] / job["steps"] for job in members) / len(members),
    }
    if lost := [job["lost_work"] for job in members if job.get("lost_work")]:
        record["lost_work"] = {key: sum(one[key] for one in lost) for key in ("seconds", "preemptions")}
    return record


def array_row(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an array as one row of a table of jobs."""
    record = array_record(members)
    phases = record["phases"]
    counts = ", ".join(f"{count:,} {phase}" for phase, count in phases.items())
    live = [phase for phase in ("running", "waiting", "queued") if phase in phases]
    waits = next((job for job in members if job["phase"] in ("waiting", "queued") and job.get("reason")), None)
    why = f"; {waits['name']}: {waits['reason']['text']}" if waits else ""
    return {
        **record,
        "number": record["numbers"][0],
        "name": record["array"],
        "phase": live[0] if live else max(phases, key=lambda phase: phases[phase]),
        "steps_known": True,
        "steps": 1.0,
        "steps_done": record["done"],
        "rate": 0.0,
        "nodes": [],
        "accelerators": [],
        "reason": {"text": f"{record['jobs']:,} jobs: {counts}{why}"},
    }


def with_arrays(
    jobs: Sequence[Mapping[str, Any]], members_of: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
) -> list[Mapping[str, Any]]:
    """Return jobs with one row for each array, at the place of its first job; `members_of` finds all jobs of an array."""
    rows: dict[str | int, Mapping[str, Any]] = {}
    for job in jobs:
        if (array := job.get("array")) is None:
            rows[job["number"]] = job
        elif array["id"] not in rows:
            rows[array["id"]] = array_row(members_of(array))
    return list(rows.values())


def progress_text(job: Mapping[str, Any]) -> str:
    """Return the share of its steps that a job has done, or their number where the total is unknown."""
    if job["steps_known"]:
        whole = job["steps_done"] >= job["steps"]  # a job that ended earlier is not at 100 %
        return "100 %" if whole else f"{min(99.0, 100 * job['steps_done'] / job['steps']):.0f} %"
    if job["phase"] == "finished":
        return "100 %"
    return f"step {job['steps_done']:,.0f}"


def lost_work(job: Mapping[str, Any]) -> str:
    """Return how long a job ran for nothing, because it was preempted without a checkpoint; empty if that is not known."""
    if (lost := job.get("lost_work")) is None:
        return ""
    times = lost["preemptions"]
    return f"{format_duration(lost['seconds'])} in {times} preemption{'' if times == 1 else 's'} without a checkpoint"


def slowdown_text(job: Mapping[str, Any]) -> str:
    """Return how much slower than alone a co-located job is, if that is more than it tolerates; otherwise nothing."""
    if (slow := job.get("slowdown")) is None:
        return ""
    limit = f"max_slowdown {job['max_slowdown']:g}"
    return f"{slow['factor']:.1f} times slower than alone for {format_duration(slow['for_s'])} ({limit})"


def nodes_or_reason(job: Mapping[str, Any]) -> str:
    """Return the nodes of a running job, with workers and co-located jobs; or the reason of a waiting one."""
    nodes, many = ", ".join(job["nodes"]), len(job["accelerators"])
    if nodes and job.get("mode") == ELASTIC:
        nodes += f", {many} {'worker' if many == 1 else 'workers'}"
    if nodes and (others := job.get("colocated_with")):
        named, most = others[:_MAX_SHARING_NAMED], len(others) - _MAX_SHARING_NAMED
        nodes += f", shared with {', '.join(named)}" + (f" and {most} more" if most > 0 else "")
        nodes += f"; {slow}" if (slow := slowdown_text(job)) else ""
    reason = nodes or legible(str(job.get("reason", {}).get("text", "")))
    return "; ".join(filter(None, (reason, f"lost work: {lost_work(job)}" if job.get("lost_work") else "")))
