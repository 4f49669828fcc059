"""Who has arrived in a simulated world, as columns by job number: what is known of a job before it runs, and room for what
becomes of it. Nobody runs here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fairlead.backends.costs import Costs
from fairlead.backends.natures import Natures
from fairlead.backends.whereabouts import Whereabouts
from fairlead.core.cluster import Bools, Cluster, Floats, Ints
from fairlead.core.job import Job
from fairlead.workloads.nature import Nature
from fairlead.workloads.profiles import ThroughputTable

_GIVEN = ("steps", "limit", "launch", "restart", "save", "save_every")  # known when a job arrives
_CHANGING = ("base", "rate", "since", "began", "run_started", "ran", "kept", "kept_at")
"""`began`: when a job that runs had loaded and went on. `kept`: its steps at the last save, and when that was."""


class Arrived:
    """Columns of the jobs that have arrived, or will. `ends` is the second at which a running job ends by itself, else
    infinity."""

    def __init__(
        self,
        cluster: Cluster,
        table: ThroughputTable,
        costs: Costs,
        capacity: int = 256,
        natures: Mapping[str, Nature] | None = None,
    ) -> None:
        self.cluster, self.costs = cluster, costs
        self.table = table.for_types(cluster.type_names)
        self.where = Whereabouts(cluster.size, capacity)
        self._block: Floats = np.zeros((capacity, len(_GIVEN) + len(_CHANGING)))  # a row for each job
        self.columns: dict[str, Floats] = dict(zip((*_GIVEN, *_CHANGING), self._block.T))
        self.ends: Floats = np.full(capacity, np.inf)
        self.row: Ints = np.zeros(capacity, dtype=np.int64)  # in the table, at the present size
        self.asked: Ints = np.ones(capacity, dtype=np.int64)  # the size that it runs at
        self.part: Floats = np.ones(capacity)  # of the row's rate, where the table has no row for that size
        self.type: Ints = np.full(capacity, -1, dtype=np.int64)
        self.spread: Bools = np.zeros(capacity, dtype=np.bool_)
        self.started: Bools = np.zeros(capacity, dtype=np.bool_)
        self.jobs: dict[int, Job] = {}
        self.natures = Natures(natures or {})
        # What no job has needs no arithmetic: whether any so far has costs, regular saves, a time limit, a nature.
        self.natural = False
        self.costly, self._saving, self._limited = False, False, False

    def arrive(self, number: int, job: Job) -> None:
        self._reserve(number + 1)
        self.jobs[number] = job
        self.row[number] = self.table.row(job.kind, job.workers)
        self.asked[number] = job.workers
        cost = self.costs.of(job.kind)
        given = (job.steps, job.time_limit_s, cost.launch_s, cost.restart_s, cost.checkpoint_s, cost.checkpoint_every_s)
        self._block[number, : len(given)] = given
        self.costly = self.costly or cost.launch_s > 0 or cost.restart_s > 0 or cost.checkpoint_s > 0
        self._saving = self._saving or cost.checkpoint_every_s < math.inf
        self._limited = self._limited or job.time_limit_s < math.inf
        self.natural = self.natures.arrive([(number, job)], self.columns["steps"])

    def foresee(self, jobs: Sequence[Job], first: int) -> None:
        """The same for many at once, with numbers from `first` on; they come into being when somebody launches them."""
        if not jobs:
            return
        self._reserve(first + len(jobs))
        mine = slice(first, first + len(jobs))
        self.jobs.update(zip(range(first, first + len(jobs)), jobs))
        looks = {(job.kind, job.workers): None for job in jobs}
        place = {look: at for at, look in enumerate(looks)}
        of = np.array([place[job.kind, job.workers] for job in jobs], dtype=np.int64)
        self.row[mine] = np.array([self.table.row(kind, workers) for kind, workers in looks], dtype=np.int64)[of]
        self.asked[mine] = np.array([workers for _, workers in looks], dtype=np.int64)[of]
        spent = [self.costs.of(kind) for kind, _ in looks]
        each = np.array([(c.launch_s, c.restart_s, c.checkpoint_s, c.checkpoint_every_s) for c in spent])
        self._block[mine, 0] = [job.steps for job in jobs]
        self._block[mine, 1] = [job.time_limit_s for job in jobs]
        self._block[mine, 2:6] = each[of]
        self.costly = self.costly or bool((each[:, :3] > 0).any())
        self._saving = self._saving or bool((each[:, 3] < math.inf).any())
        self._limited = self._limited or bool((self._block[mine, 1] < math.inf).any())
        self.natural = self.natures.arrive(enumerate(jobs, first), self.columns["steps"])

    def _reserve(self, size: int) -> None:
        old = len(self.row)
        if size <= old:
            return
        extra = max(size, 2 * old) - old
        self.where.reserve(old + extra)
        self._block = np.concatenate((self._block, np.zeros((extra, self._block.shape[1]))))
        self.columns = dict(zip((*_GIVEN, *_CHANGING), self._block.T))
        self.ends = np.concatenate((self.ends, np.full(extra, np.inf)))
        self.row = np.concatenate((self.row, np.zeros(extra, dtype=np.int64)))
        self.asked = np.concatenate((self.asked, np.ones(extra, dtype=np.int64)))
        self.part = np.concatenate((self.part, np.ones(extra)))
        self.type = np.concatenate((self.type, np.full(extra, -1, dtype=np.int64)))
        self.spread = np.concatenate((self.spread, np.zeros(extra, dtype=np.bool_)))
        self.started = np.concatenate((self.started, np.zeros(extra, dtype=np.bool_)))
