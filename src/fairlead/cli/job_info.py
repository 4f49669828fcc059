"""One job in detail, for `fairlead info`: groups of two columns. What is not known, or empty, is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from fairlead.cli.job_tables import legible, lost_work, slowdown_text
from fairlead.experiments.metric_columns import format_delay, format_duration, format_seconds
from fairlead.runtime.protocol.command_line import command_text

Line = tuple[str, str]

MAX_METRICS = 20
"""Metrics of a job that are shown; --json has all."""

COLUMN = 18
"""Letters of the first column."""


def local_time(unix_s: float | None) -> str:
    """Return a moment in local time, to the second; empty for none."""
    return "" if unix_s is None else datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M:%S")


def job_details(job: Mapping[str, Any]) -> list[tuple[str, list[Line]]]:
    """Return the groups of lines about a job: each has a title and pairs of a label and a text."""
    groups = {
        "Job": _identity(job),
        "Task": _task(job),
        "Resources": _resources(job),
        "Time": _times(job),
        "Progress": _progress(job),
        "Prediction": prediction_facts(job),
        "Scheduling": _scheduling(job),
        "Result": _result(job),
    }
    found = [(title, [(label, text) for label, text in lines if text]) for title, lines in groups.items()]
    return [(title, lines) for title, lines in found if lines]


def detail_lines(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `fairlead info`."""
    for place, (title, lines) in enumerate(job_details(job)):
        if place:
            yield ""
        yield title
        for label, text in lines:
            yield f"  {label:<{COLUMN}}{text}"


def array_lines(array: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `fairlead info` about an array or a grid (`array_record`)."""
    since = {label: array["now_s"] - array[name] for name, label in _MOMENTS.items() if array[name] is not None}
    lines = {
        "array": array["array"],
        "jobs": f"{array['jobs']:,} (numbers {array['numbers'][0]} to {array['numbers'][1]})",
        "states": ", ".join(f"{count:,} {phase}" for phase, count in array["phases"].items()),
        **{label: str(array[label]) for label in ("user", "account")},
        "job type": array["kind"],
        "workers": f"{array['workers']} each",
        **{label: f"{format_duration(ago_s)} ago" for label, ago_s in since.items()},
        "GPU time": format_duration(array["accelerator_s"]),
        "done": f"{100 * array['done']:.0f} %",
        "lost work": lost_work(array),
        "failed": ", ".join(array["failed"]),
    }
    yield "Array"
    for label, text in lines.items():
        if text:
            yield f"  {label:<{COLUMN}}{legible(text)}"


_MOMENTS = {"submitted_s": "submitted", "first_started_s": "first start", "ended_s": "ended"}


def _identity(job: Mapping[str, Any]) -> Iterator[Line]:
    yield "name", legible(str(job["name"]))
    yield "number", str(job["number"])
    yield "state", str(job["phase"])
    yield "reason", legible(str((job.get("reason") or {}).get("text", "")))
    yield "held by", str(job.get("held_by") or "")
    yield "user", legible(str(job.get("user") or ""))
    yield "account", legible(str(job.get("account") or ""))
    yield "job type", legible(str(job.get("kind") or ""))
    if array := job.get("array"):
        values = "".join(f", {name}={value}" for name, value in (array.get("values") or {}).items())
        yield "array", legible(f"{array['name']}, member {array['index']} of {array['size']}{values}")
    yield "after", ", ".join(f"number {number}" for number in job.get("after") or ())
    if earlier := job.get("earlier"):
        yield "same name before", f"number {', '.join(map(str, earlier))}"


def _task(job: Mapping[str, Any]) -> Iterator[Line]:
    words = list(job.get("command") or ())
    if "-c" in words and "\n" in (text := words[words.index("-c") + 1]):  # a script is shown by its name, or its first line
        words = words[words.index(text) + 1 :] or text.split("\n")[:1]
    yield "command", legible(command_text(words, shell=job.get("shell", False)))
    yield "directory", legible(str(job.get("directory") or ""))
    yield "image", legible(str(job.get("image") or ""))
    yield "code", str(job.get("code") or "")[:12]
    yield "outputs", legible(", ".join(job.get("outputs") or ()))
    yield "environment", legible(", ".join(job.get("environment") or ()))


def _resources(job: Mapping[str, Any]) -> Iterator[Line]:
    yield "workers", str(job.get("workers", ""))
    yield "mode", str(job.get("mode") or "").replace("static", "")
    yield "GPU types", ", ".join(job.get("allowed_types") or ())
    for name, unit in (("memory_gb", "GB of GPU memory"), ("cpus", "CPUs"), ("host_memory_gb", "GB of memory")):
        if job.get(name):
            yield "each worker", f"{job[name]:g} {unit}"
    gpus = job.get("gpus") or {}
    where = ", ".join(f"{node}: GPU {', '.join(map(str, places))}" for node, places in gpus.items())
    yield "nodes", where or ", ".join(job.get("nodes") or ())
    yield "last node", "" if gpus or job.get("nodes") else str(job.get("last_node") or "")
    yield "co-located with", legible(", ".join(job.get("colocated_with") or ()))
    yield "max slowdown", "" if job.get("max_slowdown") is None else f"{job['max_slowdown']:g}"
    yield "slowdown", slowdown_text(job)
    if parted := job.get("separations"):
        yield "separations", f"{parted['count']}, the last {_duration(parted['last_took_s'])} after the slowdown began"


def _times(job: Mapping[str, Any]) -> Iterator[Line]:
    for label, name in (("submitted", "submitted_at"), ("started", "started_at"), ("ended", "ended_at")):
        yield label, local_time(job.get(name))
    yield "ran", _duration(job.get("run_s"))
    yield "time limit", _duration(job.get("time_limit_s"))
    yield "deadline", local_time(job.get("deadline_at"))
    yield "time left", _duration(job.get("left_s"))
    yield "GPU time", _duration(job.get("accelerator_s"))
    if job.get("phase") in ("queued", "waiting"):
        yield "next decision", next_decision(job)


def next_decision(job: Mapping[str, Any]) -> str:
    """Return when the next decision on a waiting job comes: at the next round, if that decides anyway or after an event. Empty
    if that is not known, such as while a decision takes longer than a round."""
    soonest_s, latest_s = job.get("next_decision_s"), job.get("latest_decision_s")
    if latest_s is None or soonest_s is None:  # without rounds, an event may cause it at any time
        return "" if latest_s is None else f"within {format_seconds(latest_s)}"
    later = "" if soonest_s == latest_s else f" if anything changes, else {format_delay(latest_s)}"
    return f"{format_delay(soonest_s)}{later}"


def _progress(job: Mapping[str, Any]) -> Iterator[Line]:
    yield "steps", f"{job['steps']:,.0f}" if job.get("steps_known", True) else "unknown"
    yield "steps done", "" if job.get("steps_done") is None else f"{job['steps_done']:,.0f}"
    yield "rate", f"{job['rate']:.3g} steps/s" if job.get("rate") else ""
    regimes = job.get("regimes") or ()
    yield "batch sizes", ", ".join(f"{one['batch_size']} from step {one['from_steps']:,.0f}" for one in regimes)
    planned = job.get("schedule") or ()
    yield "schedule", ", ".join(f"batch size {one['batch_size']} for {one['share']:.0%} of its steps" for one in planned)
    for name, value in list((job.get("metrics") or {}).items())[:MAX_METRICS]:
        yield legible(name)[: COLUMN - 2], f"{value:.6g}"
    newest = job.get("checkpoint_file")  # None: the control plane cannot see the folder
    seen = "" if newest is None else f" (newest: {newest})" if newest else " (empty)"
    yield "checkpoint folder", legible(f"{job['checkpoint']}{seen}") if job.get("checkpoint") else ""
    yield "flags", legible("; ".join(job.get("flags") or ()))


def prediction_facts(job: Mapping[str, Any]) -> Iterator[Line]:
    """Yield what was predicted of a job and what was measured, each as a label and a text."""
    if not (about := job.get("prediction")):
        return
    yield "GPU type", str(about["type"])
    for label, name, unit in (("utilization", "utilization", " %"), ("speed", "steps_per_s", " steps/s")):
        if (one := about[name])["predicted"]:
            yield label, f"{one['predicted']:.3g}{unit} ({one['low']:.3g} to {one['high']:.3g}){_measured(one, unit)}"
    memory = about["memory_gb"]
    yield "GPU memory", f"at most {memory['predicted']:.1f} GB{_measured(memory, ' GB')}"
    yield "note", about.get("note", "")


def _measured(one: Mapping[str, Any], unit: str) -> str:
    return "" if one["measured"] is None else f", measured {one['measured']:.3g}{unit}"


def _scheduling(job: Mapping[str, Any]) -> Iterator[Line]:
    yield "priority", str(job.get("priority", ""))
    yield "weight", "" if job.get("weight") is None else f"{job['weight']:g}"
    yield "starts", str(job.get("starts", ""))
    yield "preemptions", str(job.get("preemptions", ""))
    yield "lost work", lost_work(job)
    if job.get("failures") or (job.get("failures") == 0 and job["phase"] != "failed"):  # not if it only reached its time limit
        limit = "" if job.get("retries") is None else f" of at most {job['retries'] + 1}"
        yield "failures", f"{job['failures']}{limit}"


def _result(job: Mapping[str, Any]) -> Iterator[Line]:
    yield "exit code", "" if job.get("exit_code") is None else str(job["exit_code"])
    if failure := job.get("last_failure"):
        node = failure.get("node")
        yield "last failure", legible(f"{failure['why']} on {node}" if node else str(failure["why"]))
    yield "last lines", f"\n{'':>{COLUMN + 2}}".join(map(legible, job.get("last_lines") or ()))


def _duration(seconds: float | None) -> str:
    return "" if seconds is None or not math.isfinite(seconds) else format_duration(seconds)
