"""The feasibility check before admission: on which types a job could run on the empty cluster, and if on none, why."""

from __future__ import annotations

from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.reasons import Reason, Reasons


def feasible_types(job: Job, cluster: Cluster) -> int:
    """A mask with bit t set if the job could run on type t."""
    mask = 0
    for code, type_ in enumerate(cluster.types):
        allowed = not job.allowed_types or type_.name in job.allowed_types
        large = job.memory_gb <= type_.memory_gb and job.workers <= cluster.size_of_type[code]
        if allowed and large and cluster.workers_hosted(type_.name, job.cpus, job.host_memory_gb) >= job.workers:
            mask |= 1 << code
    return mask


_SMALLER = "it was predicted; 'fairlead predict module ... --max-batch' prints the largest batch size that fits"


def infeasible_reason(job: Job, cluster: Cluster) -> Reason:
    """Why a job that fits on no type does not."""
    if not cluster.number_of_node:
        return Reasons.unsuitable("the cluster has no nodes yet")
    suits = [t for t in cluster.types if not job.allowed_types or t.name in job.allowed_types]
    if not suits:
        return Reasons.unsuitable(f"it asks for {', '.join(job.allowed_types)}; there are {', '.join(cluster.type_names)}")
    largest = max(int(cluster.size_of_type[cluster.type_code[t.name]]) for t in suits)
    if job.workers > largest and len(cluster.types) == 1:
        return Reasons.needs(job.workers, "GPUs", of_at_most=largest)
    if job.workers > largest:  # all types together may have enough, but a gang runs on one type
        there = ", ".join(f"{cluster.size_of_type[cluster.type_code[t.name]]} {t.name}" for t in suits)
        where = "there are" if len(suits) == len(cluster.types) else "it may use"
        return Reasons.needs(job.workers, "GPUs of one type", of_at_most=largest, there=f"{where} {there}")
    memory = max(t.memory_gb for t in suits)
    if job.memory_gb > memory:
        return Reasons.needs(job.memory_gb, "GB of GPU memory", of_at_most=memory, there=_SMALLER if job.prediction else "")
    hosted = max(cluster.workers_hosted(t.name, job.cpus, job.host_memory_gb) for t in suits)
    wanted = f"{job.cpus:g} CPUs and {job.host_memory_gb:g} GB for a worker"
    if not hosted:
        return Reasons.unsuitable(f"no node has {wanted}")
    if hosted < job.workers:
        return Reasons.unsuitable(f"its nodes have {wanted} {hosted} times at most, and it has {job.workers}")
    return Reasons.unsuitable(f"no throughput above 0 for {job.kind!r} with {job.workers} workers")
