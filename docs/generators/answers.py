"""The fields of the main answers of the HTTP API. A test compares them with the answers of a control plane."""

from __future__ import annotations

from collections.abc import Mapping

JOB: Mapping[str, str] = {
    "number": "number of the job",
    "name": "name of the job",
    "phase": "`queued`, `waiting`, `running`, `finished`, `failed`, `cancelled` or `refused`",
    "user": "user who submitted it",
    "account": "account that it counts for",
    "kind": "job type",
    "workers": "requested number of workers",
    "mode": "`static`, `accordion`, `gns`, `expert` or `elastic`",
    "priority": "priority",
    "weight": "weight",
    "held_by": "user who holds the job, or null",
    "now_s": "second of this answer on the cluster's clock",
    "submitted_s": "second of submission",
    "first_started_s": "second of the first start, or null",
    "ended_s": "second of the end, or null",
    "steps": "declared steps",
    "steps_known": "whether steps were declared",
    "steps_done": "steps done so far; null for a finished job without declared steps",
    "rate": "steps per second; 0 if the job does not run or has not reported",
    "left_s": "seconds left at this rate, or null",
    "starts": "number of launches",
    "preemptions": "number of preemptions",
    "failures": "number of failed attempts",
    "accelerator_s": "GPU time in seconds",
    "type": "GPU type of a running job, or null",
    "nodes": "nodes of a running job",
    "accelerators": "numbers of its GPUs in the cluster",
    "after": "numbers of the jobs that must finish first",
    "array": "array of the job with its name and index, or null",
}
"""Fields of a job in `GET /v1/jobs`."""

JOB_SOMETIMES: Mapping[str, str] = {
    "max_slowdown": "tolerated slowdown by co-location, if limited",
    "slowdown": "how many times slower than alone (`factor`) and for how long (`for_s`), if that is above `max_slowdown`",
    "separations": "how often the job was separated for that (`count`), and how long the last slowdown took (`last_took_s`)",
    "colocated_with": "names of the jobs on the same GPUs",
    "regimes": "batch sizes that the job announced, with their first steps",
    "schedule": "declared batch sizes with their shares of the steps",
    "flags": "how the job departed from its declaration",
    "last_failure": "how, where and in which launch the last attempt failed",
    "reason": "why the job does not run: `by` (stage), `code`, `facts` and `text`, which `fairlead why` prints",
    "next_decision_s": "seconds to the next decision after an event",
    "latest_decision_s": "seconds to the next decision at the latest, or null",
}
"""Fields of a job that are absent if they do not apply."""

ONE_JOB: Mapping[str, str] = {
    "command": "command and arguments",
    "directory": "directory on the nodes",
    "image": "image of its container",
    "shell": "whether the command is a line for a shell",
    "code": "digest of the code that was sent, or empty",
    "environment": "names of the variables",
    "allowed_types": "GPU types that the job may use; empty: any",
    "memory_gb": "GPU memory that it needs",
    "cpus": "CPU cores that each worker needs",
    "host_memory_gb": "host memory that each worker needs",
    "gpus": "GPUs of a running job by node",
    "unreachable": "nodes of a running job whose agents are unreachable, with seconds",
    "not_begun": "nodes on which an engine has not started a running job yet, with the engine's reason",
    "engine_problems": "why engines do not answer, for a job that waits",
    "quota_jobs": "if the quota of its user keeps the job waiting: up to three admitted jobs of the user",
    "last_node": "node of the last launch, or null",
    "exit_code": "exit code of an ended job, or null",
    "submitted_at": "Unix time of submission",
    "started_at": "Unix time of the first start, or null",
    "ended_at": "Unix time of the end, or null",
    "deadline_at": "Unix time of the deadline, or null",
    "run_s": "run time in seconds",
    "limited_s": "run time that counts for the time limit",
    "time_limit_s": "time limit in seconds, or null",
    "retries": "how often the job is retried",
    "checkpoint": "folder of its checkpoints, or null",
    "checkpoint_file": "the newest file in it, empty if there is none; null if the control plane cannot see the folder",
    "outputs": "patterns of the files that it keeps",
    "prediction": "what was predicted of the job (`utilization`, `memory_gb`, `steps_per_s`: `predicted`, `measured`, and the "
    "`low` and `high` ends of an 80 % interval), for GPUs of `type`, with a `note` if the memory was too low; null: nothing",
    "metrics": "last reported value of each metric",
    "earlier": "numbers of earlier jobs with the same name",
}
"""Fields that `GET /v1/jobs/{name}` has in addition."""

NODE: Mapping[str, str] = {
    "name": "name of the node",
    "type": "GPU type",
    "accelerators": "number of GPUs",
    "rack": "rack of the node; empty: none is known",
    "up": "whether the node can run jobs",
    "drained": "whether it is drained",
    "drain": "`reason`, `by` (user), `from` and `until` (Unix time) of a drain, or of an announced one; null: none given",
    "backed_off": "whether it gets no jobs for a while, because launches failed",
    "jobs": "names of your jobs on it; an admin sees all jobs",
    "stopping": "those of these jobs that were asked to stop",
    "starting": "those of these jobs whose GPUs are not free yet",
    "connected": "whether its agent is connected",
    "temporary": "whether the node is removed when its agent leaves, as one of a pilot",
    "unreachable_s": "seconds since the agent was last heard: 0 while it is connected, null if the node was given up",
    "free": "GPUs that are up and have no job",
    "shared": "GPUs with more than one job",
    "limits": "what its agent limits for each job by cgroups; null: not reported",
    "host": "utilization of its CPUs (`cpu`, 0 to 1, and `load`), memory and disk (`memory_gb`, `memory_total_gb`, `disk_gb`, "
    "`disk_total_gb`), usage of jobs with cgroups (`jobs`), and `warnings`; a value that is not measured is null",
}

USAGE: Mapping[str, str] = {
    "user": "user",
    "account": "account",
    "jobs": "number of jobs that used GPUs",
    "accelerator_hours": "GPU hours; a GPU that two jobs share counts for both",
}

LEDGER_ROW: Mapping[str, str] = {
    "user": "user",
    "account": "account",
    "received_gpu_hours": "GPU hours that the jobs held; a GPU that two jobs share counts for both",
    "deserved_gpu_hours": "GPU hours deserved by weight, while the user had admitted jobs",
    "recent_received_gpu_hours": "the first of these, where older hours count less: half after each half-life",
    "recent_deserved_gpu_hours": "the second, in the same way",
    "balance_gpu_hours": "recent deserved minus recent received hours: above 0, the user is owed GPU time",
    "received_ns": "received GPU time in whole nanoseconds: the sum over users is exact",
    "deserved_ns": "deserved GPU time in whole nanoseconds",
}

_LEDGER = (
    "`known_since` and `now` are Unix times, `half_life_s` is from the scheduler file. `users` is a list, and for admins also "
    "`accounts`. `total` has the sums, GPU hours of all nodes that were up (`available_gpu_hours`, `available_ns`), and GPU "
    "hours in which a shared GPU counts once (`physical_gpu_hours`, `physical_ns`). Each entry of `users` has:"
)

LIVE_JOB: Mapping[str, str] = {
    "number": "number of the job",
    "name": "name; empty for another user's job",
    "user": "user who submitted it; empty for another user's job",
    "account": "account; empty for another user's job",
    "job_type": "job type; empty for another user's job",
    "state": "`queued`, `waiting`, `held`, `running`, `finished`, `failed`, `cancelled` or `refused`",
    "gpus": "GPUs that it has, or asks for",
    "gpu_type": "index of its GPU type in `types`; -1 before the first launch and while it waits",
    "devices": "numbers of its GPUs in the cluster, while it runs",
    "submitted": "Unix time of submission; it and all that follows are null or empty for another user's job",
    "started": "Unix time of the start of the present or last launch, or null",
    "ended": "Unix time of the end, or null",
    "priority": "priority",
    "weight": "weight",
    "reason": "code of the reason why it does not run, or empty",
    "progress": "from 0 to 1; null if its steps are not known",
    "launches": "number of launches",
    "preemptions": "number of preemptions",
}
"""Columns of a job in `GET /v1/live`."""

LIVE_NODE: Mapping[str, str] = {
    "index": "number of the node",
    "name": "name of the node",
    "type": "index of its GPU type in `types`",
    "gpus": "number of GPUs",
    "first": "number of its first GPU in the cluster",
    "state": "`up`, `drained`, `unreachable`, `lost`, `backed-off` or `removed`",
    "drain": "reason of the drain, or empty",
    "utilization": "utilization of each GPU in percent, if its agent measures it",
    "memory_gb": "used memory of each GPU, if its agent measures it",
    "rack": "rack of the node, or empty",
    "host": "utilization of its CPUs, memory and disk in percent; null: not measured",
}
"""Columns of a node in `GET /v1/live`."""

METRIC_CURVE: Mapping[str, str] = {
    "time": "Unix times of the reports; a long curve has fewer points",
    "step": "steps that the job had done by then",
    "value": "values; null for one that is not finite",
}
"""A metric of a job in `GET /v1/jobs/{name}/metrics`."""

ANSWERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "GET /v1/jobs": ("`jobs` is a list. Each entry has:", JOB),
    "GET /v1/jobs/{name}": ("All fields of an entry of [`GET /v1/jobs`](#get-v1jobs), and:", ONE_JOB),
    "GET /v1/jobs/{name}/metrics": (
        "`number` is the job. The journal's events begin at the Unix time `known_since`. `metrics` has each metric by name. "
        "A metric has three lists of the same length:",
        METRIC_CURVE,
    ),
    "GET /v1/nodes": ("`nodes` is a list. Each entry has:", NODE),
    "GET /v1/usage": ("`usage` is a list. Each entry has:", USAGE),
    "GET /v1/live": (
        "The data of `reset` has `epoch`, `revision`, `second`, `origin`, `scheduler`, `types`, `decisions`, the names of the "
        "columns (`job_columns`, `node_columns`), and a row for each job and node. It has the last 2,000 jobs that ended in "
        "the last 24 hours. The data of `change` has `second`, new `decisions`, `scheduler` if it was switched, and the rows "
        "that changed. The columns are:",
        {
            **{f"jobs.{name}": meaning for name, meaning in LIVE_JOB.items()},
            **{f"nodes.{name}": meaning for name, meaning in LIVE_NODE.items()},
        },
    ),
    "GET /v1/ledger": (_LEDGER, LEDGER_ROW),
}
"""By request: the form of the answer, and its fields."""
