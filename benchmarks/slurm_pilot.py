"""Pilots on a real Slurm cluster of 4 nodes with 5 GPUs each, as root on Debian: how fast their nodes join, and whether 20 jobs
save when an allocation ends: by `scancel`, by its walltime, and in a chain. Every step must be done exactly once. Takes 10
minutes, most of them waiting for walltimes, which Slurm counts in minutes. `--only scancel` runs one case."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))
from pilot_at_work import PilotAtWork

from slurm_bed import SlurmBed

GPUS, JOBS = 5, 20


@contextmanager
def at_work(slurm: SlurmBed, **how: float) -> Iterator[PilotAtWork]:
    with tempfile.TemporaryDirectory(prefix="pilot-") as folder, pytest.MonkeyPatch.context() as patch:
        place = Path(folder)
        place.chmod(0o755)
        with PilotAtWork(place, slurm, patch, **how) as cluster:
            yield cluster


def joining(slurm: SlurmBed) -> None:
    """Seconds from the start of the allocation, which Slurm rounds down, to the last of 4 nodes in the cluster."""
    took = []
    with at_work(slurm) as cluster:
        for _ in range(5):
            pilot = cluster.up(4, gpus=GPUS)
            cluster.until_joined(pilot, 4)
            took.append(time.time() - cluster.status()[pilot]["start"])
            cluster.command("down")
            cluster.until_left()
    print(
        f"4 nodes joined {statistics.median(took):.1f} s after the allocation (median of 5, {min(took):.1f} to {max(took):.1f})"
    )


def saved(cluster: PilotAtWork, names: list[str], end: str) -> None:
    """Print how many jobs saved when their pilots ended, then let a new pilot finish them; the checks follow at the end."""
    jobs = cluster.jobs()
    failed = sum(jobs[name]["phase"] == "failed" or jobs[name]["failures"] > 0 for name in names)
    kept = sum(jobs[name]["steps_done"] == len(cluster.steps_of(name)) > 0 for name in names)
    print(f"{end}: {kept} of {len(names)} jobs saved all their steps, {failed} count as failed", flush=True)
    cluster.until_joined(cluster.up(4, gpus=GPUS), 4)
    for name in names:
        cluster.hurry(name)
    cluster.until_all_ended()


def cancelled(slurm: SlurmBed) -> None:
    """`scancel`: every process of the pilot gets SIGTERM at once."""
    with at_work(slurm) as cluster:
        pilots = [cluster.up(2, gpus=GPUS), cluster.up(2, gpus=GPUS)]
        for pilot in pilots:
            cluster.until_joined(pilot, 2)
        names = cluster.counts(JOBS)
        cluster.until_counting(names)
        slurm.run("scancel", *pilots)
        cluster.until_left()
        saved(cluster, names, "scancel")


def timed_out(slurm: SlurmBed) -> None:
    """The walltime, which was shortened meanwhile, so that agents do not expect it: they get Slurm's warning signal only."""
    with at_work(slurm) as cluster:
        pilot = cluster.up(4, gpus=GPUS)
        cluster.until_joined(pilot, 4)
        names = cluster.counts(JOBS)
        cluster.until_counting(names)
        slurm.run("scontrol", "update", f"JobId={pilot}", "TimeLimit=2")
        cluster.until_left()
        slurm.until("the pilot ends", lambda: not slurm.alive())
        saved(cluster, names, f"walltime with --signal=B:TERM@60 ({slurm.jobs()[pilot].lower()})")


def chained(slurm: SlurmBed) -> None:
    """Three pilots of two minutes, of which the next begins a minute before the end of the one before."""
    with at_work(slurm, grace_s=10.0) as cluster:
        cluster.until_joined(cluster.up(2, "--chain", 3, "--overlap", "1m", gpus=GPUS, time="2m"), 2)
        names = cluster.counts(GPUS * 2, steps=100_000)
        cluster.until_counting(names)
        slurm.until("three pilots have started", lambda: len(slurm.jobs()) > 2)
        slurm.until("all pilots have ended", lambda: not slurm.alive())
        jobs = cluster.jobs()
        starts = [jobs[name]["starts"] for name in names]
        saved(cluster, names, f"3 chained pilots (jobs started {min(starts)} to {max(starts)} times)")


CASES: dict[str, Callable[[SlurmBed], None]] = {"join": joining, "scancel": cancelled, "walltime": timed_out, "chain": chained}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=list(CASES), action="append")
    chosen = options.parse_args()
    if (missing := SlurmBed.missing()) is not None:
        sys.exit(missing)
    for name in chosen.only or CASES:
        with SlurmBed(gpus=GPUS, MinJobAge=600) as slurm:
            CASES[name](slurm)


if __name__ == "__main__":
    main()
