"""What a run leaves behind for people to look at: one row per job, one row per stretch on an accelerator. Columns only; it
does not know whether a simulation, a cluster or a journal filled it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.core.cluster import Cluster, Floats, Ints


@dataclass(frozen=True)
class JobOutcomes:
    """One row per submitted job, in order of submission. Times are seconds; what did not happen is NaN."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    users: tuple[str, ...]
    entities: tuple[str, ...]
    phase: Ints  # core.job.Phase
    workers: Ints
    weight: Floats
    submitted_s: Floats
    first_started_s: Floats
    ended_s: Floats
    run_s: Floats  # time spent holding accelerators
    accelerator_s: Floats  # the same, times the accelerators held
    exclusive_s: Floats  # run time alone on its fastest type, never interrupted
    deadline_s: Floats  # after submission; inf where there is none
    preemptions: Ints  # times it was suspended by a decision, to wait
    moves: Ints  # times it was moved, or changed in size, by a decision
    restarts: Ints  # starts after the first, whatever the cause

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Stretches:
    """Who held which accelerator from when to when; a gang of four has four rows. Sorted by start."""

    job: Ints  # row in JobOutcomes
    accelerator: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True)
class RunRecord:
    """One run of one scheduler on one trace."""

    scheduler: str  # a short label, e.g. "tiresias"
    trace: str
    cluster: Cluster
    jobs: JobOutcomes
    stretches: Stretches | None = None  # absent where nobody asked for the Gantt
    service_by_type: Floats | None = None  # accelerator-seconds, by type of the cluster, where it is known
    facts: Mapping[str, float] = field(default_factory=dict)  # rounds, decide_s, wall_s, peak_rss_mb, …
