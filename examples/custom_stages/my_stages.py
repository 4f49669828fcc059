"""A placement, an admission and a trace format, each in one class."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairlead.plugin import (
    Admitted,
    InputError,
    InvalidPlan,
    Job,
    Launches,
    OnBad,
    Placed,
    Reasons,
    Selection,
    Snapshot,
    Trace,
    check_job,
    ragged,
)


@dataclass(frozen=True)
class PerUser:
    """Admit at most `limit` jobs of each user; the others wait for admission."""

    limit: int = 10

    def admit(self, view: Snapshot) -> Admitted:
        names = view.names.users
        admitted = np.bincount(view.jobs.user, minlength=len(names))
        entering, reasons = [], {}
        for number, user in zip(view.queued.number.tolist(), view.queued.user.tolist()):
            if admitted[user] < self.limit:
                entering.append(number)
                admitted[user] += 1
            else:
                reasons[number] = Reasons.not_admitted(f"jobs of {names[user]}", demand=admitted[user] + 1, limit=self.limit)
        return Admitted(np.array(entering, dtype=np.int64), reasons)


@dataclass(frozen=True)
class LastFree:
    """Take the free GPUs with the highest numbers; a job that can stay stays."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        if selection.combination is not None or selection.pinned:
            raise InvalidPlan("last-free gives each job GPUs of its own")
        jobs, at = view.jobs, view.jobs.position_of(selection.jobs)
        stays = (jobs.held[at] == selection.workers) & (jobs.type[at] == selection.types)
        kept = selection.jobs[stays]
        free = view.up & ~view.device_map.held_by(kept)
        started, places, unplaced = [], [], {}
        for index in np.flatnonzero(~stays).tolist():
            type_, workers = selection.types[index], int(selection.workers[index])
            gpus = np.flatnonzero(free & (view.cluster.type_of == type_))[::-1][:workers]
            if len(gpus) < workers:
                unplaced[int(selection.jobs[index])] = Reasons.not_placed(f"{workers} GPUs of its type")
                continue
            free[gpus] = False
            started.append(index)
            places.append(gpus)
        launches = Launches(selection.jobs[started], selection.types[started], *ragged(places))
        left = np.bincount(view.cluster.type_of[free], minlength=len(view.cluster.types))
        return Placed(kept, launches, tuple(left.tolist()), unplaced)


class JsonLines:
    """Traces with one JSON object per line."""

    name = "jsonl"
    summary = "one JSON object a line: id, submit_s, run_s, gpus"

    def sniff(self, path: Path, head: str) -> bool:
        return head.startswith("{") and '"submit_s"' in head.split("\n")[0]

    def read(self, path: Path, on_bad: OnBad) -> Trace:
        jobs = []
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                record = json.loads(text)
                job = Job(record["id"], float(record["submit_s"]), float(record["run_s"]), workers=int(record["gpus"]))
            except (ValueError, KeyError, TypeError) as error:
                on_bad(InputError(path, f"id, submit_s, run_s and gpus ({error!r})", line=line))
                continue
            problem = check_job(job, path, line)
            if problem is None:
                jobs.append(job)
            else:
                on_bad(problem)
        return Trace.of(jobs, path.stem)
