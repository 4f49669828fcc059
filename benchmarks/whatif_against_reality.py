"""What-ifs against reality: the predicted effect of a change, and the effect when the change was really made.

    python benchmarks/whatif_against_reality.py [--cases 5] [--jobs 36] [--folder FOLDER]

Jobs are real processes under `fairlead up` that sleep in the place of computing. A case is a change 40 s after the first jobs:
another policy, one more node, a quota. It is run twice with the change and twice without, each on the same jobs. The two kinds
of runs are made side by side.

The prediction is made from the journal of a run with the change, up to the moment before it: rates, start times and decision
times are those seen by then. It also gets the list of the jobs that are still to come, with their steps, as both real runs have
the same. It gets nothing of what happened afterwards. Predicted is the difference of the average JCT of the jobs that had not
ended at that moment and of those that came later, over 20 scenarios, with the 95 % interval for one future.

A case is a hit where the real difference, between the means of the two runs each, is within the interval of the first run. The
table also has each pair of runs against the interval of its own run, and the error of the control: each run without the change
is simulated from that moment in hindsight, and compared with what happened (`whatif --past`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from fairlead.config.schedulers import Part
from fairlead.core import events as ev
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.engine.apply import replay_events
from fairlead.experiments.fork import Fork, ForkChanges
from fairlead.experiments.whatif import WhatIfOptions, past_fork, what_if
from fairlead.journal.recovery import read_journal
from fairlead.runtime.embedded import JOURNAL, embedded
from fairlead.runtime.http_client import ControlPlaneClient

ROUND_S, STEP_S, MOMENT_S, TIMEOUT_S, SCENARIOS = 4.0, 0.25, 40.0, 900.0, 20
USERS = ("ann", "ann", "bob")
ALIVE = ("queued", "waiting", "running")


@dataclass(frozen=True)
class Case:
    """A change of a cluster that begins with a policy; `spare` is a node that is drained until then."""

    name: str
    policy: str
    to: str = ""
    quotas: Mapping[str, int] | None = None
    spare: str = ""

    def changes(self, fork: Fork) -> ForkChanges:
        if self.to:
            return ForkChanges(scheduler=replace(fork.start.scheduler, policy=Part(self.to), name=""))
        return ForkChanges(quotas=self.quotas or {}, restore=(self.spare,) if self.spare else ())


CASES = (
    Case("fifo to srtf", "fifo", "srtf"),
    Case("fifo to las", "fifo", "las"),
    Case("las to fifo", "las", "fifo"),
    Case("one more node", "fifo", spare="v100-2"),
    Case("quota of 2 GPUs", "fifo", quotas={"ann": 2}),
)


def workload(jobs: int, seed: int) -> list[Job]:
    """Jobs of 3 to 40 s, more than four GPUs can do at once; half of them come before the change."""
    draw = stream(seed, "what-if-against-reality")
    times = sorted(draw.uniform(0.0, 2 * MOMENT_S, jobs).tolist())
    run_s = [draw.uniform(3.0, 10.0) if draw.random() < 0.6 else draw.uniform(15.0, 40.0) for _ in times]
    return [
        Job(f"job-{n}", second, float(round(seconds / STEP_S)), "short" if seconds <= 10 else "long", user=USERS[n % 3])
        for n, (second, seconds) in enumerate(zip(times, run_s))
    ]


@dataclass(frozen=True)
class RealRun:
    """A run that is over; the change was made, or would have been, at a moment of its journal."""

    events: Sequence[ev.Event]
    moment: float
    coming: tuple[Job, ...]  # at that moment, by the list

    @property
    def before(self) -> list[ev.Event]:
        return [event for event in self.events if event.time <= self.moment]

    def jct_s(self) -> dict[str, float]:
        state = replay_events(self.events)
        a = state.columns
        return {job.name: float(a["ended_s"][n] - a["submitted_s"][n]) for n, job in state.job_of.items()}

    def counted(self) -> set[str]:
        """The jobs that had not ended at the moment, and those that came later."""
        then = replay_events(self.before)
        there = {then.job_of[n].name for n in (*then.live.tolist(), *then.queue.tolist())}
        return there | {job.name for job in self.coming}


def run(case: Case, jobs: Sequence[Job], root: Path, *, changed: bool) -> RealRun:
    """Run the jobs on real processes."""
    machines = "6xv100:2" if case.spare else "4xv100:2"
    with embedded(root, "--cluster", machines, "--policy", case.policy, "--round", str(ROUND_S)) as plane:
        if case.spare:
            plane.drain(case.spare)
        users = {user: _client(plane, root, user) for user in dict.fromkeys(USERS)}
        now, _ = plane.state()
        begin = (now // ROUND_S + 2) * ROUND_S + 1.0  # at the same place of a round in each run
        began, waiting, moment = time.monotonic() - now, list(jobs), 0.0
        deadline = time.monotonic() + TIMEOUT_S
        coming: tuple[Job, ...] = ()
        while time.monotonic() < deadline:
            passed = time.monotonic() - began - begin
            while waiting and waiting[0].submitted_s <= passed:
                job = waiting.pop(0)
                users[job.user].submit([_task(job)])
            if not moment and passed >= MOMENT_S:
                moment, coming = plane.state()[0], tuple(replace(job, submitted_s=begin + job.submitted_s) for job in waiting)
                if changed:
                    _change(case, plane, read_events(root))
            if not waiting and moment and not plane.jobs(ALIVE, all_users=True):
                break
            time.sleep(0.25 if waiting else 1.0)
        else:
            raise TimeoutError(f"the jobs have not ended after {TIMEOUT_S:g} s")
        return RealRun(read_events(root), moment, coming)


def read_events(root: Path) -> list[ev.Event]:
    return list(read_journal(str(root / JOURNAL)))


def _client(plane: ControlPlaneClient, root: Path, user: str) -> ControlPlaneClient:
    command = [sys.executable, "-m", "fairlead.cli.main", "token", "add", user, "--root", str(root)]
    return replace(plane, token=subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def _task(job: Job) -> dict[str, object]:
    work = [sys.executable, "-m", "fairlead.demo.demo_job", "--steps", str(int(job.steps)), "--step-s", str(STEP_S)]
    return {"name": job.name, "kind": job.kind, "run": work, "steps": int(job.steps), "workers": 1}


def _change(case: Case, plane: ControlPlaneClient, events: Sequence[ev.Event]) -> None:
    if case.spare:
        plane.drain(case.spare, undo=True)
        return
    fork = past_fork(events, events[-1].time).fork
    plane.switch(fork.changed(case.changes(fork)).start.scheduler.to_data())


@dataclass(frozen=True)
class Prediction:
    """Of the difference of the average JCT: low, middle, high; and by how much the mean of the scenarios may be off."""

    low: float
    middle: float
    high: float
    of_mean: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


def predict(case: Case, run: RealRun) -> Prediction:
    before = run.before
    fork = past_fork(before, before[-1].time).fork
    fork = replace(fork, start=replace(fork.start, arrivals=run.coming))
    paired = what_if(fork, case.changes(fork), WhatIfOptions(SCENARIOS)).metrics["average_jct_s"][2]
    middle, half = paired.difference, paired.half_width
    return Prediction(middle - half, middle, middle + half, half / (SCENARIOS + 1) ** 0.5)


def control_error(run: RealRun) -> float:
    """Of the average JCT, in hindsight from the moment on."""
    found = past_fork(run.events, run.moment).simulated(SCENARIOS)
    return fmean(simulated for _, simulated, _ in found) / found[0][0] - 1


def compare(case: Case, runs: Sequence[tuple[RealRun, RealRun]]) -> bool:
    """Print a case; runs are pairs of one without and one with the change. Returns whether it is a hit."""
    counted = runs[0][1].counted()
    means = [[fmean(jct for name, jct in one.jct_s().items() if name in counted) for one in pair] for pair in runs]
    real = [changed - control for control, changed in means]
    predicted = [predict(case, changed) for _, changed in runs]
    first, mean = predicted[0], fmean(real)
    errors = " ".join(f"{control_error(control):+.1%}" for control, _ in runs)
    pairs = " ".join(f"{each:+.1f}{'' if one.contains(each) else '!'}" for each, one in zip(real, predicted))
    intervals = "; ".join(
        f"{one.middle:+.1f} ({one.low:+.1f} to {one.high:+.1f}; mean ± {one.of_mean:.1f})" for one in predicted
    )
    jct = fmean(control for control, _ in means)
    print(
        f"{case.name}: {len(counted)} jobs, JCT without {jct:.1f} s, real {mean:+.1f} s (pairs {pairs}), "
        f"predicted {intervals}, {'hit' if first.contains(mean) else 'MISS'}, control {errors}, load {os.getloadavg()[0]:.0f}",
        flush=True,
    )
    return first.contains(mean)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)), help="by number, from 0")
    parser.add_argument("--jobs", type=int, default=36)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True, help="for the journals")
    given = parser.parse_args()
    hits = 0
    for number in given.cases:
        case, jobs, pairs = CASES[number], workload(given.jobs, given.seed + number), []
        for again in range(2):
            with ThreadPoolExecutor(2) as both:
                roots = [given.folder / f"case-{number}-{again}-{'changed' if changed else 'control'}" for changed in (0, 1)]
                made = [both.submit(run, case, jobs, root, changed=bool(on)) for on, root in enumerate(roots)]
                pairs.append((made[0].result(), made[1].result()))
        hits += compare(case, pairs)
    print(f"{hits} of {len(given.cases)} within the interval")


if __name__ == "__main__":
    main()
