"""Made-up records for the tests of the report: a toy queue over a cluster, so that their times hang together."""

from __future__ import annotations

import heapq

import numpy as np

from fairlead.core.cluster import AcceleratorType, Cluster
from fairlead.core.job import Phase
from fairlead.core.rng import stream
from fairlead.experiments.run_record import DeviceIntervals, JobOutcomes, RunRecord

PRICES = (
    AcceleratorType("v100", 16, 2.48), AcceleratorType("p100", 16, 1.46), AcceleratorType("k80", 12, 0.45),
)  # fmt: skip
KINDS = ("ResNet-50 (batch size 64)", "Transformer (batch size 32)", "A3C", "CycleGAN", "LM (batch size 20)")


def outcomes(
    submitted: list[float],
    started: list[float],
    ended: list[float],
    *,
    run: list[float] | None = None,
    exclusive: list[float] | None = None,
    workers: list[int] | None = None,
    phase: list[Phase] | None = None,
    deadline: list[float] | None = None,
    names: list[str] | None = None,
    users: list[str] | None = None,
) -> JobOutcomes:
    """Outcomes from the few columns a test is about; the others follow from them."""
    count = len(submitted)
    begin, end = np.array(started, dtype=float), np.array(ended, dtype=float)
    runs = np.array(run, dtype=float) if run is not None else np.nan_to_num(end - begin)
    gang = np.array(workers if workers is not None else [1] * count, dtype=np.int64)
    return JobOutcomes(
        names=tuple(names or (f"job-{i}" for i in range(count))),
        kinds=tuple(KINDS[i % len(KINDS)] for i in range(count)),
        users=tuple(users or ("ada" if i % 3 else "bob" for i in range(count))),
        accounts=("",) * count,
        phase=np.array(phase if phase is not None else [Phase.FINISHED] * count, dtype=np.int64),
        workers=gang,
        weight=np.ones(count),
        submitted_s=np.array(submitted, dtype=float),
        first_started_s=begin,
        ended_s=end,
        run_s=runs,
        accelerator_s=runs * gang,
        exclusive_s=np.array(exclusive, dtype=float) if exclusive is not None else runs.copy(),
        deadline_s=np.array(deadline, dtype=float) if deadline is not None else np.full(count, np.inf),
        preemptions=np.zeros(count, dtype=np.int64),
        moves=np.zeros(count, dtype=np.int64),
        restarts=np.zeros(count, dtype=np.int64),
    )


def record(jobs: JobOutcomes, cluster: str = "2xv100:2", device_intervals: DeviceIntervals | None = None) -> RunRecord:
    return RunRecord("fifo", "by hand", Cluster.parse(cluster), jobs, device_intervals)


def device_intervals(rows: list[tuple[int, int, float, float]]) -> DeviceIntervals:
    """Rows of (job, accelerator, start, end)."""
    ordered = sorted(rows, key=lambda row: row[2])
    job, accelerator, start, end = zip(*ordered) if ordered else ((), (), (), ())
    return DeviceIntervals(
        np.array(job, dtype=np.int64), np.array(accelerator, dtype=np.int64),
        np.array(start, dtype=float), np.array(end, dtype=float),
    )  # fmt: skip


def played(
    scheduler: str, jobs: int = 300, cluster: str = "24xv100:4,20xp100:4,16xk80:4", seed: int = 1, slice_s: float = 7200
) -> RunRecord:
    """A run that looks like one: gangs queue in an order the scheduler's name picks and are cut into slices of time."""
    hardware = Cluster.parse(cluster, PRICES)
    draw = stream(seed, "made-up")
    submitted = np.cumsum(draw.exponential(420.0, jobs)) + 5000
    need = 60 * 10 ** draw.uniform(1.0, 2.9, jobs)
    workers = draw.choice([1, 2, 4, 8], jobs, p=[0.7, 0.1, 0.15, 0.05]).astype(np.int64)
    users = tuple(f"user-{u:02d}" for u in draw.zipf(1.6, jobs).clip(1, 24))
    kinds = tuple(KINDS[k] for k in draw.integers(0, len(KINDS), jobs))
    slowness = np.array([1.0, 1.8, 4.0])[hardware.type_of]
    left, had = need.copy(), np.zeros(jobs)
    started, ended, ran = np.full(jobs, np.nan), np.full(jobs, np.nan), np.zeros(jobs)
    restarts, rows = np.zeros(jobs, dtype=np.int64), []
    free, waiting, releases, now, arrived = list(range(hardware.size)), set[int](), [], 0.0, 0
    order = {"fifo": lambda j: j, "srtf": lambda j: left[j], "las": lambda j: had[j], "largest": lambda j: -workers[j]}
    key = order.get(scheduler, lambda j: (j * 7919) % 1000)
    while arrived < jobs or waiting or releases:
        now = min(submitted[arrived] if arrived < jobs else np.inf, releases[0][0] if releases else np.inf)
        while arrived < jobs and submitted[arrived] <= now:
            waiting.add(arrived)
            arrived += 1
        while releases and releases[0][0] <= now:
            _, job, held = heapq.heappop(releases)
            free.extend(held)
            waiting |= {job} if left[job] > 1e-9 else set()
        free.sort()
        for job in sorted(waiting, key=key):
            if workers[job] > len(free):
                continue
            held, free = free[: workers[job]], free[workers[job] :]
            slow = float(slowness[held].max())
            span = min(left[job] * slow, slice_s * (1 if scheduler != "fifo" else 1e9))
            restarts[job] += not np.isnan(started[job])
            started[job] = now if np.isnan(started[job]) else started[job]
            left[job] -= span / slow
            had[job] += span
            ran[job] += span
            if left[job] <= 1e-9:
                ended[job] = now + span
            rows += [(job, a, now, now + span) for a in held]
            heapq.heappush(releases, (now + span, job, held))
            waiting.discard(job)
    outcome = JobOutcomes(
        names=tuple(f"job-{i:04d}" for i in range(jobs)), kinds=kinds, users=users, accounts=("",) * jobs,
        phase=np.full(jobs, Phase.FINISHED, dtype=np.int64), workers=workers, weight=np.ones(jobs),
        submitted_s=submitted, first_started_s=started, ended_s=ended, run_s=ran, accelerator_s=ran * workers,
        exclusive_s=need, deadline_s=np.full(jobs, np.inf), preemptions=restarts.copy(), moves=0 * restarts, restarts=restarts,
    )  # fmt: skip
    facts = {"rounds": 1200, "decide_s": 0.21, "wall_s": 0.8, "peak_rss_mb": 96.0}
    return RunRecord(scheduler, f"made up, {jobs} jobs", hardware, outcome, device_intervals(rows), facts=facts)
