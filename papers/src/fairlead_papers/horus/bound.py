"""How short a makespan could be at best, whoever schedules and whatever it knows: accelerator time is dealt out to pairs by a
linear program with the true slowdowns, as if jobs could be split and moved at no cost, and nobody is faster than alone.

    min Σ_w x_w   such that  Σ_w x_w · (part of alone speed that kind i has in way w) = Σ run times alone of kind i,  for all i

A way w is a kind alone or two kinds together; x_w is its accelerator time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Cluster
from fairlead.experiments.cases import Answer
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.policies.allocation.lp.program import Model, Program
from fairlead_papers.horus.jobs import trace
from fairlead_papers.horus.truth import H200, MeasuredPairs


@dataclass(frozen=True)
class Bound:
    """Of single workers; gangs are not in it."""

    cluster: str
    workload: str
    jobs: int
    seed: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, MeasuredPairs)
        jobs, table = trace(self.workload, self.jobs, inputs.trainings, self.seed).jobs, inputs.table
        row = np.array([table.row(job.kind, job.workers) for job in jobs])
        alone_s = np.array([job.steps for job in jobs]) / table.alone[row, 0]
        kinds, of = np.unique(row, return_inverse=True)
        part = table.paired[np.ix_(kinds, kinds)][:, :, 0] / table.alone[kinds, 0][:, None]
        one, two = np.triu_indices(len(kinds))
        way, every, single = len(kinds) + np.arange(len(one)), np.arange(len(kinds)), np.ones(len(kinds))
        entries = (
            np.concatenate((every, one, two[one != two])),
            np.concatenate((every, way, way[one != two])),
            np.concatenate((single, part[one, two] * np.where(one == two, 2, 1), part[two, one][one != two])),
        )
        many, work = len(kinds) + len(one), np.bincount(of.reshape(-1), alone_s).astype(np.float64)
        model = Model(
            cost=-np.ones(many),
            lower=np.zeros(many),
            upper=np.full(many, np.inf),
            row_lower=work,
            row_upper=work,
            entries=entries,
        )
        spent = -Program("bound", model).solve().objective
        return {"makespan_s": max(spent / Cluster.parse(self.cluster, (H200,)).size, float(alone_s.max()))}
