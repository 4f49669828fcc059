"""Jobs that train one of Pollux' applications: their speed follows from the placement, the batch size and how far they are.
Work is counted in the application's own progress, and a job is done where its training ends. What the jobs tell on their way
is what `core.goodput` names. It knows no files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.core import goodput
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, near_or_all
from fairlead.core.job import ELASTIC, TIMED, batch_size_of, model_of
from fairlead.core.plan import TUNED
from fairlead.workloads.applications import Application, Split, consolidated
from fairlead.workloads.nature import Nature, Speed, Standing
from fairlead.workloads.profiles import ThroughputTable
from fairlead.workloads.trace import Trace

SOURCE = "applications"


@dataclass(frozen=True)
class Training(Nature):
    """An application at a batch size. Where a plan gives another one it is that; where a plan leaves it to the job, the one
    that is best here and now: a job that is measured at its work knows its own speed."""

    application: Application
    batch_size: int
    _known: dict[tuple[tuple[int, ...], int, int], Speed] = field(default_factory=dict, init=False, repr=False, compare=False)

    def speed(self, standing: Standing) -> Speed:
        """The same for all who stand alike in an epoch, and so looked up."""
        epoch = self.application.epoch(standing.steps)
        key = standing.per_node, standing.batch_size, epoch
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._speed(*key)
        return known

    def _speed(self, per_node: tuple[int, ...], given: int, epoch: int) -> Speed:
        app, workers = self.application, sum(per_node)
        split = app.tuned(per_node, epoch) if given == TUNED else app.split(given or self.batch_size, workers)
        until = float(app.ends[epoch]) if epoch < len(app.ends) - 1 else math.inf
        size = split.batch_size(workers)
        return Speed(app.rate(per_node, split, epoch), until, size, self._reports(per_node, split, epoch))

    def _reports(self, per_node: tuple[int, ...], split: Split, epoch: int) -> Mapping[str, float]:
        app, workers = self.application, sum(per_node)
        step_s, sync_s = app.curve(per_node).at(split.local)
        sqr, var = app.noise(split.batch_size(workers), epoch)
        return {
            goodput.NODES: float(len(per_node)),
            goodput.WORKERS: float(workers),
            goodput.LOCAL: float(split.local),
            goodput.COMPUTE: float(step_s - sync_s),
            goodput.STEP: float(step_s),
            goodput.SQR: float(sqr),
            goodput.VAR: float(var),
            goodput.SMALLEST: float(app.smallest),
            goodput.LARGEST: float(app.largest),
            goodput.LEAST_LOCAL: float(app.least_local),
            goodput.MOST_LOCAL: float(app.most_local),
        }


def as_training(trace: Trace, applications: Mapping[str, Application]) -> Trace:
    """The trace with every job's work and nature from the application that its kind names."""
    jobs, natures, alike = [], dict(trace.natures), dict[str, Training]()
    for job in trace.jobs:
        app, size = applications.get(model_of(job.kind)), batch_size_of(job.kind)
        where = f"{trace.name}, job {job.name!r}"
        if app is None:
            known = near_or_all(model_of(job.kind), applications)
            raise InputError(where, f"an application that was measured ({known})", field="kind", value=job.kind)
        if size is None or not app.smallest <= size <= app.largest:
            raise InputError(where, f"a batch size from {app.smallest} to {app.largest}", field="kind", value=job.kind)
        jobs.append(replace(job, steps=app.steps, mode=ELASTIC))
        natures[job.name] = alike.setdefault(job.kind, Training(app, size))
    return replace(trace.with_jobs(jobs), natures=natures)


def table_of(trace: Trace, cluster: Cluster) -> ThroughputTable | None:
    """Mean rates over a whole run, by kind and workers on as few nodes as can be; the same on every type, and spread or not.
    None where not all jobs train an application."""
    names, on_a_node = cluster.type_names, int(cluster.node_size.max())
    asked, trained = dict[str, int](), dict[str, Training]()
    for job in trace.jobs:
        nature = trace.natures.get(job.name)
        if not isinstance(nature, Training):
            return None
        asked[job.kind], trained[job.kind] = max(asked.get(job.kind, 0), job.workers), nature
    keys: list[tuple[str, int]] = [(TIMED, 1)]
    rates = [1.0]
    for kind, most in asked.items():
        app, size = trained[kind].application, trained[kind].batch_size
        for workers in range(1, max(most, min(size // app.least_local, cluster.size)) + 1):
            keys.append((kind, workers))
            rates.append(app.steps / app.run_s(consolidated(workers, on_a_node), app.split(size, workers)))
    alone = np.repeat(np.array(rates)[:, None], len(names), axis=1)
    return ThroughputTable(names, tuple(keys), alone, alone, np.zeros((len(keys), len(keys), len(names))), SOURCE)
