"""Data-parallel training from the trace of one worker's step: memory and communication of each worker, and the speed with more
workers. DDP keeps whole copies and sums gradients; FSDP (full sharding) keeps a share and gathers one block at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairlead.core.errors import require
from fairlead.prediction.step_prediction import SHARDINGS, StepPrediction

if TYPE_CHECKING:
    from fairlead.prediction.fake_step import StepTrace

MB = 2**20
BUCKET_MB = 25.0  # of DDP
SIZES = (1, 2, 4, 8)
NCCL_MB = 400.0  # buffers of the communicator
FSDP_RESERVED = 1.155  # memory of gathered blocks is not reused at once; median of six trainings on an H200, 1.11 to 1.30


@dataclass(frozen=True)
class WorkerLink:
    """What collectives reach between the GPUs: bytes per second of each worker, inside a node and between nodes."""

    inside: float = 350e9  # NVLink 4
    between: float = 45e9  # a 400 Gb/s adapter for each GPU
    node: int = 8
    latency_s: float = 20e-6  # of each collective

    def bytes_per_s(self, workers: int) -> float:
        """The rate of a ring of so many workers."""
        return self.inside if workers <= self.node else self.between


def distributed(
    alone: StepPrediction, trace: StepTrace, workers: int, sharding: str = "ddp", link: WorkerLink | None = None
) -> StepPrediction:
    """The prediction for each of several workers, with the same batch on each.

    Args:
        alone: The prediction for one worker.
        trace: The trace that it was made from.
        workers: Workers, one GPU each.
        sharding: "ddp" or "fsdp".
        link: The interconnect.

    Returns:
        Memory and communication of each worker, and steps per second of all.

    Raises:
        InputError: If the sharding is unknown.
    """
    require(sharding in SHARDINGS[1:], "--sharding", " or ".join(SHARDINGS[1:]), None, sharding)
    link = link or WorkerLink()
    gradients, parameters = trace.gradient_bytes / MB, trace.parameter_bytes / MB
    if sharding == "ddp":
        extra = {"gradients": gradients}  # buckets are filled from the gradients, and stay
        parts = {**alone.parts_mb, "gradients": alone.parts_mb.get("gradients", 0.0) + extra["gradients"]}
        ring = 2 * (workers - 1) / workers
        sent, collectives = ring * gradients, max(1.0, gradients / BUCKET_MB)
        changed = gradients if workers > 1 else 0.0
    else:
        share = 1.0 / workers
        blocks = [one / MB for one in trace.blocks]
        # Two blocks are gathered at a time, the next one early; a block's gradients are whole until they are reduced.
        gathered = sum(sorted(blocks)[-2:]) + max(blocks)
        sharded = ("parameters", "gradients", "optimizer")
        parts = {name: size * (share if name in sharded else 1.0) for name, size in alone.parts_mb.items()}
        parts["workspace"] = parts.get("workspace", 0.0) + (gathered if workers > 1 else 0.0)
        changed = sum(parts.values()) - sum(alone.parts_mb.values())
        ring = (workers - 1) / workers
        sent, collectives = ring * (2 * parameters + gradients), 3.0 * len(blocks)
    if workers == 1:
        return replace(alone, workers=1, sharding=sharding)
    slower = _slower(alone, sent, collectives, workers, link)
    allocated = max(0.0, alone.allocated_mb + changed)
    reserved = max(allocated, alone.reserved_mb + changed)
    fragments = reserved * (FSDP_RESERVED - 1) if sharding == "fsdp" else 0.0
    return replace(
        alone,
        allocated_mb=allocated,
        reserved_mb=reserved + fragments,
        memory_mb=max(reserved, alone.memory_mb + 1.06 * changed + NCCL_MB) + fragments,
        parts_mb=parts,
        steps_per_s=alone.steps_per_s / slower,
        steps_per_s_low=alone.steps_per_s_low / slower,
        steps_per_s_high=alone.steps_per_s_high / slower,
        utilization_low=alone.utilization_low / slower,
        workers=workers,
        sharding=sharding,
        communication_mb=sent,
    )


def _slower(alone: StepPrediction, sent_mb: float, collectives: float, workers: int, link: WorkerLink) -> float:
    """How much longer a step takes: two thirds of it, the backward pass, hide communication; the rest is exposed."""
    seconds = 1.0 / alone.steps_per_s
    talking = sent_mb * MB / link.bytes_per_s(workers) + collectives * link.latency_s
    hidden = 0.6 * seconds
    return 1.0 + (max(0.0, talking - hidden) + 0.05 * min(talking, hidden)) / seconds


def speeds(
    alone: StepPrediction,
    trace: StepTrace,
    sharding: str = "ddp",
    sizes: Sequence[int] = SIZES,
    link: WorkerLink | None = None,
    memory_mb: float = math.inf,
) -> dict[int, float]:
    """Steps per second of all workers together, by their number: what an elastic policy begins with. Numbers of workers with
    which the training does not fit into a GPU's memory are left out."""
    found = {size: distributed(alone, trace, size, sharding, link) for size in sizes}
    return {size: size * one.steps_per_s for size, one in found.items() if one.memory_mb <= memory_mb and one.steps_per_s > 0}
