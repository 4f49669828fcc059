"""Plain records of jobs, nodes and usage for the HTTP API. It only reads, under the control plane's lock."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlead.core.cluster import Drain, Ints
from fairlead.core.job import TIME_LIMIT, Job, Phase, flags_of, model_of
from fairlead.core.plan import BUSY, MEASURED_METRICS, TAKEN_GB
from fairlead.core.reasons import Code
from fairlead.engine.explain import node_of, why_in
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.estimators.measured import measured_rates
from fairlead.files import finite_or_none
from fairlead.prediction.step_prediction import job_prediction
from fairlead.runtime.control.event_log import policy_of
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.orders import Task
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS, task_of
from fairlead.runtime.protocol.task_parts import array_of

if TYPE_CHECKING:
    from fairlead.runtime.control.control_plane import ControlPlane

MAX_JOBS_SHOWN = 200  # in an overview
MAX_HOLDERS = 3  # jobs that hold a quota, in the record of a job
MAX_FILES_SEEN = 1000  # files of a checkpoint folder among which the newest is sought
MAX_SHOWN = 100  # slow jobs, and separated pairs
HIDDEN_NAME = "of another user"  # in place of the name of another user's job


def job_record(
    loop: Loop, number: int, now: float, progress_until_s: float = math.inf, visible_to: str | None = None
) -> dict[str, Any]:
    """Return everything about one job, for one user or (None) an admin. Its progress is known until `progress_until_s`."""
    state, job, a = loop.state, loop.state.job_of[number], loop.state.columns
    phase = Phase(int(a["phase"][number]))
    done = float(a["base_steps"][number] + a["rate"][number] * max(0.0, min(now, progress_until_s) - a["since_s"][number]))
    held = state.device_map.of(number) if phase is Phase.RUNNING else np.empty(0, dtype=np.int64)
    finished_unknown = phase is Phase.FINISHED and job.steps == UNKNOWN_STEPS
    rate, failure = float(a["rate"][number]), state.last_failure.get(number)
    failed_last = phase is Phase.FAILED and failure is not None and failure.code != 0  # the state counts only retried failures
    record = {
        "number": number,
        "name": job.name,
        "phase": phase.name.lower(),
        "user": job.user,
        "account": job.account,
        "kind": job.kind,
        "workers": job.workers,
        "mode": job.mode,
        "priority": job.priority,
        "weight": job.weight,
        "held_by": state.held.get(number),
        "now_s": now,
        "submitted_s": float(a["submitted_s"][number]),
        "first_started_s": finite_or_none(float(a["first_started_s"][number])),
        "ended_s": finite_or_none(float(a["ended_s"][number])),
        "steps": job.steps,
        "steps_known": job.steps != UNKNOWN_STEPS,
        "steps_done": state.reported_steps.get(number) if finished_unknown else min(done, job.steps),
        "rate": rate,
        "left_s": max(0.0, job.steps - done) / rate if rate > 0 and job.steps != UNKNOWN_STEPS else None,
        "starts": int(a["starts"][number]),
        "preemptions": int(a["preemptions"][number]),
        "failures": int(a["failures"][number]) + failed_last,
        "accelerator_s": service_of(state, number, min(now, progress_until_s)),
        "type": state.cluster.type_names[int(a["type"][number])] if len(held) else None,
        "nodes": sorted({state.cluster.nodes[int(node)].name for node in state.cluster.node_of[held]}),
        "accelerators": held.tolist(),
        "after": list(job.after),
        "array": array_of(job),
    }
    if math.isfinite(job.max_slowdown):
        record["max_slowdown"] = job.max_slowdown
        if slow := state.interference.slow.get(number):
            record["slowdown"] = {"factor": slow[1], "for_s": max(0.0, now - slow[0])}
        if took := [took_s for _, other, took_s in state.interference.separations if other == number]:
            record["separations"] = {"count": len(took), "last_took_s": took[-1]}
    if shares := _colocated(state, number, held, visible_to):
        record["colocated_with"] = shares
    overran = bool(a["base_steps"][number] > job.steps) and job.steps != UNKNOWN_STEPS
    regimes = state.adaptations.regimes.get(number, ())  # the phases of a job that changes its batch size (Shockwave)
    if regimes:
        record["regimes"] = [{"batch_size": regime.batch_size, "from_steps": regime.from_steps} for regime in regimes]
    if job.schedule:
        record["schedule"] = [{"batch_size": size, "share": share} for size, share in job.schedule]
    if flags := flags_of(job, regimes, overran, done, ended=phase > Phase.RUNNING):
        record["flags"] = list(flags)
    reason = why(loop, number, now, visible_to)
    if failure is not None:
        failure_text = reason["facts"]["how"] if reason is not None and failure.why == TIME_LIMIT else failure.why
        where = {"node": node_of(state, failure), "rank": failure.rank, "launch": failure.start}
        record["last_failure"] = {"why": failure_text, **dict(failure.facts), **where}
    if reason is not None:
        record["reason"] = reason
    if lost := loop.state.lost_work.get(number):  # see `drop_saved_work`
        record["lost_work"] = {"seconds": lost[0], "preemptions": lost[1]}
    if phase in (Phase.QUEUED, Phase.WAITING):
        since_s = float(a["waiting_since_s"][number])
        record["next_decision_s"] = finite_or_none(loop.earliest_decision_s(since_s, now) - now)  # after an event
        record["latest_decision_s"] = finite_or_none(loop.latest_decision_s(since_s, now) - now)  # at the latest
    return record


def drop_saved_work(records: Iterable[dict[str, Any]], checkpoints: str) -> None:
    """Take lost work out of the records of jobs with files in their checkpoint folder: a script without a lease may have saved
    there. It may take long, as below."""
    for record in records if checkpoints else ():
        if (record.get("lost_work") or record.get("lost_work_s")) and any(Path(checkpoints, str(record["number"])).glob("*")):
            record.pop("lost_work", None)
            record |= {"lost_work_s": 0.0} if "lost_work_s" in record else {}


def newest_checkpoint(folder: str) -> str | None:
    """Return the name of the newest file of a job's checkpoint folder, empty if it has none; None if it cannot be seen here.
    It may take long, if the folder is on another machine: the loop must not wait for it."""
    try:
        if not Path(folder).is_dir():
            return "" if Path(folder).parent.is_dir() else None
        with os.scandir(folder) as files:
            newest = max(islice(files, MAX_FILES_SEEN), key=lambda file: (file.stat().st_mtime, file.name), default=None)
        return newest.name if newest else ""
    except OSError:
        return None


def exit_code(phase: Phase, status: int) -> int | None:
    """Return the exit code of an ended job; None if no process of it failed by itself, as at a time limit."""
    return 0 if phase is Phase.FINISHED else (status or None) if phase is Phase.FAILED else None


def job_task(plane: ControlPlane, number: int, visible_to: str | None = None) -> dict[str, Any]:
    """Return what a record of one job has besides: its task, clock times, limits, checkpoint, metrics and exit code. Of its
    environment only the names are shown."""
    state, job = plane.loop.state, plane.loop.state.job_of[number]
    a, phase = state.columns, Phase(int(state.columns["phase"][number]))
    task = task_of(job) if job.command else Task(())
    failure, last = state.last_failure.get(number), int(state.device_map.last[number])
    run_s = float(a["settled_run_s"][number])
    checkpoint = f"{plane.backend.checkpoints}/{number}" if plane.backend.checkpoints else None
    if a["held"][number]:
        run_s += max(0.0, min(plane.backend.now, plane.progress_until_s) - float(a["run_started_s"][number]))
    return {
        "command": list(task.command),
        "shell": task.shell,
        "directory": task.directory,
        "image": task.container.image if task.container is not None else "",
        "code": task.code,
        "environment": sorted(task.environment),
        "allowed_types": list(job.allowed_types),
        "memory_gb": job.memory_gb,
        "cpus": job.cpus,
        "host_memory_gb": job.host_memory_gb,
        "gpus": _gpus(state, number) if phase is Phase.RUNNING else {},
        "unreachable": _unreachable(plane, number) if phase is Phase.RUNNING else {},
        "not_begun": plane.hub.engines.why_not_begun(number) if phase is Phase.RUNNING else {},
        "engine_problems": plane.hub.engines.problems if phase in (Phase.QUEUED, Phase.WAITING) else [],
        "quota_jobs": _quota_jobs(plane, number, visible_to) if phase is Phase.QUEUED else [],
        "last_node": state.cluster.nodes[int(state.cluster.node_of[last])].name if a["starts"][number] else None,
        "exit_code": exit_code(phase, failure.code if failure else 0),
        "submitted_at": clock(plane, a["submitted_s"][number]),
        "started_at": clock(plane, a["first_started_s"][number]),
        "ended_at": clock(plane, a["ended_s"][number]),
        "deadline_at": clock(plane, a["submitted_s"][number] + job.deadline_s),
        "run_s": run_s,
        "limited_s": run_s - state.uncounted_s(number),
        "time_limit_s": finite_or_none(job.time_limit_s),
        "retries": job.retry_limit,
        "outputs": list(task.outputs),
        "prediction": prediction_record(state, number) if job.prediction else None,
        "checkpoint": checkpoint,
        "metrics": {
            name: float(column[number])
            for name, column in sorted(state.store.metrics.items())
            if math.isfinite(column[number]) and not name.startswith("loss.")  # derived by the state
        },
    }


def prediction_record(state: State, number: int) -> dict[str, Any]:
    """What is predicted of a job on a GPU of its own, with the ends of 80 % intervals, and what was measured there."""
    job, found = state.job_of[number], job_prediction(state.job_of[number].prediction)
    seen = {name: float(column[number]) for name, column in state.store.metrics.items() if name in MEASURED_METRICS}
    alone = [
        rate
        for kind, workers, type_name, spread, rate in measured_rates(state.observations)
        if (kind, workers, type_name, spread) == (job.kind, job.workers, found.device, False)
    ]
    busy, taken_gb = (finite_or_none(seen.get(name, math.nan)) for name in (BUSY, TAKEN_GB))
    memory = {"predicted": found.memory_gb, "measured": taken_gb}
    record: dict[str, Any] = {"type": found.device, "memory_gb": memory}
    for name, measured in (("utilization", None if busy is None else 100 * busy), ("steps_per_s", alone[0] if alone else None)):
        low, middle, high = (getattr(found, f"{name}{end}") for end in ("_low", "", "_high"))
        record[name] = {"predicted": middle, "low": low, "high": high, "measured": measured}
    if taken_gb is not None and taken_gb > found.memory_gb:
        record["note"] = f"it uses {taken_gb:.1f} GB of GPU memory, more than the {found.memory_gb:.1f} GB that were predicted"
    return record


def _unreachable(plane: ControlPlane, number: int) -> dict[str, float]:
    """The nodes of a running job whose agents are unreachable, and for how many seconds."""
    nodes = np.unique(plane.cluster.node_of[plane.loop.state.device_map.of(number)]).tolist()
    return {plane.cluster.nodes[n].name: silent_s for n in nodes if 0 < (silent_s := plane.hub.silent_s(n)) < math.inf}


def _quota_jobs(plane: ControlPlane, number: int, visible_to: str | None = None) -> list[str]:
    """The first admitted jobs of the same user, model or size, if that quota is why a job is not admitted."""
    job_of, reason = plane.loop.state.job_of, why_in(plane.loop, number, plane.backend.now)
    what = "" if reason is None or reason.code is not Code.NOT_ADMITTED else str(dict(reason.facts).get("what", ""))
    job, size = job_of[number], re.match(r"jobs that request (\d+) GPUs or more", what)
    if size:
        holds = [other for other in _live_jobs(plane) if other.workers >= int(size[1])]
    elif what.endswith(f" of model {model_of(job.kind)!r}"):
        holds = [other for other in _live_jobs(plane) if model_of(other.kind) == model_of(job.kind)]
    elif what.endswith(f" of user {job.user!r}"):
        holds = [other for other in _live_jobs(plane) if other.user == job.user]
    else:
        return []
    return [other.name if visible_to in (None, other.user) else f"a job {HIDDEN_NAME}" for other in holds[:MAX_HOLDERS]]


def _live_jobs(plane: ControlPlane) -> list[Job]:
    return [plane.loop.state.job_of[n] for n in sorted(plane.loop.state.live.tolist())]


def clock(plane: ControlPlane, second: float) -> float | None:
    """A second as Unix time."""
    return finite_or_none(plane.origin + float(second))


def _gpus(state: State, number: int) -> dict[str, list[int]]:
    """The GPUs of a running job by node, counted from 0 on each."""
    found: dict[str, list[int]] = {}
    for place in sorted(state.device_map.of(number).tolist()):
        node = int(state.cluster.node_of[place])
        found.setdefault(state.cluster.nodes[node].name, []).append(place - int(state.cluster.first_of[node]))
    return found


def _colocated(state: State, number: int, held: Ints, visible_to: str | None = None) -> list[str]:
    """The other jobs on a job's accelerators, by name."""
    if not (state.device_map.shared and len(held)):
        return []
    there = np.zeros(state.cluster.size, dtype=np.bool_)
    there[held] = True
    others = [state.job_of[other] for other in state.device_map.on(there).tolist() if other != number]
    return [other.name if visible_to in (None, other.user) else HIDDEN_NAME for other in others]


def why(loop: Loop, number: int, now: float, visible_to: str | None = None) -> dict[str, Any] | None:
    """Return why a job does not run: stage, code, facts and a sentence; None if it runs or has finished."""
    reason = why_in(loop, number, now)
    if reason is None:
        return None
    head = None if loop.plan is None else loop.plan.head
    if visible_to is not None and head is not None and loop.state.job_of[head].user != visible_to:
        reason = replace(reason, facts=tuple((name, HIDDEN_NAME if name == "head" else fact) for name, fact in reason.facts))
    return {"by": reason.by, "code": str(reason.code), "facts": dict(reason.facts), "text": reason.text}


def service_of(state: State, number: int, now: float) -> float:
    """Return the accelerator seconds of a job."""
    a = state.columns
    running = float(a["held"][number] * max(0.0, now - a["run_started_s"][number])) if a["held"][number] else 0.0
    return float(a["settled_accelerator_s"][number]) + running


def node_records(plane: ControlPlane, visible_to: str | None = None) -> list[dict[str, Any]]:
    """Return all nodes that are not removed, with the jobs on each (including leaving ones) of one user or (None) all users."""
    state = plane.loop.state
    holders = state.device_map.occupancy
    free = state.up & (holders == 0)
    records = []
    for number, node in enumerate(state.cluster.nodes):
        if node.removed:
            continue
        mine = state.cluster.node_of == number
        # An agent may still run jobs of another journal.
        here = plane.backend.launches.jobs_on(number)
        there = state.job_of.keys() & {*state.device_map.on(mine).tolist(), *here}
        jobs = {job: state.job_of[job].name for job in sorted(there) if visible_to in (None, state.job_of[job].user)}
        records.append(
            {
                "name": node.name,
                "type": node.type,
                "accelerators": node.accelerators,
                "rack": node.rack,
                "up": bool(state.present[mine].any()) and number not in state.backoffs,
                "drained": bool(state.drained[mine].any()),
                "drain": _drain(plane, state.drains.get(number)),
                "backed_off": number in state.backoffs,
                "jobs": list(jobs.values()),
                "stopping": [name for job, name in jobs.items() if here.get(job)],
                "starting": [name for job, name in jobs.items() if job not in here],  # its GPUs are not free yet
                "connected": number in plane.hub.connected,
                "temporary": node.temporary,
                "unreachable_s": finite_or_none(plane.hub.silent_s(number)),
                "free": int(np.count_nonzero(free[mine])),
                "shared": int(np.count_nonzero(holders[mine] > 1)),
                "limits": plane.hub.heartbeats.get(number, Heartbeat()).limits or None,  # by cgroups; null: not reported
                "host": host_record(plane, number, jobs),
            }
        )
        if (engine := plane.hub.engines.of(number)) is not None and engine.problem:
            records[-1]["engine_problem"] = engine.problem
        if (failures := plane.backend.node_backoff.of(number)) is not None:
            left_s = max(0.0, failures.until_s - plane.backend.now)
            records[-1] |= {"launch_error": failures.why, "backoff_s": left_s}
    return records


def host_record(plane: ControlPlane, node: int, jobs: Mapping[int, str]) -> dict[str, Any] | None:
    """What is used of a node's CPUs, memory and disk, also by some of its jobs; None if its agent does not say or is away."""
    usage = plane.hub.heartbeats.get(node, Heartbeat()).host if node in plane.hub.connected else None
    if usage is None:
        return None
    here = {one.job: {"cpus": one.cpus, "memory_gb": one.memory_gb} for one in usage.launches if one.job in jobs}
    names = ("cpu", "load", "memory_gb", "memory_total_gb", "disk_gb", "disk_total_gb")
    warnings = [_WARNINGS[what].format(share) for what, share in usage.nearly_full.items()]
    return {
        **{name: getattr(usage, name) for name in names},
        "jobs": {jobs[job]: found for job, found in here.items()},
        "warnings": warnings,
    }


_WARNINGS = {
    "disk": "{:.0%} of the disk with its agent's folder is used: jobs may be unable to write",
    "memory": "{:.0%} of its memory is used: the kernel may end jobs",
}


def _drain(plane: ControlPlane, drain: Drain | None) -> dict[str, Any] | None:
    """Why a node is drained, by which user, from and until when; None if nothing of that was given."""
    if drain is None:
        return None
    start, end = (None if second is None else plane.origin + second for second in (drain.from_s, drain.until_s))
    return {"reason": drain.reason, "by": drain.by, "from": start, "until": end}


def rates(state: State, visible_to: str | None = None) -> list[dict[str, Any]]:
    """Return the measured steps per second, for the job types of one user or (None) of all users."""
    kinds = {job.kind for job in state.job_of.values() if job.user == visible_to}
    return [
        {
            "kind": kind,
            "workers": workers,
            "type": type_name,
            "placement": "spread" if spread else "consolidated",
            "steps_per_s": rate,
        }
        for kind, workers, type_name, spread, rate in measured_rates(state.observations)
        if visible_to is None or kind in kinds
    ]


def interference(plane: ControlPlane, visible_to: str | None) -> dict[str, Any]:
    """What the interference monitor found: jobs that are slower than their `max_slowdown`, pairs that may not share a GPU, and
    how many jobs were separated so far. Jobs of other users have no name."""
    state, now = plane.loop.state, plane.backend.now
    record = state.interference

    def about(number: int) -> dict[str, Any]:
        job = state.job_of[number]
        return {"number": number, "name": job.name if visible_to in (None, job.user) else ""}

    slow = [
        {
            **about(n),
            "slowdown": factor,
            "max_slowdown": finite_or_none(state.job_of[n].max_slowdown),
            "for_s": max(0.0, now - since_s),
        }
        for n, (since_s, factor) in sorted(record.slow.items())
    ]
    pairs = [[about(number) for number in pair] for pair in sorted(record.separated)]
    return {"slow": slow[:MAX_SHOWN], "pairs": pairs[:MAX_SHOWN], "slow_count": len(slow), "pair_count": len(pairs)} | {
        "separations": record.count,
        "last_took_s": record.separations[-1][2] if record.separations else None,
    }


def overview(plane: ControlPlane, visible_to: str | None) -> dict[str, Any]:
    """Return nodes with the jobs on each accelerator, live jobs and the last decisions, for one user or (None) an admin."""
    state, now = plane.loop.state, plane.backend.now
    nodes = node_records(plane, visible_to)
    holders: list[list[str]] = [[] for _ in range(state.cluster.size)]
    for number, place in zip(*(column.tolist() for column in state.device_map.places(state.running))):
        job = state.job_of[number]
        holders[place].append(job.name if visible_to in (None, job.user) else "")
    for record in nodes:
        number = state.cluster.number_of_node[record["name"]]
        mine = np.flatnonzero(state.cluster.node_of == number).tolist()
        measured = plane.hub.heartbeats.get(number, Heartbeat())
        record |= {
            "holders": [holders[place] for place in mine],
            "utilization": list(measured.utilization),
            "memory_gb": list(measured.memory_gb),
        }
    alive = [n for n in sorted((*state.live.tolist(), *state.queue.tolist())) if visible_to in (None, state.job_of[n].user)]
    running_first = sorted(alive, key=lambda n: (state.columns["held"][n] == 0, n))
    return {
        "second": now,
        "policy": policy_of(state.scheduler),
        "nodes": nodes,
        "jobs": [job_record(plane.loop, n, now, plane.progress_until_s, visible_to) for n in running_first[:MAX_JOBS_SHOWN]],
        "decisions": plane.decisions.records(state, visible_to),
    }


def usage(state: State, now: float) -> list[dict[str, Any]]:
    """Return accelerator hours by user and account, and how many jobs used them. Each co-located job counts fully."""
    hours: dict[tuple[str, str], list[float]] = {}
    for number, job in state.job_of.items():
        if spent_s := service_of(state, number, now):
            entry = hours.setdefault((job.user, job.account), [0, 0.0])
            entry[0] += 1
            entry[1] += spent_s / 3600
    return [
        {"user": user, "account": account, "jobs": int(jobs), "accelerator_hours": spent}
        for (user, account), (jobs, spent) in sorted(hours.items())
    ]
