"""Launches as jobs of Slurm: CPU seconds of an observation of 5,000 nodes and 10,000 waiting jobs, whose text programs of this
script print; and, as root on Debian, seconds from the submission of a job to its first step on a real Slurm cluster."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))
from cluster_at_work import ClusterAtWork, wait_for

from fairlead.runtime.drivers.slurm_driver import SlurmDriver
from slurm_bed import SlurmBed

NODES, WAITING, ORDERS = 5_000, 10_000, 20


def observation(folder: Path) -> None:
    """Print the CPU seconds of an observation, with those of its programs."""
    nodes = "".join(f"n{number}|gpu*|gpu:a100:8(S:0-1)|mixed|128|1000000|none\n" for number in range(NODES))
    row = "{:20}|{:20}|{:12}|{:32}|{:60}|{:400}\n"
    jobs = "".join(
        row.format(str(number), "PENDING", "0", "ann", "Resources", f"journal/{number}/1/n{number % NODES}")
        for number in range(WAITING)
    )
    mark = "mark=${5#*State:20}; mark=${mark%%,*}; "  # between two values, as --Format says
    for name, text, run in (("sinfo", nodes, "exec cat"), ("squeue", jobs, f'{mark}exec sed "s/|/$mark/g"')):
        (folder / f"{name}.txt").write_text(text)
        (folder / name).write_text(f"#!/bin/sh\n{run} {folder}/{name}.txt\n")
        (folder / name).chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    took = []
    for _ in range(5):
        driver = SlurmDriver("gpu", user_accounts=True, log_folder=str(folder / "logs"))
        before = _cpu_s()
        machines, tasks = driver.observe("journal")
        took.append(_cpu_s() - before)
        assert (len(machines), len(tasks)) == (NODES, WAITING)
    os.environ["PATH"] = os.environ["PATH"].partition(":")[2]
    print(f"observe {NODES} nodes and {WAITING} waiting jobs: {statistics.median(took):.2f} CPU s (most {max(took):.2f})")


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def orders(slurm: SlurmBed, root: Path) -> None:
    """Print the seconds from a submission to the first step, of jobs that are submitted one after the other."""
    keys = f"partition=gpu,user_accounts=no,log_folder={root}/logs,conf={slurm.environment['SLURM_CONF']}"
    took = []
    with ClusterAtWork(root, machines="", engine=f"slurm:{keys},setup=export FAIRLEAD_ALLOW_ROOT_JOBS=1") as cluster:
        wait_for(lambda: [node["up"] for node in cluster.nodes().values()] == [True] * 4, "nodes", cluster._logs)
        for number in range(ORDERS):
            begun, name = time.monotonic(), f"one-{number}"
            cluster.submit(cluster.job(name, steps=1))
            wait_for(lambda name=name: bool(cluster.steps_of(name)), "its first step", cluster._logs)
            took.append(time.monotonic() - begun)
        cluster.until_all_ended()
    slurm.cancel_all()
    p95 = sorted(took)[int(0.95 * (len(took) - 1))]
    print(
        f"{ORDERS} jobs: first step {statistics.median(took):.1f} s after the submission (p95 {p95:.1f}, most {max(took):.1f})"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="native-") as place:
        observation(Path(place))
        if (missing := SlurmBed.missing()) is not None:
            sys.exit(missing)
        with SlurmBed() as bed:
            orders(bed, Path(place))
